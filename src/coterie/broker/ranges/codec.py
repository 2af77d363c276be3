"""Bytes of sets and rows of positions: numbers of variable length, arrays in little-endian order.

There is exactly one encoding of a value. So a decoder refuses everything that an encoder would not have written: what
comes from a disk or a peer is then either the value that was meant, or an error, and equal states have equal bytes.
"""

from __future__ import annotations

import sys
from array import array
from typing import Final

from coterie.errors import WireError

END: Final = 2**63
"""Positions are below it."""
ENCODED_MAX: Final = 2**28
"""Bytes of one encoded value, unless the caller says otherwise."""
_LITTLE: Final = sys.byteorder == "little"


class MalformedRanges(WireError):
    """Bytes that encode no set, map or row of positions."""


def check_range(first: int, stop: int) -> None:
    """Raises ValueError: that is a mistake of this program, as whatever comes from outside has been checked before."""
    if not 0 <= first <= stop <= END:
        raise ValueError(f"no range of positions: {first} to {stop}")


def write_uint(out: bytearray, value: int) -> None:
    """Seven bits a byte, the lowest first."""
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)


def write_array(out: bytearray, values: array[int]) -> None:
    if not _LITTLE:
        values = values[:]
        values.byteswap()
    out += values.tobytes()


class Reader:
    """Goes over the bytes once. Everything raises MalformedRanges."""

    __slots__ = ("_at", "_data", "_size")

    def __init__(self, data: bytes | memoryview, limit: int = ENCODED_MAX) -> None:
        self._size = len(data)
        if self._size > limit:
            raise MalformedRanges(f"{self._size} bytes of ranges, and {limit} at most are allowed")
        self._data = bytes(data)
        self._at = 0

    def uint(self, most: int = END) -> int:
        """A number from 0 to `most`."""
        value = shift = 0
        while True:
            if self._at >= self._size:
                raise MalformedRanges("ranges end within a number")
            byte = self._data[self._at]
            self._at += 1
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                break
            shift += 7
            if shift > 63:
                raise MalformedRanges("a number of more than 64 bits in ranges")
        if shift and not byte:
            raise MalformedRanges("a number in ranges is longer than it must be")
        if value > most:
            raise MalformedRanges(f"{value} in ranges, where {most} is the most there can be")
        return value

    def items(self, least: int) -> int:
        """A number of items, each of at least so many bytes that must still follow."""
        count = self.uint()
        if count * least > self._size - self._at:
            raise MalformedRanges(f"ranges end too early for {count} items")
        return count

    def bytes(self, size: int) -> bytes:
        if size > self._size - self._at:
            raise MalformedRanges("ranges end too early")
        self._at += size
        return self._data[self._at - size : self._at]

    def array(self, typecode: str, items: int) -> array[int]:
        values = array(typecode)
        values.frombytes(self.bytes(items * values.itemsize))
        if not _LITTLE:
            values.byteswap()
        return values

    @property
    def ended(self) -> bool:
        """All bytes were read."""
        return self._at == self._size

    def done(self) -> None:
        if self._at != self._size:
            raise MalformedRanges(f"{self._size - self._at} bytes too many behind ranges")
