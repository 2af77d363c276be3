"""A segment: an append-only file of records, with a header, and a footer once it is closed.

The header names the first ordinal of the segment. **A segment ends where a later one begins**: whatever has that
ordinal or a higher one in a segment with a lower number does not count. So one durable header is enough to cut off a
torn tail, to give up a file whose sync failed, and to truncate the log; nothing that was cut comes back when the file
itself could not be cut.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Final
from zlib import crc32

from coterie.log.errors import Damaged, Foreign, UnknownVersion
from coterie.log.folder import SegmentName
from coterie.log.place import MOST, Place, Position
from coterie.log.record import CHAIN_SIZES
from coterie.log.table import Table
from coterie.runtime.base import Buffer

MAGIC: Final = b"cotlog\r\n"
VERSION: Final = 1
ID_SIZE: Final = 16
_MERGED: Final = 1
_HEADER = struct.Struct("<8sHHBxxx16sQQQQQQ8s32sI")
HEADER_SIZE: Final = _HEADER.size


@dataclass(frozen=True, slots=True)
class Header:
    log_id: bytes
    number: int
    last_number: int
    first: int
    """Ordinal of the first record, also of one that a merge left out."""
    last: int
    """Ordinal up to which a merged segment stands for the log; 0 in one that is not merged."""
    before: Position
    """The record before the first: its ordinal is `first` - 1."""
    mark: bytes

    @property
    def merged(self) -> bool:
        return self.last > 0

    def encode(self) -> bytes:
        assert len(self.log_id) == ID_SIZE
        assert self.before.ordinal == self.first - 1
        plain = _HEADER.pack(
            MAGIC, VERSION, _MERGED if self.merged else 0, len(self.before.chain), self.log_id, self.number,
            self.last_number, self.first, self.last, *self.before.place, self.mark, self.before.chain, 0,
        )[:-4]  # fmt: skip
        return plain + crc32(plain).to_bytes(4, "little")


def decode_header(data: Buffer, name: SegmentName, log_id: bytes | None) -> Header:
    """Raises Damaged, Foreign or UnknownVersion. Without `log_id` any log's is taken."""
    view = memoryview(data)
    if len(view) < HEADER_SIZE:
        raise Damaged("empty" if not len(view) else "the header is cut off")
    magic, version, flags, chain_size, id, number, last_number, first, last, epoch, index, mark, chain, crc = (
        _HEADER.unpack_from(view)
    )
    if crc32(view[: HEADER_SIZE - 4]) != crc:
        raise Damaged("the header is damaged")
    if magic != MAGIC:
        raise Foreign("not a segment of a log")
    if version != VERSION:
        raise UnknownVersion(f"the log is of version {version}, and this program knows version {VERSION} only")
    if log_id is not None and id != log_id:
        raise Foreign(f"of another log, {id.hex()}")
    sound = max(number, last_number, first, last, epoch, index) < MOST and first >= 1
    if not sound or (chain_size not in CHAIN_SIZES and chain_size) or bool(flags & _MERGED) != bool(last):
        raise Damaged("the header makes no sense")
    if (number, last_number) != name[:2] or (last and last < first):
        raise Damaged("the header makes no sense under this name")
    before = Position(first - 1, Place(epoch, index), chain[:chain_size])
    return Header(id, number, last_number, first, last, before, mark)


@dataclass(slots=True, eq=False)
class Segment:
    """What is known of a segment in use."""

    name: SegmentName
    mark: bytes
    before: Position
    last: int
    """The last ordinal that counts here, or that a merge left out; `before.ordinal`: none yet."""
    size: int
    """Bytes up to the end of its records."""
    table: Table | None = None
    """None: to be read from the file."""
    merged: bool = False
    closed: bool = True
    file_size: int = 0
    """If it has a footer: with that; otherwise 0."""

    @property
    def file(self) -> str:
        return str(self.name)

    @property
    def first(self) -> int:
        return self.before.ordinal + 1

    def __repr__(self) -> str:
        return f"<Segment {self.name} records {self.first} to {self.last}, {self.size} bytes>"
