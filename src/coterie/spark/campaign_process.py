"""The process that carries out simulated runs (campaign_runs.py), seen from the Spark task that started it."""

from __future__ import annotations

import os
import pickle
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import zipfile
from pathlib import Path

from coterie.errors import CoterieError
from coterie.spark.campaign_runs import HEAD, Hello, Outcome

HELLO_LIMIT = 120.0
"""Seconds within which a new process must have imported everything."""
PATIENCE = 4
"""Times the limit, which is of CPU time, that a run may take by the clock."""


class Runs:
    """The process that runs seeds, seen from the task."""

    def __init__(self, profile: str, mutation: str | None) -> None:
        self.key = (profile, mutation)
        words = [sys.executable, "-P", "-m", "coterie.spark.campaign_runs", profile, *([mutation] if mutation else [])]
        path = os.pathsep.join([str(package_home()), *(entry for entry in sys.path if entry)])
        self._process = subprocess.Popen(
            words,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": path},
        )
        hello = self._hear(HELLO_LIMIT)
        if not isinstance(hello, Hello):
            self.end()
            raise CoterieError(f"a process for runs did not start: exit code {self._process.returncode}")
        if hello.error:
            self.end()
            raise CoterieError(f"a process for runs did not start: {hello.error}")
        self.fingerprint = hello.fingerprint

    def run(self, seed: int, limit: float, trace: bool) -> Outcome | None:
        """None if the process died. Raises TimeoutError, and the process is over, if it takes too long."""
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(f"{seed} {int(trace)} {limit}\n".encode())
            self._process.stdin.flush()
        except BrokenPipeError:
            return None
        found = self._hear(limit * PATIENCE)
        if found is None and self.code == -signal.SIGPROF:
            raise TimeoutError
        return found if isinstance(found, Outcome) else None

    @property
    def code(self) -> int | None:
        """How it ended, if it did."""
        return self._process.poll()

    def _hear(self, limit: float) -> Outcome | Hello | None:
        end = time.monotonic() + limit
        head = self._read(HEAD.size, end)
        data = self._read(HEAD.unpack(head)[0], end) if head else b""
        message: Outcome | Hello | None = pickle.loads(data) if data else None
        return message

    def _read(self, size: int, end: float) -> bytes:
        """So many bytes; none at all if the process ended first."""
        assert self._process.stdout is not None
        pipe, data = self._process.stdout.fileno(), bytearray()
        while len(data) < size:
            ready, _, _ = select.select([pipe], [], [], max(0.0, end - time.monotonic()))
            if not ready:
                self.end()
                raise TimeoutError
            piece = os.read(pipe, min(size - len(data), 2**20))
            if not piece:
                self._process.wait()
                return b""
            data += piece
        return bytes(data)

    def end(self) -> None:
        self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                try:
                    pipe.close()
                except BrokenPipeError:
                    pass


def package_home() -> Path:
    """The folder from which this package is imported; unpacked, because a mutation changes source files."""
    package = Path(__file__).parents[1]
    if package.is_dir():
        return package.parent
    archive = package.parent
    home = archive.with_name("coterie-runs")  # Spark removes it with the rest of what the executor was given
    if not home.exists():
        fresh = Path(tempfile.mkdtemp(prefix="coterie-runs-", dir=archive.parent))
        with zipfile.ZipFile(archive) as file:
            file.extractall(fresh)
        try:
            fresh.rename(home)
        except OSError:  # another worker was quicker
            shutil.rmtree(fresh, ignore_errors=True)
    return home
