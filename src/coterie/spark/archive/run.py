"""An archive at work: one query from queues to a table, and between its lives, small files become larger ones."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from pyspark.errors import PySparkException

from coterie.errors import UserError
from coterie.spark import places
from coterie.spark.archive import rows
from coterie.spark.archive.compaction import Compacted, compact
from coterie.spark.archive.files import DATE, written
from coterie.spark.archive.job import PARQUET, Job
from coterie.spark.archive.place import Place
from coterie.spark.archive.table import Table, table_of
from coterie.spark.ids import QUERY
from coterie.spark.interrupt import aside
from coterie.spark.trouble import MISSING, NOT_INSTALLED

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

SETTINGS: Final = {
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
    "spark.sql.parquet.compression.codec": "zstd",
}
"""What the session of an archive needs besides: files that every reader of Parquet reads."""
POLL: Final = 0.1
SLOW: Final = "failed to connect back"
SLOW_MAX: Final = 5
"""Spark gives its own Python processes ten seconds to start, on the busiest of machines too, and ends the query where
that is not enough. It is started again, so often before it comes any further: a repeated batch is written once."""
STOP_SECONDS: Final = 30.0
"""How long a batch may take to its end when the archive is told to stop: longer ones come again."""


@dataclass(slots=True)
class Seen:
    """How far it is, since it was started."""

    batches: int = 0
    messages: int = 0
    bad: int = 0
    """Bodies that the schema does not fit."""
    lag: int | None = None
    """Messages that are in no batch yet."""
    latest: int | None = None
    """Number of the latest batch that is done."""
    compacted: Compacted = field(default_factory=Compacted)


class Archive:
    """One start of one archive, from its claim to its end."""

    def __init__(self, spark: SparkSession, job: Job) -> None:
        if not hasattr(spark, "sparkContext"):
            raise UserError(
                "an archive does not run through Spark Connect: name a master: local[N], spark://HOST:PORT, ..."
            )
        self._spark, self._job = spark, job
        self._schema = rows.schema_of(job.schema) if job.schema else None
        self.table = table_of(job)
        self._by_spark = job.format == PARQUET and self._reaches(job.target)
        """Whether Spark's own sink writes the files."""
        if not self._reaches(job.checkpoint):
            raise UserError(
                f"{places.shown(job.checkpoint)}: this Spark cannot keep a checkpoint there: name another place for it "
                "(--checkpoint), as a folder that lasts"
            )
        self.seen = Seen()

    def run(self, stopped: threading.Event, news: Callable[[Seen], None]) -> None:
        """Until it is told to stop or, with `once`, has written what is there now. `news`: of each batch."""
        job, settings = self._job, self._job.compaction
        if job.format == PARQUET:
            self.seen.compacted.orphans += self.table.clean(settings.keep)  # readers of folders would see them
        slow = 0
        while True:
            until = None if job.once or not settings.least else time.monotonic() + settings.every
            before = self.seen.latest
            try:
                over = self._follow(self._start(), stopped, news, until)
            except PySparkException as error:
                slow = 1 if self.seen.latest != before else slow + 1
                if SLOW not in str(error) or slow > SLOW_MAX:
                    raise
                continue
            if settings.least and not stopped.is_set():
                self._add(compact(self._spark, self.table, job.target, settings))
            if over:
                return

    def _add(self, done: Compacted) -> None:
        total = self.seen.compacted
        total.before += done.before
        total.after += done.after
        total.orphans += done.orphans

    # The query.

    def _start(self) -> StreamingQuery:
        job = self._job
        found = rows.archived(rows.read(self._spark, job.source), self._schema)
        writer = found.writeStream.queryName(f"coterie archive {job.what}")
        if self._by_spark:
            writer = writer.format("parquet").option("path", Place(job.target).url).partitionBy(DATE)
        else:
            writer = writer.foreachBatch(Batches(job, self.table))
        checkpoint = job.checkpoint if places.is_remote(job.checkpoint) else Place(job.checkpoint).url
        writer = writer.option("checkpointLocation", checkpoint)
        every = f"{round(job.trigger * 1000)} milliseconds"
        writer = writer.trigger(availableNow=True) if job.once else writer.trigger(processingTime=every)
        try:
            return writer.start()
        except PySparkException as error:
            if MISSING in str(error):
                raise UserError(NOT_INSTALLED) from error
            raise

    def _follow(
        self, query: StreamingQuery, stopped: threading.Event, news: Callable[[Seen], None], until: float | None
    ) -> bool:
        """Whether the archive is over, rather than this query."""
        try:
            while not stopped.wait(POLL):
                active = query.isActive
                if self._progress(query):
                    news(self.seen)
                if not active:
                    query.awaitTermination()  # raises, if it did not end by itself
                    return True
                if until is not None and time.monotonic() >= until:
                    return False
            return True
        finally:
            self._stop(query)
            if self._progress(query):
                news(self.seen)

    def _progress(self, query: StreamingQuery) -> bool:
        """Whether something has happened since the last time."""
        seen, last = self.seen, query.lastProgress
        if last is None:
            return False
        before = seen.latest, seen.lag
        latest = _json(last.sources[0].latestOffset) if last.sources else None
        if isinstance(latest, dict) and "lag" in latest:
            seen.lag = int(latest["lag"])
        for progress in query.recentProgress:
            done = "addBatch" in progress.durationMs  # else it only says that there was nothing to do
            if done and (seen.latest is None or progress.batchId > seen.latest):
                seen.batches += 1
                seen.messages += progress.numInputRows
                seen.latest = progress.batchId
                observed = progress.observedMetrics.get(rows.OBSERVED)
                seen.bad += 0 if observed is None else int(observed[rows.BAD])
        return (seen.latest, seen.lag) != before

    def _stop(self, query: StreamingQuery) -> None:
        """Between two batches, if that can be had soon: else the next start begins with one of them again."""
        # What is there now has no pause between batches: there is nothing to wait for.
        until = time.monotonic() + (0.0 if self._job.once else STOP_SECONDS)
        while query.isActive and query.status["isTriggerActive"] and time.monotonic() < until:
            time.sleep(POLL / 10)
        aside(query.stop, STOP_SECONDS)

    def _reaches(self, url: str) -> bool:
        """Whether Spark's JVM has the part for this file system, which is not the one that Arrow and fsspec have."""
        if not places.is_remote(url):
            return True
        context: Any = self._spark.sparkContext
        try:
            context._jvm.org.apache.hadoop.fs.Path(url).getFileSystem(context._jsc.hadoopConfiguration())
        except Exception as error:  # Py4J's, with whatever Hadoop raises
            if "UnsupportedFileSystem" in str(error) or "ClassNotFound" in str(error):
                return False
            raise
        return True


class Batches:
    """What Spark calls with each batch: its files are written by tasks, and become the table's at once."""

    def __init__(self, job: Job, table: Table) -> None:
        self._target, self._table = job.target, table

    def __call__(self, batch: DataFrame, number: int) -> None:
        from pyspark.sql.pandas.types import to_arrow_schema

        query = str(batch.sparkSession.sparkContext.getLocalProperty(QUERY))
        if number <= self._table.latest(query):
            return
        files = written(batch, self._target, f"{query[:8]}-{number:06}")
        self._table.commit(query, number, files, to_arrow_schema(batch.schema, timezone="UTC"))


def _json(text: object) -> object:
    try:
        return json.loads(str(text))
    except ValueError:
        return None
