"""A segment of an old store: where each message's content is.

Twelve bytes a message: offset, size and checksum, in arrays by number. A size of zero means that nobody needs it any
more; an offset of zero, that the content is elsewhere (it refers).
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from typing import NamedTuple

from coterie.broker.log_store.conversion.operations import empty_column

REFERENCE_SIZE = 32
"""What a message that refers to another's content counts for."""


class Place(NamedTuple):
    """Where a content is."""

    segment: Segment
    offset: int
    size: int
    crc: int


class Segment:
    """One file of the log."""

    __slots__ = ("_base", "_crcs", "_numbers", "_offsets", "_sizes", "first", "live", "name", "size")

    def __init__(self, name: str, first: int) -> None:
        self.name = name
        self.first = first
        """No message in it has a lower number, and none before it this one or a higher."""
        self.size = 0
        self._base = first
        self._numbers: array[int] | None = None
        self._offsets = array("I")
        self._sizes = array("I")
        self._crcs = array("I")
        self.live = 0

    # Filling it.

    def fill(self, numbers: Sequence[int], offsets: Sequence[int], sizes: Sequence[int], crcs: Sequence[int]) -> int:
        """Gives the first of the slots."""
        if self._numbers is None:
            self._numbers = array("Q")
        slot = len(self._sizes)
        self._numbers.extend(numbers)
        self._offsets.extend(offsets)
        self._sizes.extend(sizes)
        self._crcs.extend(crcs)
        self.live += len(sizes)
        return slot

    def slots_alive(self, slot: int, count: int) -> Sequence[int]:
        """Which of these slots, counted from the first, hold something that is needed; before `tighten`."""
        sizes = self._sizes[slot : slot + count]
        return range(count) if 0 not in sizes else [at for at, size in enumerate(sizes) if size]

    def tighten(self) -> None:
        """Forget the places that nobody needs."""
        numbers = self._numbers
        if numbers is None:
            return
        if self.live < len(numbers):
            kept = [at for at, size in enumerate(self._sizes) if size]
            numbers = array("Q", [numbers[at] for at in kept])
            self._offsets = array("I", [self._offsets[at] for at in kept])
            self._sizes = array("I", [self._sizes[at] for at in kept])
            self._crcs = array("I", [self._crcs[at] for at in kept])
        self._numbers = numbers
        if numbers and numbers[-1] - numbers[0] == len(numbers) - 1:
            self._base, self._numbers = numbers[0], None

    # Asking it.

    def find(self, number: int) -> Place | None:
        """Where the content of this message is, if it is needed and here."""
        lo, hi = self._slots(number, number)
        if lo == hi or not self._sizes[lo]:
            return None
        return Place(self, self._offsets[lo], self._sizes[lo], self._crcs[lo])

    def kill(self, first: int, last: int) -> int:
        """Nobody needs these any more; how many of them there were."""
        lo, hi = self._slots(first, last)
        gone = self._sizes[lo:hi]
        count = len(gone) - gone.count(0)
        if count:
            self.live -= count
            self._sizes[lo:hi] = empty_column("I", hi - lo)
        return count

    def _slots(self, first: int, last: int) -> tuple[int, int]:
        """Where these numbers have their places: from, and up to but not including."""
        numbers = self._numbers
        if numbers is None:
            count = len(self._sizes)
            return min(max(first - self._base, 0), count), max(min(last - self._base + 1, count), 0)
        return bisect_left(numbers, first), bisect_right(numbers, last)
