"""kombu (py-amqp): what Celery, and many others, speak AMQP with."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Iterator

import kombu
import kombu.pools
import pytest
from amqp.exceptions import MessageNacked
from client_fixtures import Line
from kombu.pools import producers

COUNT = 60


@pytest.fixture
def connection(url: str) -> Iterator[kombu.Connection]:
    with connection_to(url) as connection:
        yield connection


def connection_to(url: str) -> kombu.Connection:
    return kombu.Connection(url, transport_options={"confirm_publish": True})


def durable(name: str, **arguments: object) -> kombu.Queue:
    return kombu.Queue(name, kombu.Exchange(name, "topic", durable=True), routing_key="job.#", **arguments)


def drain(connection: kombu.Connection, queue: kombu.Queue, count: int) -> list[tuple[int, bool]]:
    """Number and redelivered of the next ones, acknowledged."""
    found: list[tuple[int, bool]] = []

    def take(body: dict[str, int], message: kombu.Message) -> None:
        found.append((body["number"], bool(message.delivery_info["redelivered"])))
        message.ack()

    with kombu.Consumer(connection, [queue], callbacks=[take], prefetch_count=10):
        while len(found) < count:
            connection.drain_events(timeout=30)
    return found


def test_what_is_published_with_confirms_is_consumed_in_order(connection: kombu.Connection, name: str) -> None:
    queue = durable(name)
    with connection.Producer(serializer="json") as producer:
        for number in range(COUNT):
            producer.publish({"number": number}, f"job.{number}", exchange=queue.exchange, declare=[queue])
    assert drain(connection, queue, COUNT) == [(number, False) for number in range(COUNT)]
    bound = queue(connection)
    assert bound.get() is None
    bound.delete()
    bound.exchange.delete()


def test_a_publisher_hears_of_refusals_and_of_what_reached_no_queue(connection: kombu.Connection, name: str) -> None:
    limits = {"x-max-length": 1, "x-overflow": "reject-publish"}
    queue = durable(name, exclusive=True, queue_arguments=limits)
    returned: list[str] = []
    with connection.Producer(on_return=lambda error, *_: returned.append(str(error))) as producer:
        producer.publish({"number": 0}, "job.0", exchange=queue.exchange, declare=[queue])
        with pytest.raises(MessageNacked):
            producer.publish({"number": 1}, "job.1", exchange=queue.exchange)
        producer.publish({"number": 1}, "nobody", exchange=queue.exchange, mandatory=True)
    assert len(returned) == 1
    assert "NO_ROUTE" in returned[0]
    queue.exchange(connection).delete()


def test_a_transaction_is_all_or_nothing(url: str, name: str) -> None:
    with kombu.Connection(url) as connection:
        channel = connection.channel()
        queue = kombu.Queue(name, exclusive=True)(channel)
        queue.declare()
        channel.tx_select()
        producer = kombu.Producer(channel)
        producer.publish({"number": 1}, name)
        channel.tx_rollback()
        producer.publish({"number": 2}, name)
        assert queue.get() is None
        channel.tx_commit()
        message = queue.get()
        assert message.payload == {"number": 2}
        message.ack()
        channel.tx_commit()


def test_the_prefetch_of_a_channel_can_be_changed_while_it_consumes(connection: kombu.Connection, name: str) -> None:
    """As Celery does it: py-amqp says no `global`, and means the consumers that are there."""
    queue = durable(name)
    with connection.Producer() as producer:
        for number in range(20):
            producer.publish({"number": number}, "job", exchange=queue.exchange, declare=[queue])
    held: list[kombu.Message] = []

    def take_all() -> int:
        """Everything that comes of its own accord; what is sent behind it has come when this is answered."""
        queue(connection).queue_declare(passive=True)
        with contextlib.suppress(socket.timeout):
            while True:
                connection.drain_events(timeout=0.1)
        return len(held)

    with kombu.Consumer(
        connection, [queue], callbacks=[lambda _, message: held.append(message)], prefetch_count=3
    ) as consumer:
        assert take_all() == 3
        consumer.qos(prefetch_count=8)
        assert take_all() == 8
        consumer.qos(prefetch_count=5)
        assert take_all() == 8
        for message in held[:4]:  # 4 are left, which is one less than it may hold
            message.ack()
        assert take_all() == 9
    connection.default_channel.close()
    with connection.channel() as channel:
        queue(channel).delete()
        queue.exchange(channel).delete()


def test_a_producer_comes_back_by_itself_and_nothing_confirmed_is_lost(line: Line, name: str) -> None:
    queue = durable(name)
    again: list[int] = []
    with connection_to(line.url) as connection, producers[connection].acquire(block=True) as producer:
        for number in range(COUNT):
            if number == COUNT // 2:
                line.cut_off()
            producer.publish(
                {"number": number},
                "job.x",
                exchange=queue.exchange,
                declare=[queue],
                delivery_mode="persistent",
                retry=True,
                retry_policy={"interval_start": 0.05, "max_retries": 100, "errback": lambda *_: again.append(1)},
            )
    assert again, "the producer noticed"
    kombu.pools.reset()
    with connection_to(line.url) as connection:
        found = [number for number, _ in drain(connection, queue, COUNT)]
        assert sorted(set(found)) == list(range(COUNT))
        queue(connection).delete()
        queue.exchange(connection).delete()


def test_a_consumer_that_lost_its_connection_gets_what_it_held_again_and_flagged(line: Line, name: str) -> None:
    queue = durable(name)
    with connection_to(line.url) as connection:
        with connection.Producer() as producer:
            for number in range(10):
                producer.publish({"number": number}, "job", exchange=queue.exchange, declare=[queue])
        held: list[int] = []
        consumer = kombu.Consumer(connection, [queue], callbacks=[lambda body, _: held.append(body["number"])])
        consumer.consume()
        while len(held) < 10:
            connection.drain_events(timeout=30)
        assert held == list(range(10))
        line.cut_off()
        with pytest.raises(connection.connection_errors):
            connection.drain_events(timeout=30)
    with connection_to(line.url) as connection:
        assert drain(connection, queue, 10) == [(number, True) for number in range(10)]
        queue(connection).delete()
        queue.exchange(connection).delete()
