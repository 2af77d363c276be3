"""The content of one block of 4096 positions that has some of them, and not all.

Two forms, both immutable, so that copies of a set share them:

- *ranges*: `bytes`, the borders (first, stop, first, stop...) as 16-bit numbers, for up to 8 ranges: 37 to 65 bytes;
- *bitmap*: a Python `int`, for everything else: 570 bytes. Changing a bit takes 0.2 us; with `bytes` it is 0.4 us.

A block that is down to 8 positions, or lacks 7 at most, is ranges. A bitmap that comes to have few ranges in another
way may stay one: counting them costs more than it saves. So equal contents may have different forms (`same`).

In a row of borders, that is a sorted list without equal neighbours, a place is inside if the number of borders up to it
is odd. That one rule is behind everything done with ranges here.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from struct import Struct
from typing import Final

SHIFT: Final = 12
SIZE: Final = 1 << SHIFT
MASK: Final = SIZE - 1
FULL: Final = (1 << SIZE) - 1
RANGES_MAX: Final = 8
_WINDOW: Final = 512
"""Bits that are turned into ranges at a time."""
_BORDERS: Final = [Struct(f"={count}H") for count in range(2 * RANGES_MAX + 1)]

PAIR: Final = _BORDERS[2]

Part = int | bytes
"""A bitmap, or ranges."""


def one_range(first: int, stop: int) -> bytes:
    return PAIR.pack(first, stop)


def pack(borders: list[int]) -> Part:
    if len(borders) <= 2 * RANGES_MAX:
        return _BORDERS[len(borders)].pack(*borders)
    return _bitmap(borders)


def _bitmap(borders: list[int] | tuple[int, ...]) -> int:
    # A border flips everything from there on.
    bits = 0
    for border in borders:
        bits ^= FULL >> border << border
    return bits


def bitmap(part: Part) -> int:
    return part if isinstance(part, int) else _bitmap(_BORDERS[len(part) >> 1].unpack(part))


def formed(bits: int, count: int) -> Part:
    """A bitmap with so many bits, as the form that suits it."""
    return bits if RANGES_MAX < count <= SIZE - RANGES_MAX else pack(_borders_of(bits, 0, SIZE))


def same(one: Part, other: Part) -> bool:
    return bitmap(one) == bitmap(other) if type(one) is not type(other) else one == other


def _borders_of(bits: int, first: int, stop: int) -> list[int]:
    """Of the part of a bitmap between two places."""
    digits = bin(bits >> first & (1 << stop - first) - 1)[:1:-1]
    borders: list[int] = []
    find = digits.find
    at = find("1")
    while at >= 0:
        end = find("0", at)
        if end < 0:
            end = len(digits)
        borders.append(first + at)
        borders.append(first + end)
        at = find("1", end)
    return borders


def borders(part: Part, first: int = 0, stop: int = SIZE) -> list[int]:
    """What there is between two places: first, stop, first, stop..."""
    if isinstance(part, int):
        return _borders_of(part, first, stop)
    row = [*_BORDERS[len(part) >> 1].unpack(part)]
    if stop < SIZE:
        _remove(row, stop, SIZE)
    if first:
        _remove(row, 0, first)
    return row


def lowest(part: Part, count: int) -> list[int]:
    """The borders of the `count` lowest; there must be as many."""
    if isinstance(part, bytes) and len(part) == 4:
        first, _ = PAIR.unpack(part)
        return [first, first + count]
    found: list[int] = []
    if isinstance(part, int):
        first = (part ^ part - 1).bit_length() - 1
        while count > 0:
            stop = min(first + _WINDOW if count > 128 else first + 128, SIZE)
            some = _borders_of(part, first, stop)
            count -= sum(some[1::2]) - sum(some[::2])
            if found and some and some[0] == found[-1]:
                del some[0], found[-1]
            found += some
            first = stop
    else:
        for border in _BORDERS[len(part) >> 1].unpack(part):
            found.append(border)
            if not len(found) & 1:
                count -= border - found[-2]
                if count <= 0:
                    break
    while count < 0:  # too many: cut from the end
        size = found[-1] - found[-2]
        if size <= -count:
            del found[-2:]
        else:
            found[-1] += count
        count += size
    return found


def _remove(row: list[int], first: int, stop: int) -> None:
    low, high = bisect_left(row, first), bisect_right(row, stop)
    row[low:high] = ([first] if low & 1 else []) + ([stop] if high & 1 else [])


def contains(part: Part, place: int) -> bool:
    if isinstance(part, int):
        return part & 1 << place != 0
    return bisect_right(_BORDERS[len(part) >> 1].unpack(part), place) & 1 != 0


def first_from(part: Part, place: int) -> int:
    """The lowest place from there on; -1: none."""
    if isinstance(part, int):
        rest = part >> place
        return place + (rest ^ rest - 1).bit_length() - 1 if rest else -1
    row = _BORDERS[len(part) >> 1].unpack(part)
    at = bisect_right(row, place)
    if at & 1:
        return place
    return row[at] if at < len(row) else -1


def count_in(part: Part, first: int, stop: int) -> int:
    if isinstance(part, int):
        return (part >> first & (1 << stop - first) - 1).bit_count()
    row = borders(part, first, stop)
    return sum(row[1::2]) - sum(row[::2])


def add(part: Part, count: int, first: int, stop: int) -> tuple[Part, int]:
    """With a range more, and the new count; if that is 4096, the block is full and the form of no meaning."""
    if isinstance(part, int):
        mask = (1 << stop - first) - 1 << first
        count += stop - first - ((part & mask) >> first).bit_count()
        part |= mask
        return (part, count) if count <= SIZE - RANGES_MAX else (formed(part, count), count)
    if len(part) == 4:
        begin, end = PAIR.unpack(part)
        if begin <= first <= end < stop:  # what is published comes behind what is there
            return PAIR.pack(begin, stop), stop - begin
    row = [*_BORDERS[len(part) >> 1].unpack(part)]
    low, high = bisect_left(row, first), bisect_right(row, stop)
    if low == high and low & 1:
        return part, count
    row[low:high] = ([] if low & 1 else [first]) + ([] if high & 1 else [stop])
    return pack(row), sum(row[1::2]) - sum(row[::2])


def remove(part: Part, count: int, first: int, stop: int) -> tuple[Part, int]:
    """Without a range, and the new count; if that is 0, the form has no meaning."""
    if isinstance(part, int):
        if stop - first == 1:
            hit = part & 1 << first
            if not hit:
                return part, count
            count -= 1
        else:
            hit = part & (1 << stop - first) - 1 << first
            count -= (hit >> first).bit_count()
        part ^= hit
        return (part, count) if count > RANGES_MAX else (formed(part, count), count)
    if len(part) == 4:
        begin, end = PAIR.unpack(part)
        if first <= begin < stop <= end:  # what is taken is taken from the front
            return PAIR.pack(stop, end), end - stop
    row = [*_BORDERS[len(part) >> 1].unpack(part)]
    low, high = bisect_left(row, first), bisect_right(row, stop)
    if low == high and not low & 1:
        return part, count
    row[low:high] = ([first] if low & 1 else []) + ([stop] if high & 1 else [])
    return pack(row), sum(row[1::2]) - sum(row[::2])
