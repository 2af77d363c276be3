"""Spark in the broker's demonstration, as the story sees it: a process that is started early and asked at the end.

Without Spark the story is told all the same: `why_not` says what is in the way.
"""

from __future__ import annotations

import asyncio
import json
import signal
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from coterie.workers import Message

READER = "coterie.demo.archive_reader"
PATIENCE = 120.0
"""Seconds that Spark has to start; ten are usual."""


@dataclass(frozen=True)
class Found:
    """What Spark found in the archive."""

    start_ms: float
    read_ms: float
    orders: int
    by_publisher: dict[str, int]
    different: int
    """As many as there are, unless one is there twice."""
    missing: int
    """Confirmed orders that are not there."""


class Archive:
    """The process. `log`: a file for what it writes to standard error."""

    def __init__(self, log: Path) -> None:
        self._log = log
        self._process: asyncio.subprocess.Process | None = None
        self.why_not = ""

    async def start(self) -> None:
        """Returns at once: Spark takes its time."""
        pipe = asyncio.subprocess.PIPE
        with self._log.open("wb") as log:
            self._process = await asyncio.create_subprocess_exec(
                sys.executable, "-m", READER, stdin=pipe, stdout=pipe, stderr=log
            )

    async def read(self, servers: Sequence[str], queue: str, confirmed: Path) -> Found | None:
        """All of a queue, from all brokers; None: it cannot be."""
        process = self._process
        if process is None:
            return None
        assert process.stdin is not None
        try:
            async with asyncio.timeout(PATIENCE):
                started = await self._hear()
                order = {"servers": [*servers], "queue": queue, "confirmed": str(confirmed)}
                process.stdin.write(json.dumps(order).encode() + b"\n")
                return Found(**started, **await self._hear())
        except TimeoutError:
            self.why_not = f"it has not come to an end in {PATIENCE:g} s"
        except ConnectionError as error:
            self.why_not = str(error)
        return None

    async def _hear(self) -> Message:
        assert self._process is not None
        assert self._process.stdout is not None
        line = await self._process.stdout.readline()
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
        process.stdin.close()
        try:
            async with asyncio.timeout(10):
                await process.wait()
        except TimeoutError:
            process.send_signal(signal.SIGKILL)
            await process.wait()
