"""`coterie audit`: traces of any size against the properties, as a Spark job: a verdict, tables and a report."""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from coterie.audit import properties
from coterie.cli import audit_stream
from coterie.cli.output import print_json, table
from coterie.errors import UserError
from coterie.trace import Json

if TYPE_CHECKING:
    from coterie.spark.audit import Found, Summary

SHOWN = 10
"""Violations, and lines that are no events, that are spelled out; all are in the tables."""
SPLIT_ABOVE = 100_000

DESCRIPTION = """\
Checks traces against the properties of docs/properties.md, as `coterie check` does and with the same verdict,
but as a Spark job: over all cores of this machine or of a cluster, and with memory that does not grow with the
traces. Writes what it found into the folder DIR: a report for people (report.html), and tables for tools, as
Parquet: events, runs, members, views, deliveries, violations, and statistics (docs/audit.md).
"""

EPILOG = """\
examples:
  coterie audit traces/ --out out/audit                    every *.jsonl file in a folder, at any depth
  coterie audit 'traces/node-*.jsonl' --out out/audit      the files of one cluster
  coterie audit traces/ --out out/audit --overwrite        again, in place of the audit that is there
  coterie audit out/audit/events --out out/again           the events of an earlier audit
  coterie audit traces/ --out /shared/audit --master spark://host:7077     on a cluster that shares these folders
"""

CODES = "exit codes: 0 everything holds; 1 violations; 2 no such file, no events, or a folder in use; 130 interrupted\n"


def add(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = subparsers.add_parser(
        "audit",
        help="traces of any size against the properties, on Spark",
        description=DESCRIPTION,
        epilog="\n".join([EPILOG, audit_stream.EPILOG, CODES]),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("traces", nargs="*", metavar="TRACES", help="files, folders or patterns; or events of an audit")
    parser.add_argument("--out", required=True, metavar="DIR", help="folder for the tables and the report")
    parser.add_argument("--overwrite", action="store_true", help="replace the audit that is in DIR")
    parser.add_argument(
        "--master",
        metavar="URL",
        help="where: local[N], spark://HOST:PORT, k8s://HOST:PORT, yarn or sc://HOST:PORT (default: local[*])",
    )
    parser.add_argument(
        "--split-above", type=int, default=SPLIT_ABOVE, metavar="EVENTS",
        help="cut a run of more events into parts that are checked apart (default: %(default)s)",
    )  # fmt: skip
    parser.add_argument("--json", action="store_true", help="one JSON object: violations, runs, events, report, ...")
    audit_stream.add_options(parser)
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    ways = [bool(options.traces), options.stream is not None, options.from_broker is not None]
    if sum(ways) > 1:
        raise UserError("audit: give TRACES, or a folder to --stream, or brokers to --from-broker, only one of them")
    if ways[1] or ways[2]:
        return audit_stream.run(options)
    if not options.traces:
        raise UserError(
            "audit: name the files or folders that traces were written to, or a folder to --stream, or a broker to "
            "--from-broker"
        )
    if options.split_above < 1:
        raise UserError(f"--split-above must be 1 at least, not {options.split_above}")
    from coterie.spark.effort import settings_for
    from coterie.spark.session import interruptible, session

    with (
        session("coterie audit", options.master, settings_for(options.traces)) as spark,
        interruptible(spark),
        _Steps() as steps,
    ):
        from coterie.spark import places
        from coterie.spark.audit import audit, found

        with _folder(options) as out:
            summary = audit(spark, options.traces, out, steps.tell, options.overwrite, options.split_above)
            shown = found(spark, out, summary, SHOWN)
        if places.is_remote(options.out):
            report = f"{places.shown(options.out).rstrip('/')}/{Path(summary.report).name}"
            summary = replace(summary, report=report)
    if options.json:
        print_json(_answer(summary, shown))
    else:
        _print(summary, shown)
    return 1 if summary.violations else 0


@contextmanager
def _folder(options: argparse.Namespace) -> Iterator[Path]:
    """Where the audit is written. If that is elsewhere, it is written here first, and sent there when it is done."""
    from coterie.spark import places
    from coterie.spark.audit_folder import DIAGRAMS, NOTE, REPORT
    from coterie.spark.schema import TABLES

    out = str(options.out)
    if not places.is_remote(out):
        yield Path(out.removeprefix("file://"))
        return
    if not (options.master or "local").startswith("local"):
        raise UserError(f"--out {places.shown(out)}: on a cluster, name a folder that all of it sees by the same path")
    there = places.names(out)
    if there and (NOTE not in there or there - {*(table.name for table in TABLES), DIAGRAMS, REPORT, NOTE}):
        raise UserError(f"--out {places.shown(out)}: holds other things than an audit: name another folder")
    if there and not options.overwrite:
        raise UserError(f"--out {places.shown(out)}: holds an audit already: name another folder, or add --overwrite")
    with tempfile.TemporaryDirectory(prefix="coterie-audit-") as folder:
        yield Path(folder) / "audit"
        places.send(Path(folder) / "audit", out)


class _Steps:
    """Says on standard error what is being done: in one line that is renewed or, in a log, in a line each."""

    def __init__(self) -> None:
        self._rewrites = sys.stderr.isatty()

    def tell(self, done: int, what: str) -> None:
        from coterie.spark.audit import STEPS

        text = f"step {done + 1} of {STEPS}: {what}"
        print(
            f"\r\x1b[K{text}" if self._rewrites else text,
            end="" if self._rewrites else "\n",
            file=sys.stderr,
            flush=True,
        )

    def __enter__(self) -> _Steps:
        return self

    def __exit__(self, *_: object) -> None:
        if self._rewrites:
            print("\r\x1b[K", end="", file=sys.stderr, flush=True)


def _answer(summary: Summary, shown: Found) -> dict[str, Json]:
    details: list[Json] = [
        {"run": one.run, "property": one.property, "text": one.text, "events": [*one.events]}
        for one in shown.violations
    ]
    return {**summary.to_json(), "corrupt_places": [*shown.corrupt], "details": details}


def _print(summary: Summary, shown: Found) -> None:
    rows = [(fold.name, summary.by_property[fold.name], fold.sentence) for fold in properties()]
    print(table(["property", "violations", "what holds"], rows))
    for one in shown.violations:
        print(f"\n{one.property} in run {one.run}: {one.text}")
        for line in one.proof:
            print(f"    {line}")
    if summary.violations > len(shown.violations):
        print(f"\n... and {summary.violations - len(shown.violations):,} more violations: see the report")
    print(f"\n{summary.events:,} events of {summary.runs:,} runs: {summary.violations or 'no'} violations")
    if summary.corrupt:
        print(f"{summary.corrupt:,} lines are no events and were left out, the first at {shown.corrupt[0]}")
    if summary.ignored:
        print(f"{summary.ignored:,} events were ignored: they stand behind a hole in their node's trace, or twice")
    print(f"report: {summary.report}")
