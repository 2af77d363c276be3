"""A set of positions: which messages of a queue are ready, held, leased, dying.

Ten million positions in a row are three pieces (row.py); holes in them cost a bitmap for each block of 4096 positions
that has many, and some bytes for one that has few. Everything is done by ranges, and costs what the blocks that it
changes cost.

`copy` takes no time: two sets share their rows until one of them changes, and blocks for ever. So an old cut can be
kept to go back to.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable

from coterie.broker.ranges import block as blocks
from coterie.broker.ranges.block import FULL, MASK, PAIR, SHIFT, SIZE
from coterie.broker.ranges.codec import ENCODED_MAX, END, Reader, check_range
from coterie.broker.ranges.lookup import Lookup, Range
from coterie.broker.ranges.row_codec import read_row, write_row


class PositionSet(Lookup):
    """Of numbers from 0 to 2^63 - 1. Must not change while one goes over its ranges."""

    __slots__ = ()

    def __init__(self, ranges: Iterable[Range] = ()) -> None:
        super().__init__()
        for first, stop in ranges:
            self.add(first, stop)

    def copy(self) -> PositionSet:
        other = PositionSet()
        other._adopt(self)
        return other

    def clear(self) -> None:
        self._adopt(PositionSet())

    # Changes.

    def add(self, first: int, stop: int) -> int:
        """Gives how many were not there before."""
        if not 0 <= first < stop <= END:
            check_range(first, stop)
            return 0
        if self._shared:
            self._own()
        before = self.count
        block, end = first >> SHIFT, stop >> SHIFT
        low, high = first & MASK, stop & MASK
        if block == end:
            # Mostly, what comes goes on where the last range ends.
            if self._firsts and self._firsts[-1] == block:
                part = self._parts[-1]
                if isinstance(part, bytes) and len(part) == 4:
                    begin, last = PAIR.unpack(part)
                    if last == low:
                        self._parts[-1] = PAIR.pack(begin, high)
                        self._counts[-1] = high - begin
                        self.count += high - low
                        return high - low
            elif not self._firsts:
                self.push(block, PAIR.pack(low, high), high - low)
                return high - low
            self._add_in(block, low, high)
        else:
            if low:
                self._add_in(block, low, SIZE)
                block += 1
            if high:
                self._add_in(end, 0, high)
            if block < end:
                self._fill(block, end)
        return self.count - before

    def remove(self, first: int, stop: int) -> int:
        """Gives how many were there."""
        if not 0 <= first < stop <= END:
            check_range(first, stop)
            return 0
        if self._shared:
            self._own()
        before = self.count
        block, end = first >> SHIFT, stop >> SHIFT
        low, high = first & MASK, stop & MASK
        if block == end:
            # And mostly, what goes is the beginning of the first one.
            if self._firsts and self._firsts[0] == block:
                part = self._parts[0]
                if isinstance(part, bytes) and len(part) == 4:
                    begin, last = PAIR.unpack(part)
                    if begin == low and high <= last:
                        if high == last:
                            del self._firsts[0], self._parts[0], self._counts[0]
                        else:
                            self._parts[0] = PAIR.pack(high, last)
                            self._counts[0] = last - high
                        self.count -= high - low
                        return high - low
            self._remove_in(block, low, high)
        else:
            if low:
                self._remove_in(block, low, SIZE)
                block += 1
            if high:
                self._remove_in(end, 0, high)
            if block < end:
                self._empty(block, end)
        return before - self.count

    def take_first(self, count: int) -> list[Range]:
        """Remove the lowest ones, and give them."""
        taken = self.first_ranges(count)
        if taken:
            self.remove(taken[0][0], taken[-1][1])  # all in between are taken too
        return taken

    def add_all(self, other: PositionSet) -> int:
        """Gives how many were not there before."""
        before = self.count
        if other.pieces > self.pieces:
            mine = self.copy()
            self._adopt(other)
            other = mine
        if self._shared:
            self._own()
        for first, part, count in other.row():
            if isinstance(part, bytes):
                row = blocks.borders(part)
                for place in range(0, len(row), 2):
                    self._add_in(first, row[place], row[place + 1])
            elif part < 0:
                self._fill(first, first - part)
            else:
                at = self._find(first)
                mine_part = self._parts[at] if at >= 0 else 0
                if at < 0:
                    self._insert(first, part, count)
                elif isinstance(mine_part, bytes) or mine_part > 0:
                    bits = blocks.bitmap(mine_part) | part
                    self._put(at, bits, bits.bit_count())
        return self.count - before

    def remove_all(self, other: PositionSet) -> int:
        """Gives how many were there."""
        before = self.count
        if other.pieces > self.pieces:
            other = self.intersection(other)
        elif other is self:
            other = self.copy()
        if self._shared:
            self._own()
        for first, part, _ in other.row():
            if isinstance(part, bytes):
                row = blocks.borders(part)
                for place in range(0, len(row), 2):
                    self._remove_in(first, row[place], row[place + 1])
            elif part < 0:
                self._empty(first, first - part)
            else:
                at = self._find(first)
                if at >= 0:
                    mine = self._parts[at]
                    if isinstance(mine, int) and mine < 0:
                        at, mine = self._single_out(at, first), FULL
                    bits = blocks.bitmap(mine)
                    bits ^= bits & part
                    self._put(at, bits, bits.bit_count())
        return before - self.count

    # Of two sets, a third.

    def union(self, other: PositionSet) -> PositionSet:
        found = self.copy()
        found.add_all(other)
        return found

    def difference(self, other: PositionSet) -> PositionSet:
        found = self.copy()
        found.remove_all(other)
        return found

    def intersection(self, other: PositionSet) -> PositionSet:
        few, many = (self, other) if self.pieces <= other.pieces else (other, self)
        found = PositionSet()
        for first, part, count in few.row():
            if isinstance(part, int) and part < 0:
                many._cut(first, first - part, found)
                continue
            at = many._find(first)
            if at < 0:
                continue
            its = many._parts[at]
            if isinstance(its, int) and its < 0:
                found.push(first, part, count)
            else:
                bits = blocks.bitmap(part) & blocks.bitmap(its)
                count = bits.bit_count()
                if count:
                    found.push(first, blocks.formed(bits, count), count)
        return found

    def within(self, first: int, stop: int) -> PositionSet:
        """What there is of a range."""
        return self.intersection(PositionSet([(first, stop)]))

    def isdisjoint(self, other: PositionSet) -> bool:
        return not self.intersection(other)

    def _cut(self, block: int, end: int, into: PositionSet) -> None:
        """Whatever is in these blocks, at the end of another set."""
        at = max(bisect_right(self._firsts, block) - 1, 0)
        while at < len(self._firsts) and self._firsts[at] < end:
            first, part = self._firsts[at], self._parts[at]
            if isinstance(part, int) and part < 0:
                low, high = max(first, block), min(first - part, end)
                if low < high:
                    into.push(low, low - high, (high - low) << SHIFT)
            elif first >= block:
                into.push(first, part, self._counts[at])
            at += 1

    # Bytes.

    def encode(self) -> bytes:
        out = bytearray()
        write_row(out, self)
        return bytes(out)

    @staticmethod
    def decode(data: bytes | memoryview, limit: int = ENCODED_MAX) -> PositionSet:
        """Raises MalformedRanges for whatever `encode` does not write."""
        reader = Reader(data, limit)
        positions = PositionSet()
        read_row(reader, positions)
        reader.done()
        return positions
