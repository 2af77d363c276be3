"""Streams whose checkpoint, lease and broker do not agree: after a restore, an operator's step, a second query.

Each is an error that says what is lost or comes twice; with `failOnDataLoss` = false the stream goes on, and never
wedges.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pika
import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxBytes, ReadMaxRows
from spark.brokers import Broker
from stream_query import Query, begun, stop_queries  # noqa: F401  (a fixture)

from coterie.errors import UserError
from coterie.spark.leased import DataLoss
from coterie.spark.source_options import SourceOptions
from coterie.streams.client import Client

ALL = ReadAllAvailable()


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    found = Broker(tmp_path_factory.mktemp("broker") / "data")
    yield found
    found.stop()


def publish(node: Broker, queue: str, *bodies: str) -> None:
    node.declare(queue)
    for body in bodies:
        node.channel.basic_publish("", queue, body.encode(), pika.BasicProperties(delivery_mode=2))


def numbers(first: int, stop: int) -> list[str]:
    return [str(number) for number in range(first, stop)]


def client_of(query: Query) -> Client:
    return SourceOptions.of(query.given).client()


def end_lease(query: Query, queue: str) -> None:
    """As an operator does."""
    with client_of(query) as client:
        lease = client.lease(queue, query.log[-1]["lease"])
        assert lease is not None
        client.end(lease)


# Batches that are in the checkpoint, and cannot be replayed.


def test_a_batch_whose_lease_was_ended_is_skipped_where_losses_are_accepted(node: Broker) -> None:
    publish(node, "ended", *numbers(0, 6))
    query = begun(node.console, queue="ended")
    assert query.next(ReadMaxRows(4)) == numbers(0, 4)
    end_lease(query, "ended")
    query.restart()
    with pytest.raises(UserError, match="failOnDataLoss"):
        query.bodies()
    query.restart(failOnDataLoss="false")
    assert query.bodies() == [], "the batch of the checkpoint: what it held went back to the queue"
    assert query.next() == numbers(0, 6)
    publish(node, "ended", "6")
    assert query.next() == ["6"]


def test_a_batch_whose_lease_is_another_one_is_skipped_where_losses_are_accepted(node: Broker) -> None:
    publish(node, "another", *numbers(0, 4))
    query = begun(node.console, queue="another", leaseName="mine")
    assert query.next() == numbers(0, 4)
    end_lease(query, "another")
    with client_of(query) as client:
        assert client.acquire("another", "mine", "somebody", rows=1).acquired == 1
    query.restart(failOnDataLoss="false")
    assert query.bodies() == []


@pytest.mark.parametrize("anew", [False, True])
def test_a_batch_whose_queue_was_deleted_is_skipped_where_losses_are_accepted(node: Broker, anew: bool) -> None:
    queue = f"deleted.{anew}"
    publish(node, queue, *numbers(0, 4))
    query = begun(node.console, queue=queue)
    assert query.next() == numbers(0, 4)
    node.channel.queue_delete(queue)
    if anew:
        publish(node, queue, "new")
    query.restart()
    with pytest.raises(UserError, match="failOnDataLoss"):
        query.bodies()
    query.restart(failOnDataLoss="false")
    assert query.bodies() == []
    if anew:
        assert query.next() == ["new"]


# A lease that is behind its checkpoint: brokers that were restored from older data.


def test_a_lease_behind_its_checkpoint_is_an_error_or_begins_anew(tmp_path: Path) -> None:
    folder, backup = tmp_path / "data", tmp_path / "backup"
    node = Broker(folder)
    publish(node, "behind", *numbers(0, 8))
    query = begun(node.console, queue="behind")
    assert query.next(ReadMaxRows(2)) == numbers(0, 2)
    assert query.next(ReadMaxRows(2)) == numbers(2, 4)
    node.stop()
    shutil.copytree(folder, backup)
    node = Broker(folder)
    query.restart(servers=node.console)
    assert query.next(ReadMaxRows(4)) == numbers(4, 8)
    node.stop()
    shutil.rmtree(folder)
    backup.rename(folder)
    node = Broker(folder)
    try:
        query.restart(servers=node.console)
        with pytest.raises(DataLoss, match=r"behind its checkpoint.*failOnDataLoss"):
            query.plan()
        with pytest.raises(UserError, match="failOnDataLoss"):
            query.bodies()
        query.restart(servers=node.console, failOnDataLoss="false")
        assert query.bodies() == [], "the lease of the restored broker has not come so far"
        assert query.next(ReadMaxRows(2)) == numbers(2, 4), "what the lease has not retired comes again"
        assert query.next(ALL) == numbers(4, 8)
        assert not query.plan()
        publish(node, "behind", "8")
        assert query.next() == ["8"]
    finally:
        query.reader.stop()
        node.stop()


# A checkpoint that is behind its lease: it was restored from an older copy.


@pytest.mark.parametrize("batch", [1, 2])
def test_a_checkpoint_behind_its_lease_is_an_error_or_goes_on_with_what_is_left(node: Broker, batch: int) -> None:
    """1: its first, empty batch; 2: one with rows."""
    queue = f"restored.{batch}"
    publish(node, queue, *numbers(0, 6))
    query = begun(node.console, queue=queue)
    for first in range(0, 6, 2):
        assert query.next(ReadMaxRows(2)) == numbers(first, first + 2)
    assert not query.plan(), "all is retired"
    publish(node, queue, "6")
    del query.log[batch + 1 :]
    query.restart()
    with pytest.raises(DataLoss, match=r"older than its lease.*failOnDataLoss"):
        query.plan()
    assert node.count(queue) == 1, "nothing was taken"
    query.restart(failOnDataLoss="false")
    assert query.next() == ["6"]
    assert not query.plan()


def test_a_driver_that_died_before_its_first_rows_were_written_down_loses_nothing(node: Broker) -> None:
    publish(node, "early", *numbers(0, 4))
    query = begun(node.console, queue="early")
    assert query.plan()
    query.log.pop()
    query.restart()
    assert query.next() == numbers(0, 4)


def test_a_driver_that_died_before_its_first_batch_was_written_down_took_nothing(node: Broker) -> None:
    publish(node, "first", *numbers(0, 4))
    query = Query(node.console, queue="first")
    assert query.plan()
    assert node.count("first") == 4
    with client_of(query) as client:
        assert client.lease("first", query.log[-1]["lease"]) is None


def test_what_a_query_held_whose_checkpoint_is_deleted_is_ready_when_an_operator_ends_its_lease(node: Broker) -> None:
    publish(node, "orphan", *numbers(0, 4))
    lost = begun(node.console, queue="orphan", queryName="nightly load / orders")
    assert lost.next(ReadMaxRows(2)) == numbers(0, 2)
    assert lost.log[-1]["lease"].startswith("spark-nightly-load-orders-"), "the tools show whose it is"
    query = begun(node.console, queue="orphan")
    assert query.next() == numbers(2, 4)
    end_lease(lost, "orphan")
    assert query.next() == numbers(0, 2)


def test_a_lease_expires_when_its_query_is_gone_and_not_while_it_waits(tmp_path: Path) -> None:
    node = Broker(tmp_path / "data", "--broker-lease-expires", "5")
    try:
        publish(node, "idle", *numbers(0, 2))
        gone = begun(node.console, queue="idle", queryName="gone")
        assert gone.next(ReadMaxRows(1)) == ["0"]
        waiting = begun(node.console, queue="idle", queryName="waiting")
        assert waiting.next() == ["1"]
        with client_of(gone) as client:
            assert [(each.count, each.lag) for each in client.leases()] == [(1, 1), (1, 1)]
            while not waiting.plan():
                assert len(client.leases()) > 0
            (left,) = client.leases()
            assert left.name == waiting.log[-1]["lease"]
        assert waiting.bodies() == ["0"]
        gone.restart()
        with pytest.raises(DataLoss, match="was ended"):
            gone.plan()
    finally:
        for query in (gone, waiting):
            query.reader.stop()
        node.stop()


# One lease, two checkpoints.


def test_a_second_checkpoint_with_the_same_lease_name_is_refused_and_the_first_goes_on(node: Broker) -> None:
    publish(node, "shared", *numbers(0, 4))
    first = begun(node.console, queue="shared", leaseName="one name")
    second = begun(node.console, queue="shared", leaseName="one name")  # neither has taken anything yet
    assert first.next(ReadMaxRows(2)) == numbers(0, 2)
    for _ in range(2):
        with pytest.raises(UserError, match="the lease 'one name' of queue 'shared' belongs to another checkpoint"):
            second.plan()
        second.restart()
    third = Query(node.console, queue="shared", leaseName="one name")
    with pytest.raises(UserError, match="belongs to another checkpoint"):
        third.plan()
    assert first.next() == numbers(2, 4)
    first.restart()
    assert not first.plan()


def test_a_run_that_was_taken_over_by_another_of_its_checkpoint_fails_and_does_nothing(node: Broker) -> None:
    publish(node, "runs", *numbers(0, 4))
    query = begun(node.console, queue="runs")
    assert query.next(ReadMaxRows(2)) == numbers(0, 2)
    old, start = query.reader, query.log[-1]
    query.reader = Query(node.console, queue="runs").reader
    assert query.next(ReadMaxRows(1)) == ["2"]
    with pytest.raises(UserError, match="another run of this query is up"):
        old.latestOffset(start, ALL)
    assert node.count("runs") == 1
    old.stop()


# Limits.


def test_bytes_limit_what_a_driver_took_before_it_died(node: Broker) -> None:
    publish(node, "large", *(f"{number} {'x' * 998}" for number in range(10)))
    query = begun(node.console, queue="large")
    assert query.plan()
    query.log.pop()  # the driver died before the batch was written down
    query.restart(maxBytesPerTrigger="3000")
    assert [len(query.next()) for _ in range(4)] == [3, 3, 3, 1]
    assert not query.plan()


def test_rows_and_bytes_are_limits_together_and_one_row_always_goes(node: Broker) -> None:
    publish(node, "both.a", *("x" * 1000 for _ in range(5)))
    publish(node, "both.b", *("x" * 1000 for _ in range(5)))
    query = begun(node.console, queues="both.a,both.b", maxRowsPerTrigger="6")
    assert query.plan(ALL)
    query.log.pop()
    query.restart(maxBytesPerTrigger="4000", maxRowsPerTrigger="6")
    assert sorted(len(body) for body in query.next()) == [1000] * 4
    assert len(query.next(ReadMaxBytes(1))) == 1
    assert len(query.next(ALL)) == 5
