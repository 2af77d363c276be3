"""Three brokers as real processes, and clients that bring what once stopped all of them for good (B15)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pika
import pytest
from pika.exceptions import ChannelClosedByBroker, ConnectionClosedByBroker, NackError
from three_brokers import NAMES, PERSISTENT, ThreeBrokers, take

LETTERS = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "letters"}
HOSTILE = [
    {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "k" * 256, "x-message-ttl": 200},
    {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "k" * 255, "x-message-ttl": 200},
]
LAST = 2**63 - 1


def expire(three: ThreeBrokers) -> None:
    """Queues whose messages cannot become letters, or hardly; they may be refused as well."""
    for number, arguments in enumerate(HOSTILE):
        channel = three.channel(NAMES[number])
        try:
            channel.queue_declare(f"hostile{number}", durable=True, arguments=arguments)
            channel.basic_publish("", f"hostile{number}", b"poison", PERSISTENT)
        except (ChannelClosedByBroker, ConnectionClosedByBroker):
            pass


def reject(three: ThreeBrokers) -> None:
    """A message that has died as often as a number can tell."""
    death: dict[str, Any] = {
        "count": LAST,
        "queue": "dying",
        "reason": "rejected",
        "exchange": "",
        "routing-keys": ["dying"],
    }
    properties = pika.BasicProperties(delivery_mode=2, headers={"x-death": [death]})
    channel = three.channel("node2")
    channel.queue_declare("dying", durable=True, arguments=LETTERS)
    try:
        channel.basic_publish("", "dying", b"poison", properties)
        ((_, _, tag),) = take(channel, "dying", 1)
        channel.basic_nack(tag, requeue=False)
        channel.connection.process_data_events(0.5)
    except (ChannelClosedByBroker, ConnectionClosedByBroker):
        pass


def fail_half_way(three: ThreeBrokers) -> None:
    """A message for a queue that takes it, and for a ring of queues in which it would go round for ever."""
    channel = three.channel("node2")
    channel.exchange_declare("both", "fanout", durable=True)
    for number in range(103):
        arguments: dict[str, Any] = {
            "x-max-length": 0,
            "x-dead-letter-exchange": "",
            "x-dead-letter-routing-key": f"ring{(number + 1) % 103}",
        }
        channel.queue_declare(f"ring{number}", durable=True, arguments=arguments)
    channel.queue_bind("innocent", "both")
    channel.queue_bind("ring0", "both")
    channel.confirm_delivery()
    with pytest.raises(NackError):
        channel.basic_publish("both", "", b"half", PERSISTENT)
    for name in NAMES:
        assert three.channel(name).queue_declare("innocent", passive=True).method.message_count == 1


def goes_on(three: ThreeBrokers, what: str) -> None:
    """Something has expired since, and every broker confirms and delivers."""
    channel = three.channel("node3")
    channel.queue_declare("letters", durable=True)
    channel.queue_purge("letters")
    channel.queue_declare("mortal", durable=True, arguments={**LETTERS, "x-message-ttl": 500})
    channel.confirm_delivery()
    channel.basic_publish("", "mortal", what.encode(), PERSISTENT)
    while True:
        ((body, _, tag),) = take(channel, "letters", 1)
        channel.basic_ack(tag)
        channel.cancel()
        if body == what.encode():
            break
    for name in NAMES:
        channel = three.channel(name)
        channel.confirm_delivery()
        channel.queue_declare(f"{what} {name}", durable=True)
        channel.basic_publish("", f"{what} {name}", b"hello", PERSISTENT)
        ((body, _, tag),) = take(channel, f"{what} {name}", 1)
        assert body == b"hello"
        channel.basic_ack(tag)


@pytest.mark.timeout(300)
def test_what_once_stopped_a_cluster_for_good_stops_nobody_and_loses_nothing(tmp_path: Path) -> None:
    three = ThreeBrokers(tmp_path)
    try:
        channel = three.channel("node1")
        channel.queue_declare("letters", durable=True)
        channel.queue_declare("innocent", durable=True)
        channel.confirm_delivery()
        channel.basic_publish("", "innocent", b"innocent", PERSISTENT)
        expire(three)
        reject(three)
        fail_half_way(three)
        goes_on(three, "first")
    finally:
        three.stop()
    three = ThreeBrokers(tmp_path)
    try:
        goes_on(three, "second")
        channel = three.channel("node2")
        assert channel.queue_declare("innocent", passive=True).method.message_count == 1
        assert [body for body, _, _ in take(channel, "innocent", 1)] == [b"innocent"]
    finally:
        three.stop()
