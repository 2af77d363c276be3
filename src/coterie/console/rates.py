"""Rates: how fast numbers grow that only grow, from samples some seconds apart.

A sample is a reading of everything, kept in a ring of a few. A rate is what has come since the newest sample that is
old enough. What did not exist then began at nothing; what did not change shares its reading with the sample before, so
that a hundred thousand idle queues cost little.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable, Mapping

Reading = tuple[int, ...]


class Samples:
    """`take` one every so often; `rates` at any time."""

    def __init__(self, kept: int, old_enough: float) -> None:
        self._ring: deque[tuple[float, dict[Hashable, Reading]]] = deque(maxlen=kept)
        self._old_enough = old_enough
        """Seconds over which a rate is measured at least, if there is a sample as old as that."""

    def take(self, now: float, readings: Mapping[Hashable, Reading]) -> None:
        before = self._ring[-1][1] if self._ring else {}
        kept = {}
        for key, reading in readings.items():
            earlier = before.get(key)
            kept[key] = earlier if earlier == reading else reading
        self._ring.append((now, kept))

    def rates(self, now: float, key: Hashable, reading: Reading) -> tuple[float, ...]:
        """Per second, one for each number of the reading; nothing before the first sample."""
        since = self._since(now)
        if since is None:
            return (0.0,) * len(reading)
        taken, readings = since
        earlier = readings.get(key)
        if earlier is None or len(earlier) != len(reading):
            earlier = (0,) * len(reading)
        elapsed = max(now - taken, self._old_enough)  # a rate of the first moments would be noise
        # A number that fell belongs to something new of the same name: a channel that was opened again.
        grown = (new - old if new >= old else new for new, old in zip(reading, earlier, strict=True))
        return tuple(round(count / elapsed, 2) for count in grown)

    def _since(self, now: float) -> tuple[float, dict[Hashable, Reading]] | None:
        for sample in reversed(self._ring):
            if now - sample[0] >= self._old_enough:
                return sample
        return self._ring[0] if self._ring else None
