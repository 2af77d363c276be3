"""Runs too large for one task, cut into parts by the keys of their properties, each part folded on its own.

As `audit.files.put_together` does, every incarnation is first cut at its first hole; here by a window over its numbers,
so that no task holds a run. Then each event goes to the parts that need it, once for all properties that are split
alike. A part is a bucket of keys: what is true of folding keys one by one is true of folding some of them together.
Events travel in chunks (chunks.py), and a task holds no more of them than overlap.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyspark.sql import functions as F
from pyspark.sql.window import Window

from coterie.audit import Checker, Property, Split, Violation, properties
from coterie.audit.files import ENDS
from coterie.audit.fold import BY_NODE, BY_RUN, NOBODY
from coterie.spark import check
from coterie.spark.chunks import COLUMNS, packed, unpacked
from coterie.spark.rows import events_of
from coterie.spark.schema import EVENT_COLUMNS, EVENTS
from coterie.trace import Event

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

BUCKETS = 16
"""Parts that a run is cut into for each kind of key."""
WHO = ("run", "node", "inc")
CHUNK_DDL = "run string, part bigint, node string, inc bigint, at bigint, causal boolean, payload binary"
_CHUNK = pa.schema([
    ("run", pa.string()), ("part", pa.int64()), ("node", pa.string()), ("inc", pa.int64()), ("at", pa.int64()),
    ("causal", pa.bool_()), ("payload", pa.binary()),
])  # fmt: skip
"""`at` is the first place of a causal run, whose nodes are together; of others the first number of the incarnation."""


def checked(spark: SparkSession, events: Path, large: DataFrame, many: int) -> DataFrame:
    """CHECKED of the runs in `large` (run, files), which have so many events together; `events` is the table's folder.

    The names of these runs come to the driver: there are few of that size.
    """
    files = [str(file) for file in sorted(events.glob("*.parquet"))]
    table = spark.read.schema(EVENTS.ddl).parquet(f"file://{events}")
    lives = _lives(table.join(F.broadcast(large), "run")).persist()
    causal = {row["run"]: row["causal"] for row in lives.groupBy("run").agg(F.max("causal").alias("causal")).collect()}
    numbers = spark.range(0, len(files), 1, max(1, len(files)))
    routed = numbers.mapInArrow(partial(_route, files, causal), CHUNK_DDL)
    kept = F.broadcast(lives.select(*WHO, "kept"))
    chunks = routed.join(kept, [*WHO], "left").unionByName(_ends(lives), allowMissingColumns=True)
    parts = chunks.repartition(max(check.tasks(many), 2 * BUCKETS), "run", "part")
    ordered = parts.sortWithinPartitions("run", "part", "node", "inc", "at")
    return ordered.mapInArrow(_fold, check.CHECKED_DDL).unionByName(_how_read(lives), allowMissingColumns=True)


def _lives(events: DataFrame) -> DataFrame:
    """For each incarnation: how many of its events are kept, whether its trace is cut there, and what stands there."""
    # xxhash64 passes over NULLs, so that two columns with one value between them could be mistaken for each other.
    content = F.xxhash64(*(F.coalesce(F.col(f"`{name}`").cast("string"), F.lit("\0")) for name in EVENT_COLUMNS))
    rows = events.select(*WHO, "n", "t", "kind", "wall", "place", "files", content.alias("content"))
    along = Window.partitionBy(*WHO).orderBy("n", "place")
    again = F.coalesce(F.col("n") == F.lag("n").over(along), F.lit(False))
    rows = rows.withColumns({
        "again": again,
        "other": again & (F.col("content") != F.lag("content").over(along)),
        "back": F.coalesce(F.col("place") <= F.lag("place").over(along), F.lit(False)),
    })  # fmt: skip
    due = F.sum(F.when(F.col("again"), 0).otherwise(1)).over(along) - 1
    rows = rows.withColumn("wrong", (F.col("n") != due) | F.col("other"))
    upto = Window.partitionBy(*WHO).orderBy("n").rangeBetween(Window.unboundedPreceding, Window.currentRow)
    rows = rows.withColumn("kept", ~F.max("wrong").over(upto))  # all of one number, or none
    moment = F.struct("kind", "t", "wall")
    found = rows.groupBy(*WHO).agg(
        F.count("*").alias("events"),
        F.coalesce(F.max(F.when(F.col("kept"), F.col("n"))) + 1, F.lit(0)).alias("kept"),
        F.max("wrong").alias("cut"),
        (~F.bool_or(F.col("wrong") | F.col("again") | F.col("back"))).alias("in_order"),
        F.coalesce(F.max_by(moment, F.when(F.col("kept"), F.col("n"))), F.min_by(moment, "n")).alias("last"),
        F.bool_or(F.col("wall").isNotNull()).alias("real"),
        F.max("files").alias("files"),
    )
    run = Window.partitionBy("run")
    real = F.bool_or("real").over(run)
    causal = (F.col("files") == 1) & ~real & F.bool_and("in_order").over(run)
    ended = F.col("last.kind").isin(*ENDS)
    return found.select(
        *WHO, "events", "kept", "last", causal.alias("causal"),
        (~causal & (F.col("cut") | (real & ~ended))).alias("truncated"),
    )  # fmt: skip


def _ends(lives: DataFrame) -> DataFrame:
    """A `truncated` where a trace was cut, for every part that reads such events; it has no payload."""
    needed = [
        F.lit(number * BUCKETS + bucket).cast("bigint")
        for number, (split, kinds) in enumerate(splits())
        if "truncated" in kinds
        for bucket in (range(BUCKETS) if split is not BY_RUN else [0])
    ]
    ends = lives.where("truncated").select(*WHO, F.col("kept").alias("at"), "causal", "last.t", "last.wall")
    return ends.withColumn("part", F.explode(F.array(*needed)))


def _how_read(lives: DataFrame) -> DataFrame:
    cut = F.collect_list(F.when(F.col("truncated"), F.concat("node", F.lit("#"), "inc")))
    ignored = F.sum(F.col("events") - F.col("kept"))
    return lives.groupBy("run").agg(F.max("causal").alias("causal"), ignored.alias("ignored"), cut.alias("cut"))


@cache
def splits() -> list[tuple[Split, frozenset[str]]]:
    """Every kind of part that there is, with the kinds of events that its properties read."""
    kinds: dict[Split, set[str]] = {}
    for fold in properties():
        kinds.setdefault(part_of(fold), set()).update(fold.kinds)
    return [(split, frozenset(read)) for split, read in kinds.items()]


def part_of(fold: Property[Any]) -> Split:
    """What is judged node by node goes along with what is not split at all: that part sees nearly all events anyway."""
    return BY_RUN if fold.split_by is BY_NODE else fold.split_by


def _route(
    files: Sequence[str], causal: Mapping[str, bool], batches: Iterator[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    """Batches of numbers of `files` -> chunks of the events of these runs, for each part that needs them."""
    bucket = [bucket_of(split) for split, _ in splits()]
    for batch in batches:
        for number in batch.column("id").to_pylist():
            with pq.ParquetFile(files[number]) as file:
                for group in range(file.num_row_groups):
                    table = file.read_row_group(group, columns=COLUMNS, use_threads=False)
                    wanted = table.filter(pc.is_in(table["run"], pa.array(causal, pa.string()))).combine_chunks()
                    for rows in wanted.to_batches():
                        yield from chunked(rows, causal, bucket)


Bucket = Callable[[Event], int | None]


def bucket_of(split: Split) -> Bucket:
    """Gives the bucket of an event, the same in every process; None: all of them; negative: none."""
    if split is BY_RUN:
        return lambda event: 0
    known: dict[Hashable, int | None] = {None: None, NOBODY: -1}
    key = split.key

    def bucket(event: Event) -> int | None:
        found = key(event)
        if found not in known:
            known[found] = zlib.crc32(repr(found).encode()) % BUCKETS
        return known[found]

    return bucket


def chunked(batch: pa.RecordBatch, causal: Mapping[str, bool], buckets: Sequence[Bucket]) -> Iterator[pa.RecordBatch]:
    """One chunk for each part, and for each incarnation too if the run is not causal."""
    found: dict[tuple[str, int, str | None, int | None], list[int]] = {}
    routes = [(number * BUCKETS, *entry) for number, entry in enumerate(zip(buckets, splits(), strict=True))]
    for row, event in enumerate(events_of(batch)):
        node, inc = (None, None) if causal[event.run] else (event.node, event.inc)
        for base, bucket, (_, kinds) in routes:
            if event.kind in kinds:
                here = bucket(event)
                for part in range(base, base + BUCKETS) if here is None else (base + here,) if here >= 0 else ():
                    found.setdefault((event.run, part, node, inc), []).append(row)
    chunks: list[dict[str, Any]] = []
    for (run, part, node, inc), rows in found.items():
        at = "place" if node is None else "n"
        taken = batch.take(pa.array(rows)).sort_by(at)
        first = taken.column(at)[0].as_py()
        chunks.append({"run": run, "part": part, "node": node, "inc": inc, "at": first, "causal": node is None,
                       "payload": packed(taken)})  # fmt: skip
    yield pa.RecordBatch.from_pylist(chunks, schema=_CHUNK)


def _fold(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Chunks, those of a part together and in order -> CHECKED, without how the run was read."""
    with check.uncollected():
        answer = check.Answer()
        part: Part | None = None
        for batch in batches:
            for row in batch.to_pylist():
                if part is None or part.name != (row["run"], row["part"]):
                    if part is not None:
                        answer.add(part.name[0], part.finish())
                        yield from answer.full()
                    part = Part(row["run"], row["part"], row["causal"])
                part.take(row)
        if part is not None:
            answer.add(part.name[0], part.finish())
        yield from answer.rest()


class Part:
    """A part of a run as it is folded: chunks come in order, but may overlap if the trace is not in order itself."""

    def __init__(self, run: str, part: int, causal: bool) -> None:
        self.name = run, part
        self._causal = causal
        split = splits()[part // BUCKETS][0]
        self._checker = Checker([fold for fold in properties(causal) if part_of(fold) == split])
        self._node: tuple[str, int] | None = None
        self._waiting: list[tuple[int, Event]] = []
        """Events with what orders them, behind which others may have to go."""
        self._upto = -1

    def take(self, row: Mapping[str, Any]) -> None:
        if (row["node"], row["inc"]) != self._node or row["at"] > self._upto:
            self._let_go()
            self._node = row["node"], row["inc"]
        if row["payload"] is None:
            self._let_go()
            run, node, inc = self.name[0], row["node"], row["inc"]
            self._checker.feed(Event(run, node, inc, row["at"], row["t"], "truncated", row["wall"]))
            return
        kept = row["kept"]
        for batch in unpacked(row["payload"]):
            events = events_of(batch)
            if self._causal:
                self._waiting += zip(batch.column("place").to_pylist(), events, strict=True)
            else:
                self._waiting += ((event.n, event) for event in events if event.n < kept)
        if self._waiting:
            self._upto = max(self._upto, self._waiting[-1][0])

    def _let_go(self) -> None:
        self._waiting.sort(key=lambda pair: pair[0])
        before = None
        for place, event in self._waiting:
            if place != before:  # the same event twice counts once
                self._checker.feed(event)
            before = place
        self._waiting, self._upto = [], -1

    def finish(self) -> list[Violation]:
        self._let_go()
        return self._checker.finish()
