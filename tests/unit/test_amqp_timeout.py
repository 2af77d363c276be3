"""Clients that keep deliveries for too long: the channel ends, and what it had goes to others."""

from __future__ import annotations

import pytest
from amqp_rig import Client, Rig

from coterie.amqp.settings import AmqpSettings


@pytest.fixture
def rig() -> Rig:
    return Rig(AmqpSettings(consumer_timeout=100.0))


@pytest.fixture
def client(rig: Rig) -> Client:
    client = rig.client()
    client.call(1, "queue.declare", queue="q")
    return client


def test_a_channel_whose_client_keeps_a_delivery_for_too_long_is_closed_and_others_get_it(
    rig: Rig, client: Client
) -> None:
    client.call(1, "basic.consume", queue="q")
    client.publish(1, "", "q", b"slow")
    assert client.names() == ["basic.deliver"]
    rig.run(99)
    assert client.names() == []
    rig.run(30)
    (heard,) = client.heard()
    assert (heard.channel, heard.name, heard["reply_code"]) == (1, "channel.close", 406)
    assert (heard["class_id"], heard["method_id"]) == (0, 0)
    assert "delivery acknowledgement on channel 1 timed out. Timeout value used: 100000 ms" in str(heard["reply_text"])
    client.send(1, "channel.close-ok")
    assert client.call(1, "channel.open").name == "channel.open-ok"
    again = client.call(1, "basic.get", queue="q")
    assert (again.body, again["redelivered"]) == (b"slow", True)


def test_who_settles_in_time_may_hold_something_all_the_time(rig: Rig, client: Client) -> None:
    client.call(1, "basic.consume", queue="q", consumer_tag="c")
    for tag in range(1, 6):
        client.publish(1, "", "q", b"%d" % tag)
        if tag > 1:
            client.send(1, "basic.ack", delivery_tag=tag - 1)
        rig.run(90)
    assert client.names() == ["basic.deliver"] * 5


def test_the_oldest_counts_whatever_was_settled_after_it(rig: Rig, client: Client) -> None:
    for body in (b"kept", b"settled"):
        client.publish(1, "", "q", body)
        client.call(1, "basic.get", queue="q")
        rig.run(60)
        client.heard()
    client.send(1, "basic.ack", delivery_tag=2)
    rig.run(30)
    assert client.names() == ["channel.close"]


def test_deliveries_that_need_no_ack_and_other_channels_are_left_alone(rig: Rig, client: Client) -> None:
    client.call(2, "channel.open")
    client.call(1, "basic.consume", queue="q", no_ack=True)
    client.publish(1, "", "q", b"x")
    client.call(2, "queue.declare", queue="other")
    client.publish(2, "", "other", b"y")
    client.call(2, "basic.get", queue="other")
    rig.run(130)
    (heard,) = client.heard()
    assert (heard.channel, heard.name) == (2, "channel.close")
    client.call(1, "queue.declare", queue="q")


def test_what_is_settled_in_a_transaction_is_not_kept_until_that_is_rolled_back(rig: Rig, client: Client) -> None:
    client.call(1, "tx.select")
    client.publish(1, "", "q", b"x")
    client.call(1, "tx.commit")
    client.call(1, "basic.get", queue="q")
    rig.run(60)
    client.send(1, "basic.ack", delivery_tag=1)
    rig.run(60)
    assert client.names() == []
    client.call(1, "tx.rollback")
    rig.run(30)
    assert client.names() == ["channel.close"]


def test_zero_is_any_time() -> None:
    rig = Rig(AmqpSettings(consumer_timeout=0))
    client = rig.client()
    client.call(1, "queue.declare", queue="q")
    client.publish(1, "", "q", b"x")
    client.call(1, "basic.get", queue="q")
    rig.run(100_000)
    assert client.names() == []
    client.call(1, "queue.declare", queue="q")


def test_nobody_looks_while_nobody_is_there(rig: Rig, client: Client) -> None:
    client.gone()
    rig.run(100)
    assert rig.server._looking is None
    other = rig.client()
    assert rig.server._looking is not None
    other.gone()
