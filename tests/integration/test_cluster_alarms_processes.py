"""Three brokers as real processes: a disk that takes nothing at one of them, or no memory; publishers that are refused;
messages whose time is over."""

from __future__ import annotations

import resource
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pika
import pytest
from pika.exceptions import NackError
from three_brokers import PATIENCE, PERSISTENT, ThreeBrokers, take
from three_nodes import Nodes

BODY = b"." * 100_000


@pytest.fixture(scope="module")
def three(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ThreeBrokers]:
    cluster = ThreeBrokers(tmp_path_factory.mktemp("three"))
    yield cluster
    cluster.stop()


def memory_of(pid: int) -> int:
    """Bytes that a process has in memory."""
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * resource.getpagesize()


def test_a_full_queue_nacks_exactly_what_it_did_not_take(three: ThreeBrokers) -> None:
    channel = three.channel("node1")
    channel.queue_declare("strict", durable=True, arguments={"x-max-length": 180, "x-overflow": "reject-publish"})
    channel.confirm_delivery()
    nacked = []
    for number in range(200):
        try:
            channel.basic_publish("", "strict", b"x", PERSISTENT)
        except NackError:
            nacked.append(number)
    assert nacked == list(range(180, 200))
    assert channel.queue_declare("strict", passive=True).method.message_count == 180


def test_also_those_of_several_connections_at_once(three: ThreeBrokers) -> None:
    """Each sends all of its messages in one write, so that they share events with those of the others."""
    three.channel("node1").queue_declare("narrow", arguments={"x-max-length": 100, "x-overflow": "reject-publish"})
    three.channel("node1").queue_declare("wide")
    answers: dict[str, list[bool]] = {}
    threads = [
        threading.Thread(target=_publish_all, args=(three, queue, f"{queue}{number}", answers))
        for queue in ("narrow", "wide")
        for number in range(3)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE)
    taken = {name: sum(each) for name, each in answers.items()}
    assert sum(count for name, count in taken.items() if name.startswith("narrow")) == 100
    assert [count for name, count in taken.items() if name.startswith("wide")] == [100] * 3
    channel = three.channel("node2")
    assert channel.queue_declare("narrow", passive=True).method.message_count == 100
    assert channel.queue_declare("wide", passive=True).method.message_count == 300


def _publish_all(three: ThreeBrokers, queue: str, name: str, answers: dict[str, list[bool]]) -> None:
    """100 messages without waiting in between; then whether each was taken."""
    found: dict[int, bool] = {}

    def settled(frame: pika.frame.Method[pika.spec.Basic.Ack | pika.spec.Basic.Nack]) -> None:
        method = frame.method
        first = method.delivery_tag if not method.multiple else max(found, default=0) + 1
        for tag in range(first, method.delivery_tag + 1):
            found.setdefault(tag, isinstance(method, pika.spec.Basic.Ack))
        if len(found) == 100:
            connection.close()

    def opened(channel: pika.channel.Channel) -> None:
        channel.confirm_delivery(settled)
        for _ in range(100):
            channel.basic_publish("", queue, b"x")

    parameters = pika.ConnectionParameters("127.0.0.1", three.amqp["node1"])
    connection = pika.SelectConnection(
        parameters,
        on_open_callback=lambda _: connection.channel(on_open_callback=opened),
        on_close_callback=lambda _, __: connection.ioloop.stop(),
    )
    connection.ioloop.start()
    connection.ioloop.close()
    answers[name] = [found[tag] for tag in sorted(found)]


def test_a_full_disk_at_one_broker_stops_publishers_at_all_and_its_memory_stays_bounded(tmp_path: Path) -> None:
    cluster = ThreeBrokers(tmp_path / "full")
    try:
        channel = cluster.channel("node2")
        channel.queue_declare("q", durable=True)
        channel.confirm_delivery()
        channel.basic_publish("", "q", BODY, PERSISTENT)
        ill = cluster.pids["node3"]
        before = memory_of(ill)
        take_nothing(ill, True)
        reasons: list[str] = []
        over = threading.Event()
        publisher = cluster.connect("node1")
        publisher.add_on_connection_blocked_callback(lambda _, frame: reasons.append(frame.method.reason))
        publisher.add_on_connection_unblocked_callback(lambda _, __: over.set())
        flooding = publisher.channel()
        sent = 0
        while not reasons and sent < 1000:
            flooding.basic_publish("", "q", BODY, PERSISTENT)
            publisher.process_data_events(0.01)
            sent += 1
        assert reasons == ["low on disk at node3"], f"after {sent} messages"
        for number in range(300):  # what no alarm stops goes on, and is to be written too
            channel.queue_declare(f"q{number}", durable=True)
            channel.queue_delete(f"q{number}")
            assert memory_of(ill) - before < 64 << 20
        take_nothing(ill, False)
        deadline = time.monotonic() + PATIENCE
        while not over.is_set():
            assert time.monotonic() < deadline, "publishers are never told that they may go on"
            publisher.process_data_events(0.1)
        flooding.basic_publish("", "q", BODY, PERSISTENT)
        publisher.process_data_events(0.1)
        found = take(cluster.channel("node3"), "q", 2 + sent)
        assert {body for body, _, _ in found} == {BODY}
        publisher.close()
    finally:
        cluster.stop()


def test_with_full_disks_at_two_of_three_nothing_is_confirmed_until_they_take_something_again(tmp_path: Path) -> None:
    cluster = ThreeBrokers(tmp_path / "full")
    try:
        careful = cluster.channel("node1")
        careful.queue_declare("q", durable=True)
        careful.confirm_delivery()
        for name in ("node2", "node3"):
            take_nothing(cluster.pids[name], True)
        waiting = threading.Thread(target=careful.basic_publish, args=("", "q", BODY, PERSISTENT))
        waiting.start()
        reasons: list[str] = []
        over = threading.Event()
        publisher = cluster.connect("node1")
        publisher.add_on_connection_blocked_callback(lambda _, frame: reasons.append(frame.method.reason))
        publisher.add_on_connection_unblocked_callback(lambda _, __: over.set())
        flooding = publisher.channel()
        sent = 1
        while not reasons and sent < 1000:
            flooding.basic_publish("", "q", BODY, PERSISTENT)
            publisher.process_data_events(0.01)
            sent += 1
        assert reasons, f"after {sent} messages publishers go on"
        waiting.join(1.0)
        assert waiting.is_alive(), "one disk is no majority"
        for name in ("node2", "node3"):
            take_nothing(cluster.pids[name], False)
        waiting.join(PATIENCE)
        assert not waiting.is_alive(), "what is on a majority of the disks is not confirmed"
        deadline = time.monotonic() + PATIENCE
        while not over.is_set():
            assert time.monotonic() < deadline, "publishers are never told that they may go on"
            publisher.process_data_events(0.1)
        publisher.close()
        assert len(take(cluster.channel("node3"), "q", sent)) == sent
    finally:
        cluster.stop()


def test_a_broker_that_is_low_on_memory_stops_publishers_at_all(tmp_path: Path) -> None:
    nodes = Nodes(tmp_path / "nodes")
    nodes.start(0, 1)
    nodes.start(2, COTERIE_BROKER_MEMORY_HIGH="1000000")
    try:
        channel = nodes.channel(0)
        channel.queue_declare("q")
        reasons: list[str] = []
        over = threading.Event()
        publisher = nodes.channel(1).connection
        publisher.add_on_connection_blocked_callback(lambda _, frame: reasons.append(frame.method.reason))
        publisher.add_on_connection_unblocked_callback(lambda _, __: over.set())
        flooding = publisher.channel()
        deadline = time.monotonic() + PATIENCE
        while not reasons:
            assert time.monotonic() < deadline, "publishers elsewhere go on"
            flooding.basic_publish("", "q", BODY)
            publisher.process_data_events(0.05)
        assert reasons == ["low on memory at node2"]
        channel.queue_purge("q")
        while not over.is_set():
            assert time.monotonic() < deadline, "publishers are never told that they may go on"
            publisher.process_data_events(0.1)
        publisher.close()
        channel.connection.close()
    finally:
        nodes.stop()


def test_what_has_expired_behind_a_live_message_is_given_to_nobody(three: ThreeBrokers) -> None:
    """Each time passes at a broker of its own, and is looked at by another one."""
    channel = three.channel("node1")
    channel.queue_declare("stale", durable=True)
    channel.confirm_delivery()
    channel.basic_publish("", "stale", b"lives", PERSISTENT)
    channel.basic_publish("", "stale", b"dies", pika.BasicProperties(delivery_mode=2, expiration="100"))
    channel.queue_declare("clock", arguments={"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "bell"})
    channel.queue_declare("bell")
    channel.basic_publish("", "clock", b"", pika.BasicProperties(expiration="300"))
    take(three.channel("node2"), "bell", 1)  # by then its time is over, for every broker
    channel.basic_publish("", "stale", b"later", PERSISTENT)
    assert [body for body, _, _ in take(three.channel("node3"), "stale", 2)] == [b"lives", b"later"]


def take_nothing(pid: int, nothing: bool) -> None:
    """The disk takes not a byte more of what that process writes, or everything again."""
    _, hard = resource.prlimit(pid, resource.RLIMIT_FSIZE)
    resource.prlimit(pid, resource.RLIMIT_FSIZE, (0 if nothing else hard, hard))
