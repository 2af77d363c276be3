"""A real broker for the tests of `format("coterie")`: `coterie node` as a process, and a pika channel to it."""

from __future__ import annotations

import base64
import json
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pika
from pika.adapters.blocking_connection import BlockingChannel


class Broker:
    """One that serves, from its beginning to its end."""

    def __init__(self, folder: Path, *flags: str) -> None:
        command = [
            sys.executable,
            "-m",
            "coterie",
            "node",
            "--json",
            "--amqp",
            "127.0.0.1:0",
            "--console",
            "127.0.0.1:0",
        ]
        with folder.with_suffix(".log").open("w") as log:
            self._process = subprocess.Popen(
                [*command, "--data", str(folder), *flags], stdout=subprocess.PIPE, stderr=log, text=True
            )
        assert self._process.stdout is not None
        text = ""
        while not text.rstrip().endswith("}"):
            line = self._process.stdout.readline()
            assert line, "the broker did not start"
            text += line
        told = json.loads(text)
        self.amqp = str(told["amqp"][0]).rpartition("//")[2]
        self.console = str(told["console"])
        self._connection = pika.BlockingConnection(pika.URLParameters(f"amqp://guest:guest@{self.amqp}/?heartbeat=0"))
        self.channel: BlockingChannel = self._connection.channel()

    def declare(self, queue: str, **arguments: Any) -> None:
        given = {f"x-{name.replace('_', '-')}": value for name, value in arguments.items()}
        self.channel.queue_declare(queue, durable=True, arguments=given)

    def count(self, queue: str) -> int:
        return int(self.channel.queue_declare(queue, passive=True).method.message_count)

    def queue(self, name: str) -> dict[str, Any]:
        """What the HTTP API says of it."""
        request = urllib.request.Request(f"http://{self.console}/api/queues/%2F/{name}")
        request.add_header("Authorization", "Basic " + base64.b64encode(b"guest:guest").decode())
        with urllib.request.urlopen(request, timeout=30) as answer:
            found = json.load(answer)
        assert isinstance(found, dict)
        return found

    def take(self, queue: str) -> list[tuple[pika.BasicProperties, bytes]]:
        """Everything that is ready."""
        found: list[tuple[pika.BasicProperties, bytes]] = []
        while True:
            method, properties, body = self.channel.basic_get(queue, auto_ack=True)
            if method is None or properties is None or body is None:
                return found
            found.append((properties, body))

    def stop(self) -> None:
        try:
            self._connection.close()
        finally:
            self._process.terminate()
            self._process.communicate(timeout=60)


@contextmanager
def broker(folder: Path, *flags: str) -> Iterator[Broker]:
    found = Broker(folder, *flags)
    try:
        yield found
    finally:
        found.stop()
