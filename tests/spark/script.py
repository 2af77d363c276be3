"""A program of its own that uses Spark: what it prints is read line by line, and it can be sent signals."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from queue import Queue

import psutil

LINE_SECONDS = 120.0
TESTS = Path(__file__).parents[1]


def path_of(*folders: Path) -> str:
    """PYTHONPATH: these before what it is here."""
    return os.pathsep.join(filter(None, (*map(str, folders), os.environ.get("PYTHONPATH"))))


class Script:
    """Python source that runs in a process of its own."""

    def __init__(
        self,
        source: str,
        words: Sequence[str],
        folder: Path,
        env: Mapping[str, str] | None = None,
        python: str = sys.executable,
    ) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.temporary = folder / "tmp"
        self.temporary.mkdir()
        path = folder / "script.py"
        path.write_text(source)
        self._errors = folder / "stderr"
        with self._errors.open("wb") as errors:
            self.process = subprocess.Popen(
                [python, str(path), *words],
                cwd=folder,
                env={**os.environ, "PYTHONPATH": path_of(TESTS), "TMPDIR": str(self.temporary), **(env or {})},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                # Tests that run in the background ignore Ctrl-C, and programs inherit that.
                preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
            )
        self._lines: Queue[str | None] = Queue()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self._lines.put(line.rstrip("\n"))
        self._lines.put(None)

    def line(self) -> str:
        """The next line that it prints."""
        line = self._lines.get(timeout=LINE_SECONDS)
        assert line is not None, f"it ended with {self.process.wait()}: {self.errors()}"
        return line

    def end(self) -> tuple[int, list[str]]:
        """Wait for its end; returns the exit code and the lines that nobody read."""
        code = self.process.wait(LINE_SECONDS)
        self._reader.join(LINE_SECONDS)
        return code, [line for line in iter(self._lines.get, None) if line is not None]

    def errors(self) -> str:
        """What it has printed on standard error."""
        return self._errors.read_text(errors="replace")


@contextmanager
def script(
    source: str, words: Sequence[str], folder: Path, env: Mapping[str, str] | None = None, python: str = sys.executable
) -> Iterator[Script]:
    """Such a program, for as long as the block at most."""
    running = Script(source, words, folder, env, python)
    try:
        yield running
    finally:
        family = []
        if running.process.poll() is None:
            family = psutil.Process(running.process.pid).children(recursive=True)
        running.process.kill()
        running.process.wait()
        for process in family:
            try:
                process.kill()
            except psutil.NoSuchProcess:
                continue
        if running.process.stdout is not None:
            running._reader.join(LINE_SECONDS)
            running.process.stdout.close()
