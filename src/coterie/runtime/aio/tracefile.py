"""Traces as files: JSON lines, one file for each incarnation of a node, or a row of segments.

Lines are gathered and written with one system call, on `flush` or when 64 KiB are there. Once written they are the
operating system's: a node that is killed with -9 loses only what it had not flushed. A line is never written twice; the
last one may be cut short if the node or the disk died in the middle of it.

A reader that takes only whole files (a stream) wants segments: each is written under a hidden name, locked, and gets
its own name when it is full or old, or the node ends. Hidden or not, what is flushed is in a file. What a killed node
leaves behind has its hidden name and no lock: `adopt` gives it its own.
"""

from __future__ import annotations

import fcntl
import os
import re
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from coterie.errors import UserError
from coterie.runtime.aio import failures
from coterie.runtime.base import Timer
from coterie.trace import Event, Tracer

FLUSH_SIZE = 64 * 1024
HIDDEN = "."
"""What the name of a segment begins with for as long as it is written."""
_LEFTOVER = re.compile(r"\..+-\d+\.\d{8}T\d{12}-\d{6}\.jsonl")


@dataclass(frozen=True, slots=True)
class Segments:
    """When a segment is closed and the next one begins."""

    seconds: float = 5.0
    """So long after its first event."""
    bytes: int = 8 * 1024 * 1024
    """When it is at least so large."""


class FileSink:
    """Takes events, writes lines. If the disk refuses, it says so once and stops: a trace is not worth a node."""

    __slots__ = ("_dead", "_fd", "_lines", "_size", "path")

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lines: list[bytes] = []
        self._size = 0
        self._dead = False
        """Closed, or given up: nothing is taken any more."""
        self._fd = -1
        try:
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._fd = self._open()
        except OSError as error:
            raise UserError(f"cannot write the trace {path}: {error.strerror}: choose another folder") from None

    def _open(self) -> int:
        return os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)

    def __call__(self, event: Event) -> None:
        if self._dead:
            return
        line = event.to_json().encode() + b"\n"
        self._lines.append(line)
        self._size += len(line)
        if self._size >= FLUSH_SIZE:
            self.flush()

    def flush(self) -> None:
        if not self._lines or self._dead:
            return
        data = memoryview(b"".join(self._lines))
        self._lines.clear()
        self._size = 0
        try:
            self._write(data)
        except OSError as error:
            self._give_up(error)

    def _write(self, data: memoryview) -> None:
        while data:
            data = data[os.write(self._fd, data) :]

    def _give_up(self, error: OSError) -> None:
        failures.log.error("the trace %s ends here: %s", self.path, error.strerror)
        self._shut()

    def close(self) -> None:
        """Flush, then close. Later events are dropped."""
        self.flush()
        self._shut()

    def _shut(self) -> None:
        self._dead = True
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


class SegmentSink(FileSink):
    """The same, in segments. `path` is the one that is written, under the name that it will have."""

    __slots__ = ("_base", "_began", "_call_later", "_number", "_segments", "_timer", "_written")

    def __init__(self, path: Path, segments: Segments) -> None:
        # The time makes the names those of this process: a reader that knows files by their names reads each once.
        self._base = f"{path.stem}.{datetime.now(UTC):%Y%m%dT%H%M%S%f}"
        self._segments = segments
        self._number = 0
        self._written = 0
        self._began = 0.0
        self._call_later: Callable[[float, Callable[[], object]], Timer] | None = None
        self._timer: Timer | None = None
        super().__init__(path.with_name(f"{self._base}-{self._number:06}{path.suffix}"))

    @property
    def hidden(self) -> Path:
        return self.path.with_name(HIDDEN + self.path.name)

    def attach(self, call_later: Callable[[float, Callable[[], object]], Timer]) -> None:
        """From now on a segment grows old by itself, and not only when somebody flushes."""
        self._call_later = call_later

    def _open(self) -> int:
        fd = os.open(self.hidden, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_CLOEXEC, 0o600)
        with suppress(OSError):  # there are file systems without locks: see `adopt`
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)  # held for as long as this process is there, however it ends
        self._written, self._began = 0, time.monotonic()
        return fd

    def __call__(self, event: Event) -> None:
        super().__call__(event)
        if self._timer is None and self._call_later is not None and not self._dead:
            self._timer = self._call_later(self._segments.seconds, self._old)

    def _write(self, data: memoryview) -> None:
        if self._fd < 0:
            self._fd = self._open()
        self._written += len(data)
        super()._write(data)
        old = self._call_later is None and time.monotonic() >= self._began + self._segments.seconds
        if old or self._written >= self._segments.bytes:
            self._seal()

    def _old(self) -> None:
        self._timer = None
        self.seal()

    def seal(self) -> None:
        """Flush, and give the segment its name, if there is anything in it."""
        self.flush()
        if self._fd >= 0 and self._written:
            try:
                self._seal()
            except OSError as error:
                self._give_up(error)

    def _seal(self) -> None:
        # First the name, then the lock: whoever finds it without a lock under the hidden name may take it for left.
        self.hidden.rename(self.path)
        os.close(self._fd)
        self._fd = -1
        self._number += 1
        self.path = self.path.with_name(f"{self._base}-{self._number:06}{self.path.suffix}")
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def close(self) -> None:
        self.seal()
        if self._fd >= 0 and not self._written:
            self.hidden.unlink(missing_ok=True)
        self._shut()

    def _shut(self) -> None:
        super()._shut()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


class FileTracer(Tracer):
    """A tracer with a file of its own, or with segments, which `close` ends."""

    __slots__ = ("_file",)

    def __init__(
        self,
        path: Path,
        run: str,
        node: str,
        inc: int,
        clock: Callable[[], float],
        wall: Callable[[], float] | None,
        segments: Segments | None = None,
        also: Callable[[Event], None] | None = None,
    ) -> None:
        self._file = FileSink(path) if segments is None else SegmentSink(path, segments)
        sink = self._file if also is None else _both(self._file, also)
        super().__init__(run, node, inc, sink, clock, wall, self._file.flush)

    @property
    def path(self) -> Path:
        """The file that is written; of a segment, the name that it will have."""
        return self._file.path

    def attach(self, call_later: Callable[[float, Callable[[], object]], Timer]) -> None:
        """Let segments grow old by that clock. Without it they do so only when something is flushed."""
        if isinstance(self._file, SegmentSink):
            self._file.attach(call_later)

    def seal(self) -> None:
        """Flush; if there are segments, whoever reads them gets to see what is there by now."""
        if isinstance(self._file, SegmentSink):
            self._file.seal()
        else:
            self._file.flush()

    def close(self) -> None:
        self.on = False
        self._file.close()


def open_trace(
    folder: Path,
    run: str,
    node: str,
    inc: int,
    clock: Callable[[], float],
    wall: Callable[[], float] | None,
    segments: Segments | None = None,
    also: Callable[[Event], None] | None = None,
) -> FileTracer:
    """A tracer that writes `folder/node-inc.jsonl`, or segments `folder/node-inc.TIME-NUMBER.jsonl`; `also` is given
    each event too."""
    if not node or node[0] in "._" or "/" in node or "\0" in node:  # readers take the first two for hidden
        raise UserError(f"the node name {node!r} cannot begin a file name: use letters, digits, '-' and '_' within")
    return FileTracer(folder / f"{node}-{inc}.jsonl", run, node, inc, clock, wall, segments, also)


def _both(one: Callable[[Event], None], other: Callable[[Event], None]) -> Callable[[Event], None]:
    def sink(event: Event) -> None:
        one(event)
        other(event)

    return sink


def adopt(folder: Path, age: float) -> list[Path]:
    """Give the segments that killed nodes left in that folder, at any depth, their names; returns them.

    Left is what nobody has locked and nobody has written to for `age` seconds. A node that is only paused keeps its
    lock; the time is for file systems that have none, or where other machines do not see them.
    """
    adopted: list[Path] = []
    for hidden in sorted(folder.rglob(f"{HIDDEN}*.jsonl")):
        if _LEFTOVER.fullmatch(hidden.name):
            try:
                if time.time() - hidden.stat().st_mtime >= age and _rename_unlocked(hidden):
                    adopted.append(hidden.with_name(hidden.name[len(HIDDEN) :]))
            except OSError:  # its node has just given it its name; or it is not ours to rename, and stays hidden
                continue
    return adopted


def _rename_unlocked(hidden: Path) -> bool:
    fd = os.open(hidden, os.O_RDWR | os.O_CLOEXEC)
    try:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        except OSError:  # no locks here: the time has to do
            pass
        if os.fstat(fd).st_size == 0:
            hidden.unlink()
            return False
        hidden.rename(hidden.with_name(hidden.name[len(HIDDEN) :]))
        return True
    finally:
        os.close(fd)
