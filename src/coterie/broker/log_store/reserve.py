"""The reserve: a file that is in the way, so that there is room for acks and the like when the disk is full.

When the disk refuses, the file is removed, which gives the log some room at once; publishers stay blocked until there
is enough room again to make the file anew.
"""

from __future__ import annotations

from collections.abc import Callable

from coterie.runtime.base import Runtime

_BLOCK = 1 << 16


class Reserve:
    def __init__(self, runtime: Runtime, path: str, size: int, present: bool) -> None:
        self._runtime = runtime
        self.path = path
        self._size = size
        self.present = present

    @property
    def wanted(self) -> bool:
        return self._size > 0 and not self.present

    def give_up(self, done: Callable[[], None]) -> None:
        """Remove it. Whether that worked shows when the log is written to."""
        self.present = False
        self._runtime.disk.remove(self.path, lambda _: done())

    def make(self, done: Callable[[bool], None]) -> None:
        """Make it anew; tells whether there was room."""
        disk = self._runtime.disk
        block = self._runtime.entropy(min(_BLOCK, self._size))  # nothing that a file system could make smaller
        blocks = [block] * (self._size // len(block)) + [block[: self._size % len(block)]]

        def appended(result: int | Exception) -> None:
            if isinstance(result, Exception):
                disk.remove(self.path, lambda _: ended(False))
            else:
                disk.sync(self.path, lambda error: ended(error is None))

        def ended(made: bool) -> None:
            self.present = made
            done(made)

        disk.append(self.path, blocks, appended)
