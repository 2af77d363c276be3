"""Clients that mean no good, with pika against real brokers: each is told what is wrong, and everybody else goes on."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pika
import pytest
from node_process import NodeProcess
from pika.adapters.blocking_connection import BlockingChannel
from pika.exceptions import ChannelClosedByBroker, NackError
from three_brokers import NAMES, PATIENCE, PERSISTENT, ThreeBrokers, take

Connect = Callable[[str], BlockingChannel]
"""A channel on a connection of its own to that broker, with confirms."""


@pytest.fixture(params=["alone", "three"])
def connect(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Connect]:
    if request.param == "alone":
        with NodeProcess(tmp_path / "data", "--amqp-close-timeout", "1") as node:
            connections: list[pika.BlockingConnection] = []

            def alone(name: str) -> BlockingChannel:
                connections.append(pika.BlockingConnection(pika.URLParameters(node.url)))
                return _confirming(connections[-1].channel())

            yield alone
            for connection in connections:
                connection.close()
            node.stop()
        return
    brokers = ThreeBrokers(tmp_path)
    try:
        yield lambda name: _confirming(brokers.channel(name))
    finally:
        brokers.stop()


def _confirming(channel: BlockingChannel) -> BlockingChannel:
    channel.confirm_delivery()
    return channel


def _step(**said: object) -> bytes:
    text = json.dumps({"do": "begin", "source": "s", **said}).encode()
    return struct.pack(">I", len(text)) + text


def _ask_until_closed(channel: BlockingChannel) -> None:
    while True:
        channel.queue_declare("orders", passive=True)


def test_a_hostile_client_is_told_what_is_wrong_and_the_others_go_on(connect: Connect) -> None:
    honest, hostile = connect(NAMES[0]), connect(NAMES[1])
    honest.exchange_declare("graves", "fanout", durable=True)
    honest.queue_declare("dead", durable=True)
    honest.queue_bind("dead", "graves")
    honest.queue_declare("orders", durable=True, arguments={"x-dead-letter-exchange": "graves"})

    # A key that no letter can have.
    with pytest.raises(ChannelClosedByBroker, match=r"x-dead-letter-routing-key.*255 bytes, and has 256") as refused:
        hostile.queue_declare(
            "bad", durable=True,
            arguments={
                "x-dead-letter-exchange": "graves", "x-dead-letter-routing-key": "k" * 256, "x-message-ttl": 100,
            },
        )  # fmt: skip
    assert refused.value.reply_code == 406

    # A message that claims to have died as often as can be, in the queue in which it will.
    hostile = connect(NAMES[1])
    death: Any = {"queue": "orders", "reason": "rejected", "count": 2**63 - 1}
    hostile.basic_publish("", "orders", b"bad", pika.BasicProperties(delivery_mode=2, headers={"x-death": [death]}))
    ((body, _, tag),) = take(honest, "orders", 1)
    assert body == b"bad"
    honest.basic_nack(tag, requeue=False)
    honest.cancel()
    found: Any = None
    for method, properties, _ in honest.consume("dead", inactivity_timeout=PATIENCE):
        assert method is not None, "no letter came"
        assert method.delivery_tag is not None
        honest.basic_ack(method.delivery_tag)
        found = properties
        break
    honest.cancel()
    assert found.headers["x-death"][0]["count"] == 2**63 - 1

    # Steps of a link that make no sense.
    hostile.exchange_declare("coterie.replication", "x-replication", durable=True)
    said = {"queue": "bad", "incarnation": 1, "session": "s", "auto_delete": False}
    for arguments in ({"a": {"!decimal": "nonsense"}}, {"x-max-priority": "high"}, 5):
        with pytest.raises(NackError):
            hostile.basic_publish("coterie.replication", "", _step(**said, arguments=arguments), PERSISTENT)

    # Everybody else goes on, on every broker.
    for name in NAMES:
        channel = connect(name)
        channel.basic_publish("", "orders", name.encode(), PERSISTENT)
    assert sorted(body for body, _, _ in take(honest, "orders", 3)) == [name.encode() for name in NAMES]


def test_dead_letters_that_would_go_round_for_ever_are_refused_and_everybody_goes_on(connect: Connect) -> None:
    """More queues that keep nothing than a letter can tell deaths: its headers do not show that it goes round."""
    honest, hostile = connect(NAMES[0]), connect(NAMES[1])
    honest.queue_declare("orders", durable=True)
    for number in range(103):
        key = f"ring{(number + 1) % 103}"
        arguments: dict[str, Any] = {
            "x-max-length": 0, "x-dead-letter-exchange": "", "x-dead-letter-routing-key": key,
        }  # fmt: skip
        hostile.queue_declare(f"ring{number}", durable=True, arguments=arguments)
    with pytest.raises((ChannelClosedByBroker, NackError)):
        hostile.basic_publish("", "ring0", b"round", PERSISTENT)

    # The same by a reject, which leaves the message where it was.
    hostile = connect(NAMES[1])
    to_ring: dict[str, Any] = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "ring0"}
    hostile.queue_declare("wheel", durable=True, arguments=to_ring)
    hostile.basic_publish("", "wheel", b"round", PERSISTENT)
    ((_, _, tag),) = take(hostile, "wheel", 1)
    hostile.basic_nack(tag, requeue=False)
    with pytest.raises(ChannelClosedByBroker, match="too many for one step"):
        _ask_until_closed(hostile)
    assert [body for body, _, _ in take(connect(NAMES[1]), "wheel", 1)] == [b"round"]

    for name in NAMES:
        connect(name).basic_publish("", "orders", name.encode(), PERSISTENT)
    assert sorted(body for body, _, _ in take(honest, "orders", 3)) == [name.encode() for name in NAMES]
