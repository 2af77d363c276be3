"""`coterie campaign`: many thousand simulated runs, as Spark tasks, that can be stopped and gone on with."""

from __future__ import annotations

import argparse
import shlex
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from coterie import __version__
from coterie.cli.output import Progress, print_json, table
from coterie.errors import UserError
from coterie.sim import mutations
from coterie.sim.profiles import PROFILES, profile

if TYPE_CHECKING:
    from coterie.spark.campaign import State
    from coterie.spark.campaign_folder import Asked, Folder
    from coterie.spark.campaign_totals import Totals

OK, BAD, INTERRUPTED = 0, 1, 130
SHOWN = 10
"""Failing seeds that are spelled out for a person."""
RUN_LIMIT = 300.0

EPILOG = """\
examples:
  coterie campaign --profile vs --seeds 10000 --out out/vs           ten thousand runs on this machine's cores
  coterie campaign --profile vs --seeds 10000 --out out/vs           the same again: goes on where it stopped
  coterie campaign --profile total --seeds 1000000 --master spark://host:7077 --out out/total    on a cluster
  coterie campaign --profile vs --seeds 1000 --mutations --out out/vs   and does any mutation survive?

Each run is checked where it is made; only statistics and the traces of failing runs are kept, in DIR. What is done is
done: stop it with Ctrl-C, and give the same command to go on. DIR/report.html says what was found, failing seeds first,
with the commands that replay and shrink them. With the profile's standard number of seeds or more, every rule of its
protocols must have been reached, or the exit code is 1.
"""


def add(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = subparsers.add_parser(
        "campaign",
        help="many thousand simulated runs, as Spark tasks",
        description=(__doc__ or "").split("\n")[0],
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    names = ", ".join(PROFILES)
    parser.add_argument("--profile", required=True, metavar="P", help=f"family of runs: {names}")
    parser.add_argument("--seeds", type=int, required=True, metavar="N", help="number of runs")
    parser.add_argument("--first-seed", type=int, default=0, metavar="K", help="the first seed (default: %(default)s)")
    parser.add_argument(
        "--master",
        metavar="URL",
        help="where: local[N], spark://HOST:PORT, k8s://HOST:PORT, yarn or sc://HOST:PORT (default: local[*])",
    )
    parser.add_argument("--out", required=True, metavar="DIR", help="the campaign's folder")
    which = parser.add_mutually_exclusive_group()
    which.add_argument("--mutate", metavar="M", help="change one line of a protocol: see `coterie sim mutations`")
    which.add_argument(
        "--mutations", action="store_true", help="also: is every mutation of this profile caught by its property?"
    )
    end = parser.add_mutually_exclusive_group()
    end.add_argument("--keep-going", action="store_true", help="whatever fails, run all seeds (default)")
    end.add_argument("--stop-after", type=int, metavar="F", help="stop when so many seeds have failed, this time")
    parser.add_argument(
        "--run-limit", type=float, default=RUN_LIMIT, metavar="S",
        help="a run that takes more CPU seconds has failed (default: %(default)g)",
    )  # fmt: skip
    parser.add_argument(
        "--resume-anyway", action="store_true", help="go on in a folder whose runs were made by other code"
    )
    parser.add_argument("--json", action="store_true", help="one JSON object on standard output")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    family = profile(options.profile)
    _check(options)
    # All of it now, so that what is missing is missed before the hours of work.
    from coterie.spark import campaign, campaign_report, campaign_totals, session  # noqa: F401
    from coterie.spark.campaign_folder import Asked, Folder, change_of
    from coterie.spark.campaign_runs import fingerprint

    asked = Asked(
        family.name, options.first_seed, options.seeds, options.mutate, __version__, fingerprint(),
        change_of(options.mutate),
    )  # fmt: skip
    with Folder(Path(options.out)) as folder:
        folder.begin(asked, options.resume_anyway)
        stopped = threading.Event()
        state = _run(options, asked, folder, stopped)
        return _finish(options, asked, folder, state, stopped.is_set())


def _check(options: argparse.Namespace) -> None:
    if options.seeds < 1:
        raise UserError(f"--seeds must be at least 1, not {options.seeds}")
    if options.first_seed < 0:
        raise UserError(f"--first-seed must be at least 0, not {options.first_seed}")
    if options.stop_after is not None and options.stop_after < 1:
        raise UserError(f"--stop-after must be at least 1, not {options.stop_after}")
    if not options.run_limit > 0:
        raise UserError(f"--run-limit must be more than 0, not {options.run_limit:g}")
    if options.mutate is not None:
        mutations.check(mutations.find(options.mutate))


def _run(options: argparse.Namespace, asked: Asked, folder: Folder, stopped: threading.Event) -> State:
    from coterie.spark.campaign import Job, State, hunts_for, open_hunts
    from coterie.spark.session import session

    hunts = open_hunts(folder, hunts_for(asked.profile) if options.mutations else [])
    left = asked.seeds - sum(end - first for first, end in folder.done())
    if not left and not hunts:
        return State(0)  # all is done: no need to start anything
    with session(f"coterie campaign {asked.profile}", options.master) as spark, _interrupts(stopped):
        job = Job(spark, folder, asked, hunts, options.run_limit, options.stop_after)
        what, total = ("runs", left) if left else ("mutations", len(hunts))
        with Progress(what, total) as progress:
            return job.run(stopped, lambda state: progress.update(*_progress(state, asked.seeds - left)))


@contextmanager
def _interrupts(stopped: threading.Event) -> Iterator[None]:
    """Ctrl-C and SIGTERM set the event; the second time Ctrl-C does what it always does.

    Begins when there is a session, because that takes Ctrl-C for itself.
    """

    def stop(number: int, _: object) -> None:
        stopped.set()
        signal.signal(signal.SIGINT, signal.default_int_handler)

    before = {number: signal.signal(number, stop) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _progress(state: State, before: int) -> tuple[int, str]:
    """How much is done, and what else there is to say."""
    if not state.total:
        return state.hunts_total - state.hunts, ""
    notes = [f"{state.failing} failing"]
    if state.hunts:
        notes.append(f"{state.hunts} mutations to try")
    if before:
        notes.append(f"{before:,} done before")
    return state.done, ", ".join(notes)


def _finish(options: argparse.Namespace, asked: Asked, folder: Folder, state: State, interrupted: bool) -> int:
    from coterie.spark import campaign_report
    from coterie.spark.campaign_totals import add_up

    totals = add_up(asked, folder)
    totals.given_up, totals.interrupted = state.given_up, interrupted
    answer = campaign_report.write(folder, totals)
    unreached = totals.unreached()
    if options.json:
        print_json(answer)
    else:
        _print(totals, unreached)
        print(f"report: {answer['report']}")
    for what, reason in state.given_up:
        print(f"coterie: given up: {what}: {reason}", file=sys.stderr)
    if interrupted:
        left = asked.seeds - totals.runs
        print(f"coterie: stopped with {left:,} runs to go; the same command goes on: {_again()}", file=sys.stderr)
        return INTERRUPTED
    bad = totals.failing or totals.survived or state.given_up or (totals.must_reach and unreached)
    return BAD if bad else OK


def _again() -> str:
    return shlex.join(["coterie", *sys.argv[1:]])


def _print(totals: Totals, unreached: list[str]) -> None:
    from coterie.spark.campaign_report import replay_command, shrink_command

    for failure in totals.failures[:SHOWN]:
        name, text = failure.violations[0]
        print(f"seed {failure.seed}: {name}: {text.strip().splitlines()[-1]}")
        print(f"  {replay_command(totals, failure.seed)}")
        print(f"  {shrink_command(totals, failure.seed)}")
    if totals.failing > SHOWN:
        print(f"and {totals.failing - SHOWN:,} more failing seeds")
    if totals.mutations:
        rows = [
            (one.name, one.property, "SURVIVED" if one.seed is None else f"caught at seed {one.seed}", one.runs)
            for one in totals.mutations
        ]
        print(table(("mutation", "property", "fate", "runs"), rows))
    print(f"{totals.runs:,} runs, {totals.events:,} events, {totals.sim_seconds:,.0f} simulated seconds")
    print("faults: " + ", ".join(f"{kind} {totals.faults[kind]:,}" for kind in sorted(totals.faults)))
    known = len(totals.known())
    print(f"rules reached: {known - len(unreached)} of {known}" + ("" if unreached else ", that is all"))
    if unreached:
        print("never reached: " + ", ".join(unreached))
    print(f"violations: {totals.violations:,} in {totals.failing:,} runs" if totals.failing else "violations: none")
