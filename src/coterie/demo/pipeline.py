"""Spark in the broker's demonstration, as the story sees it: a process that is started early and asked at the end.

Where it does not start the story is told all the same, and `why_not` says what is in the way. What goes wrong later is
`broken`.
"""

from __future__ import annotations

import asyncio
import json
import signal
import sys
from dataclasses import asdict, dataclass
from pathlib import Path

from coterie.workers import Message

PROCESS = "coterie.demo.pipeline_process"
PATIENCE = 240.0
"""Seconds that Spark has to start, and again to do its work; ten are usual."""


@dataclass(frozen=True)
class Work:
    """What is to be done."""

    servers: list[str]
    """Consoles of the brokers, which the stream reads from."""
    brokers: list[str]
    """The same brokers for AMQP, which alerts are published to."""
    good: int
    """Euros that are worth an alert."""
    sales: str
    """A folder for Parquet files."""
    checkpoint: str
    confirmed: str
    """A file with the ids of the orders that must be there, one in a line."""


@dataclass(frozen=True)
class Found:
    """What the stream has made of the queue, as the Parquet files have it."""

    start_ms: float
    read_ms: float
    orders: int
    different: int
    """As many as there are, unless one is there twice."""
    missing: int
    """Confirmed orders that are not there."""
    rows: int
    """One for each second and kind."""
    kinds: list[tuple[str, int, int, str, int]]
    """Of each kind: its name, orders, euros; the best second, and the euros of that."""
    alerts: list[str]
    """Message ids of those that must be in the queue of the alerts."""


class Pipeline:
    """The process. `log`: a file for what it writes to standard error."""

    def __init__(self, log: Path) -> None:
        self._log = log
        self._process: asyncio.subprocess.Process | None = None
        self.why_not = ""
        self.broken = ""

    async def start(self) -> None:
        """Returns at once: Spark takes its time."""
        pipe = asyncio.subprocess.PIPE
        with self._log.open("wb") as log:
            self._process = await asyncio.create_subprocess_exec(
                sys.executable, "-m", PROCESS, stdin=pipe, stdout=pipe, stderr=log
            )

    async def run(self, work: Work) -> Found | None:
        """Until everything that is in the queue is worked through; None: it cannot be."""
        process = self._process
        if process is None:
            return None
        assert process.stdin is not None
        try:
            started = await self._hear()
        except ConnectionError as error:
            self.why_not = str(error)
            return None
        try:
            process.stdin.write(json.dumps(asdict(work)).encode() + b"\n")
            return Found(**started, **await self._hear())
        except ConnectionError as error:
            self.broken = str(error)
            return None

    async def _hear(self) -> Message:
        """Raises ConnectionError: it has complained, has ended, or hangs."""
        assert self._process is not None
        assert self._process.stdout is not None
        try:
            async with asyncio.timeout(PATIENCE):
                line = await self._process.stdout.readline()
        except TimeoutError:
            raise ConnectionError(f"nothing was heard of it for {PATIENCE:g} s: see {self._log}") from None
        if not line:
            raise ConnectionError(f"its process has ended: see {self._log}")
        said: Message = json.loads(line)
        if "error" in said:
            raise ConnectionError(said["error"])
        return said

    async def end(self) -> None:
        """Whatever it does just now."""
        process, self._process = self._process, None
        if process is None or process.returncode is not None:
            return
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.close()
        try:
            async with asyncio.timeout(10):
                await process.wait()
                await process.stdout.read()  # to its end: a pipe that is still open complains when the loop is gone
        except TimeoutError:
            process.send_signal(signal.SIGKILL)
            await process.wait()
