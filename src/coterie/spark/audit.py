"""An audit: traces in, tables and a report out (docs/audit.md).

The events are read and written as a table once; all else is made from that table. Everything that is checked is checked
by the folds of `coterie.audit` (check.py); tables and statistics are Spark SQL. Nothing that grows with the traces
comes to the driver.
"""

from __future__ import annotations

import builtins
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from pyspark import StorageLevel
from pyspark.sql import functions as F

from coterie.audit import properties
from coterie.errors import UserError
from coterie.spark import check, hops, ingest, report, statistics, tables
from coterie.spark.audit_folder import AuditFolder
from coterie.spark.chunks import SETTINGS
from coterie.spark.places import shown
from coterie.spark.schema import CORRUPT, DELIVERIES, EVENTS, RUNS, TABLES, VIOLATIONS
from coterie.spark.session import parallelism
from coterie.trace import Json

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

STEPS = 4
"""Of which `Progress` is told."""

Tell = Callable[[int, str], None]
"""Called with the number of steps that are done, and what comes next."""


@dataclass(slots=True)
class Summary:
    """What an audit found."""

    violations: int
    runs: int
    events: int
    corrupt: int
    """Lines that are no events."""
    ignored: int
    """Events behind a hole in their incarnation's trace, or there twice."""
    report: Path | str
    """A path; or the URL of one that is elsewhere."""
    by_property: dict[str, int] = field(default_factory=dict)
    """Violations of every property, also where there are none."""

    def to_json(self) -> dict[str, Json]:
        return {
            "violations": self.violations,
            "runs": self.runs,
            "events": self.events,
            "corrupt_lines": self.corrupt,
            "ignored_events": self.ignored,
            "properties": dict(self.by_property.items()),
            "report": str(self.report),
        }


def audit(
    spark: SparkSession,
    paths: Sequence[str],
    out: Path,
    progress: Tell = lambda done, what: None,
    overwrite: bool = False,
    whole_max: int = check.WHOLE_MAX,
) -> Summary:
    """Audit the traces in these files, folders and patterns into the folder `out`."""
    with _settings(spark, {**SETTINGS, "spark.sql.shuffle.partitions": str(parallelism(spark))}):
        return _audit(spark, paths, out, progress, overwrite, whole_max)


def _audit(
    spark: SparkSession, paths: Sequence[str], out: Path, progress: Tell, overwrite: bool, whole_max: int
) -> Summary:
    inputs = ingest.find(paths)
    folder = AuditFolder(out)
    folder.begin(paths, inputs.files, overwrite)
    progress(0, f"reading and checking {len(inputs.files):,} files")
    judged = check.judge(spark, inputs, folder.path / EVENTS.name, whole_max)
    sizes = judged.sizes
    if sizes.corrupt:
        folder.write(CORRUPT, judged.corrupt())
    else:
        folder.write_empty(CORRUPT)
    if not sizes.runs:
        raise _nothing(spark, folder, paths)
    # What SQL shuffles is less than the events: as many partitions as the check has tasks will do.
    partitions = max(parallelism(spark), check.tasks(sizes.events))
    spark.conf.set("spark.sql.shuffle.partitions", partitions)
    if sizes.clean:
        folder.write_empty(VIOLATIONS)
    else:
        folder.write(VIOLATIONS, judged.checked.where("property IS NOT NULL").select(*VIOLATIONS.columns))
    events = folder.read(spark, EVENTS)
    progress(1, f"writing tables of {sizes.runs:,} runs")
    # On disk, because it grows with the traces.
    bundles = hops.parsed(events).repartition(partitions, *hops.MEETING).persist(StorageLevel.DISK_ONLY)
    written = tables.normalise(events, judged.outline, judged.checked, bundles)
    for table in TABLES:
        if table.name in written:
            folder.write(table, written[table.name])
    progress(2, "statistics")
    measured = statistics.statistics(events, folder.read(spark, DELIVERIES), bundles)
    for table in TABLES:
        if table.name in measured:
            folder.write(table, measured[table.name])
    progress(3, "the report")
    summary = summarise(spark, folder, sizes.corrupt)
    report.write(spark, folder.path, summary)
    folder.note({"state": "done", **summary.to_json()})
    judged.close()
    bundles.unpersist()
    return summary


@contextmanager
def _settings(spark: SparkSession, wanted: Mapping[str, str]) -> Iterator[None]:
    """The session is its caller's: afterwards it is as it was."""
    before = {key: spark.conf.get(key) for key in wanted}
    try:
        for key, value in wanted.items():
            spark.conf.set(key, value)
        yield
    finally:
        for key, old in before.items():
            if old is not None:
                spark.conf.set(key, old)


def _nothing(spark: SparkSession, folder: AuditFolder, paths: Sequence[str]) -> UserError:
    first = folder.read(spark, CORRUPT).orderBy("file", "place").first()
    hint = f"; the first line that is none: {first['file']}:{first['place']}: {first['reason']}" if first else ""
    folder.discard()
    return UserError(f"no trace events in {', '.join(map(shown, paths))}{hint}")


def summarise(spark: SparkSession, folder: AuditFolder, corrupt: int) -> Summary:
    """What the tables say."""
    totals = folder.read(spark, RUNS).agg(
        F.count("*").alias("runs"), F.sum("events").alias("events"), F.sum("ignored").alias("ignored")
    ).first()  # fmt: skip
    assert totals is not None
    counts = {
        row["property"]: row["count"] for row in folder.read(spark, VIOLATIONS).groupBy("property").count().collect()
    }
    return Summary(
        violations=sum(counts.values()),
        runs=totals["runs"],
        events=totals["events"],
        corrupt=corrupt,
        ignored=totals["ignored"],
        report=folder.path / report.FILE,
        by_property={fold.name: counts.get(fold.name, 0) for fold in properties()},
    )


@dataclass(frozen=True, slots=True)
class Shown:
    """A violation that is spelled out."""

    run: str
    property: str
    text: str
    proof: tuple[str, ...]
    """The events, as lines of the trace."""

    @builtins.property
    def events(self) -> list[Json]:
        return [json.loads(line) for line in self.proof]


@dataclass(frozen=True, slots=True)
class Found:
    """The first of what is wrong."""

    violations: list[Shown]
    corrupt: list[str]
    """file:line: reason"""


def found(spark: SparkSession, out: Path, summary: Summary, most: int) -> Found:
    """What to show of an audit that is done: at most so many of each."""
    folder = AuditFolder(out)
    violations, corrupt = [], []
    if summary.violations:
        violations = folder.read(spark, VIOLATIONS).orderBy("run", "property", "text").limit(most).collect()
    if summary.corrupt:
        corrupt = folder.read(spark, CORRUPT).orderBy("file", "place").limit(most).collect()
    return Found(
        [Shown(row["run"], row["property"], row["text"], tuple(row["proof"])) for row in violations],
        [f"{row['file']}:{row['place']}: {row['reason']}" for row in corrupt],
    )
