"""Messages of a queue on their way to whoever takes them, and what somebody holds of a queue.

A queue names messages by ranges of their positions. A *delivery* has the messages as well, in the order in which they
are given; whoever takes it keeps the ranges, and settles ranges.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain, islice, repeat, starmap
from typing import TYPE_CHECKING, NamedTuple

from coterie.broker.ranges import Range

if TYPE_CHECKING:
    from coterie.broker.message import Message
    from coterie.broker.queue import Queue


class HeldRanges(NamedTuple):
    """What somebody holds, or has held, of a queue."""

    queue: Queue
    holder: object
    ranges: Sequence[Range]
    """In the order in which they were settled, or delivered."""


class Delivery:
    """Of one queue, for one holder. There is a message at least."""

    __slots__ = ("count", "flagged", "holder", "messages", "queue", "ranges")

    def __init__(
        self, queue: Queue, holder: object, ranges: Sequence[Range], messages: Sequence[Message],
        flagged: Sequence[Range] = (),
    ) -> None:  # fmt: skip
        self.queue = queue
        self.holder = holder
        """Whoever settles them says so: a consumer, or who got them with basic.get."""
        self.ranges = ranges
        """Positions, in the order of the messages."""
        self.messages = messages
        self.flagged = flagged
        """Those of them that somebody may have seen already."""
        self.count = len(messages)

    @property
    def size(self) -> int:
        """Bytes of bodies."""
        return sum([len(message.body) for message in self.messages])

    def positions(self) -> Iterator[int]:
        return positions_in(self.ranges)

    def flags(self) -> Iterator[bool]:
        """Of each message, whether somebody may have seen it already."""
        if not self.flagged:
            return repeat(False, len(self.messages))
        return map({*positions_in(self.flagged)}.__contains__, positions_in(self.ranges))

    def rows(self) -> Iterator[tuple[int, Message, bool]]:
        """Position, message, flag."""
        return zip(self.positions(), self.messages, self.flags(), strict=True)

    def cut(self, count: int) -> Delivery:
        """The first of them leave this delivery, for one of their own."""
        first, self.ranges = split(self.ranges, count)
        messages, self.messages = self.messages[:count], self.messages[count:]
        self.count = len(self.messages)
        flagged = self.flagged
        if flagged:
            those = {*positions_in(first)}
            self.flagged = ranges_of([position for position in positions_in(flagged) if position not in those])
            flagged = ranges_of([position for position in positions_in(flagged) if position in those])
        return Delivery(self.queue, self.holder, first, messages, flagged)

    def without(self, positions: Iterable[int]) -> Delivery | None:
        """The others; None: there are none."""
        gone = {*positions}
        left = [row for row in self.rows() if row[0] not in gone]
        if not left:
            return None
        flagged = ranges_of([position for position, _, flag in left if flag])
        ranges = ranges_of([position for position, _, _ in left])
        return Delivery(self.queue, self.holder, ranges, [message for _, message, _ in left], flagged)

    # What becomes of them.

    def release(self, redelivered: bool = True) -> None:
        self.queue.release(self.holder, self.ranges, redelivered)

    def reject(self) -> None:
        self.queue.reject(self.holder, self.ranges)


def count_of(ranges: Sequence[Range]) -> int:
    if len(ranges) == 1:
        ((first, stop),) = ranges
        return stop - first
    return sum([stop - first for first, stop in ranges])


def positions_in(ranges: Iterable[Range]) -> Iterator[int]:
    """One after the other, in the order of the ranges."""
    return chain.from_iterable(starmap(range, ranges))


def ranges_of(positions: list[int]) -> list[Range]:
    """In their order."""
    if not positions:
        return []
    first, count = positions[0], len(positions)
    if count == 1 or (positions[-1] - first == count - 1 and positions == [*range(first, first + count)]):
        return [(first, first + count)]
    found: list[Range] = []
    stop = first
    for position in positions:
        if position != stop:
            found.append((first, stop))
            first = position
        stop = position + 1
    found.append((first, stop))
    return found


def add_range(ranges: list[Range], first: int, stop: int) -> None:
    """Behind the others; one that goes on where the last one ends becomes a part of it."""
    if ranges and ranges[-1][1] == first:
        ranges[-1] = ranges[-1][0], stop
    else:
        ranges.append((first, stop))


def merged(ranges: Iterable[Range]) -> list[Range]:
    """By rising positions."""
    found: list[Range] = []
    for first, stop in sorted(ranges):
        add_range(found, first, stop)
    return found


def split(ranges: Sequence[Range], count: int) -> tuple[list[Range], list[Range]]:
    """The first `count` positions, and the others."""
    taken: list[Range] = []
    for at, (first, stop) in enumerate(ranges):
        if count < stop - first:
            rest = [(first + count, stop), *islice(ranges, at + 1, None)]
            if count:
                taken.append((first, first + count))
            return taken, rest
        taken.append((first, stop))
        count -= stop - first
    return taken, []


def those(ranges: Iterable[Range], wanted: Callable[[int], bool]) -> list[Range]:
    return ranges_of([*filter(wanted, positions_in(ranges))])
