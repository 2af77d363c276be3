"""What a channel has delivered and its client has not settled, by ranges of delivery tags.

Delivery tags rise by one. A *run* of them are positions in a row of one queue for one holder, which a *key* stands for:
a number that the channel gives to each pair. Which tags are unsettled is a set. So a delivery costs nothing for each
message, and settling one after the other costs a bit each. Each tag is settled once, whatever a client does.

What was delivered last stands in a *line*, as plain rows, as long as it is settled from its front, as most clients do
it: that costs less than sets. Whatever else is settled finds all of it in the sets.

In a transaction, tags are withdrawn: they cannot be settled again, but are held still, until the transaction settles
or restores them.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from typing import Final, NamedTuple

from coterie.broker.ranges.codec import END
from coterie.broker.ranges.lookup import Range
from coterie.broker.ranges.positions import PositionSet
from coterie.broker.ranges.runs import COUNT_MAX, Run, Runs

_MOMENTS_MIN: Final = 64
_LEFT_MIN: Final = 32
"""Tags that are settled one by one before anybody looks which runs have nothing left, beside as many as are held."""
_LINE_MAX: Final = 256
"""Rows of a line."""


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


class _Row:
    """Of a line: tags in a row that are unsettled, for positions in a row."""

    __slots__ = ("at", "key", "position", "stop", "tag")

    def __init__(self, tag: int, stop: int, key: int, position: int, at: float) -> None:
        self.tag = tag
        self.stop = stop
        self.key = key
        self.position = position
        self.at = at

    def take(self, stop: int) -> Held:
        """Those before that tag."""
        first, position = self.tag, self.position
        self.tag = stop
        self.position = position + stop - first
        return Held(first, self.key, position, self.position)


class TagRanges:
    """By rising tags, from 1."""

    __slots__ = (
        "_left",
        "_line",
        "_line_count",
        "_moments",
        "_run",
        "_runs",
        "_times",
        "_unsettled",
        "_withdrawn",
        "next_tag",
    )

    def __init__(self) -> None:
        self.next_tag: int = 1
        self._line: deque[_Row] = deque()
        """Behind all of the sets."""
        self._line_count = 0
        self._left = 0
        """Settled one by one since runs were dropped."""
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
        return self._line_count + self._unsettled.count + self._withdrawn.count

    @property
    def unsettled(self) -> int:
        return self._line_count + self._unsettled.count

    @property
    def oldest(self) -> float | None:
        """When the first of those that are unsettled was delivered."""
        first = self._unsettled.first()
        if first is None:
            return self._line[0].at if self._line else None
        return self._times[bisect_right(self._moments, first) - 1]

    @property
    def kept(self) -> int:
        """Rows, runs and moments that it remembers: what it costs."""
        return len(self._line) + self._runs.runs + len(self._moments)

    def deliver(self, key: int, ranges: Iterable[Range], now: float) -> int:
        """Positions, in the order in which they were delivered, get the next tags; gives the first one."""
        first = tag = self.next_tag
        line = self._line
        for begin, stop in ranges:
            count = stop - begin
            if count:
                last = line[-1] if line else None
                if (
                    last is not None
                    and last.stop == tag
                    and last.key == key
                    and last.at == now
                    and last.position + tag - last.tag == begin
                ):
                    last.stop += count
                else:
                    line.append(_Row(tag, tag + count, key, begin, now))
                tag += count
        self._line_count += tag - first
        self.next_tag = tag
        if len(line) > _LINE_MAX:
            self._put_away()
        return first

    def _put_away(self) -> None:
        """From the line into the sets."""
        line, self._line, self._line_count = self._line, deque(), 0
        for row in line:
            tag, position = row.tag, row.position
            while tag < row.stop:
                count = min(row.stop - tag, COUNT_MAX)
                self._runs.append(tag, count, row.key, position)
                tag += count
                position += count
            self._unsettled.add(row.tag, row.stop)
            if not self._times or self._times[-1] != row.at:
                self._moments.append(row.tag)
                self._times.append(row.at)

    def skip(self, tags: int) -> None:
        """So many were given to deliveries that need no settling."""
        self.next_tag += tags

    def take(self, tag: int, multiple: bool) -> list[Held]:
        """Settle one, or all up to and with this one (0: all), by rising tags. Raises UnknownTag."""
        line = self._line
        if line:
            if multiple:
                if not self._unsettled and any(row.tag <= tag < row.stop for row in line):
                    return [*self._take_up_to(tag)]
            elif tag == line[0].tag:
                row = line[0]
                if tag + 1 == row.stop:
                    line.popleft()
                self._line_count -= 1
                return [row.take(tag + 1)]
            self._put_away()
        if multiple:
            return self.settle(self.withdraw(tag, True))
        if not 0 < tag < self.next_tag or not self._unsettled.remove(tag, tag + 1):
            raise UnknownTag(tag)
        run = self._run
        if run is None or not run.first <= tag < run.stop:
            run = self._run = self._runs.find(tag)
            assert run is not None
        self._left += 1
        if self._left > self._unsettled.count + self._withdrawn.count + _LEFT_MIN or not self._unsettled:
            self._drop([(0, END)])
        position = run.offset + tag - run.first
        return [Held(tag, run.ref, position, position + 1)]

    def _take_up_to(self, tag: int) -> Iterator[Held]:
        """Of the line, which has this one."""
        line = self._line
        while line and line[0].tag <= tag:
            row = line[0]
            if row.stop <= tag + 1:
                line.popleft()
            found = row.take(min(row.stop, tag + 1))
            self._line_count -= found.size
            yield found

    def withdraw(self, tag: int, multiple: bool) -> list[Range]:
        """As `take`, but they are held still. Gives their tags."""
        if self._line:
            self._put_away()
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
        if self._line:
            self._put_away()
        for first, stop in withdrawn:
            self._withdrawn.remove(first, stop)
            self._unsettled.add(first, stop)

    def take_all(self) -> list[Held]:
        """All that are unsettled are settled."""
        return self.settle(self.withdraw(0, True))

    def __iter__(self) -> Iterator[Held]:
        """All that are unsettled, by rising tags."""
        for first, stop in self._unsettled.ranges():
            yield from self._between(first, stop)
        for row in self._line:
            yield Held(row.tag, row.key, row.position, row.position + row.stop - row.tag)

    def withdrawn(self) -> Iterator[Held]:
        """What a transaction holds."""
        return (held for first, stop in self._withdrawn.ranges() for held in self._between(first, stop))

    def _between(self, first: int, stop: int) -> Iterator[Held]:
        for tag, end, key, position in self._runs.within(first, stop):
            yield Held(tag, key, position, position + end - tag)

    def _drop(self, settled: Sequence[Range]) -> None:
        held = self._unsettled.union(self._withdrawn) if self._withdrawn else self._unsettled
        self._left = 0
        for first, stop in settled:
            self._runs.drop(first, stop, held)
        if len(self._moments) > self._runs.runs + _MOMENTS_MIN // 2:
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
