"""Real brokers that are killed all at once: in whatever order they come back, nothing is lost, and they serve soon."""

from __future__ import annotations

import base64
import http.client
import json
import os
import random
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pika
import pytest
from pika.adapters.blocking_connection import BlockingChannel
from pika.exceptions import AMQPError
from three_brokers import PATIENCE, PERSISTENT, eventually, take

GUEST = "Basic " + base64.b64encode(b"guest:guest").decode()
SOON = 30.0
"""Seconds until brokers with their stores serve again, on a machine that has much else to do."""
COUNT = 300


def free_ports(count: int) -> list[int]:
    """Below those that the system gives to whoever asks for any: nobody else gets one while its broker is dead."""
    found: list[int] = []
    dice = random.SystemRandom()
    while len(found) < count:
        port = dice.randrange(15_000, 32_000)
        with socket.socket() as probe:
            if port not in found and probe.connect_ex(("127.0.0.1", port)):
                found.append(port)
    return found


class Nodes:
    """Three `coterie node` processes, each of which may be killed and started again."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        folder.mkdir(exist_ok=True)
        ports = free_ports(9)
        self._group, self._amqp, self._console = ports[:3], ports[3:6], ports[6:]
        self._processes: dict[int, subprocess.Popen[bytes]] = {}

    def start(self, *numbers: int, **environment: str) -> None:
        for number in numbers:
            command = [
                sys.executable, "-m", "coterie", "node", "--name", f"node{number}", "--cluster-size", "3",
                "--data", str(self._folder / f"node{number}"), "--amqp", f"127.0.0.1:{self._amqp[number]}",
                "--console", f"127.0.0.1:{self._console[number]}", "--bind", f"127.0.0.1:{self._group[number]}",
                "--peers", ",".join(f"127.0.0.1:{port}" for port in self._group),
            ]  # fmt: skip
            with self._log_of(number).open("ab") as log:
                self._processes[number] = subprocess.Popen(
                    command, stdout=log, stderr=log, env={**os.environ, **environment}
                )

    def _log_of(self, number: int) -> Path:
        return self._folder / f"node{number}.log"

    def log(self, number: int) -> str:
        return self._log_of(number).read_text()

    def kill(self, *numbers: int) -> None:
        for number in numbers:
            self._processes[number].kill()
        for number in numbers:
            self._processes.pop(number).wait(PATIENCE)

    def status(self, number: int) -> dict[str, Any]:
        """Nothing: nobody answers yet."""
        connection = http.client.HTTPConnection("127.0.0.1", self._console[number], timeout=PATIENCE)
        try:
            connection.request("GET", "/api/cluster", headers={"Authorization": GUEST})
            answer = connection.getresponse()
            found = json.loads(answer.read())
            return found if answer.status == 200 else {}
        except OSError:
            return {}
        finally:
            connection.close()

    def state(self, number: int) -> str:
        return str(self.status(number).get("state"))

    def channel(self, number: int) -> BlockingChannel:
        """As soon as it serves."""
        until = time.monotonic() + PATIENCE
        while True:
            try:
                parameters = pika.ConnectionParameters("127.0.0.1", self._amqp[number])
                return pika.BlockingConnection(parameters).channel()
            except (AMQPError, OSError):
                assert time.monotonic() < until, self.log(number)[-2000:]
                time.sleep(0.05)  # nothing tells from outside when it will

    def stop(self) -> None:
        self.kill(*self._processes)


@pytest.fixture
def nodes(tmp_path: Path) -> Iterator[Nodes]:
    three = Nodes(tmp_path / "nodes")
    three.start(0, 1, 2)
    yield three
    three.stop()


def publish(nodes: Nodes) -> list[bytes]:
    channel = nodes.channel(0)
    channel.confirm_delivery()
    channel.queue_declare("kept", durable=True)
    sent = [b"%d" % number for number in range(COUNT)]
    for body in sent:
        channel.basic_publish("", "kept", body, PERSISTENT)
    channel.connection.close()
    return sent


def found(nodes: Nodes, number: int) -> list[bytes]:
    channel = nodes.channel(number)
    bodies = [body for body, _, _ in take(channel, "kept", COUNT)]
    channel.connection.close()
    return bodies


def test_brokers_that_are_all_killed_come_back_in_any_order_and_one_dies_again_meanwhile(nodes: Nodes) -> None:
    sent = publish(nodes)
    nodes.kill(0, 1, 2)
    nodes.start(2, 0)
    began = time.monotonic()
    eventually("two of them serve", lambda: nodes.state(2) == nodes.state(0) == "serving")
    assert time.monotonic() - began < SOON
    nodes.start(1)
    eventually("the third is heard of", lambda: nodes.state(1) in ("joining", "catching up", "serving"))
    nodes.kill(2)  # perhaps it is bringing the third up to date
    eventually("the others serve", lambda: nodes.state(0) == nodes.state(1) == "serving")
    assert found(nodes, 1) == sent
    nodes.kill(0, 1)
    nodes.start(1, 2)
    began = time.monotonic()
    eventually("two of them serve", lambda: "serving" in (nodes.state(1), nodes.state(2)))
    assert time.monotonic() - began < SOON
    nodes.start(0)
    eventually("all of them serve", lambda: all(nodes.state(number) == "serving" for number in range(3)))
    assert found(nodes, 2) == sent


def test_one_with_another_dispatch_is_refused_and_says_so(nodes: Nodes) -> None:
    sent = publish(nodes)
    nodes.kill(0, 1, 2)
    nodes.start(2, COTERIE_CLUSTER_DISPATCH="ownership")
    eventually("it waits", lambda: nodes.state(2) == "joining")
    nodes.start(0, 1)
    eventually("the others serve", lambda: nodes.state(0) == nodes.state(1) == "serving")
    assert found(nodes, 1) == sent
    eventually("it knows why", lambda: "its cluster.dispatch is ownership" in str(nodes.status(2).get("why")))
    assert "the cluster refuses this broker" in nodes.log(2)
    assert any("a broker is refused" in nodes.log(number) for number in (0, 1))
    nodes.kill(2)
    nodes.start(2)
    eventually("it is let in", lambda: nodes.state(2) == "serving")
