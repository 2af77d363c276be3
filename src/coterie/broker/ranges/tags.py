"""What a channel has delivered and its client has not settled, by ranges of delivery tags.

Delivery tags rise by one. A *run* of them are positions in a row of one queue for one holder, which a *key* stands for:
a number that the channel gives to each pair. Which tags are unsettled is a set. So a delivery costs nothing for each
message, and settling one after the other costs a bit each. Each tag is settled once, whatever a client does.

In a transaction, tags are withdrawn: they cannot be settled again, but are held still, until the transaction settles
or restores them.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from typing import Final, NamedTuple

from coterie.broker.ranges.lookup import Range
from coterie.broker.ranges.positions import PositionSet
from coterie.broker.ranges.runs import COUNT_MAX, Run, Runs

_MOMENTS_MIN: Final = 64


class Held(NamedTuple):
    """Positions in a row, as they were delivered: the tag of the first, and whose they are."""

    tag: int
    key: int
    first: int
    stop: int

    @property
    def size(self) -> int:
        return self.stop - self.first


class UnknownTag(Exception):
    """No delivery has it, or it is settled already."""

    def __init__(self, tag: int) -> None:
        super().__init__(f"unknown delivery tag {tag}")
        self.tag = tag


class TagRanges:
    """By rising tags, from 1."""

    __slots__ = ("_moments", "_run", "_runs", "_times", "_unsettled", "_withdrawn", "next_tag")

    def __init__(self) -> None:
        self.next_tag: int = 1
        self._runs = Runs()
        """From tags to keys and positions."""
        self._unsettled = PositionSet()
        self._withdrawn = PositionSet()
        """Held by a transaction."""
        self._run: Run | None = None
        """The last one that was asked for: the next tag is mostly in it."""
        self._moments = array("Q")
        """The first tags that were delivered at each of these times."""
        self._times = array("d")

    @property
    def count(self) -> int:
        """Of all that are held, also by a transaction."""
        return self._unsettled.count + self._withdrawn.count

    @property
    def unsettled(self) -> int:
        return self._unsettled.count

    @property
    def oldest(self) -> float | None:
        """When the first of those that are unsettled was delivered."""
        first = self._unsettled.first()
        return None if first is None else self._times[bisect_right(self._moments, first) - 1]

    @property
    def kept(self) -> int:
        """Runs and moments that it remembers: what it costs."""
        return self._runs.runs + len(self._moments)

    def deliver(self, key: int, ranges: Iterable[Range], now: float) -> int:
        """Positions, in the order in which they were delivered, get the next tags; gives the first one."""
        first = tag = self.next_tag
        for begin, stop in ranges:
            while begin < stop:
                count = min(stop - begin, COUNT_MAX)
                self._runs.append(tag, count, key, begin)
                tag += count
                begin += count
        if tag > first:
            self._unsettled.add(first, tag)
            if not self._times or self._times[-1] != now:
                self._moments.append(first)
                self._times.append(now)
            self.next_tag = tag
        return first

    def skip(self, tags: int) -> None:
        """So many were given to deliveries that need no settling."""
        self.next_tag += tags

    def take(self, tag: int, multiple: bool) -> list[Held]:
        """Settle one, or all up to and with this one (0: all), by rising tags. Raises UnknownTag."""
        if multiple:
            return self.settle(self.withdraw(tag, True))
        if not 0 < tag < self.next_tag or not self._unsettled.remove(tag, tag + 1):
            raise UnknownTag(tag)
        run = self._run
        if run is None or not run.first <= tag < run.stop:
            run = self._run = self._runs.find(tag)
            assert run is not None
        if tag + 1 == run.stop or tag + 1 not in self._unsettled:  # else there is something left of this run
            self._drop([(tag, tag + 1)])
        position = run.offset + tag - run.first
        return [Held(tag, run.ref, position, position + 1)]

    def withdraw(self, tag: int, multiple: bool) -> list[Range]:
        """As `take`, but they are held still. Gives their tags."""
        if multiple and tag == 0:
            taken = [*self._unsettled.ranges()]
            self._withdrawn.add_all(self._unsettled)
            self._unsettled.clear()
            return taken
        if tag not in self._unsettled:
            raise UnknownTag(tag)
        taken = [*self._unsettled.ranges(0, tag + 1)] if multiple else [(tag, tag + 1)]
        self._unsettled.remove(taken[0][0], tag + 1)
        for first, stop in taken:
            self._withdrawn.add(first, stop)
        return taken

    def settle(self, withdrawn: Sequence[Range]) -> list[Held]:
        """The transaction is committed: in the order in which they were withdrawn."""
        found: list[Held] = []
        for first, stop in withdrawn:
            found += self._between(first, stop)
            self._withdrawn.remove(first, stop)
        self._drop(withdrawn)
        return found

    def restore(self, withdrawn: Iterable[Range]) -> None:
        """The transaction is rolled back: the client has them again, with the tags that they had."""
        for first, stop in withdrawn:
            self._withdrawn.remove(first, stop)
            self._unsettled.add(first, stop)

    def take_all(self) -> list[Held]:
        """All that are unsettled are settled."""
        return self.settle(self.withdraw(0, True))

    def __iter__(self) -> Iterator[Held]:
        """All that are unsettled, by rising tags."""
        return (held for first, stop in self._unsettled.ranges() for held in self._between(first, stop))

    def _between(self, first: int, stop: int) -> Iterator[Held]:
        for tag, end, key, position in self._runs.within(first, stop):
            yield Held(tag, key, position, position + end - tag)

    def _drop(self, settled: Sequence[Range]) -> None:
        held = self._unsettled.union(self._withdrawn) if self._withdrawn else self._unsettled
        for first, stop in settled:
            self._runs.drop(first, stop, held)
        if len(self._moments) > 2 * self._runs.runs + _MOMENTS_MIN:
            self._forget_moments(held)

    def _forget_moments(self, held: PositionSet) -> None:
        """Those at which nothing was delivered that is still held."""
        kept: list[int] = []
        for at, moment in enumerate(self._moments):
            following = held.next_from(moment)
            if following is not None and (at + 1 == len(self._moments) or following < self._moments[at + 1]):
                kept.append(at)
        self._moments = array("Q", [self._moments[at] for at in kept])
        self._times = array("d", [self._times[at] for at in kept])
