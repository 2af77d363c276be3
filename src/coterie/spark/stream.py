"""The audit as a stream: traces are judged while they are written (docs/audit-stream.md).

Promises: every file that gets its name in the folder, or message that comes into the queue, is read once; a violation
that is certain is written with the batch that brought it, all others when their run is over; none is lost and none
written twice, however often the stream is killed and started again with its checkpoint; events that come too late are
set aside, not dropped.
"""

from __future__ import annotations

import fcntl
import json
import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from pyspark.errors import PySparkException

from coterie.audit.files import SUFFIX
from coterie.audit.live import Patience
from coterie.errors import UserError
from coterie.runtime.aio.tracefile import adopt
from coterie.spark import stream_tables as tables
from coterie.spark.interrupt import aside
from coterie.spark.schema import CORRUPT, RUNS, VIOLATIONS
from coterie.spark.session import parallelism
from coterie.spark.stream_chunks import CHUNK_DDL, gathered
from coterie.spark.stream_queue import TraceQueue
from coterie.spark.stream_state import STATE, Runs, verdicts
from coterie.spark.stream_tables import LATE, OPEN, OUT_DDL
from coterie.spark.trouble import MISSING, NOT_INSTALLED

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

SETTINGS = {
    "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled": "true",  # else each batch is a snapshot
    "spark.sql.execution.arrow.maxBytesPerBatch": str(64 << 20),  # rows are chunks here, of any size
    "spark.sql.files.ignoreMissingFiles": "true",  # whoever tidies the folder up should not stop the stream for ever
}
"""What the session of a stream needs besides."""
BATCHES_WITHOUT_DATA = "spark.sql.streaming.noDataMicroBatches.enabled"
"""Time passes for the runs in such batches. What is available now was looked for once, when the query began: in a batch
after that, time would count against what has come since and is not looked at. And the query would never end."""
PARTITIONS_MAX = 32
POLL = 0.2
STOP_SECONDS = 30.0
BUSY = ("Initializing", "Processing new data")
"""What Spark says of a query that is at work on something, or has not even looked yet."""


@dataclass(frozen=True, slots=True)
class Watch:
    """What to follow, and how."""

    source: Path | TraceQueue
    """A folder of files, or a queue of messages."""
    out: Path
    checkpoint: Path
    trigger: float = 5.0
    """Seconds from one look to the next."""
    until_idle: float | None = None
    """Stop when nothing new has come for so many seconds; None: never."""
    available_now: bool = False
    """Stop when what is there by now is judged."""
    patience: Patience = field(default_factory=Patience)
    adopt_after: float = 5.0
    """Seconds after which the segment of a killed node is taken for left."""


@dataclass(slots=True)
class Seen:
    """How far the stream is, since it was started."""

    batches: int = 0
    lines: int = 0
    """Of a queue: messages."""
    latest: int | None = None
    """Number of the latest batch that is done."""
    quiet: bool = False
    """That batch found nothing new."""


@dataclass(slots=True)
class Outcome:
    """What the tables say, with the runs that are not over."""

    violations: int
    runs: int
    open_runs: int
    events: int
    ignored: int
    late: int
    corrupt: int
    by_property: dict[str, int]


@contextmanager
def claimed(watch: Watch) -> Iterator[None]:
    """The folders of a stream, for it alone; and for the same traces as before. Raises UserError if they are not."""
    out, source = watch.out.absolute(), watch.source
    if isinstance(source, TraceQueue):
        followed = {"queue": source.name}
    else:
        followed = {"folder": str(_checked(source.absolute(), out))}
    try:
        for each in (out, watch.checkpoint):
            each.mkdir(parents=True, exist_ok=True)
        lock = os.open(watch.checkpoint / "coterie.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    except OSError as error:
        raise UserError(f"{error.filename}: {error.strerror}") from None
    try:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise UserError(f"{watch.checkpoint}: another stream works with this checkpoint") from None
        _same(watch.checkpoint.absolute() / "coterie.json", {**followed, "out": str(out)})
        yield
    finally:
        os.close(lock)


def _checked(folder: Path, out: Path) -> Path:
    if not folder.is_dir():
        raise UserError(f"{folder}: is no folder: a stream follows a folder into which traces are written")
    if out == folder or folder in out.parents:
        raise UserError(f"--out {out}: is in the folder that is followed: choose one beside it")
    return folder


def _same(file: Path, now: dict[str, str]) -> None:
    """Refuse to go on with a checkpoint that belongs to something else, or in a folder of something else."""
    if not file.exists():
        if any(path != file.parent for path in Path(now["out"]).iterdir()):
            raise UserError(
                f"--out {now['out']}: holds other things than a stream of this checkpoint: choose another one"
            )
        fresh = file.with_suffix(".new")
        fresh.write_text(json.dumps(now))
        fresh.replace(file)
    before = json.loads(file.read_text())
    for what, value in before.items():
        if now.get(what) != value:
            raise UserError(f"{file.parent}: this checkpoint has the {what} {value}: choose another one")


class Stream:
    """One query, from its start to the day that it is stopped."""

    def __init__(self, spark: SparkSession, watch: Watch) -> None:
        self._spark, self._watch = spark, watch
        self.seen = Seen()
        self.adopted = 0
        self._begun = self._latest("offsets")
        self._query = self._start()

    def _start(self) -> StreamingQuery:
        spark, watch = self._spark, self._watch
        tasks = min(PARTITIONS_MAX, parallelism(spark))
        spark.conf.set("spark.sql.shuffle.partitions", str(tasks))
        spark.conf.set(BATCHES_WITHOUT_DATA, str(not watch.available_now).lower())
        self._adopt()
        if isinstance(watch.source, TraceQueue):
            chunks = watch.source.chunks(spark, tasks)
        else:
            chunks = _lines(spark, watch.source).mapInArrow(gathered, CHUNK_DDL)
        rows = chunks.groupBy("what", "key").transformWithState(
            statefulProcessor=Runs(watch.patience),
            outputStructType=OUT_DDL,
            outputMode="append",
            timeMode="ProcessingTime",
        )
        writer = rows.writeStream.queryName("coterie audit").outputMode("append")
        writer = writer.foreachBatch(partial(tables.write_batch, str(watch.out.absolute())))
        writer = writer.option("checkpointLocation", str(watch.checkpoint.absolute()))
        every = f"{round(watch.trigger * 1000)} milliseconds"
        writer = writer.trigger(availableNow=True) if watch.available_now else writer.trigger(processingTime=every)
        try:
            return writer.start()
        except PySparkException as error:
            if MISSING in str(error):
                raise UserError(NOT_INSTALLED) from error
            raise
        finally:
            spark.conf.unset(BATCHES_WITHOUT_DATA)  # the query has got its own

    def follow(self, stopped: threading.Event, news: Callable[[Seen], None]) -> None:
        """Until it is told to stop, or has done what it was to do. `news` is called after each batch."""
        watch = self._watch
        busy = adopted = time.monotonic()
        try:
            while not stopped.wait(POLL):
                active, now = self._query.isActive, time.monotonic()
                if self._progress():
                    busy = busy if self.seen.quiet else now
                    news(self.seen)
                if not active:
                    self._query.awaitTermination()  # raises, if it did not end by itself
                    return
                if self._query.status["message"].startswith(BUSY):
                    busy = now
                elif watch.until_idle is not None and now - busy >= watch.until_idle and self._looked():
                    return
                if now - adopted >= watch.adopt_after:
                    adopted = now
                    self._adopt()
        finally:
            self.stop()

    def _looked(self) -> bool:
        """Whether the latest look found nothing new; without any batch, so did the first."""
        return self.seen.quiet or not self.seen.batches

    def _adopt(self) -> None:
        if isinstance(self._watch.source, Path):
            self.adopted += len(adopt(self._watch.source, self._watch.adopt_after))

    def _progress(self) -> bool:
        """Whether a batch has been done since the last time."""
        seen, last = self.seen, self._query.lastProgress
        if last is None or last.batchId == seen.latest:
            return False
        before = seen.latest
        for progress in self._query.recentProgress:
            done = "addBatch" in progress.durationMs  # else it only says that there was nothing to do
            if done and (seen.latest is None or progress.batchId > seen.latest):
                seen.batches += 1
                seen.lines += progress.numInputRows
                seen.latest = progress.batchId
                # A batch that is repeated tells nothing of what is there now; nor does the first one of a queue, which
                # has nothing but the place where the stream begins.
                begins = progress.batchId == 0 and isinstance(self._watch.source, TraceQueue)
                repeated = self._begun is not None and progress.batchId <= self._begun
                seen.quiet = progress.numInputRows == 0 and not begins and not repeated
        return seen.latest != before

    def stop(self) -> None:
        """Between two batches, if that can be had soon: else the next start begins with one of them again."""
        # What is available now has no pause between batches: there is nothing to wait for.
        until = time.monotonic() + (0.0 if self._watch.available_now else STOP_SECONDS)
        while self._query.isActive and self._query.status["isTriggerActive"] and time.monotonic() < until:
            time.sleep(POLL / 10)
        aside(self._query.stop, STOP_SECONDS)

    def outcome(self) -> Outcome:
        """What has been found since the checkpoint began. What is open is judged as if nothing more came of it."""
        spark, out = self._spark, self._watch.out
        done = self._latest("commits")
        # What a batch wrote that was then interrupted, the next start writes again, when it knows the state for it.
        tables.forget(out, -1 if done is None else done)
        self._judge_open(done)
        both = [
            (table, tables.read(spark, out, table, opened)) for opened in (False, True) for table in (VIOLATIONS, RUNS)
        ]
        violations = [frame for table, frame in both if table is VIOLATIONS]
        over, opened = (_totals(frame) for table, frame in both if table is RUNS)
        counted = violations[0].unionByName(violations[1]).groupBy("property").count().collect()
        by_property = {row["property"]: int(row["count"]) for row in counted}
        return Outcome(
            sum(by_property.values()), over["runs"] + opened["runs"], opened["runs"], over["events"] + opened["events"],
            over["ignored"] + opened["ignored"], tables.read(spark, out, LATE).count(),
            tables.read(spark, out, CORRUPT).count(), by_property,
        )  # fmt: skip

    def _latest(self, log: str) -> int | None:
        """The latest batch that is begun (offsets) or done (commits), now or in an earlier life."""
        names = (file.name for file in (self._watch.checkpoint / log).glob("[0-9]*"))
        return max((int(name) for name in names if name.isdecimal()), default=None)

    def _judge_open(self, batch: int | None) -> None:
        out = self._watch.out
        if batch is None:
            return  # there is no state yet
        reader = self._spark.read.format("statestore").option("stateVarName", STATE).option("batchId", batch)
        states = reader.load(str(self._watch.checkpoint.absolute())).where("NOT value.over").select("value.state")
        rows = states.mapInArrow(verdicts, OUT_DDL).persist()
        for table in (VIOLATIONS, RUNS):
            tables.write(rows, table, str(out.absolute() / f"{OPEN}{table.name}"))
        rows.unpersist()


def _lines(spark: SparkSession, folder: Path) -> DataFrame:
    from pyspark.sql import functions as F

    reader = (
        spark.readStream.format("text").option("pathGlobFilter", f"*{SUFFIX}").option("recursiveFileLookup", "true")
    )
    return reader.load(str(folder.absolute())).select(
        F.col("value").cast("binary"), F.col("_metadata.file_path").alias("file"),
        F.col("_metadata.file_block_start").alias("block"),
    )  # fmt: skip


def _totals(runs: DataFrame) -> dict[str, int]:
    from pyspark.sql import functions as F

    row = runs.agg(
        F.count("*").alias("runs"), F.coalesce(F.sum("events"), F.lit(0)).alias("events"),
        F.coalesce(F.sum("ignored"), F.lit(0)).alias("ignored"),
    ).first()  # fmt: skip
    assert row is not None
    return {name: int(row[name]) for name in ("runs", "events", "ignored")}
