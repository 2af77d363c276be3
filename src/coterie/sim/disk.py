"""Simulated disks: what was synced survives a crash; what was not may be there, in part, or torn.

A `Platter` belongs to the host and outlives its processes; a `SimDisk` is how one process sees it.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from coterie.errors import DiskError, NoSuchFile
from coterie.runtime.base import Buffer, Disk
from coterie.sim.clock import DEAD, Owner, World

T = TypeVar("T")


@dataclass(slots=True)
class _File:
    data: bytearray = field(default_factory=bytearray)
    """As programs see it."""
    safe: bytes = b""
    """As it was when it was last synced."""
    writes: list[int] = field(default_factory=list)
    """Where each append since then ends."""


class Platter:
    """The files of one host, and what may go wrong with them."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self.files: dict[str, _File] = {}
        self.capacity: int | None = None
        """Bytes after which the disk is full."""
        self.latency = 0.0005
        self.sync_latency = 0.003
        self.hangs_until = 0.0
        """Syncs that are asked for before then end then."""
        self.tear = False
        """At a crash the last unsynced write may survive in part."""
        self.failing = 0.0
        """How likely it is that a sync or a truncation fails."""
        self.sticking = 0.0
        """And a removal or a renaming."""

    def fails(self) -> bool:
        return self.failing > 0 and self.rng.random() < self.failing

    def sticks(self) -> bool:
        return self.sticking > 0 and self.rng.random() < self.sticking

    def used(self) -> int:
        return sum(len(file.data) for file in self.files.values())

    def crash(self) -> None:
        """Power is lost: of what was not synced, the first so many writes survive, the next perhaps in part."""
        for name in sorted(self.files):
            file = self.files[name]
            ends = [end for end in file.writes if end > len(file.safe)]
            if ends and file.data[: len(file.safe)] == file.safe:
                kept = self.rng.randint(0, len(ends))
                size = ends[kept - 1] if kept else len(file.safe)
                data = bytes(file.data[:size])
                if self.tear and kept < len(ends):
                    torn = bytes(file.data[size : ends[kept]])
                    cut = self.rng.randint(0, len(torn))
                    rest = b"\0" * (len(torn) - cut) if self.rng.random() < 0.3 else b""  # grown, never written
                    data += torn[:cut] + rest
            else:  # truncated since the last sync: either state
                data = bytes(file.data) if self.rng.random() < 0.5 else file.safe
            file.data, file.safe, file.writes = bytearray(data), data, []

    def flip(self) -> bool:
        """Flip a bit of some file; False if there is nothing to flip."""
        names = [name for name in sorted(self.files) if self.files[name].data]
        if not names:
            return False
        file = self.files[self.rng.choice(names)]
        at = self.rng.randrange(len(file.data))
        bit = 1 << self.rng.randrange(8)
        file.data[at] ^= bit
        if at < len(file.safe):
            safe = bytearray(file.safe)
            safe[at] ^= bit
            file.safe = bytes(safe)
        return True


class SimDisk(Disk):
    """The disk of one process. As with the real one, a file whose sync has failed takes nothing more from it."""

    owner: Owner

    def __init__(self, world: World, platter: Platter) -> None:
        self._world = world
        self._platter = platter
        self._due: dict[str, float] = {}
        self._broken: set[str] = set()
        """Files of which no sync can be believed any more."""

    def append(self, name: str, buffers: Sequence[Buffer], done: Callable[[int | Exception], None]) -> None:
        data = b"".join(buffers)

        def work() -> int:
            platter = self._platter
            self._check(name)
            if platter.capacity is not None and platter.used() + len(data) > platter.capacity:
                raise DiskError(f"{name}: the disk is full")
            file = platter.files.setdefault(name, _File())
            offset = len(file.data)
            file.data += data
            file.writes.append(len(file.data))
            return offset

        self._do((name,), self._platter.latency, work, done)

    def read(self, name: str, offset: int, size: int, done: Callable[[bytes | Exception], None]) -> None:
        self._do((name,), self._platter.latency, lambda: bytes(self._file(name).data[offset : offset + size]), done)

    def sync(self, name: str, done: Callable[[Exception | None], None]) -> None:
        def work() -> None:
            file = self._file(name)
            self._check(name)
            if self._platter.fails():
                self._broken.add(name)
                raise _error(name)
            file.safe = bytes(file.data)
            file.writes.clear()

        self._due[name] = max(self._due.get(name, 0.0), self._platter.hangs_until)
        self._do((name,), self._platter.sync_latency, work, done)

    def truncate(self, name: str, size: int, done: Callable[[Exception | None], None]) -> None:
        def work() -> None:
            file = self._file(name)
            if self._platter.fails():
                raise _error(name)
            del file.data[size:]
            file.writes = [end for end in file.writes if end <= size]

        self._do((name,), self._platter.latency, work, done)

    def replace(self, old: str, new: str, done: Callable[[Exception | None], None]) -> None:
        def work() -> None:
            file = self._file(old)
            failed = self._platter.sticks()
            if not failed or self._platter.rng.random() < 0.5:  # it may happen, and only the folder's sync fail
                del self._platter.files[old]
                self._platter.files[new] = file
                self._broken.discard(new)
            if failed:
                raise _error(old)

        self._do((old, new), self._platter.sync_latency, work, done)

    def remove(self, name: str, done: Callable[[Exception | None], None]) -> None:
        def work() -> None:
            self._file(name)
            if self._platter.sticks():
                raise _error(name)
            del self._platter.files[name]
            self._broken.discard(name)

        self._do((name,), self._platter.sync_latency, work, done)

    def list(self, done: Callable[[dict[str, int] | Exception], None]) -> None:
        def work() -> dict[str, int]:
            files = self._platter.files
            return {name: len(files[name].data) for name in sorted(files)}

        self._do(tuple(self._due), self._platter.latency, work, done)

    def _check(self, name: str) -> None:
        if name in self._broken:
            raise _error(name)

    def _file(self, name: str) -> _File:
        file = self._platter.files.get(name)
        if file is None:
            raise NoSuchFile(f"{name}: no such file")
        return file

    def _do(
        self, names: Sequence[str], latency: float, work: Callable[[], T], done: Callable[[T | Exception], None]
    ) -> None:
        """Do the work when its time has come, behind whatever these files still have to do."""
        if self.owner.state == DEAD:
            return
        world = self._world
        due = world.time + latency * (0.5 + self._platter.rng.random())
        for name in names:
            due = max(due, self._due.get(name, 0.0))
        for name in names:
            self._due[name] = due

        def finish() -> None:
            try:
                result: T | Exception = work()
            except DiskError as error:
                result = error
            done(result)

        world.at(due, self.owner, finish)


def _error(name: str) -> DiskError:
    return DiskError(f"{name}: input/output error")
