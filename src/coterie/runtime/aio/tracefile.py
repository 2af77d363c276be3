"""Traces as files: JSON lines, one file for each incarnation of a node.

Lines are gathered and written with one system call, on `flush` or when 64 KiB are there. Once written they are the
operating system's: a node that is killed with -9 loses only what it had not flushed. A line is never written twice; the
last one may be cut short if the node or the disk died in the middle of it.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from coterie.errors import UserError
from coterie.runtime.aio import failures
from coterie.trace import Event, Tracer

FLUSH_SIZE = 64 * 1024


class FileSink:
    """Takes events, writes lines. If the disk refuses, it says so once and stops: a trace is not worth a node."""

    __slots__ = ("_fd", "_lines", "_path", "_size")

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lines: list[bytes] = []
        self._size = 0
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
        except OSError as error:
            raise UserError(f"cannot write the trace {path}: {error.strerror}: choose another folder") from None

    def __call__(self, event: Event) -> None:
        if self._fd < 0:
            return
        line = event.to_json().encode() + b"\n"
        self._lines.append(line)
        self._size += len(line)
        if self._size >= FLUSH_SIZE:
            self.flush()

    def flush(self) -> None:
        if not self._lines or self._fd < 0:
            return
        data = memoryview(b"".join(self._lines))
        self._lines.clear()
        self._size = 0
        try:
            while data:
                data = data[os.write(self._fd, data) :]
        except OSError as error:
            failures.log.error("the trace %s ends here: %s", self._path, error.strerror)
            self._shut()

    def close(self) -> None:
        """Flush, then close. Later events are dropped."""
        self.flush()
        self._shut()

    def _shut(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


class FileTracer(Tracer):
    """A tracer with a file of its own, which `close` ends."""

    __slots__ = ("_file", "path")

    def __init__(
        self,
        path: Path,
        run: str,
        node: str,
        inc: int,
        clock: Callable[[], float],
        wall: Callable[[], float] | None,
    ) -> None:
        self.path = path
        self._file = FileSink(path)
        super().__init__(run, node, inc, self._file, clock, wall, self._file.flush)

    def close(self) -> None:
        self.on = False
        self._file.close()


def open_trace(
    folder: Path, run: str, node: str, inc: int, clock: Callable[[], float], wall: Callable[[], float] | None
) -> FileTracer:
    """A tracer that writes `folder/node-inc.jsonl`."""
    if not node or node in (".", "..") or "/" in node or "\0" in node:
        raise UserError(f"the node name {node!r} cannot be part of a file name: use letters, digits, '-' and '_'")
    return FileTracer(folder / f"{node}-{inc}.jsonl", run, node, inc, clock, wall)
