"""Gathers what one turn of several connections publishes into one event.

Messages that differ in their bodies only are a *run*: one list of bodies. Columns are made of runs when the event is
taken; bodies are never copied or joined.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Sequence
from itertools import chain
from typing import Final, Generic, Literal, NamedTuple, TypeVar

from coterie.broker.columns.event import PublishEvent
from coterie.broker.columns.head import Columns, Outside, write_head
from coterie.broker.columns.layout import COUNT_MAX, EXPIRES, PERSISTENT, Column, uniform, width
from coterie.broker.columns.routes import KNOWN_MAX, Route, RouteTable, make_table, write_routes

SLACK: Final = 1 << 16
"""Messages that may still come when the event is full: more than one read of a socket can have."""
Append = Callable[[bytes], None]
Who = TypeVar("Who")


class Block(NamedTuple):
    """The properties of a message, and what queues need to know of them."""

    raw: bytes
    """Property flags and properties, as they stand in the content header behind the body size."""
    flags: int
    priority: int = 0
    expiry: int = 0
    """Milliseconds, if flags have EXPIRES."""


def make_block(raw: bytes, persistent: bool = False, priority: int = 0, expiry: int | None = None) -> Block:
    flags = (PERSISTENT if persistent else 0) | (0 if expiry is None else EXPIRES)
    return Block(raw, flags, priority, expiry or 0)


class Share(NamedTuple, Generic[Who]):
    """Whose messages a range of offsets is."""

    who: Who
    first: int
    stop: int


class EventBuilder(Generic[Who]):
    """`Who` publishes: a channel. `full_bytes`: of bodies, about."""

    def __init__(self, full_bytes: int = 4 << 20) -> None:
        self._full_bytes = full_bytes
        self._sections: dict[Route, tuple[RouteTable, bytes]] = {}
        """Of events with one route."""
        self._routes: dict[Route, int] = {}
        self._blocks: dict[Block, int] = {}
        self._runs: list[tuple[int, int, list[bytes]]] = []
        """(route, block, bodies)."""
        self._marks: list[tuple[Who, int]] = []
        """Who began to publish at which offset."""
        self._before = 0
        """Messages in all runs but the last, and the bytes of their bodies."""
        self._bytes_before = 0
        self._bodies: list[bytes] = []
        """Of the last run; and what was added to it last."""
        self._last: tuple[Route | None, Block | None, Who | None] = None, None, None

    def add(self, route: Route, block: Block, who: Who, body: bytes) -> Append:
        """The answer takes the bodies of those of its kind that follow directly: it is good until the next `add` or
        `take`. Raises ValueError if the event is more than full."""
        last_route, last_block, last_who = self._last
        count = self._before + len(self._bodies)
        if count > COUNT_MAX - SLACK:
            raise ValueError(f"an event of {count} messages is full")
        if route is not last_route or block is not last_block or who is not last_who:
            if who is not last_who or not self._marks:
                self._marks.append((who, count))
            self._last = route, block, who
            routes, blocks = self._routes, self._blocks
            self._go_on_with(routes.setdefault(route, len(routes)), blocks.setdefault(block, len(blocks)))
        append = self._bodies.append
        append(body)
        return append

    def _go_on_with(self, route: int, block: int) -> None:
        runs, bodies = self._runs, self._bodies
        if runs:
            last_route, last_block, _ = runs[-1]
            if last_route == route and last_block == block:
                return
            self._before += len(bodies)
            self._bytes_before += sum(map(len, bodies))
        self._bodies = []
        runs.append((route, block, self._bodies))

    @property
    def count(self) -> int:
        return self._before + len(self._bodies)

    @property
    def size(self) -> int:
        """Bytes of the bodies."""
        return self._bytes_before + sum(map(len, self._bodies))

    @property
    def full(self) -> bool:
        """It should be taken before more is added."""
        return self.count > COUNT_MAX - SLACK or self.size >= self._full_bytes

    def take(self) -> tuple[PublishEvent | None, list[Share[Who]]]:
        """The event, and whose its messages are; the next one begins. None: nothing was published."""
        runs, marks, count = self._runs, self._marks, self.count
        routes, blocks = [*self._routes], [*self._blocks]
        self._runs, self._marks = [], []
        self._routes.clear()
        self._blocks.clear()
        self._before = self._bytes_before = 0
        self._bodies = []
        self._last = None, None, None
        if not count:
            return None, []
        stops = (*(first for _, first in marks[1:]), count) if len(marks) > 1 else (count,)
        shares = [Share(who, first, stop) for (who, first), stop in zip(marks, stops, strict=True)]
        bodies = runs[0][2] if len(runs) == 1 else [*chain.from_iterable([run[2] for run in runs])]
        table, section = self._section(routes)
        route_of = _spread(runs, 0, len(routes)) if len(routes) > 1 else None
        block_of = _spread(runs, 1, len(blocks)) if len(blocks) > 1 else None
        lengths = len(bodies[0]) if count == 1 else uniform(array("I", map(len, bodies)))
        return assemble(table, section, route_of, blocks, block_of, lengths, bodies), shares

    def _section(self, routes: list[Route]) -> tuple[RouteTable, bytes]:
        if len(routes) > 1:
            table = make_table(routes)
            return table, write_routes(table)
        found = self._sections.get(routes[0])
        if found is None:
            table = make_table(routes)
            found = table, write_routes(table)
            if len(self._sections) >= KNOWN_MAX:  # routing keys that never come again
                self._sections.clear()
            self._sections[routes[0]] = found
        return found


def assemble(
    table: RouteTable,
    section: bytes,
    route_of: Sequence[int] | None,
    blocks: Sequence[Block],
    block_of: Sequence[int] | None,
    lengths: Column,
    bodies: Sequence[bytes],
    outside: Outside | None = None,
) -> PublishEvent:
    """An event of columns that are sound. `section`: the bytes of `table`. `outside`: `bodies` are digests."""
    count, block_count = len(bodies), len(blocks)
    flags: Column
    priorities: Column
    expiries: Column
    sizes: Column
    if block_count == 1:
        raw, flags, priorities, expiries = blocks[0]
        sizes = len(raw)
    else:
        raws = [block.raw for block in blocks]
        raw = b"".join(raws)
        flags = uniform(bytes([block.flags for block in blocks]))
        priorities = uniform(bytes([block.priority for block in blocks]))
        expiries = uniform(array("I", [block.expiry for block in blocks]))
        sizes = uniform(array("I", [*map(len, raws)]))
    # Blocks are numbered as they come: if there are as many as messages, each has its own, in their order.
    own = 1 < block_count == count
    body_bytes = lengths * count if isinstance(lengths, int) else sum(lengths)
    columns = Columns(
        count, table, route_of, block_count, None if own else block_of, own, lengths, body_bytes, flags, priorities,
        expiries, sizes, len(raw), outside,
    )  # fmt: skip
    return PublishEvent(write_head(columns, section), columns, None, (raw, *bodies))


def large_event(
    route: Route, block: Block, digest: bytes, length: int, number: int, holders: Sequence[str]
) -> PublishEvent:
    """One message whose body is outside. `number`: of its offer. `holders`: who has it."""
    table = make_table([route])
    outside = Outside((number,), tuple(holders))
    return assemble(table, write_routes(table), None, [block], None, length, (digest,), outside)


def _spread(runs: Sequence[tuple[int, int, list[bytes]]], which: Literal[0, 1], table: int) -> array[int]:
    """A column of runs."""
    code = width(table)
    column = array(code)
    for run in runs:
        if len(run[2]) == 1:
            column.append(run[which])
        else:
            column += array(code, (run[which],)) * len(run[2])
    return column
