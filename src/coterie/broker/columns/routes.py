"""The routes of an event: exchange and routing key as clients write them, and the queues they lead to.

    section   sets, queues in all sets; size of each set; queues, by incarnation;
              flags of each route; its set, if there are several; its size; exchange and key of each: two short strings

Routes with the same queues share a *set*: thousands of routing keys that lead to one queue are one set. Publishers use
the same routes over and over, so a section that was read before is looked up whole.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from itertools import accumulate
from typing import Final, NamedTuple

from coterie.broker.columns.layout import Cursor, MalformedEvent, width, write_column

MANDATORY: Final = 1
QUEUE_MAX: Final = 2**63 - 1
KNOWN_MAX: Final = 256
"""Sections that are remembered."""
KNOWN_SIZE_MAX: Final = 512
"""Longer ones are probably of one event only."""
_SIZES = struct.Struct("<II")


class Route(NamedTuple):
    """Where a message goes. Two are equal if they say the same."""

    raw: bytes
    """Exchange and routing key, as basic.deliver carries them: two short strings."""
    mandatory: bool
    queues: tuple[int, ...]
    """By incarnation, in the order of routing."""


class RouteTable:
    """The routes of one event."""

    __slots__ = ("flags", "raws", "set_of", "sets")

    def __init__(
        self, raws: Sequence[bytes], flags: Sequence[int], sets: Sequence[tuple[int, ...]], set_of: Sequence[int]
    ) -> None:
        self.raws = raws
        self.flags = flags
        self.sets = sets
        self.set_of = set_of
        """By route."""

    def __len__(self) -> int:
        return len(self.raws)

    def __getitem__(self, at: int) -> Route:
        return Route(self.raws[at], bool(self.flags[at] & MANDATORY), self.sets[self.set_of[at]])


class KnownRoutes:
    """Sections read before, by their bytes. One for all events of a broker."""

    def __init__(self) -> None:
        self._known: dict[bytes, RouteTable] = {}

    def read(self, section: memoryview, count: int) -> RouteTable:
        """Raises MalformedEvent."""
        raw = bytes(section)
        found = self._known.get(raw)
        if found is None:
            found = read_routes(raw, count)
            if len(raw) <= KNOWN_SIZE_MAX:
                if len(self._known) >= KNOWN_MAX:
                    self._known.clear()
                self._known[raw] = found
        elif len(found.raws) != count:
            raise MalformedEvent(f"{len(found.raws)} routes, and {count} were announced")
        return found


def make_table(routes: Sequence[Route]) -> RouteTable:
    sets: dict[tuple[int, ...], int] = {}
    set_of = [sets.setdefault(route.queues, len(sets)) for route in routes]
    flags = bytes(MANDATORY if route.mandatory else 0 for route in routes)
    return RouteTable([route.raw for route in routes], flags, [*sets], set_of)


def write_routes(table: RouteTable) -> bytes:
    sizes = [len(queues) for queues in table.sets]
    return b"".join(
        (
            _SIZES.pack(len(sizes), sum(sizes)),
            write_column("I", sizes),
            write_column("Q", [queue for queues in table.sets for queue in queues]),
            bytes(table.flags),
            write_column(width(len(sizes)), table.set_of) if len(sizes) > 1 else b"",
            write_column("H", map(len, table.raws)),
            *table.raws,
        )
    )


def read_routes(section: bytes, count: int) -> RouteTable:
    """Raises MalformedEvent for whatever `write_routes` does not write."""
    cursor = Cursor(memoryview(section), _SIZES.size)
    if len(section) < _SIZES.size:
        raise MalformedEvent("routes end too early")
    set_count, queue_count = _SIZES.unpack_from(section)
    if not 0 < set_count <= count:
        raise MalformedEvent(f"{set_count} sets of queues for {count} routes")
    set_sizes = cursor.column("I", set_count)
    queues = cursor.column("Q", queue_count)
    flags = bytes(cursor.raw(count))
    set_of = cursor.column(width(set_count), count) if set_count > 1 else bytes(count)
    sizes = cursor.column("H", count)
    raws = bytes(cursor.raw(cursor.end - cursor.at))
    if sum(set_sizes) != queue_count or sum(sizes) != len(raws):
        raise MalformedEvent("sizes of routes or their queues do not add up")
    if queue_count and max(queues) > QUEUE_MAX:
        raise MalformedEvent("the number of a queue is beyond 2^63")
    if max(flags) > MANDATORY or max(set_of) >= set_count:
        raise MalformedEvent("unknown flags, or queues, of a route")
    stops = [*accumulate(set_sizes)]
    sets = [tuple(queues[stop - size : stop]) for size, stop in zip(set_sizes, stops, strict=True)]
    if any(len({*each}) != len(each) for each in sets):
        raise MalformedEvent("a route leads to a queue twice")
    return RouteTable(_cut(raws, sizes), flags, sets, [*set_of])


def _cut(raws: bytes, sizes: Sequence[int]) -> list[bytes]:
    """Each is two short strings, without anything behind them."""
    found, at = [], 0
    for size in sizes:
        raw = raws[at : at + size]
        at += size
        middle = raw[0] + 1 if raw else size
        if middle >= size or middle + 1 + raw[middle] != size:
            raise MalformedEvent("a route is no exchange and routing key")
        found.append(raw)
    return found
