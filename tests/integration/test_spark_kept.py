"""Connections that a Python worker keeps from one task to the next: how many, for how long, what becomes of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

import pyarrow as pa
import pytest
from pyspark.sql.types import BinaryType, StructField, StructType

import coterie.testing
from coterie.cli.remote import Remote, path_of
from coterie.spark import kept, sink, source
from coterie.spark.kept import Kept
from coterie.spark.leased import DataLoss
from coterie.spark.publisher import Publisher
from coterie.spark.sink import BatchSink
from coterie.spark.source import QueueStream
from coterie.spark.source_options import SourceOptions
from coterie.streams.client import Client
from coterie.testing import EmbeddedBroker


class Thing:
    """That is kept."""

    def __init__(self) -> None:
        self.closed = False

    def close(self) -> None:
        self.closed = True


def test_what_is_left_in_good_order_is_lent_again_to_whoever_wants_the_same() -> None:
    pool: Kept[Thing] = Kept()
    with pool.lent("a", Thing) as first, pool.lent("a", Thing) as second:
        assert first is not second, "one user at a time"
    with pool.lent("b", Thing) as other:
        assert other not in (first, second)
    with pool.lent("a", Thing) as again:
        assert again in (first, second)
    pool.close()
    assert all(each.closed for each in (first, second, other))


def test_what_fails_is_closed_and_never_lent_again() -> None:
    pool: Kept[Thing] = Kept()
    with pytest.raises(ValueError, match="half-way"), pool.lent("a", Thing) as failed:
        raise ValueError("half-way")
    assert failed.closed

    def rows() -> Iterator[Thing]:
        with pool.lent("a", Thing) as found:
            yield found

    reading = rows()
    left = next(reading)
    assert left is not failed
    del reading  # a task that takes no more rows: limit(1)
    assert left.closed


def test_few_are_kept_and_none_for_long() -> None:
    pool: Kept[Thing] = Kept(most=2)
    made = [Thing(), Thing(), Thing()]
    for key, thing in zip("abc", made, strict=True):
        with pool.lent(key, lambda thing=thing: thing):  # type: ignore[misc]
            pass
    assert [each.closed for each in made] == [True, False, False]
    pool.close()
    short: Kept[Thing] = Kept(idle=-1.0)  # whatever comes back has been idle for too long
    with short.lent("a", Thing) as first:
        pass
    with short.lent("a", Thing) as second:
        assert second is not first
    assert first.closed
    short.close()


# Of the source and the sink.


@pytest.fixture
def in_a_task(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """As in a worker of Spark."""

    class Task:
        @staticmethod
        def get() -> object:
            return object()

    monkeypatch.setattr(kept, "TaskContext", Task)
    yield
    source._CLIENTS.close()
    sink._PUBLISHERS.close()


@pytest.fixture
def node() -> Iterator[EmbeddedBroker]:
    with coterie.testing.broker(console=True) as found:
        remote_of(found).ask("PUT", path_of("queues", "/", "q"), {"durable": True})
        yield found


def remote_of(node: EmbeddedBroker) -> Remote:
    assert node.console is not None
    return Remote(node.console.replace("://", "://guest:guest@"), 30.0)


def counted(monkeypatch: pytest.MonkeyPatch, kind: type, name: str) -> list[str]:
    """The arguments of a method's calls, from now on."""
    calls: list[str] = []
    method: Callable[..., object] = getattr(kind, name)

    def call(*words: object) -> object:
        calls.append(" ".join(map(str, words[1:])))
        return method(*words)

    monkeypatch.setattr(kind, name, call)
    return calls


SCHEMA = StructType([StructField("value", BinaryType())])


def write(node: EmbeddedBroker, *values: bytes) -> None:
    batch = pa.record_batch([pa.array(values, pa.binary())], names=["value"])
    BatchSink({"servers": f"127.0.0.1:{node.port}", "queue": "q"}, SCHEMA, False).write(iter([batch]))


@pytest.mark.usefixtures("in_a_task")
def test_tasks_of_a_worker_publish_on_one_connection(node: EmbeddedBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    made = counted(monkeypatch, Publisher, "_connect")
    for number in range(3):
        write(node, b"%d" % number)
    assert len(made) == 1
    assert [each.body for each in node.messages("q")] == [b"0", b"1", b"2"]
    (connection,) = remote_of(node).rows("connections")
    remote_of(node).ask("DELETE", path_of("connections", str(connection["name"])))
    write(node, b"3")
    assert len(made) == 2
    assert node.messages("q")[-1].body == b"3"


@pytest.mark.usefixtures("in_a_task")
def test_tasks_of_a_worker_read_on_one_connection_and_ask_nobody_for_brokers(
    node: EmbeddedBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(6):
        assert node.publish("q", str(number))
    given = {"servers": str(node.console), "queue": "q", "columns": "value", "minPartitions": "3"}
    reader = QueueStream(SourceOptions.of(given), SCHEMA)
    start = reader.latestOffset({}, reader.getDefaultReadLimit())
    end = reader.latestOffset(start, reader.getDefaultReadLimit())
    asked = counted(monkeypatch, Client, "_request_on")
    parts = reader.partitions(start, end)
    assert reader.partitions(start, end)
    assert sum("/api/streams/nodes" in each for each in asked) == 1, "the driver asks, and not for each batch"
    asked.clear()

    def read(part: object) -> list[bytes]:
        assert isinstance(part, source.LeasePart)
        return [value for batch in reader.read(part) for value in batch.to_pydict()["value"]]

    opened = counted(monkeypatch, SourceOptions, "client")
    assert [value for part in parts for value in read(part)] == [b"%d" % number for number in range(6)]
    assert (len(opened), len(asked)) == (1, 3), "one request for each part"
    (_, client, _) = source._CLIENTS._free[0]
    connection = client._servers[0].connection
    assert connection is not None
    assert connection.sock is not None
    connection.sock.shutdown(2)  # the broker has closed it meanwhile
    assert read(parts[0]) == [b"0", b"1"]
    part = parts[0]
    assert isinstance(part, source.LeasePart)
    with pytest.raises(DataLoss):
        read(source.LeasePart(replace(part.range, id=1), part.nodes))
    assert not source._CLIENTS._free, "what has failed is not kept"
    reader.stop()
