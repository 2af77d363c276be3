"""Merges: thin neighbouring segments below the tail become one, with only what is still needed of their records.

Below the oldest snapshot nothing is replayed any more: of a record only its live messages count. They become a
*remnant*, with the record's place and chain, a head of the owner's, and checksums of its own. The new segment is
written in the background, under another name, synced, and takes the place of the others by one rename; only then are
those removed. Segments at the very beginning of the log of which nothing is live are removed as they are.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from coterie.errors import DiskError
from coterie.log.errors import Damaged
from coterie.log.folder import TEMPORARY, SegmentName
from coterie.log.place import Place
from coterie.log.record import MARK_SIZE, NOTE, Record, encode_head, make_record
from coterie.log.scan import Scanner
from coterie.log.segment import HEADER_SIZE, Header, Segment
from coterie.log.segments import Segments
from coterie.log.snapshot import Snapshots
from coterie.log.table import Table, encode_footer
from coterie.log.tail import Tail
from coterie.log.writer import Writer
from coterie.logs import Log
from coterie.runtime.base import Buffer

log = Log(__name__)


@dataclass(frozen=True, slots=True)
class Kept:
    """What remains of a record."""

    head: bytes
    ranges: Sequence[tuple[int, int]]
    """(start, end) in its bodies, as they are in the log now; rising."""


class Owner(Protocol):
    """Who knows what is live."""

    def live_bytes(self, after: Place, upto: Place) -> int:
        """About how many bytes, heads and bodies, are still needed of the records between these places; 0 only if
        nothing is, not even a message without a body: then they are removed. Cheap."""

    def merging(self, after: Place, upto: Place) -> None:
        """Only what is needed now of the records between these places is there from now on. Comes before `live` is
        asked of each, and before they are removed."""

    def live(self, place: Place, head: bytes) -> Kept | None:
        """What of this record was needed when it was told that they are merged; None: nothing."""


class Merger:
    """Of one log."""

    def __init__(self, segments: Segments, writer: Writer, snapshots: Snapshots, tail: Tail, owner: Owner) -> None:
        self._segments = segments
        self._folder = segments.folder
        self._settings = segments.settings
        self._writer = writer
        self._snapshots = snapshots
        self._tail = tail
        self._owner = owner
        self.merged = 0
        self.removed = 0
        """Segments, since the start."""
        self._stuck = False
        """A file may or may not have got its name: nothing is merged until the next start has seen."""
        self._damaged: set[Segment] = set()
        """They are left as they are: what cannot be read cannot be copied."""

    async def run(self) -> int:
        """Merge once, if there is something to merge; gives the bytes won. Raises DiskError: try again later."""
        if self._stuck or self._folder.garbage:
            return 0
        won = self._remove_dead()
        chosen = self.choose()
        if chosen:
            won += await self._merge(chosen)
        return won

    def mergeable(self) -> list[Segment]:
        """Closed, below the oldest snapshot and the tail, in the order of places."""
        retained = set(self._tail.retained)
        oldest = self._snapshots.oldest
        found = []
        for segment in self._segments.list:
            if not segment.closed or segment in retained or segment.last > oldest:
                break
            found.append(segment)
        return found

    def choose(self) -> list[Segment]:
        """The first neighbours that are thin, and fit into one segment; one alone if most of it is garbage."""
        run: list[Segment] = []
        size = 0
        for segment in self.mergeable():
            live = self._live_bytes(segment)
            sparse = live <= segment.size * (1 - self._settings.merge_live)
            thin = sparse or segment.size < self._settings.segment_bytes // 4
            fits = size + live <= self._settings.segment_bytes and len(run) < self._settings.merge_count
            if thin and fits and segment not in self._damaged:
                run.append(segment)
                size += live
            elif self._worth(run):
                return run
            else:
                run = [segment] if thin and segment not in self._damaged else []
                size = live if run else 0
        return run if self._worth(run) else []

    def _worth(self, run: Sequence[Segment]) -> bool:
        """One alone is written again only if that wins something."""
        if len(run) != 1:
            return len(run) > 1
        (segment,) = run
        if segment.merged and segment.size < self._settings.segment_bytes // 16:
            return False
        garbage = segment.size - HEADER_SIZE - self._live_bytes(segment)
        return garbage > segment.size * self._settings.merge_live

    def _live_bytes(self, segment: Segment) -> int:
        return self._owner.live_bytes(segment.before.place, self._end(segment))

    def _end(self, segment: Segment) -> Place:
        at = self._segments.list.index(segment) + 1
        return self._segments.list[at].before.place if at < len(self._segments.list) else self._writer.synced.place

    def _remove_dead(self) -> int:
        """From the beginning of the log, where nothing is live."""
        won = 0
        for segment in self.mergeable():
            if self._live_bytes(segment):
                break
            self._owner.merging(segment.before.place, self._end(segment))
            self.removed += 1
            self._segments.replace([segment], [])
            self._folder.discard([segment.file], self._settings.retry_interval)
            won += segment.size
        return won

    async def _merge(self, old: Sequence[Segment]) -> int:
        first, last = old[0], old[-1]
        self._owner.merging(first.before.place, self._end(last))
        generation = max(segment.name.generation for segment in old) + 1
        name = SegmentName(first.name.number, last.name.last, generation)
        mark = self._folder.runtime.entropy(MARK_SIZE)
        header = Header(self._writer.log_id, name.number, name.last, first.first, last.last, first.before, mark)
        new = Segment(name, mark, first.before, last.last, 0, Table(), merged=True)
        file = f"{name}{TEMPORARY}"
        await self._folder.make_way(file)
        try:
            await self._copy(old, new, file, header.encode())
            await self._folder.sync(file)
        except DiskError:
            await self._folder.remove(file)
            raise
        if not all(segment in self._segments.list for segment in old):  # truncated meanwhile
            await self._folder.remove(file)
            return 0
        await self._take_into_use(file, new)
        won = sum(segment.size for segment in old) - new.size
        self._segments.replace(old, [new])
        self.merged += len(old)
        self._folder.discard([segment.file for segment in old], self._settings.retry_interval)
        return won

    async def _take_into_use(self, file: str, new: Segment) -> None:
        try:
            await self._folder.replace(file, new.file)
        except DiskError:
            self._stuck = True  # until it is known that neither name is there
            await self._folder.remove(new.file)
            await self._folder.remove(file)
            self._stuck = False
            raise

    async def _copy(self, old: Sequence[Segment], new: Segment, file: str, header: bytes) -> None:
        table = new.table
        assert table is not None
        buffers: list[Buffer] = [header]
        new.size = len(header)
        size = 0
        now = self._folder.runtime.now
        for segment in old:
            began = now()
            scanner = Scanner(
                self._folder, segment.file, segment.mark, HEADER_SIZE, segment.size, self._settings.slice_bytes
            )
            ordinal = segment.before.ordinal
            async for found in scanner.records(with_bodies=True):
                prefix = found.prefix
                if prefix.flags & NOTE or not ordinal < prefix.ordinal <= segment.last:
                    continue
                ordinal = prefix.ordinal
                if found.record is None or not found.body_sound:
                    self._damaged.add(segment)
                    raise Damaged(f"{segment.file}: record {prefix.place} is damaged: the segment stays as it is")
                remnant = self._remnant(found.record)
                if remnant is not None:
                    table.add(remnant, new.size)
                    buffers += (encode_head(remnant, new.mark, remnant.ordinal - 1), *remnant.bodies)
                    new.size += remnant.size
                    size += remnant.size
                if size >= self._settings.slice_bytes or now() - began > self._settings.slice_seconds:
                    await self._folder.append(file, buffers) if buffers else await self._folder.turn()
                    buffers, size = [], 0
                    began = now()
        runs = self._writer.runs(table.row(0).place, table.row(len(table) - 1).place) if len(table) else b""
        footer = encode_footer(table, runs, [], new.size)
        await self._folder.append(file, buffers + footer)
        new.file_size = new.size + sum(map(len, footer))

    def _remnant(self, record: Record) -> Record | None:
        kept = self._owner.live(record.place, bytes(record.head))
        if kept is None:
            return None
        whole = memoryview(b"".join(record.bodies))
        bodies = [whole[start:end] for start, end in kept.ranges]
        remnant = make_record(record.place, record.sender, record.chain, kept.head, b"", bodies, remnant=True)
        remnant.ordinal = record.ordinal
        return remnant
