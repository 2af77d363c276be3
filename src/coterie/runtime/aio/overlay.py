"""A disk whose files are read and never changed: what is written stays in memory, and is gone with it.

For a look at a folder as a start would find it: a start tidies up, and may write the end of the log anew.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Sequence
from typing import Any

from coterie.errors import DiskError, NoSuchFile
from coterie.runtime.base import Buffer, Disk


class ClosingDisk(Disk):
    """One that is closed in the end."""

    @abstractmethod
    async def close(self) -> None: ...


class OverlayDisk(ClosingDisk):
    """Over another one, of which it only reads and lists."""

    def __init__(self, below: ClosingDisk, soon: Callable[..., object]) -> None:
        """`soon`: calls something when this turn is over."""
        self._below = below
        self._soon = soon
        self._written: dict[str, bytearray] = {}
        self._gone: set[str] = set()
        """Of those below."""

    def append(self, name: str, buffers: Sequence[Buffer], done: Callable[[int | Exception], None]) -> None:
        def write(file: bytearray | Exception) -> None:
            if isinstance(file, Exception):
                done(file)
                return
            offset = len(file)
            for buffer in buffers:
                file += buffer
            done(offset)

        self._changed(name, write, make=True)

    def read(self, name: str, offset: int, size: int, done: Callable[[bytes | Exception], None]) -> None:
        if name in self._written:
            self._soon(done, bytes(self._written[name][offset : offset + size]))
        elif name in self._gone:
            self._soon(done, NoSuchFile(f"{name}: there is no such file"))
        else:
            self._below.read(name, offset, size, done)

    def sync(self, name: str, done: Callable[[Exception | None], None]) -> None:
        self._soon(done, None)

    def truncate(self, name: str, size: int, done: Callable[[Exception | None], None]) -> None:
        def cut(file: bytearray | Exception) -> None:
            if isinstance(file, Exception):
                done(file)
                return
            del file[size:]
            done(None)

        self._changed(name, cut)

    def replace(self, old: str, new: str, done: Callable[[Exception | None], None]) -> None:
        def rename(file: bytearray | Exception) -> None:
            if isinstance(file, Exception):
                done(file)
                return
            self._written[new] = self._written.pop(old)
            self._gone.add(old)
            done(None)

        self._changed(old, rename)

    def remove(self, name: str, done: Callable[[Exception | None], None]) -> None:
        def remove(files: dict[str, int] | Exception) -> None:
            if isinstance(files, Exception):
                done(files)
                return
            self._written.pop(name, None)
            self._gone.add(name)
            done(None if name in files else NoSuchFile(f"{name}: there is no such file"))

        self.list(remove)

    def list(self, done: Callable[[dict[str, int] | Exception], None]) -> None:
        def add(files: dict[str, int] | Exception) -> None:
            if isinstance(files, Exception):
                done(files)
                return
            found = {name: size for name, size in files.items() if name not in self._gone}
            done(found | {name: len(data) for name, data in self._written.items()})

        self._below.list(add)

    async def close(self) -> None:
        await self._below.close()

    def _changed(self, name: str, call: Callable[[bytearray | Exception], None], make: bool = False) -> None:
        """`call` with the file as one that may be changed."""
        if name in self._written:
            self._soon(call, self._written[name])
            return

        def copied(data: Any) -> None:
            missing = isinstance(data, NoSuchFile)
            if isinstance(data, DiskError) and not (missing and make):
                call(data)
                return
            file = self._written.setdefault(name, bytearray(b"" if missing else data))
            call(file)

        def listed(files: dict[str, int] | Exception) -> None:
            if isinstance(files, Exception):
                call(files)
            elif name in files:
                self._below.read(name, 0, files[name], copied)
            else:
                copied(NoSuchFile(f"{name}: there is no such file"))

        self.list(listed)
