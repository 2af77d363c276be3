"""Files in one folder, by relative name: written, read, synced and renamed by threads or the kernel, never on the loop.

Calls that concern the same file happen, and complete, in the order in which they were made; different files do not
wait for each other, so that a slow fsync of one holds up no append to another. An append that fails leaves the file as
it was. After a failed sync a file takes no more appends or syncs until it is opened anew by a restart: the kernel may
have dropped what it could not write, and a second sync would wrongly succeed.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from coterie.errors import DiskError, UserError
from coterie.runtime.aio import failures
from coterie.runtime.aio.files import Folder, Write
from coterie.runtime.aio.overlay import ClosingDisk
from coterie.runtime.aio.ring import Ring
from coterie.runtime.aio.workers import Workers
from coterie.runtime.base import Buffer, Disk, resolve

T = TypeVar("T")

IO_THREADS = 4


@dataclass(slots=True, eq=False)
class _Call:
    """A piece of work that starts when the earlier calls about the same files have ended."""

    names: tuple[str, ...]
    work: Callable[[bool], object]
    """Told whether a sync of the same file follows at once."""
    done: Callable[[Any], None]
    syncs: bool = False
    appends: Sequence[Buffer] | None = None
    """What it appends, if that is what it does."""
    waiting_for: int = 0
    followers: list[_Call] = field(default_factory=list)


class FolderDisk(ClosingDisk):
    """The files below `path`, which is made if it is not there."""

    def __init__(self, loop: asyncio.AbstractEventLoop, path: Path) -> None:
        self._loop = loop
        try:
            path.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._folder = Folder(path)
        except OSError as error:
            raise UserError(f"cannot use {path} as the data folder: {error.strerror}: choose another") from None
        self._threads = Workers(IO_THREADS, "disk")
        self._ring = Ring.of(loop)
        self._lock = threading.Lock()
        self._last: dict[str, _Call] = {}
        """Per file, the latest call that has not ended."""
        self._closed = False

    def append(self, name: str, buffers: Sequence[Buffer], done: Callable[[int | Exception], None]) -> None:
        self._do((name,), lambda sync_follows: self._folder.append(name, buffers, sync_follows), done, appends=buffers)

    def read(self, name: str, offset: int, size: int, done: Callable[[bytes | Exception], None]) -> None:
        self._do((name,), lambda _: self._folder.read(name, offset, size), done)

    def sync(self, name: str, done: Callable[[Exception | None], None]) -> None:
        self._do((name,), lambda _: self._folder.sync(name), done, syncs=True)

    def truncate(self, name: str, size: int, done: Callable[[Exception | None], None]) -> None:
        self._do((name,), lambda _: self._folder.truncate(name, size), done)

    def replace(self, old: str, new: str, done: Callable[[Exception | None], None]) -> None:
        self._do((old, new), lambda _: self._folder.replace(old, new), done)

    def remove(self, name: str, done: Callable[[Exception | None], None]) -> None:
        self._do((name,), lambda _: self._folder.remove(name), done)

    def list(self, done: Callable[[dict[str, int] | Exception], None]) -> None:
        self._do((), lambda _: self._folder.list(), done, after_all=True)

    async def close(self) -> None:
        """Do what was asked for, then close every file. Later calls get a DiskError."""
        if not self._closed:
            idle = self._loop.create_future()
            self._do((), lambda _: self._folder.close(), partial(resolve, idle), after_all=True)
            self._closed = True
            await idle
            self._threads.close()
            if self._ring is not None:
                self._ring.close()

    def _do(
        self,
        names: tuple[str, ...],
        work: Callable[[bool], T],
        done: Callable[[T | Exception], None],
        after_all: bool = False,
        syncs: bool = False,
        appends: Sequence[Buffer] | None = None,
    ) -> None:
        """Do the work behind the earlier calls about these files, or behind all earlier calls."""
        if self._closed:
            self._loop.call_soon(done, DiskError("the node is stopping: its files are closed"))
            return
        call = _Call(names, work, done, syncs, appends)
        with self._lock:
            for other in self._earlier(None if after_all else names):
                other.followers.append(call)
                call.waiting_for += 1
            for name in names:
                self._last[name] = call
            ready = call.waiting_for == 0
        if ready and appends is not None and self._ring is not None:
            self._loop.call_soon(self._append, call)  # whoever wants it synced says so in this turn
        elif ready:
            self._threads.submit(self._run, call)

    def _earlier(self, names: tuple[str, ...] | None) -> Iterable[_Call]:
        """The calls that one about these files (None: about all) has to wait for, each once."""
        found = self._last.values() if names is None else [self._last[name] for name in names if name in self._last]
        return dict.fromkeys(found)

    def _append(self, call: _Call) -> None:
        """On the loop: an append that waits for nothing. The kernel does it and the sync right behind it, if it can."""
        assert self._ring is not None
        assert call.appends is not None
        with self._lock:
            sync = self._sync_behind(call)
        write = self._folder.write(call.names[0], sync is not None)
        if write is None or not self._ring.write(
            write.fd,
            call.appends,
            write.start,
            write.flags,
            write.sync,
            lambda *result: self._appended(call, sync, write, *result),
        ):
            self._threads.submit(self._run, call)

    def _appended(self, call: _Call, sync: _Call | None, write: Write, *result: int) -> None:
        try:
            if not write.ended(*result):
                self._threads.submit(self._run, call)  # which finds out what is wrong, and sets it right
                return
            outcomes: tuple[object, object] = write.start, None
        except DiskError as error:
            outcomes = error, error
        ended = [(call.done, outcomes[0])]
        ready = self._end(call)
        if sync is not None:
            ended.append((sync.done, outcomes[1]))
            ready = [*(other for other in ready if other is not sync), *self._end(sync)]
        for follower in ready:
            if follower.appends is not None:
                self._append(follower)
            else:
                self._threads.submit(self._run, follower)
        self._tell(ended)

    def _run(self, first: _Call) -> None:
        """On an I/O thread: do a call, then what only waited for it. An append and the sync right behind it are one
        step: done together, and told together."""
        call: _Call | None = first
        ended: list[tuple[Callable[[Any], None], object]] = []
        while call is not None:
            with self._lock:
                sync_follows = self._sync_behind(call) is not None
            ended.append((call.done, _outcome(call.work, sync_follows)))
            if not sync_follows:
                self._complete(ended)
                ended = []
            ready = self._end(call)
            for follower in ready[1:]:
                self._threads.submit(self._run, follower)
            call = ready[0] if ready else None

    def _sync_behind(self, call: _Call) -> _Call | None:
        """The sync of the same file that comes next, if one does. Under the lock."""
        return next((other for other in call.followers if other.syncs and other.names == call.names), None)

    def _end(self, call: _Call) -> Sequence[_Call]:
        """It is done: what only waited for it."""
        ready = []
        with self._lock:
            for name in call.names:
                if self._last[name] is call:
                    del self._last[name]
            for follower in call.followers:
                follower.waiting_for -= 1
                if follower.waiting_for == 0:
                    ready.append(follower)
            self._folder.close_idle(self._last)  # under the lock, so that none of them becomes busy meanwhile
        return ready

    def _complete(self, ended: Sequence[tuple[Callable[[Any], None], object]]) -> None:
        try:
            self._loop.call_soon_threadsafe(self._tell, ended)
        except RuntimeError:  # the loop has ended, and with it whoever waited
            pass

    def _tell(self, ended: Sequence[tuple[Callable[[Any], None], object]]) -> None:
        for done, result in ended[:-1]:
            failures.guarded("the disk", done, result)
        done, result = ended[-1]
        done(result)


def _outcome(work: Callable[[bool], object], sync_follows: bool) -> object:
    try:
        return work(sync_follows)
    except DiskError as error:
        return error
    except Exception as error:
        failures.report("the disk", error)
        return DiskError(f"the disk: {error!r}")


class NoDisk(Disk):
    """The disk of a node without a data folder: every call completes with a DiskError."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop

    def append(self, name: str, buffers: Sequence[Buffer], done: Callable[[int | Exception], None]) -> None:
        self._refuse(done)

    def read(self, name: str, offset: int, size: int, done: Callable[[bytes | Exception], None]) -> None:
        self._refuse(done)

    def sync(self, name: str, done: Callable[[Exception | None], None]) -> None:
        self._refuse(done)

    def truncate(self, name: str, size: int, done: Callable[[Exception | None], None]) -> None:
        self._refuse(done)

    def replace(self, old: str, new: str, done: Callable[[Exception | None], None]) -> None:
        self._refuse(done)

    def remove(self, name: str, done: Callable[[Exception | None], None]) -> None:
        self._refuse(done)

    def list(self, done: Callable[[dict[str, int] | Exception], None]) -> None:
        self._refuse(done)

    async def close(self) -> None:
        pass

    def _refuse(self, done: Callable[[Any], None]) -> None:
        self._loop.call_soon(done, DiskError("this node has no data folder"))
