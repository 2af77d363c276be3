"""The source `format("coterie")` as Spark calls it, without Spark: a real cluster, replays, restarts, what is lost."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pika
import pytest
from pika.adapters.blocking_connection import BlockingChannel
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxBytes, ReadMaxRows
from stream_query import SCHEMA, Query, begun, stop_queries  # noqa: F401  (a fixture)
from three_brokers import ThreeBrokers

from coterie.errors import CoterieError, UserError
from coterie.spark.leased import DataLoss
from coterie.spark.source import QueueStream, QueueTable
from coterie.spark.source_options import SourceOptions

ALL = ReadAllAvailable()


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ThreeBrokers]:
    brokers = ThreeBrokers(tmp_path_factory.mktemp("cluster") / "data", consoles=True)
    yield brokers
    brokers.stop()


@pytest.fixture(scope="module")
def channel(cluster: ThreeBrokers) -> BlockingChannel:
    found = cluster.channel("node1")
    found.confirm_delivery()
    return found


def publish(channel: BlockingChannel, queue: str, *bodies: str) -> None:
    channel.queue_declare(queue, durable=True)
    for body in bodies:
        channel.basic_publish("", queue, body.encode(), pika.BasicProperties(delivery_mode=2))


def numbers(first: int, stop: int) -> list[str]:
    return [str(number) for number in range(first, stop)]


def servers(cluster: ThreeBrokers) -> str:
    return ",".join(cluster.console.values())


def left(channel: BlockingChannel, queue: str) -> int:
    """How many are there that nobody holds."""
    return int(channel.queue_declare(queue, passive=True).method.message_count)


def test_a_batch_is_the_same_until_the_next_one_proves_it_written(
    cluster: ThreeBrokers, channel: BlockingChannel
) -> None:
    publish(channel, "same", *numbers(0, 50))
    query = begun(servers(cluster), queue="same", minPartitions="3")
    assert query.next() == numbers(0, 50)
    assert len(query.reader.partitions(query.log[-2], query.log[-1])) == 3
    assert left(channel, "same") == 0, "they are the query's"
    publish(channel, "same", "more")
    query.restart()  # before the batch was written
    assert query.bodies() == numbers(0, 50)
    assert query.next() == ["more"]
    query.reader.commit(query.log[-2])
    query.reader.commit(query.log[-2])
    with pytest.raises(UserError, match=r"gone|retired"):
        query.bodies(2)
    assert query.bodies() == ["more"]
    assert not query.plan(), "no new message, no other offset"


def test_what_a_driver_took_before_it_died_is_the_next_batch(cluster: ThreeBrokers, channel: BlockingChannel) -> None:
    publish(channel, "taken", *numbers(0, 10))
    query = begun(servers(cluster), queue="taken", leaseName="mine")
    query.plan(ReadMaxRows(4))
    old, lost = query.reader, query.log.pop()  # it was never written down
    query.restart()
    assert query.next(ReadMaxRows(3)) == numbers(0, 3)
    assert query.next(ReadMaxRows(3)) == ["3"]
    assert query.next(ALL) == numbers(4, 10)
    assert query.log[-1]["lease"] == "mine"
    with pytest.raises(UserError, match=r"another run of this query is up|session"):
        old.latestOffset(lost, ALL)
    old.stop()


def test_limits_are_shared_by_queues_and_a_pattern_finds_new_ones(
    cluster: ThreeBrokers, channel: BlockingChannel
) -> None:
    publish(channel, "many.a", *numbers(0, 30))
    publish(channel, "many.b", *numbers(100, 110))
    query = begun(servers(cluster), queuePattern=r"many\..*", maxRowsPerTrigger="20", maxBytesPerTrigger="1000000")
    query.plan()
    first = query.rows()
    assert [queue for queue, _ in first] == ["many.a"] * 15 + ["many.b"] * 5
    publish(channel, "many.c", "new")
    publish(channel, "other", "not ours")
    rest: list[tuple[str, str]] = []
    while query.plan():
        rest += query.rows()
    assert sorted(body for _, body in (*first, *rest)) == sorted([*numbers(0, 30), *numbers(100, 110), "new"])
    assert [*query.log[-1]["queues"]] == ["many.a", "many.b", "many.c"], "keys stand in a stable order"


def test_bytes_are_a_limit_too(cluster: ThreeBrokers, channel: BlockingChannel) -> None:
    publish(channel, "bytes", *("x" * 1000 for _ in range(10)))
    query = begun(servers(cluster), queue="bytes", maxBytesPerTrigger="3000")
    assert isinstance(query.reader.getDefaultReadLimit(), ReadMaxBytes)
    assert len(query.next()) == 3
    assert len(query.next(ALL)) == 7, "the engine may want everything"


def test_available_now_is_what_there_is_now(cluster: ThreeBrokers, channel: BlockingChannel) -> None:
    publish(channel, "now", *numbers(0, 6))
    query = Query(servers(cluster), queues="now", maxRowsPerTrigger="4")
    query.reader.prepareForTriggerAvailableNow()
    assert query.next() == []
    publish(channel, "now", "too late")
    assert query.next() == numbers(0, 4)
    assert query.next() == numbers(4, 6)
    assert not query.plan()
    query.restart()
    assert query.next() == ["too late"]


def test_a_stream_begins_where_it_is_told_to(cluster: ThreeBrokers, channel: BlockingChannel) -> None:
    publish(channel, "begin", *numbers(0, 5))
    latest = begun(servers(cluster), queue="begin", startingPositions="latest")
    third = begun(servers(cluster), queue="begin", startingPositions='{"begin": 3}')
    assert third.next() == numbers(2, 5)
    publish(channel, "begin", "new")
    latest.restart()
    assert latest.next() == ["new"]
    assert left(channel, "begin") == 2, "what is before it is left to others"


def test_what_is_lost_is_an_error_or_left_out(cluster: ThreeBrokers, channel: BlockingChannel) -> None:
    publish(channel, "loss", *numbers(0, 4))
    query = begun(servers(cluster), queue="loss")
    assert query.next(ReadMaxRows(2)) == numbers(0, 2)
    with SourceOptions.of(query.given).client() as client:
        lease = client.lease("loss", query.log[-1]["lease"])
        assert lease is not None
        client.take(lease, "an operator")
        client.end(lease if lease.session == "an operator" else client.take(lease, "an operator"))
    with pytest.raises(UserError, match=r"failOnDataLoss|no lease|gone"):
        query.bodies()
    query.restart()
    with pytest.raises(DataLoss, match=r"the lease '.*' of queue 'loss' was ended.*failOnDataLoss"):
        query.plan()
    query.restart(failOnDataLoss="false")
    assert query.next() == numbers(0, 4), "they are ready again"
    channel.queue_delete("loss")
    publish(channel, "loss", "another queue")
    query.restart()
    with pytest.raises(DataLoss, match="queue 'loss' was deleted and declared anew"):
        query.plan()
    query.restart(failOnDataLoss="false")
    assert query.next() == ["another queue"]
    channel.queue_delete("loss")
    query.restart()
    with pytest.raises(DataLoss, match="queue 'loss' was deleted"):
        query.plan()


def table(cluster: ThreeBrokers, **options: str) -> list[str]:
    given = {"servers": ",".join(cluster.console.values()), "columns": "value,queue,position", **options}
    reader = QueueTable(SourceOptions.of(given), SCHEMA)
    batches = [batch for part in reader.partitions() for batch in reader.read(part)]
    return [value.decode() for batch in batches for value in batch.to_pydict()["value"]]


def test_a_table_is_everything_that_is_there_and_takes_nothing(cluster: ThreeBrokers, channel: BlockingChannel) -> None:
    publish(channel, "table.a", *numbers(0, 20))
    publish(channel, "table.b", "b")
    held, _, _ = channel.basic_get("table.a")
    assert held is not None
    assert table(cluster, queues="table.a,table.b", minPartitions="4") == [*numbers(0, 20), "b"]
    assert table(cluster, queuePattern=r"table\.[xb]") == ["b"]
    assert table(cluster, queue="table.a", startingPositions='{"table.a": 18}') == numbers(17, 20)
    ranged = {"startingPositions": '{"table.a": 5}', "endingPositions": '{"table.a": 7}', "maxRowsPerPartition": "1"}
    assert table(cluster, queue="table.a", **ranged) == numbers(4, 6)
    assert table(cluster, queue="table.a", startingPositions="latest") == []
    assert held.delivery_tag is not None
    channel.basic_ack(held.delivery_tag)
    until = time.monotonic() + 30
    while table(cluster, queue="table.a")[:1] != ["1"]:
        assert time.monotonic() < until
    with pytest.raises(DataLoss, match=r"positions 1 to 1 of queue 'table.a' are gone: begin at 2"):
        table(cluster, queue="table.a", startingPositions='{"table.a": 1}')


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"queue": "missing"}, "no queue 'missing' in vhost '/'"),
        ({"queue": "q", "password": "geheim"}, "as user 'guest'"),
        ({"queue": "q", "vhost": "elsewhere"}, "elsewhere"),
        ({"queue": "q", "servers": "http://127.0.0.1:9", "connectTimeout": "200ms"}, "nobody could answer for 0.2 s"),
    ],
)
def test_what_cannot_be_read_is_one_clear_error(cluster: ThreeBrokers, options: dict[str, str], text: str) -> None:
    given = {"servers": ",".join(cluster.console.values()), **options}
    for reader in (QueueStream(SourceOptions.of(given), SCHEMA), QueueTable(SourceOptions.of(given), SCHEMA)):
        with pytest.raises(CoterieError, match=text) as caught:
            reader.latestOffset({}, ALL) if isinstance(reader, QueueStream) else reader.partitions()
        assert "geheim" not in f"{caught.value}{reader!r}"
        if isinstance(reader, QueueStream):
            reader.stop()


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({}, "one of the options queue, queues and queuePattern is due, none is there"),
        ({"queue": "a", "queues": "b"}, "is due, not queue and queues"),
        ({"queues": "a,,b"}, "a queue has a name"),
        ({"queuePattern": "("}, "is no regular expression"),
        ({"queue": "a", "startingPositions": "first"}, "earliest or latest is due, or positions"),
        ({"queue": "a", "startingPositions": '{"a": "1"}'}, "earliest or latest is due, or positions"),
        ({"queue": "a", "endingPositions": "earliest"}, "option endingPositions: latest is due, or positions"),
        ({"queue": "a", "leaseName": ""}, "option leaseName"),
        ({"queue": "a", "maxRowsPerTrigger": "none"}, "option maxRowsPerTrigger"),
        ({"queue": "a", "maxBytesPerTrigger": "0"}, "option maxBytesPerTrigger"),
        ({"queue": "a", "columns": "value,topic"}, "option columns: there is no 'topic'"),
        ({"queue": "a", "subscribe": "b"}, "there is no option 'subscribe'"),
    ],
)
def test_options_of_a_source_that_make_no_sense_are_refused(options: dict[str, str], text: str) -> None:
    with pytest.raises(UserError, match=text):
        SourceOptions.of({"servers": "http://here", **options})


def test_a_read_goes_on_at_another_broker_when_one_is_killed(cluster: ThreeBrokers, channel: BlockingChannel) -> None:
    """The last one here: it costs a broker."""
    bodies = [f"{number} {'x' * 20_000}" for number in range(400)]
    publish(channel, "killed", *bodies)
    query = begun(servers(cluster), queue="killed")
    query.plan()
    start, end = query.log[-2:]
    (part,) = query.reader.partitions(start, end)
    part.range = part.range.__class__(**{**part.range.__dict__, "number": 2})  # type: ignore[attr-defined]
    found: list[str] = []
    for records in query.reader.read(part):
        if not found:
            with SourceOptions.of(query.given).client() as client:
                asked = client.spread(2)[0]
            victim = next(
                name for name, url in cluster.console.items() if url.rpartition(":")[2] == asked.rpartition(":")[2]
            )
            assert victim != "node1", "that one has our channel"
            cluster.kill(victim)
        found += [value.decode() for value in records.to_pydict()["value"]]
    assert found == bodies
