"""The head of an event: which columns it has, written, and read from bytes that anybody may have written.

Everything is checked column by column, at the speed of C: sizes, sums, numbers that are beyond a table.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from operator import lt
from typing import Final, NamedTuple

from coterie.amqp.wire.tables import read_short, short
from coterie.broker.columns import layout
from coterie.broker.columns.layout import (
    BLOCK_MIN,
    COUNT_MAX,
    DIGEST,
    FIXED,
    FLAGS_MAX,
    VERSION,
    Column,
    Cursor,
    MalformedEvent,
    Range,
    width,
    write_column,
)
from coterie.broker.columns.routes import KnownRoutes, RouteTable

NUMBER_MAX: Final = 2**63 - 1


class Kept(NamedTuple):
    """The ranges of offsets that are left of an event."""

    starts: Sequence[int]
    stops: Sequence[int]
    to: Sequence[int]
    """The index, in the columns, of the first of each."""


class Outside(NamedTuple):
    """Of an event whose bodies are not in it (broker/large_bodies)."""

    numbers: Sequence[int]
    """Of the offers, by message."""
    holders: tuple[str, ...]
    """Brokers that had all of the bodies when the event was proposed."""


class Columns(NamedTuple):
    """A number in the place of a column: all have it."""

    messages: int
    """How many."""
    routes: RouteTable
    route_of: Sequence[int] | None
    """By message; None: all have the first one."""
    block_count: int
    block_of: Sequence[int] | None
    """By message; None: all have the first one, or each its own."""
    own_blocks: bool
    lengths: Column
    """Of bodies, by message."""
    body_bytes: int
    flags: Column
    """These are by block."""
    priorities: Column
    expiries: Column
    sizes: Column
    block_bytes: int
    outside: Outside | None = None
    kept: Kept | None = None

    @property
    def content_bytes(self) -> int:
        return self.block_bytes + (self.body_bytes if self.outside is None else self.messages * DIGEST)


def write_head(columns: Columns, section: bytes) -> bytes:
    """`section`: the bytes of the routes. Columns must be sound."""
    present = layout.OWN_BLOCKS if columns.own_blocks else 0
    out: list[bytes] = [section]
    if columns.route_of is not None:
        present |= layout.ROUTES
        out.append(write_column(width(len(columns.routes.raws)), columns.route_of))
    if columns.block_of is not None:
        present |= layout.BLOCKS
        out.append(write_column(width(columns.block_count), columns.block_of))
    length = flag = priority = expiry = size = 0
    if isinstance(columns.lengths, int):
        length = columns.lengths
    else:
        present |= layout.LENGTHS
        out.append(write_column("I", columns.lengths))
    if isinstance(columns.flags, int):
        flag = columns.flags
    else:
        present |= layout.FLAGS
        out.append(bytes(columns.flags))
    if isinstance(columns.priorities, int):
        priority = columns.priorities
    else:
        present |= layout.PRIORITIES
        out.append(bytes(columns.priorities))
    if isinstance(columns.expiries, int):
        expiry = columns.expiries
    else:
        present |= layout.EXPIRIES
        out.append(write_column("I", columns.expiries))
    if isinstance(columns.sizes, int):
        size = columns.sizes
    else:
        present |= layout.BLOCK_SIZES
        out.append(write_column("I", columns.sizes))
    kept = columns.kept
    if kept is not None:
        out += (write_column("I", kept.starts), write_column("I", kept.stops))
    names = b""
    if columns.outside is not None:
        present |= layout.OUTSIDE
        names = b"".join(map(short, columns.outside.holders))
        out += (write_column("Q", columns.outside.numbers), names)
    fixed = FIXED.pack(
        VERSION, 0, present, columns.messages, len(columns.routes.raws), len(section), columns.block_count,
        columns.block_bytes, 0 if kept is None else len(kept.starts), columns.body_bytes, length, flag, priority,
        len(names), expiry, size,
    )  # fmt: skip
    return b"".join((fixed, *out))


def read_head(data: memoryview, known: KnownRoutes) -> tuple[Columns, int]:
    """The columns, and where the head ends. Raises MalformedEvent."""
    if len(data) < FIXED.size:
        raise MalformedEvent("a publish event ends too early")
    (
        version, zero, present, count, route_count, route_bytes, block_count, block_bytes, kept_count, body_bytes,
        length, flag, priority, name_bytes, expiry, block_size,
    ) = FIXED.unpack_from(data)  # fmt: skip
    if version != VERSION or zero or present > layout.PRESENT:
        raise MalformedEvent(f"a publish event of version {version}, with columns {present:#x}")
    if not 0 < count <= COUNT_MAX or not 0 < route_count <= count or not 0 < block_count <= count:
        raise MalformedEvent(f"{count} messages, {route_count} routes, {block_count} property blocks")
    cursor = Cursor(data, FIXED.size)
    routes = known.read(cursor.raw(route_bytes), route_count)
    route_of = _indices(cursor, route_count, count) if present & layout.ROUTES else None
    block_of = _indices(cursor, block_count, count) if present & layout.BLOCKS else None
    own = bool(present & layout.OWN_BLOCKS)
    if route_of is None and route_count != 1:
        raise MalformedEvent(f"{route_count} routes, and no column that tells which")
    if (own and (block_of is not None or block_count != count)) or (not own and block_of is None and block_count != 1):
        raise MalformedEvent(f"{block_count} property blocks for {count} messages, and no column that tells which")
    lengths: Column = length
    flags: Column = flag
    sizes: Column = block_size
    if present & layout.LENGTHS:
        lengths = column = cursor.column("I", count)
        total = sum(column)
    else:
        total = length * count
    if total != body_bytes:
        raise MalformedEvent(f"lengths of {total} bytes, and bodies of {body_bytes}")
    if present & layout.FLAGS:
        flags = column = cursor.column("B", block_count)
        flag = max(column)
    if flag > FLAGS_MAX:
        raise MalformedEvent(f"unknown flags {flag:#x}")
    priorities = cursor.column("B", block_count) if present & layout.PRIORITIES else priority
    expiries = cursor.column("I", block_count) if present & layout.EXPIRIES else expiry
    if present & layout.BLOCK_SIZES:
        sizes = column = cursor.column("I", block_count)
        total, block_size = sum(column), min(column)
    else:
        total = block_size * block_count
    if total != block_bytes or block_size < BLOCK_MIN:
        raise MalformedEvent(f"property blocks of {total} bytes, and {block_bytes} were announced")
    kept = _read_kept(cursor, kept_count, count) if kept_count else None
    outside = _read_outside(cursor, count, name_bytes) if present & layout.OUTSIDE else None
    if outside is None and name_bytes:
        raise MalformedEvent("somebody has bodies that are all in the event")
    columns = Columns(
        count, routes, route_of, block_count, block_of, own, lengths, body_bytes, flags, priorities, expiries, sizes,
        block_bytes, outside, kept,
    )  # fmt: skip
    return columns, cursor.at


def kept_ranges(ranges: Sequence[Range]) -> Kept:
    """Of ranges that rise and do not touch."""
    sizes = [stop - first for first, stop in ranges]
    return Kept([first for first, _ in ranges], [stop for _, stop in ranges], [0, *accumulate(sizes[:-1])])


def _indices(cursor: Cursor, table: int, count: int) -> Sequence[int]:
    column = cursor.column(width(table), count)
    most = max(column)
    if most >= table:
        raise MalformedEvent(f"number {most} in a column, of a table of {table}")
    return column


def _read_kept(cursor: Cursor, kept: int, count: int) -> Kept:
    starts, stops = cursor.column("I", kept), cursor.column("I", kept)
    rising = all(map(lt, starts, stops)) and all(map(lt, stops, starts[1:])) and stops[-1] <= COUNT_MAX
    if not rising or sum(stops) - sum(starts) != count:
        raise MalformedEvent("what is left of an event does not rise, or is not as many as its messages")
    return kept_ranges([*zip(starts, stops, strict=True)])


def _read_outside(cursor: Cursor, count: int, size: int) -> Outside:
    numbers = cursor.column("Q", count)
    if max(numbers) > NUMBER_MAX:
        raise MalformedEvent("the number of an offer is beyond 2^63")
    names, found, at = bytes(cursor.raw(size)), [], 0
    try:
        while at < size:
            name, at = read_short(names, at)
            found.append(name)
    except IndexError:
        raise MalformedEvent("names end too early") from None
    return Outside(numbers, tuple(found))
