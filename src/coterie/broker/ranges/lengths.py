"""The length of each message's body, by position: what a queue's limits and figures in bytes need.

A row of pieces. Messages of one length in a row are one piece, however many; others are a *table* of up to 4096, with 4
bytes for each, and a sum for every 64. So the sum over a range costs what its ends cost. What has left is forgotten by
whole pieces, or from the front; a table that has hardly anything alive is taken apart.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
from itertools import repeat
from typing import Final

from coterie.broker.ranges.codec import (
    ENCODED_MAX,
    END,
    MalformedRanges,
    Reader,
    check_range,
    write_array,
    write_uint,
)
from coterie.broker.ranges.length_table import STEP, TABLE_MAX, Table
from coterie.broker.ranges.lookup import Range
from coterie.broker.ranges.positions import PositionSet

EVEN_MIN: Final = 256
"""Fewer messages of one length in a row go into a table, with those before them."""
SPARSE_MAX: Final = 32
"""A table of more than 512 with no more alive than these becomes pieces of its live ones."""
LENGTH_MAX: Final = 2**32 - 1

Part = int | Table
"""The length that all have; or the length of each."""
Mark = tuple[int, int, int | None]
"""How many pieces there were; of the last one where it ended, and its length if it was even."""


class Lengths:
    """By rising positions. Of positions that have left, nothing is promised."""

    __slots__ = ("_firsts", "_owner", "_parts", "_stops")

    def __init__(self) -> None:
        self._firsts: list[int] = []
        self._stops: list[int] = []
        self._parts: list[Part] = []
        self._owner = object()

    def copy(self) -> Lengths:
        other = Lengths()
        other._firsts, other._stops, other._parts = self._firsts.copy(), self._stops.copy(), self._parts.copy()
        self._owner = object()  # tables that were ours alone are so no more
        return other

    def __eq__(self, other: object) -> bool:
        return self.encode() == other.encode() if isinstance(other, Lengths) else NotImplemented

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"<lengths in {self.pieces} pieces up to {self.stop}>"

    # Questions.

    @property
    def pieces(self) -> int:
        return len(self._firsts)

    @property
    def stop(self) -> int:
        """The position behind all."""
        return self._stops[-1] if self._stops else 0

    def borders(self) -> Iterator[Range]:
        """Where each piece begins and ends."""
        return zip(self._firsts, self._stops, strict=True)

    def get(self, position: int) -> int:
        """Raises KeyError."""
        at = bisect_right(self._firsts, position) - 1
        if at < 0 or position >= self._stops[at]:
            raise KeyError(position)
        part = self._parts[at]
        return part if isinstance(part, int) else part.lengths[position - self._firsts[at]]

    def sum(self, first: int, stop: int) -> int:
        """Of a range; positions without a length count nothing."""
        check_range(first, stop)
        total = 0
        for at in range(max(bisect_right(self._firsts, first) - 1, 0), bisect_left(self._firsts, stop)):
            base, part = self._firsts[at], self._parts[at]
            low, high = max(first - base, 0), min(stop, self._stops[at]) - base
            if low >= high:
                continue
            if isinstance(part, int):
                total += part * (high - low)
            elif high - low < STEP:
                total += sum(part.lengths[low:high])
            else:
                total += part.before(high) - part.before(low)
        return total

    def sum_of(self, ranges: Iterable[Range]) -> int:
        return sum([self.sum(first, stop) for first, stop in ranges])

    def sum_in(self, positions: PositionSet) -> int:
        """As `sum_of`, of a set: where all have one length, its holes cost nothing."""
        total = 0
        for first, stop, part in zip(self._firsts, self._stops, self._parts, strict=True):
            if isinstance(part, int):
                total += part * positions.count_in(first, stop)
                continue
            lengths = part.lengths
            for begin, end in positions.ranges(first, stop):
                if end - begin == 1:
                    total += lengths[begin - first]
                elif end - begin < STEP:
                    total += sum(lengths[begin - first : end - first])
                else:
                    total += part.before(end - first) - part.before(begin - first)
        return total

    def each(self, first: int, stop: int) -> Iterator[int]:
        """Of the positions of a range, all of which have one."""
        for at in range(max(bisect_right(self._firsts, first) - 1, 0), bisect_left(self._firsts, stop)):
            base, part = self._firsts[at], self._parts[at]
            low, high = max(first - base, 0), min(stop, self._stops[at]) - base
            if isinstance(part, int):
                yield from repeat(part, high - low)
            else:
                yield from part.lengths[low:high]

    def fitting(self, ranges: Iterable[Range], limit: int) -> int:
        """How many of these positions, from the first on, have no more bytes together than the limit."""
        count = 0
        for first, stop in ranges:
            end, limit = self._fitting_in(first, stop, limit)
            count += end - first
            if end < stop:
                break
        return count

    def _fitting_in(self, first: int, stop: int, limit: int) -> Range:
        """Up to where a range fits, and what is left of the limit then."""
        at = max(bisect_right(self._firsts, first) - 1, 0)
        while first < stop and at < len(self._firsts) and self._firsts[at] < stop:
            base, part = self._firsts[at], self._parts[at]
            low, high = max(first, base), min(stop, self._stops[at])
            at += 1
            if low >= high:
                continue
            if isinstance(part, Table):
                end = min(base + part.fitting(low - base, limit), high)
                limit -= part.before(end - base) - part.before(low - base)
            else:
                end = min(low + limit // part, high) if part else high
                limit -= (end - low) * part
            if end < high:
                return end, limit
            first = end
        return stop, limit

    # Changes.

    def append(self, first: int, lengths: Sequence[int]) -> None:
        """Of messages in a row, behind all others. Raises ValueError, before anything has happened."""
        size = len(lengths)
        check_range(first, first + size)
        if not size:
            return
        least, most = min(lengths), max(lengths)
        if least < 0 or most > LENGTH_MAX or first < self.stop:
            raise ValueError(f"no lengths behind {self.stop}: {size} from {first}, {least} to {most}")
        if least == most:
            self.append_even(first, size, least)
            return
        self.append_uneven(first, array("I", lengths))

    def append_uneven(self, first: int, column: array[int]) -> None:
        """The same with an array of "I" whose lengths are known not to be all the same."""
        size = len(column)
        if not self.stop <= first <= END - size:
            raise ValueError(f"no lengths behind {self.stop}: {size} from {first}")
        done = self._into_table(first, column)
        while done < size:
            some = column[done : done + TABLE_MAX]
            self._push(first + done, Table(some, self._owner), len(some))
            done += len(some)

    def append_even(self, first: int, count: int, length: int) -> None:
        """Messages in a row of one length."""
        check_range(first, first + count)
        if not 0 <= length <= LENGTH_MAX or first < self.stop:
            raise ValueError(f"no lengths behind {self.stop}: {count} of {length} from {first}")
        if not count:
            return
        if self._stops and self._stops[-1] == first and self._parts[-1] == length:
            self._stops[-1] += count
            return
        done = self._into_table(first, array("I", [length]) * count) if count < EVEN_MIN else 0
        if done < count:
            self._push(first + done, length, count - done)

    def _push(self, first: int, part: Part, count: int) -> None:
        self._firsts.append(first)
        self._stops.append(first + count)
        self._parts.append(part)

    def _into_table(self, first: int, lengths: array[int]) -> int:
        """As many as the last table has room for, if there is one and it ends there."""
        if not self._stops or self._stops[-1] != first:
            return 0
        part, size = self._parts[-1], first - self._firsts[-1]
        if isinstance(part, int):
            if size >= EVEN_MIN:
                return 0
            part = self._parts[-1] = Table(array("I", [part] * size), self._owner)
        elif part.owner is not self._owner:
            part = self._parts[-1] = Table(part.lengths[:], self._owner)
        count = min(len(lengths), TABLE_MAX - size)
        part.extend(lengths if count == len(lengths) else lengths[:count])
        self._stops[-1] += count
        return count

    def mark(self) -> Mark:
        """Before an append that may have to be taken back."""
        if not self._stops:
            return 0, 0, None
        part = self._parts[-1]
        return len(self._stops), self._stops[-1], part if isinstance(part, int) else None

    def rewind(self, mark: Mark) -> None:
        """Everything that was appended since is taken back; nothing was dropped since."""
        pieces, stop, length = mark
        del self._firsts[pieces:], self._stops[pieces:], self._parts[pieces:]
        if pieces and self._stops[-1] != stop:
            part = self._parts[-1]
            if length is not None:
                self._parts[-1] = length
            elif isinstance(part, Table):
                part.cut(stop - self._firsts[-1])
            self._stops[-1] = stop

    def drop(self, first: int, stop: int, live: PositionSet) -> None:
        """What is in this range has left; `live`: what has not. As with `Runs.drop`, it may come late, for all."""
        check_range(first, stop)
        at = max(bisect_right(self._firsts, first) - 1, 0)
        while at < len(self._firsts) and self._firsts[at] < stop:
            begin, end, part = self._firsts[at], self._stops[at], self._parts[at]
            if end <= first:
                at += 1
                continue
            alive = live.next_from(begin)
            if alive is None or alive >= end:
                high = bisect_left(self._firsts, stop if alive is None else min(alive, stop), at)
                if alive is not None and self._stops[high - 1] > alive:
                    high -= 1
                del self._firsts[at:high], self._stops[at:high], self._parts[at:high]
                continue
            if isinstance(part, int):
                self._firsts[at] = alive
            elif end - begin > 16 * SPARSE_MAX and live.count_in(begin, end) <= SPARSE_MAX:
                at = self._take_apart(at, live)
                continue
            at += 1

    def _take_apart(self, at: int, live: PositionSet) -> int:
        """Pieces of the live ones of a table instead of it; gives the place behind them."""
        base, part = self._firsts[at], self._parts[at]
        assert isinstance(part, Table)
        ranges = [*live.ranges(base, self._stops[at])]
        parts: list[Part] = [Table(part.lengths[low - base : high - base], self._owner) for low, high in ranges]
        for place, piece in enumerate(parts):
            if isinstance(piece, Table) and min(piece.lengths) == max(piece.lengths):
                parts[place] = piece.lengths[0]
        self._firsts[at : at + 1] = [low for low, _ in ranges]
        self._stops[at : at + 1] = [high for _, high in ranges]
        self._parts[at : at + 1] = parts
        return at + len(ranges)

    # Bytes: for each piece the gap before it, its size, 0 and its length, or 1 and its table.

    def encode(self) -> bytes:
        out = bytearray()
        write_uint(out, self.pieces)
        end = 0
        for first, stop, part in zip(self._firsts, self._stops, self._parts, strict=True):
            write_uint(out, first - end)
            write_uint(out, stop - first)
            end = stop
            if isinstance(part, int):
                out.append(0)
                write_uint(out, part)
            else:
                out.append(1)
                write_array(out, part.lengths)
        return bytes(out)

    @staticmethod
    def decode(data: bytes | memoryview, limit: int = ENCODED_MAX) -> Lengths:
        """Raises MalformedRanges for whatever `encode` does not write."""
        reader = Reader(data, limit)
        found = Lengths()
        for _ in range(reader.items(4)):
            first = found.stop + reader.uint()
            size = reader.uint()
            if not size or first + size > END:
                raise MalformedRanges("a piece of lengths is empty, or goes beyond 2^63")
            if not reader.uint(1):
                found._push(first, reader.uint(LENGTH_MAX), size)
            elif size > TABLE_MAX:
                raise MalformedRanges(f"a table of {size} lengths")
            else:
                found._push(first, Table(reader.array("I", size), found._owner), size)
        reader.done()
        return found
