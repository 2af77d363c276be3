"""A queue's messages as another broker is told of them, and as it puts them into its own queue."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, NamedTuple

from coterie.broker.delivery import add_range
from coterie.broker.message_table import time_of
from coterie.broker.ranges import Range
from coterie.broker.restoring import Restored
from coterie.broker.state.queue_state import expiries_in

if TYPE_CHECKING:
    from coterie.broker.message import Message
    from coterie.broker.queue import Queue
    from coterie.broker.storage import Record


class CopiedMessage(NamedTuple):
    position: int
    message: Message
    size: int
    """Bytes of the body."""
    redelivered: bool
    deliveries: int
    """How often it was given to somebody who kept it."""
    expires: float | None


class QueueCopy:
    """What is in a queue when it is made, to be read later. A clustered broker has its messages in memory."""

    def __init__(self, queue: Queue) -> None:
        table = queue.table
        state = table.state
        self._live = state.live.copy()
        self._ready = state.ready.copy()
        self._flagged = table.flagged.copy()
        self._deliveries = state.deliveries.copy()
        self._lengths = state.lengths.copy()
        self._contents = table.contents.copy()
        self._expires = state.expires.copy()
        self._caps = state.caps
        self._next = 0
        """Messages before this one were read."""
        self._position = 0

    @property
    def count(self) -> int:
        return self._live.count

    def rows(self, first: int, count: int) -> list[CopiedMessage]:
        """By rising positions, so many from the one with this number on."""
        if first != self._next:
            self._position = self._live.select(first)
        found: list[CopiedMessage] = []
        for begin, end in self._live.ranges(self._position):
            end = min(end, begin + count)
            self._tell(begin, end, found)
            count -= end - begin
            if count <= 0:
                break
        self._next = first + len(found)
        self._position = found[-1].position + 1
        return found

    def _tell(self, first: int, stop: int, found: list[CopiedMessage]) -> None:
        times = expiries_in(self._expires, self._caps, first, stop)
        lives = [None if bits is None else time_of(bits) for begin, end, bits in times for _ in range(begin, end)]
        counts = dict.fromkeys(range(first, stop), 0)
        for begin, end, count in self._deliveries.items(first, stop):
            counts.update(dict.fromkeys(range(begin, end), count))
        messages = self._contents.messages([(first, stop)])
        sizes = self._lengths.each(first, stop)
        for position, message, size, expires in zip(range(first, stop), messages, sizes, lives, strict=True):
            assert message is not None, "a clustered broker keeps its messages in memory"
            given = counts[position] + (position not in self._ready)
            found.append(CopiedMessage(position, message, size, position in self._flagged, given, expires))


class QueueInstallation:
    """Into a queue that is empty yet."""

    def __init__(self, queue: Queue) -> None:
        self._queue = queue
        self._found = Restored()
        self._given: dict[int, int] = {}
        """How often each was given to somebody."""
        self._holds: list[tuple[object, list[Range]]] = []

    def add(self, rows: Iterable[CopiedMessage]) -> None:
        """By rising positions."""
        queue, found = self._queue, self._found
        for position, message, size, redelivered, given, expires in rows:
            found.add(position, size, message)
            if redelivered:
                found.flag(position)
            if given:
                self._given[position] = given
            if expires is not None:
                found.expires.append((position, expires))
            if queue.marked:
                found.marks.append((position, queue.mark_of(message)))

    def hold(self, holder: object, ranges: Iterable[Range]) -> None:
        """These are that one's, as far as they are there."""
        self._holds.append((holder, [*ranges]))

    def finish(self, next_position: int, leases: Iterable[Record]) -> None:
        queue, table = self._queue, self._queue.table
        queue.restore(self._found, next_position)
        for record in leases:
            queue.leases.restore(record)
        for holder, ranges in self._holds:
            there = table.ready_of(ranges)
            if there:
                table.acquire(holder, there)
        self._count()
        queue.settle()
        for lease in queue.leases:
            queue.leases.save(lease)
        store = queue.vhost.store
        if store in queue.observers:
            state = table.state
            for first, stop in [*state.live.ranges()]:
                store.enqueued(queue, queue.arrived(first, stop))
            given = state.live.difference(state.ready.difference(table.flagged))
            if given:
                store.flagged(queue, [*given.ranges()])

    def _count(self) -> None:
        """Who has a message was given it once more than it came back; what a lease had before a restart of all, some
        versions have never counted."""
        ready, counts = self._queue.table.state.ready, dict[int, list[Range]]()
        for position, given in self._given.items():
            count = given - (position not in ready)
            if count > 0:
                add_range(counts.setdefault(count, []), position, position + 1)
        for count, ranges in sorted(counts.items()):
            self._queue.table.set_deliveries(ranges, count)
