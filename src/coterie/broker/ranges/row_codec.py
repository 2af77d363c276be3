"""A set of positions as bytes: the number of its pieces, then each of them.

piece    gap (blocks since the last piece), n
n = 0    a stretch: how many full blocks, at least 1
1..127   so many ranges: their borders, 16 bits each, rising
128      a bitmap of 512 bytes, with 128 ranges or more

A block's form on the wire follows from its content alone, whatever its form in memory, so equal sets have equal bytes.
"""

from __future__ import annotations

from array import array
from typing import Final

from coterie.broker.ranges import block as blocks
from coterie.broker.ranges.block import SHIFT, SIZE
from coterie.broker.ranges.codec import END, MalformedRanges, Reader, write_array, write_uint
from coterie.broker.ranges.row import PieceRow

_BITMAP: Final = 128
_BITMAP_BYTES: Final = SIZE // 8
_BLOCKS: Final = END >> SHIFT
_PIECE_MIN: Final = 3


def write_row(out: bytearray, positions: PieceRow) -> None:
    write_uint(out, positions.pieces)
    end = 0
    for first, part, _ in positions.row():
        write_uint(out, first - end)
        end = first + 1
        if isinstance(part, int) and part < 0:
            end = first - part
            out.append(0)
            write_uint(out, -part)
            continue
        count = _ranges(part) if isinstance(part, int) else len(part) >> 2
        if count >= _BITMAP:
            write_uint(out, _BITMAP)
            out += blocks.bitmap(part).to_bytes(_BITMAP_BYTES, "little")
        else:
            write_uint(out, count)
            write_array(out, array("H", blocks.borders(part)))


def read_row(reader: Reader, positions: PieceRow) -> None:
    """Into an empty one. Raises MalformedRanges for whatever `write_row` does not write."""
    end, stretch = 0, False
    for _ in range(reader.items(_PIECE_MIN)):
        gap = reader.uint(_BLOCKS)
        first = end + gap
        kind = reader.uint(_BITMAP)
        end = first + (1 if kind else reader.uint(_BLOCKS))
        if end > _BLOCKS:
            raise MalformedRanges("positions beyond 2^63")
        if kind == 0:
            if end == first or (stretch and not gap):
                raise MalformedRanges("a stretch of blocks is empty, or two are not one")
            positions.push(first, first - end, (end - first) << SHIFT)
        elif kind == _BITMAP:
            bits = int.from_bytes(reader.bytes(_BITMAP_BYTES), "little")
            if _ranges(bits) < _BITMAP:
                raise MalformedRanges("a bitmap has so few ranges that it is none")
            positions.push(first, bits, bits.bit_count())
        else:
            row = reader.array("H", 2 * kind).tolist()
            if row[-1] > SIZE or any(map(int.__ge__, row, row[1:])) or row == [0, SIZE]:
                raise MalformedRanges("the borders of ranges in a block do not rise, or it is full")
            positions.push(first, blocks.pack(row), sum(row[1::2]) - sum(row[::2]))
        stretch = kind == 0


def _ranges(bits: int) -> int:
    """How many ranges a bitmap has."""
    return (bits & ~(bits << 1)).bit_count()
