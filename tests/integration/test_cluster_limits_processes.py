"""Limits of a user or vhost against clients that go to all brokers of a cluster: one after the other, and at once."""

from __future__ import annotations

import base64
import http.client
import json
import select
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import suppress

import pika
import pytest
from pika.exceptions import AMQPError, ChannelClosedByBroker, ConnectionClosedByBroker
from three_brokers import NAMES, ThreeBrokers, eventually

from coterie.amqp.server import SHED_WITHIN
from coterie.amqp.wire.codes import PROTOCOL_HEADER
from coterie.amqp.wire.methods import METHODS, decode

LIMIT = 12
"""So many that several come in at a broker before it has told the others of them."""
Held = dict[str, list[pika.BlockingConnection]]
"""Connections that were let in, by broker."""


class Waiting:
    """Has logged in, and has only to say where it goes: so many of these can go on at the same moment."""

    def __init__(self, port: int) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port), timeout=60)
        start_ok = METHODS["connection.start-ok"]
        login = start_ok.frame(0, mechanism="PLAIN", response=b"\0greedy\0greedy-secret", locale="en_US")
        self._socket.sendall(PROTOCOL_HEADER + login)
        while self.hears() != "connection.tune":
            pass
        self._socket.sendall(METHODS["connection.tune-ok"].frame(0, channel_max=10, frame_max=131_072, heartbeat=0))
        self.let_in = False

    def goes_on(self) -> None:
        self._socket.sendall(METHODS["connection.open"].frame(0, virtual_host="/"))

    def hears(self) -> str:
        """The next method."""
        head = self._take(7)
        return decode(self._take(int.from_bytes(head[3:7], "big") + 1)[:-1]).method.name

    def _take(self, size: int) -> bytes:
        found = self._socket.recv(size, socket.MSG_WAITALL)
        assert len(found) == size, "the broker closed the connection without a word"
        return found

    def stays(self) -> bool:
        """It is in, and was not put out again."""
        if self.let_in and select.select([self._socket], [], [], 0)[0]:
            assert self.hears() == "connection.close"
            self.let_in = False
        return self.let_in

    def close(self) -> None:
        self._socket.close()


def knock(port: int) -> pika.BlockingConnection:
    login = pika.PlainCredentials("greedy", "greedy-secret")
    return pika.BlockingConnection(pika.ConnectionParameters("127.0.0.1", port, "/", login))


def is_open(connection: pika.BlockingConnection) -> bool:
    """The broker has not closed it again."""
    if connection.is_open:
        with suppress(AMQPError):
            connection.process_data_events(0)
    return bool(connection.is_open)


def is_refused(port: int) -> bool:
    """By the limit. Whoever comes in before the brokers have told each other leaves again."""
    try:
        knock(port).close()
    except AMQPError as error:
        return "limit" in repr(error)
    return False


def spread(three: ThreeBrokers, held: Held) -> bool:
    """Hold as many at each broker as `held` says there are to be, and be refused by all of them. Not before the brokers
    have heard of each other: until then somebody may be let in, and another one be shut out for that."""
    for name, connections in held.items():
        for number, each in enumerate(connections):
            if not is_open(each):
                try:
                    connections[number] = knock(three.amqp[name])
                except AMQPError:
                    return False
    return all(is_refused(three.amqp[name]) for name in held) and all(
        is_open(each) for connections in held.values() for each in connections
    )


def has_channel(connection: pika.BlockingConnection) -> bool:
    """It may open one; else it is closed."""
    try:
        connection.channel()
    except ConnectionClosedByBroker:
        return False
    return True


@pytest.fixture(scope="module")
def three(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ThreeBrokers]:
    brokers = ThreeBrokers(tmp_path_factory.mktemp("limits"), consoles=True)
    put(brokers, "/api/users/greedy", {"password": "greedy-secret", "tags": ""})
    put(brokers, "/api/permissions/%2F/greedy", {"configure": ".*", "write": "", "read": ".*"})
    yield brokers
    brokers.stop()


def put(brokers: ThreeBrokers, path: str, body: object) -> None:
    connection = http.client.HTTPConnection(brokers.console["node1"], timeout=60)
    secret = base64.b64encode(b"guest:guest").decode()
    connection.request("PUT", path, json.dumps(body), {"Authorization": f"Basic {secret}"})
    assert connection.getresponse().status < 300
    connection.close()


@pytest.fixture
def of_user(three: ThreeBrokers) -> Iterator[None]:
    put(three, "/api/user-limits/greedy/max-connections", {"value": LIMIT})
    yield
    put(three, "/api/user-limits/greedy/max-connections", {"value": -1})


@pytest.mark.usefixtures("of_user")
def test_a_user_has_as_many_connections_as_it_may_and_not_so_many_at_each_broker(three: ThreeBrokers) -> None:
    rush(three, [])


@pytest.mark.usefixtures("of_user")
def test_a_rush_does_not_exceed_the_limit_by_what_has_been_open_at_the_last_broker(three: ThreeBrokers) -> None:
    old = [knock_until_let_in(three, NAMES[-1]) for _ in range(LIMIT // 2)]
    since = time.monotonic()
    eventually("they are old", lambda: time.monotonic() - since > SHED_WITHIN + 2)
    rush(three, old)


def rush(three: ThreeBrokers, old: list[pika.BlockingConnection]) -> None:
    """Into all brokers at the same moment."""
    crowd = [Waiting(three.amqp[name]) for _ in range(LIMIT) for name in NAMES]
    later: list[pika.BlockingConnection] = []
    for each in crowd:
        each.goes_on()
    for each in crowd:
        each.let_in = each.hears() == "connection.open-ok"

    def count() -> int:
        return len(old) + sum(each.stays() for each in crowd) + sum(map(is_open, later))

    def filled() -> bool:
        """It may be one too many that was put out."""
        with suppress(AMQPError):
            later.append(knock(three.amqp["node2"]))
        return count() == LIMIT and is_refused(three.amqp["node2"])

    eventually("no more than it may", lambda: count() <= LIMIT)
    eventually("as many as it may", filled)
    assert all(map(is_open, old))
    for each in crowd:
        each.close()
    for connection in [*old, *later]:
        if connection.is_open:
            connection.close()


def test_queues_that_are_declared_at_all_brokers_at_once_are_never_more_than_the_vhost_may_have(
    three: ThreeBrokers,
) -> None:
    put(three, "/api/vhost-limits/%2F/max-queues", {"value": LIMIT})
    begin = threading.Barrier(len(NAMES))
    made: list[str] = []
    refused: list[int] = []

    def declare(name: str) -> None:
        connection = knock(three.amqp[name])
        begin.wait()
        for number in range(LIMIT):
            try:
                connection.channel().queue_declare(f"{name} {number}", durable=True)
                made.append(f"{name} {number}")
            except ChannelClosedByBroker as error:
                refused.append(error.reply_code)
        connection.close()

    threads = [threading.Thread(target=declare, args=(name,)) for name in NAMES]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert len(made) == LIMIT
    assert refused == [406] * (2 * LIMIT)


def test_what_was_open_at_a_killed_broker_counts_no_more_and_everything_else_does(three: ThreeBrokers) -> None:
    """Connections in the vhost, channels of the user, connections of the user. Last: one broker is gone then."""
    of_vhost, of_user, channels = (
        "/api/vhost-limits/%2F/max-connections", "/api/user-limits/greedy/max-connections",
        "/api/user-limits/greedy/max-channels",
    )  # fmt: skip
    held: Held = {name: [knock_until_let_in(three, name)] for name in NAMES}

    def one_more_channel() -> bool:
        connection = knock(three.amqp["node1"])
        opened = has_channel(connection)
        if opened:
            connection.close()
        return opened

    put(three, of_vhost, {"value": 3})
    eventually("the fourth is refused wherever it knocks", lambda: spread(three, held))
    put(three, of_vhost, {"value": -1})
    put(three, channels, {"value": 3})
    assert all(has_channel(each) for (each,) in held.values())
    eventually("no fourth channel", lambda: not one_more_channel())
    put(three, of_user, {"value": 3})
    eventually("the fourth is refused wherever it knocks", lambda: spread(three, held))

    three.kill("node3")
    (lost,) = held.pop("node3")
    eventually("its connection is gone", lambda: not is_open(lost))
    held["node1"].append(knock_until_let_in(three, "node1"))
    eventually("the next one is refused", lambda: spread(three, held))
    put(three, of_user, {"value": -1})
    assert has_channel(held["node1"][1])  # in the place of the one that was lost
    eventually("no fourth channel", lambda: not one_more_channel())
    for each in [each for connections in held.values() for each in connections]:
        each.close()


def knock_until_let_in(three: ThreeBrokers, name: str) -> pika.BlockingConnection:
    found: list[pika.BlockingConnection] = []

    def comes() -> bool:
        with suppress(AMQPError):
            found.append(knock(three.amqp[name]))
        return bool(found)

    eventually("it is let in", comes)
    return found[0]
