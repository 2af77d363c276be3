"""What a campaign leaves for a person: report.html, summary.json, and a diagram of each run that failed.

Failing seeds come first, the smallest first, with the commands that replay and shrink them; then mutations that nobody
noticed, rules that were never reached, and only then what went well.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from html import escape
from typing import TYPE_CHECKING

from coterie.spark.campaign_rules import Rule, rules_of
from coterie.spark.campaign_runs import shortened
from coterie.spark.page import (
    Html,
    Number,
    Section,
    bars,
    code,
    command,
    details,
    heading,
    join,
    link,
    note,
    page,
    paragraph,
    seconds,
    table,
    verdict,
)
from coterie.trace import Event, Json

if TYPE_CHECKING:
    from coterie.spark.campaign_folder import Folder
    from coterie.spark.campaign_totals import Failure, Totals

DIAGRAMS_MAX = 20
"""Failing runs that are drawn."""
SHOWN_MAX = 50
"""Failing runs that the page tells of."""
VIOLATIONS_MAX = 5
"""Violations of one run that the page spells out."""
TEXT_MAX = 1500


def replay_command(totals: Totals, seed: int) -> str:
    asked = totals.asked
    name = f"{asked.profile}-{seed}.html"
    return f"coterie sim replay --profile {asked.profile} {seed}{asked.mutate_words()} --html {name}"


def shrink_command(totals: Totals, seed: int) -> str:
    asked = totals.asked
    return f"coterie sim shrink --profile {asked.profile} {seed}{asked.mutate_words()} --out plan.json"


def write(folder: Folder, totals: Totals) -> dict[str, Json]:
    """Write everything; returns what `--json` prints."""
    for failure in totals.failures[:DIAGRAMS_MAX]:
        _draw(folder, totals, failure)
    report = folder.write("report.html", _page(folder, totals))
    answer: dict[str, Json] = {**totals.to_json(), "report": str(report)}
    folder.write("summary.json", json.dumps(answer, indent=2, ensure_ascii=False) + "\n")
    return answer


def _draw(folder: Folder, totals: Totals, failure: Failure) -> None:
    from coterie.sim.diagram import render

    trace = folder.failure(totals.asked.profile, failure.seed, ".jsonl")
    drawn = trace.with_suffix(".html")
    if trace.exists() and not drawn.exists():
        with trace.open(encoding="utf-8") as lines:
            events = [Event.from_json(line) for line in lines]
        folder.write(drawn.relative_to(folder.path), render(events, f"{totals.asked.profile}, seed {failure.seed}"))


# The page.


def _page(folder: Folder, totals: Totals) -> str:
    asked = totals.asked
    title = f"{asked.profile}, seeds {asked.first_seed:,} to {asked.end - 1:,}"
    if asked.mutation:
        title += f", with mutation {asked.mutation}"
    rules = rules_of(totals.asked.profile)
    facts = {
        "runs": totals.runs,
        "failing": totals.failing,
        "events": totals.events,
        "simulated time": seconds(totals.sim_seconds),
        "CPU time": seconds(totals.cpu_seconds),
        "faults": totals.faults.total(),
    }
    sections = [Section("failures", "Failing seeds", _failures(folder, totals))]
    if totals.mutations:
        sections.append(Section("mutations", "Mutations", _mutations(totals)))
    sections += [
        Section("rules", "Coverage of the rules", _coverage(totals, rules)),
        Section("faults", "Faults injected", _faults(totals)),
        Section("runs", "The runs", _runs(totals)),
    ]
    return page("Campaign", title, _verdict(totals), facts, sections)


def _verdict(totals: Totals) -> Html:
    asked, bad, unreached = totals.asked, [], totals.unreached()
    if totals.failing:
        bad.append(f"{totals.failing:,} of {totals.runs:,} runs failed")
    if totals.survived:
        bad.append(f"{len(totals.survived)} mutation{'' if len(totals.survived) == 1 else 's'} survived")
    if unreached and totals.must_reach:
        bad.append(f"{len(unreached)} rule{' was' if len(unreached) == 1 else 's were'} never reached")
    if totals.given_up:
        bad.append(f"given up: {', '.join(what for what, _ in totals.given_up[:5])}")
    more = "" if totals.complete else f"{totals.runs:,} of {asked.seeds:,} runs are done: the same command goes on. "
    if totals.given_up:
        more += f"Why something was given up: {totals.given_up[-1][1]}. "
    if asked.earlier:
        more += f"Runs of other code are among them: {', '.join(asked.earlier)}. "
    more += f"Coterie {asked.version}, code {asked.fingerprint}."
    return verdict(not bad, "; ".join(bad) or f"No violations in {totals.runs:,} runs", more)


def _failures(folder: Folder, totals: Totals) -> Html:
    if not totals.failing:
        return paragraph("None: every property held in every run.")
    shown = totals.failures[:SHOWN_MAX]
    parts = [_failure(folder, totals, failure, number == 0) for number, failure in enumerate(shown)]
    if totals.failing > SHOWN_MAX:
        others = ", ".join(map(str, totals.failing_seeds[SHOWN_MAX : SHOWN_MAX + 200]))
        parts.append(details(f"{totals.failing - SHOWN_MAX:,} more failing seeds", paragraph(others)))
    by_property = dict(totals.by_property.most_common())
    return join(*parts, bars("In how many runs each property was violated", ("property", "runs"), by_property))


def _failure(folder: Folder, totals: Totals, failure: Failure, first: bool) -> Html:
    links = []
    for ending, what in ((".html", "space-time diagram"), (".jsonl", "trace"), (".plan.json", "plan")):
        path = folder.failure(totals.asked.profile, failure.seed, ending)
        if path.exists():
            links.append(link(f"failures/{path.name}", what))
    size = f"{failure.members} members, {failure.planned} planned faults, {failure.events:,} events"
    parts = [paragraph(f"{size}. ", *(join(one, " ") for one in links))]
    for name, text in failure.violations[:VIOLATIONS_MAX]:
        parts.append(_violation(name, shortened(text.strip(), TEXT_MAX)))
    if failure.count > VIOLATIONS_MAX:
        parts.append(paragraph(f"and {failure.count - VIOLATIONS_MAX:,} more violations"))
    parts += [command(replay_command(totals, failure.seed)), command(shrink_command(totals, failure.seed))]
    return details(f"Seed {failure.seed}: {', '.join(failure.properties)}", join(*parts), opened=first)


def _violation(name: str, text: str) -> Html:
    """A traceback keeps its lines."""
    body = Html(f"<pre>{escape(text)}</pre>") if "\n" in text else text
    return join(Html("<div><strong>"), name, Html("</strong> "), body, Html("</div>\n"))


def _mutations(totals: Totals) -> Html:
    rows = [
        (code(one.name), one.property, "survived" if one.seed is None else f"caught at seed {one.seed}",
         one.runs, ", ".join(one.others), one.what)
        for one in totals.mutations
    ]  # fmt: skip
    told = (
        note(f"{len(totals.survived)} survived: ", ", ".join(totals.survived))
        if totals.survived
        else paragraph("Every line that was changed was noticed by the property that is there for it.")
    )
    headers = ("mutation", "property", "fate", "runs", "also violated", "what it changes")
    return join(told, table(headers, rows, "One line of a protocol changed, run until its property is violated"))


def _coverage(totals: Totals, rules: Sequence[Rule]) -> Html:
    wanted = [rule for rule in rules if rule.wanted]
    unreached = [rule for rule in wanted if not totals.rules[rule.name]]
    told = paragraph(
        f"{len(wanted) - len(unreached)} of the {len(wanted)} rules that this profile has to reach were reached. "
        "The rules of other protocols in its stacks are counted, too."
    )
    parts = [told]
    if unreached:
        parts.append(note(f"Never reached: {', '.join(rule.name for rule in unreached)}"))
        if not totals.must_reach:
            parts.append(paragraph("With so few runs that means little."))
    for protocol, document in dict.fromkeys((rule.protocol, rule.document) for rule in rules):
        own = [rule for rule in rules if rule.protocol == protocol]
        own.sort(key=lambda rule: totals.rules[rule.name] > 0)  # those never reached come first
        rows = [
            (code(rule.name), totals.rules[rule.name] or Number("never"), totals.rule_runs[rule.name], rule.sentence)
            for rule in own
        ]  # fmt: skip
        there = sum(1 for rule in own if totals.rules[rule.name])
        title = f"{protocol} (design document {document})" if document else protocol
        body = table(
            ("rule", "times", "in runs", "what it says"), rows, f"Rules of {protocol}, those never reached first"
        )
        has_hole = any(rule in unreached for rule in own)
        caption = f"{title}: {there} of {len(own)} reached"
        parts.append(
            details(
                caption + ("" if any(rule.wanted for rule in own) else ", none of them asked for"),
                body,
                opened=has_hole,
            )
        )
    return join(*parts)


def _faults(totals: Totals) -> Html:
    rows = [
        (kind, totals.faults[kind], totals.fault_runs[kind], f"{totals.fault_runs[kind] / totals.runs:.0%}")
        for kind in sorted(totals.faults)
    ]
    return table(("fault", "times", "in runs", "share of the runs"), rows, "What was done to the groups")


def _runs(totals: Totals) -> Html:
    if not totals.runs:
        return paragraph("None yet.")
    figures = [
        ("events in a run, mean", f"{totals.events / totals.runs:,.0f}"),
        ("simulated time of a run, mean", seconds(totals.sim_seconds / totals.runs)),
        ("CPU time of a run, median", seconds(totals.cpu_percentile(0.5))),
        ("CPU time of a run, 99 of 100 took no longer", seconds(totals.cpu_percentile(0.99))),
        ("events per CPU second", f"{totals.events / max(totals.cpu_seconds, 1e-9):,.0f}"),
    ]
    slowest = [(seed, seconds(time), code(replay_command(totals, seed))) for time, seed in totals.slowest]
    sizes = {f"{size} members": float(totals.members[size]) for size in sorted(totals.members)}
    return join(
        table(("figure", "value"), figures, "What runs took"),
        bars("How large the groups were", ("group", "runs"), {name: int(count) for name, count in sizes.items()}),
        heading("Slowest seeds"),
        table(("seed", "CPU time", "look at it"), slowest, "Runs that took longest"),
    )
