"""The operations that a record's head is made of, and the content of a message.

    Enqueue   messages into one queue: numbers, positions, sizes, checksums; or references to contents that are there
    Dequeue   ranges of numbers that are gone
    Save      a small record of the broker's (wiring, policy, user), or that it is deleted
    Name      which queue an id stands for; in each segment before its first use, so that segments stand alone
    Atomic    the whole record counts or nothing of it, also when it was the last one and a message of it is torn

Every message in every queue has a *number* of its own, rising over the whole log. A message that goes to several queues
has its content once, under the number of the first; the others refer to it.
"""

from __future__ import annotations

import json
import struct
from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

from coterie.broker.log_store.conversion.format import MOST, Damaged, HeadReader
from coterie.runtime.base import Buffer

ENQUEUE, DEQUEUE, SAVE, NAME, ATOMIC = range(1, 6)
_NUMBERS, _POSITIONS, _EXPIRES, _MARKS, _REFERS = 1, 2, 4, 8, 16

_TYPE = struct.Struct("<B")
_ENQUEUE = struct.Struct("<BIIQQ")
_ENQUEUE_ONE = struct.Struct("<BBIIQQIII")
_DEQUEUE = struct.Struct("<I")
_SAVE = struct.Struct("<BHII")
_NAME = struct.Struct("<IHHQ")
_SIZE = struct.Struct("<I")
NAME_SIZE: Final = 1 + _NAME.size
ENTRY_HEAD: Final = 12
"""Bytes in the head for one message, at least."""

ATOMIC_HEAD: Final = bytes((ATOMIC,))
CONTENT_ONLY: Final = 0
"""Instead of a queue: a content whose own entry is gone while others refer to it."""

Mark = int | str | None


@dataclass(slots=True)
class Enqueue:
    queue: int
    numbers: Sequence[int]
    positions: Sequence[int]
    bodies: Sequence[int]
    """Sizes of the bodies."""
    lengths: Sequence[int]
    """Sizes of the contents that follow the head; none if it refers."""
    crcs: Sequence[int]
    contents: Sequence[int]
    """The numbers that it refers to, or none."""
    expires: Sequence[int] | None = None
    """Milliseconds since 1970, 0: never."""
    marks: Sequence[Mark] | None = None

    @property
    def refers(self) -> bool:
        return bool(self.contents)

    def pick(self, kept: Sequence[int]) -> Enqueue:
        """Only those of its messages, by index."""
        if len(kept) == len(self.numbers):
            return self
        return Enqueue(
            self.queue,
            [self.numbers[i] for i in kept],
            [self.positions[i] for i in kept],
            [self.bodies[i] for i in kept],
            [self.lengths[i] for i in kept] if self.lengths else (),
            [self.crcs[i] for i in kept] if self.crcs else (),
            [self.contents[i] for i in kept] if self.contents else (),
            None if self.expires is None else [self.expires[i] for i in kept],
            None if self.marks is None else [self.marks[i] for i in kept],
        )


@dataclass(slots=True)
class Dequeue:
    ranges: list[tuple[int, int]]
    """First and last number of each."""


@dataclass(slots=True)
class Save:
    kind: str
    key: str
    value: bytes | None
    """JSON; None: deleted."""


@dataclass(slots=True)
class Name:
    id: int
    vhost: str
    name: str
    incarnation: int


class Atomic:
    """A flag of the record."""


Operation = Enqueue | Dequeue | Save | Name | Atomic


def operations(head: Buffer) -> Iterator[Operation]:
    """What a head holds. Raises Damaged where it makes no sense."""
    reader = HeadReader(head)
    while not reader.ended:
        (kind,) = reader.fields(_TYPE)
        if kind == ENQUEUE:
            yield _enqueue(reader)
        elif kind == DEQUEUE:
            (count,) = reader.fields(_DEQUEUE)
            flat = reader.column("Q", 2 * count)
            ranges = list(zip(flat[::2], flat[1::2], strict=True))
            if not all(0 < first <= last < MOST for first, last in ranges):
                raise Damaged("a dequeue makes no sense")
            yield Dequeue(ranges)
        elif kind == SAVE:
            deleted, kind_size, key_size, size = reader.fields(_SAVE)
            kind_text, key = reader.text(kind_size), reader.text(key_size)
            value = reader.bytes(size)
            yield Save(kind_text, key, None if deleted else value)
        elif kind == NAME:
            id, vhost_size, name_size, incarnation = reader.fields(_NAME)
            vhost, name = reader.text(vhost_size), reader.text(name_size)
            yield Name(id, vhost, name, incarnation)
        elif kind == ATOMIC:
            yield Atomic()
        else:
            raise Damaged(f"operation {kind} is unknown")


def _enqueue(reader: HeadReader) -> Enqueue:
    flags, queue, count, number, position = reader.fields(_ENQUEUE)
    bodies = reader.column("I", count)
    contents = reader.column("Q", count if flags & _REFERS else 0)
    lengths, crcs = (reader.column("I", 0 if flags & _REFERS else count) for _ in range(2))
    numbers: Sequence[int] = range(number, number + count)
    positions: Sequence[int] = range(position, position + count)
    if flags & _NUMBERS:
        numbers = reader.column("Q", count)
    if flags & _POSITIONS:
        positions = reader.column("Q", count)
    expires = reader.column("Q", count) if flags & _EXPIRES else None
    marks = _marks(reader, count) if flags & _MARKS else None
    if not count or not _rise(numbers) or not numbers[0] or max(numbers[-1], max(positions)) >= MOST:
        raise Damaged("an enqueue makes no sense")
    return Enqueue(queue, numbers, positions, bodies, lengths, crcs, contents, expires, marks)


def _rise(numbers: Sequence[int]) -> bool:
    return isinstance(numbers, range) or all(a < b for a, b in pairwise(numbers))


def _marks(reader: HeadReader, count: int) -> list[Mark]:
    (size,) = reader.fields(_SIZE)
    try:
        marks = json.loads(reader.bytes(size))
    except ValueError:
        marks = None
    if not isinstance(marks, list) or len(marks) != count:
        raise Damaged("an enqueue makes no sense")
    if not all(mark is None or isinstance(mark, int | str) for mark in marks):
        raise Damaged("an enqueue makes no sense")
    return marks


def empty_column(kind: str, count: int) -> array[int]:
    return array(kind, bytes(count * array(kind).itemsize))
