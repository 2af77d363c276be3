"""Replication between real nodes, with pika on both: acks, cuts, and kills of either side in the middle."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pika
import pytest
from node_process import PATIENCE, Cable, NodeProcess, eventually
from pika.adapters.blocking_connection import BlockingChannel
from pika.exceptions import AMQPError, ChannelClosedByBroker, NackError

PERSISTENT = pika.BasicProperties(delivery_mode=2, headers={"kind": "order"})
QUICK = ("--replication-queues", "^r", "--replication-retry-max", "1", "--replication-look-interval", "0.1")


def password(folder: Path, text: str) -> tuple[str, str]:
    """In a file, as a link wants it."""
    file = folder / "password"
    file.touch(0o600)
    file.write_text(f"{text}\n")
    return "--replication-password-file", str(file)


class Pair:
    """A source whose queues that begin with r are replicated to a target, over a cable."""

    def __init__(self, folder: Path) -> None:
        self.target = NodeProcess(folder / "target")
        self.target.start()
        self.cable = Cable(self.target.port)
        to = f"amqp://guest@127.0.0.1:{self.cable.port}/"
        self.source = NodeProcess(folder / "source", "--replication-to", to, *password(folder, "guest"), *QUICK)
        self.source.start()
        self._connections: list[pika.BlockingConnection] = []

    def channel(self, node: NodeProcess) -> BlockingChannel:
        connection = pika.BlockingConnection(pika.URLParameters(node.url))
        self._connections.append(connection)
        channel = connection.channel()
        channel.confirm_delivery()
        return channel

    def count(self, node: NodeProcess, queue: str = "r") -> int:
        """Ready ones; -1: there is no such queue."""
        with pika.BlockingConnection(pika.URLParameters(node.url)) as connection:
            try:
                return connection.channel().queue_declare(queue, passive=True).method.message_count
            except ChannelClosedByBroker:
                return -1

    def bodies(self, node: NodeProcess, queue: str = "r") -> list[bytes]:
        """Everything that is ready, and it stays."""
        found: list[bytes] = []
        with pika.BlockingConnection(pika.URLParameters(node.url)) as connection:
            channel = connection.channel()
            while True:
                method, _, body = channel.basic_get(queue)
                if method is None:
                    return found
                assert body is not None
                found.append(body)

    def until_same(self, queue: str = "r") -> None:
        wanted = self.bodies(self.source, queue)
        eventually("as many there as here", lambda: self.count(self.target, queue) == len(wanted))
        assert self.bodies(self.target, queue) == wanted

    def end(self) -> None:
        for connection in self._connections:
            if connection.is_open:
                connection.close()
        for node in (self.source, self.target):
            node.__exit__(None, None, None)
        self.cable.__exit__(None, None, None)


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[Pair]:
    made = Pair(tmp_path)
    yield made
    made.end()


class Busy:
    """A client of the source that publishes and acks without an end, and remembers what was confirmed."""

    def __init__(self, pair: Pair) -> None:
        self.pair = pair
        self.confirmed: list[bytes] = []
        self.acked: set[bytes] = set()
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._work)
        self._thread.start()

    def _work(self) -> None:
        number = 0
        while not self._stopping.is_set():
            try:
                channel = self.pair.channel(self.pair.source)
                channel.queue_declare("r", durable=True)
                while not self._stopping.is_set():
                    number += 1
                    body = b"%d" % number
                    channel.basic_publish("", "r", body, PERSISTENT)
                    self.confirmed.append(body)
                    if number % 3 == 0:
                        method, _, taken = channel.basic_get("r")
                        if method is not None and taken is not None:
                            channel.basic_ack(method.delivery_tag or 0)
                            self.acked.add(taken)
            except (AMQPError, OSError):
                self._stopping.wait(0.05)  # it was killed, and will be back

    def until(self, count: int) -> None:
        eventually(f"{count} are confirmed", lambda: len(self.confirmed) >= count)

    def stop(self) -> None:
        self._stopping.set()
        self._thread.join(PATIENCE)


def test_acks_and_messages_reach_the_other_node_with_their_properties(pair: Pair) -> None:
    channel = pair.channel(pair.source)
    channel.queue_declare("r", durable=True, arguments={"x-max-priority": 3})
    channel.queue_declare("other", durable=True)
    for number in range(300):
        channel.basic_publish("", "r", b"%d" % number, PERSISTENT)
        channel.basic_publish("", "other", b"x", PERSISTENT)
    eventually("300 there", lambda: pair.count(pair.target) == 300)
    assert pair.count(pair.target, "other") == -1
    for method, _, body in channel.consume("r", inactivity_timeout=PATIENCE):
        assert method is not None
        channel.basic_ack(method.delivery_tag or 0)
        if body == b"99":
            break
    channel.cancel()
    eventually("200 there", lambda: pair.count(pair.target) == 200)
    reader = pair.channel(pair.target)
    reader.queue_declare("r", durable=True, arguments={"x-max-priority": 3})  # the same declaration holds there
    _, properties, body = reader.basic_get("r")
    assert body == b"100"
    assert properties is not None
    assert properties.headers == {"kind": "order"}
    with pytest.raises(NackError):
        reader.basic_publish("", "r", b"a publisher of the other side", PERSISTENT)


def test_what_happens_while_the_link_is_down_is_made_up_for(pair: Pair) -> None:
    channel = pair.channel(pair.source)
    channel.queue_declare("r", durable=True)
    for number in range(100):
        channel.basic_publish("", "r", b"%d" % number, PERSISTENT)
    eventually("100 there", lambda: pair.count(pair.target) == 100)
    pair.target.stop()
    for number in range(100, 200):
        channel.basic_publish("", "r", b"%d" % number, PERSISTENT)
    for _ in range(150):
        method, _, _ = channel.basic_get("r", auto_ack=True)
        assert method is not None
    pair.target.start()
    eventually("50 there", lambda: pair.count(pair.target) == 50)
    assert pair.bodies(pair.target) == [b"%d" % number for number in range(150, 200)]


@pytest.mark.parametrize("victim", ["source", "target", "cable"])
def test_after_kills_under_load_everything_is_there_exactly_once(pair: Pair, victim: str) -> None:
    busy = Busy(pair)
    for goal in (150, 300, 450):
        busy.until(goal)
        if victim == "cable":
            pair.cable.cut()
            continue
        node = pair.source if victim == "source" else pair.target
        node.kill()
        node.start()
    busy.until(600)
    busy.stop()
    pair.until_same()
    there = pair.bodies(pair.target)
    assert len(there) == len(set(there))
    assert {*busy.confirmed} - busy.acked <= {*there}


def test_a_wrong_password_is_told_with_what_to_do(tmp_path: Path) -> None:
    with NodeProcess(tmp_path / "target") as target:
        to = f"amqp://guest@127.0.0.1:{target.port}/"
        wrong = password(tmp_path, "mistaken")
        with NodeProcess(tmp_path / "source", "--replication-to", to, *wrong, *QUICK) as source:
            eventually("it is logged", lambda: "check user and password" in source.log.read_text())
            assert "mistaken" not in source.log.read_text()
