"""`coterie check`: do the traces of a run hold what Coterie promises?"""

from __future__ import annotations

import argparse
import json

from coterie.audit import Checker, Violation, properties
from coterie.audit.files import Reading, find, runs
from coterie.cli.output import Progress, print_json, table, tell
from coterie.errors import UserError
from coterie.trace import Json

DETAILS_MAX = 100
"""Violations that are shown; all are counted."""

DESCRIPTION = """\
Checks traces against the properties of docs/properties.md. A trace is a file of JSON lines (docs/trace.md),
as `coterie sim run --trace DIR` or a node with tracing on writes it. Files that belong to the same run are
put together. Lines that are no events are counted and left out; where an incarnation's events have a hole,
its trace is taken to end there.
"""

EPILOG = """\
examples:
  coterie check traces/                    every *.jsonl file in a folder, at any depth
  coterie check 'traces/node-*.jsonl'      the files of one cluster
  coterie check run.jsonl --json           for a machine

exit codes: 0 everything holds; 1 violations; 2 no such file, or no events in it
"""


def add(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = subparsers.add_parser(
        "check",
        help="check the traces of a run against the properties",
        description=DESCRIPTION,
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("traces", nargs="+", metavar="TRACE", help="a file, a folder or a pattern")
    parser.add_argument("--json", action="store_true", help="one JSON object: violations, runs, events and details")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    files = find(options.traces)
    reading = Reading()
    found: list[Violation] = []
    names: list[str] = []
    with Progress("runs") as progress:
        for one in runs(files, reading):
            checker = Checker(properties(one.causal))
            for event in one.events:
                checker.feed(event)
            found += checker.finish()
            names.append(one.name)
            progress.update(len(names), f"{len(found)} violations")
    if not names:
        hint = f"; the first line that is none: {reading.corrupt_places[0]}" if reading.corrupt else ""
        raise UserError(f"no trace events in {', '.join(options.traces)}{hint}")
    if options.json:
        print_json(answer(found, len(names), reading))
    else:
        print_text(found, len(names), reading)
    return 1 if found else 0


def answer(found: list[Violation], runs: int, reading: Reading) -> dict[str, Json]:
    by_property: dict[str, Json] = {p.name: sum(v.property == p.name for v in found) for p in properties()}
    details: list[Json] = [
        {
            "run": violation.run,
            "property": violation.property,
            "text": violation.text,
            "events": [json.loads(event.to_json()) for event in violation.events],
        }
        for violation in found[:DETAILS_MAX]
    ]
    places: list[Json] = [*reading.corrupt_places]
    return {
        "violations": len(found),
        "runs": runs,
        "events": reading.events,
        "corrupt_lines": reading.corrupt,
        "corrupt_places": places,
        "ignored_events": reading.ignored,
        "properties": by_property,
        "details": details,
    }


def print_text(found: list[Violation], runs: int, reading: Reading) -> None:
    rows = [(p.name, sum(v.property == p.name for v in found), p.sentence) for p in properties()]
    print(table(["property", "violations", "what holds"], rows))
    for violation in found[:DETAILS_MAX]:
        tell(f"\n{violation.property} in run {violation.run}: {violation.text}")
        for event in violation.events:
            tell(f"    {event.to_json()}")
    if len(found) > DETAILS_MAX:
        print(f"\n... and {len(found) - DETAILS_MAX} more violations")
    print(f"\n{reading.events:,} events of {runs:,} runs: {len(found) or 'no'} violations")
    if reading.corrupt:
        print(f"{reading.corrupt:,} lines are no events and were left out, the first at {reading.corrupt_places[0]}")
    if reading.ignored:
        print(f"{reading.ignored:,} events were ignored: they stand behind a hole in their node's trace, or twice")
