"""Lengths of up to 4096 messages, 4 bytes each, with sums, so that the sum over any range of them takes no time."""

from __future__ import annotations

from array import array
from bisect import bisect_right
from typing import Final

TABLE_MAX: Final = 4096
STEP: Final = 64


class Table:
    """Lengths of messages in a row. Grows at its end."""

    __slots__ = ("lengths", "owner", "sums")

    def __init__(self, lengths: array[int], owner: object) -> None:
        self.owner = owner
        """The only one who may change it."""
        self.lengths = lengths
        self.sums = array("Q", [0])
        """Of what is before every 64th."""
        self._extend_sums()

    def extend(self, lengths: array[int]) -> None:
        self.lengths.extend(lengths)
        self._extend_sums()

    def cut(self, size: int) -> None:
        """Only the first ones are left."""
        del self.lengths[size:], self.sums[size // STEP + 1 :]

    def _extend_sums(self) -> None:
        sums, lengths = self.sums, self.lengths
        while len(sums) * STEP <= len(lengths):
            at = len(sums) * STEP
            sums.append(sums[-1] + sum(lengths[at - STEP : at]))

    def before(self, place: int) -> int:
        """The sum of all before this place."""
        step = place // STEP
        return self.sums[step] + sum(self.lengths[step * STEP : place])

    def fitting(self, place: int, limit: int) -> int:
        """Up to which place the sum from here on is within the limit."""
        total = self.before(place) + limit
        step = max(bisect_right(self.sums, total) - 1, place // STEP)
        place = step * STEP
        rest = total - self.sums[step]
        for length in self.lengths[place : place + STEP]:
            rest -= length
            if rest < 0:
                break
            place += 1
        return place
