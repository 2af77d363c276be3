"""A real node in a process of its own, with real HTTP, real AMQP clients and the real command line."""

from __future__ import annotations

import base64
import http.client
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from types import TracebackType
from typing import IO, Any

import pika
from pika.adapters.blocking_connection import BlockingChannel
from pika.exceptions import AMQPError

GUEST = ("guest", "guest")


class Answer:
    """To one request."""

    def __init__(self, status: int, headers: Mapping[str, str], body: bytes) -> None:
        self.status = status
        self.headers = headers
        self.body = body

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def reason(self) -> str:
        """Of an error."""
        found = self.json
        assert set(found) == {"error", "reason"}, found
        return str(found["reason"])


class Running:
    """One `coterie up`, or `coterie node`."""

    def __init__(
        self,
        *arguments: str,
        environment: Mapping[str, str] | None = None,
        command: str = "up",
        log: IO[bytes] | None = None,
    ) -> None:
        """`log`: where it writes to what it logs; without one that must be little, and comes with `stop`."""
        ports = ("--port", "0") if command == "up" else ("--amqp", "127.0.0.1:0", "--console", "127.0.0.1:0")
        self._clients: list[pika.BlockingConnection] = []
        self._process = subprocess.Popen(
            [sys.executable, "-m", "coterie", command, "--json", *ports, *arguments],
            stdout=subprocess.PIPE,
            stderr=log or subprocess.PIPE,
            text=True,
            env={**os.environ, **(environment or {})},
        )
        assert self._process.stdout is not None
        text = ""
        while not text.rstrip().endswith("}"):
            line = self._process.stdout.readline()
            assert line, self._process.communicate()[1]
            text += line
        self.told: Any = json.loads(text)
        self.amqp = str(self.told["amqp"][0])
        self.console = str(self.told["console"])
        self.pid = self._process.pid
        self.probes = str(self.told["probes"])

    @staticmethod
    def refused(*arguments: str) -> str:
        """The one line with which a command refuses."""
        done = subprocess.run(
            [sys.executable, "-m", "coterie", *arguments], capture_output=True, text=True, timeout=60, check=False
        )
        assert done.returncode == 2, done.stderr
        (line,) = [line for line in done.stderr.splitlines() if line.startswith("coterie: ")]
        return line

    def ask(
        self,
        method: str,
        path: str,
        body: object = None,
        user: tuple[str, str] | None = GUEST,
        headers: Mapping[str, str] | None = None,
    ) -> Answer:
        sent = dict(headers or {})
        if user is not None:
            sent["Authorization"] = "Basic " + base64.b64encode(":".join(user).encode()).decode()
        connection = http.client.HTTPConnection(self.console, timeout=60)
        data = body if isinstance(body, bytes) or body is None else json.dumps(body)
        try:
            connection.request(method, path, data, sent)
            response = connection.getresponse()
            return Answer(response.status, dict(response.headers.items()), response.read())
        finally:
            connection.close()

    def get(self, path: str, user: tuple[str, str] | None = GUEST) -> Any:
        answer = self.ask("GET", path, user=user)
        assert answer.status == 200, (path, answer.status, answer.body)
        return answer.json

    def change(self, method: str, path: str, body: object = None, user: tuple[str, str] = GUEST) -> Answer:
        """Something that must succeed."""
        answer = self.ask(method, path, body, user)
        assert answer.status < 300, (path, answer.status, answer.body)
        return answer

    def eventually(self, look: Callable[[], bool]) -> None:
        """Statistics of others' connections come when they come; what they tell is asked for until it is so."""
        deadline = time.monotonic() + 30
        while not look():
            assert time.monotonic() < deadline, "it never came to be"

    def add_user(self, name: str, tags: str, *permissions: str, vhost: str = "%2F") -> tuple[str, str]:
        self.change("PUT", f"/api/users/{name}", {"password": f"{name}-secret", "tags": tags})
        if permissions:
            configure, write, read = permissions
            body = {"configure": configure, "write": write, "read": read}
            self.change("PUT", f"/api/permissions/{vhost}/{name}", body)
        return name, f"{name}-secret"

    def client(self, user: tuple[str, str] = GUEST, vhost: str = "/", name: str = "") -> pika.BlockingConnection:
        host, _, port = self.amqp.rpartition(":")
        parameters = pika.ConnectionParameters(
            host, int(port), vhost, pika.PlainCredentials(*user), client_properties={"connection_name": name or "test"}
        )
        client = pika.BlockingConnection(parameters)
        self._clients.append(client)
        return client

    def channel(self, user: tuple[str, str] = GUEST, vhost: str = "/") -> BlockingChannel:
        return self.client(user, vhost).channel()

    def command(
        self, *arguments: str, expect: int = 0, stdin: str = "", user: tuple[str, str] = GUEST
    ) -> subprocess.CompletedProcess[str]:
        """`coterie ...` about this node."""
        done = subprocess.run(
            [sys.executable, "-m", "coterie", *arguments],
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
            input=stdin,
            env={**os.environ, "COTERIE_URL": f"http://{user[0]}:{user[1]}@{self.console}"},
        )
        assert done.returncode == expect, (arguments, done.returncode, done.stdout, done.stderr)
        return done

    def stop(self, number: int = signal.SIGTERM) -> tuple[int, str]:
        """The exit code, and what it logged."""
        self._process.send_signal(number)
        _, errors = self._process.communicate(timeout=60)
        return self._process.returncode, errors

    def __enter__(self) -> Running:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        try:
            for client in self._clients:
                with suppress(AMQPError):  # a test may have ended it
                    if client.is_open:
                        client.close()
        finally:
            if self._process.poll() is None:
                self.stop(signal.SIGKILL)
