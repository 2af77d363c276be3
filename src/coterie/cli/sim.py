"""`coterie sim`: simulated runs with injected faults.

Nothing here imports a protocol before a mutation has been applied, and campaigns run in processes of their own.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from coterie.cli.output import Progress, print_json, table
from coterie.errors import UserError
from coterie.sim import mutations
from coterie.sim.plan import Plan
from coterie.sim.profiles import PROFILES, profile
from coterie.trace import Json

if TYPE_CHECKING:
    from coterie.sim.result import Result
    from coterie.sim.runner import Campaign

OK, BAD, INTERRUPTED = 0, 1, 130
SHOWN = 10
"""Violations that are spelled out for a person."""

RUN_EPILOG = """\
examples:
  coterie sim run --profile channel --seeds 200           two hundred runs, each with other faults
  coterie sim run --profile channel --seeds 1 --first-seed 17 --trace traces    one run, with its trace
  coterie sim run --profile channel --seeds 200 --mutate nakack-not-to-self --json   does anybody notice?

A run that goes wrong is named by its seed: look at it with `coterie sim replay`, make it smaller with
`coterie sim shrink`. With the profile's standard number of seeds or more, every rule of its protocols must have been
reached, or the exit code is 1.
"""


def add(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    sim = subparsers.add_parser("sim", help="simulated runs with injected faults", description=__doc__.split("\n")[0])
    sim.set_defaults(run=lambda _: _help(sim))
    commands = sim.add_subparsers(title="commands", metavar="COMMAND")
    _add_run(commands)
    _add_replay(commands)
    _add_shrink(commands)
    _add_mutations(commands)


def _help(parser: argparse.ArgumentParser) -> int:
    parser.print_help()
    return 2


def _add_run(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = commands.add_parser(
        "run",
        help="run many seeds and check every property",
        epilog=RUN_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    _profile_option(parser)
    parser.add_argument("--seeds", type=int, default=200, metavar="N", help="number of runs (default: %(default)s)")
    parser.add_argument("--first-seed", type=int, default=0, metavar="K", help="the first seed (default: %(default)s)")
    parser.add_argument("--jobs", type=int, metavar="J", help="processes (default: one per core)")
    _mutate_option(parser)
    _trace_option(parser)
    _json_option(parser)
    parser.set_defaults(run=run)


def _add_replay(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = commands.add_parser("replay", help="run one seed, or one plan, again and look at it")
    _profile_option(parser)
    parser.add_argument("seed", type=int, nargs="?", metavar="SEED", help="the seed of the run")
    parser.add_argument("--plan", metavar="PLAN", help="a plan, as `coterie sim shrink` writes it, instead of a seed")
    parser.add_argument("--html", metavar="FILE", help="draw the run: members as lines, messages as arrows")
    _mutate_option(parser)
    _trace_option(parser)
    _json_option(parser)
    parser.set_defaults(run=replay)


def _add_shrink(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = commands.add_parser("shrink", help="find a smaller plan that violates the same property")
    _profile_option(parser)
    parser.add_argument("seed", type=int, metavar="SEED", help="the seed of a run that goes wrong")
    parser.add_argument("--out", required=True, metavar="PLAN", help="where the smaller plan is written")
    parser.add_argument("--tries", type=int, default=400, metavar="N", help="runs at most (default: %(default)s)")
    _mutate_option(parser)
    _json_option(parser)
    parser.set_defaults(run=shrink)


def _add_mutations(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = commands.add_parser("mutations", help="the mutations: lines without which some property does not hold")
    parser.add_argument("name", nargs="*", metavar="NAME", help="only these")
    parser.add_argument("--check", action="store_true", help="run each until its property catches it")
    parser.add_argument(
        "--seeds", type=int, default=200, metavar="N", help="with --check: runs at most (default: %(default)s)"
    )
    parser.add_argument("--jobs", type=int, metavar="J", help="with --check: processes (default: one per core)")
    _json_option(parser)
    parser.set_defaults(run=list_mutations)


def _profile_option(parser: argparse.ArgumentParser) -> None:
    names = ", ".join(PROFILES)
    parser.add_argument("--profile", default="channel", metavar="P", help=f"family of runs: {names} (default: channel)")


def _mutate_option(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--mutate", metavar="M", help="change one line of a protocol: see `coterie sim mutations`")


def _trace_option(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--trace", metavar="DIR", help="write each run's trace there, as PROFILE-SEED.jsonl")


def _json_option(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="one JSON object on standard output")


# run


def run(options: argparse.Namespace) -> int:
    from coterie.sim.runner import campaign

    family = profile(options.profile)
    if options.seeds < 1:
        raise UserError(f"--seeds must be at least 1, not {options.seeds}")
    _check_jobs(options.jobs)
    if options.mutate is not None:
        mutations.find(options.mutate)
    seeds = range(options.first_seed, options.first_seed + options.seeds)
    trace_dir = _directory(options.trace)
    with Progress("runs", len(seeds)) as progress:
        total = campaign(
            family.name, seeds, options.jobs, options.mutate, trace_dir,
            lambda sofar: progress.update(sofar.runs, _note(sofar)),
        )  # fmt: skip
    unreached = total.unreached()
    must_reach = options.mutate is None and total.runs >= family.standard_seeds
    if options.json:
        print_json(total.to_json())
    else:
        _report(total, unreached, must_reach)
    if total.interrupted:
        return INTERRUPTED
    return BAD if total.failures or (must_reach and unreached) else OK


def _note(total: Campaign) -> str:
    seeds = total.failing_seeds
    return f"{len(seeds)} failing, the last is {seeds[-1]}" if seeds else ""


def _report(total: Campaign, unreached: list[str], must_reach: bool) -> None:
    print(f"{total.runs:,} runs, {total.events:,} events, {total.sim_seconds:,.0f} simulated seconds")
    print("faults: " + ", ".join(f"{kind} {total.faults[kind]:,}" for kind in sorted(total.faults)))
    known = len(total.rules.keys() | set(unreached))
    print(f"rules reached: {known - len(unreached)} of {known}" + ("" if unreached else ", that is all"))
    if unreached and must_reach:
        print("never reached: " + ", ".join(unreached))
    if not total.failures:
        print("violations: none")
        return
    seeds = total.failing_seeds
    print(f"violations: {len(total.failures)} in {len(seeds)} runs, seeds {', '.join(map(str, seeds[:20]))}")
    for seed, name, text in total.failures[:SHOWN]:
        print(f"  seed {seed}: {name}: {_last_line(text)}")
    print(f"replay one:    coterie sim replay --profile {total.profile} {seeds[0]} --html run.html")
    print(f"make it small: coterie sim shrink --profile {total.profile} {seeds[0]} --out plan.json")


# replay


def replay(options: argparse.Namespace) -> int:
    _mutate_here(options.mutate)
    plan = _plan(options)
    trace_dir = _directory(options.trace)
    from coterie.sim.runner import trace_plan

    result, events = trace_plan(plan)
    if trace_dir is not None:
        path = Path(trace_dir) / f"{plan.profile}-{plan.seed}.jsonl"
        path.write_text("".join(event.to_json() + "\n" for event in events), encoding="utf-8")
    if options.html is not None:
        from coterie.sim.diagram import render

        title = f"{plan.profile}, seed {plan.seed}"
        _write(options.html, render(events, title))
    if options.json:
        print_json(_replay_json(plan, result))
    else:
        _print_replay(plan, result)
    return BAD if result.violations else OK


def _plan(options: argparse.Namespace) -> Plan:
    if (options.plan is None) == (options.seed is None):
        raise UserError("say which run: either a SEED (with --profile) or --plan FILE")
    if options.plan is None:
        return profile(options.profile).make(options.seed)
    try:
        text = Path(options.plan).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"--plan {options.plan}: {error}") from None
    return Plan.from_json(text, options.plan)


def _replay_json(plan: Plan, result: Result) -> dict[str, Json]:
    return {
        "profile": plan.profile,
        "seed": plan.seed,
        "members": list(plan.members),
        "events": result.events,
        "sim_seconds": round(result.sim_seconds, 3),
        "faults": {kind: result.faults[kind] for kind in sorted(result.faults)},
        "rules": {rule: result.rules[rule] for rule in sorted(result.rules)},
        "violations": len(result.violations),
        "failures": [{"property": name, "text": text} for name, text in result.violations],
    }


def _print_replay(plan: Plan, result: Result) -> None:
    print(f"{plan.profile}, seed {plan.seed}: {len(plan.members)} members over {plan.stack[0][0]}")
    print("stack: " + " ".join(name for name, _ in plan.stack))
    print(f"{result.events:,} events in {result.sim_seconds:.1f} simulated seconds, {len(plan.faults)} planned faults")
    for fault in plan.faults:
        where = ", ".join(fault.nodes) or f"{len(fault.links)} links"
        values = " ".join(f"{name}={value:g}" for name, value in fault.values.items())
        print(f"  {fault.at:6.3f} s  {fault.kind:<13} {where}  for {fault.duration:.3f} s  {values}".rstrip())
    if not result.violations:
        print("violations: none")
    for name, text in result.violations:
        print(f"violation of {name}: {text}")


# shrink


def shrink(options: argparse.Namespace) -> int:
    _mutate_here(options.mutate)
    if options.tries < 1:
        raise UserError(f"--tries must be at least 1, not {options.tries}")
    plan = profile(options.profile).make(options.seed)
    from coterie.sim.runner import run_plan
    from coterie.sim.shrink import Shrinker

    with Progress("tries", options.tries) as progress:
        shrunk = Shrinker(lambda p: run_plan(p).properties, options.tries).shrink(
            plan, lambda tries, p: progress.update(tries, f"{len(p.faults)} faults, {len(p.bursts)} bursts")
        )
    if shrunk is None:
        raise UserError(f"seed {options.seed} of {plan.profile} violates nothing: there is nothing to shrink")
    _write(options.out, shrunk.plan.to_json() + "\n")
    before, after = _measures(plan), _measures(shrunk.plan)
    if options.json:
        print_json({"property": shrunk.property, "tries": shrunk.tries, "before": {**before}, "after": {**after}})
    else:
        print(f"still violates {shrunk.property}, after {shrunk.tries} tries")
        print(table(("", "before", "after"), [(name, before[name], after[name]) for name in before]))
        mutate = f" --mutate {options.mutate}" if options.mutate else ""
        print(f"look at it: coterie sim replay --plan {options.out}{mutate} --html run.html")
    return OK


def _measures(plan: Plan) -> dict[str, int]:
    return {
        "members": len(plan.members),
        "faults": len(plan.faults),
        "bursts": len(plan.bursts),
        "bundles": sum(burst.bundles for burst in plan.bursts),
    }


# mutations


def list_mutations(options: argparse.Namespace) -> int:
    chosen = [mutations.find(name) for name in options.name] or list(mutations.MUTATIONS)
    _check_jobs(options.jobs)
    rows: list[dict[str, Json]] = []
    for mutation in chosen:
        row: dict[str, Json] = {
            "name": mutation.name,
            "profile": mutation.profile,
            "property": mutation.property,
            "what": mutation.what,
        }
        if options.check:
            row["caught"] = _caught(mutation, options.seeds, options.jobs)
            if not options.json:
                at = "NOT CAUGHT" if row["caught"] is None else f"caught at seed {row['caught']}"
                print(f"{mutation.name}: {at} by {mutation.property}", flush=True)
        rows.append(row)
    if options.json:
        print_json({"mutations": [*rows]})
    elif not options.check:
        columns = ("name", "profile", "property", "what")
        print(table(columns, [[str(row[column]) for column in columns] for row in rows]))
    return BAD if options.check and any(row["caught"] is None for row in rows) else OK


def _caught(mutation: mutations.Mutation, seeds: int, jobs: int | None) -> int | None:
    """The first seed at which the property that should catch it does."""
    from coterie.sim.runner import campaign

    def caught(total: Campaign) -> bool:
        return bool(total.caught_by(mutation.property))

    total = campaign(mutation.profile, range(seeds), jobs, mutation.name, stop=caught)
    if total.interrupted:
        raise KeyboardInterrupt
    found = total.caught_by(mutation.property)
    return found[0] if found else None


# What several of them need.


def _mutate_here(name: str | None) -> None:
    if name is not None:
        mutations.install(mutations.find(name))


def _check_jobs(jobs: int | None) -> None:
    if jobs is not None and jobs < 1:
        raise UserError(f"--jobs must be at least 1, not {jobs}")


def _directory(name: str | None) -> str | None:
    if name is not None:
        try:
            Path(name).mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise UserError(f"--trace {name}: {error}") from None
    return name


def _write(name: str, text: str) -> None:
    try:
        Path(name).write_text(text, encoding="utf-8")
    except OSError as error:
        raise UserError(f"cannot write {name}: {error}") from None


def _last_line(text: str) -> str:
    return text.strip().splitlines()[-1]
