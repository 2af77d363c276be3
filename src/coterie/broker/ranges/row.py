"""The row of pieces that a set of positions is, and what can be done to one block or to a stretch of them.

A piece is either a *stretch* of full blocks, however many, or the content of one block that is neither full nor empty
(block.py). Neighbouring stretches are always one, so where pieces begin follows from what is in the set.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence

from coterie.broker.ranges import block as blocks
from coterie.broker.ranges.block import SHIFT, SIZE, Part


class PieceRow:
    """By rising blocks. Rows are shared between copies until one of them changes; parts are immutable."""

    __slots__ = ("_counts", "_firsts", "_parts", "_shared", "count")

    def __init__(self) -> None:
        self._firsts: list[int] = []
        """The number of each piece's first block."""
        self._parts: list[Part] = []
        """A stretch of n blocks: -n."""
        self._counts: list[int] = []
        """Positions in each piece."""
        self._shared = False
        """The rows are those of other sets too."""
        self.count: int = 0

    @property
    def pieces(self) -> int:
        """How long the row is: what the first change after a copy costs, and going over it."""
        return len(self._firsts)

    def row(self) -> Iterator[tuple[int, Part, int]]:
        """Each piece: its first block, its part, how many positions it has."""
        return zip(self._firsts, self._parts, self._counts, strict=True)

    def _adopt(self, other: PieceRow) -> None:
        """Become equal to it."""
        self._firsts, self._parts, self._counts = other._firsts, other._parts, other._counts
        self.count = other.count
        self._shared = other._shared = True

    def _own(self) -> None:
        """Before a change, if the rows are shared."""
        self._firsts, self._parts, self._counts = self._firsts.copy(), self._parts.copy(), self._counts.copy()
        self._shared = False

    def _find(self, block: int) -> int:
        """The place of the piece with this block; -1: there is none."""
        at = bisect_right(self._firsts, block) - 1
        if at >= 0 and self._firsts[at] != block:
            part = self._parts[at]
            if not isinstance(part, int) or block >= self._firsts[at] - part:
                return -1
        return at

    def _add_in(self, block: int, low: int, high: int) -> None:
        """Places of one block, not all."""
        at = self._find(block)
        if at < 0:
            self._insert(block, blocks.one_range(low, high), high - low)
            return
        part = self._parts[at]
        if isinstance(part, int) and part < 0:
            return
        before = self._counts[at]
        part, count = blocks.add(part, before, low, high)
        if count == SIZE:
            self._fill(block, block + 1)
        else:
            self._parts[at] = part
            self._counts[at] = count
            self.count += count - before

    def _remove_in(self, block: int, low: int, high: int) -> None:
        """Places of one block, not all."""
        at = self._find(block)
        if at < 0:
            return
        part = self._parts[at]
        if isinstance(part, int) and part < 0:
            at = self._single_out(at, block)
            row = ([0, low] if low else []) + ([high, SIZE] if high < SIZE else [])
            part, count = blocks.pack(row), SIZE - (high - low)
            before = SIZE
        else:
            before = self._counts[at]
            part, count = blocks.remove(part, before, low, high)
        self.count += count - before
        if count:
            self._parts[at] = part
            self._counts[at] = count
        else:
            del self._firsts[at], self._parts[at], self._counts[at]

    def _put(self, at: int, bits: int, count: int) -> None:
        """This is in a block now that has a piece of its own."""
        if count in (0, SIZE):
            block = self._firsts[at]
            (self._fill if count else self._empty)(block, block + 1)
        else:
            self.count += count - self._counts[at]
            self._parts[at] = blocks.formed(bits, count)
            self._counts[at] = count

    def _insert(self, block: int, part: Part, count: int) -> None:
        at = bisect_left(self._firsts, block)
        self._firsts.insert(at, block)
        self._parts.insert(at, part)
        self._counts.insert(at, count)
        self.count += count

    def push(self, block: int, part: Part, count: int) -> None:
        """Behind all others, into a row that is nobody else's; no stretch right behind another one."""
        self._firsts.append(block)
        self._parts.append(part)
        self._counts.append(count)
        self.count += count

    def _fill(self, block: int, end: int) -> None:
        """These blocks are full: one stretch with those that it meets."""
        firsts, parts = self._firsts, self._parts
        low = bisect_left(firsts, block)
        if low:
            before = parts[low - 1]
            if isinstance(before, int) and before < 0 and firsts[low - 1] - before >= block:
                low -= 1
                block = firsts[low]
        high = bisect_right(firsts, end, low)  # the piece right behind them, too, if it is a stretch
        if high > low:
            last = parts[high - 1]
            if isinstance(last, int) and last < 0:
                end = max(end, firsts[high - 1] - last)
            elif firsts[high - 1] == end:
                high -= 1
        self._splice(low, high, [block], [block - end], [(end - block) << SHIFT])

    def _empty(self, block: int, end: int) -> None:
        """Nothing is in these blocks."""
        firsts, parts = self._firsts, self._parts
        low = bisect_right(firsts, block) - 1
        high = bisect_left(firsts, end, max(low, 0))
        kept: list[tuple[int, int]] = []
        if low < 0 or firsts[low] + length(parts[low]) <= block:
            low += 1
        elif firsts[low] < block:
            kept.append((firsts[low], block))
        if high > low:
            stop = firsts[high - 1] + length(parts[high - 1])
            if stop > end:
                kept.append((end, stop))
        self._splice(
            low,
            high,
            [first for first, _ in kept],
            [first - stop for first, stop in kept],
            [(stop - first) << SHIFT for first, stop in kept],
        )

    def _single_out(self, at: int, block: int) -> int:
        """Make this block of a stretch a piece of its own, which is not allowed to stay full; gives its place."""
        first, end = self._firsts[at], self._firsts[at] + length(self._parts[at])
        cut = [first, block] if first < block else [block]
        if block + 1 < end:
            cut.append(block + 1)
        sizes = [stop - begin for begin, stop in zip(cut, [*cut[1:], end], strict=True)]
        self._splice(at, at + 1, cut, [-size for size in sizes], [size << SHIFT for size in sizes])
        return at + (first < block)

    def _splice(self, low: int, high: int, firsts: list[int], parts: Sequence[Part], counts: list[int]) -> None:
        self.count += sum(counts) - sum(self._counts[low:high])
        self._firsts[low:high] = firsts
        self._parts[low:high] = parts
        self._counts[low:high] = counts


def length(part: Part) -> int:
    """How many blocks a piece has."""
    return -part if isinstance(part, int) and part < 0 else 1
