"""The store's folder on the runtime's disk, for what is done step by step: recovery, compaction, bringing messages
back.

Names say what a segment stands for: `0000000007-0000000009.2.log` is the second rewriting of the segments 7 to 9. What
ends in `.tmp` was not finished.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from coterie.runtime.base import Buffer, Future, Runtime

_NAME = re.compile(r"(\d{10,19})-(\d{10,19})\.(\d{1,9})\.log")


class SegmentName(NamedTuple):
    id: int
    last: int
    generation: int

    def __str__(self) -> str:
        return f"{self.id:010d}-{self.last:010d}.{self.generation}.log"


def parse_name(name: str) -> SegmentName | None:
    found = _NAME.fullmatch(name)
    return None if found is None else SegmentName(*map(int, found.groups()))


class Files:
    """Each call is awaited and raises DiskError."""

    def __init__(self, runtime: Runtime, folder: str) -> None:
        self._runtime = runtime
        self._disk = runtime.disk
        self._folder = folder

    def path(self, name: str) -> str:
        return f"{self._folder}/{name}"

    async def list(self) -> dict[str, int]:
        """The store's files with their sizes."""
        start = self._folder + "/"
        found = await self.list_all()
        return {name.removeprefix(start): size for name, size in found.items() if name.startswith(start)}

    async def list_all(self) -> dict[str, int]:
        """Also those of others, with their folders."""
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
        await self._call(self._disk.remove, self.path(name))

    async def rest(self, seconds: float) -> None:
        """Let others have their turn."""
        future = self._runtime.future()
        if seconds > 0:
            self._runtime.call_later(seconds, _settle, future, None)
        else:
            self._runtime.call_soon(_settle, future, None)
        await future

    def _call(self, work: Callable[..., None], *args: object) -> Future[Any]:
        future = self._runtime.future()
        work(*args, lambda result: _settle(future, result))
        return future


def _settle(future: Future[Any], result: object) -> None:
    if future.done():  # nobody waits any more
        return
    if isinstance(result, Exception):
        future.set_exception(result)
    else:
        future.set_result(result)
