"""The bytes of a segment: a header, then records, each of them a unit that survives whole or not at all.

    segment   header  magic, version, flags, incarnation, ids, first number, where the previous one ends, secret, crc
              record* prefix (mark, sizes, crc of the head, crc of the prefix), head (operations), contents

The mark is eight bytes that all records of one segment begin with: after damage the next record is found by it. It is
made of the segment's name and a secret of the store, so that no client can forge it, and so that a damaged header
does not cost the segment: any other one's header tells the secret. The head holds everything but the contents, whose
checksums stand in it, one for each message: a flipped bit in a body costs that message alone. All numbers are little
endian.
"""

from __future__ import annotations

import struct
import sys
from array import array
from dataclasses import dataclass
from hashlib import blake2b
from typing import Final
from zlib import crc32

from coterie.broker.storage import Damaged as Damaged
from coterie.errors import DiskError
from coterie.runtime.base import Buffer

MAGIC: Final = b"coterie\n"
VERSION: Final = 1
REWRITTEN: Final = 1
"""Flag of a segment: compaction wrote it."""
MARK_SIZE: Final = 8
SECRET_SIZE: Final = 16
MOST: Final = 2**63
"""No number, position or size reaches this."""
ANY_BYTES: Final = "surrogateescape"
"""Names are what clients say they are, UTF-8 or not."""

_HEADER = struct.Struct("<8sHHIQQQQQQ16sI")
_PREFIX = struct.Struct("<8sIQII")
HEADER_SIZE: Final = _HEADER.size
PREFIX_SIZE: Final = _PREFIX.size


class Foreign(DiskError):
    """Sound, but of a version that this program does not know: not to be touched."""


@dataclass(frozen=True, slots=True)
class Header:
    """What a segment says of itself."""

    incarnation: int
    """Which start of the node wrote it."""
    id: int
    last: int
    """The highest id that it stands for: its own, unless segments were merged."""
    first: int
    """Messages in it have numbers from here on."""
    previous: int
    """The id of the segment that was written to before it."""
    previous_size: int
    """Where that one ends: what is behind was given up, and written again here."""
    secret: bytes
    rewritten: bool = False


def decode_header(data: Buffer) -> Header:
    """Raises Damaged or Foreign."""
    if len(data) < HEADER_SIZE:
        raise Damaged("the header is cut off")
    magic, version, flags, _, *numbers, secret, crc = _HEADER.unpack_from(data)
    if magic != MAGIC or crc32(memoryview(data)[: HEADER_SIZE - 4]) != crc:
        raise Damaged("the header is damaged")
    if version != VERSION:
        raise Foreign(f"the data folder's log is of version {version}, and this program knows version {VERSION} only")
    if max(numbers) >= MOST:
        raise Damaged("the header makes no sense")
    incarnation, id, last, first, previous, previous_size = numbers
    return Header(incarnation, id, last, first, previous, previous_size, secret, bool(flags & REWRITTEN))


def mark_of(secret: bytes, name: str) -> bytes:
    """What every record of this segment begins with."""
    return blake2b(name.encode(), digest_size=MARK_SIZE, key=secret).digest()


def decode_prefix(data: Buffer, at: int, mark: bytes) -> tuple[int, int, int] | None:
    """Sizes of head and contents, and the head's checksum; None if no record begins here."""
    if len(data) - at < PREFIX_SIZE:
        return None
    found, head_size, content_size, head_crc, crc = _PREFIX.unpack_from(data, at)
    if found != mark or crc32(memoryview(data)[at : at + PREFIX_SIZE - 4]) != crc:
        return None
    return head_size, content_size, head_crc


class HeadReader:
    """Takes a head apart. Whatever is not there raises Damaged."""

    __slots__ = ("_data", "at")

    def __init__(self, data: Buffer) -> None:
        self._data = memoryview(data)
        self.at = 0

    @property
    def ended(self) -> bool:
        return self.at >= len(self._data)

    def fields(self, form: struct.Struct) -> tuple[int, ...]:
        if len(self._data) - self.at < form.size:
            raise Damaged("a record is cut off")
        values = form.unpack_from(self._data, self.at)
        self.at += form.size
        return values

    def bytes(self, size: int) -> bytes:
        if len(self._data) - self.at < size:
            raise Damaged("a record is cut off")
        found = bytes(self._data[self.at : self.at + size])
        self.at += size
        return found

    def text(self, size: int) -> str:
        return self.bytes(size).decode(errors=ANY_BYTES)

    def column(self, kind: str, count: int) -> array[int]:
        numbers = array(kind)
        numbers.frombytes(self.bytes(count * numbers.itemsize))
        if sys.byteorder == "big":
            numbers.byteswap()
        return numbers
