"""The writer: records are appended to the active segment and synced, many at a time.

What was appended in one turn of the loop, or while the disk was busy, goes out as one write with one sync. Records are
kept in memory until they are synced. When a sync fails nobody knows what the disk has of them, so the file is given up
at its last synced record, and what follows is written again, to a new segment, whose header says so. While the disk
refuses, `refused` is True; it is tried again by itself. A new segment gets its first byte only when everything before
its first record is synced: what survives a crash is a beginning of the log.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from heapq import heappop, heappush
from typing import Final

from coterie.durations import Durations
from coterie.errors import DiskError
from coterie.log.errors import LogHalted
from coterie.log.growing import GrowingSegment
from coterie.log.place import Place, Position
from coterie.log.record import MARK_SIZE, Record, encode_note
from coterie.log.segments import Segments
from coterie.logs import Log
from coterie.runtime.base import Buffer, Timer, resolve

_GARBAGE_MAX: Final = 8
"""Files that cannot be removed, above which a disk that refuses is not given others."""
log = Log(__name__)


class Writer:
    """Of one log, from the end of its recovery on."""

    def __init__(self, segments: Segments, log_id: bytes, next_number: int, last: Position, halted: str = "") -> None:
        """`last`: the last record that counts; it is synced."""
        self._segments = segments
        self._folder = segments.folder
        self._runtime = segments.folder.runtime
        self._disk = self._runtime.disk
        self._settings = segments.settings
        self.log_id = log_id
        self._next_number = next_number
        self.halted = halted
        """Why it takes no records: damage that only `truncate` may give up."""
        self.last = last
        """The last record that was appended."""
        self.synced = last
        """The last one that is on disk."""
        self.life = 1
        """Each truncation begins another. What was asked in an earlier one is never answered."""
        self.unsynced = 0
        """Bytes of records that are not on disk yet."""
        self.refused = False
        self.appends = 0
        self.syncs = 0
        self.sync_times = Durations()
        self.stopped = False
        """Nobody will ever read what it was told: it leaves the disk alone."""
        self.on_refused: Callable[[bool], None] = lambda refused: None
        self.on_synced: Callable[[Position], None] = lambda last: None
        """Called before those who wait for it."""
        self.runs: Callable[[Place, Place], bytes] = lambda first, last: b""
        """What the owner wants in the footer of a segment with the records from the first place to the last; it is read
        again by `Segments.runs`."""
        self.on_closed: Callable[[], None] = lambda: None
        """A segment was closed."""
        self._active: GrowingSegment | None = None
        self._pending: list[Record] = []
        self._appending: list[Record] = []
        self._unsynced: list[Record] = []
        self._kept: dict[Place, Record] = {}
        """Records that are not on disk yet, by place."""
        self._waiters: list[tuple[Place, int, Callable[[], None]]] = []
        self._asked = 0
        self._timer: Timer | None = None
        self._note_timer: Timer | None = None
        self._noted = last.ordinal
        self._wanted = last.place
        """Somebody waits until that record is synced. There is no hurry with what is behind it."""
        self._gathering: Timer | None = None
        self._gathered = False
        """What is pending has waited long enough for company."""
        self._scheduled = False
        self._busy = 0
        """Calls to the disk that have not ended."""
        self._paused = False
        self._failures = 0
        self._void: list[str] = []
        """Segments given up with nothing synced in them. They go when the next one is durable, not before: one that a
        truncation began is what tells that earlier records do not count."""
        self._broken = False
        """No sync of the active segment can be believed any more."""
        self._when_idle: list[Callable[[], None]] = []
        """Whoever wants the disk for something else, such as a truncation."""

    # What is to be written.

    def append(self, record: Record, hurry: bool = True) -> int:
        """Gives its ordinal. `hurry`: it is written in this turn, and synced as soon as can be unless it is volatile;
        otherwise the caller has to `flush`. Raises LogHalted, and ValueError if the place does not follow the last
        one."""
        if self.halted:
            raise LogHalted(self.halted)
        if record.place <= self.last.place:
            raise ValueError(f"place {record.place} does not follow {self.last.place}")
        record.ordinal = self.last.ordinal + 1
        self.last = Position(record.ordinal, record.place, record.chain)
        self._pending.append(record)
        self._kept[record.place] = record
        self.unsynced += record.size
        if hurry:
            if not record.volatile:
                self._wanted = record.place
            if not self._scheduled:
                self._scheduled = True
                self._runtime.call_soon(self._turn)
        return record.ordinal

    def recent(self, place: Place) -> Record | None:
        """A record that is not known to be on disk yet."""
        return self._kept.get(place)

    @property
    def full(self) -> bool:
        """It should not be given more for now. It takes it all the same: whoever orders records must heed this."""
        return self.refused or self.unsynced > self._settings.backlog_bytes

    def when_synced(self, place: Place, done: Callable[[], None]) -> None:
        """Call when everything up to that place is on disk: at once if it is, and never after a truncation."""
        if place <= self.synced.place:
            done()
            return
        self._asked += 1
        heappush(self._waiters, (place, self._asked, done))
        if place <= self.last.place:
            self.hurry(place)

    def hurry(self, place: Place) -> None:
        """Somebody waits until that record is synced."""
        if place > self._wanted:
            lazy, self._wanted = self._lazy, place
            if lazy:
                self.flush()

    @property
    def _lazy(self) -> bool:
        return self._wanted <= self.synced.place

    def _turn(self) -> None:
        self._scheduled = False
        self.flush()

    def flush(self) -> None:
        """Write what there is to write, unless the disk is busy with that already."""
        if self._busy or self._paused or self.stopped:
            return
        if self._when_idle:
            self._when_idle.pop(0)()
            return
        active = self._active
        ripe = active is not None and active.ripe
        if ripe and not self._unsynced:
            self._close_segment(self.flush)
            return
        hurried = not self._lazy or 4 * self.unsynced > self._settings.backlog_bytes
        if self._pending and not ripe and (hurried or self._gathered or not self._settings.gather_delay):
            self._append()
        elif self._pending and not ripe and self._gathering is None:
            self._gathering = self._runtime.call_later(self._settings.gather_delay, self._gather_ended)
        if self._unsynced or self._appending:
            if hurried or ripe:
                self._sync()
            elif self._timer is None:
                self._timer = self._runtime.call_later(self._settings.sync_interval, self._hurry)

    def _gather_ended(self) -> None:
        self._gathering = None
        self._gathered = True
        self.flush()

    def _hurry(self) -> None:
        self._timer = None
        self._wanted = self.last.place
        self.flush()

    def _append(self) -> None:
        count = size = 0
        most = self._settings.append_bytes >> 4 * self._failures  # a disk that is almost full takes little at a time
        for record in self._pending:
            if count and size + record.size > most:
                break
            if count >= self._settings.segment_records:
                break
            count += 1
            size += record.size
        records, self._pending = self._pending[:count], self._pending[count:]
        self._gathered = bool(self._pending) and self._gathered
        if self._gathering is not None and not self._pending:
            self._gathering.cancel()
            self._gathering = None
        self.appends += 1
        if self._active is None:
            self._active = self._begin()
        active = self._active
        buffers = active.encode(records, self.synced.ordinal)
        self._appending = records
        self._busy += 1
        path = self._folder.path(active.file)
        self._disk.append(path, buffers, lambda result: self._appended(active, buffers, result))

    def _begin(self) -> GrowingSegment:
        number = self._next_number
        self._next_number += 1
        mark = self._runtime.entropy(MARK_SIZE)
        return GrowingSegment(self._settings, self.log_id, number, mark, self.synced)

    def _appended(self, active: GrowingSegment, buffers: list[Buffer], result: int | Exception) -> None:
        segment = active.segment
        records, self._appending = self._appending, []
        self._busy -= 1
        if not isinstance(result, Exception) and result != segment.size:
            self._broken = True
            result = DiskError(f"{segment.file} has {result} bytes and not {segment.size}: does another node use it?")
        if isinstance(result, Exception):
            self._pending[:0] = records
            self._fail(result)
        else:
            if not segment.size:
                self._segments.add(segment)
            active.grow(records, buffers)
            self._unsynced += records
        self.flush()

    # What is safe.

    def _sync(self) -> None:
        assert self._active is not None
        self._busy += 1
        self.syncs += 1
        began = self._runtime.now()

        def ended(error: Exception | None) -> None:
            self.sync_times.add(self._runtime.now() - began)
            self._sync_ended(error)

        self._disk.sync(self._folder.path(self._active.file), ended)

    def _sync_ended(self, error: Exception | None) -> None:
        self._busy -= 1
        if error is not None:
            self._broken = True
            self._fail(error)
        else:
            self._safe()
        self.flush()

    def _safe(self) -> None:
        """Everything that was appended is synced."""
        records, self._unsynced = self._unsynced, []
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if not self._paused:
            self._failures = 0
            self._tell(refused=False)
        self._folder.discard(self._void, self._settings.retry_interval)
        self._void = []
        if not records:
            return
        last = records[-1]
        self.synced = Position(last.ordinal, last.place, last.chain)
        for record in records:
            self.unsynced -= record.size
            del self._kept[record.place]
        if self._note_timer is None:
            self._note_timer = self._runtime.call_later(self._settings.note_delay, self._note)
        self.on_synced(self.synced)
        self._fire()

    def _fire(self) -> None:
        waiters = self._waiters
        try:
            while waiters and waiters[0][0] <= self.synced.place:
                heappop(waiters)[2]()
        finally:
            if waiters and waiters[0][0] <= self.synced.place:  # one of them raised: the others are called all the same
                self._runtime.call_soon(self._fire)

    def _note(self) -> None:
        """Nothing follows that would tell that the last records are synced."""
        self._note_timer = None
        active = self._active
        if self._busy or self._paused or self._pending or self._unsynced or active is None or self._broken:
            return
        if self.stopped:
            return
        if self._noted >= self.synced.ordinal or active.ripe:
            return
        segment = active.segment
        self._noted = self.synced.ordinal
        note = encode_note(self.synced.ordinal, segment.mark)

        def appended(result: int | Exception) -> None:
            self._busy -= 1
            if not isinstance(result, Exception):
                segment.size = result + len(note)
            self.flush()

        self._busy += 2
        self._disk.append(self._folder.path(segment.file), [note], appended)
        self._disk.sync(self._folder.path(segment.file), self._sync_ended)

    # Closing segments.

    def _close_segment(self, done: Callable[[], None]) -> None:
        """Everything in it is synced. The footer only makes reading it quicker: if the disk refuses it, so be it."""
        assert self._active is not None
        segment, footer = self._active.segment, self._active.footer(self.runs)
        self._active = None
        size = segment.size + sum(map(len, footer))
        written: list[int | Exception] = []

        def synced(error: Exception | None) -> None:
            self._busy -= 1
            segment.closed = True
            if error is None and written == [segment.size]:
                segment.file_size = size
            else:
                log.warning("a segment was closed without footer", file=segment.file, error=error or written[0])
            self.on_closed()
            done()

        self._busy += 1
        path = self._folder.path(segment.file)
        self._disk.append(path, footer, written.append)
        self._disk.sync(path, synced)

    # When the disk refuses.

    def _fail(self, error: Exception) -> None:
        self._failures += 1
        log.error("the log cannot be written; trying again", error=error)
        self._tell(refused=True)
        if not self._paused:
            self._paused = True
            self._runtime.call_later(self._settings.retry_interval, self._retry)

    def _tell(self, refused: bool) -> None:
        if refused != self.refused:
            self.refused = refused
            self.on_refused(refused)

    def try_again(self) -> None:
        """The disk may take more by now."""
        if not self._busy:
            self._retry()

    def _retry(self) -> None:
        if not self._paused or self.stopped:
            return
        if self._busy or len(self._folder.garbage) > _GARBAGE_MAX:  # a sync may take longer than the pause
            self._runtime.call_later(self._settings.retry_interval, self._retry)
            return
        self._paused = False
        if self._broken or self._failures > 1:
            self._give_up_segment()
        self.flush()
        if not (self._pending or self._unsynced or self._busy):
            self._failures = 0
            self._tell(refused=False)

    def _give_up_segment(self) -> None:
        """What of it is not synced is written again, to another one."""
        self._pending[:0] = self._unsynced
        self._unsynced = []
        active, self._active = self._active, None
        self._broken = False
        if active is None:
            return
        segment = active.segment
        if not segment.size:  # nothing was ever written to it
            self._folder.discard([segment.file], self._settings.retry_interval)
        elif segment.before.ordinal == self.synced.ordinal:
            self._segments.replace([segment], [])
            if self._void:  # one header is enough to tell where the log ends, and a disk that fails for long fills up
                self._folder.discard([segment.file], self._settings.retry_interval)
            else:
                self._void.append(segment.file)
        else:
            segment.size = active.size_upto(self.synced.ordinal)
            self._segments.shorten(segment, self.synced.ordinal)

    # Truncation, and the end.

    def end_life(self) -> None:
        """A truncation comes: nothing that was asked before is answered, and nothing is taken until it has ended."""
        self.life += 1
        self._waiters.clear()
        self.halted = "the log is being truncated"

    async def truncate(self, last: Position, prepare: Callable[[int], Awaitable[None]]) -> None:
        """Everything behind that record, one of this log, is given up, for good when this ends. `end_life` comes before
        it; `prepare` is awaited first. Raises DiskError: then it is not known what the disk has, and the log takes
        nothing until it was tried again."""
        await self._idle()
        try:
            await prepare(last.ordinal)
            self._give_up_segment()
            dropped = [record for record in self._pending if record.ordinal > last.ordinal]
            self._pending = self._pending[: len(self._pending) - len(dropped)]
            for record in dropped:
                self.unsynced -= record.size
                del self._kept[record.place]
            if last.ordinal < self.synced.ordinal:
                self.synced = last
            self.last = last
            self._wanted = min(self._wanted, last.place)
            await self._cut()
            self.halted = ""
        except DiskError:
            self.halted = "a truncation failed: it has to be tried again"
            raise
        finally:
            self._busy -= 1
            self.flush()

    async def begin(self) -> None:
        """Begin a segment at once: it tells that nothing counts that is behind the last synced record."""
        await self._idle()
        try:
            await self._cut()
        finally:
            self._busy -= 1
            self.flush()

    async def _cut(self) -> None:
        """Whatever is on disk behind the last synced record stops counting by one durable header."""
        active = self._begin()
        segment = active.segment
        await self._folder.append(segment.file, [active.header])
        await self._folder.sync(segment.file)
        segment.size = len(active.header)
        void = [other for other in self._segments.list if other.first > self.synced.ordinal]
        for other in void:
            self._segments.replace([other], [])
        self._folder.discard([*self._void, *(other.file for other in void)], self._settings.retry_interval)
        self._void = []
        if self._segments.list and self._segments.list[-1].last > self.synced.ordinal:
            self._segments.shorten(self._segments.list[-1], self.synced.ordinal)
        self._segments.add(segment)
        self._active = active
        self._noted = self.synced.ordinal

    async def _idle(self) -> None:
        """Until the disk does nothing for this writer; from then on it is the caller's, who lowers `_busy`."""
        if not self._busy and not self._when_idle:
            self._busy += 1
            return
        ready = self._runtime.future()

        def idle() -> None:
            self._busy += 1
            resolve(ready, None)

        self._when_idle.append(idle)
        await ready

    def stop(self) -> None:
        """Nobody will ever read what it was told."""
        self.stopped = True
        self.on_refused, self.on_synced, self.on_closed = _ignore, _ignore, _nothing
        self._waiters.clear()

    async def close(self) -> None:
        """A proper end: everything is synced, the segment has its footer. Gives up if the disk refuses."""
        while (self._pending or self._unsynced) and not self.refused:
            self._wanted = self.last.place
            self.flush()
            await self._folder.rest(0.001)
        await self._idle()
        if self._active is not None and not (self._unsynced or self._pending):
            closed = self._runtime.future()
            self._close_segment(lambda: resolve(closed, None))
            await closed
        self.halted = "the log is closed"
        self._busy -= 1
        self.flush()


def _ignore(_: object) -> None:
    """Nobody listens any more."""


def _nothing() -> None:
    """Nor here."""
