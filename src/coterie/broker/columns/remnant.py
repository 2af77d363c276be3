"""What a merge of the log leaves of an event: its live messages, under the offsets that they always had.

Of the head the columns of live messages stay, and the routes and property blocks that those have; of the contents,
ranges that are copied as they are. A remnant can be cut again.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from coterie.broker.columns.event import PublishEvent
from coterie.broker.columns.head import kept_ranges, write_head
from coterie.broker.columns.layout import Column, Range, uniform
from coterie.broker.columns.routes import make_table, write_routes


class Remnant(NamedTuple):
    head: bytes
    ranges: list[Range]
    """(start, end) in the contents as they are now; rising, and not touching."""


def cut(event: PublishEvent, live: Iterable[Range]) -> Remnant | None:
    """`live`: ranges of offsets, which rise. What of them is not in the event counts nothing; None: nothing is left.
    Only the head of the event is looked at."""
    kept = _join(_common(event.ranges, live))
    if not kept:
        return None
    old = event.columns
    count = sum(stop - first for first, stop in kept)
    route_of = [number for first, stop in kept for number in event.route_numbers(first, stop)]
    block_of = [number for first, stop in kept for number in event.block_numbers(first, stop)]
    routes = {number: at for at, number in enumerate(sorted({*route_of}))}
    blocks = {number: at for at, number in enumerate(sorted({*block_of}))}
    table = make_table([old.routes[number] for number in routes])
    own = 1 < len(blocks) == count and block_of == [*blocks]
    block_ranges = [event.block_range(number) for number in blocks]
    columns = old._replace(
        messages=count,
        routes=table,
        route_of=[routes[number] for number in route_of] if len(routes) > 1 else None,
        block_count=len(blocks),
        block_of=[blocks[number] for number in block_of] if len(blocks) > 1 and not own else None,
        own_blocks=own,
        lengths=_lengths(event, kept),
        body_bytes=sum(event.bytes_of(first, stop) for first, stop in kept),
        flags=_of_blocks(old.flags, blocks),
        priorities=_of_blocks(old.priorities, blocks),
        expiries=_of_blocks(old.expiries, blocks),
        sizes=_of_blocks(old.sizes, blocks),
        block_bytes=sum(end - start for start, end in block_ranges),
        outside=None if old.outside is None else old.outside._replace(numbers=event.offer_numbers(kept)),
        kept=kept_ranges(kept),
    )
    ranges = block_ranges + [event.body_range(first, stop) for first, stop in kept]
    return Remnant(write_head(columns, write_routes(table)), _join(ranges))


def _lengths(event: PublishEvent, kept: Sequence[Range]) -> Column:
    if event.length is not None:
        return event.length
    found = array("I")
    for first, stop in kept:
        found.extend(event.lengths(first, stop))
    return uniform(found)


def _of_blocks(column: Column, blocks: Iterable[int]) -> Column:
    return column if isinstance(column, int) else uniform([column[number] for number in blocks])


def _common(ranges: Sequence[Range], others: Iterable[Range]) -> list[Range]:
    """What is in both; each rises."""
    found: list[Range] = []
    at = 0
    for first, stop in others:
        while at < len(ranges) and ranges[at][1] <= first:
            at += 1
        here = at
        while here < len(ranges) and ranges[here][0] < stop:
            found.append((max(first, ranges[here][0]), min(stop, ranges[here][1])))
            here += 1
    return [each for each in found if each[0] < each[1]]


def _join(ranges: Iterable[Range]) -> list[Range]:
    """Those that touch become one; empty ones go."""
    found: list[Range] = []
    for first, stop in ranges:
        if first == stop:
            continue
        if found and found[-1][1] == first:
            found[-1] = found[-1][0], stop
        else:
            found.append((first, stop))
    return found
