"""What the keeper of the time has told to expire, and what could not.

An event that says so may be void: then its messages are still there, and have expired still. Those of which one alone
cannot expire are told of again one by one, and that one again after a pause that grows: nobody is kept busy by it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from coterie.broker.delivery import count_of, split, those

if TYPE_CHECKING:
    from coterie.broker.queue import Queue
    from coterie.broker.ranges import Range

PAUSE = 1.0
PAUSE_MAX = 60.0
"""Seconds until a message that could not expire is told of again: the first time, and at most."""


class Expiring:
    """Of one broker."""

    def __init__(self, send: Callable[[Queue, Sequence[Range]], None]) -> None:
        self._send = send
        self._told: dict[Queue, int] = {}
        """Events that are under way."""
        self._stuck: dict[tuple[Queue, int], tuple[float, float]] = {}
        """What could not, by queue and position: when it is told of again, and the pause until then."""

    def found(self, queue: Queue, ranges: Sequence[Range], now: float) -> None:
        """These have expired, and are at the head of their queue."""
        if queue in self._told:
            return
        if self._stuck:
            self._stuck = {which: found for which, found in self._stuck.items() if which[0].has(which[1])}
            ranges = those(ranges, lambda position: self._stuck.get((queue, position), (now, 0.0))[0] <= now)
        if ranges:
            self._tell(queue, ranges)

    def _tell(self, queue: Queue, ranges: Sequence[Range]) -> None:
        self._told[queue] = self._told.get(queue, 0) + 1
        self._send(queue, ranges)

    def failed(self, queue: Queue, ranges: Sequence[Range], now: float) -> None:
        """Their event was void."""
        count = count_of(ranges)
        if count == 1:
            which = queue, ranges[0][0]
            _, pause = self._stuck.get(which, (0.0, PAUSE / 2))
            pause = min(2 * pause, PAUSE_MAX)
            self._stuck[which] = now + pause, pause
        else:
            for half in split(ranges, count // 2):
                self._tell(queue, half)

    def over(self, queue: Queue) -> None:
        """An event has had its place in the log."""
        left = self._told.get(queue, 0) - 1
        if left > 0:
            self._told[queue] = left
        else:
            self._told.pop(queue, None)

    def clear(self) -> None:
        """Nothing will be answered any more."""
        self._told.clear()
        self._stuck.clear()
