"""A small number for each position, by intervals: how often a message was delivered.

A number is kept in binary, one set of positions for each digit, so that a map costs what sets cost: intervals of equal
numbers cost nothing for each position, random changes cost a bit, copies share everything. Counting up is adding with
a carry, for all positions of a set at once. A position that has no number has 0; the numbers end at 2^32 - 1 and count
no further.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from coterie.broker.ranges.codec import ENCODED_MAX, END, MalformedRanges, Reader, check_range, write_uint
from coterie.broker.ranges.positions import PositionSet
from coterie.broker.ranges.row_codec import read_row, write_row

DIGITS: Final = 32
VALUE_MAX: Final = 2**DIGITS - 1


class IntervalMap:
    """From positions to numbers."""

    __slots__ = ("_digits",)

    def __init__(self) -> None:
        self._digits: list[PositionSet] = []
        """Where the digit is 1, by its value; the last one is not empty."""

    def copy(self) -> IntervalMap:
        other = IntervalMap()
        other._digits = [digit.copy() for digit in self._digits]
        return other

    def __bool__(self) -> bool:
        return bool(self._digits)

    def __eq__(self, other: object) -> bool:
        return self._digits == other._digits if isinstance(other, IntervalMap) else NotImplemented

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"<numbers of {self.positions()!r}>"

    # Questions.

    def get(self, position: int) -> int:
        return sum([1 << place for place, digit in enumerate(self._digits) if position in digit])

    def positions(self) -> PositionSet:
        """Those that have a number."""
        found = PositionSet()
        for digit in self._digits:
            found.add_all(digit)
        return found

    def items(self, first: int = 0, stop: int = END) -> Iterator[tuple[int, int, int]]:
        """The intervals with a number in a range, as (first, stop, number); neighbours have different numbers."""
        check_range(first, stop)
        changes: dict[int, int] = {}
        for place, digit in enumerate(self._digits):
            for begin, end in digit.ranges(first, stop):
                changes[begin] = changes.get(begin, 0) + (1 << place)
                changes[end] = changes.get(end, 0) - (1 << place)
        value = since = 0
        for position in sorted(changes):
            if changes[position]:
                if value:
                    yield since, position, value
                value += changes[position]
                since = position

    def above(self, positions: PositionSet, limit: int) -> PositionSet:
        """Which of these have a number that is higher than this one."""
        found = PositionSet()
        if limit < 0:
            return positions.copy()
        if limit >> len(self._digits):
            return found
        alike = positions
        for place in range(len(self._digits) - 1, -1, -1):
            ones = alike.intersection(self._digits[place])
            if limit >> place & 1:
                alike = ones
            else:
                found.add_all(ones)
                alike = alike.difference(ones)
        return found

    # Changes.

    def set(self, first: int, stop: int, value: int) -> None:
        self.set_all(PositionSet([(first, stop)]), value)

    def add(self, first: int, stop: int, delta: int) -> None:
        """Count up, or down; never below 0."""
        check_range(first, stop)
        if delta == 1:
            self._next(first, stop)
        else:
            self.add_all(PositionSet([(first, stop)]), delta)

    def _next(self, first: int, stop: int) -> None:
        """Count up by one: mostly, all numbers of the range are the same, and no set is needed to carry."""
        size = stop - first
        for place in range(DIGITS if size else 0):
            self._need(place + 1)
            digit = self._digits[place]
            following = digit.next_from(first)
            ones = 0 if following is None or following >= stop else digit.count_in(first, stop)
            if ones == 0:
                digit.add(first, stop)
                return
            if ones < size:
                self._count_up(PositionSet([(first, stop)]), 1 << place)
                return
            digit.remove(first, stop)
        self.set(first, stop, VALUE_MAX)

    def clear(self, first: int, stop: int) -> None:
        check_range(first, stop)
        for digit in self._digits:
            digit.remove(first, stop)
        self._trim()

    def set_all(self, positions: PositionSet, value: int) -> None:
        if not 0 <= value <= VALUE_MAX:
            raise ValueError(f"a number from 0 to {VALUE_MAX} is needed, not {value}")
        if not positions:
            return
        self._need(value.bit_length())
        for place, digit in enumerate(self._digits):
            if value >> place & 1:
                digit.add_all(positions)
            else:
                digit.remove_all(positions)
        self._trim()

    def add_all(self, positions: PositionSet, delta: int) -> None:
        if delta > 0 and positions:
            self._count_up(positions, min(delta, VALUE_MAX))
        elif delta < 0:
            self._count_down(positions, -delta)

    def clear_all(self, positions: PositionSet) -> None:
        for digit in self._digits:
            digit.remove_all(positions)
        self._trim()

    def _count_up(self, positions: PositionSet, delta: int) -> None:
        carry = PositionSet()
        place = 0
        while delta >> place or carry:
            if place == DIGITS:
                self.set_all(carry, VALUE_MAX)
                break
            self._need(place + 1)
            one = delta >> place & 1
            flipped = positions.difference(carry) if one else carry
            both = self._digits[place].intersection(flipped)
            self._digits[place].add_all(flipped)
            self._digits[place].remove_all(both)
            carry = carry.union(both) if one else both
            place += 1

    def _count_down(self, positions: PositionSet, delta: int) -> None:
        if delta >> len(self._digits):
            self.clear_all(positions)
            return
        borrow = PositionSet()
        for place, digit in enumerate(self._digits):
            one = delta >> place & 1
            flipped = positions.difference(borrow) if one else borrow
            lacking = flipped.difference(digit)
            digit.remove_all(flipped)
            digit.add_all(lacking)
            borrow = borrow.union(lacking) if one else lacking
        self.clear_all(borrow)

    def _need(self, digits: int) -> None:
        while len(self._digits) < digits:
            self._digits.append(PositionSet())

    def _trim(self) -> None:
        while self._digits and not self._digits[-1]:
            self._digits.pop()

    # Bytes.

    def encode(self) -> bytes:
        out = bytearray()
        write_uint(out, len(self._digits))
        for digit in self._digits:
            write_row(out, digit)
        return bytes(out)

    @staticmethod
    def decode(data: bytes | memoryview, limit: int = ENCODED_MAX) -> IntervalMap:
        """Raises MalformedRanges for whatever `encode` does not write."""
        reader = Reader(data, limit)
        found = IntervalMap()
        for _ in range(reader.uint(DIGITS)):
            digit = PositionSet()
            read_row(reader, digit)
            found._digits.append(digit)
        reader.done()
        if found._digits and not found._digits[-1]:
            raise MalformedRanges("the highest digit of numbers is nowhere 1")
        return found
