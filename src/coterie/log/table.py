"""Where the records of a segment are: one row each, in columns, and the footer of a closed segment that keeps them.

    footer    columns, runs, heads
    trailer   magic, where the records end, sizes, checksum of the footer, checksum of the trailer

`runs` are the owner's bytes. `heads` repeats prefix and head of each record, so that a restart reads them in one go; it
is left out where heads are a large part of the segment anyway, and reading the segment costs little more.
"""

from __future__ import annotations

import struct
import sys
from array import array
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from operator import lt
from typing import Final, NamedTuple
from zlib import crc32

from coterie.log.errors import Damaged
from coterie.log.place import MOST, Place
from coterie.log.record import MARK_SIZE, PREFIX_SIZE, Prefix, Record, decode_head, decode_prefix
from coterie.runtime.base import Buffer

_MAGIC: Final = b"cotfoot\n"
_TRAILER = struct.Struct("<8sQIIQII")
TRAILER_SIZE: Final = _TRAILER.size
_WIDE, _NARROW = "QQQQ", "III"
_ROW_SIZE: Final = 8 * len(_WIDE) + 4 * len(_NARROW)
_COPY_SIZE: Final = PREFIX_SIZE - MARK_SIZE
HEADS_PART: Final = 8
"""Heads are repeated in the footer if they are at most the n-th part of the segment."""


class Row(NamedTuple):
    ordinal: int
    place: Place
    offset: int
    head_size: int
    body_size: int
    body_crc: int

    @property
    def body_offset(self) -> int:
        return self.offset + PREFIX_SIZE + self.head_size

    @property
    def end(self) -> int:
        return self.body_offset + self.body_size


@dataclass(slots=True)
class Table:
    """The rows of one segment, by rising ordinal and place."""

    ordinals: array[int] = field(default_factory=lambda: array("Q"))
    epochs: array[int] = field(default_factory=lambda: array("Q"))
    indexes: array[int] = field(default_factory=lambda: array("Q"))
    offsets: array[int] = field(default_factory=lambda: array("Q"))
    head_sizes: array[int] = field(default_factory=lambda: array("I"))
    body_sizes: array[int] = field(default_factory=lambda: array("I"))
    body_crcs: array[int] = field(default_factory=lambda: array("I"))

    @property
    def columns(self) -> Sequence[array[int]]:
        return (
            self.ordinals, self.epochs, self.indexes, self.offsets, self.head_sizes, self.body_sizes, self.body_crcs,
        )  # fmt: skip

    @property
    def memory(self) -> int:
        return len(self.ordinals) * _ROW_SIZE

    def __len__(self) -> int:
        return len(self.ordinals)

    def add(self, record: Record | Prefix, offset: int) -> None:
        place = record.place
        self.ordinals.append(record.ordinal)
        self.epochs.append(place.epoch)
        self.indexes.append(place.index)
        self.offsets.append(offset)
        self.head_sizes.append(record.head_size)
        self.body_sizes.append(record.body_size)
        self.body_crcs.append(record.body_crc)

    def cut(self, last: int) -> None:
        """Nothing behind that ordinal counts."""
        keep = self.first_after(last)
        for column in self.columns:
            del column[keep:]

    def row(self, at: int) -> Row:
        place = Place(self.epochs[at], self.indexes[at])
        sizes = self.head_sizes[at], self.body_sizes[at], self.body_crcs[at]
        return Row(self.ordinals[at], place, self.offsets[at], *sizes)

    def rows(self, at: int = 0) -> Iterator[Row]:
        return map(self.row, range(at, len(self)))

    def first_after(self, ordinal: int) -> int:
        return bisect_left(self.ordinals, ordinal + 1)

    def find(self, place: Place) -> Row | None:
        at = self.first_at(place)
        return self.row(at) if at < len(self) and (self.epochs[at], self.indexes[at]) == place else None

    def first_at(self, place: Place) -> int:
        """The first row that is not before that place."""
        return bisect_left(range(len(self)), place, key=lambda at: Place(self.epochs[at], self.indexes[at]))


@dataclass(slots=True)
class Footer:
    table: Table
    runs: bytes
    heads: bytes
    records_end: int

    def records(self, mark: bytes, after: int) -> Iterator[tuple[Row, Record | Damaged]]:
        """The heads of the records behind that ordinal."""
        sizes = [_COPY_SIZE + size for size in self.table.head_sizes]
        skip = self.table.first_after(after)
        at = sum(sizes[:skip])
        for row_at in range(skip, len(sizes)):
            row = self.table.row(row_at)
            end = at + sizes[row_at]
            prefix = decode_prefix(mark + self.heads[at : at + _COPY_SIZE], 0, mark)
            if prefix is None or prefix.ordinal != row.ordinal or prefix.head_size != row.head_size:
                yield row, Damaged(f"the copied head of record {row.place} is damaged")
            else:
                yield row, decode_head(prefix, self.heads[at + _COPY_SIZE : end])
            at = end


def encode_footer(table: Table, runs: bytes, heads: Sequence[bytes], records_end: int) -> list[Buffer]:
    """`heads`: of all records, or none. Their marks are left out, so that nobody takes the copies for records."""
    heads = [head[MARK_SIZE:] for head in heads]
    columns = [_column(column) for column in table.columns]
    heads_size = sum(map(len, heads))
    buffers: list[Buffer] = [*columns, runs, *heads]
    crc = 0
    for buffer in buffers:
        crc = crc32(buffer, crc)
    plain = _TRAILER.pack(_MAGIC, records_end, len(table), len(runs), heads_size, crc, 0)[:-4]
    buffers.append(plain + crc32(plain).to_bytes(4, "little"))
    return buffers


def footer_size(trailer: Buffer, file_size: int) -> int:
    """Bytes between records and trailer; -1: the file does not end with a trailer."""
    if len(trailer) != TRAILER_SIZE:
        return -1
    magic, records_end, count, runs_size, heads_size, _, crc = _TRAILER.unpack(trailer)
    if magic != _MAGIC or crc32(memoryview(trailer)[:-4]) != crc:
        return -1
    size: int = count * _ROW_SIZE + runs_size + heads_size
    return size if records_end + size + TRAILER_SIZE == file_size else -1


def decode_footer(data: Buffer, with_heads: bool = True) -> Footer:
    """From footer and trailer, whose size was found to be right. Raises Damaged."""
    view = memoryview(data)
    _, records_end, count, runs_size, heads_size, crc, _ = _TRAILER.unpack(view[-TRAILER_SIZE:])
    if crc32(view[:-TRAILER_SIZE]) != crc:
        raise Damaged("the footer is damaged")
    table = Table()
    at = 0
    for column in table.columns:
        size = count * column.itemsize
        column.frombytes(view[at : at + size])
        if sys.byteorder == "big":
            column.byteswap()
        at += size
    _check(table, records_end)
    heads = bytes(view[at + runs_size : at + runs_size + heads_size]) if with_heads else b""
    if heads_size and heads_size != sum(table.head_sizes) + count * _COPY_SIZE:
        raise Damaged("the footer makes no sense")
    return Footer(table, bytes(view[at : at + runs_size]), heads, records_end)


def _check(table: Table, records_end: int) -> None:
    """That it is one which was written here; a checksum only tells that it is as it was written."""
    places = list(zip(table.epochs, table.indexes, strict=True))
    ends = [sum(row) for row in zip(table.offsets, table.head_sizes, table.body_sizes, strict=True)]
    starts = [*table.offsets[1:], records_end]
    sound = (
        all(map(lt, table.ordinals, table.ordinals[1:]))
        and all(map(lt, places, places[1:]))
        and all(end + PREFIX_SIZE <= start for end, start in zip(ends, starts, strict=False))
    )
    if not sound or (len(table) and max(table.ordinals[-1], *places[-1]) >= MOST):
        raise Damaged("the footer makes no sense")


def _column(column: array[int]) -> bytes:
    if sys.byteorder == "big":
        column = array(column.typecode, column)
        column.byteswap()
    return column.tobytes()
