"""The bytes of a publish event: what stands where, and how a column of numbers is written and read.

    head      fixed part, routes, columns
    contents  property blocks, then bodies; both raw, one after the other

A column has one number for each message, or for each property block. It is absent when all its numbers are the same:
that number is in the fixed part. Numbers are little endian. docs/publish-event.md has the tables.
"""

from __future__ import annotations

import struct
import sys
from array import array
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import compress, count, islice
from operator import ne
from typing import Final, Literal, TypeVar

from coterie.errors import WireError
from coterie.runtime.base import Buffer

VERSION: Final = 1
COUNT_MAX: Final = 1 << 20
"""Messages of one event: columns that are absent cost no bytes, so that a few bytes could claim any number of them."""
BLOCK_MIN: Final = 2
"""Bytes of a property block: the property flags are always there."""
DIGEST: Final = 32
"""Bytes of the digest that stands for a body outside the event."""

FIXED: Final = struct.Struct("<BBHIIIIIIQIBBHII")
"""version, 0, columns present, messages, routes, bytes of the routes, blocks, bytes of the blocks, ranges kept, bytes
of the bodies; then what is the same for all: length, flags, priority; bytes of the holders' names; expiry, block
size."""

# Columns that are present.
ROUTES: Final = 1
BLOCKS: Final = 2
OWN_BLOCKS: Final = 4
"""No column: each message has a block of its own, in their order."""
LENGTHS: Final = 8
FLAGS: Final = 16
PRIORITIES: Final = 32
EXPIRIES: Final = 64
BLOCK_SIZES: Final = 128
OUTSIDE: Final = 256
"""The bodies are not here: instead of each stands its digest. The head ends with the numbers of their offers, and the
names of those who have all of them."""
PRESENT: Final = 511

# Flags of a block.
PERSISTENT: Final = 1
EXPIRES: Final = 2
"""`expiration` is set; else the expiry is 0."""
FLAGS_MAX: Final = 3

Code = Literal["B", "H", "I", "Q"]
"""The type of a column's numbers, as `array` and `struct` name it."""
Range = tuple[int, int]
"""(first, stop), without `stop`."""
Column = int | Sequence[int]
"""A number: all have it."""

_LITTLE: Final = sys.byteorder == "little"
_T = TypeVar("_T")


class MalformedEvent(WireError):
    """Bytes that are no publish event."""


def width(size: int) -> Code:
    """The type of indices into a table of that size."""
    return "B" if size <= 0x100 else "H" if size <= 0x10000 else "I"


def write_column(code: Code, values: Iterable[int]) -> bytes:
    column = array(code, values)
    if not _LITTLE:
        column.byteswap()
    return column.tobytes()


_ITEM_SIZES: Final[dict[Code, int]] = {"B": 1, "H": 2, "I": 4, "Q": 8}
assert all(array(code).itemsize == size for code, size in _ITEM_SIZES.items())


class Cursor:
    """Goes over a buffer once; raises MalformedEvent where it ends too early."""

    __slots__ = ("at", "data", "end")

    def __init__(self, data: memoryview, at: int) -> None:
        self.data = data
        self.at = at
        self.end = len(data)

    def raw(self, size: int) -> memoryview:
        at = self.at
        self.at = stop = at + size
        if stop > self.end:
            raise MalformedEvent("a publish event ends too early")
        return self.data[at:stop]

    def column(self, code: Code, size: int) -> Sequence[int]:
        raw = self.raw(size * _ITEM_SIZES[code])
        if _LITTLE:
            return raw.cast(code)
        column = array(code)
        column.frombytes(raw)
        column.byteswap()
        return column


def as_view(data: Buffer) -> memoryview:
    """Plain bytes."""
    view = data if isinstance(data, memoryview) else memoryview(data)
    return view if view.format == "B" and view.ndim == 1 and view.contiguous else view.cast("B")


def changes(column: Sequence[int]) -> Iterator[int]:
    """Where a number differs from the one before it."""
    return compress(count(1), map(ne, column, islice(column, 1, None)))


def runs_of(column: Sequence[int], first: int, stop: int) -> Iterator[tuple[int, int, int]]:
    """(first, stop, number) of equal numbers in a row, in a part of a column."""
    part = column[first:stop]
    begin = 0
    for at in changes(part):
        yield first + begin, first + at, part[begin]
        begin = at
    if begin < len(part):
        yield first + begin, stop, part[begin]


def look_up(table: Sequence[_T], indices: Iterable[int]) -> list[_T]:
    get: Callable[[int], _T] = table.__getitem__
    return [*map(get, indices)]


def uniform(column: Sequence[int]) -> Column:
    """One number, if all are the same."""
    return column[0] if column.count(column[0]) == len(column) else column
