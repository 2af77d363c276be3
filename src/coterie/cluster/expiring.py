"""What the keeper of the time has told to expire, and what could not.

An event that says so may be void: then its messages are still there, and have expired still. Those of which one alone
cannot expire are told of again one by one, and that one again after a pause that grows: nobody is kept busy by it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from coterie.broker.entry import GONE

if TYPE_CHECKING:
    from coterie.broker.entry import Entry
    from coterie.broker.queue import Queue

PAUSE = 1.0
PAUSE_MAX = 60.0
"""Seconds until a message that could not expire is told of again: the first time, and at most."""


class Expiring:
    """Of one broker."""

    def __init__(self, send: Callable[[Queue, Sequence[Entry]], None]) -> None:
        self._send = send
        self._told: dict[Queue, int] = {}
        """Events that are under way."""
        self._stuck: dict[Entry, tuple[float, float]] = {}
        """What could not: when it is told of again, and the pause until then."""

    def found(self, queue: Queue, entries: Sequence[Entry], now: float) -> None:
        """These have expired, and are at the head of their queue."""
        if queue in self._told:
            return
        if self._stuck:
            self._stuck = {entry: found for entry, found in self._stuck.items() if entry.holder is not GONE}
            entries = [entry for entry in entries if entry not in self._stuck or self._stuck[entry][0] <= now]
        if entries:
            self._tell(queue, entries)

    def _tell(self, queue: Queue, entries: Sequence[Entry]) -> None:
        self._told[queue] = self._told.get(queue, 0) + 1
        self._send(queue, entries)

    def failed(self, queue: Queue, entries: Sequence[Entry], now: float) -> None:
        """Their event was void."""
        if len(entries) == 1:
            _, pause = self._stuck.get(entries[0], (0.0, PAUSE / 2))
            pause = min(2 * pause, PAUSE_MAX)
            self._stuck[entries[0]] = now + pause, pause
        else:
            half = len(entries) // 2
            self._tell(queue, entries[:half])
            self._tell(queue, entries[half:])

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
