"""Processes of others: started in a session of their own, and ended with all that they started there."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import IO

STOP_TIMEOUT = 20.0
LOOK_AGAIN = 0.1


class PeerError(Exception):
    """It does not do what it should: it is left out, and this says why."""


class Processes:
    """Some processes with a folder. All end with the `with` block, the last one first, and the folder with them."""

    def __init__(self, name: str, data: Path | None) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix=f"coterie-bench-{name}-", dir=data))
        self.name = name
        self.each: list[subprocess.Popen[bytes]] = []

    def start(self, log: str, command: Sequence[str], environment: Mapping[str, str] | None = None) -> None:
        with self.log(log).open("ab") as out:
            self.each.append(self._popen(command, out, environment))

    def _popen(
        self, command: Sequence[str], out: IO[bytes], environment: Mapping[str, str] | None
    ) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=out, stderr=out, env=environment, cwd=self.folder,
            start_new_session=True,
        )  # fmt: skip

    def log(self, name: str) -> Path:
        return self.folder / f"{name}.log"

    def wait(self, what: str, done: Callable[[], bool], patience: float) -> None:
        deadline = time.monotonic() + patience
        while not done():
            for process in self.each:
                if process.poll() is not None:
                    raise PeerError(
                        f"{self.name}: a process ended with code {process.returncode}: {self._last_words()}"
                    )
            if time.monotonic() > deadline:
                raise PeerError(f"{self.name}: not {what} after {patience:g} s: {self._last_words()}")
            time.sleep(LOOK_AGAIN)

    def _last_words(self) -> str:
        logs = sorted(self.folder.glob("*.log"))
        lines = [line for log in logs for line in log.read_text(errors="replace").strip().splitlines()[-1:]]
        return "; ".join(lines) or "they said nothing"

    def __enter__(self) -> Processes:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        for process in reversed(self.each):
            _signal(process, signal.SIGTERM)
        deadline = time.monotonic() + STOP_TIMEOUT
        for process in reversed(self.each):
            try:
                process.wait(max(0.1, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                pass
            _signal(process, signal.SIGKILL)
            process.wait()
        shutil.rmtree(self.folder, ignore_errors=True)


def _signal(process: subprocess.Popen[bytes], number: signal.Signals) -> None:
    """To it and to whatever it started in its session."""
    try:
        os.killpg(process.pid, number)
    except ProcessLookupError:
        pass


def answers(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), timeout=1).close()
    except OSError:
        return False
    return True
