"""The sink `format("coterie")` on a real Spark and a real broker: what is published, and that a replay is not."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from pyspark.errors import PySparkException

from coterie.spark import register
from spark.brokers import Broker, broker

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

SECRET = "geheim-1234"


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    with broker(tmp_path_factory.mktemp("broker") / "data") as found:
        yield found


def test_rows_become_messages_where_columns_say(spark: SparkSession, node: Broker) -> None:
    """By the name alone: Spark finds the data source in the package."""
    node.declare("one")
    node.declare("two")
    rows = spark.createDataFrame(
        [("a", "one", {"kind": "x"}, 3), ("b", "two", None, None), ("c", "one", {}, 0)],
        "value string, routing_key string, headers map<string,string>, priority int",
    )
    rows.repartition(1).write.format("coterie").option("servers", node.amqp).mode("append").save()
    one, two = node.take("one"), node.take("two")
    assert [body for _, body in one] == [b"a", b"c"]
    assert [body for _, body in two] == [b"b"]
    first = one[0][0]
    assert (first.headers, first.priority, first.delivery_mode) == ({"kind": "x"}, 3, 2)
    assert len({properties.message_id for properties, _ in (*one, *two)}) == 3


def test_a_replayed_epoch_is_published_under_the_same_ids(spark: SparkSession, node: Broker, tmp_path: Path) -> None:
    register(spark)
    node.declare("epochs", deduplicate_length=10_000)
    lines, checkpoint = tmp_path / "lines", tmp_path / "checkpoint"
    lines.mkdir()

    def run() -> None:
        writer = spark.readStream.text(str(lines)).writeStream.format("coterie")
        options = {"servers": node.amqp, "queue": "epochs", "checkpointLocation": str(checkpoint)}
        assert writer.options(**options).trigger(availableNow=True).start().awaitTermination(120)

    (lines / "first").write_text("".join(f"{number}\n" for number in range(70)))
    run()
    before = node.count("epochs")
    for path in (checkpoint / "commits").iterdir():
        path.unlink()  # as if the query had died before it knew that the epoch was written
    (lines / "second").write_text("more\n")
    run()
    taken = node.take("epochs")
    assert (before, len(taken)) == (70, 71)
    assert [body for _, body in taken] == [*(b"%d" % number for number in range(70)), b"more"]
    assert node.queue("epochs")["counters"]["duplicates"] == 70
    epochs = {str(properties.message_id).split("-")[1] for properties, _ in taken}
    assert epochs == {"0", "1"}
    shutil.rmtree(checkpoint)
    run()
    assert node.count("epochs") == 71, "another query, whose ids are others"


def test_two_writes_of_one_batch_are_both_there_and_a_replay_repeats_neither(
    spark: SparkSession, node: Broker, tmp_path: Path
) -> None:
    register(spark)
    node.declare("twice", deduplicate_length=10_000)
    lines, checkpoint = tmp_path / "lines", tmp_path / "checkpoint"
    lines.mkdir()
    (lines / "first").write_text("a\nb\n")

    def run(*names: str | None) -> None:
        def write(rows: DataFrame, batch: int) -> None:
            for name in names:
                sink = rows.write.format("coterie").option("servers", node.amqp).option("queue", "twice")
                (sink if name is None else sink.option("runId", name)).mode("append").save()

        stream = spark.readStream.text(str(lines)).writeStream.foreachBatch(write)
        query = stream.option("checkpointLocation", str(checkpoint)).trigger(availableNow=True).start()
        assert query.awaitTermination(120)

    with pytest.raises(PySparkException, match="a write within foreachBatch needs the option runId"):
        run(None, None)
    assert node.count("twice") == 0, "nothing is sent that could be lost"
    run("high", "low")
    assert node.count("twice") == 4
    for path in (checkpoint / "commits").iterdir():
        path.unlink()
    run("high", "low")
    assert [body for _, body in node.take("twice")] == [b"a", b"b", b"a", b"b"]
    assert node.queue("twice")["counters"]["duplicates"] == 4


def message(caught: pytest.ExceptionInfo[PySparkException]) -> str:
    return str(caught.value)


def test_mistakes_are_told_and_passwords_are_not(
    spark: SparkSession, node: Broker, capfd: pytest.CaptureFixture[str]
) -> None:
    rows = spark.range(3).selectExpr("cast(id as string) as value")

    def write(frame: DataFrame, mode: str = "append", **options: str) -> None:
        given = {"servers": node.amqp, "password": SECRET, **options}
        frame.write.format("coterie").options(**given).mode(mode).save()

    for text, frame, mode, options in (
        ("check the options user, password and vhost", rows, "append", {}),
        ("no queue takes a message", rows, "append", {"queue": "nowhere", "password": "guest"}),
        ("there is no option 'quue'", rows, "append", {"quue": "q"}),
        ("a sink needs a column 'value'", spark.range(1), "append", {}),
        ("cannot be overwritten", rows, "overwrite", {}),
    ):
        with pytest.raises(PySparkException) as caught:
            write(frame, mode, **options)
        assert text in message(caught)
        assert SECRET not in message(caught)
    out, err = capfd.readouterr()
    assert SECRET not in out + err
