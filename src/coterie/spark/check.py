"""Every property on every run, by the folds of `coterie.audit`: nothing is implemented a second time here.

Whoever reads events (ingest.py) sends them on, in chunks, to the task that checks their run. A run of up to `whole_max`
events is checked as `coterie check` does: put together from its files and folded as a whole; a task holds one run at a
time. A larger run is cut into parts by the keys of its properties, and the parts are folded apart from each other
(parts.py). What is found is the same; a test compares all three.
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
import pyarrow.compute as pc
from pyspark.sql import functions as F

from coterie.audit import Checker, Violation, properties
from coterie.audit.files import Reading, put_together
from coterie.spark import ingest
from coterie.spark.chunks import Gathered, Gathering
from coterie.spark.ingest import Inputs
from coterie.spark.intake import FOUND
from coterie.spark.rows import arrow_schema
from coterie.spark.schema import RUNS, VIOLATIONS

WHOLE_MAX = 100_000
"""Events of a run that is checked as a whole: more are cut into parts. It bounds what a task holds in memory."""

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

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
JUDGED: dict[str, tuple[str, str]] = {
    **{name: column for name, column in FOUND.items() if name != "payload"},
    **{name: column for name, column in CHECKED.items() if name not in FOUND},
    "files": ("bigint", "of a run that is too large"),
}
"""FOUND, with what became of the chunks: rows of CHECKED, and `large` for each run that has too many events."""
_DDL = ", ".join(f"`{name}` {kind}" for name, (kind, _) in JUDGED.items())
_SCHEMA = arrow_schema(JUDGED)
_CHECKED_SCHEMA = arrow_schema(CHECKED)
_ROWS_MAX = 1_000


@dataclass(frozen=True, slots=True)
class Sizes:
    """How much was read."""

    runs: int
    events: int
    large: int
    """Events of runs that are too large for one task."""
    corrupt: int
    """Lines that are no events."""
    violations: int
    """Of runs that are not large."""

    @property
    def clean(self) -> bool:
        """Whether it is known that nothing is violated."""
        return not self.large and not self.violations


@dataclass(slots=True)
class Judged:
    """What was read and found. The tables are small beside the events themselves, which are in their folder."""

    sizes: Sizes
    outline: DataFrame
    """What each incarnation wrote into each file: run, node, inc, file, events and what FOUND says of them."""
    checked: DataFrame
    """CHECKED."""
    _found: DataFrame

    def corrupt(self) -> DataFrame:
        """The table of that name."""
        return ingest.corrupt(self._found)

    def close(self) -> None:
        self.checked.unpersist()
        self._found.unpersist()


def judge(spark: SparkSession, inputs: Inputs, events: Path, whole_max: int = WHOLE_MAX) -> Judged:
    """Read all that into the folder `events`, and check it. All but the large runs are done when this returns."""
    chunks = ingest.read(spark, inputs, events).repartition(tasks(ingest.about(inputs)), "run")
    judging = chunks.sortWithinPartitions("run", "file", "place").mapInArrow(partial(_check, whole_max), _DDL)
    found = judging.persist()
    sizes = _sizes(found)
    checked = found.where("what = 'checked'").select(*CHECKED)
    if sizes.large:
        from coterie.spark import parts

        large = found.where("what = 'large'").select("run", "files")
        checked = checked.unionByName(parts.checked(spark, events, large, sizes.large)).persist()
    outline = found.where("what = 'outline'").withColumnRenamed("count", "events")
    return Judged(sizes, outline, checked, found)


def _sizes(found: DataFrame) -> Sizes:
    """The one job that reads and checks everything."""
    what, count = F.col("what"), F.col("count")
    row = found.agg(
        F.count_if((what == "large") | ((what == "checked") & F.col("property").isNull())).alias("runs"),
        F.sum(F.when(what == "outline", count)).alias("events"),
        F.sum(F.when(what == "large", count)).alias("large"),
        F.count_if(what == "corrupt").alias("corrupt"),
        F.count("property").alias("violations"),
    ).first()
    assert row is not None
    return Sizes(*(row[name] or 0 for name in ("runs", "events", "large", "corrupt", "violations")))


def tasks(events: int) -> int:
    return max(1, min(TASKS_MAX, -(-events // TASK_EVENTS)))


def _check(whole_max: int, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Batches of FOUND in which the chunks of each run stand in one piece -> JUDGED."""
    with uncollected():
        answer, gathering = Answer(_SCHEMA), Gathering(whole_max)
        for batch in batches:
            is_chunk = pc.equal(batch.column("what"), "chunk")
            yield from _passed(batch.filter(pc.invert(is_chunk)))
            for run in gathering.take(batch.filter(is_chunk)):
                _judge(run, answer)
                yield from answer.full()
        for run in gathering.finish():
            _judge(run, answer)
        yield from answer.rest()


def _passed(rows: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """What is no chunk, as it is."""
    if rows.num_rows:
        names = set(rows.schema.names)
        columns = [rows.column(f.name) if f.name in names else pa.nulls(rows.num_rows, f.type) for f in _SCHEMA]
        yield pa.RecordBatch.from_arrays(columns, schema=_SCHEMA)


def _judge(gathered: Gathered, answer: Answer) -> None:
    if gathered.events is None:
        answer.large(gathered)
        return
    reading = Reading()
    run = put_together(gathered.name, gathered.events, gathered.files == 1, reading)
    checker = Checker(properties(run.causal))
    for event in run.events:
        checker.feed(event)
    answer.add(run.name, checker.finish())
    cut = [f"{e.node}#{e.inc}" for e in run.events if e.kind == "truncated"] if not run.causal else []
    answer.read(run.name, run.causal, reading.ignored, cut)


class Answer:
    """Rows of CHECKED or JUDGED, gathered into batches that are worth sending."""

    def __init__(self, schema: pa.Schema = _CHECKED_SCHEMA) -> None:
        self._schema = schema
        self._rows: list[dict[str, Any]] = []

    def add(self, run: str, found: list[Violation]) -> None:
        for violation in found:
            proof = [event.to_json() for event in violation.events]
            self._add(run=run, property=violation.property, text=violation.text, proof=proof)

    def read(self, run: str, causal: bool, ignored: int, cut: list[str]) -> None:
        self._add(run=run, causal=causal, ignored=ignored, cut=cut)

    def large(self, run: Gathered) -> None:
        self._add(what="large", run=run.name, count=run.count, files=run.files)

    def _add(self, what: str = "checked", **columns: Any) -> None:
        self._rows.append({"what": what, **columns})

    def full(self) -> Iterator[pa.RecordBatch]:
        if len(self._rows) >= _ROWS_MAX:
            yield from self.rest()

    def rest(self) -> Iterator[pa.RecordBatch]:
        if self._rows:
            yield pa.RecordBatch.from_pylist(self._rows, schema=self._schema)
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
