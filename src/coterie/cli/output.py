"""How commands speak: answers on standard output, as text or as one JSON object; progress on standard error."""

from __future__ import annotations

import shutil
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import TracebackType
from typing import TextIO

from coterie.trace import Json
from coterie.visible import LINES, json_text, visible


def print_json(answer: Mapping[str, Json]) -> None:
    """The one object that `--json` promises."""
    print(json_text(answer, indent=2))


def facts(lines: Iterable[tuple[str, str]]) -> str:
    """What something is, a name and a text a line."""
    return "\n".join(f"{name:<9} {visible(text)}" for name, text in lines)


def tell(text: str, stream: TextIO | None = None) -> None:
    """A text in which names stand that others chose; it may have several lines."""
    print(visible(text, LINES), file=stream)


def table(headers: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """Columns under their headers. Numbers stand right, and the last column is as long as it likes."""
    cells = [[visible(str(cell)) for cell in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(headers, *cells, strict=True)]
    right = [bool(rows) and all(isinstance(row[i], int | float) for row in rows) for i in range(len(headers))]

    def line(row: Sequence[str]) -> str:
        parts = (c.rjust(w) if r else c.ljust(w) for c, w, r in zip(row, widths, right, strict=True))
        return "  ".join(parts).rstrip()

    return "\n".join([line(headers), line(["-" * width for width in widths]), *map(line, cells)])


class Progress:
    """How far a long command is, how fast it goes and how long it still takes, as one line that renews itself.

    On a terminal the line is rewritten; elsewhere (a log file) a new one is written now and then.
    """

    def __init__(
        self,
        what: str,
        total: int | None = None,
        stream: TextIO | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._what, self._total, self._clock = what, total, clock
        self._stream = sys.stderr if stream is None else stream
        self._rewrites = self._stream.isatty()
        self._pause = 0.2 if self._rewrites else 10.0
        self._began = self._next = clock()
        self._next += self._pause
        self._shown = False

    def update(self, done: int, note: str = "") -> None:
        """Say that `done` are done by now. Cheap enough to be called for each."""
        now = self._clock()
        if now >= self._next:
            self._next = now + self._pause
            self._show(self.line(done, now, note))

    def line(self, done: int, now: float, note: str = "") -> str:
        elapsed = max(now - self._began, 1e-9)
        rate = done / elapsed
        parts = [f"{done:,}" if self._total is None else f"{done:,} of {self._total:,} {self._what}"]
        if self._total is None:
            parts[0] += f" {self._what}"
        parts.append(f"{rate:,.0f}/s" if rate >= 10 else f"{rate:.2g}/s")
        if self._total is not None and 0 < done < self._total:
            parts.append(f"{duration((self._total - done) / rate)} left")
        if note:
            parts.append(note)
        return ", ".join(parts)

    def _show(self, line: str) -> None:
        if self._rewrites:
            width = shutil.get_terminal_size().columns - 1
            self._stream.write("\r\x1b[K" + line[:width])
        else:
            self._stream.write(line + "\n")
        self._stream.flush()
        self._shown = True

    def close(self) -> None:
        """Take the line away: what comes next starts on a clean one."""
        if self._shown and self._rewrites:
            self._stream.write("\r\x1b[K")
            self._stream.flush()
        self._shown = False

    def __enter__(self) -> Progress:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()


def duration(seconds: float) -> str:
    """A time that a person reads at a glance: `45 s`, `3 min 20 s`, `2 h 5 min`."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    return f"{whole // 3600} h {whole % 3600 // 60} min"
