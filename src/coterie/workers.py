"""Child processes of a command (a benchmark, the demo): told what to do, and answering, by a line of JSON each way.

A worker runs until its standard input ends.
"""

from __future__ import annotations

import asyncio
import json
import random
import resource
import socket
import subprocess
import sys
from collections.abc import Sequence
from itertools import chain, repeat
from types import TracebackType
from typing import Any

from coterie.errors import CoterieError

Message = dict[str, Any]
"""JSON between a command and its own workers."""


class Worker:
    """A child process, seen from the command."""

    def __init__(self, module: str, arguments: Message, spared: bool = False) -> None:
        """`spared`: Ctrl-C is for the command alone, which ends its workers."""
        self._process = subprocess.Popen(
            [sys.executable, "-m", module, json.dumps(arguments)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=spared,
        )

    @property
    def pid(self) -> int:
        return self._process.pid

    def memory(self) -> float:
        """Resident memory just now, in MiB."""
        with open(f"/proc/{self.pid}/statm") as file:
            return int(file.read().split()[1]) * resource.getpagesize() / 2**20

    def tell(self, message: Message) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(message) + "\n")
        self._process.stdin.flush()

    def hear(self) -> Message:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            code = self._process.wait()
            raise CoterieError(f"a process of this command ended with code {code}: see its messages above")
        answer: Message = json.loads(line)
        return answer

    def kill(self) -> None:
        """kill -9."""
        self._process.kill()
        self._process.wait()

    def end(self) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        try:
            self._process.stdin.close()
        except BrokenPipeError:
            pass
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process.stdout.close()


class Workers:
    """Several workers that do one thing together; all of them end with the `with` block."""

    def __init__(self, module: str, arguments: Sequence[Message]) -> None:
        self.each = [Worker(module, entry) for entry in arguments]

    def connect(self) -> None:
        """Wait until all have started, then until all are connected with each other."""
        for worker in self.each:
            worker.hear()
        self.go({"connect": True})

    def go(self, order: Message) -> list[Message]:
        """Tell all, then wait for all their figures."""
        for worker in self.each:
            worker.tell(order)
        return [worker.hear() for worker in self.each]

    def __enter__(self) -> Workers:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        for worker in self.each:
            worker.end()


class Command:
    """The command, seen from a worker."""

    def __init__(self, reader: asyncio.StreamReader) -> None:
        self._reader = reader

    @classmethod
    async def attach(cls) -> Command:
        reader = asyncio.StreamReader()
        loop = asyncio.get_running_loop()
        await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
        return cls(reader)

    async def order(self) -> Message | None:
        """What to do next; None when there is nothing more."""
        line = await self._reader.readline()
        order: Message | None = json.loads(line) if line else None
        return order

    @staticmethod
    def answer(message: Message) -> None:
        print(json.dumps(message), flush=True)


def free_ports(count: int) -> list[int]:
    """Ports on loopback that nobody uses just now, and that no outgoing connection will have by chance.

    Between this and the moment in which somebody listens there, or while that one is restarted, any other process might
    connect somewhere, and the system would give it a port out of its range for that: these are below it.
    """
    candidates = chain(random.sample(_spared(), k=min(len(_spared()), 100 * count)), repeat(0, count))
    sockets: list[socket.socket] = []
    try:
        for port in candidates:
            if len(sockets) == count:
                break
            each = socket.socket()
            try:
                each.bind(("127.0.0.1", port))
                sockets.append(each)
            except OSError:
                each.close()
        return [each.getsockname()[1] for each in sockets]
    finally:
        for each in sockets:
            each.close()


def _spared() -> range:
    """What the system gives to nobody, as far as that can be told."""
    try:
        with open("/proc/sys/net/ipv4/ip_local_port_range") as file:
            lowest = int(file.read().split()[0])
    except OSError:
        return range(0)
    return range(max(10_000, lowest - 20_000), lowest)
