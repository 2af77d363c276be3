"""The turn of one place in the log: what time it is there, and what follows at its end, everywhere alike."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from coterie.cluster.log_time import LogTime
from coterie.cluster.standing import Standing
from coterie.logs import Log
from coterie.runtime.base import Runtime

if TYPE_CHECKING:
    from coterie.broker.journal import Journal

log = Log(__name__)


def _nothing() -> None:
    pass


class Turn:
    """Of one broker."""

    def __init__(self, runtime: Runtime, standing: Standing) -> None:
        self._runtime = runtime
        self._standing = standing
        self.time = LogTime(runtime)
        self.journal: Journal
        """Of the broker, once there is one."""
        self._wall: float | None = None
        self.last_wall = 0.0
        """Of the last event that was applied."""
        self._made = 0
        """Queues that the event which is being applied has made."""
        self._soon: list[Callable[[], None]] = []

    @property
    def applying(self) -> bool:
        """An event is being applied, or what follows from a place of the log."""
        return self._wall is not None

    def wall(self) -> float:
        return self._runtime.wall() if self._wall is None else self._wall

    @property
    def sifts(self) -> bool:
        """Nobody is given what has expired by the time of the log, which is known."""
        return self.time.begun

    def now(self) -> float:
        """The time by which messages expire."""
        return self.time.now() if self._wall is None else self._wall

    def soon(self, call: Callable[[], None]) -> None:
        """At the end of the event that is being applied: everywhere alike."""
        if self._wall is None:
            log.debug("something was put off outside of any event", what=repr(call))
        self._soon.append(call)

    def new_incarnation(self) -> int:
        """The number of a new queue: it follows from the place of the event that makes it."""
        self._made += 1
        progress = self._standing.progress
        return ((progress.epoch & 0xFFFF) << 48 | progress.index << 12) + self._made

    # Events.

    def settle(self) -> None:
        """What was put off outside of any event must not become part of the next one."""
        if self._soon:
            self.follow(_nothing)

    def begin(self, wall: float) -> None:
        """Of an event, which has that time."""
        self._wall = self.last_wall = wall
        self._made = 0

    def finish(self) -> None:
        """What follows from it."""
        while self._soon:
            calls, self._soon = self._soon, []
            for call in calls:
                call()

    def end(self) -> None:
        self._wall = None
        self._soon.clear()

    # Other places of the log.

    def follow_alike(self, step: Callable[[], None]) -> bytes:
        """The same, of what every broker does at this place. Gives its effects."""
        self.settle()
        effects = self.journal.effects
        effects.begin(self.last_wall if self.time.last is None else self.time.last)
        try:
            self.follow(step)
        finally:
            made = effects.take()
        return made

    def follow(self, step: Callable[[], None]) -> None:
        """What follows from a place of the log that is no event of a broker: at the time of the log, not of this
        node's clock, and nothing of it waits for the next event. If it fails, it fails everywhere alike."""
        journal = self.journal
        self._wall = self.last_wall if self.time.last is None else self.time.last
        try:
            journal.apart(step, "what follows from a change of the members")
            while self._soon:
                calls, self._soon = self._soon, []
                for call in calls:
                    journal.apart(call, "giving messages to consumers")
        finally:
            self._wall = None
