"""`coterie up --nodes 3` as a process, with pika connections to its brokers, and what tests do with them."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pika
from pika.adapters.blocking_connection import BlockingChannel
from pika.exceptions import AMQPError

PERSISTENT = pika.BasicProperties(delivery_mode=2)
PATIENCE = 60.0
NAMES = ("node1", "node2", "node3")


class ThreeBrokers:
    """By their names."""

    def __init__(self, folder: Path, consoles: bool = False) -> None:
        command = [
            sys.executable, "-m", "coterie", "up", "--nodes", "3", "--data", str(folder), "--port", "0",
            "--console-port", "0" if consoles else "", "--json",
        ]  # fmt: skip
        self._process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert self._process.stdout is not None
        text = ""
        while not text.endswith("\n}\n"):
            line = self._process.stdout.readline()
            assert line, "the cluster did not start"
            text += line
        nodes = json.loads(text)["nodes"]
        self.amqp = {node["name"]: int(node["amqp"][0].rpartition(":")[2]) for node in nodes}
        self.console = {node["name"]: str(node["console"]) for node in nodes if consoles}
        self.pids = {node["name"]: int(node["pid"]) for node in nodes}
        self._connections: list[pika.BlockingConnection] = []

    def connect(self, node: str, name: str = "") -> pika.BlockingConnection:
        """Now or never. `name`: what it is called in lists."""
        told = {"connection_name": name} if name else None
        parameters = pika.ConnectionParameters("127.0.0.1", self.amqp[node], client_properties=told)
        return pika.BlockingConnection(parameters)

    def channel(self, node: str, name: str = "") -> BlockingChannel:
        """On a connection of its own, of that name, as soon as that broker serves."""
        deadline = time.monotonic() + PATIENCE
        while True:
            try:
                connection = self.connect(node, name)
                break
            except (AMQPError, OSError):
                assert time.monotonic() < deadline, "the broker does not serve"
                time.sleep(0.05)  # nothing tells from outside when it will
        self._connections.append(connection)
        return connection.channel()

    def kill(self, node: str) -> None:
        os.kill(self.pids[node], signal.SIGKILL)

    def stop(self) -> None:
        for connection in self._connections:
            try:
                connection.close()
            except (AMQPError, OSError):
                pass
        self._process.terminate()
        self._process.communicate(timeout=60)


def eventually(what: str, is_so: Callable[[], bool]) -> None:
    """Ask until it is so; for what no event tells."""
    until = time.monotonic() + PATIENCE
    while not is_so():
        assert time.monotonic() < until, f"not so after {PATIENCE:g} s: {what}"
        time.sleep(0.05)


def take(channel: BlockingChannel, queue: str, count: int, prefetch: int = 0) -> list[tuple[bytes, bool, int]]:
    """So many deliveries: body, redelivered, tag."""
    if prefetch:
        channel.basic_qos(prefetch_count=prefetch)
    found: list[tuple[bytes, bool, int]] = []
    for method, _, body in channel.consume(queue, inactivity_timeout=PATIENCE):
        assert method is not None, f"{len(found)} of {count} came"
        assert body is not None
        assert method.delivery_tag is not None
        found.append((body, method.redelivered, method.delivery_tag))
        if len(found) == count:
            return found
    raise AssertionError("the queue is gone")
