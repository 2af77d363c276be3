"""Recovery: from whatever a crash has left in the folder to the index and what the broker gets back.

Segments are read in their order. Everything that is sound counts: a record that cannot be read is reported and passed
over, a message whose content is damaged is reported and dequeued, a torn tail is cut off without a word but for a
line in the log. Nothing in here raises for what it reads; only the disk's own errors, and a version that is not
known, end it.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from itertools import accumulate
from zlib import crc32

from coterie.broker.log_store.conversion.files import SegmentName, parse_name
from coterie.broker.log_store.conversion.format import HEADER_SIZE, Damaged, decode_header
from coterie.broker.log_store.conversion.found import FoundMessages
from coterie.broker.log_store.conversion.index import Index
from coterie.broker.log_store.conversion.operations import CONTENT_ONLY, Atomic, Dequeue, Enqueue, Name, Save
from coterie.broker.log_store.conversion.scan import Record, Scanner
from coterie.broker.log_store.conversion.segment import REFERENCE_SIZE, Segment
from coterie.broker.storage import Record as SavedRecord
from coterie.broker.storage import Recovered
from coterie.log.folder import Folder
from coterie.logs import Log

QUEUE_MARKS = "store.marks"
"""The store's own kind of saved record: how far positions and deliveries of a queue may have gone."""
CLOSED = "store.closed"
"""And that it was closed as it should be; its value tells which start of the node did it."""
_MOST_BYTES = 2**32 - 1
_ALL = 2**64 - 1
"""Above every position."""
_MOST_DAMAGE = 1000
"""Lines of damage that are told; the rest is counted."""
_WORTHLESS = 1 << 16
"""Bytes of a new segment that a crash may leave half written; more of them are kept for whoever wants to look."""
log = Log(__name__)


class Recovery:
    """One recovery. Afterwards the index is filled, and `result` is what the broker is told."""

    def __init__(self, folder: Folder, read_bytes: int, index: Index) -> None:
        self._folder = folder
        self._read_bytes = read_bytes
        self._index = index
        self.result = Recovered()
        self.queues: dict[tuple[str, str, int], int] = {}
        """The ids that queues have in the log."""
        self.delivered: dict[tuple[str, str, int], int] = {}
        """Up to which position messages of a queue may have been delivered."""
        self.next_queue = 1
        self.next_id = 1
        self.next_number = 1
        self.lost: dict[int, None] = {}
        """Messages that cannot be recovered: to be dequeued, so that they are reported once."""
        self._names: dict[int, Name] = {}
        self._saved: dict[tuple[str, str], bytes] = {}
        self._enqueues: list[tuple[Segment, int, Enqueue]] = []
        self._bad: dict[int, str] = {}
        """Messages whose content is damaged, and where."""
        self._unfounded: dict[int, int] = {}
        """Messages whose content, which others had, is not there: damage, unless they are gone by the end. Of a message
        that is gone, a compaction drops the content before the records in later segments that referred to it."""
        self._incarnation = 0
        self.secret = b""
        self._unlisted = 0

    async def run(self) -> None:
        segments, limits = await self._survey()
        for at, (name, size) in enumerate(segments):
            limit = limits.get(name.id, size)
            if size < limit:
                self._damaged(f"{name} at {size}: {limit - size} bytes are missing")
            await self._read(name, min(size, limit, _MOST_BYTES), last=at == len(segments) - 1)
        self._settle_contents()
        self._settle_saved()
        self._settle_queues()
        for segment in self._index.segments:
            segment.tighten()
        if self._unlisted:
            self.result.damage.append(f"and {self._unlisted} more")

    # Which files there are.

    async def _survey(self) -> tuple[list[tuple[SegmentName, int]], dict[int, int]]:
        """The segments that count, in order; and for those that were given up before their end, where that is."""
        files = await self._folder.list()
        found: dict[SegmentName, int] = {}
        for text, size in files.items():
            name = parse_name(text)
            if name is not None:
                found[name] = size
        kept: list[tuple[SegmentName, int]] = []
        end = 0
        for name in sorted(found, key=lambda name: (name.id, -name.last, -name.generation)):
            if name.last <= end:  # merged into, or written anew as, the one before
                continue
            kept.append((name, found[name]))
            end = name.last
        self.next_id = end + 1
        limits: dict[int, int] = {}
        plain = {name.id for name, _ in kept if name.generation == 0}
        for name, size in kept:
            try:
                header = decode_header(await self._folder.read(str(name), 0, min(size, HEADER_SIZE)))
            except Damaged:
                continue
            self.secret = self.secret or header.secret
            if not header.rewritten and header.previous in plain:
                limits[header.previous] = header.previous_size
        while kept and await self._hollow(*kept[-1]):
            # Its making was interrupted: the one before is where the last run of the node ended.
            kept.pop()
        return kept, limits

    async def _hollow(self, name: SegmentName, size: int) -> bool:
        """Whether nothing in it can be read."""
        scanner = Scanner(self._folder, str(name), size, self.secret, self._read_bytes, [])
        await scanner.open()
        return scanner.header is None and await scanner.next() is None

    # What is in them.

    async def _read(self, name: SegmentName, size: int, last: bool) -> None:
        text = str(name)
        damage: list[tuple[int, str]] = []
        scanner = Scanner(self._folder, text, size, self.secret, self._read_bytes, damage)
        await scanner.open()
        header = scanner.header
        first = self.next_number
        if header is not None:
            self._incarnation = max(self._incarnation, header.incarnation)
            first = max(first, header.first)
        self.next_number = first
        segment = Segment(text, first)
        self._index.add(segment)
        while (record := await scanner.next()) is not None:
            bad = _bad_contents(record)
            if bad and last and await self._torn(scanner, record, bad, segment):
                break
            self._apply(record, bad, segment)
        for at, what in damage:
            self._damaged(f"{text} at {at}: {what}")
        if header is None:
            self._damaged(f"{text} at 0: the header is damaged")
        if scanner.tail and not last:
            self._damaged(f"{text} at {scanner.at}: {scanner.tail} bytes are no record")
        segment.size = scanner.at

    async def _torn(self, scanner: Scanner, record: Record, bad: list[int], segment: Segment) -> bool:
        """A record with damaged contents in the last segment: if nothing follows, a crash may have torn it."""
        following = await scanner.next()
        if following is not None:
            scanner.at = following.offset  # rare enough to read it twice
            return False
        count = sum(len(op.lengths) for op in record.operations if isinstance(op, Enqueue))
        # A write that was not finished lacks its end; where the file has grown all the same, it ends with zeros.
        unfinished = record.contents[-1] == 0 and bad == list(range(count - len(bad), count))
        if unfinished or any(isinstance(op, Atomic) for op in record.operations):
            scanner.at = record.offset
            if not unfinished:
                self._damaged(f"{segment.name} at {record.offset}: a transaction is damaged, all of it is lost")
        else:
            self._apply(record, bad, segment)
        return True

    def _apply(self, record: Record, bad: list[int], segment: Segment) -> None:
        offset = record.contents_offset
        ordinal = 0
        for op in record.operations:
            if isinstance(op, Enqueue):
                if not op.refers:
                    count = len(op.lengths)
                    here = [at - ordinal for at in bad if ordinal <= at < ordinal + count]
                    ordinal += count
                    for at in here:
                        self._bad[op.numbers[at]] = f"{segment.name} at {offset}"
                    *offsets, offset = accumulate(op.lengths, initial=offset)
                    self._enqueue(op, offsets, segment)
                else:
                    self._enqueue(op, [0] * len(op.numbers), segment)
            elif isinstance(op, Dequeue):
                for first, last in op.ranges:
                    self._index.kill(first, last)
                    for number in [number for number in self._unfounded if first <= number <= last]:
                        del self._unfounded[number]
                    self.next_number = max(self.next_number, last + 1)
            elif isinstance(op, Save):
                key = op.kind, op.key
                if op.value is None:
                    self._saved.pop(key, None)
                else:
                    self._saved[key] = op.value
            elif isinstance(op, Name):
                self._names[op.id] = op

    def _enqueue(self, op: Enqueue, offsets: Sequence[int], segment: Segment) -> None:
        # Numbers only rise: what comes again was written again after a failed sync, or merged.
        kept: Sequence[int] = range(len(op.numbers))
        if op.numbers[0] < self.next_number:
            kept = [at for at, number in enumerate(op.numbers) if number >= self.next_number]
        if op.refers:
            kept = [at for at in kept if self._refer(op.numbers[at], op.contents[at])]
        if not kept:
            return
        op = op.pick(kept)
        offsets = offsets if len(offsets) == len(kept) else [offsets[at] for at in kept]
        sizes = op.lengths or [REFERENCE_SIZE] * len(kept)
        slot = segment.fill(op.numbers, offsets, sizes, op.crcs or [0] * len(kept))
        self._enqueues.append((segment, slot, op))
        self.next_number = op.numbers[-1] + 1
        if op.queue == CONTENT_ONLY:
            self._index.orphans.update(dict.fromkeys(op.numbers))

    def _refer(self, number: int, content: int) -> bool:
        """Whether the content is there."""
        if content in self._index.refers or self._index.find(content) is None:
            self._unfounded[number] = content
            return False
        self._index.refer(number, content)
        return True

    # What it amounts to.

    def _settle_contents(self) -> None:
        """Contents that nobody refers to any more, and messages whose contents or queues are lost."""
        index = self._index
        for number, content in self._unfounded.items():
            self._damaged(f"message {number} has lost its content, which message {content} had")
        for number in [number for number in index.orphans if number not in index.shared]:
            del index.orphans[number]
            index.kill(number, number)
        for number, where in self._bad.items():
            place = index.find(number)
            if place is None:
                continue
            sharing = [other for other, content in index.refers.items() if content == number]
            self._damaged(f"{where}: a message of {place.size} bytes in {len(sharing) + 1} queues is damaged")
            self._lose([*sharing, number])

    def _lose(self, numbers: Sequence[int]) -> None:
        self.lost.update(dict.fromkeys(numbers))

    def _settle_saved(self) -> None:
        result = self.result
        result.previous = self._incarnation
        result.incarnation = self._incarnation + 1
        result.clean = not self._index.segments
        for (kind, key), text in self._saved.items():
            try:
                value = json.loads(text)
            except (ValueError, RecursionError):
                value = None
            if not isinstance(value, dict):
                self._damaged(f"the saved {kind} '{key}' is no JSON object")
            elif kind == CLOSED:
                result.clean = value.get("incarnation") == self._incarnation
            elif kind != QUEUE_MARKS:
                result.records[kind, key] = value

    def _settle_queues(self) -> None:
        index, result = self._index, self.result
        marks = self._marks()
        entries: dict[int, FoundMessages] = {}
        unknown: dict[int, list[int]] = {}
        gone = index.orphans.keys() | self.lost.keys()
        for segment, slot, op in self._enqueues:
            if op.queue == CONTENT_ONLY:
                continue
            alive = segment.slots_alive(slot, len(op.numbers))
            if gone:
                alive = [at for at in alive if op.numbers[at] not in gone]
            if not alive:
                continue
            op = op.pick(alive)
            if op.queue in entries:
                entries[op.queue].add(op)
            elif op.queue in self._names:
                name = self._names[op.queue]
                delivered = marks.get((name.vhost, name.name, name.incarnation), (0, 0))[1]
                entries[op.queue] = FoundMessages(delivered if result.clean else _ALL)
                entries[op.queue].add(op)
            else:
                unknown.setdefault(op.queue, []).extend(op.numbers)
        for queue, numbers in unknown.items():
            self._damaged(f"{len(numbers)} messages of queue {queue}, whose name is lost")
            self._lose(numbers)
        self.next_queue = max([self.next_queue, *(id + 1 for id in self._names)])
        for id, name in self._names.items():
            key = name.vhost, name.name, name.incarnation
            self.queues[key] = id
            if id in entries:
                highest = entries[id].settle()
                result.queues[key] = max(marks.get(key, (0, 0))[0], highest + 1), entries[id]
        for key, (next_position, upto) in marks.items():
            result.queues.setdefault(key, (next_position, []))
            self.delivered[key] = upto if result.clean else result.queues[key][0] - 1

    def _marks(self) -> dict[tuple[str, str, int], tuple[int, int]]:
        marks: dict[tuple[str, str, int], tuple[int, int]] = {}
        for (kind, key), text in self._saved.items():
            if kind != QUEUE_MARKS:
                continue
            try:
                value: SavedRecord = json.loads(text)
                vhost, name, incarnation = value["vhost"], value["name"], value["incarnation"]
                position, delivered = value["next"], value["delivered"]
            except (ValueError, KeyError, TypeError, RecursionError):
                self._damaged(f"the marks of queue '{key}' make no sense")
                continue
            match (vhost, name, incarnation, position, delivered):
                case str(), str(), int(), int(), int():
                    marks[vhost, name, incarnation] = position, delivered
        return marks

    def _damaged(self, line: str) -> None:
        if len(self.result.damage) < _MOST_DAMAGE:
            self.result.damage.append(line)
        else:
            self._unlisted += 1


def _bad_contents(record: Record) -> list[int]:
    """Which of the record's contents, counted over all its operations, are not what was written."""
    bad: list[int] = []
    contents, at, ordinal = record.contents, 0, 0
    for op in record.operations:
        if isinstance(op, Enqueue):
            for length, crc in zip(op.lengths, op.crcs, strict=True):
                if crc32(contents[at : at + length]) != crc:
                    bad.append(ordinal)
                at += length
                ordinal += 1
    return bad
