"""A publish event: the messages of one turn, as columns over the bytes that were ordered and stored.

A message is named by its *offset* in the event. Of an event whose dead messages a merge has dropped (a remnant,
remnant.py) the others keep their offsets. Whatever a peer or a disk may have put into the bytes is checked when they
are read; after that nothing here can go wrong, but for offsets that are not in the event, which are a ValueError.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from itertools import accumulate
from typing import Final

from coterie.broker.columns.head import Columns, read_head
from coterie.broker.columns.layout import (
    DIGEST,
    EXPIRES,
    PERSISTENT,
    Column,
    MalformedEvent,
    Range,
    as_view,
    look_up,
    runs_of,
)
from coterie.broker.columns.routes import KnownRoutes, Route, make_table
from coterie.runtime.base import Buffer

OBJECT_BYTES: Final = 1024
"""About what the object of an event takes in memory, without its bytes."""
PART_BYTES: Final = 48
"""And a body that is an object of its own."""
HEADER_PREFIX: Final = b"\x00\x3c\x00\x00"
"""Class basic, weight 0: the beginning of every content header."""


class PublishEvent:
    """What is in it never changes."""

    __slots__ = ("_block_starts", "_blocks_raw", "_bodies_raw", "_body_starts", "columns", "contents", "head", "parts")

    def __init__(
        self, head: Buffer, columns: Columns, contents: memoryview | None, parts: Sequence[bytes] = ()
    ) -> None:
        self.head = head
        """Fixed part, routes, columns: the head of a log record."""
        self.columns = columns
        """By index, which is the offset unless the event is a remnant."""
        self.contents = contents
        """Blocks and bodies, if they are in one piece."""
        self.parts = parts
        """Blocks, then each body, if they are not: of an event that was built here. Neither: only the head was read."""
        self._blocks_raw: Buffer = b""
        self._bodies_raw: memoryview | None = None
        if contents is not None:
            self._blocks_raw = contents[: columns.block_bytes]
            self._bodies_raw = contents[columns.block_bytes :]
        elif parts:
            self._blocks_raw = parts[0]
        self._body_starts: array[int] | None = None
        self._block_starts: array[int] | None = None

    @staticmethod
    def read(data: Buffer, known: KnownRoutes) -> PublishEvent:
        """Head and contents in one piece, as they are sent. Raises MalformedEvent."""
        view = as_view(data)
        columns, end = read_head(view, known)
        return _with_contents(view[:end], columns, view[end:])

    @staticmethod
    def of_record(head: Buffer, contents: Buffer, known: KnownRoutes) -> PublishEvent:
        """As the log keeps them. Raises MalformedEvent."""
        return _with_contents(head, _all_of(head, known), as_view(contents))

    @staticmethod
    def of_head(head: Buffer, known: KnownRoutes) -> PublishEvent:
        """Columns only: of a record that was read without its contents. Raises MalformedEvent."""
        return PublishEvent(head, _all_of(head, known), None)

    # As bytes.

    @property
    def size(self) -> int:
        """Bytes of head and contents."""
        return len(self.head) + (sum(map(len, self.parts)) if self.contents is None else len(self.contents))

    @property
    def memory(self) -> int:
        """About what it keeps in memory, with its routes, with what it may need to be read (where bodies and blocks
        begin), and with the rest of a buffer of which it is a part."""
        columns = self.columns
        index = 0 if isinstance(columns.lengths, int) else 8 * columns.messages
        index += 0 if isinstance(columns.sizes, int) else 8 * columns.block_count
        index += 2 * PART_BYTES * len(columns.routes.raws)
        if self.contents is None:
            return OBJECT_BYTES + index + self.size + PART_BYTES * len(self.parts)
        bases = [memoryview(self.head).obj, self.contents.obj]
        return OBJECT_BYTES + index + sum(memoryview(base).nbytes for base in bases[bases[0] is bases[1] :])

    def alone(self) -> PublishEvent:
        """Itself; or a copy, if it is the smaller part of a buffer that it would keep in memory."""
        if self.contents is None or memoryview(self.contents.obj).nbytes <= 2 * self.size:
            return self
        columns, _ = read_head(memoryview(head := bytes(self.head)), KnownRoutes())
        return PublishEvent(head, columns, memoryview(bytes(self.contents)))

    def buffers(self) -> list[Buffer]:
        """Head and contents, for a scatter write."""
        return [self.head, *self.content_buffers()]

    def content_buffers(self) -> list[Buffer]:
        """Contents, as the log wants them."""
        return [*self.parts] if self.contents is None else [self.contents]

    # Which messages.

    @property
    def count(self) -> int:
        return self.columns.messages

    @property
    def ranges(self) -> list[Range]:
        """The offsets that there are."""
        kept = self.columns.kept
        return [(0, self.columns.messages)] if kept is None else [*zip(kept.starts, kept.stops, strict=True)]

    def __contains__(self, offset: int) -> bool:
        try:
            self._index(offset, offset + 1)
        except ValueError:
            return False
        return True

    def _index(self, first: int, stop: int) -> int:
        """Of a range of offsets: that of the first. Raises ValueError if one of them is not there."""
        kept = self.columns.kept
        if kept is None:
            if not 0 <= first <= stop <= self.columns.messages:
                raise ValueError(f"messages {first} to {stop}, of {self.columns.messages}")
            return first
        at = bisect_right(kept.starts, first) - 1
        if at < 0 or not first <= stop <= kept.stops[at]:
            raise ValueError(f"messages {first} to {stop} are not in what is left of the event")
        return kept.to[at] + first - kept.starts[at]

    def _offsets(self, first: int, stop: int) -> list[Range]:
        """Of a range of indices."""
        kept = self.columns.kept
        if kept is None:
            return [(first, stop)]
        found = []
        at = bisect_right(kept.to, first) - 1
        while first < stop:
            base, to = kept.starts[at], kept.to[at]
            end = min(stop, to + kept.stops[at] - base)
            found.append((base + first - to, base + end - to))
            first, at = end, at + 1
        return found

    def by_queue(self) -> dict[int, list[Range]]:
        """Which messages go to which queue, by incarnation: ranges of offsets that rise."""
        columns = self.columns
        sets, set_of = columns.routes.sets, columns.routes.set_of
        if columns.route_of is None or len(sets) == 1:
            whole = self.ranges
            return {queue: whole.copy() for queue in sets[set_of[0]]}
        found: dict[int, list[Range]] = {}
        for first, stop, number in runs_of(look_up(set_of, columns.route_of), 0, columns.messages):
            for begin, end in self._offsets(first, stop):
                for queue in sets[number]:
                    ranges = found.setdefault(queue, [])
                    if ranges and ranges[-1][1] == begin:
                        ranges[-1] = ranges[-1][0], end
                    else:
                        ranges.append((begin, end))
        return found

    # Columns of a range of offsets.

    @property
    def length(self) -> int | None:
        """Of every body, if it is the same for all."""
        lengths = self.columns.lengths
        return lengths if isinstance(lengths, int) else None

    def lengths(self, first: int, stop: int) -> Sequence[int]:
        at = self._index(first, stop)
        lengths = self.columns.lengths
        if isinstance(lengths, int):
            return array("I", (lengths,)) * (stop - first)
        return lengths[at : at + stop - first]

    def bytes_of(self, first: int, stop: int) -> int:
        """Of these bodies."""
        lengths = self.columns.lengths
        at = self._index(first, stop)
        return lengths * (stop - first) if isinstance(lengths, int) else sum(lengths[at : at + stop - first])

    def flags(self, first: int, stop: int) -> Column:
        return self._by_message(self.columns.flags, first, stop)

    def priorities(self, first: int, stop: int) -> Column:
        return self._by_message(self.columns.priorities, first, stop)

    def expiries(self, first: int, stop: int) -> Column:
        """Milliseconds; of messages whose flags have EXPIRES."""
        return self._by_message(self.columns.expiries, first, stop)

    def _by_message(self, column: Column, first: int, stop: int) -> Column:
        at = self._index(first, stop)
        if isinstance(column, int):
            return column
        end = at + stop - first
        block_of = self.columns.block_of
        return column[at:end] if block_of is None else look_up(column, block_of[at:end])

    @property
    def all_persistent(self) -> bool:
        return all(flags & PERSISTENT for flags in self._all_flags)

    @property
    def any_persistent(self) -> bool:
        return any(flags & PERSISTENT for flags in self._all_flags)

    @property
    def any_expires(self) -> bool:
        return any(flags & EXPIRES for flags in self._all_flags)

    @property
    def _all_flags(self) -> set[int]:
        flags = self.columns.flags
        return {flags} if isinstance(flags, int) else {*flags}

    # Messages.

    def route_numbers(self, first: int, stop: int) -> Sequence[int]:
        at = self._index(first, stop)
        route_of = self.columns.route_of
        return bytes(stop - first) if route_of is None else route_of[at : at + stop - first]

    def block_numbers(self, first: int, stop: int) -> Sequence[int]:
        at = self._index(first, stop)
        if self.columns.own_blocks:
            return range(at, at + stop - first)
        block_of = self.columns.block_of
        return bytes(stop - first) if block_of is None else block_of[at : at + stop - first]

    def route(self, offset: int) -> Route:
        return self.columns.routes[self.route_numbers(offset, offset + 1)[0]]

    def properties(self, offset: int) -> bytes:
        """Property flags and properties, as they stand in a content header behind the body size."""
        return self.block(self.block_numbers(offset, offset + 1)[0])

    def block(self, number: int) -> bytes:
        """The properties of that number. Raises ValueError if only the head is here."""
        if not self._blocks_raw:
            raise ValueError("the contents of this event are not here")
        start, end = self.block_range(number)
        return bytes(self._blocks_raw[start:end])

    def header(self, offset: int) -> bytes:
        """The payload of its content header frame."""
        return HEADER_PREFIX + self.bytes_of(offset, offset + 1).to_bytes(8, "big") + self.properties(offset)

    def body(self, offset: int) -> Buffer:
        return self.bodies(offset, offset + 1)[0]

    def bodies(self, first: int, stop: int) -> list[Buffer]:
        """Slices of the buffer, not copies. Raises ValueError also if the bodies are not in the event."""
        at = self._index(first, stop)
        end = at + stop - first
        if self.columns.outside is not None or not self._blocks_raw:
            raise ValueError("the bodies of this event are not here")
        raw = self._bodies_raw
        if raw is None:
            return [*self.parts[at + 1 : end + 1]]
        lengths = self.columns.lengths
        if isinstance(lengths, int):
            if not lengths:
                return [b""] * (end - at)
            if end - at == 1:
                return [raw[at * lengths : end * lengths]]
            return [raw[start : start + lengths] for start in range(at * lengths, end * lengths, lengths)]
        starts = self._starts()[at:end]
        return [raw[start : start + size] for start, size in zip(starts, lengths[at:end], strict=True)]

    def digest(self, offset: int) -> bytes:
        """Of a body outside the event."""
        at = self._index(offset, offset + 1)
        if self.columns.outside is None or not self._blocks_raw:
            raise ValueError("there are no digests in this event")
        if self._bodies_raw is None:
            return self.parts[at + 1]
        return bytes(self._bodies_raw[at * DIGEST : (at + 1) * DIGEST])

    def offer_numbers(self, ranges: Iterable[Range]) -> list[int]:
        """Of bodies outside the event, which is what they are asked for."""
        assert self.columns.outside is not None
        found: list[int] = []
        for first, stop in ranges:
            at = self._index(first, stop)
            found += self.columns.outside.numbers[at : at + stop - first]
        return found

    def filled(self, offset: int, body: bytes) -> PublishEvent:
        """An event of that message alone, at offset 0, with a body that was outside, for its frames. It has no bytes
        that could be sent or stored. Raises ValueError if the body has another length."""
        if len(body) != self.bytes_of(offset, offset + 1):
            raise ValueError(f"a body of {len(body)} bytes, where {self.bytes_of(offset, offset + 1)} were announced")
        properties = self.properties(offset)
        columns = Columns(
            1, make_table([self.route(offset)]), None, 1, None, False, len(body), len(body), 0, 0, 0, len(properties),
            len(properties),
        )  # fmt: skip
        return PublishEvent(b"", columns, None, (properties, body))

    # Where they are in the contents: (start, end).

    def block_range(self, number: int) -> Range:
        sizes = self.columns.sizes
        if isinstance(sizes, int):
            return number * sizes, (number + 1) * sizes
        if self._block_starts is None:
            self._block_starts = array("Q", accumulate(sizes, initial=0))
        return self._block_starts[number], self._block_starts[number + 1]

    def body_range(self, first: int, stop: int) -> Range:
        """The bodies of messages in a row; their digests, if they are outside."""
        at = self._index(first, stop)
        end = at + stop - first
        base, lengths = self.columns.block_bytes, self.columns.lengths
        if self.columns.outside is not None:
            return base + at * DIGEST, base + end * DIGEST
        if isinstance(lengths, int):
            return base + at * lengths, base + end * lengths
        starts = self._starts()
        return base + starts[at], base + starts[end]

    def _starts(self) -> array[int]:
        """Where each body begins, and where the last ends. Made when it is first needed: a follower does not."""
        if self._body_starts is None:
            lengths = self.columns.lengths
            assert not isinstance(lengths, int)
            self._body_starts = array("Q", accumulate(lengths, initial=0))
        return self._body_starts


def _all_of(head: Buffer, known: KnownRoutes) -> Columns:
    view = as_view(head)
    columns, end = read_head(view, known)
    if end != len(view):
        raise MalformedEvent("something behind the head of a publish event")
    return columns


def _with_contents(head: Buffer, columns: Columns, contents: memoryview) -> PublishEvent:
    if len(contents) != columns.content_bytes:
        raise MalformedEvent(f"contents of {len(contents)} bytes, where {columns.content_bytes} were announced")
    return PublishEvent(head, columns, contents)
