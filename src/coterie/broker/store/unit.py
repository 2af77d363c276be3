"""A unit: what the store was told in one turn, or in one transaction; one record of the log.

It is kept until it is synced, in a form that can be written to any segment: if the disk refuses to sync what was
appended, the same units go to another segment.
"""

from __future__ import annotations

from collections.abc import Sequence

from coterie.broker.store.format import encode_prefix
from coterie.broker.store.index import Index, Key
from coterie.broker.store.operations import ATOMIC_HEAD, Dequeue, Name, ranges_of
from coterie.broker.store.segment import Segment
from coterie.runtime.base import Buffer

Mark = tuple[int, int, int, int, int, int, int, int, int, int, bool]


class Unit:
    """One record in the making."""

    __slots__ = (
        "_dequeue_size", "_enqueues", "_heads", "_keys", "_placed", "_ranges", "_references", "atomic",
        "content_size", "contents", "dead", "first", "next_number", "queues", "size", "upto"
    )  # fmt: skip

    def __init__(self, first: int) -> None:
        self.first = first
        """The next number of a message when it was begun."""
        self.next_number = first
        """And when it was ended."""
        self.size = 0
        """Bytes that it will take, about."""
        self.atomic = False
        self.upto = 0
        """The place in the log after it."""
        self.contents: list[Buffer] = []
        self.content_size = 0
        self.queues: dict[int, Name] = {}
        """Those that it names by id."""
        self.dead: list[int] = []
        """Messages that leave by it: after everything else that it says."""
        self._heads: list[bytes] = []
        self._enqueues: list[tuple[Sequence[int], Sequence[int]]] = []
        self._references: list[tuple[int, Sequence[int]]] = []
        self._ranges: list[tuple[int, int]] = []
        self._dequeue_size = 0
        self._keys: list[tuple[Key, int, bool]] = []
        self._placed = False

    @property
    def empty(self) -> bool:
        return not (self._heads or self.dead)

    # What it is told.

    def enqueue(self, queue: Name, head: bytes, lengths: Sequence[int], crcs: Sequence[int], size: int) -> None:
        """Messages with the next numbers; their contents are put into `contents` by the caller."""
        self._heads.append(head)
        self._enqueues.append((lengths, crcs))
        self.queues[queue.id] = queue
        self.content_size += size
        self.size += size + len(head)

    def refer(self, queue: Name, head: bytes, first: int, contents: Sequence[int]) -> None:
        """Messages with the next numbers, from `first` on, whose contents others have."""
        self._heads.append(head)
        self._references.append((first, contents))
        self._enqueues.append(((), contents))
        self.queues[queue.id] = queue
        self.size += len(head)

    def dequeue(self, numbers: Sequence[int]) -> None:
        self.dead += numbers
        self.size += 16

    def save(self, key: Key, head: bytes, deleted: bool) -> None:
        self._heads.append(head)
        self._keys.append((key, len(head), deleted))
        self.size += len(head)

    # What it is told, and taken back.

    def mark(self) -> Mark:
        """How much it was told."""
        return (
            len(self.contents), len(self._heads), len(self._enqueues), len(self._references), len(self.dead),
            len(self._keys), len(self.queues), self.size, self.content_size, self.next_number, self.atomic,
        )  # fmt: skip

    def cut(self, mark: Mark) -> None:
        """It was told nothing since."""
        contents, heads, enqueues, references, dead, keys, queues = mark[:7]
        del self.contents[contents:], self._heads[heads:], self._enqueues[enqueues:]
        del self._references[references:], self.dead[dead:], self._keys[keys:]
        while len(self.queues) > queues:
            self.queues.popitem()
        self.size, self.content_size, self.next_number, self.atomic = mark[7:]

    # Where it goes.

    def encode(self, segment: Segment) -> bytes:
        """The record without its contents, for this segment."""
        heads = [ATOMIC_HEAD] if self.atomic else []
        heads += [queue.encode() for id, queue in self.queues.items() if id not in segment.named]
        heads += self._heads
        if self.dead:
            self._ranges = ranges_of(sorted(self.dead))
            head = Dequeue(self._ranges).encode()
            self._dequeue_size = len(head)
            heads.append(head)
        head = b"".join(heads)
        return encode_prefix(segment.mark, head, self.content_size) + head

    def place(self, segment: Segment, index: Index, offset: int) -> None:
        """It was appended; its contents begin at this offset."""
        for lengths, others in self._enqueues:
            if lengths:
                offset = segment.place(lengths, others, offset)
            else:
                segment.place_references(len(others))
        for first, contents in self._references if not self._placed else ():
            for number, content in enumerate(contents, first):
                index.refer(number, content)
        for key, size, deleted in self._keys:
            index.save(segment, key, size, deleted)
        segment.named.update(self.queues)
        segment.dequeue_bytes += self._dequeue_size
        self._placed = True

    def take_effect(self, segment: Segment, index: Index) -> None:
        """It was synced: what it says is gone need not be kept any more."""
        for first, last in self._ranges:
            index.kill(first, last, segment)
