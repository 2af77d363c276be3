"""The report of an audit: one HTML page, and diagrams of runs that went wrong beside it (docs/report.md).

Promises: what does not hold comes first, with its proof and the command that shows it; a clean audit says so; nothing
is fetched from outside; what came out of a trace is shown as text; the page stays small, whatever the audit's size.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from coterie.audit import properties
from coterie.spark import page, report_diagrams, report_statistics, report_violations
from coterie.spark.audit_folder import REPORT
from coterie.spark.page import Html, Section, many
from coterie.spark.report_data import Tables
from coterie.spark.report_violations import local_path
from coterie.spark.schema import TABLES

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from coterie.spark.audit import Summary

FILE = REPORT


def write(spark: SparkSession, out: Path, summary: Summary) -> Path:
    """Writes the report of the tables that are in `out`, and gives its path."""
    tables = Tables(spark, out)
    violated = {name: count for name, count in summary.by_property.items() if count}
    broken = tables.violated_runs() if summary.violations else 0
    sections = [
        _violations(tables, summary, violated) if summary.violations else _properties(summary),
        Section("read", "What was read", _read(tables, summary)),
        Section("latency", "Latency", report_statistics.latency(tables)),
        Section("durations", "Views, flushes, state", report_statistics.durations(tables)),
        Section("traffic", "Traffic", report_statistics.traffic(tables)),
        Section("throughput", "Throughput", report_statistics.throughput(tables)),
        Section("tables", "Tables", _tables()),
    ]
    facts = {
        "runs": summary.runs,
        "events": summary.events,
        "files": tables.files(),
        "lines that are no events": summary.corrupt,
        "events ignored": summary.ignored,
    }
    text = page.page("Coterie audit", _title(summary), _verdict(summary, violated, broken), facts, sections)
    path = tables.out / FILE
    path.write_text(text, encoding="utf-8")
    return path


def _title(summary: Summary) -> str:
    return f"{many(summary.runs, 'run')}, {many(summary.events, 'event')}"


def _verdict(summary: Summary, violated: dict[str, int], broken: int) -> Html:
    if not summary.violations:
        return page.verdict(
            True, "No violations", f"{len(properties())} properties were checked, and nothing contradicts them."
        )
    names = ", ".join(f"{name} ({count:,})" for name, count in violated.items())
    headline = f"{many(summary.violations, 'violation')} of {many(len(violated), 'property', 'properties')}"
    return page.verdict(False, headline, f"In {broken:,} of {many(summary.runs, 'run')}: {names}.")


def _properties(summary: Summary) -> Section:
    return Section("violations", "No violations", report_violations.counts(summary.by_property))


def _violations(tables: Tables, summary: Summary, violated: dict[str, int]) -> Section:
    shown = tables.violations(len(violated))
    files = tables.files_of(list(dict.fromkeys(one.run for one in shown)))
    diagrams = report_diagrams.draw(tables, shown)
    listed = report_violations.articles(shown, summary.by_property, files, diagrams)
    replays = page.paragraph(
        "A simulated run is replayed exactly by its profile and seed; if it was run with a mutation, add ",
        page.code("--mutate"), " and its name.",
    )  # fmt: skip
    return Section(
        "violations", "Violations", page.join(report_violations.counts(summary.by_property), replays, listed)
    )


def _read(tables: Tables, summary: Summary) -> Html:
    rows = [
        (row["origin"], row["runs"], row["events"], row["incarnations"], page.seconds(row["longest"]))
        for row in tables.runs()
    ]
    parts = [page.table(("origin", "runs", "events", "incarnations of nodes", "the longest run"), rows, "Runs")]
    ends = tables.ends()
    if ends:
        meaning = {
            "stop": "stopped in good order",
            "crash": "crashed",
            "truncated": "its trace ends without a reason: what it did after that is not known",
            "end": "lived to the end of the run",
        }
        found = [(end, count, meaning.get(end, "")) for end, count in ends]
        parts.append(page.table(("end", "incarnations", "what it means"), found, "How the traces of nodes end"))
    if summary.ignored:
        parts.append(
            page.note(
                f"{many(summary.ignored, 'event')} stand behind a hole in their node's trace, or are there twice. "
                "They were not checked, because what they depend on may be missing; the statistics include them."
            )
        )
    if summary.corrupt:
        parts.append(_corrupt(tables, summary.corrupt))
    return page.join(*parts)


def _corrupt(tables: Tables, corrupt: int) -> Html:
    lines = [
        (local_path(row["file"] or ""), row["reason"], page.code((row["text"] or "")[:200])) for row in tables.corrupt()
    ]
    more = f", and {corrupt - len(lines):,} more are in the table corrupt" if corrupt > len(lines) else ""
    return page.join(
        page.note(f"{many(corrupt, 'line')} could not be read as events and were left out."),
        page.table(("file", "what is wrong", "the line"), lines, f"The first of them{more}"),
    )


def _tables() -> Html:
    parts: list[object] = [
        page.paragraph(
            "Everything above comes from Parquet tables in the folder of this page: ",
            page.code('spark.read.parquet("violations")'), ".",
        )
    ]  # fmt: skip
    for table in TABLES:
        columns = [(name, kind, what) for name, (kind, what) in table.columns.items()]
        body = page.table(("column", "type", "what it is"), columns, f"{table.what[0].upper()}{table.what[1:]}.")
        parts.append(page.details(page.join(page.link(f"{table.name}/", table.name), f" – {table.what}"), body))
    return page.join(*parts)
