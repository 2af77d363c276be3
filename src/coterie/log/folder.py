"""The log's folder on the runtime's disk, for work that is done step by step, and the names of its files.

0000000007-0000000009.2.seg   the second rewriting of the segments 7 to 9
0000000000000000042.snap      a snapshot of the state after record 42
*.tmp                         not finished; removed at the next start
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from coterie.errors import DiskError, NoSuchFile
from coterie.logs import Log
from coterie.runtime.base import Buffer, Future, Runtime

_SEGMENT = re.compile(r"(\d{10,18})-(\d{10,18})\.(\d{1,9})\.seg")
_SNAPSHOT = re.compile(r"(\d{19})\.snap")
TEMPORARY = ".tmp"
log = Log(__name__)


class SegmentName(NamedTuple):
    number: int
    last: int
    """The highest number that it stands for: its own, unless segments were merged."""
    generation: int
    """0: as it was first written; more: merged."""

    def __str__(self) -> str:
        return f"{self.number:010d}-{self.last:010d}.{self.generation}.seg"


def parse_segment_name(name: str) -> SegmentName | None:
    found = _SEGMENT.fullmatch(name)
    parsed = None if found is None else SegmentName(*map(int, found.groups()))
    return parsed if parsed is not None and str(parsed) == name and parsed.number <= parsed.last else None


def snapshot_name(ordinal: int) -> str:
    return f"{ordinal:019d}.snap"


def parse_snapshot_name(name: str) -> int | None:
    found = _SNAPSHOT.fullmatch(name)
    return None if found is None else int(found[1])


class Folder:
    """Each call is awaited and raises DiskError."""

    def __init__(self, runtime: Runtime, path: str) -> None:
        self.runtime = runtime
        self._disk = runtime.disk
        self._path = path
        self._garbage: list[str] = []
        self._removing = False

    def path(self, name: str) -> str:
        return f"{self._path}/{name}"

    async def list(self) -> dict[str, int]:
        """The files with their sizes."""
        found = await self.list_all()
        start = self._path + "/"
        return {name.removeprefix(start): size for name, size in found.items() if name.startswith(start)}

    async def list_all(self) -> dict[str, int]:
        """Also those of other folders, with these."""
        found: dict[str, int] = await self._call(self._disk.list)
        return found

    async def read(self, name: str, offset: int, size: int) -> bytes:
        data: bytes = await self._call(self._disk.read, self.path(name), offset, size)
        return data

    async def append(self, name: str, buffers: Sequence[Buffer]) -> int:
        offset: int = await self._call(self._disk.append, self.path(name), buffers)
        return offset

    async def sync(self, name: str) -> None:
        await self._call(self._disk.sync, self.path(name))

    async def truncate(self, name: str, size: int) -> None:
        await self._call(self._disk.truncate, self.path(name), size)

    async def replace(self, old: str, new: str) -> None:
        await self._call(self._disk.replace, self.path(old), self.path(new))

    async def remove(self, name: str) -> None:
        """Durable. No error if there is no such file."""
        try:
            await self._call(self._disk.remove, self.path(name))
        except NoSuchFile:
            pass

    async def move(self, old: str, new: str) -> None:
        """To another folder: both are whole paths."""
        await self._call(self._disk.replace, old, new)

    async def remove_path(self, path: str) -> None:
        """The same, by its whole path."""
        try:
            await self._call(self._disk.remove, path)
        except NoSuchFile:
            pass

    async def turn(self) -> None:
        """Let others have their turn."""
        future = self.runtime.future()
        self.runtime.call_soon(_settle, future, None)
        await future

    async def rest(self, seconds: float) -> None:
        future = self.runtime.future()
        self.runtime.call_later(seconds, _settle, future, None)
        await future

    # Files that are of no use any more. They go in the order in which they were given here, and one that cannot be
    # removed holds up those behind it: a file may be what tells that an earlier one does not count.

    def discard(self, names: Sequence[str], retry: float) -> None:
        self._garbage += names
        if not self._removing and self._garbage:
            self._removing = True
            self.runtime.spawn(self._remove_garbage(retry))

    @property
    def garbage(self) -> Sequence[str]:
        return self._garbage

    async def make_way(self, name: str) -> None:
        """For a file of this name, which is about to be written: there is none, and what is left of an earlier one is
        not removed later either. Raises DiskError."""
        if name in self._garbage:
            self._garbage.remove(name)
        await self.remove(name)

    async def _remove_garbage(self, retry: float) -> None:
        while self._garbage:
            name = self._garbage[0]
            try:
                await self.remove(name)
                if self._garbage and self._garbage[0] == name:  # nobody wants to write it meanwhile
                    del self._garbage[0]
            except DiskError as error:
                log.warning("cannot remove a file of the log; trying again", file=name, error=error)
                await self.rest(retry)
        self._removing = False

    def _call(self, work: Callable[..., None], *args: object) -> Future[Any]:
        future = self.runtime.future()
        work(*args, lambda result: _settle(future, result))
        return future


def _settle(future: Future[Any], result: object) -> None:
    if future.done():
        return
    if isinstance(result, Exception):
        future.set_exception(result)
    else:
        future.set_result(result)
