"""The log as its owner sees it: a folder of segments and snapshots, opened once, with one part for each thing to do.

    log = await EventLog.open(runtime, "log", settings, log_id, owner)
    log.append(record); log.writer.when_synced(record.place, done)

Pure bytes: it knows nothing of queues, brokers or the cluster.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

from coterie.errors import DiskError
from coterie.log.body_reader import BodyReader
from coterie.log.errors import TailGone
from coterie.log.folder import Folder
from coterie.log.merge import Merger, Owner
from coterie.log.place import ORIGIN, START, Place, Position
from coterie.log.problems import Found
from coterie.log.record import Record
from coterie.log.recovery import Recovery, Replay
from coterie.log.segments import Segments
from coterie.log.settings import LogSettings
from coterie.log.snapshot import Snapshots
from coterie.log.tail import Tail
from coterie.log.writer import Writer
from coterie.runtime.base import Buffer, Runtime


class LogOwner(Replay, Owner, Protocol):
    """Who replays the log, and knows what of it is still needed."""


class EventLog:
    """An open log."""

    def __init__(self, found: Found, segments: Segments, writer: Writer, snapshots: Snapshots, owner: Owner) -> None:
        self.found = found
        self.segments = segments
        self.writer = writer
        self.snapshots = snapshots
        self.tail = Tail(self.segments, self.writer)
        self.merger = Merger(self.segments, self.writer, self.snapshots, self.tail, owner)
        self.reader = BodyReader(self.segments, self.writer)

    @classmethod
    async def open(
        cls,
        runtime: Runtime,
        folder: str,
        settings: LogSettings,
        log_id: bytes | None,
        owner: LogOwner,
        alone: bool = False,
    ) -> EventLog:
        """Recover what is there, or begin. `log_id`: of whom it must be; None: of whomever it is, or a new one.
        `alone`: there is nobody to get from what is damaged. Raises DiskError."""
        recovery = Recovery(Folder(runtime, folder), settings, log_id, owner, alone)
        await recovery.run()
        return cls(recovery.found, recovery.segments, recovery.writer, recovery.snapshots, owner)

    @classmethod
    def new(cls, runtime: Runtime, path: str, settings: LogSettings, log_id: bytes, owner: Owner) -> EventLog:
        """In a folder where nothing is."""
        folder = Folder(runtime, path)
        segments = Segments(folder, settings)
        found = Found(log_id, None, ORIGIN, ORIGIN, 0)
        return cls(
            found, segments, Writer(segments, log_id, 1, ORIGIN), Snapshots(folder, settings, log_id, []), owner
        )  # fmt: skip

    def append(self, record: Record) -> int:
        return self.writer.append(record)

    async def position(self, place: Place) -> Position:
        """Of one record of this log. Raises TailGone if there is none, and other DiskErrors."""
        for known in (self.writer.last, self.writer.synced, ORIGIN):
            if known.place == place:
                return known
        if (recent := self.writer.recent(place)) is not None:
            return Position(recent.ordinal, place, recent.chain)
        if (border := self.segments.border(place)) is not None and border.chain:
            return border
        _, row = await self.segments.find(place)
        chain = await self.tail.chain_at(place)
        if chain is None:
            raise TailGone(f"record {place} cannot be read")
        return Position(row.ordinal, place, chain)

    async def snapshot(self, place: Place, committed: Place, pieces: Iterable[tuple[int, Buffer]]) -> None:
        """Write the state after that record. Never past what a majority has, nor past what is synced here."""
        if place > min(committed, self.writer.synced.place):
            raise ValueError(f"a snapshot at {place}, but only {committed} is committed")
        life = self.writer.life
        position = await self.position(place)
        await self.snapshots.write(position, pieces, lambda: self.writer.life == life)

    async def truncate(self, after: Place) -> None:
        """Give up every record behind that one, and the snapshots behind it; durable when it ends. Raises TailGone if
        the state there could not be recovered any more, and other DiskErrors: then it has to be tried again. Whoever
        waits for a sync has to ask again, in any case."""
        halted = self.writer.halted
        self.writer.end_life()
        try:
            position = await self.position(after)
            has_snapshot = any(kept <= position.ordinal for kept in self.snapshots.kept)
            if not has_snapshot and self.tail.verbatim_from.place > START:
                raise TailGone(f"there is no snapshot of {after} or before")
        except DiskError:
            self.writer.halted = halted
            raise
        await self.writer.truncate(position, self.snapshots.remove_after)

    async def close(self) -> None:
        await self.writer.close()
