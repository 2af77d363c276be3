"""A user with a limit of connections tries to have more of them, at all brokers of a cluster at once."""

from __future__ import annotations

import base64
import http.client
import json
import threading
from collections.abc import Iterator
from pathlib import Path

import pika
import pytest
from pika.exceptions import AMQPError
from three_brokers import NAMES, ThreeBrokers, eventually

LIMIT = 4


class Greedy(threading.Thread):
    """Opens as many as it can at one broker."""

    def __init__(self, port: int, start: threading.Barrier) -> None:
        super().__init__()
        self.port = port
        self.begin = start
        self.open: list[pika.BlockingConnection] = []
        self.refused = 0

    def run(self) -> None:
        self.begin.wait()
        for _ in range(LIMIT + 1):
            credentials = pika.PlainCredentials("greedy", "greedy-secret")
            try:
                self.open.append(
                    pika.BlockingConnection(pika.ConnectionParameters("127.0.0.1", self.port, "/", credentials))
                )
            except AMQPError:
                self.refused += 1

    def left(self) -> int:
        """Those that the broker has not closed again."""
        found = 0
        for each in [each for each in self.open if each.is_open]:
            try:
                each.process_data_events(0)
                found += each.is_open
            except AMQPError:
                pass
        return found


@pytest.fixture
def three(tmp_path: Path) -> Iterator[ThreeBrokers]:
    brokers = ThreeBrokers(tmp_path, consoles=True)
    yield brokers
    brokers.stop()


def put(brokers: ThreeBrokers, path: str, body: object) -> None:
    connection = http.client.HTTPConnection(brokers.console["node1"], timeout=60)
    secret = base64.b64encode(b"guest:guest").decode()
    connection.request("PUT", path, json.dumps(body), {"Authorization": f"Basic {secret}"})
    assert connection.getresponse().status < 300
    connection.close()


def test_a_user_has_as_many_connections_as_it_may_and_not_so_many_at_each_broker(three: ThreeBrokers) -> None:
    put(three, "/api/users/greedy", {"password": "greedy-secret", "tags": ""})
    put(three, "/api/permissions/%2F/greedy", {"configure": "", "write": "", "read": ""})
    put(three, "/api/user-limits/greedy/max-connections", {"value": LIMIT})
    begin = threading.Barrier(len(NAMES))
    threads = [Greedy(three.amqp[name], begin) for name in NAMES]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert sum(len(thread.open) + thread.refused for thread in threads) == 3 * (LIMIT + 1)
    eventually("no more than it may", lambda: sum(thread.left() for thread in threads) <= LIMIT)
    assert sum(thread.left() for thread in threads) >= 1
    again = Greedy(three.amqp["node2"], threading.Barrier(1))
    again.start()
    again.join(60)
    everybody = [*threads, again]
    assert sum(thread.left() for thread in everybody) == LIMIT
    for thread in everybody:
        for each in thread.open:
            if each.is_open:
                each.close()
