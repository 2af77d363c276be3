"""The index: which messages each queue has and where they are, as ranges of positions; and the records that are kept.

It is a `BrokerState` in which everything is ready, and changes by whole units: `take` does what a unit comes to, and
gives what the log records of it; `apply` does the same again after a restart.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import Final
from zlib import crc32

from coterie.broker.delivery import positions_in, ranges_of
from coterie.broker.log_store.found import FoundMessages
from coterie.broker.log_store.head import (
    Contents,
    Head,
    Key,
    Text,
    decode_head,
    read_save,
    remnant,
    sizes_of,
    write_save,
)
from coterie.broker.log_store.lenient import replay_what_fits
from coterie.broker.log_store.lines import Line, Part, QueueKey, read_key
from coterie.broker.log_store.needed import Needed, gone_of, offsets_in
from coterie.broker.log_store.own_records import LINE, PART
from coterie.broker.log_store.unit import Arrival, Unit
from coterie.broker.message_table import within
from coterie.broker.ranges import END, IntervalMap, Lengths, PositionSet, Range, Runs
from coterie.broker.ranges.codec import Reader, write_uint
from coterie.broker.state import marks, messages, sharing, snapshot
from coterie.broker.state.broker_state import BrokerState
from coterie.broker.state.limits import QueueLimits
from coterie.broker.state.positions import LIST_MAX, Positions
from coterie.broker.state.queue_state import QueueConfig, QueueState
from coterie.broker.state.step import Step, replay
from coterie.broker.state.vocabulary import GONE, Kind, Reason
from coterie.errors import DiskError, WireError
from coterie.log.merge import Kept
from coterie.log.place import Place, Position
from coterie.log.record import Record
from coterie.log.snapshot import Snapshot
from coterie.logs import Log
from coterie.runtime.base import Buffer

SAVED, TEXTS, STATE = 1, 2, 3
"""Sections of a snapshot."""
EPOCH: Final = 1
"""Of every place: records are known by their indexes."""
PRIORITY_MAX: Final = 255
_CONFIGS: Final = {
    Kind.FIFO: QueueConfig(),
    Kind.PRIORITY: QueueConfig(Kind.PRIORITY, max_priority=PRIORITY_MAX),
}
_LIMITS: Final = QueueLimits()
_PIECE: Final = 1 << 18
"""Bytes of one piece of a snapshot, about."""
_SOME: Final = 1024
log = Log(__name__)


class Index:
    """Of one generation of the store. The owner of its log."""

    def __init__(self) -> None:
        self.state = BrokerState()
        self.saved: dict[Key, bytes] = {}
        self.parts: dict[int, Part] = {}
        self.lines: dict[QueueKey, Line] = {}
        self.needed = Needed()
        self.next_part = 1
        self.kept_from = 0
        """Contents of records up to this one may be gone, or go any time: nothing new refers to them."""
        self.replayed_bytes = 0
        self.lost: list[str] = []
        """What damage has cost, in sentences."""
        self.pending: list[Unit] = []
        """Units that are not on disk yet."""
        self._merging: dict[int, list[Range]] = {}
        """While records are merged: the offsets that were needed when that began."""
        self._texts: list[Text] = []
        self.whole = True
        """No record was passed over."""

    # What a unit comes to.

    def take(self, unit: Unit, record: int) -> tuple[bytes, bytes]:
        """Do it; gives the record's head and effects."""
        state, step = self.state, Step(self.state)
        texts: list[Text] = []
        come: list[tuple[int, int, int]] = []
        try:
            for part in unit.made:
                self.parts[part.number] = part
                step.do(sharing.CREATE, None, part.number, _CONFIGS[part.kind], _LIMITS)
                unit.saved.append(((PART, str(part.number)), part.record()))
            for part, arrivals in unit.come():
                queue = state.queues[part.number]
                for arrival in arrivals:
                    come.append((arrival.record, len(arrival.sizes), sum(arrival.sizes)))
                    self._arrive(step, queue, arrival, texts)
                unit.safe[part] = queue.next_position
            for line, ranges in unit.leave_by_line():
                for part in [*line.parts.values()]:
                    self._leave(step, part, ranges, unit)
            for part in unit.ended:
                self._end(step, part, unit)
        except BaseException:
            step.undo()
            raise
        for index, count, size in come:
            self.needed.add(index, count, size)
        for (kind, key), value in unit.saved:
            self._save((kind, key), value)
        contents = Contents(sizes_of(unit.content_sizes)) if unit.content_sizes else None
        self.pending.append(unit)
        return Head(unit.saved, texts, contents).encode(), step.effects()

    def _arrive(self, step: Step, queue: QueueState, arrival: Arrival, texts: list[Text]) -> None:
        first, sizes = arrival.first, arrival.sizes
        if first != queue.next_position:
            step.do(marks.LEAP, queue, first)
        step.do(messages.ENQUEUE, queue, first, arrival.record, arrival.offset, sizes_of(sizes), False)
        if arrival.marks is not None:
            self._mark(step, queue, arrival, texts)
        if arrival.expires is not None:
            at = first
            for time, same in groupby(arrival.expires):
                count = len([*same])
                if time:
                    step.do(marks.EXPIRES, queue, at, count, time)
                at += count

    def _mark(self, step: Step, queue: QueueState, arrival: Arrival, texts: list[Text]) -> None:
        by_priority: dict[int, list[int]] = {}
        assert arrival.marks is not None
        for position, mark in enumerate(arrival.marks, arrival.first):
            if isinstance(mark, str):
                texts.append((arrival.part.number, position, mark))
                arrival.part.texts[position] = mark
            elif mark:
                by_priority.setdefault(min(mark, PRIORITY_MAX), []).append(position)
        for priority, positions in sorted(by_priority.items()):
            step.do(marks.PRIORITISE, queue, priority, _chosen(ranges_of(positions)))

    def _leave(self, step: Step, part: Part, ranges: Sequence[Range], unit: Unit) -> None:
        """As far as they are in this part."""
        queue = self.state.queues.get(part.number)
        if queue is None:
            return
        found = within(ranges, queue.ready)
        if not found:
            return
        unit.gone += gone_of(queue, found)
        step.do(messages.LEAVE, queue, 0, Reason.ACCEPTED, GONE, _chosen(found))
        if part.texts:
            for position in positions_in(found):
                part.texts.pop(position, None)
        if not queue.live and not part.current and part not in unit.ended:
            part.line.parts.pop(part.number, None)
            unit.ended.append(part)

    def _end(self, step: Step, part: Part, unit: Unit) -> None:
        queue = self.state.queues[part.number]
        unit.gone += gone_of(queue, [*queue.live.ranges()])
        unit.saved.append(((PART, str(part.number)), None))
        unit.safe.pop(part, None)
        step.do(sharing.DELETE, None, part.number)
        del self.parts[part.number]

    def _save(self, key: Key, value: bytes | None) -> None:
        if value is None:
            self.saved.pop(key, None)
        else:
            self.saved[key] = value

    def synced(self, upto: int) -> None:
        """Units up to that place are on disk."""
        pending, done = self.pending, 0
        for unit in pending:
            if unit.upto > upto:
                break
            done += 1
            self.needed.remove(unit.gone)
            for part, position in unit.safe.items():
                part.safe = position
        del pending[:done]

    # Recovery: from a snapshot and what follows it.

    def load(self, found: Snapshot) -> None:
        """Raises DiskError."""
        try:
            self.state = snapshot.decode(found.sections[STATE])
            reader = Reader(found.sections.get(SAVED, b""), snapshot.STATE_MAX)
            while not reader.ended:
                key, value = read_save(reader)
                self._save(key, value)
            for text in _read_texts(found.sections.get(TEXTS, b"")):
                self._texts.append(text)
        except (WireError, KeyError) as error:
            raise DiskError(f"a snapshot of the store makes no sense: {error}") from None

    def apply(self, before: Position, record: Record) -> bool:
        goes_on = before.ordinal + 1 == record.ordinal
        chain = next_chain(before.chain, record.place, record.head, record.effects, record.body_crc)
        if goes_on and record.chain != chain:
            return False
        self.whole = self.whole and goes_on
        try:
            head = decode_head(bytes(record.head))
            if self.whole:
                replay(self.state, bytes(record.effects))
            else:
                replay_what_fits(self.state, record.effects, self.lost)
        except WireError as error:
            self.lost.append(f"record {record.place} makes no sense: {error}")
            self.whole = False
            return False
        for key, value in head.saved:
            self._save(key, value)
        self._texts += head.texts
        if len(self._texts) > _SOME and len(self._texts) > 2 * sum(q.live.count for q in self.state.queues.values()):
            self._texts = [text for text in self._texts if self._has(text)]
        self.replayed_bytes += record.size
        return True

    def _has(self, text: Text) -> bool:
        queue = self.state.queues.get(text[0])
        return queue is not None and text[1] in queue.live

    def settle(self) -> None:
        """Everything was read: what it comes to."""
        for (kind, text), value in self.saved.items():
            key = read_key(value if kind == PART else text) if kind in (PART, LINE) else None
            if key is not None and key not in self.lines:
                self.lines[key] = Line(key, 1, 0)
            if kind == PART and key is not None and int(text) in self.state.queues:
                queue = self.state.queues[int(text)]
                part = Part(queue.number, self.lines[key], queue.config.kind)
                part.next = part.safe = queue.next_position
                self.parts[part.number] = part.line.parts[part.number] = part
        for number in [number for number in self.state.queues if number not in self.parts]:
            queue = self.state.queues.pop(number)
            if queue.live:
                self.lost.append(f"{queue.live.count} messages of queue {number}, whose name is lost")
        for number, position, text in self._texts:
            if self._has((number, position, text)):
                self.parts[number].texts[position] = text
        self._texts = []
        for line in self.lines.values():
            line.current = max(line.parts.values(), key=lambda part: part.next, default=None)
        self.next_part = max(self.state.queues, default=0) + 1
        for queue in self.state.queues.values():
            self._count(queue)

    def _count(self, queue: QueueState) -> None:
        live, lengths, add = queue.live, queue.lengths, self.needed.add
        whole = live.count == queue.runs.count
        for run in queue.runs:
            if whole:
                add(run.ref, run.stop - run.first, lengths.sum(run.first, run.stop))
                continue
            ranges = [*live.ranges(run.first, run.stop)]
            if ranges:
                add(run.ref, sum([stop - first for first, stop in ranges]), lengths.sum_of(ranges))

    def messages(self, line: Line, delivered: int) -> FoundMessages | None:
        """What is in a queue. `delivered`: up to this position it may have been; None: nothing is in it."""
        parts = [(self.state.queues[number], part.texts) for number, part in line.parts.items()]
        parts = [(queue, texts) for queue, texts in parts if queue.live]
        return FoundMessages(parts, delivered) if parts else None

    # Snapshots.

    def pieces(self) -> Iterator[tuple[int, Buffer]]:
        """Of a snapshot, as everything is when this is called; the pieces are made one at a time, later."""
        saved = [*self.saved.items()]
        texts = [(p.number, at, text) for p in self.parts.values() for at, text in [*p.texts.items()]]
        queues = [_Frozen(queue) for queue in snapshot.sorted_queues(self.state)]
        shared = snapshot.encode_shared(self.state, len(queues))
        return _pieces(saved, texts, shared, queues)

    # What a merge of the log may drop.

    def live_bytes(self, after: Place, upto: Place) -> int:
        return self.needed.between(after.index, upto.index)

    def merging(self, after: Place, upto: Place) -> None:
        low, high = after.index, upto.index
        self.kept_from = max(self.kept_from, high)
        found: dict[int, list[Range]] = {}
        if self.needed.between(low, high):
            for queue in self.state.queues.values():
                offsets_in(queue, low, high, found)
            for unit in self.pending:
                for gone in unit.gone:
                    if low < gone.record <= high:
                        found.setdefault(gone.record, []).append((gone.offset, gone.offset + gone.messages))
        self._merging = found

    def live(self, place: Place, head: bytes) -> Kept | None:
        live = self._merging.get(place.index)
        contents = decode_head(head).contents if live else None
        return remnant(contents, live) if live and contents is not None else None

    # Where a message is.

    def places(self, line: Line, ranges: Sequence[Range]) -> Iterator[tuple[int, int, int]]:
        """Record, offset and position of these messages, as far as they are there."""
        for part in line.parts.values():
            queue = self.state.queues.get(part.number)
            if queue is not None:
                for first, stop in within(ranges, queue.live):
                    for run in queue.runs.within(first, stop):
                        for position in range(run.first, run.stop):
                            yield run.ref, run.offset + position - run.first, position


def next_chain(chain: bytes, place: Place, head: Buffer, effects: Buffer, body_crc: int) -> bytes:
    """Of everything up to this record."""
    plain = b"%b%d/%d/%d/%d" % (chain, *place, crc32(effects, crc32(head)), body_crc)
    return hashlib.blake2b(plain, digest_size=16).digest()


def _chosen(ranges: list[Range]) -> Positions:
    return ranges if len(ranges) <= LIST_MAX else PositionSet(ranges)


class _Frozen:
    """A queue as it was; what it has is shared until it changes."""

    __slots__ = ("config", "next_position", "number", "parts")

    def __init__(self, queue: QueueState) -> None:
        self.number = queue.number
        self.config = queue.config
        self.next_position = queue.next_position
        self.parts: tuple[PositionSet, Runs, Lengths, Runs, IntervalMap] | None = None
        if queue.live:
            self.parts = (
                queue.ready.copy(), queue.runs.copy(), queue.lengths.copy(), queue.expires.copy(),
                queue.priorities.copy(),
            )  # fmt: skip

    def encode(self) -> bytes:
        queue = QueueState(self.number, self.config, _LIMITS)
        queue.next_position = self.next_position
        if self.parts is not None:
            queue.ready, queue.runs, queue.lengths, queue.expires, queue.priorities = self.parts
        return snapshot.encode_one(queue)


def _pieces(
    saved: list[tuple[Key, bytes]], texts: list[Text], shared: bytes, queues: list[_Frozen]
) -> Iterator[tuple[int, Buffer]]:
    out = bytearray()
    for (kind, key), value in saved:
        write_save(out, kind, key, value)
        if len(out) >= _PIECE:
            yield SAVED, bytes(out)
            out.clear()
    yield SAVED, bytes(out)
    out = bytearray()
    for number, position, text in texts:
        write_uint(out, number)
        write_uint(out, position)
        data = text.encode(errors="surrogateescape")
        write_uint(out, len(data))
        out += data
        if len(out) >= _PIECE:
            yield TEXTS, bytes(out)
            out.clear()
    yield TEXTS, bytes(out)
    out = bytearray(shared)
    for queue in queues:
        out += queue.encode()
        if len(out) >= _PIECE:
            yield STATE, bytes(out)
            out.clear()
    yield STATE, bytes(out)


def _read_texts(data: bytes) -> Iterator[Text]:
    reader = Reader(data, snapshot.STATE_MAX)
    while not reader.ended:
        number, position = reader.uint(), reader.uint(END)
        yield number, position, reader.bytes(reader.uint()).decode(errors="surrogateescape")
