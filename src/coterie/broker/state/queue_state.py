"""The state of one queue: sets and rows of positions, and what is known of its consumers. No message has an object.

Every message that is in the queue is `live`, and exactly one of

    ready      at its place, for the next consumer
    held       by one holder: a consumer, a getter, a lease
    dying      dead for some reason: its letter is to be sent, then it is gone

What follows from the rest (`lanes`, `loose`, byte counts, members of pools) is kept up to date, but is in no encoding.
Only the primitives of `operations` change any of it, under a `Step`.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator, Sequence
from typing import Final, NamedTuple

from coterie.broker.ranges import IntervalMap, Lengths, PositionSet, Range, Runs
from coterie.broker.state.dedup_window import Window
from coterie.broker.state.holders import Holder, Rotation
from coterie.broker.state.last_values import LastValues
from coterie.broker.state.limits import QueueLimits
from coterie.broker.state.positions import Positions, bytes_of, count_of, cut, put
from coterie.broker.state.vocabulary import Count, HolderKind, Kind, Reason

FIRST: Final = 1
"""The first position of a queue."""
_PRIORITY: Final = Kind.PRIORITY


class QueueConfig(NamedTuple):
    """What a queue is declared as; it never changes."""

    kind: Kind = Kind.FIFO
    single_active: bool = False
    max_priority: int = 0


class Cap(NamedTuple):
    """Nothing below this position lives longer than until this time."""

    stop: int
    time: int


def expiries_in(expires: Runs, caps: Sequence[Cap], first: int, stop: int) -> Iterator[tuple[int, int, int | None]]:
    """When messages of a range are over: (first, stop, time), by rising positions."""
    at = first
    for run in expires.within(first, stop):
        if at < run.first:
            yield from _capped(caps, at, run.first, None)
        yield from _capped(caps, run.first, run.stop, run.ref)
        at = run.stop
    if at < stop:
        yield from _capped(caps, at, stop, None)


def _capped(caps: Sequence[Cap], first: int, stop: int, time: int | None) -> Iterator[tuple[int, int, int | None]]:
    for cap in caps:
        if first >= stop:
            return
        if first < cap.stop:
            yield first, min(stop, cap.stop), cap.time if time is None else min(time, cap.time)
            first = cap.stop
    if first < stop:
        yield first, stop, time


class QueueState:
    """Of one incarnation."""

    __slots__ = (
        "caps", "circle", "config", "counts", "deliveries", "dying", "dying_bytes", "dying_count", "expires",
        "held_bytes", "holders", "lanes", "last_values", "leased_bytes", "leased_count", "lengths", "limits", "live",
        "loose", "next_holder", "next_position", "number", "owner", "priorities", "ready", "ready_bytes", "rotation",
        "runs", "tenure", "transient", "windows",
    )  # fmt: skip

    def __init__(self, number: int, config: QueueConfig, limits: QueueLimits) -> None:
        self.number = number
        self.config = config
        self.limits = limits
        self.next_position = FIRST
        self.next_holder = 1
        self.live = PositionSet()
        self.ready = PositionSet()
        self.dying: dict[Reason, PositionSet] = {}
        """None is empty."""
        self.runs = Runs()
        """Of which event each is a part."""
        self.lengths = Lengths()
        self.deliveries = IntervalMap()
        """How often each was given back by somebody who may have seen it: if at all, it is flagged as redelivered."""
        self.transient = PositionSet()
        """Those that a restart of all brokers does not bring back, in a queue that has others."""
        self.expires = Runs()
        """When each is over, by the time of the log, as the reference of a run."""
        self.caps: tuple[Cap, ...] = ()
        """By rising positions and rising times."""
        self.priorities = IntervalMap()
        """Of a priority queue."""
        self.lanes: dict[int, PositionSet] = {}
        """And what is ready, by priority, the highest first."""
        self.loose = PositionSet()
        """Of a ring: what it may evict, that is all but what is leased or dying."""
        self.last_values = LastValues()
        self.windows: tuple[Window, Window] | None = None
        """If it deduplicates: the ids of persistent messages, and of others."""
        self.holders: dict[int, Holder] = {}
        self.rotation = Rotation()
        self.owner = 0
        """With ownership: the broker whose consumers are served; 0: none yet."""
        self.circle: tuple[int, ...] = ()
        """Brokers that consume it, in the order in which they came."""
        self.tenure = 0
        """How often it has changed hands."""
        self.ready_bytes = self.held_bytes = self.dying_bytes = 0
        self.dying_count = 0
        self.leased_count = self.leased_bytes = 0
        self.counts = array("Q", [0] * len(Count))

    def __repr__(self) -> str:
        return f"<QueueState {self.number} ready={self.ready.count} held={self.held_count} dying={self.dying_count}>"

    # Questions.

    @property
    def held_count(self) -> int:
        return self.live.count - self.ready.count - self.dying_count

    @property
    def bytes(self) -> int:
        """Of everything but what is dying."""
        return self.ready_bytes + self.held_bytes

    @property
    def mortal(self) -> bool:
        """Something in it may expire."""
        return self.expires.runs > 0 or bool(self.caps)

    def consumers(self) -> Iterator[Holder]:
        """In the order in which they came."""
        return (each for each in self.holders.values() if each.kind is HolderKind.CONSUMER and not each.ended)

    def leases(self) -> Iterator[Holder]:
        return (each for each in self.holders.values() if each.kind is HolderKind.LEASE)

    def in_order(self) -> Iterable[PositionSet]:
        """What is ready, as consumers get it: one set after the other."""
        return self.lanes.values() if self.config.kind is _PRIORITY else (self.ready,)

    def redelivered_in(self, positions: Positions) -> int:
        """How many of these are flagged."""
        if not self.deliveries:
            return 0
        if isinstance(positions, list):
            return sum(end - at for first, stop in positions for at, end, _ in self.deliveries.items(first, stop))
        return self.deliveries.above(positions, 0).count

    def expiry(self, position: int) -> int | None:
        """When it is over; None: never."""
        run = self.expires.find(position)
        found = None if run is None else run.ref
        for cap in self.caps:
            if position < cap.stop:
                return cap.time if found is None else min(found, cap.time)
        return found

    def expiries(self, first: int, stop: int) -> Iterator[tuple[int, int, int | None]]:
        """The same of a range: (first, stop, time), by rising positions."""
        return expiries_in(self.expires, self.caps, first, stop)

    def measure(self, positions: Positions) -> Range:
        """How many they are, and their bytes."""
        if isinstance(positions, list) and len(positions) == 1:
            ((first, stop),) = positions
            count = stop - first
            return count, self.lengths.get(first) if count == 1 else self.lengths.sum(first, stop)
        return count_of(positions), bytes_of(self.lengths, positions)

    def measure_ready(self, positions: Positions) -> Range:
        """The same of ready ones; if they are most of them, by what is left."""
        if isinstance(positions, PositionSet) and 2 * positions.count > self.ready.count:
            rest = self.ready.difference(positions)
            return positions.count, self.ready_bytes - self.lengths.sum_in(rest)
        return self.measure(positions)

    # For the primitives: what is ready, and its lanes.

    def make_ready(self, positions: Positions) -> None:
        put(self.ready, positions)
        if self.config.kind is _PRIORITY:
            for priority, some in self.by_priority(positions):
                self.lane(priority).add_all(some)

    def make_unready(self, positions: Positions) -> None:
        cut(self.ready, positions)
        if self.config.kind is _PRIORITY:
            for priority, some in self.by_priority(positions):
                lane = self.lanes[priority]
                lane.remove_all(some)
                if not lane:
                    del self.lanes[priority]

    def lane(self, priority: int) -> PositionSet:
        found = self.lanes.get(priority)
        if found is None:
            found = self.lanes[priority] = PositionSet()
            self.lanes = dict(sorted(self.lanes.items(), reverse=True))
        return found

    def by_priority(self, positions: Positions) -> list[tuple[int, PositionSet]]:
        rest = positions.copy() if isinstance(positions, PositionSet) else PositionSet(positions)
        found: dict[int, PositionSet] = {}
        for first, stop in [*rest.ranges()]:
            for begin, end, priority in self.priorities.items(first, stop):
                found.setdefault(priority, PositionSet()).add(begin, end)
                rest.remove(begin, end)
        if rest:
            found[0] = rest
        return [*found.items()]
