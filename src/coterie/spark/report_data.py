"""What the report asks of an audit's tables: bounded answers to small queries, as plain Python.

Nothing here grows with the data: of violations, runs, files and nodes there are the first few and how many there are.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pyspark.sql import functions as F
from pyspark.sql.window import Window

from coterie.spark.audit_folder import AuditFolder
from coterie.spark.schema import (
    CORRUPT,
    DURATIONS,
    EVENTS,
    LATENCY,
    MEMBERS,
    RUNS,
    THROUGHPUT,
    TRAFFIC,
    VIOLATIONS,
    Table,
)

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, Row, SparkSession

VIOLATIONS_SHOWN = 100
"""Of all properties together; each has its share."""
PER_PROPERTY_MIN = 5
CORRUPT_SHOWN = 10
FILES_SHOWN = 5
"""Of one run."""
RUNS_SHOWN = 5
"""That stand out, of each kind."""
BUSIEST = 3
"""Runs whose throughput is drawn."""
NODES_SHOWN = 8
POINTS_MAX = 120
"""Of one line."""


@dataclass(frozen=True, slots=True)
class Shown:
    """A violation that the report spells out."""

    property: str
    run: str
    text: str
    proof: tuple[str, ...]
    events: int
    """Of its run."""
    origin: str


@dataclass(frozen=True, slots=True)
class Busy:
    """A run and what its nodes delivered, over time."""

    run: str
    origin: str
    nodes: int
    seconds_per_point: int
    lines: dict[str, list[tuple[float, float]]]
    """Messages per second by node."""


class Tables:
    """The folders of an audit."""

    def __init__(self, spark: SparkSession, out: Path) -> None:
        self.spark, self._folder = spark, AuditFolder(out)
        self.out = self._folder.path

    def read(self, table: Table) -> DataFrame:
        """A table, empty if it was not written."""
        if (self.out / table.name).exists():
            return self._folder.read(self.spark, table)
        return self.spark.createDataFrame([], table.ddl)

    # Violations.

    def violations(self, properties: int) -> list[Shown]:
        """The first of each property, those of small runs first: they are the easiest to understand."""
        each = max(PER_PROPERTY_MIN, VIOLATIONS_SHOWN // max(1, properties))
        runs = self.read(RUNS).groupBy("run").agg(F.max("events").alias("events"), F.max("origin").alias("origin"))
        order = Window.partitionBy("property").orderBy(F.asc_nulls_last("events"), "run", "text")
        rows = (
            self.read(VIOLATIONS)
            .join(runs, "run", "left")
            .withColumn("place", F.row_number().over(order))
            .where(F.col("place") <= each)
            .orderBy("property", "place")
            .limit(VIOLATIONS_SHOWN + PER_PROPERTY_MIN * properties)
            .collect()
        )
        return [
            Shown(r["property"], r["run"], r["text"], tuple(r["proof"] or ()), r["events"] or 0, r["origin"] or "")
            for r in rows
        ]

    def violated_runs(self) -> int:
        return _only(self.read(VIOLATIONS).agg(F.count_distinct("run").alias("n")).collect())["n"] or 0

    def files_of(self, runs: Sequence[str]) -> dict[str, list[str]]:
        """The first files of each of these runs, and one more than are shown if there are more."""
        if not runs:
            return {}
        first = Window.partitionBy("run").orderBy("file")
        rows = (
            self.read(EVENTS)
            .where(F.col("run").isin(*runs))
            .select("run", "file")
            .distinct()
            .withColumn("place", F.row_number().over(first))
            .where(F.col("place") <= FILES_SHOWN + 1)
            .orderBy("run", "place")
            .collect()
        )
        found: dict[str, list[str]] = {}
        for row in rows:
            found.setdefault(row["run"], []).append(row["file"] or "")
        return found

    # What was read.

    def runs(self) -> list[dict[str, Any]]:
        """For each origin: how many runs, events, nodes and how long."""
        grouped = self.read(RUNS).groupBy("origin").agg(
            F.count("*").alias("runs"),
            F.sum("events").alias("events"),
            F.sum("incarnations").alias("incarnations"),
            F.sum("seconds").alias("seconds"),
            F.max("seconds").alias("longest"),
        )  # fmt: skip
        return _dicts(grouped.orderBy("origin").collect())

    def files(self) -> int:
        both = self.read(EVENTS).select("file").unionByName(self.read(CORRUPT).select("file"))
        return _only(both.agg(F.count_distinct("file").alias("n")).collect())["n"] or 0

    def ends(self) -> list[tuple[str, int]]:
        """How the traces of incarnations end."""
        rows = self.read(MEMBERS).groupBy("end").count().orderBy(F.desc("count"), "end").limit(20).collect()
        return [(row["end"], row[1]) for row in rows]

    def corrupt(self) -> list[dict[str, Any]]:
        return _dicts(self.read(CORRUPT).orderBy("file", "place").limit(CORRUPT_SHOWN).collect())

    # Statistics.

    def totals(self, table: Table, *order: str) -> list[dict[str, Any]]:
        """The rows of all runs of an origin."""
        return _dicts(self.read(table).where("run IS NULL").orderBy("origin", *order).limit(100).collect())

    def slowest(self, hop: str) -> list[dict[str, Any]]:
        rows = self.read(LATENCY).where((F.col("hop") == hop) & F.col("run").isNotNull() & F.col("p99").isNotNull())
        return _dicts(rows.orderBy(F.desc("p99"), "run").limit(RUNS_SHOWN).collect())

    def longest(self, what: str) -> list[dict[str, Any]]:
        rows = self.read(DURATIONS).where((F.col("what") == what) & F.col("run").isNotNull() & F.col("max").isNotNull())
        return _dicts(rows.orderBy(F.desc("max"), "run").limit(RUNS_SHOWN).collect())

    def most_retransmitted(self) -> list[dict[str, Any]]:
        rows = self.read(TRAFFIC).where("run IS NOT NULL AND retransmitted > 0")
        share = F.try_divide("retransmitted", "sent")
        return _dicts(rows.orderBy(F.desc(share), "run").limit(RUNS_SHOWN).collect())

    def busiest(self) -> list[Busy]:
        throughput = self.read(THROUGHPUT)
        runs = (
            throughput.groupBy("run", "origin")
            .agg(
                F.try_sum("messages").alias("messages"),
                F.count_distinct("node").alias("nodes"),
                F.max("second").alias("last"),
            )
            .orderBy(F.desc("messages"), "run")
            .limit(BUSIEST)
            .collect()
        )
        return [self._busy(throughput, row) for row in runs]

    def _busy(self, throughput: DataFrame, run: Row) -> Busy:
        step = 1 + run["last"] // POINTS_MAX
        mine = throughput.where((F.col("run") == run["run"]) & (F.col("origin") == run["origin"]))
        nodes = (
            mine.groupBy("node").agg(F.try_sum("messages").alias("m")).orderBy(F.desc("m"), "node").limit(NODES_SHOWN)
        )  # fmt: skip
        rows = (
            mine.join(nodes.select("node"), "node")
            .groupBy("node", F.floor(F.col("second") / step).alias("bin"))
            .agg(F.coalesce(F.try_sum("messages"), F.lit(0)).alias("messages"))
            .collect()
        )
        counts = {(row["node"], row["bin"]): row["messages"] for row in rows}
        bins = range(1 + run["last"] // step)
        lines = {
            node: [(float(b * step), counts.get((node, b), 0) / step) for b in bins]
            for node in sorted({node for node, _ in counts})
        }
        return Busy(run["run"], run["origin"], run["nodes"], step, lines)


def _only(rows: Sequence[Row]) -> Row:
    (row,) = rows
    return row


def _dicts(rows: Iterable[Row]) -> list[dict[str, Any]]:
    return [row.asDict() for row in rows]
