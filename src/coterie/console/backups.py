"""Cuts of the store that somebody copies: each is the open files of the log, so that merges and snapshots go on.

There are few at a time, and one that nobody reads from for a while ends.
"""

from __future__ import annotations

import asyncio
import os
import secrets
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from coterie.broker.log_store import LogStore
from coterie.broker.log_store.cut import Cut, cut_of
from coterie.console.refusals import Refused, not_found
from coterie.errors import CoterieError

OPEN_MAX: Final = 2
IDLE: Final = 120.0
"""Seconds that a cut is kept for somebody who does not read from it."""
READ_MAX: Final = 8 << 20
"""Bytes of one answer."""
_TRIES: Final = 10
"""A merge may have replaced a file in the moment between looking for it and opening it."""


@dataclass(slots=True, eq=False)
class OpenCut:
    id: str
    files: dict[str, tuple[int, int]]
    """By name: descriptor and size."""
    last: int
    """The ordinal of the last record."""
    used: float
    reading: int = 0
    ended: bool = False

    def close(self) -> None:
        """Once nobody reads."""
        self.ended = True
        if not self.reading:
            files, self.files = self.files, {}
            for descriptor, _ in files.values():
                os.close(descriptor)


class Backups:
    """Of one node."""

    def __init__(self) -> None:
        self._open: dict[str, OpenCut] = {}
        self._timer: asyncio.TimerHandle | None = None

    async def begin(self, data: Path, store: LogStore) -> OpenCut:
        """What is synced now. Raises Refused or CoterieError."""
        if len(self._open) >= OPEN_MAX:
            raise Refused(
                409, "conflict", f"{OPEN_MAX} backups are under way: one that is not read for {IDLE:g} s ends"
            )
        loop = asyncio.get_running_loop()
        for _ in range(_TRIES):
            cut = cut_of(store)
            try:
                files = await loop.run_in_executor(None, _opened, data, cut)
            except FileNotFoundError:
                continue
            except OSError as error:
                raise CoterieError(f"the store's files cannot be opened: {error.strerror}") from None
            found = OpenCut(secrets.token_hex(16), files, cut.last, loop.time())
            self._open[found.id] = found
            self._look()
            return found
        raise CoterieError("the store's files change too quickly to be opened: try again")

    async def read(self, id: str, name: str, start: int, size: int) -> bytes:
        """Raises Refused or CoterieError."""
        cut = self._open.get(id)
        if cut is None:
            raise not_found("there is no such backup under way: it has ended")
        if name not in cut.files:
            raise not_found(f"the backup has no file '{name}'")
        loop = asyncio.get_running_loop()
        descriptor, end = cut.files[name]
        wanted = max(0, min(size, READ_MAX, end - start))
        cut.reading += 1
        try:
            return await loop.run_in_executor(None, os.pread, descriptor, wanted, start)
        except OSError as error:
            raise CoterieError(f"{name} cannot be read: {error.strerror}") from None
        finally:
            cut.used = loop.time()
            cut.reading -= 1
            if cut.ended:
                cut.close()

    def end(self, id: str) -> None:
        cut = self._open.pop(id, None)
        if cut is None:
            raise not_found("there is no such backup under way: it has ended")
        cut.close()

    def close(self) -> None:
        """The node stops."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        for id in [*self._open]:
            with suppress(Refused):
                self.end(id)

    def _look(self) -> None:
        loop = asyncio.get_running_loop()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        for cut in [*self._open.values()]:
            if not cut.reading and loop.time() - cut.used >= IDLE:
                self.end(cut.id)
        if self._open:
            self._timer = loop.call_later(IDLE / 4, self._look)


def _opened(data: Path, cut: Cut) -> dict[str, tuple[int, int]]:
    files: dict[str, tuple[int, int]] = {}
    try:
        for name, size in cut.files:
            descriptor = os.open(data / cut.folder / name, os.O_RDONLY | os.O_CLOEXEC)
            files[name] = descriptor, size if size is not None else os.fstat(descriptor).st_size
    except OSError:
        for descriptor, _ in files.values():
            os.close(descriptor)
        raise
    return files
