"""The process of `bench spark` that has the Spark session: reads and writes as it is told, and says how long it took.

What it reads goes to Spark's noop sink, which takes every row and keeps none.
"""

from __future__ import annotations

import json
import shutil
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

from coterie.errors import CoterieError
from coterie.spark import register
from coterie.spark.session import session
from coterie.workers import Message

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

NUMBER = "cast(conv(hex(substring(value, 5, 8)), 16, 10) as bigint)"
"""Of a message: broker_clients.BODY says where it stands."""
VALUE = "value"
STREAM_SECONDS = 600


class Jobs:
    """What it can be told to do."""

    def __init__(self, spark: SparkSession, servers: str, sinks: str, folder: Path) -> None:
        self._spark = spark
        self._servers = servers
        self._sinks = sinks
        self._folder = folder
        self._cores = spark.sparkContext.defaultParallelism
        self._reading: Reading | None = None
        self._streams = 0

    def _table(self, order: Message) -> DataFrame:
        source = self._spark.read.format("coterie").option("servers", self._servers).option("queue", order["queue"])
        source = source.option("minPartitions", self._cores)
        if order.get("rows_of_part"):
            source = source.option("maxRowsPerPartition", order["rows_of_part"])
        return (source.option("columns", order["columns"]) if order.get("columns") else source).load()

    def batch(self, order: Message) -> Message:
        return _timed(self._table(order))

    def parquet(self, order: Message) -> Message:
        """The same rows from files; those are written first, if they are not there."""
        path = self._folder / f"{order['columns'] or 'all'}.parquet"
        if not path.exists():
            self._table(order).write.parquet(str(path))
        return _timed(self._spark.read.parquet(str(path)))

    def stream(self, order: Message) -> Message:
        """All that is in the queue, batch by batch, until it is known that nothing is left."""
        self._streams += 1
        checkpoint = self._folder / f"checkpoint-{self._streams}"
        source = self._spark.readStream.format("coterie").option("servers", self._servers)
        rows = source.option("queue", order["queue"]).option("columns", VALUE)
        rows = rows.option("maxRowsPerTrigger", order["rows_of_batch"]).option("minPartitions", self._cores)
        began = time.monotonic()
        writing = rows.load().writeStream.format("noop").option("checkpointLocation", str(checkpoint))
        query = writing.trigger(availableNow=True).start()
        if not query.awaitTermination(STREAM_SECONDS):
            raise CoterieError(f"the stream did not end in {STREAM_SECONDS} s")
        seconds = time.monotonic() - began
        shutil.rmtree(checkpoint)
        batches = [each for each in query.recentProgress if each["numInputRows"]]
        return {
            "whole_seconds": seconds,
            "seconds": sum(each["durationMs"]["triggerExecution"] for each in batches) / 1000,
            "rows": sum(each["numInputRows"] for each in batches),
        }

    def loop(self, order: Message) -> Message:
        from coterie.bench.spark_loop import loop

        return {"seconds": loop(self._spark, order["port"], order["queue"], order["rows"])}

    def sink(self, order: Message) -> Message:
        """The rows of the file that `parquet` has made, with confirms for all of them."""
        rows = self._spark.read.parquet(str(self._folder / f"{VALUE}.parquet"))
        writing = rows.write.format("coterie").option("servers", self._sinks).option("queue", order["queue"])
        began = time.monotonic()
        writing.mode("append").save()
        return {"seconds": time.monotonic() - began}

    def forget(self, order: Message) -> Message:
        """The files that were written."""
        for path in self._folder.glob("*.parquet"):
            shutil.rmtree(path)
        return {}

    def check(self, order: Message) -> Message:
        """How many messages a queue has, and the sum of their numbers."""
        found = self._table({**order, "columns": VALUE}).selectExpr("count(*)", f"sum({NUMBER})").first()
        assert found is not None
        return {"rows": int(found[0]), "sum": int(found[1] or 0)}

    def begin(self, order: Message) -> Message:
        """Read again and again, from now on."""
        frame = self._spark.read.parquet(str(self._folder / f"{VALUE}.parquet"))
        if order["reads"] == "batch":
            frame = self._table({**order, "columns": VALUE})
        self._reading = Reading(self._spark, frame, order["rows"])
        return {}

    def end(self, order: Message) -> Message:
        assert self._reading is not None
        answer, self._reading = self._reading.end(), None
        return answer


class Reading:
    """Reads the same rows over and over, in a thread."""

    def __init__(self, spark: SparkSession, frame: DataFrame, rows: int) -> None:
        from pyspark import InheritableThread

        self._context = spark.sparkContext
        self._frame = frame
        self._rows = rows
        self._group = "bench-spark-reading"
        self._whole = 0
        """How often everything was read."""
        self._ended = False
        self._error: Exception | None = None
        self._thread = InheritableThread(target=self._run, session=spark)
        self._began = time.monotonic()
        self._thread.start()
        while self._thread.is_alive() and not self._tasks()[1]:
            time.sleep(0.02)  # until tasks run, which nothing tells

    def _run(self) -> None:
        self._context.setJobGroup(self._group, "rows again and again")
        try:
            while not self._ended:
                self._frame.write.format("noop").mode("overwrite").save()
                self._whole += 1
        except Exception as error:
            if not self._ended:
                self._error = error

    def _tasks(self) -> tuple[int, int]:
        """Of the job that runs: how many tasks are done, and how many there are."""
        tracker = self._context.statusTracker()
        for job in tracker.getJobIdsForGroup(self._group):
            info = tracker.getJobInfo(job)
            if info is None or info.status != "RUNNING":
                continue
            for stage in map(tracker.getStageInfo, info.stageIds):
                if stage is not None:
                    return stage.numCompletedTasks, stage.numTasks
        return 0, 0

    def end(self) -> Message:
        done, tasks = self._tasks()
        rows = self._rows * (self._whole + (done / tasks if tasks else 0))
        seconds = time.monotonic() - self._began
        self._ended = True
        self._context.cancelJobGroup(self._group)
        self._thread.join()
        if self._error is not None:
            raise self._error
        return {"rows": rows, "seconds": seconds}


def _timed(frame: DataFrame) -> Message:
    began = time.monotonic()
    frame.write.format("noop").mode("overwrite").save()
    return {"seconds": time.monotonic() - began}


def main(arguments: Message) -> None:
    began = time.monotonic()
    folder = Path(arguments["folder"])
    tempfile.tempdir = str(folder)
    with session("coterie bench spark", arguments["master"]) as spark:
        register(spark)
        # Spark is up when a first job is done.
        spark.range(1).write.format("noop").mode("overwrite").save()
        _say({"start_seconds": time.monotonic() - began})
        jobs = Jobs(spark, arguments["servers"], arguments["sinks"], folder)
        for line in sys.stdin:
            order: Message = json.loads(line)
            _say(getattr(jobs, order["do"])(order))


def _say(answer: Message) -> None:
    print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    try:
        main(json.loads(sys.argv[1]))
    except KeyboardInterrupt:
        sys.exit(130)
    except CoterieError as error:
        print(json.dumps({"error": str(error)}), flush=True)
        sys.exit(1)
