"""Recovery: from whatever a crash has left in the folder to an open log.

The newest sound snapshot is loaded, and the head and effects of every record behind it are replayed, in order. What
cannot be read is either torn (not known to be synced: the log ends before it) or damage (below the synced mark: the log
ends before it too, but takes no records until its owner has truncated it there, which is the owner's decision).

The synced mark is the highest of: the record before the first one of any segment (a segment is begun when everything
before it is synced), the last one of a segment with a footer, the snapshot's, and what sound records and notes say.
Where nobody else has the log (`alone`) damage is told and passed over: what follows it counts all the same.

What is behind the mark and sound counts, but is written again, to a new segment: it may be in the system's cache only,
and a sync that failed in an earlier life is not reported a second time. When the log is open all of it is synced.
"""

from __future__ import annotations

from typing import Protocol

from coterie.errors import DiskError
from coterie.log.folder import TEMPORARY, Folder, SegmentName
from coterie.log.place import ORIGIN, Place, Position
from coterie.log.problems import PLACES_MAX, Found, Kind, Problem
from coterie.log.record import MARK_SIZE, NOTE, Record, encode_head
from coterie.log.scan import Scanned, Scanner
from coterie.log.segment import HEADER_SIZE, ID_SIZE, Header, Segment
from coterie.log.segments import Segments
from coterie.log.settings import LogSettings
from coterie.log.snapshot import Snapshot, Snapshots
from coterie.log.survey import ENDLESS, Survey, Surveyed
from coterie.log.table import Row, Table, encode_footer
from coterie.log.writer import Writer
from coterie.logs import Log
from coterie.runtime.base import Buffer

log = Log(__name__)


class Replay(Protocol):
    """Whose log it is."""

    def load(self, snapshot: Snapshot) -> None:
        """Begin with this state; without a call, with none."""

    def apply(self, before: Position, record: Record) -> bool:
        """The next record, without bodies. False: its chain does not follow from the one before. Ordinals between the
        two are missing only if nobody else has the log."""


class Recovery:
    """One recovery. Raises DiskError (see `Survey.run`)."""

    def __init__(
        self, folder: Folder, settings: LogSettings, log_id: bytes | None, replay: Replay, alone: bool = False
    ) -> None:
        self._folder = folder
        self._alone = alone
        self._settings = settings
        self._survey = Survey(folder, log_id)
        self._replay = replay
        self.segments = Segments(folder, settings)
        self._at = ORIGIN
        """The last record that counts."""
        self._synced = 0
        """The synced mark."""
        self._synced_at = ORIGIN
        self._tail: list[tuple[Segment, Row]] = []
        """Records that count and are behind the mark."""
        self._replayed = 0
        self._ended = False
        self._told = 0
        """Of what is missing or damaged up to that ordinal was told."""
        self.found: Found
        self.writer: Writer
        self.snapshots: Snapshots

    async def run(self) -> None:
        survey = self._survey
        await survey.run()
        log_id = survey.log_id or self._folder.runtime.entropy(ID_SIZE)
        if survey.snapshot is not None:
            self._at = survey.snapshot.position
            self._replay.load(survey.snapshot)
        self._synced_at = self._at
        self._synced = max([self._at.ordinal, *(segment.header.first - 1 for segment in survey.segments)])
        start = self._at.ordinal
        for surveyed in survey.segments:
            await self._take(surveyed, start)
        if self._next_told <= self._synced and not self._ended:
            self._miss("", self._synced)
        self.found = Found(log_id, survey.snapshot, self._at, self._synced_at, self._replayed, survey.problems)
        self.snapshots = Snapshots(self._folder, self._settings, log_id, survey.sound_snapshots)
        await self._open(log_id)

    async def _take(self, surveyed: Surveyed, start: int) -> None:
        header = surveyed.header
        last = min(surveyed.bound, header.last or ENDLESS)
        segment = Segment(
            surveyed.name, header.mark, header.before, last, surveyed.size, None, header.merged,
            file_size=surveyed.size,
        )  # fmt: skip
        self.segments.add(segment)
        if last <= start:
            return  # only bodies are read of it, if any
        if segment.first > self._next_told and not self._ended:
            self._miss(segment.file, segment.first - 1)
        try:
            if not await self._take_footer(segment):
                await self._take_scan(segment, surveyed)
        except DiskError as error:
            self._stop(Kind.UNREADABLE, segment.file, str(error), ())

    async def _take_footer(self, segment: Segment) -> bool:
        """Of a segment that was closed. False: it has to be read whole."""
        footer = await self.segments.footer(segment, with_heads=True)
        if footer is None:
            segment.file_size = 0
            return False
        segment.size = footer.records_end
        table = footer.table
        end = table.ordinals[-1] if len(table) else segment.before.ordinal
        if segment.last == ENDLESS:
            segment.last = end
        if not segment.merged:
            self._synced = max(self._synced, min(end, segment.last))
        if len(table) and not len(footer.heads):
            return False
        for row, record in footer.records(segment.mark, self._at.ordinal):
            if self._ended or row.ordinal > segment.last:
                break
            if isinstance(record, Record):
                self._next(segment, row, record, True)
            else:
                return False  # the record itself may be sound
        return True

    async def _take_scan(self, segment: Segment, surveyed: Surveyed) -> None:
        scanner = Scanner(
            self._folder, segment.file, segment.mark, HEADER_SIZE, segment.size, self._settings.read_bytes
        )
        found: list[Scanned] = []
        ordinal = segment.before.ordinal
        sound_end = HEADER_SIZE
        async for scanned in scanner.records():
            prefix = scanned.prefix
            if prefix.ordinal > segment.last or prefix.synced > segment.last:
                continue
            self._synced = max(self._synced, prefix.synced)
            if not prefix.flags & NOTE and prefix.ordinal > ordinal:
                ordinal = prefix.ordinal
                found.append(scanned)
            sound_end = scanned.offset + prefix.size
        was_last = segment.last == ENDLESS
        bad_bodies: list[Place] = []
        for scanned in found:
            prefix = scanned.prefix
            if self._ended:
                break
            if prefix.ordinal <= self._at.ordinal:
                continue
            row = Row(prefix.ordinal, prefix.place, scanned.offset, prefix.head_size, prefix.body_size, prefix.body_crc)
            if self._next(segment, row, scanned.record, scanned.body_sound) and not scanned.body_sound:
                bad_bodies.append(prefix.place)
        if bad_bodies:
            self._tell(Kind.BAD_BODY, segment.file, "", tuple(bad_bodies[:PLACES_MAX]))
        if was_last:
            segment.last = max(self._at.ordinal, segment.before.ordinal)
            if segment.size > sound_end and not self._ended and not segment.file_size:
                self._tell(Kind.TORN, segment.file, f"{segment.size - sound_end} bytes", ())
                self._ended = True

    def _next(self, segment: Segment, row: Row, record: Record | None, body_sound: bool) -> bool:
        """Whether it counts."""
        at = self._at
        if row.ordinal > self._next_told and not self._miss(segment.file, row.ordinal - 1):
            return False
        if record is None or (not body_sound and row.ordinal > self._synced):
            self._stop(Kind.BAD_RECORD, segment.file, f"at {row.offset}", (row.place,))
            self._told = row.ordinal
        elif record.place <= at.place or not self._replay.apply(at, record):
            self._stop(Kind.BROKEN_CHAIN, segment.file, f"at {row.offset}", (row.place,))
            self._told = row.ordinal
        else:
            self._at = Position(row.ordinal, record.place, record.chain)
            self._replayed += 1
            if row.ordinal <= self._synced:
                self._synced_at = self._at
            else:
                self._tail.append((segment, row))
            return True
        return False

    @property
    def _next_told(self) -> int:
        """The ordinal that is to follow, but for what was told already."""
        return max(self._at.ordinal, self._told) + 1

    def _miss(self, file: str, last: int) -> bool:
        """What is to follow, up to that ordinal, is not there. Whether the log goes on behind it."""
        self._stop(Kind.MISSING, file, f"records {self._next_told} to {last}", ())
        self._told = last
        return not self._ended

    def _stop(self, kind: Kind, file: str, text: str, places: tuple[Place, ...]) -> None:
        """The log ends here, unless it is damage that nobody could mend."""
        if self._ended:
            return
        if self._alone and self._next_told <= self._synced and kind is not Kind.UNREADABLE:
            self._tell(kind, file, text, places)
            return
        self._ended = True
        if self._next_told > self._synced and kind is not Kind.UNREADABLE:
            self._tell(Kind.TORN, file, text, places)
        else:
            self._tell(kind, file, text, places, halts=True)

    def _tell(self, kind: Kind, file: str, text: str, places: tuple[Place, ...], halts: bool = False) -> None:
        problem = Problem(kind, file, text, places, halts)
        self._survey.problems.append(problem)

    async def _open(self, log_id: bytes) -> None:
        found, survey = self.found, self._survey
        for problem in found.problems:
            (log.error if problem.halts else log.warning)("recovery of the log", problem=problem)
        if found.halted:
            self.writer = Writer(self.segments, log_id, survey.next_number, self._at, found.halted)
            return
        if self._tail:
            try:
                await self._rewrite_tail(log_id)
            except DiskError as error:
                log.warning("the end of the log cannot be written again, it is only synced", error=error)
                await self._folder.sync(self._tail[0][0].file)
        found.synced = self._at
        self.writer = Writer(self.segments, log_id, survey.next_number, self._at)
        self._folder.discard(survey.void, self._settings.retry_interval)
        if self._at.ordinal < self._synced or any(problem.kind is Kind.TORN for problem in found.problems):
            try:
                await self.writer.begin()
            except DiskError as error:
                log.warning("what was torn off is not marked as such yet", error=error)

    async def _rewrite_tail(self, log_id: bytes) -> None:
        """Of what is behind the mark some may have been synced, and reported, all the same: so the new segment, which
        makes the old copies void, takes their place by one rename, when it is whole."""
        number = self._survey.next_number
        self._survey.next_number += 1
        old, synced = self._tail[0][0], self._synced_at
        mark = self._folder.runtime.entropy(MARK_SIZE)
        header = Header(log_id, number, number, synced.ordinal + 1, 0, synced, mark).encode()
        new = Segment(SegmentName(number, number, 0), mark, synced, self._at.ordinal, len(header), Table())
        assert new.table is not None
        buffers: list[Buffer] = [header]
        for _, row in self._tail:
            record = await self.segments.read(row.place)
            buffers += (encode_head(record, mark, synced.ordinal), *record.bodies)
            new.table.add(record, new.size)
            new.size += record.size
        footer = encode_footer(new.table, b"", [], new.size)
        new.file_size = new.size + sum(map(len, footer))
        temporary = new.file + TEMPORARY
        try:
            await self._folder.make_way(temporary)  # an earlier start may have come as far as this
            await self._folder.append(temporary, buffers + footer)
            await self._folder.sync(temporary)
            await self._folder.replace(temporary, new.file)
        except DiskError:
            await self._folder.remove(new.file)  # neither may count later, when the log has gone on without it
            await self._folder.remove(temporary)
            raise
        if old.first > synced.ordinal:
            self.segments.replace([old], [])
            self._survey.void.append(old.file)
        else:
            self.segments.shorten(old, synced.ordinal)
        self.segments.add(new)
