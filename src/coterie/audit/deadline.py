"""Whether a node did in time what it has to do within a time, although it may have been paused, or its clock slow.

A paused process cannot act, and its trace does not say that it was paused; but it writes no events either. So a node is
late only if it showed a sign of life, any event, after its time was over, and still had not done it `SLACK` seconds
after the first such sign. Times are those of its own events. Those of a simulated node are the world's, not its own
clock's: the run tells of clocks that go wrong (`fault` "clock"), and a node's time counts by the slowest that it had.
"""

from __future__ import annotations

from coterie.trace import Event, Json

SLACK = 0.5
"""Seconds that a live node may take for what is due; also how precisely signs of life are remembered."""
LIFE_SIGNS = ("view", "receive", "retransmit", "ack", "stable", "suspect", "unsuspect")
"""Kinds that a fold with deadlines reads only to see that a node lives: what a node with a shut gate still does."""
ONLY_SIGNS = frozenset(LIFE_SIGNS)


class Deadline:
    """Something that began at a node and has to end there in time."""

    __slots__ = ("_limit", "_signs", "_since", "began", "latest")

    def __init__(self, began: Event, limit: Json, since: float | None = None) -> None:
        self.began = began
        self._limit = limit if isinstance(limit, int | float) else None
        self._since = began.t if since is None else since
        """When the time began to count."""
        self._signs: list[float] = []
        """When the node showed life after its time was over, at least SLACK apart."""
        self.latest = began
        """The latest of those signs."""

    def sign(self, event: Event) -> None:
        """An event of the node, before it is done or at the latest with it."""
        if self._limit is None or event.t <= self._since + self._limit + SLACK:
            return
        self.latest = event
        if not self._signs or event.t > self._signs[-1] + SLACK:
            self._signs.append(event.t)

    @property
    def suspicious(self) -> bool:
        """It may be late: that depends on the node's clock."""
        return len(self._signs) > 1

    def late(self, rate: float) -> float | None:
        """How many seconds it took at least, if that is too long for a clock that counts `rate` seconds a second."""
        if self._limit is None:
            return None
        due = self._since + self._limit / rate + SLACK
        signs = [t for t in self._signs if t > due]
        return signs[-1] - self._since if len(signs) > 1 else None

    def again(self, event: Event) -> Deadline:
        """The same, with the time counted from a later event."""
        return Deadline(self.began, self._limit, event.t)


class Clocks:
    """How slow the clocks of a simulated run were."""

    __slots__ = ("_rates",)

    def __init__(self) -> None:
        self._rates: dict[str, float] = {}

    def note(self, fault: Event) -> None:
        """A `fault` event, of any kind."""
        values, nodes = fault.data.get("values"), fault.data.get("nodes")
        if fault.data.get("fault") == "clock" and isinstance(values, dict) and isinstance(nodes, list):
            rate = values.get("rate")
            if isinstance(rate, int | float) and rate > 0:
                for node in map(str, nodes):
                    self._rates[node] = min(rate, self.rate(node))

    def rate(self, node: str) -> float:
        return self._rates.get(node, 1.0)
