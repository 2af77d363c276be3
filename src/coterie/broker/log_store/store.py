"""LogStore: the store of a node with a data folder. What durable queues have is ranges over a log.

It hears of durable queues as one of their observers and gathers what it hears in one turn into a unit, which becomes
one record: what it does to the index as effects, what is saved in the head, the contents of messages as bodies. How far
a queue's positions have gone is noted ahead of time, so that after a crash no position is given twice; everything is
flagged redelivered then.
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Callable, Sequence
from itertools import groupby
from typing import TYPE_CHECKING, Final

from coterie.broker.delivery import count_of
from coterie.broker.journal import restore_key
from coterie.broker.log_store.content import PLAIN, prologue
from coterie.broker.log_store.generation import Generation
from coterie.broker.log_store.index import Index
from coterie.broker.log_store.lines import Line, Part, QueueKey, kind_of
from coterie.broker.log_store.opening import Opening
from coterie.broker.log_store.own_records import CLOSED, LINE, STARTED
from coterie.broker.log_store.reserve import Reserve
from coterie.broker.log_store.settings import StoreSettings
from coterie.broker.log_store.unit import Arrival, Cut, Unit
from coterie.broker.message_table import within
from coterie.broker.observer import Mark, Reason
from coterie.broker.ranges import PositionSet
from coterie.broker.state.vocabulary import Kind
from coterie.broker.storage import Loaded, Record, Recovered, Store
from coterie.errors import DiskError
from coterie.log.generation import Generations
from coterie.log.place import Position
from coterie.log.writer import Writer
from coterie.logs import Log
from coterie.runtime.base import Future, Runtime

if TYPE_CHECKING:
    from coterie.broker.message import Message
    from coterie.broker.observer import Arrived
    from coterie.broker.queue import Queue
    from coterie.broker.ranges import Range

log = Log(__name__)

_LOOK: Final = 0.01
"""Seconds between two looks at whether the disk has done what it was asked to do."""
_PATIENCE: Final = 1.0
"""Seconds that what the old generation was told may take to be written. The rest is lost, as by a crash."""
_OFFSET: Final = 32
"""`Message.stored`: the record, then so many bits of the offset in it."""
POSITIONS_PER_SECOND: Final = 10_000_000
"""More than any queue gives."""
_CLOSING_SNAPSHOT: Final = 1 << 16
"""Growth of the log after which a proper end writes a snapshot: less is replayed at once."""
Step = tuple[Cut, int, int, int, int]


class LogStore(Store):
    """`recover` first; everything else after its `done`."""

    def __init__(self, runtime: Runtime, settings: StoreSettings | None = None, folder: str = "log") -> None:
        self._runtime = runtime
        self.settings = settings or StoreSettings()
        self._of_log = self.settings.of_log()
        self._folder = folder
        self._generations = Generations(runtime, folder, self.settings.aside_max)
        self.current: Generation
        self._kept: Generation | None = None
        """The one that still counts while the current one is being made."""
        self._older: list[Generation] = []
        """Some whose background work may not have ended."""
        self._completion: Future[None] | None = None
        self._deaf = False
        """What it hears is of another generation."""
        self._closed = False
        self.incarnation = 0
        self.reserve = Reserve(runtime, f"{folder}.reserve", 0, False)
        self._unit = Unit()
        self._record = 0
        """The index of the last record."""
        self._told_upto = 0
        self._synced_upto = 0
        self._wanted = 0
        """Somebody waits for this place to be synced."""
        self._waiters: deque[tuple[int, Callable[[], None]]] = deque()
        self._depth = 0
        """Of `begin` without `end`."""
        self._marked = 0
        """Steps that may fail: until they are over no unit ends."""
        self._scheduled = False
        self._full = False
        self._behind = False
        self._making = False
        """The reserve is being made, or will be tried again."""
        self.blocked = False
        self._on_blocked: Callable[[bool], None] = self._alarm
        self._queues: dict[Queue, Line] = {}

    # Life.

    def recover(self, done: Callable[[Recovered | Exception], None]) -> None:
        self._runtime.spawn(self._recover(done, goes_back=False))

    async def _recover(self, done: Callable[[Recovered | Exception], None], goes_back: bool) -> None:
        try:
            if goes_back:
                await self._settle()
                self._kept = None
            opening = Opening(self._runtime, self.settings, self._generations)
            generation = self.current = await opening.run()
            present = await opening.reserve(self.reserve.path) >= self.settings.reserve_bytes > 0
        except DiskError as error:
            done(error)
            return
        self._listen(generation)
        self.reserve = Reserve(self._runtime, self.reserve.path, self.settings.reserve_bytes, present)
        self._record = max(self._record, generation.log.writer.last.place.index)
        result = opening.result
        self.incarnation = result.incarnation
        self._unit = Unit()
        self._queues = {}
        if goes_back:
            self._full = self._behind = False
            self._tell()
        self._trace_generation("opened", generation.number)
        for line in generation.index.lines.values():
            self._reserve(line, line.next - 1)
        self.save(STARTED, "", {"incarnation": self.incarnation})
        if self.reserve.wanted:
            self._restore_reserve()
        self._start(result, done)

    def _listen(self, generation: Generation) -> None:
        writer = generation.log.writer
        writer.on_refused = self._refused
        writer.on_synced = self._synced
        writer.on_closed = generation.tender.merge

    def _start(self, result: Recovered, done: Callable[[Recovered | Exception], None]) -> None:
        """The first record says that the node has started; the broker goes on once it is durable, or cannot be."""
        told = False

        def tell() -> None:
            nonlocal told
            if not told:
                told = True
                self._on_blocked = self._alarm
                done(result)

        def blocked(value: bool) -> None:
            if not told:
                self._leap(result)
            tell()
            self._alarm(value)

        self._on_blocked = blocked
        self.when_synced(self._told_upto, tell)
        self._turn_over()
        self.current.tender.look()
        self.current.tender.merge()

    def _leap(self, result: Recovered) -> None:
        """The disk does not even take that the node has started, so the next start may know nothing of this one, and
        would give the same positions and numbers of queues again. Positions go on from the clock's, which only rises
        and outruns any queue; numbers of starts need only differ, and chance sees to that."""
        result.incarnation += 1 + (int.from_bytes(self._runtime.entropy(4), "big") >> 8)
        self.incarnation = result.incarnation
        self.save(STARTED, "", {"incarnation": self.incarnation})
        clock = int(self._runtime.wall() * POSITIONS_PER_SECOND)
        for key, (next_position, messages) in list(result.queues.items()):
            line = self.index.lines[key]
            line.next = max(next_position + 1, clock)
            result.queues[key] = line.next, messages
            self._reserve(line, line.next - 1)

    def _alarm(self, value: bool) -> None:
        if self.alarm is not None:
            self.alarm(value)

    def close(self, done: Callable[[], None]) -> None:
        """Note exactly how far everything has gone. If the disk refuses that, the next start is as after a crash."""
        told = False

        def tell() -> None:
            nonlocal told
            if not told:
                told = True
                done()

        def look() -> None:
            if self.writer.refused:
                tell()
            elif not told:
                self._runtime.call_later(self.settings.retry_interval, look)

        for line in self.index.lines.values():
            line.settle()
            self._save_line(line)
        self.save(CLOSED, "", {"incarnation": self.incarnation})
        self.when_synced(self._told_upto, lambda: _forget(self._runtime.spawn(self._end(tell))))
        self._turn_over()
        self._runtime.call_later(self.settings.retry_interval, look)

    async def _end(self, done: Callable[[], None]) -> None:
        """Everything is synced. The rest only makes the next start quicker."""
        self._closed = True
        generation = self.current
        try:
            await generation.end(_CLOSING_SNAPSHOT)
        except DiskError as error:
            log.warning("the next start reads more of the log than it would have to", error=error)
        done()

    # Another generation.

    def renew(self, clear: Callable[[], None]) -> None:
        self._flush_trace()
        self._end_unit()
        old = self.current
        if self._kept is None:
            self._kept = old
            old.retire()
            self._older.append(old)
        else:  # this one was never whole
            old.stop()
            self._runtime.spawn(self._drop(old, self._completion))
        self._unheard(clear)
        self.current = Generation.new(
            self._runtime, self.settings, self._of_log, self._generations, old.log.writer.log_id
        )  # fmt: skip
        self.current.index.kept_from = self._record
        self._listen(self.current)
        self._synced_upto = self._told_upto
        self._queues = {}
        self._full = self._behind = False
        self._unit = Unit()
        self._unit.atomic = self._depth > 0
        self._trace_generation("begun", self.current.number)
        self.save(STARTED, "", {"incarnation": self.incarnation})
        self._tell()
        if self.reserve.wanted:
            self._restore_reserve()
        self._fire()

    def whole(self, done: Callable[[], None]) -> None:
        if self._kept is None:
            self.when_synced(self.written(), done)
        else:
            generation = self.current
            self._trace_generation("filled", generation.number)
            self.when_synced(self.written(), lambda: self._filled(generation, done))

    def _filled(self, generation: Generation, done: Callable[[], None]) -> None:
        if generation.stopped:  # meanwhile the broker goes back to the old one, which must not be taken from it
            return
        if generation is self.current and self._kept is not None:
            self._completion = self._runtime.spawn(self._complete(generation, done))

    async def _complete(self, generation: Generation, done: Callable[[], None]) -> None:
        while self.current is generation:
            try:
                await self._generations.complete(generation.number)
                break
            except DiskError as error:
                log.error("the disk refuses: the old store is kept", error=error)
                await self._rest(self.settings.retry_interval)
        if self.current is not generation or self._kept is None:
            return
        old, self._kept = self._kept, None
        old.stop()
        self._trace_generation("whole", generation.number)
        self._runtime.spawn(self._drop(old))
        done()

    async def _drop(self, generation: Generation, completion: Future[None] | None = None) -> None:
        """`completion`: it may be about to be made whole."""
        while (completion is not None and not completion.done()) or generation.busy:
            await self._rest(_LOOK)
        self._trace_generation("dropped", generation.number)
        try:
            await self._generations.remove(generation.number)
        except DiskError as error:
            log.warning("an old store is removed at the next start", error=error)

    @property
    def keeps_old(self) -> bool:
        return self._kept is not None

    def keep_aside(self) -> None:
        self._runtime.spawn(self._keep_aside(self.current.number))

    async def _keep_aside(self, number: int) -> None:
        try:
            await self._generations.keep_aside(number)
        except DiskError as error:
            log.error("a store that was not right cannot be kept for a look", error=error)

    @property
    def kept_aside(self) -> Sequence[str]:
        return self._generations.aside

    def go_back(self, clear: Callable[[], None], done: Callable[[Recovered | Exception], None]) -> None:
        """The new one may be about to become whole, and be found: nothing of this end belongs into it."""
        self.current.stop()
        self._older.append(self.current)
        self._unheard(clear)
        self._unit = Unit()
        self._runtime.spawn(self._recover(done, goes_back=True))

    def _unheard(self, clear: Callable[[], None]) -> None:
        self._deaf = True
        clear()
        self._deaf = False

    async def _settle(self) -> None:
        """Before the old generation is read again: what was told of it is written, and nobody writes to it."""
        kept, until = self._kept, self._runtime.now() + _PATIENCE
        while kept is not None and kept.unsynced and self._runtime.now() < until:
            await self._rest(_LOOK)
        if kept is not None:
            kept.stop()
        completion = self._completion
        while (completion is not None and not completion.done()) or any(each.busy for each in self._older):
            await self._rest(_LOOK)
        self._older.clear()
        self._synced_upto = self._told_upto
        self._waiters.clear()

    async def _rest(self, seconds: float) -> None:
        await self.current.log.segments.folder.rest(seconds)

    def _flush_trace(self) -> None:
        if self._runtime.trace.on:
            self._runtime.trace.flush()

    def _trace_generation(self, state: str, number: int) -> None:
        if self._runtime.trace.on:
            self._runtime.trace.emit("generation", number=number, state=state, last=self._told_upto)
            self._runtime.trace.flush()

    # What it hears of queues.

    def opened(self, queue: Queue) -> None:
        """A durable queue was declared: note its first positions as given."""
        self._line(queue)

    def leapt(self, queue: Queue) -> None:
        self._given(self._queues.get(queue) or self._line(queue), queue.next_position - 1)

    def enqueued(self, queue: Queue, arrived: Arrived) -> None:
        line = self._queues.get(queue) or self._line(queue)
        first, messages = arrived.first, arrived.messages
        self._given(line, first + len(messages) - 1)
        # The common case first: all of them are persistent, and none is in another queue already.
        known = [message.stored if message.persistent else None for message in messages]
        if known.count(None) == len(known):
            return
        self._open_unit()
        marks = arrived.marks
        times = None if arrived.expires is None else _milliseconds(arrived.expires, queue.cluster.lead())
        if known.count(0) == len(known):
            part = self._part_for(line, first, kind_of(marks))
            part.next = first + len(messages)
            self._store(part, first, messages, times, marks)
        else:
            self._store_some(line, arrived, known, times)
        self._told()

    def _store_some(
        self, line: Line, arrived: Arrived, known: Sequence[int | None], times: Sequence[int] | None
    ) -> None:  # fmt: skip
        """Those that are persistent. If the log has the content already they refer to it; but what a merge of the log
        has looked at may be dropped, or be gone: nothing new refers to that."""
        first, marks = arrived.first, arrived.marks
        stored = [at for at, each in enumerate(known) if each is not None]
        part = self._part_for(line, first + stored[0], kind_of(None if marks is None else [marks[at] for at in stored]))
        part.next = first + stored[-1] + 1
        least = self.index.kept_from + 1 << _OFFSET
        for fresh, group in groupby(enumerate(known), lambda each: None if each[1] is None else each[1] < least):
            places = [*group]
            at, end = places[0][0], places[-1][0] + 1
            some = None if times is None else times[at:end], None if marks is None else marks[at:end]
            if fresh:
                self._store(part, first + at, arrived.messages[at:end], *some)
            elif fresh is not None:
                for at, each in places:
                    record, offset = divmod(each or 0, 1 << _OFFSET)
                    time = None if times is None else times[at : at + 1]
                    mark = None if marks is None else marks[at : at + 1]
                    size = len(arrived.messages[at].body)
                    self._unit.arrive(Arrival(part, first + at, record, offset, [size], time, mark))

    def _store(
        self, part: Part, first: int, messages: Sequence[Message], times: Sequence[int] | None,
        marks: Sequence[Mark] | None,
    ) -> None:  # fmt: skip
        """They have positions in a row, and contents that the log has not yet."""
        if self.journal.on:
            self.journal.note(_forget_content, messages)
        unit = self._unit
        contents, sizes = unit.contents, unit.content_sizes
        offset = len(sizes)
        stored = (self._record + 1 << _OFFSET) + offset
        bodies: list[int] = []
        size = 0
        for message in messages:
            start = PLAIN if message.id is None else prologue(message)
            route, header, body = message.route, message.header, message.body
            contents += (start, route, header, body)
            length = len(body)
            bodies.append(length)
            length += len(start) + len(route) + len(header)
            sizes.append(length)
            size += length
            message.stored = stored
            stored += 1
        unit.size += size
        unit.arrive(Arrival(part, first, self._record + 1, offset, bodies, times, marks))

    def _part_for(self, line: Line, first: int, kind: Kind) -> Part:
        part = line.part_for(first, kind)
        if part is not None:
            if self.journal.on:
                self.journal.note(_restore_next, part, part.next)
            return part
        index = self.index
        part = Part(index.next_part, line, kind)
        index.next_part += 1
        if self.journal.on:
            self.journal.note(_unmake, line, part, line.current)
        line.parts[part.number] = part
        if line.current is None or first >= line.current.next:
            line.current = part
        self._unit.made.append(part)
        return part

    def acquired(self, queue: Queue, holder: object, ranges: Sequence[Range]) -> None:
        self.flagged(queue, ranges)

    def flagged(self, queue: Queue, ranges: Sequence[Range]) -> None:
        if not ranges:
            return
        line = self._queues.get(queue) or self._line(queue)
        high = (ranges[0] if len(ranges) == 1 else max(ranges))[1] - 1
        if high > line.delivered:
            if self.journal.on:
                self.journal.note(line.restore, line.image())
            line.delivered = high

    def dequeued(self, queue: Queue, ranges: Sequence[Range], reason: Reason) -> None:
        if self._deaf:
            return
        line = self._queues.get(queue) or self.index.lines.get(_key(queue))
        kept = [] if line is None else self._in_store(line, ranges)
        if line is not None and kept:
            if reason is not Reason.DELETED:  # then their parts go as a whole
                self._open_unit().leave(line, kept)
            self._told()

    def _in_store(self, line: Line, ranges: Sequence[Range]) -> list[Range]:
        """What of these is in the store, or about to be: what is not persistent is not."""
        queues = self.index.state.queues
        found: list[Range] = []
        for part in line.parts.values():
            known = queues.get(part.number)
            if known is not None:
                found += within(ranges, known.live)
        if self._unit.arrivals and count_of(found) < count_of(ranges):
            come = [(each.first, each.stop) for each in self._unit.arrivals if each.part.line is line]
            found += within(ranges, PositionSet(come))
        return found

    def deleted(self, queue: Queue) -> None:
        if self._deaf:
            return
        lines = self.index.lines
        key = _key(queue)
        line = self._queues.get(queue)
        known = lines.get(key)
        if self.journal.on:
            self.journal.note(restore_key, lines, key, known)
            self.journal.note(restore_key, self._queues, queue, line)
        self._queues.pop(queue, None)
        if known is not None:
            del lines[key]
            self._open_unit().ended += known.parts.values()
            self.save(LINE, known.text, None)

    # Small records, and units.

    def save(self, kind: str, key: str, value: Record | None) -> None:
        if self._deaf:
            return
        text = None if value is None else json.dumps(value, separators=(",", ":")).encode()
        self._open_unit().save(((kind, key), text))
        self._told()

    def begin(self) -> None:
        self._depth += 1
        if self._depth == 1:
            if not self._marked:  # else what the step has told before belongs to it too
                self._end_unit()
            self._unit.atomic = True

    def end(self) -> None:
        self._depth -= 1
        self._part_ends()

    def _part_ends(self) -> None:
        """A unit of its own ends here, if one does."""
        if self._unit.atomic and not self._depth and not self._marked:
            self._end_unit()
            self._unit.atomic = False

    def mark(self) -> Step:
        self._marked += 1
        return self._unit.mark(), self._told_upto, self._wanted, self.index.next_part, self._depth

    def cut(self, mark: Step) -> None:
        unit, self._told_upto, self._wanted, self.index.next_part, self._depth = mark
        self._unit.cut(unit)
        self.unmark(mark)

    def unmark(self, mark: Step) -> None:
        self._marked -= 1
        self._part_ends()

    def _open_unit(self) -> Unit:
        if self._unit.size >= self.settings.record_bytes and not self._depth and not self._marked:
            self._end_unit()
        return self._unit

    def _end_unit(self) -> None:
        unit = self._unit
        if unit.empty or self._closed:
            return
        self._unit = Unit()
        unit.upto = self._told_upto
        generation = self.current
        self._record += 1
        generation.append(unit, self._record, self.settings.copy_max)
        writer = generation.log.writer
        if writer.unsynced > self.settings.pending_max and not self._behind:
            self._behind = True
            self._tell()

    def _told(self) -> None:
        self._told_upto += 1
        if not self._scheduled:
            self._scheduled = True
            self._runtime.call_soon(self._turn_over)

    def _turn_over(self) -> None:
        self._scheduled = False
        assert not self._depth, "a unit ends in the turn in which it began"
        self._flush_trace()  # whatever the disk has, the trace has
        self._end_unit()
        writer = self.writer
        if self._wanted > self._synced_upto:
            writer.hurry(writer.last.place)
        writer.flush()

    # What is durable.

    def written(self) -> int:
        return self._told_upto

    def synced(self) -> int:
        return self._synced_upto

    def unsynced(self) -> int:
        return self.writer.unsynced + self._unit.size

    def when_synced(self, upto: int, done: Callable[[], None]) -> None:
        if upto <= self._synced_upto and not self._waiters:
            done()
            return
        self._waiters.append((upto, done))
        self._sync_soon(upto)
        if upto > self._synced_upto and not self._scheduled:
            self._scheduled = True
            self._runtime.call_soon(self._turn_over)

    def _sync_soon(self, upto: int) -> None:
        self._wanted = max(self._wanted, upto)

    def _synced(self, last: Position) -> None:
        generation = self.current
        upto = generation.synced(last.ordinal)
        if upto is None:
            return
        self._synced_upto = upto
        if self._behind and 2 * generation.log.writer.unsynced <= self.settings.pending_max:
            self._behind = False
            self._tell()
        if self._runtime.trace.on:
            self._runtime.trace.emit("synced", last=upto)
        generation.tender.look()
        self._fire()

    def _fire(self) -> None:
        waiters = self._waiters
        try:
            while waiters and waiters[0][0] <= self._synced_upto:
                waiters.popleft()[1]()
        finally:
            if waiters and waiters[0][0] <= self._synced_upto:  # one of them raised: the others are told all the same
                self._runtime.call_soon(self._fire)

    @property
    def index(self) -> Index:
        return self.current.index

    @property
    def writer(self) -> Writer:
        return self.current.log.writer

    def folder_of(self, generation: int) -> str:
        return self._generations.path(generation)

    def stats(self) -> dict[str, int]:
        """For whoever watches a node."""
        generation = self.current
        segments, writer, index = generation.log.segments.list, generation.log.writer, generation.index
        return {
            "segments": len(segments),
            "bytes": sum(segment.size for segment in segments),
            "messages": index.needed.messages,
            "message_bytes": index.needed.bytes,
            "index_bytes": index.needed.memory,
            "unsynced_bytes": writer.unsynced,
            "appends": writer.appends,
            "syncs": writer.syncs,
            "segments_rewritten": generation.log.merger.merged,
            "segments_removed": generation.log.merger.removed,
            "messages_unreadable": generation.loader.damaged,
        }

    # Paging.

    def load(self, queue: Queue, ranges: Sequence[Range], done: Loaded) -> None:
        self.current.loader.load(self.index.lines.get(_key(queue)), ranges, done)

    def on_disk(self, queue: Queue, ranges: Sequence[Range]) -> list[Range]:
        line = self.index.lines.get(_key(queue))
        if line is None:
            return []
        found: list[Range] = []
        for part in line.parts.values():
            known = self.index.state.queues.get(part.number)  # a new one is not there before its unit ends
            if known is not None:
                for first, stop in ranges:
                    found += known.live.ranges(first, max(first, min(stop, part.safe)))
        return sorted(found)

    # How far queues have gone.

    def _line(self, queue: Queue) -> Line:
        """Of a queue that is heard of for the first time since the start."""
        key = _key(queue)
        lines = self.index.lines
        line = lines.get(key)
        if line is None:
            line = Line(key, queue.next_position, 0)
            if self.journal.on:
                self.journal.note(restore_key, lines, key, None)
            lines[key] = line
            self._reserve(line, queue.next_position - 1)
        if self.journal.on:
            self.journal.note(restore_key, self._queues, queue, None)
        self._queues[queue] = line
        return line

    def _reserve(self, line: Line, position: int) -> None:
        line.reserve(position, self.settings.positions_ahead)
        self._save_line(line)
        self._sync_soon(self._told_upto)

    def _given(self, line: Line, last: int) -> None:
        """Up to this position, or further: what another broker brings comes from the back."""
        if self.journal.on:
            self.journal.note(line.restore, line.image())
        line.next = max(line.next, last + 1)
        if last >= line.reserve_at:
            self._reserve(line, last)

    def _save_line(self, line: Line) -> None:
        self.save(LINE, line.text, line.record())

    # A disk that refuses.

    def _refused(self, refused: bool) -> None:
        if not refused:
            if not self.reserve.wanted:
                self._taken()
            elif not self._making:
                self._restore_reserve()
            return
        self._full = True
        self._tell()
        self.current.tender.pressed = True
        if self.reserve.present:
            self.reserve.give_up(self.writer.try_again)

    def _taken(self) -> None:
        self._full = False
        self.current.tender.pressed = False
        self._tell()

    def _restore_reserve(self) -> None:
        """Make the reserve, and try again as long as there is no room for it."""
        self._making = True
        if self.reserve.wanted:
            self.reserve.make(self._reserve_made)
        else:
            self._reserve_made(True)

    def _reserve_made(self, made: bool) -> None:
        if made:
            self._making = False
            if self._full and not self.writer.refused:
                self._taken()
            return
        if not self._full:
            log.error("there is no room for the reserve: publishers are blocked", bytes=self.settings.reserve_bytes)
            self._full = True
            self._tell()
        self.current.tender.pressed = True
        self._runtime.call_later(self.settings.retry_interval, self._make_again)

    def _make_again(self) -> None:
        if self.writer.refused:  # the log comes first; once it is taken again there will be another try
            self._making = False
            return
        self.current.tender.look()
        self._restore_reserve()

    def _tell(self) -> None:
        blocked = self._full or self._behind
        if blocked != self.blocked:
            self.blocked = blocked
            self._on_blocked(blocked)


def _key(queue: Queue) -> QueueKey:
    return queue.vhost.name, queue.name, queue.incarnation


def _milliseconds(times: Sequence[float | None], lead: float) -> list[int] | None:
    """Since 1970, 0: never; None: none of them ever is over."""
    if times.count(None) == len(times):
        return None
    return [0 if time is None else max(1, round((time + lead) * 1000)) for time in times]


def _forget(_: object) -> None:
    """Its answer is of no interest."""


def _forget_content(messages: Sequence[Message]) -> None:
    """They are not in that record after all."""
    for message in messages:
        message.stored = 0


def _restore_next(part: Part, next: int) -> None:
    part.next = next


def _unmake(line: Line, part: Part, current: Part | None) -> None:
    del line.parts[part.number]
    line.current = current
