"""Three `coterie node` processes, one by one: each may be killed, set up otherwise and started again."""

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
from pathlib import Path
from typing import Any

import pika
from pika.adapters.blocking_connection import BlockingChannel
from pika.exceptions import AMQPError
from three_brokers import PATIENCE

GUEST = "Basic " + base64.b64encode(b"guest:guest").decode()


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
    """By their numbers: 0, 1, 2."""

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
                "--data", str(self.data(number)), "--amqp", f"127.0.0.1:{self._amqp[number]}",
                "--console", f"127.0.0.1:{self._console[number]}", "--bind", f"127.0.0.1:{self._group[number]}",
                "--peers", ",".join(f"127.0.0.1:{port}" for port in self._group),
            ]  # fmt: skip
            with self._log_of(number).open("ab") as log:
                self._processes[number] = subprocess.Popen(
                    command, stdout=log, stderr=log, env={**os.environ, **environment}
                )

    def data(self, number: int) -> Path:
        return self._folder / f"node{number}"

    def group_port(self, number: int) -> str:
        return f"127.0.0.1:{self._group[number]}"

    def console(self, number: int) -> str:
        return f"127.0.0.1:{self._console[number]}"

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
