"""Runs too large for one task, cut into parts by the keys of their properties, each part folded on its own.

As `audit.files.put_together` does, every incarnation is first cut at its first hole; here by a window over its numbers,
so that no task holds a run. Then each event goes to the parts that need it, once for all properties that are split
alike. A part is a bucket of keys: what is true of folding keys one by one is true of folding some of them together.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Hashable, Iterator
from functools import cache
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.sql import functions as F
from pyspark.sql.window import Window

from coterie.audit import Checker, Property, Split, properties
from coterie.audit.files import ENDS
from coterie.spark import check
from coterie.spark.rows import arrow_schema, events_of, segments
from coterie.spark.schema import EVENT_COLUMNS
from coterie.trace import Event

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

BUCKETS = 16
"""Parts that a run is cut into for each kind of key."""
WHO = ("run", "node", "inc")

ROUTED: dict[str, tuple[str, str]] = {
    **EVENT_COLUMNS,
    "place": ("bigint", "rises along the run, if it is causal; 0 if not"),
    "causal": ("boolean", "of the run"),
    "part": ("bigint", "which kind of key, and which bucket"),
}
_ROUTED_SCHEMA = arrow_schema(ROUTED)
_ROUTED_DDL = ", ".join(f"`{name}` {kind}" for name, (kind, _) in ROUTED.items())


def checked(events: DataFrame, large: DataFrame, many: int) -> DataFrame:
    """CHECKED of the runs in `large` (run, files), which have so many events together."""
    events = events.join(F.broadcast(large), "run")
    lives = _lives(events).persist()
    kept = _kept(events, lives)
    routed = kept.mapInArrow(_route, _ROUTED_DDL)
    parts = routed.repartition(max(check.tasks(many), BUCKETS), "run", "part")
    ordered = parts.sortWithinPartitions("run", "part", "place", "node", "inc", "n")
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


def _kept(events: DataFrame, lives: DataFrame) -> DataFrame:
    """The events that are folded, with a `truncated` where a trace was cut."""
    read = sorted({kind for fold in properties() for kind in fold.kinds})
    known = lives.select(*WHO, "kept", "causal")
    whole = events.join(F.broadcast(known), [*WHO]).where((F.col("n") < F.col("kept")) & F.col("kind").isin(*read))
    ends = lives.where("truncated").select(
        *WHO, F.col("kept").alias("n"), "last.t", F.lit("truncated").alias("kind"), "last.wall", "causal"
    )
    both = whole.select(*EVENT_COLUMNS, "place", "causal").unionByName(ends, allowMissingColumns=True)
    return both.withColumn("place", F.when(F.col("causal"), F.col("place")).otherwise(0))


def _how_read(lives: DataFrame) -> DataFrame:
    cut = F.collect_list(F.when(F.col("truncated"), F.concat("node", F.lit("#"), "inc")))
    ignored = F.sum(F.col("events") - F.col("kept"))
    return lives.groupBy("run").agg(F.max("causal").alias("causal"), ignored.alias("ignored"), cut.alias("cut"))


@cache
def splits() -> list[tuple[Split, frozenset[str]]]:
    """Every kind of key that there is, with the kinds of events that its properties read."""
    kinds: dict[Split, set[str]] = {}
    for fold in properties():
        kinds.setdefault(fold.split_by, set()).update(fold.kinds)
    return [(split, frozenset(read)) for split, read in kinds.items()]


def _folds(split: Split, causal: bool) -> list[Property[Any]]:
    return [fold for fold in properties(causal) if fold.split_by == split]


def _route(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Each event once for each part that needs it."""
    for batch in batches:
        events = events_of(batch)
        for number, (split, kinds) in enumerate(splits()):
            rows: list[int] = []
            parts: list[int] = []
            bucket = _buckets(split.key)
            for row, event in enumerate(events):
                if event.kind in kinds:
                    here = bucket(event)
                    if here is not None:
                        rows.append(row)
                        parts.append(number * BUCKETS + here)
                    else:
                        rows += [row] * BUCKETS
                        parts += range(number * BUCKETS, (number + 1) * BUCKETS)
            if rows:
                taken = batch.take(pa.array(rows))
                yield pa.RecordBatch.from_arrays([*taken.columns, pa.array(parts, pa.int64())], schema=_ROUTED_SCHEMA)


def _buckets(key: Callable[[Event], Hashable | None]) -> Callable[[Event], int | None]:
    """The bucket of an event, the same in every process; None: all of them."""
    known: dict[Hashable, int | None] = {None: None}

    def bucket(event: Event) -> int | None:
        found = key(event)
        if found not in known:
            known[found] = zlib.crc32(repr(found).encode()) % BUCKETS
        return known[found]

    return bucket


def _fold(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Batches in which each part stands in one piece and in order -> CHECKED, without how the run was read."""
    with check.uncollected():
        answer = check.Answer()
        here: tuple[str, int] | None = None
        checker = Checker(())
        before: Event | None = None
        for batch in batches:
            events = events_of(batch)
            run, part, causal = (batch.column(name) for name in ("run", "part", "causal"))
            for start, stop in segments(run, part):
                found = run[start].as_py(), part[start].as_py()
                if found != here:
                    if here is not None:
                        answer.add(here[0], checker.finish())
                        yield from answer.full()
                    here, before = found, None
                    checker = Checker(_folds(splits()[found[1] // BUCKETS][0], causal[start].as_py()))
                for event in events[start:stop]:
                    if before is None or event.n != before.n or event.node != before.node or event.inc != before.inc:
                        checker.feed(event)  # the same event twice counts once
                    before = event
        if here is not None:
            answer.add(here[0], checker.finish())
        yield from answer.rest()
