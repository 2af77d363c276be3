"""Brokers of a cluster as processes of their own on this machine, through all of their lives.

Ports and folders stay what they are, so that a broker which was killed comes back as the same one.
"""

from __future__ import annotations

import asyncio
import json
import resource
import signal
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from coterie.errors import CoterieError
from coterie.workers import free_ports

START_TIMEOUT = 60.0
STOP_TIMEOUT = 45.0


class Broker:
    """One of them; `start` it again after `kill`."""

    def __init__(self, number: int, port: int, arguments: Sequence[str], log: Path) -> None:
        self.number = number
        self.name = f"node{number + 1}"
        self.port = port
        """Of AMQP."""
        self.console = ""
        """Of HTTP; empty: it has none."""
        self.log = log
        """What all of its lives wrote to standard error."""
        self.environment: Mapping[str, str] | None = None
        """Of its next life; None: ours."""
        self._arguments = arguments
        self._process: asyncio.subprocess.Process | None = None
        self._copying: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Returns when clients can knock; it serves when it lets them in."""
        command = [sys.executable, "-m", "coterie", "node", "--json", "--name", self.name, *self._arguments]
        pipe = asyncio.subprocess.PIPE
        self._process = process = await asyncio.create_subprocess_exec(
            *command, stdout=pipe, stderr=pipe, env=self.environment
        )
        self._copying = asyncio.create_task(self._copy(process))
        assert process.stdout is not None
        text = b""
        try:
            async with asyncio.timeout(START_TIMEOUT):
                while not text.endswith(b"}\n"):
                    line = await process.stdout.readline()
                    if not line:
                        await self._copying
                        raise CoterieError(f"{self.name} did not start: see {self.log}")
                    text += line
        except TimeoutError:
            raise CoterieError(f"{self.name} did not start in {START_TIMEOUT:g} s: see {self.log}") from None
        told = json.loads(text)
        self.port = int(told["amqp"][0].rpartition(":")[2])
        self.console = told["console"] or ""

    async def _copy(self, process: asyncio.subprocess.Process) -> None:
        """By a pipe, so that a limit on the sizes of the broker's files is none on its log."""
        assert process.stderr is not None
        with self.log.open("ab", buffering=0) as file:
            while data := await process.stderr.read(65536):
                file.write(data)

    @property
    def runs(self) -> bool:
        return self._process is not None and self._process.returncode is None

    def send(self, number: signal.Signals) -> None:
        assert self._process is not None
        self._process.send_signal(number)

    def limit_files(self, size: int | None) -> None:
        """No file of it may grow beyond this: to the broker the disk is full. None: no limit any more."""
        assert self._process is not None
        hard = resource.prlimit(self._process.pid, resource.RLIMIT_FSIZE)[1]
        resource.prlimit(self._process.pid, resource.RLIMIT_FSIZE, (hard if size is None else size, hard))

    async def kill(self) -> None:
        """With -9."""
        self.send(signal.SIGKILL)
        await self._ended()

    async def stop(self) -> int:
        """In good order; gives the exit code."""
        process = self._process
        if process is None or not self.runs:
            return 0
        self.send(signal.SIGTERM)
        try:
            async with asyncio.timeout(STOP_TIMEOUT):
                await self._ended()
        except TimeoutError:
            await self.kill()
        return process.returncode or 0

    async def _ended(self) -> None:
        assert self._process is not None
        assert self._copying is not None
        await self._process.wait()
        await self._copying
        assert self._process.stdout is not None
        await self._process.stdout.read()  # to its end: a pipe that is still open complains when the loop is gone


class Brokers:
    """All of them. `folder` has their data and logs."""

    def __init__(
        self,
        count: int,
        folder: Path,
        more: Sequence[str] = (),
        trace: Path | None = None,
        hosts: Sequence[str] | None = None,
        consoles: bool = False,
    ) -> None:
        """`hosts`: where the others reach each of them, if not at its own address; with the same port. `consoles`: each
        has one."""
        ports = free_ports(2 * count)
        amqp, self.between = ports[:count], ports[count:]
        reached = ["127.0.0.1"] * count if hosts is None else hosts
        peers = ",".join(f"{host}:{port}" for host, port in zip(reached, self.between, strict=True))
        self.each: list[Broker] = []
        for number in range(count):
            arguments = [
                "--amqp", f"127.0.0.1:{amqp[number]}", "--console", "127.0.0.1:0" if consoles else "",
                "--probes", "",
                "--bind", f"127.0.0.1:{self.between[number]}",
                "--peers", peers, "--cluster-size", str(count), "--data", str(folder / f"node{number + 1}"), *more,
            ]  # fmt: skip
            if hosts is not None:
                arguments += ["--advertise", hosts[number]]
            if trace is not None:
                arguments += ["--trace", str(trace)]
            self.each.append(Broker(number, amqp[number], arguments, folder / f"node{number + 1}.log"))

    async def start(self) -> None:
        await asyncio.gather(*(broker.start() for broker in self.each))

    async def stop(self) -> list[int]:
        """In good order."""
        return await asyncio.gather(*(broker.stop() for broker in self.each))

    async def end(self) -> None:
        """At once: whatever happened, no process stays."""
        await asyncio.gather(*(broker.kill() for broker in self.each if broker.runs))
