"""The writer: units become records of the active segment, appended and synced away from the loop.

One append carries everything of a turn, or of the time that the previous one took; one sync at a time serves all that
was appended before it. What is reported synced rises, in the order of the units. A new segment gets its first byte
only when the one before is synced, so that what survives a crash is always a beginning of the log. Units are kept
until they are synced: after a failed sync they are written again, to another segment. While the disk refuses,
`blocked` is True, and it is asked again after a pause.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from coterie.broker.store.files import SegmentName
from coterie.broker.store.format import Header, mark_of
from coterie.broker.store.index import Index
from coterie.broker.store.reserve import Reserve
from coterie.broker.store.segment import Segment
from coterie.broker.store.settings import StoreSettings
from coterie.broker.store.unit import Unit
from coterie.durations import Durations
from coterie.errors import NoSuchFile
from coterie.logs import Log
from coterie.runtime.base import Buffer, Runtime, Timer

log = Log(__name__)
GATHERING = 0.005
"""Seconds that what nobody waits for (acks) waits for something to be written with: one call writes and syncs both."""


class Writer:
    """Of one store, from the end of its recovery on."""

    def __init__(
        self,
        runtime: Runtime,
        settings: StoreSettings,
        index: Index,
        folder: str,
        secret: bytes,
        incarnation: int,
        next_id: int,
        next_number: int,
        reserve: Reserve,
    ) -> None:
        self._runtime = runtime
        self._settings = settings
        self._index = index
        self._folder = folder
        self.secret = secret
        self.incarnation = incarnation
        self._next_id = next_id
        self._reserve = reserve
        self.next_number = next_number
        """Of the next message."""
        self.synced_number = next_number
        """Messages below this number are on disk."""
        self.written = 0
        """The place in the log after everything that the store was told."""
        self.synced = 0
        """The place up to which it is durable."""
        self.on_synced: Callable[[list[Unit]], None] = lambda units: None
        self.on_blocked: Callable[[bool], None] = lambda blocked: None
        self.blocked = False
        self.active: Segment | None = None
        self.syncs = 0
        self.sync_times = Durations()
        self.appends = 0
        self._pending: list[Unit] = []
        self._appending: list[tuple[Unit, int]] = []
        """Each with where its contents begin in what is appended."""
        self._unsynced: list[Unit] = []
        self.held = 0
        """Bytes that are not synced yet."""
        self._wanted = 0
        """Somebody waits for this place in the log to be synced."""
        self._waiters: deque[tuple[int, Callable[[], None]]] = deque()
        self._timer: Timer | None = None
        self._ripens: Timer | None = None
        self._ripe = False
        """What is to be written is written even if nobody waits for it."""
        self._busy = False
        self._syncing = False
        self._paused = False
        self._failures = 0
        self._full = False
        self._behind = False
        self._broken = False
        """The active segment cannot be synced any more."""
        self._making = False
        """The reserve is being made, or will be tried again."""
        self._synced_size = 0
        self._previous = (0, 0)
        self._given_up: Segment | None = None
        """The segment before the next one, if it was given up."""
        self.stopped = False
        """Nobody will ever read what it was told."""

    # What is to be written.

    def add(self, unit: Unit) -> None:
        self._pending.append(unit)
        self.held += unit.size
        if self.held > self._settings.pending_max and not self._behind:
            self._behind = True
            self._tell()

    def when_synced(self, upto: int, done: Callable[[], None]) -> None:
        if upto <= self.synced and not self._waiters:
            done()
            return
        self._waiters.append((upto, done))
        self._wanted = max(self._wanted, upto)

    def sync_soon(self, upto: int) -> None:
        """Nobody waits for it, but it shall not take long."""
        self._wanted = max(self._wanted, upto)

    def mark(self) -> tuple[int, int]:
        """What it was told of, and what somebody wants to be synced."""
        return self.written, self._wanted

    def cut(self, mark: tuple[int, int]) -> None:
        """It was told nothing since."""
        self.written, self._wanted = mark

    @property
    def reserve(self) -> Reserve:
        return self._reserve

    def retire(self) -> None:
        """Another generation of the store follows. What this one was told is still written and synced."""
        self.on_synced, self.on_blocked = _ignore, _ignore
        self._reserve = Reserve(self._runtime, "", 0, False)
        self.sync_soon(self.written)
        self.flush()

    def stop(self) -> None:
        """Nobody will ever read what this one was told."""
        self.on_synced, self.on_blocked = _ignore, _ignore
        self._reserve = Reserve(self._runtime, "", 0, False)
        self.stopped = True

    @property
    def refused(self) -> bool:
        """The disk did not take what it was given last."""
        return self._failures > 0

    def flush(self) -> None:
        """Write what there is to write, sync what somebody waits for, unless the disk is busy with that already."""
        if self._busy or self._paused or self.stopped:
            return
        segment = self.active
        if segment is not None and segment.size >= self._settings.segment_bytes:
            self._busy = True
            self._sync(self._rolled)
            return
        wanted = self._wanted > self.synced or 4 * self.held > self._settings.pending_max
        if self._pending and (wanted or self._ripe):
            self._append(segment or self._begin())
        elif self._pending and self._ripens is None:
            self._ripens = self._runtime.call_later(GATHERING, self._ripened)
        if self._unsynced or self._appending:
            if wanted:
                self._busy = True
                self._sync(self._sync_ended)
            elif self._timer is None:
                self._timer = self._runtime.call_later(self._settings.sync_interval, self._sync_now)

    def _ripened(self) -> None:
        """What nobody waits for has waited long enough for company."""
        self._ripens = None
        self._ripe = True
        self.flush()

    def _sync_now(self) -> None:
        self._timer = None
        if self._unsynced:
            self._wanted = max(self._wanted, self._unsynced[-1].upto)
        elif self._appending:
            self._wanted = max(self._wanted, self._appending[-1][0].upto)
        self.flush()

    def _begin(self) -> Segment:
        id = self._next_id
        self._next_id += 1
        first = self._pending[0].first
        name = str(SegmentName(id, id, 0))
        segment = Segment(id, id, 0, name, mark_of(self.secret, name), first)
        segment.after = self._given_up
        self._index.add(segment)
        self.active = segment
        self._synced_size = 0
        return segment

    def _append(self, segment: Segment) -> None:
        units, self._pending = self._pending, []
        self._ripe = False
        if self._ripens is not None:
            self._ripens.cancel()
            self._ripens = None
        buffers: list[Buffer] = []
        size = 0
        if not segment.size:
            header = Header(self.incarnation, segment.id, segment.id, segment.first, *self._previous, self.secret)
            buffers.append(header.encode())
            size = len(buffers[0])
        for unit in units:
            head = unit.encode(segment)
            buffers.append(head)
            buffers += unit.contents
            size += len(head)
            self._appending.append((unit, size))
            size += unit.content_size
        self._busy = True
        self.appends += 1
        self._runtime.disk.append(self._path(segment), buffers, lambda result: self._appended(segment, size, result))

    def _path(self, segment: Segment) -> str:
        return f"{self._folder}/{segment.name}"

    def _appended(self, segment: Segment, size: int, result: int | Exception) -> None:
        units, self._appending = self._appending, []
        if isinstance(result, Exception):
            self._pending[:0] = [unit for unit, _ in units]
            self._refused(result)
        else:
            for unit, offset in units:
                unit.place(segment, self._index, result + offset)
                self._unsynced.append(unit)
            segment.size = result + size
        if not self._syncing:
            self._busy = False
            self.flush()

    # What is safe.

    def _sync(self, ended: Callable[[Exception | None], None]) -> None:
        assert self.active is not None
        self._syncing = True
        self.syncs += 1
        began = self._runtime.now()

        def timed(error: Exception | None) -> None:
            self.sync_times.add(self._runtime.now() - began)
            ended(error)

        self._runtime.disk.sync(self._path(self.active), timed)

    def _sync_ended(self, error: Exception | None) -> None:
        self._busy = self._syncing = False
        if error is not None:
            self._broken = True
            self._refused(error)
        else:
            self._safe()
            self._accepted()
        self.flush()

    def _rolled(self, error: Exception | None) -> None:
        segment = self.active
        assert segment is not None
        if error is None:
            segment.sealed = True
            self._previous, self._given_up = (segment.id, segment.size), None
            self.active = None
        self._sync_ended(error)
        if error is None:
            self._index.check(segment)

    def _safe(self) -> None:
        """Everything that was appended is synced."""
        units, self._unsynced = self._unsynced, []
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if not units:
            return
        segment = self._index.segments[-1]
        self._synced_size = segment.size
        for unit in units:
            self.held -= unit.size
            unit.take_effect(segment, self._index)
        self.synced = units[-1].upto
        self.synced_number = units[-1].next_number
        if self._behind and 2 * self.held <= self._settings.pending_max:
            self._behind = False
            self._tell()
        self.on_synced(units)
        self._fire()

    def _fire(self) -> None:
        waiters = self._waiters
        try:
            while waiters and waiters[0][0] <= self.synced:
                waiters.popleft()[1]()
        finally:
            if waiters and waiters[0][0] <= self.synced:  # one of them raised: the others are told all the same
                self._runtime.call_soon(self._fire)

    # When the disk refuses.

    def _refused(self, error: Exception) -> None:
        self._failures += 1
        if not self._full:
            self._full = True
            log.error("the disk refuses: publishers are blocked", error=error)
            self._tell()
        if self._paused:  # an append and its sync both failed
            return
        self._paused = True
        if self._reserve.present:
            self._reserve.give_up(self._retry)
        else:
            self._runtime.call_later(self._settings.retry_interval, self._retry)

    def _retry(self) -> None:
        self._paused = False
        if self._busy:
            return
        if self._broken or self._failures > 1:
            self._abandon()
        self.flush()
        if not (self._pending or self._unsynced or self._busy):
            self._accepted()  # nothing is left to try it with: all is synced, and blocked publishers bring nothing new

    def _abandon(self) -> None:
        """Go on with another segment. What of this one is not synced is written again there."""
        segment = self.active
        if segment is None:
            return
        units, self._unsynced = self._unsynced, []
        self._pending[:0] = units
        broken, self._broken = self._broken, False
        self.active = None
        if not self._synced_size:
            self._index.replace([segment], None)
            self._index.move_saved([segment], None, {})
            self._paused = True
            self._discard(self._path(segment))
            return
        self._previous, self._given_up = (segment.id, self._synced_size), None
        if units:
            segment.cut(units[0].first)
        segment.size = self._synced_size
        segment.sealed = True
        if units or broken:
            self._given_up = segment
            segment.given_up = True
            self._cut_off(segment)

    def _discard(self, path: str) -> None:
        """Nothing of it is synced: it goes, and for good, before another segment is begun. No header would tell that it
        does not count."""

        def removed(error: Exception | None) -> None:
            if error is not None and not isinstance(error, NoSuchFile):
                self._runtime.call_later(self._settings.retry_interval, self._discard, path)
                return
            self._paused = False
            self.flush()

        self._runtime.disk.remove(path, removed)

    def _cut_off(self, segment: Segment) -> None:
        """If the disk does that, and syncs it, nothing behind the end comes back; if not, compaction writes it anew."""
        disk, path = self._runtime.disk, self._path(segment)

        def truncated(error: Exception | None) -> None:
            if error is None:
                disk.sync(path, ended)
            else:
                ended(error)

        def ended(error: Exception | None) -> None:
            if error is None:
                self._index.settle_end(segment)
            else:
                self._index.ripe[segment.id] = None

        disk.truncate(path, segment.size, truncated)

    def _accepted(self) -> None:
        """A sync has succeeded; an append alone proves nothing, for the disk may find out later that it is full."""
        if self._paused:  # what was synced is older than what was refused
            return
        self._failures = 0
        if self._full and not self._reserve.wanted:
            self._recovered()
        elif self._full and not self._making:
            self.restore_reserve()

    def restore_reserve(self) -> None:
        """Make the reserve, and try again as long as there is no room for it."""
        self._making = True
        if self._reserve.wanted:
            self._reserve.make(self._reserve_made)
        else:
            self._reserve_made(True)

    def _reserve_made(self, made: bool) -> None:
        if made:
            self._making = False
            if self._full:
                self._recovered()
            return
        if not self._full:
            self._full = True
            log.error("there is no room for the reserve: publishers are blocked", bytes=self._settings.reserve_bytes)
            self._tell()
        self._runtime.call_later(self._settings.retry_interval, self._make_again)

    def _make_again(self) -> None:
        if self._failures:  # the log comes first; once it is taken again there will be another try
            self._making = False
            return
        self.restore_reserve()

    def _recovered(self) -> None:
        self._full = False
        log.info("the disk takes data again")
        self._tell()

    def _tell(self) -> None:
        blocked = self._full or self._behind
        if blocked != self.blocked:
            self.blocked = blocked
            self.on_blocked(blocked)


def _ignore(_: object) -> None:
    """Nobody listens any more."""
