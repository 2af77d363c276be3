"""Questions that a set of positions answers; none of them changes it."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator

from coterie.broker.ranges import block as blocks
from coterie.broker.ranges.block import MASK, SHIFT, SIZE, Part
from coterie.broker.ranges.codec import END, check_range
from coterie.broker.ranges.row import PieceRow, length

Range = tuple[int, int]
"""First, and the position behind the last."""


class Lookup(PieceRow):
    """The row of pieces as a set. It must not change while one goes over its ranges."""

    __slots__ = ()

    def __bool__(self) -> bool:
        return self.count != 0

    def __contains__(self, position: int) -> bool:
        at = self._find(position >> SHIFT)
        if at < 0:
            return False
        part = self._parts[at]
        return (isinstance(part, int) and part < 0) or blocks.contains(part, position & MASK)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Lookup):
            return NotImplemented
        if self._firsts != other._firsts or self._counts != other._counts:
            return False
        return all(map(_same, self._parts, other._parts))

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        some = [f"{first}..{stop - 1}" for first, stop in self.first_ranges(8)]
        return f"<{self.count} positions: {', '.join(some)}{'...' if len(some) == 8 else ''}>"

    def first(self) -> int | None:
        return self.next_from(0)

    def last(self) -> int | None:
        if not self._firsts:
            return None
        first, part = self._firsts[-1], self._parts[-1]
        if isinstance(part, int):
            return ((first - part) << SHIFT) - 1 if part < 0 else (first << SHIFT) + part.bit_length() - 1
        return (first << SHIFT) + blocks.borders(part)[-1] - 1

    def next_from(self, position: int) -> int | None:
        """The lowest one that is not below this position."""
        block = position >> SHIFT
        at = bisect_right(self._firsts, block) - 1
        if at >= 0:
            first, part = self._firsts[at], self._parts[at]
            if isinstance(part, int) and part < 0:
                if block < first - part:
                    return position
            elif first == block:
                found = blocks.first_from(part, position & MASK)
                if found >= 0:
                    return (block << SHIFT) + found
        at += 1
        if at == len(self._firsts):
            return None
        base, part = self._firsts[at] << SHIFT, self._parts[at]
        return base if isinstance(part, int) and part < 0 else base + blocks.first_from(part, 0)

    def count_in(self, first: int, stop: int) -> int:
        """How many there are in a range. By the way over the pieces in it, which is fast, but not constant."""
        check_range(first, stop)
        if first == stop:
            return 0
        begin, end = first >> SHIFT, (stop - 1) >> SHIFT
        low = bisect_right(self._firsts, begin) - 1
        high = bisect_right(self._firsts, end)
        if low < 0:
            low = 0
        if low >= high:
            return 0
        found = sum(self._counts[low:high]) - self._outside(low, first, stop)
        return found if high - low == 1 else found - self._outside(high - 1, first, stop)

    def count_in_block(self, block: int) -> int:
        """How many there are of the 4096 positions of a block."""
        at = self._find(block)
        if at < 0:
            return 0
        part = self._parts[at]
        return SIZE if isinstance(part, int) and part < 0 else self._counts[at]

    def _outside(self, at: int, first: int, stop: int) -> int:
        """How many of a piece are not in a range."""
        base, part, count = self._firsts[at] << SHIFT, self._parts[at], self._counts[at]
        size = count if isinstance(part, int) and part < 0 else SIZE
        low, high = max(first - base, 0), min(stop - base, size)
        if low >= size:
            return count
        if low == 0 and high == size:
            return 0
        return count - (high - low if isinstance(part, int) and part < 0 else blocks.count_in(part, low, high))

    def rank(self, position: int) -> int:
        """How many are below this position."""
        return self.count_in(0, position)

    def select(self, index: int) -> int:
        """The position with so many below it. Raises IndexError."""
        if not 0 <= index < self.count:
            raise IndexError(f"no position has {index} of {self.count} below it")
        for first, part, count in self.row():
            if index < count:
                base = first << SHIFT
                if isinstance(part, int) and part < 0:
                    return base + index
                return base + blocks.lowest(part, index + 1)[-1] - 1
            index -= count
        raise AssertionError("the counts of pieces are wrong")

    def ranges(self, first: int = 0, stop: int = END) -> Iterator[Range]:
        """What there is in a range, as ranges with something missing between them."""
        begin, end = 0, 0
        low = max(bisect_right(self._firsts, first >> SHIFT) - 1, 0)
        for at in range(low, bisect_left(self._firsts, (stop + MASK) >> SHIFT, low)):
            base, part = self._firsts[at] << SHIFT, self._parts[at]
            if isinstance(part, int) and part < 0:
                row = [max(base, first), min(base - (part << SHIFT), stop)]
                if row[0] >= row[1]:
                    continue
                base = 0
            else:
                row = blocks.borders(part, min(max(first - base, 0), SIZE), min(stop - base, SIZE))
            for place in range(0, len(row), 2):
                if base + row[place] != end:
                    if begin != end:
                        yield begin, end
                    begin = base + row[place]
                end = base + row[place + 1]
        if begin != end:
            yield begin, end

    def first_ranges(self, count: int) -> list[Range]:
        """The lowest `count` positions, or all if there are less."""
        if self._firsts:
            part = self._parts[0]
            if isinstance(part, bytes) and len(part) == 4:
                first, stop = blocks.PAIR.unpack(part)
                if 0 < count <= stop - first:
                    first += self._firsts[0] << SHIFT
                    return [(first, first + count)]
        found: list[Range] = []
        for at in range(len(self._firsts)):
            if count <= 0:
                break
            base, part, size = self._firsts[at] << SHIFT, self._parts[at], self._counts[at]
            if isinstance(part, int) and part < 0:
                row = [0, min(size, count)]
            else:
                row = blocks.lowest(part, count) if count < size else blocks.borders(part)
            count -= size
            for place in range(0, len(row), 2):
                begin, end = base + row[place], base + row[place + 1]
                if found and found[-1][1] == begin:
                    found[-1] = found[-1][0], end
                else:
                    found.append((begin, end))
        return found


def _same(one: Part, other: Part) -> bool:
    return one == other or (length(one) == length(other) == 1 and blocks.same(one, other))
