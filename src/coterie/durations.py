"""How long something took, counted in classes: what a histogram of metrics is made from. Constant in size."""

from __future__ import annotations

from bisect import bisect_left
from typing import Final

BOUNDS: Final = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5)
"""Seconds, the upper ends of the classes; beyond them there is one more."""


class Durations:
    """Counts that only grow, and the longest."""

    __slots__ = ("counts", "last", "total", "worst")

    def __init__(self) -> None:
        self.counts = [0] * (len(BOUNDS) + 1)
        self.total = 0.0
        self.last = 0.0
        self.worst = 0.0
        """Since whoever looks at it has set it to 0."""

    def add(self, seconds: float) -> None:
        self.counts[bisect_left(BOUNDS, seconds)] += 1
        self.total += seconds
        self.last = seconds
        if seconds > self.worst:
            self.worst = seconds

    @property
    def count(self) -> int:
        return sum(self.counts)
