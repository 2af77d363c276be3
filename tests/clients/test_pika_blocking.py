"""pika, blocking: the client that most Python programs begin with."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import pika
import pytest
from client_fixtures import Line
from pika.adapters.blocking_connection import BlockingChannel
from pika.exceptions import AMQPError, ChannelClosedByBroker, NackError, UnroutableError

PERSISTENT = pika.BasicProperties(delivery_mode=2, content_type="text/plain", headers={"n": 1, "ok": True})


@contextlib.contextmanager
def channel_to(url: str) -> Iterator[BlockingChannel]:
    connection = pika.BlockingConnection(pika.URLParameters(url))
    try:
        yield connection.channel()
    finally:
        with contextlib.suppress(AMQPError):
            connection.close()


@pytest.fixture
def channel(url: str) -> Iterator[BlockingChannel]:
    with channel_to(url) as channel:
        yield channel


def everything(channel: BlockingChannel, queue: str) -> list[tuple[bytes, bool]]:
    """Body and redelivered of all there is, acknowledged."""
    found: list[tuple[bytes, bool]] = []
    while True:
        method, _, body = channel.basic_get(queue)
        if method is None or body is None:
            return found
        found.append((body, bool(method.redelivered)))
        channel.basic_ack(method.delivery_tag or 0)


def test_what_is_confirmed_is_consumed_in_order_with_its_properties(channel: BlockingChannel, name: str) -> None:
    channel.queue_declare(name, durable=True)
    channel.confirm_delivery()
    for number in range(100):
        channel.basic_publish("", name, b"%d" % number, PERSISTENT, mandatory=True)
    channel.basic_qos(prefetch_count=10)
    found = []
    for method, properties, body in channel.consume(name):
        found.append(body)
        assert properties is not None
        assert properties.headers == {"n": 1, "ok": True}
        assert properties.content_type == "text/plain"
        channel.basic_ack(method.delivery_tag or 0)
        if len(found) == 100:
            break
    assert found == [b"%d" % number for number in range(100)]
    assert channel.cancel() == 0
    assert channel.queue_delete(name).method.message_count == 0


def test_a_publisher_hears_what_reached_no_queue_and_what_a_queue_refused(channel: BlockingChannel, name: str) -> None:
    channel.confirm_delivery()
    with pytest.raises(UnroutableError):
        channel.basic_publish("", f"{name}.nobody", b"?", mandatory=True)
    channel.queue_declare(name, exclusive=True, arguments={"x-max-length": 1, "x-overflow": "reject-publish"})
    channel.basic_publish("", name, b"fits")
    with pytest.raises(NackError):
        channel.basic_publish("", name, b"does not")


def test_a_transaction_is_there_when_it_is_committed_and_never_if_it_is_rolled_back(
    channel: BlockingChannel, url: str, name: str
) -> None:
    channel.queue_declare(name, durable=True)
    channel.tx_select()
    channel.basic_publish("", name, b"rolled back", PERSISTENT)
    channel.tx_rollback()
    channel.basic_publish("", name, b"committed", PERSISTENT)
    with channel_to(url) as other:
        assert other.basic_get(name) == (None, None, None)
        channel.tx_commit()
        assert [body for body, _ in everything(other, name)] == [b"committed"]
        other.queue_delete(name)


def test_an_error_closes_the_channel_and_not_the_connection(channel: BlockingChannel, name: str) -> None:
    with pytest.raises(ChannelClosedByBroker) as caught:
        channel.queue_declare(f"{name}.nowhere", passive=True)
    assert caught.value.reply_code == 404
    again = channel.connection.channel()
    again.queue_declare(name, exclusive=True)


def test_consumers_are_told_that_their_queue_is_gone(channel: BlockingChannel, url: str, name: str) -> None:
    channel.queue_declare(name, durable=True)
    told: list[str | None] = []
    channel.add_on_cancel_callback(lambda frame: told.append(frame.method.consumer_tag))
    tag = channel.basic_consume(name, lambda *_: None)
    with channel_to(url) as other:
        other.queue_delete(name)
    while not told:
        channel.connection.process_data_events(10)
    assert told == [tag]


def test_nothing_confirmed_is_lost_and_nothing_acknowledged_comes_back(line: Line, name: str) -> None:
    with channel_to(line.url) as channel:
        channel.queue_declare(name, durable=True)
        channel.confirm_delivery()
        for number in range(60):
            channel.basic_publish("", name, b"%d" % number, PERSISTENT)
        for number in range(20):
            method, _, body = channel.basic_get(name)
            assert body == b"%d" % number
            assert method is not None
            channel.basic_ack(method.delivery_tag or 0)
        held, _, _ = channel.basic_get(name)
        assert held is not None
        channel.basic_publish("", name, b"60", PERSISTENT)  # once this is confirmed, so are the acks before it
        line.cut_off()
        with pytest.raises(AMQPError):
            channel.basic_publish("", name, b"never", PERSISTENT)
    with channel_to(line.url) as channel:
        found = everything(channel, name)
        assert [body for body, _ in found] == [b"%d" % number for number in range(20, 61)]
        assert found[0][1], "what a client held is flagged when it comes again"
        channel.queue_delete(name)
