"""Every property on every run, by the folds of `coterie.audit`: nothing is implemented a second time here.

A run of up to `whole_max` events is checked as `coterie check` does: put together from its files and folded as a whole,
by one task, which holds one run at a time. A larger run is cut into parts by the keys of its properties, and the parts
are folded apart from each other (parts.py). What is found is the same; a test compares all three.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.sql import functions as F

from coterie.audit import Checker, Violation, properties
from coterie.audit.files import Reading, put_together
from coterie.spark.chunks import CHUNK_DDL, gathered, runs_of
from coterie.spark.rows import arrow_schema
from coterie.spark.schema import EVENTS, RUNS, VIOLATIONS

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

WHOLE_MAX = 100_000
"""Events of a run that is checked as a whole: more are cut into parts. It bounds what a task holds in memory."""
TASK_EVENTS = 100_000
"""What a task should have to do: about a second of work."""
TASKS_MAX = 10_000

CHECKED: dict[str, tuple[str, str]] = {
    **VIOLATIONS.columns,
    "causal": RUNS.columns["causal"],
    "ignored": RUNS.columns["ignored"],
    "cut": ("array<string>", "addresses of the incarnations whose traces are taken to end early"),
}
"""One row for each violation; and for each run one without a property, that says how it was read."""
CHECKED_DDL = ", ".join(f"`{name}` {kind}" for name, (kind, _) in CHECKED.items())
_SCHEMA = arrow_schema(CHECKED)
_ROWS_MAX = 1_000


@dataclass(frozen=True, slots=True)
class Sizes:
    """How much there is to check."""

    runs: int
    events: int
    large: int
    """Events of runs that are too large for one task."""


def survey(runs: DataFrame, whole_max: int = WHOLE_MAX) -> Sizes:
    """`runs` has the columns run and events."""
    large = F.sum(F.when(F.col("events") > whole_max, F.col("events")))
    row = runs.agg(F.count("*").alias("runs"), F.sum("events").alias("events"), large.alias("large")).first()
    assert row is not None
    return Sizes(row["runs"], row["events"] or 0, row["large"] or 0)


def checked(spark: SparkSession, events: Path, runs: DataFrame, sizes: Sizes, whole_max: int = WHOLE_MAX) -> DataFrame:
    """CHECKED, of the events table in that folder. `runs` (run, events, files) and `sizes` tell what is in it."""
    files = [str(file) for file in sorted(events.glob("*.parquet"))]
    chunks = spark.range(0, len(files), 1, max(1, len(files))).mapInArrow(partial(gathered, files), CHUNK_DDL)
    if not sizes.large:
        return _whole(chunks, sizes.events)
    from coterie.spark import parts

    large = runs.where(F.col("events") > whole_max).select("run", "files")
    small = chunks.join(F.broadcast(large), "run", "left_anti")
    table = spark.read.schema(EVENTS.ddl).parquet(f"file://{events}")
    return _whole(small, sizes.events - sizes.large).unionByName(parts.checked(table, large, sizes.large))


def tasks(events: int) -> int:
    return max(1, min(TASKS_MAX, -(-events // TASK_EVENTS)))


def _whole(chunks: DataFrame, events: int) -> DataFrame:
    together = chunks.repartition(tasks(events), "run").sortWithinPartitions("run", "file", "place")
    return together.mapInArrow(_check, CHECKED_DDL)


def _check(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Batches of CHUNK in which each run stands in one piece -> CHECKED."""
    with uncollected():
        answer = Answer()
        for name, events, files in runs_of(batches):
            reading = Reading()
            run = put_together(name, events, files == 1, reading)
            checker = Checker(properties(run.causal))
            for event in run.events:
                checker.feed(event)
            answer.add(name, checker.finish())
            cut = [f"{e.node}#{e.inc}" for e in run.events if e.kind == "truncated"] if not run.causal else []
            answer.read(name, run.causal, reading.ignored, cut)
            yield from answer.full()
        yield from answer.rest()


class Answer:
    """Rows of CHECKED, gathered into batches that are worth sending."""

    def __init__(self) -> None:
        self._rows: list[dict[str, Any]] = []

    def add(self, run: str, found: list[Violation]) -> None:
        for violation in found:
            proof = [event.to_json() for event in violation.events]
            self._rows.append({"run": run, "property": violation.property, "text": violation.text, "proof": proof})

    def read(self, run: str, causal: bool, ignored: int, cut: list[str]) -> None:
        self._rows.append({"run": run, "causal": causal, "ignored": ignored, "cut": cut})

    def full(self) -> Iterator[pa.RecordBatch]:
        if len(self._rows) >= _ROWS_MAX:
            yield from self.rest()

    def rest(self) -> Iterator[pa.RecordBatch]:
        if self._rows:
            yield pa.RecordBatch.from_pylist(self._rows, schema=_SCHEMA)
            self._rows = []


@contextmanager
def uncollected() -> Iterator[None]:
    """Without the collector of cycles: events and folds make none, and it would look at all of them again and again."""
    collecting = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collecting:
            gc.enable()
