"""The source `format("coterie")` on a real Spark and a real broker: from a queue through a stream to another queue."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pika
import pytest
from pyspark.errors import PySparkException, StreamingQueryException

from coterie import reader
from coterie.spark import register
from spark.brokers import Broker, broker

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.listener import StreamingQueryProgress

SECRET = "geheim-1234"


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    with broker(tmp_path_factory.mktemp("broker") / "data") as found:
        yield found


def test_a_queue_is_a_table_with_properties_as_columns(spark: SparkSession, node: Broker) -> None:
    register(spark)
    node.declare("rows")
    properties = pika.BasicProperties(
        content_type="text/plain", headers={"a": "x", "n": 5}, delivery_mode=2, priority=3, message_id="m1",
        timestamp=1_700_000_000, app_id="tests",
    )  # fmt: skip
    node.channel.basic_publish("", "rows", b"one", properties)
    node.channel.basic_publish("amq.fanout", "nowhere", b"lost")
    node.channel.basic_publish("", "rows", b"two")
    found = spark.read.format("coterie").option("servers", node.console).option("queue", "rows").load()
    one, two = found.orderBy("position").collect()
    assert (bytes(one.value), one.queue, one.position, one.redelivered) == (b"one", "rows", 1, False)
    assert (one.exchange, one.routing_key, one.content_type, one.app_id) == ("", "rows", "text/plain", "tests")
    assert (one.headers, one.priority, one.message_id) == ({"a": "x", "n": "5"}, 3, "m1")
    assert one.timestamp.timestamp() == 1_700_000_000
    assert (bytes(two.value), two.headers, two.message_id, two.priority) == (b"two", None, None, None)
    assert found.where("message_id is null").count() == 1
    without_spark = reader.read_table("rows", node.console)
    assert found.toArrow().sort_by("position").cast(without_spark.schema).equals(without_spark)
    assert node.count("rows") == 2


def test_a_stream_takes_each_message_once_over_restarts(spark: SparkSession, node: Broker, tmp_path: Path) -> None:
    register(spark)
    node.declare("in")
    node.declare("out", deduplicate_length=1000)

    lags: list[list[int | None]] = []

    def run(fails_after: int | None = None) -> list[int]:
        """With what there is now: the numbers of the batches that were written."""
        done: list[int] = []

        def write(rows: DataFrame, batch: int) -> None:
            out = rows.write.format("coterie").option("servers", node.amqp).option("queue", "out")
            out.option("runId", "out").mode("append").save()
            done.append(batch)
            if batch == fails_after:
                raise RuntimeError("the driver dies before it knows that the batch was written")

        source = spark.readStream.format("coterie").option("servers", node.console).option("queues", "in")
        rows = source.option("maxRowsPerTrigger", 40).option("minPartitions", 2).option("columns", "value").load()
        stream = rows.writeStream.foreachBatch(write).option("checkpointLocation", str(tmp_path / "checkpoint"))
        query = stream.trigger(availableNow=True).start()
        try:
            assert query.awaitTermination(180)
        finally:
            lags.append([_lag(each) for each in query.recentProgress])
        return done

    def publish(first: int, stop: int) -> None:
        for number in range(first, stop):
            node.channel.basic_publish("", "in", b"%d" % number, pika.BasicProperties(delivery_mode=2))

    publish(0, 50)
    with pytest.raises(StreamingQueryException, match="the driver dies"):
        run(fails_after=2)  # the first batch is empty
    held = node.queue("in")
    assert (held["messages"], held["messages_ready"]) == (10, 0), "the last batch is the query's until it is proven"
    publish(50, 51)
    assert run() == [2, 3]
    assert lags[0][:2] == [50, 10], "what is in no batch yet: of the first, empty one, and of the next"
    assert sorted(int(body) for _, body in node.take("out")) == [*range(51)]
    assert node.queue("out")["counters"]["duplicates"] == 10
    assert node.queue("in")["messages"] == 0, "that there is no other batch proved the last one"


def _lag(progress: StreamingQueryProgress) -> int | None:
    latest = progress.sources[0].latestOffset
    return None if not latest or latest == "null" else int(json.loads(latest)["lag"])


def test_mistakes_of_readers_are_told_and_passwords_are_not(
    spark: SparkSession, node: Broker, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    register(spark)
    options = {"servers": node.console, "password": SECRET, "queue": "rows"}
    for text, given in (
        ("as user 'guest'", options),
        ("no queue 'missing'", {**options, "password": "guest", "queue": "missing"}),
        ("there is no option 'topic'", {**options, "topic": "rows"}),
    ):
        with pytest.raises(PySparkException) as caught:
            spark.read.format("coterie").options(**given).load().count()
        assert text in str(caught.value)
        assert SECRET not in str(caught.value)
    spark.read.format("coterie").options(**options).load().explain(True)
    rows = spark.readStream.format("coterie").options(**options).load()
    query = rows.writeStream.format("noop").option("checkpointLocation", str(tmp_path)).start()
    with pytest.raises(StreamingQueryException, match="as user 'guest'") as failed:
        query.awaitTermination(120)
    assert SECRET not in f"{failed.value}{query.exception()}"
    query.explain(True)
    assert SECRET not in "".join(capfd.readouterr())
    written = [path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()]
    assert written
    assert not [each for each in written if SECRET.encode() in each], "what a checkpoint says"
