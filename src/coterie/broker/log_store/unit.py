"""A unit: what the store was told in one turn, or in one transaction; one record of the log.

It only gathers, so that what was told in a step that fails is cut off again by its length; what it comes to is done to
the index when it ends, batch by batch.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from coterie.broker.delivery import merged
from coterie.broker.log_store.head import Save
from coterie.broker.log_store.lines import Line, Part
from coterie.broker.log_store.needed import Gone
from coterie.broker.observer import Mark
from coterie.broker.ranges import Range
from coterie.runtime.base import Buffer

Cut = tuple[int, int, int, int, int, int, int, int, int, bool]


class Arrival(NamedTuple):
    """Messages with positions in a row, whose contents are in a row in one record."""

    part: Part
    first: int
    record: int
    offset: int
    sizes: Sequence[int]
    """Of the bodies."""
    expires: Sequence[int] | None
    """Milliseconds since 1970, 0: never."""
    marks: Sequence[Mark] | None

    @property
    def stop(self) -> int:
        return self.first + len(self.sizes)


class Unit:
    """One record in the making."""

    __slots__ = (
        "arrivals", "atomic", "content_sizes", "contents", "ended", "gone", "leaving", "made", "safe", "saved", "size",
        "upto",
    )  # fmt: skip

    def __init__(self) -> None:
        self.size = 0
        """Bytes that it will take, about."""
        self.atomic = False
        self.upto = 0
        """The place after it."""
        self.contents: list[Buffer] = []
        self.content_sizes: list[int] = []
        self.saved: list[Save] = []
        self.arrivals: list[Arrival] = []
        self.leaving: list[tuple[Line, Sequence[Range]]] = []
        """They leave after everything has come."""
        self.made: list[Part] = []
        self.ended: list[Part] = []
        self.gone: list[Gone] = []
        """What it comes to: bytes that nobody needs any more once it is on disk."""
        self.safe: dict[Part, int] = {}
        """And up to where parts are on disk then."""

    @property
    def empty(self) -> bool:
        return not (self.saved or self.arrivals or self.leaving or self.made or self.ended)

    def arrive(self, arrival: Arrival) -> None:
        self.arrivals.append(arrival)
        self.size += 8 * len(arrival.sizes) + 16

    def leave(self, line: Line, ranges: Sequence[Range]) -> None:
        self.leaving.append((line, ranges))
        self.size += 16

    def save(self, save: Save) -> None:
        self.saved.append(save)
        self.size += len(save[0][0]) + len(save[0][1]) + len(save[1] or b"") + 4

    def mark(self) -> Cut:
        """How much it was told."""
        return (
            len(self.contents), len(self.content_sizes), len(self.saved), len(self.arrivals), len(self.leaving),
            len(self.made), len(self.ended), self.size, self.upto, self.atomic,
        )  # fmt: skip

    def cut(self, mark: Cut) -> None:
        """It was told nothing since."""
        contents, sizes, saved, arrivals, leaving, made, ended = mark[:7]
        del self.contents[contents:], self.content_sizes[sizes:], self.saved[saved:], self.arrivals[arrivals:]
        del self.leaving[leaving:], self.made[made:], self.ended[ended:]
        self.size, self.upto, self.atomic = mark[7:]

    # What it comes to.

    def come(self) -> Iterator[tuple[Part, list[Arrival]]]:
        """By part; those that go on where another ends are one."""
        if len(self.arrivals) == 1:
            yield self.arrivals[0].part, self.arrivals
            return
        by_part: dict[Part, list[Arrival]] = {}
        for arrival in self.arrivals:
            by_part.setdefault(arrival.part, []).append(arrival)
        for part, found in by_part.items():
            if len(found) > 1:
                found.sort(key=lambda each: each.first)
            yield part, [*_joined(found)]

    def leave_by_line(self) -> Iterator[tuple[Line, Sequence[Range]]]:
        """Positions rise."""
        if len(self.leaving) == 1 and len(self.leaving[0][1]) == 1:
            yield self.leaving[0]
            return
        by_line: dict[Line, list[Range]] = {}
        for line, ranges in self.leaving:
            by_line.setdefault(line, []).extend(ranges)
        for line, ranges in by_line.items():
            yield line, merged(ranges)


def _joined(found: list[Arrival]) -> Iterator[Arrival]:
    group = [found[0]]
    count = len(found[0].sizes)
    for arrival in found[1:]:
        head = group[0]
        goes_on = arrival.first == head.first + count and arrival.offset == head.offset + count
        if goes_on and arrival.record == head.record:
            group.append(arrival)
        else:
            yield _one(group)
            group, count = [arrival], 0
        count += len(arrival.sizes)
    yield _one(group)


def _one(group: list[Arrival]) -> Arrival:
    if len(group) == 1:
        return group[0]
    head = group[0]
    sizes = [size for each in group for size in each.sizes]
    expires: list[int] | None = None
    marks: list[Mark] | None = None
    if any(each.expires is not None for each in group):
        expires = [time for each in group for time in each.expires or [0] * len(each.sizes)]
    if any(each.marks is not None for each in group):
        marks = [mark for each in group for mark in each.marks or [None] * len(each.sizes)]
    return Arrival(head.part, head.first, head.record, head.offset, sizes, expires, marks)
