"""LogStore: the store of a node with a data folder, a segmented log.

It hears of durable queues as one of their observers and gathers what it hears in one turn into a unit; the writer
makes it durable. Messages are known by numbers (`Entry.stored`), which the index finds on disk. How far a queue's
positions have gone is noted ahead of time, so that after a crash no position is given twice; everything is flagged
redelivered then.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, Final
from zlib import crc32

from coterie.broker.journal import restore_key
from coterie.broker.observer import Reason
from coterie.broker.storage import Record, Recovered, Store
from coterie.broker.store.compaction import Compactor
from coterie.broker.store.content import PLAIN, prologue
from coterie.broker.store.format import SECRET_SIZE
from coterie.broker.store.generations import RESERVE, Generations
from coterie.broker.store.index import Index
from coterie.broker.store.loading import Loader
from coterie.broker.store.marks import QueueMarks
from coterie.broker.store.operations import Enqueue, Name, Save, encode_one
from coterie.broker.store.operations import Mark as EntryMark
from coterie.broker.store.recovery import CLOSED, QUEUE_MARKS, Recovery
from coterie.broker.store.reserve import Reserve
from coterie.broker.store.segment import Segment
from coterie.broker.store.settings import StoreSettings
from coterie.broker.store.unit import Mark as UnitMark
from coterie.broker.store.unit import Unit
from coterie.broker.store.writer import Writer
from coterie.errors import DiskError
from coterie.logs import Log
from coterie.runtime.base import Future, Runtime

if TYPE_CHECKING:
    from coterie.broker.entry import Entry
    from coterie.broker.message import Message
    from coterie.broker.queue import Queue

log = Log(__name__)


_LOOK: Final = 0.01
"""Seconds between two looks at whether the disk has done what it was asked to do."""
_PATIENCE: Final = 1.0
"""Seconds that what the old generation was told may take to be written. The rest is lost, as by a crash."""
Mark = tuple[UnitMark, tuple[int, int], int, int, int]
POSITIONS_PER_SECOND: Final = 10_000_000
"""More than any queue gives."""


class LogStore(Store):
    """`recover` first; everything else after its `done`."""

    def __init__(self, runtime: Runtime, settings: StoreSettings | None = None, folder: str = "store") -> None:
        self._runtime = runtime
        self.settings = settings or StoreSettings()
        self._generations = Generations(runtime, folder)
        self._generation = 0
        self._kept: int | None = None
        """The generation that still counts while this one is being made."""
        self._open(0)
        self.writer: Writer
        self._compactor: Compactor
        self._compaction: Future[None] | None = None
        self._retired: Writer | None = None
        """Of the generation that is kept."""
        self._compactions: list[Future[None]] = []
        """Of generations before this one."""
        self._completion: Future[None] | None = None
        self._deaf = False
        """What it hears is of another generation."""
        self._next_number = 1
        self._next_queue = 1
        self._unit = Unit(1)
        self._depth = 0
        """Of `begin` without `end`."""
        self._leaving: set[int] = set()
        """Messages of which a unit that has ended says that they are gone, and that is not synced yet."""
        self._marked = 0
        """Steps that may fail: until they are over no unit ends."""
        self._scheduled = False
        self._queues: dict[Queue, QueueMarks] = {}
        self._known: dict[tuple[str, str, int], QueueMarks] = {}
        """By vhost, name and incarnation."""

    # Life.

    def recover(self, done: Callable[[Recovered | Exception], None]) -> None:
        self._runtime.spawn(self._recover(done, goes_back=False))

    def _open(self, generation: int) -> None:
        """With nothing in it that is known yet."""
        self._generation = generation
        self._files = self._generations.files(generation)
        self.index = Index(self.settings.compact_garbage)
        self._loader = Loader(self._runtime, self._files, self.settings, self.index)
        self._queues = {}
        self._known = {}
        self._leaving = set()

    async def _recover(self, done: Callable[[Recovered | Exception], None], goes_back: bool) -> None:
        generations, written = self._generations, 0
        try:
            if goes_back:
                written = self.writer.written
                await self._settle()
                self._kept = None
            self._open(await generations.find())
            recovery = Recovery(self._files, self.settings, self.index)
            await recovery.run()
            present = generations.reserve >= self.settings.reserve_bytes > 0
            if generations.reserve and not present:
                await generations.files(0).remove(RESERVE)
        except DiskError as error:
            done(error)
            return
        result = recovery.result
        secret = recovery.secret or self._runtime.entropy(SECRET_SIZE)
        reserve = Reserve(self._runtime, generations.reserve_path, self.settings.reserve_bytes, present)
        self._next_number, self._next_queue = recovery.next_number, recovery.next_queue
        self.writer = Writer(
            self._runtime, self.settings, self.index, generations.folder(self._generation), secret, result.incarnation,
            recovery.next_id, recovery.next_number, reserve,
        )  # fmt: skip
        self.writer.written = self.writer.synced = written
        self.writer.on_synced = self._synced
        if goes_back:
            self._blocked(False)
        self._trace_generation("opened", self._generation)
        self._compactor = Compactor(self._files, self.settings, self.index, secret, result.incarnation)
        self._unit = Unit(self._next_number)
        for key, (next_position, _) in result.queues.items():
            name = Name(recovery.queues.get(key) or self._new_queue(), *key)
            marks = QueueMarks(name, next_position, recovery.delivered.get(key, 0))
            self._known[key] = marks
            self._reserve(marks, next_position - 1)
        if recovery.lost:
            self._unit.dequeue(list(recovery.lost))
        if reserve.wanted:
            self.writer.restore_reserve()
        self._start(result, done)

    def _start(self, result: Recovered, done: Callable[[Recovered | Exception], None]) -> None:
        """The first record says that the node has started; the broker goes on once it is durable, or cannot be."""
        told = False

        def tell() -> None:
            nonlocal told
            if not told:
                told = True
                done(result)

        def blocked(value: bool) -> None:
            if not told:
                self._leap(result)
            tell()
            self._blocked(value)

        self.writer.on_blocked = blocked
        self.writer.written += 1
        self.writer.when_synced(self.writer.written, tell)
        self._turn_over(even_empty=True)
        self._compact_soon()

    def _leap(self, result: Recovered) -> None:
        """The disk does not even take that the node has started, so the next start may know nothing of this one, and
        would give the same positions and numbers of queues again. Positions go on from the clock's, which only rises
        and outruns any queue; numbers of starts need only differ, and chance sees to that."""
        result.incarnation += 1 + (int.from_bytes(self._runtime.entropy(4), "big") >> 8)
        self.writer.incarnation = result.incarnation
        clock = int(self._runtime.wall() * POSITIONS_PER_SECOND)
        for key, (next_position, entries) in list(result.queues.items()):
            marks = self._known[key]
            marks.next = max(next_position + 1, clock)
            result.queues[key] = marks.next, entries
            self._reserve(marks, marks.next - 1)

    # Another generation.

    def renew(self, clear: Callable[[], None]) -> None:
        if self._runtime.trace.on:
            self._runtime.trace.flush()
        self._end_unit()
        old, reserve = self.writer, self.writer.reserve
        self._compactions = [task for task in (*self._compactions, self._compaction) if task and not task.done()]
        self._compaction = None
        if self._kept is None:
            self._kept, self._retired = self._generation, old
            old.retire()
        else:  # this one was never whole
            old.stop()
            self._runtime.spawn(self._drop(self._generation, self._completion))
        self._unheard(clear)
        self._open(self._generations.new())
        self._next_queue = 1
        self.writer = Writer(
            self._runtime, self.settings, self.index, self._generations.folder(self._generation), old.secret,
            old.incarnation, 1, self._next_number, reserve,
        )  # fmt: skip
        self.writer.written = self.writer.synced = old.written
        self.writer.on_synced, self.writer.on_blocked = self._synced, self._blocked
        self._blocked(False)
        if reserve.wanted:
            self.writer.restore_reserve()
        self._compactor = Compactor(self._files, self.settings, self.index, old.secret, old.incarnation)
        self._unit = Unit(self._next_number)
        self._unit.atomic = self._depth > 0
        self._trace_generation("begun", self._generation)

    def whole(self, done: Callable[[], None]) -> None:
        if self._kept is None:
            self.when_synced(self.written(), done)
        else:
            self._trace_generation("filled", self._generation)
            self.when_synced(self.written(), partial(self._filled, self._generation, done))

    def _filled(self, generation: int, done: Callable[[], None]) -> None:
        if self.writer.stopped:  # meanwhile the broker goes back to the old one, which must not be taken from it
            return
        if generation == self._generation and self._kept is not None:
            self._completion = self._runtime.spawn(self._complete(generation, done))

    async def _complete(self, generation: int, done: Callable[[], None]) -> None:
        while self._generation == generation:
            try:
                await self._generations.complete(generation)
                break
            except DiskError as error:
                log.error("the disk refuses: the old store is kept", error=error)
                await self._files.rest(self.settings.retry_interval)
        if self._generation != generation or self._kept is None:
            return
        old, self._kept = self._kept, None
        if self._retired is not None:
            self._retired.stop()
        self._trace_generation("whole", generation)
        self._runtime.spawn(self._drop(old))
        done()

    async def _drop(self, generation: int, completion: Future[None] | None = None) -> None:
        """`completion`: it may be about to be made whole."""
        for task in (completion, *self._compactions):
            while task is not None and not task.done():
                await self._files.rest(_LOOK)
        self._trace_generation("dropped", generation)
        try:
            await self._generations.remove(generation)
        except DiskError as error:
            log.warning("an old store is removed at the next start", error=error)

    @property
    def keeps_old(self) -> bool:
        return self._kept is not None

    def go_back(self, clear: Callable[[], None], done: Callable[[Recovered | Exception], None]) -> None:
        """The new one may be about to become whole, and be found: nothing of this end belongs into it."""
        self.writer.stop()
        self._unheard(clear)
        self._runtime.spawn(self._recover(done, goes_back=True))

    def _unheard(self, clear: Callable[[], None]) -> None:
        self._deaf = True
        clear()
        self._deaf = False

    async def _settle(self) -> None:
        """Before the old generation is read again: what was told of it is written, and nobody writes to it."""
        retired, until = self._retired, self._runtime.now() + _PATIENCE
        while retired is not None and retired.synced < retired.written and self._runtime.now() < until:
            await self._files.rest(_LOOK)
        if retired is not None:
            retired.stop()
        for task in (self._completion, self._compaction, *self._compactions):
            while task is not None and not task.done():
                await self._files.rest(_LOOK)
        self._compaction = None

    def _trace_generation(self, state: str, number: int) -> None:
        if self._runtime.trace.on:
            self._runtime.trace.emit("generation", number=number, state=state, last=self.writer.written)
            self._runtime.trace.flush()

    def _blocked(self, value: bool) -> None:
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

        for marks in self._known.values():
            marks.settle()
            self._save_marks(marks)
        self.save(CLOSED, "", {"incarnation": self.writer.incarnation})
        self.writer.when_synced(self.writer.written, tell)
        self._turn_over()
        self._runtime.call_later(self.settings.retry_interval, look)

    # What it hears of queues.

    def opened(self, queue: Queue) -> None:
        """A durable queue was declared: note its first positions as given."""
        self._marks(queue)

    def leapt(self, queue: Queue) -> None:
        self._given(self._queues.get(queue) or self._marks(queue), queue.next_position - 1)

    def enqueued(self, queue: Queue, entries: Sequence[Entry]) -> None:
        if not entries:
            return
        marks = self._queues.get(queue) or self._marks(queue)
        self._given(marks, entries[-1].position)
        # The common case first: all of them are persistent, and none is in another queue already.
        fresh = [e for e in entries if (m := e.message) is not None and m.persistent and not m.stored]
        if len(fresh) != len(entries):
            fresh = self._refer(marks.name, entries)
        if len(fresh) == 1:
            self._store_one(marks.name, fresh[0])
        elif fresh:
            self._store(marks.name, fresh)

    def _store_one(self, queue: Name, entry: Entry) -> None:
        """As `_store`, for the many queues that get one message now and then."""
        message = entry.message
        assert message is not None
        size = len(message.body)
        if size > self.settings.copy_max or entry.expires is not None or entry.mark is not None:
            self._store(queue, [entry])
            return
        if self.journal.on:
            self.journal.note(_forget_content, [message])
        unit = self._open_unit()
        content = b"".join((prologue(message), message.route, message.header, message.body))
        length, crc = len(content), crc32(content)
        entry.stored = message.stored = number = self._next_number
        self._next_number = unit.next_number = number + 1
        unit.contents.append(content)
        head = encode_one(queue.id, number, entry.position, size, length, crc)
        unit.enqueue(queue, head, (length,), (crc,), length)
        self._told()

    def _store(self, queue: Name, entries: list[Entry]) -> None:
        messages = [message for entry in entries if (message := entry.message) is not None]
        if self.journal.on:
            self.journal.note(_forget_content, messages)
        unit = self._open_unit()
        sizes = [entry.size for entry in entries]
        plain = [message.id for message in messages].count(None) == len(messages)
        if max(sizes) <= self.settings.copy_max:
            join = b"".join
            if plain:
                contents = [join((PLAIN, m.route, m.header, m.body)) for m in messages]
            else:
                contents = [join((prologue(m), m.route, m.header, m.body)) for m in messages]
            crcs = list(map(crc32, contents))
            lengths = list(map(len, contents))
            unit.contents += contents
        else:
            bodies = [message.body for message in messages]
            heads = [b"".join((prologue(m), m.route, m.header)) for m in messages]
            crcs = list(map(crc32, bodies, map(crc32, heads)))
            lengths = [len(head) + size for head, size in zip(heads, sizes, strict=True)]
            unit.contents += chain.from_iterable(zip(heads, bodies, strict=True))
        first = number = self._next_number
        for entry, message in zip(entries, messages, strict=True):
            entry.stored = message.stored = number
            number += 1
        self._next_number = unit.next_number = number
        positions = _positions(entries)
        head = Enqueue(
            queue.id, range(first, number), positions, sizes, lengths, crcs, (), self._expires(entries), _marks(entries)
        ).encode()
        unit.enqueue(queue, head, lengths, crcs, sum(lengths))
        self._told()

    def _refer(self, queue: Name, entries: Sequence[Entry]) -> list[Entry]:
        """Those whose content the log has already refer to it; gives the others that must be stored.

        A content is referred to only as long as its own message is there: a reference behind its dequeue would find
        nothing after a restart, and nothing now if the dequeue is synced first. In this unit, dequeues come last."""
        unit = self._open_unit()
        fresh: list[Entry] = []
        shared: list[Entry] = []
        contents: list[int] = []
        unwritten = self._first_unwritten
        for entry in entries:
            message = entry.message
            if message is None or not message.persistent:
                continue
            content = message.stored
            gone = content in self._leaving or content in self.index.orphans
            if content and not gone and (content >= unwritten or self.index.find(content) is not None):
                shared.append(entry)
                contents.append(content)
            else:
                fresh.append(entry)
        if shared:
            first = self._next_number
            for number, entry in enumerate(shared, first):
                entry.stored = number
            self._next_number = unit.next_number = first + len(shared)
            sizes = [entry.size for entry in shared]
            numbers = range(first, self._next_number)
            expires, marks = self._expires(shared), _marks(shared)
            op = Enqueue(queue.id, numbers, _positions(shared), sizes, (), (), contents, expires, marks)
            unit.refer(queue, op.encode(), first, contents)
            self._told()
        return fresh

    @property
    def _first_unwritten(self) -> int:
        """Messages from this number on have no place yet, and are needed."""
        segment = self.writer.active
        return self.writer.synced_number if segment is None else segment.last_number + 1

    def acquired(self, queue: Queue, entries: Sequence[Entry]) -> None:
        if not entries:
            return
        marks = self._queues.get(queue) or self._marks(queue)
        high = max([entry.position for entry in entries])
        if high > marks.delivered:
            if self.journal.on:
                self.journal.note(marks.restore, marks.image())
            marks.delivered = high

    def dequeued(self, queue: Queue, entries: Sequence[Entry], reason: Reason) -> None:
        numbers = [entry.stored for entry in entries if entry.stored]
        if numbers and not self._deaf:
            self._open_unit().dequeue(numbers)
            self._told()

    def deleted(self, queue: Queue) -> None:
        if self._deaf:
            return
        self.dequeued(queue, list(queue.entries.values()), Reason.DELETED)
        marks, known = self._queues.get(queue), self._known.get(_key(queue))
        if self.journal.on:
            self.journal.note(restore_key, self._known, _key(queue), known)
            self.journal.note(restore_key, self._queues, queue, marks)
        self._queues.pop(queue, None)
        marks = marks or known
        if marks is not None:
            del self._known[_key(queue)]
            self.save(QUEUE_MARKS, marks.key, None)

    # Small records, and units.

    def save(self, kind: str, key: str, value: Record | None) -> None:
        if self._deaf:
            return
        text = None if value is None else json.dumps(value, separators=(",", ":")).encode()
        self._open_unit().save((kind, key), Save(kind, key, text).encode(), value is None)
        self._told()

    def begin(self) -> None:
        self._depth += 1
        if self._depth == 1:
            if not self._marked:  # else what the step has told before belongs to it too
                self._end_unit()
            self._unit.atomic = True

    def end(self) -> None:
        self._depth -= 1
        self._part()

    def _part(self) -> None:
        """A unit of its own ends here, if one does."""
        if self._unit.atomic and not self._depth and not self._marked:
            self._end_unit()
            self._unit.atomic = False

    def mark(self) -> Mark:
        self._marked += 1
        return self._unit.mark(), self.writer.mark(), self._next_number, self._next_queue, self._depth

    def cut(self, mark: Mark) -> None:
        unit, writer, self._next_number, self._next_queue, self._depth = mark
        self._unit.cut(unit)
        self.writer.cut(writer)
        self.unmark(mark)

    def unmark(self, mark: Mark) -> None:
        self._marked -= 1
        self._part()

    def _open_unit(self) -> Unit:
        if self._unit.size >= self.settings.record_bytes and not self._depth and not self._marked:
            self._end_unit()
        return self._unit

    def _end_unit(self, even_empty: bool = False) -> None:
        unit = self._unit
        if unit.empty and not even_empty:
            return
        unit.upto = self.writer.written
        unit.next_number = self._next_number
        self._leaving.update(unit.dead)
        self.writer.add(unit)
        self._unit = Unit(self._next_number)

    def _told(self) -> None:
        self.writer.written += 1
        if not self._scheduled:
            self._scheduled = True
            self._runtime.call_soon(self._turn_over)

    def _turn_over(self, even_empty: bool = False) -> None:
        self._scheduled = False
        assert not self._depth, "a unit ends in the turn in which it began"
        if self._runtime.trace.on:
            self._runtime.trace.flush()  # whatever the disk has, the trace has
        self._end_unit(even_empty)
        self.writer.flush()

    # What is durable.

    def written(self) -> int:
        return self.writer.written

    def synced(self) -> int:
        return self.writer.synced

    def unsynced(self) -> int:
        return self.writer.held + self._unit.size

    def when_synced(self, upto: int, done: Callable[[], None]) -> None:
        self.writer.when_synced(upto, done)
        if upto > self.writer.synced and not self._scheduled:
            self._scheduled = True
            self._runtime.call_soon(self._turn_over)

    def _synced(self, units: list[Unit]) -> None:
        for unit in units:
            self._leaving.difference_update(unit.dead)
        if self._runtime.trace.on:
            self._runtime.trace.emit("synced", last=self.writer.synced)
        self._compact_soon()

    def stats(self) -> dict[str, int]:
        """For whoever watches a node."""
        segments, writer = self.index.segments, self.writer
        return {
            "segments": len(segments),
            "bytes": sum(segment.size for segment in segments),
            "messages": sum(segment.live for segment in segments),
            "message_bytes": sum(segment.live_bytes for segment in segments),
            "index_bytes": self.index.memory,
            "unsynced_bytes": writer.held,
            "appends": writer.appends,
            "syncs": writer.syncs,
            "segments_rewritten": self._compactor.rewritten,
            "segments_removed": self._compactor.removed,
            "messages_unreadable": self._loader.damaged,
        }

    # Paging.

    def load(self, entries: Sequence[Entry], done: Callable[[Exception | None], None]) -> None:
        self._loader.load(entries, done)

    def page_out(self, entries: Sequence[Entry]) -> int:
        safe = self.writer.synced_number
        count = 0
        for entry in entries:
            if 0 < entry.stored < safe and entry.message is not None:
                entry.message = None
                count += 1
        return count

    # Marks of queues.

    def _marks(self, queue: Queue) -> QueueMarks:
        """For a queue that is heard of for the first time since the start."""
        key = _key(queue)
        marks = self._known.get(key)
        if marks is None:
            marks = QueueMarks(Name(self._new_queue(), *key), queue.next_position, 0)
            if self.journal.on:
                self.journal.note(restore_key, self._known, key, None)
            self._known[key] = marks
            self._reserve(marks, queue.next_position - 1)
        if self.journal.on:
            self.journal.note(restore_key, self._queues, queue, None)
        self._queues[queue] = marks
        return marks

    def _new_queue(self) -> int:
        self._next_queue += 1
        return self._next_queue - 1

    def _reserve(self, marks: QueueMarks, position: int) -> None:
        marks.reserve(position, self.settings.positions_ahead)
        self._save_marks(marks)
        self.writer.sync_soon(self.writer.written)

    def _given(self, marks: QueueMarks, last: int) -> None:
        """Up to this position, or further: what another broker brings comes from the back."""
        if self.journal.on:
            self.journal.note(marks.restore, marks.image())
        marks.next = max(marks.next, last + 1)
        if last >= marks.reserve_at:
            self._reserve(marks, last)

    def _save_marks(self, marks: QueueMarks) -> None:
        self.save(QUEUE_MARKS, marks.key, marks.record())

    def _expires(self, entries: Sequence[Entry]) -> list[int] | None:
        times = [entry.expires for entry in entries]
        if times.count(None) == len(times):
            return None
        lead = entries[0].queue.cluster.lead()
        return [0 if time is None else max(1, round((time + lead) * 1000)) for time in times]

    # Cleaning up.

    def _compact_soon(self) -> None:
        if self._compaction is None or self._compaction.done():
            run = self._compactor.choose()
            if run is not None:
                self._compaction = self._runtime.spawn(self._compact(self._compactor, self.index, run))

    async def _compact(self, compactor: Compactor, index: Index, run: list[Segment]) -> None:
        try:
            while run and compactor is self._compactor:
                await compactor.compact(run)
                run = compactor.choose() or []
        except DiskError as error:
            log.warning("compaction was given up for now", error=error)
            index.ripe[run[0].id] = None
            await self._files.rest(self.settings.retry_interval)


def _key(queue: Queue) -> tuple[str, str, int]:
    return queue.vhost.name, queue.name, queue.incarnation


def _forget_content(messages: Sequence[Message]) -> None:
    """Their numbers will be given again."""
    for message in messages:
        message.stored = 0


def _positions(entries: Sequence[Entry]) -> Sequence[int]:
    first, last = entries[0].position, entries[-1].position
    if last - first == len(entries) - 1:  # they rise
        return range(first, last + 1)
    return [entry.position for entry in entries]


def _marks(entries: Sequence[Entry]) -> list[EntryMark] | None:
    marks = [entry.mark for entry in entries]
    return None if marks.count(None) == len(marks) else marks
