"""Which incarnations have died, and whose events may therefore be missing from a trace although they happened.

A simulated node writes its events as they happen, so its trace is whole up to its crash: what is not in it was not
done. A real node that is killed loses what it had not flushed, and a node that died early may have left nothing at all.
Only real nodes put a wall clock into their events; that tells the two apart.
"""

from __future__ import annotations

from coterie.trace import Event

LIFE_KINDS = ("start", "stop", "crash", "truncated")
"""The kinds that a property reads to know who lives. They belong to every part of a split run."""


def address(event: Event) -> str:
    """The address of the incarnation that wrote the event, as `name#incarnation`."""
    return f"{event.node}#{event.inc}"


class Lives:
    """What is known of every incarnation, from the events of LIFE_KINDS."""

    __slots__ = ("_crashed", "_real", "_started", "_stopped", "_truncated")

    def __init__(self) -> None:
        self._started: set[str] = set()
        self._stopped: set[str] = set()
        self._crashed: set[str] = set()
        self._truncated: set[str] = set()
        self._real = False

    def note(self, event: Event) -> None:
        who = address(event)
        if event.kind == "start":
            self._started.add(who)
        elif event.kind == "stop":
            self._stopped.add(who)
        elif event.kind == "crash":
            self._crashed.add(who)
        else:
            self._truncated.add(who)
        if event.wall is not None:
            self._real = True

    def may_miss(self, who: str) -> bool:
        """Whether events of that incarnation may have happened that the trace does not show."""
        if who in self._truncated:
            return True
        return self._real and (who in self._crashed or who not in self._started)

    @property
    def incomplete(self) -> bool:
        """Whether events may be missing of which the trace does not even say whose they are."""
        return self._real or bool(self._truncated)

    def ended(self, who: str) -> bool:
        """Whether that incarnation died, or stopped in good order, before the end of the run."""
        return who in self._crashed or who in self._truncated or who in self._stopped or self.may_miss(who)
