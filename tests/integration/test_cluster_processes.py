"""Three brokers as real processes, with pika on all of them: the four tests of the cluster's plan, and its death."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from three_brokers import NAMES, PATIENCE, PERSISTENT, ThreeBrokers, eventually, take


@pytest.fixture(scope="module")
def three(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ThreeBrokers]:
    cluster = ThreeBrokers(tmp_path_factory.mktemp("three"))
    yield cluster
    cluster.stop()


def test_four_senders_and_four_receivers_on_three_brokers_lose_and_double_nothing(three: ThreeBrokers) -> None:
    each, senders = 150, 4
    three.channel("node1").queue_declare("numbers", durable=True)
    errors: list[BaseException] = []
    got: list[bytes] = []
    lock, complete = threading.Lock(), threading.Event()

    def send(number: int) -> None:
        try:
            channel = three.channel(NAMES[number % 3])
            channel.confirm_delivery()
            for count in range(each):
                channel.basic_publish("", "numbers", b"%d.%d" % (number, count), PERSISTENT)
        except BaseException as error:
            errors.append(error)

    def receive(number: int) -> None:
        try:
            channel = three.channel(NAMES[(number + 1) % 3])
            channel.basic_qos(prefetch_count=20)
            for method, _, body in channel.consume("numbers", inactivity_timeout=0.2):
                if complete.is_set():
                    return
                if method is not None and method.delivery_tag is not None and body is not None:
                    channel.basic_ack(method.delivery_tag)
                    with lock:
                        got.append(body)
                        if len(got) == each * senders:
                            complete.set()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=send, args=(n,)) for n in range(senders)]
    threads += [threading.Thread(target=receive, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    complete.wait(PATIENCE)
    complete.set()
    for thread in threads:
        thread.join(PATIENCE)
    assert not errors
    assert sorted(got) == sorted(b"%d.%d" % (number, count) for number in range(senders) for count in range(each))
    for number in range(senders):
        own = [body for body in got if body.startswith(b"%d." % number)]
        assert len(own) == each


def test_what_is_acquired_and_released_can_be_dequeued_on_any_broker(three: ThreeBrokers) -> None:
    channel = three.channel("node1")
    channel.queue_declare("released", durable=True)
    channel.confirm_delivery()
    for count in range(3):
        channel.basic_publish("", "released", b"%d" % count, PERSISTENT)
    holder = three.channel("node2")
    assert [body for body, _, _ in take(holder, "released", 3)] == [b"0", b"1", b"2"]
    holder.basic_nack(0, multiple=True, requeue=True)
    holder.connection.close()
    for node, body in (("node3", b"0"), ("node1", b"1"), ("node2", b"2")):
        taker = three.channel(node)
        ((found, redelivered, tag),) = take(taker, "released", 1, prefetch=1)
        assert (found, redelivered) == (body, True)
        taker.basic_ack(tag)
        taker.connection.close()

    def is_empty() -> bool:
        """For node1, which may be a little behind the one that was told so."""
        count: int = channel.queue_declare("released", durable=True, passive=True).method.message_count
        return count == 0

    eventually("all were dequeued", is_empty)


def test_what_is_acquired_and_rejected_is_on_the_dead_letter_exchange_once_only(three: ThreeBrokers) -> None:
    channel = three.channel("node1")
    channel.queue_declare("dead", durable=True)
    arguments = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead"}
    channel.queue_declare("rejected", durable=True, arguments=arguments)
    channel.confirm_delivery()
    channel.basic_publish("", "rejected", b"no", PERSISTENT)
    rejecter = three.channel("node2")
    ((_, _, tag),) = take(rejecter, "rejected", 1)
    rejecter.basic_reject(tag, requeue=False)
    reader = three.channel("node3")
    ((body, _, tag),) = take(reader, "dead", 1)
    assert body == b"no"
    reader.basic_ack(tag)
    reader.connection.close()
    for node in NAMES:
        other = three.channel(node)
        assert other.basic_get("dead")[0] is None
        assert other.basic_get("rejected")[0] is None


def test_what_a_killed_broker_held_is_dequeued_on_another_and_nothing_confirmed_is_lost(tmp_path: Path) -> None:
    cluster = ThreeBrokers(tmp_path / "mortal")
    try:
        channel = cluster.channel("node1")
        channel.queue_declare("held", durable=True)
        channel.confirm_delivery()
        sent = [b"%d" % count for count in range(50)]
        for body in sent:
            channel.basic_publish("", "held", body, PERSISTENT)
        holder = cluster.channel("node3")
        held = [body for body, _, _ in take(holder, "held", 10, prefetch=10)]
        cluster.kill("node3")
        taker = cluster.channel("node2")
        found = take(taker, "held", 50)
        assert sorted(body for body, _, _ in found) == sorted(sent)
        assert {body for body, redelivered, _ in found if redelivered} == set(held)
        taker.basic_ack(0, multiple=True)
        channel.basic_publish("", "held", b"after", PERSISTENT)  # two of three are a majority
    finally:
        cluster.stop()
