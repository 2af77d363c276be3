"""What a streaming audit leaves for a person when it stops: report.html, violations first."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from pyspark.sql import functions as F

from coterie.spark import page
from coterie.spark import stream_tables as tables
from coterie.spark.page import Html, Section, many
from coterie.spark.report_violations import counts
from coterie.spark.schema import CORRUPT, RUNS, VIOLATIONS

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from coterie.spark.schema import Table
    from coterie.spark.stream import Outcome

SHOWN_MAX = 200
"""Violations that the page spells out, and lines that are no events."""
RUNS_MAX = 100


def write(spark: SparkSession, source: object, out: Path, outcome: Outcome) -> Path:
    """The page about the traces from `source`, from the tables in `out`."""
    found = outcome.violations
    headline = f"{many(found, 'violation')}" if found else f"No violations in {many(outcome.runs, 'run')}"
    more = f"{many(outcome.open_runs, 'run is', 'runs are')} not over: judged as if nothing more came of it."
    facts = {
        "runs": outcome.runs,
        "not over": outcome.open_runs,
        "events": outcome.events,
        "came too late": outcome.late,
        "ignored": outcome.ignored,
        "lines that are no events": outcome.corrupt,
    }
    sections = [
        Section("violations", "Violations", _violations(spark, out, outcome)),
        Section("runs", "Runs", _runs(spark, out)),
        Section("unread", "What was not judged", _unread(spark, out, outcome)),
    ]
    file = out / "report.html"
    file.write_text(
        page.page(
            "Streaming audit",
            str(source),
            page.verdict(not found, headline, more if outcome.open_runs else ""),
            facts,
            sections,
        ),
        encoding="utf-8",
    )
    return file


def _both(spark: SparkSession, out: Path, table: Table) -> DataFrame:
    over = tables.read(spark, out, table).withColumn("open", F.lit(False))
    return over.unionByName(tables.read(spark, out, table, opened=True).withColumn("open", F.lit(True)))


def _violations(spark: SparkSession, out: Path, outcome: Outcome) -> Html:
    parts: list[object] = [counts(outcome.by_property)]
    for row in _both(spark, out, VIOLATIONS).orderBy("property", "run").limit(SHOWN_MAX).collect():
        lines = page.Html("\n".join(page.text(line) for line in row["proof"]))
        parts.append(page.heading(f"{row['property']} in run {row['run']}"))
        parts.append(page.paragraph(row["text"]))
        parts.append(page.details("The lines of the trace", Html(f"<pre><code>{lines}</code></pre>\n")))
    if outcome.violations > SHOWN_MAX:
        parts.append(page.paragraph(f"… and {outcome.violations - SHOWN_MAX:,} more, in the table violations."))
    return page.join(*parts)


def _runs(spark: SparkSession, out: Path) -> Html:
    order = (F.desc("violations"), F.desc("open"), F.desc("events"), "run")
    rows = []
    for row in _both(spark, out, RUNS).orderBy(*order).limit(RUNS_MAX).collect():
        over = "no" if row["open"] else "yes"
        figures = (row["events"], row["incarnations"], page.seconds(row["seconds"]), row["violations"])
        rows.append((row["run"], row["origin"], over, *figures))
    headers = ("run", "origin", "over", "events", "incarnations", "time", "violations")
    return page.table(headers, rows, f"Runs, at most {RUNS_MAX}")


def _unread(spark: SparkSession, out: Path, outcome: Outcome) -> Html:
    if not outcome.corrupt and not outcome.late:
        return page.paragraph("Every line was an event, and none came too late.")
    corrupt = tables.read(spark, out, CORRUPT).orderBy("file", "place").limit(SHOWN_MAX).collect()
    late = tables.read(spark, out, tables.LATE).groupBy("run", "node", "inc", "reason").agg(
        F.count("*").alias("events"), F.min("n").alias("first"), F.max("n").alias("last")
    )  # fmt: skip
    rows = late.orderBy(F.desc("events")).limit(SHOWN_MAX).collect()
    return page.join(
        page.table(
            ("node", "run", "why", "events", "first", "last"),
            [(f"{r['node']}#{r['inc']}", r["run"], r["reason"], r["events"], r["first"], r["last"]) for r in rows],
            "Events that came too late",
        ),
        page.table(
            ("file", "line", "reason", "text"),
            [(r["file"], r["place"], r["reason"], r["text"][:SHOWN_MAX]) for r in corrupt],
            "Lines that are no events",
        ),
    )
