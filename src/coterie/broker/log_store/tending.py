"""What is done to the log in the background: snapshots, so that a restart is short, and merges, so that what nobody
needs leaves the disk.

A snapshot is what the index is at the end of a record, and is written once that record is on disk. Below the oldest
snapshot only live messages count, so merges follow snapshots.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import Final

from coterie.broker.log_store.index import Index
from coterie.broker.log_store.settings import StoreSettings
from coterie.errors import DiskError
from coterie.log.event_log import EventLog
from coterie.logs import Log
from coterie.runtime.base import Buffer, Future, Runtime

_LOOK: Final = 0.01
"""Seconds between two looks at whether the disk has removed what it was asked to."""
log = Log(__name__)


class Tender:
    """Of one generation of the store."""

    def __init__(self, runtime: Runtime, settings: StoreSettings, event_log: EventLog, index: Index) -> None:
        self._runtime = runtime
        self._settings = settings
        self._log = event_log
        self._index = index
        self.grown = index.replayed_bytes
        """Bytes that the log has grown by since the last snapshot."""
        self._last_size = 0
        """Bytes of that snapshot."""
        self._snapshot_task: Future[None] | None = None
        self._merge_task: Future[None] | None = None
        self._again = False
        self._stopped = False
        self._synced: Future[None] | None = None
        """Waits until what a snapshot tells is on disk."""
        self.pressed = False
        """The disk is full: whatever makes room is done at once."""

    @property
    def busy(self) -> bool:
        return any(task is not None and not task.done() for task in (self._snapshot_task, self._merge_task))

    def stop(self) -> None:
        """Nothing new is begun."""
        self._stopped = True
        self._told()

    def _told(self) -> None:
        if self._synced is not None and not self._synced.done():
            self._synced.set_result(None)

    def look(self) -> None:
        """Something has been synced."""
        if self._stopped:
            return
        if self._due and (self._snapshot_task is None or self._snapshot_task.done()):
            self._snapshot_task = self._runtime.spawn(self._snapshots())
        if self.pressed:
            self.merge()

    def merge(self) -> None:
        """A segment was closed, or a snapshot written: there may be something to merge."""
        self._again = True
        if not self._stopped and (self._merge_task is None or self._merge_task.done()):
            self._merge_task = self._runtime.spawn(self._merges())

    @property
    def _due(self) -> bool:
        return self.grown >= max(self._settings.snapshot_bytes, self._last_size) or (self.pressed and self._useful)

    @property
    def _useful(self) -> bool:
        """A snapshot lets something be merged that takes room for nothing."""
        segments, oldest = self._log.segments.list, self._log.snapshots.oldest
        for segment, after in pairwise(segments):
            if segment.closed and segment.last > oldest:
                return 2 * self._index.live_bytes(segment.before.place, after.before.place) < segment.size
        return False

    async def _snapshots(self) -> None:
        while self._due and not self._stopped:
            try:
                if not await self.snapshot():
                    return
                self.merge()
            except DiskError as error:
                log.warning("a snapshot of the store was given up for now", error=error)
                await self._log.segments.folder.rest(self._settings.retry_interval)

    async def _merges(self) -> None:
        while self._again and not self._stopped:
            self._again = False
            try:
                while not self._stopped:
                    if self._log.segments.folder.garbage:  # what was merged is removed first
                        await self._log.segments.folder.rest(_LOOK)
                    elif not await self._log.merger.run():
                        break
            except DiskError as error:
                log.warning("merging segments of the store was given up for now", error=error)
                self._again = True
                await self._log.segments.folder.rest(self._settings.retry_interval)

    async def last_snapshot(self) -> None:
        """At a proper end, when nothing else is done any more. Raises DiskError."""
        await self._snapshot()

    async def snapshot(self) -> bool:
        """Whether there is another one now. Raises DiskError."""
        return await self._snapshot(lambda: not self._stopped)

    async def _snapshot(self, wanted: Callable[[], bool] = lambda: True) -> bool:
        writer, snapshots = self._log.writer, self._log.snapshots
        position, pieces = writer.last, self._index.pieces()
        if position.ordinal <= max(snapshots.kept, default=0) or writer.halted:
            self.grown = 0
            return False
        before, self.grown = self.grown, 0
        self._synced = self._runtime.future()
        writer.when_synced(position.place, self._told)
        await self._synced
        if not wanted():
            return False
        size = 0

        def counted() -> Iterator[tuple[int, Buffer]]:
            nonlocal size
            for section, data in pieces:
                size += len(data)
                yield section, data

        try:
            await snapshots.write(position, counted())
        except DiskError:
            self.grown += before
            raise
        self._last_size = size
        return True
