"""The time of the log: by it messages expire, at every broker alike.

Each event carries what time it is to its sender. The time of an event is that, or a little more than the time of the
event before it, if that is later: so it never falls, and is the same wherever the event is applied. Between events a
broker goes on from the last one by its own clock, and sends its own events with that. So the brokers' clocks need not
agree: whoever is ahead is followed, and how fast time passes is all that they have to agree on.

A cluster begins with the time of the broker whose state is right; one that was upgraded from a version without a time
of the log begins with the first event of the new version.
"""

from __future__ import annotations

from math import isfinite
from typing import Final

from coterie.runtime.base import Runtime

_LEAST: Final = 2e-6
"""Seconds from one event to the next, at least: longer than a message lives that has no time at all."""


class LogTime:
    """As one broker knows it."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self.last: float | None = None
        """Of the last event; None: the cluster speaks a version without it."""
        self._since = 0.0
        """When that was, by this broker's clock."""

    @property
    def begun(self) -> bool:
        return self.last is not None

    def now(self) -> float:
        """What it may be by now: for what this broker sends, and for its timers. No place of the log has it."""
        if self.last is None:
            return self._runtime.wall()
        return self.last + (self._runtime.now() - self._since)

    def begin(self, time: float | None) -> None:
        """From here on. None: there is none yet."""
        self.last = time
        self._since = self._runtime.now()

    def reach(self, time: float | None) -> float:
        """The log has come to an event with that time, or to one that does not know it (None): what it is there."""
        assert self.last is not None
        clock, last = self._runtime.now(), self.last + _LEAST
        now = self.last + (clock - self._since)
        self.last = max(time, last) if time is not None and isfinite(time) else last
        self._since = clock - max(0.0, now - self.last)  # our clock does not go back either
        return self.last
