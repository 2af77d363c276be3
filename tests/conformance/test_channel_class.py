"""The class `channel`: opening and closing, errors that stay where they happened; and the old class `access`."""

from __future__ import annotations

import pytest
from raw_client import Connect, Raw, content, frame

from coterie.amqp.wire.methods import METHODS


def test_open_is_answered(client: Raw) -> None:
    assert client.call(2, "channel.open")["reserved_1"] == b""


def test_a_channel_is_opened_once(client: Raw) -> None:
    client.send(1, "channel.open")
    client.connection_closed(504, "channel.open", "second 'channel.open' seen")


@pytest.mark.parametrize("method", ["queue.declare", "basic.ack", "channel.close"])
def test_a_channel_that_is_not_open_takes_nothing(client: Raw, method: str) -> None:
    client.send(7, method)
    client.connection_closed(504, method, "expected 'channel.open'")


@pytest.mark.parametrize("kind", [2, 3])
def test_content_on_a_channel_that_is_not_open_is_refused(client: Raw, kind: int) -> None:
    client.raw(frame(kind, 7, bytes(14)))
    client.connection_closed(505)


def test_close_is_answered_and_the_number_is_free_again(client: Raw) -> None:
    for _ in range(3):
        client.call(1, "channel.close", reply_code=200)
        client.call(1, "channel.open")


def test_channels_may_have_any_number(client: Raw) -> None:
    client.call(2047, "channel.open")
    client.call(65_535, "channel.open")
    client.nothing(65_535)


def test_a_channel_that_closes_gives_back_what_it_held(client: Raw) -> None:
    queue = client.queue()
    client.fill(queue, b"one", b"two")
    client.call(2, "channel.open")
    client.consume(queue, channel=2)
    client.expect_many(2, "basic.deliver", 2)
    client.call(2, "channel.close", reply_code=200)
    client.ready(queue, 2)
    assert client.get(queue)["redelivered"] is True


def test_an_error_closes_its_channel_and_no_other(client: Raw) -> None:
    client.call(2, "channel.open")
    client.send(1, "queue.declare", queue="none", passive=True)
    client.channel_closed(1, 404, "queue.declare", "no queue 'none' in vhost")
    client.nothing(2)
    client.reopen()
    client.nothing()


def test_after_an_error_everything_is_ignored_until_the_client_knows(client: Raw, name: str) -> None:
    client.raw(
        METHODS["queue.declare"].frame(1, queue="none", passive=True)
        + METHODS["queue.declare"].frame(1, queue=name)
        + METHODS["basic.publish"].frame(1, routing_key="x")
        + content(1, b"body")
    )
    client.channel_closed(1, 404, "queue.declare")
    client.reopen()
    client.send(1, "queue.declare", queue=name, passive=True)
    client.channel_closed(1, 404, "queue.declare")


def test_two_closes_that_cross_are_both_answered(client: Raw) -> None:
    client.raw(
        METHODS["queue.declare"].frame(1, queue="none", passive=True)
        + METHODS["channel.close"].frame(1, reply_code=200)
    )
    client.expect(1, "channel.close")
    client.expect(1, "channel.close-ok")
    client.send(1, "channel.close-ok")
    client.reopen()


def test_a_message_that_was_under_way_when_the_channel_closed_is_dropped(client: Raw) -> None:
    client.raw(METHODS["queue.declare"].frame(1, queue="none", passive=True) + METHODS["basic.publish"].frame(1))
    client.channel_closed(1, 404, "queue.declare")
    client.reopen()
    client.nothing()


def test_flow_cannot_be_stopped(client: Raw) -> None:
    assert client.call(1, "channel.flow", active=True)["active"] is True
    client.send(1, "channel.flow", active=False)
    client.connection_closed(540, "channel.flow", "active=false")


def test_commands_may_be_sent_without_waiting_for_answers(client: Raw) -> None:
    client.raw(
        METHODS["queue.declare"].frame(1, exclusive=True)
        + METHODS["basic.qos"].frame(1, prefetch_count=1)
        + METHODS["basic.get"].frame(1)
        + METHODS["tx.select"].frame(1)
    )
    names = [client.next().name for _ in range(4)]
    assert names == ["queue.declare-ok", "basic.qos-ok", "basic.get-empty", "tx.select-ok"]


def test_an_error_of_the_connection_ends_all_channels(client: Raw, other: Raw, name: str) -> None:
    other.call(1, "queue.declare", queue=name)
    other.fill(name, b"x")
    client.consume(name)
    client.expect(1, "basic.deliver")
    client.send(0, "channel.open")
    client.connection_closed(504)
    other.consume(name)
    assert other.expect(1, "basic.deliver")["redelivered"] is True


@pytest.mark.parametrize("answer", ["channel.open-ok", "queue.declare-ok", "basic.consume-ok", "tx.commit-ok"])
def test_what_only_brokers_say_is_refused(client: Raw, answer: str) -> None:
    client.send(1, answer)
    client.connection_closed(503, answer)


def test_access_request_of_old_clients_gets_a_ticket(client: Raw) -> None:
    assert client.call(1, "access.request", realm="/data", active=True)["ticket"] == 1


def test_a_client_without_rights_is_refused_each_thing_that_it_may_not(connect: Connect, name: str) -> None:
    client = connect("limited", "limited").open()
    refusals = [
        ("queue.declare", {"queue": name}),
        ("queue.declare", {}),
        ("queue.bind", {"queue": name, "exchange": "amq.fanout"}),
        ("queue.purge", {"queue": name}),
        ("queue.delete", {"queue": name}),
        ("exchange.declare", {"exchange": name, "type": "direct"}),
        ("exchange.delete", {"exchange": name}),
        ("exchange.bind", {"source": "amq.fanout", "destination": name}),
        ("basic.get", {"queue": name}),
        ("basic.consume", {"queue": name}),
    ]
    owner = connect().open()
    owner.call(1, "queue.declare", queue=name)
    for method, arguments in refusals:
        client.send(1, method, **arguments)
        client.channel_closed(1, 403, method, "refused for user 'limited'")
        client.reopen()
    client.publish(1, "", name, b"x")
    client.channel_closed(1, 403, "basic.publish", "refused for user 'limited'")
    client.reopen()
    assert client.call(1, "queue.declare", queue=name, passive=True)  # looking is free
    queue = client.call(1, "queue.declare", queue="limited.queue", exclusive=True).text("queue")
    arguments = {"x-dead-letter-exchange": "amq.fanout"}
    client.send(1, "queue.declare", queue="limited.dead", exclusive=True, arguments=arguments)
    client.channel_closed(1, 403, "queue.declare")
    client.reopen()
    client.call(1, "exchange.declare", exchange="limited.x", type="fanout", auto_delete=True)
    client.call(1, "queue.bind", queue=queue, exchange="limited.x")
    client.publish(1, "limited.x", "", b"mine")
    assert client.get(queue).body == b"mine"
