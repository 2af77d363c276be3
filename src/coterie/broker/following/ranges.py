"""Sets of positions as ranges: mostly positions follow each other, and a million of them are one pair of numbers."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator

Range = tuple[int, int]
"""First and last, both of them in it."""


def ranges_of(positions: Iterable[int]) -> Iterator[Range]:
    """Of positions that rise."""
    first = last = -1
    for position in positions:
        if first >= 0 and position == last + 1:
            last = position
            continue
        if first >= 0:
            yield first, last
        first = last = position
    if first >= 0:
        yield first, last


class Ranges:
    """A set that is added to, and taken from the front."""

    def __init__(self) -> None:
        self._firsts: list[int] = []
        self._lasts: list[int] = []

    def __len__(self) -> int:
        """How many ranges, not how many positions."""
        return len(self._firsts)

    def __iter__(self) -> Iterator[Range]:
        return iter(zip(self._firsts, self._lasts, strict=True))

    def __contains__(self, position: int) -> bool:
        at = bisect_right(self._firsts, position) - 1
        return at >= 0 and position <= self._lasts[at]

    def add(self, first: int, last: int) -> None:
        """Whatever it touches or overlaps becomes one with it."""
        assert first <= last
        firsts, lasts = self._firsts, self._lasts
        low = bisect_right(lasts, first - 2)  # the first that ends at `first - 1` or later
        high = bisect_right(firsts, last + 1)
        if low < high:
            first = min(first, firsts[low])
            last = max(last, lasts[high - 1])
        firsts[low:high] = [first]
        lasts[low:high] = [last]

    def take(self, count: int) -> list[Range]:
        """Up to `count` ranges from the front; they are in it no more."""
        taken = list(zip(self._firsts[:count], self._lasts[:count], strict=True))
        del self._firsts[:count], self._lasts[:count]
        return taken

    def clear(self) -> None:
        self._firsts.clear()
        self._lasts.clear()
