"""A queue's messages as another broker is told of them, and as it puts them into its own queue."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, NamedTuple

from coterie.broker.delivery import positions_in
from coterie.broker.entry import Entry
from coterie.broker.ranges import Range

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
    expires: float | None


class QueueCopy:
    """What is in a queue when it is made, to be read later. A clustered broker has its messages in memory."""

    def __init__(self, queue: Queue) -> None:
        self._entries = [*queue.entries.values()]
        self._noted = {
            entry: (entry.redelivered, entry.deliveries)
            for entry in self._entries
            if entry.deliveries or entry.redelivered
        }
        """What may change, of those that were ever given to somebody."""

    @property
    def count(self) -> int:
        return len(self._entries)

    def rows(self, first: int, count: int) -> list[CopiedMessage]:
        """By rising positions, so many from the one with this number on."""
        found: list[CopiedMessage] = []
        for entry in self._entries[first : first + count]:
            assert entry.message is not None, "a clustered broker keeps its messages in memory"
            redelivered, deliveries = self._noted.get(entry, (False, 0))
            found.append(
                CopiedMessage(entry.position, entry.message, entry.size, redelivered, deliveries, entry.expires)
            )
        return found


class QueueInstallation:
    """Into a queue that is empty yet."""

    def __init__(self, queue: Queue) -> None:
        self._queue = queue
        self._entries: dict[int, Entry] = {}

    def add(self, rows: Iterable[CopiedMessage]) -> None:
        """By rising positions."""
        for position, message, size, redelivered, deliveries, expires in rows:
            entry = self._entries[position] = Entry(position, message, self._queue, size)
            entry.redelivered, entry.deliveries, entry.expires = redelivered, deliveries, expires

    def hold(self, holder: object, ranges: Iterable[Range]) -> None:
        """These are that one's, as far as they are there."""
        for entry in map(self._entries.get, positions_in(ranges)):
            if entry is not None:
                entry.holder = holder

    def finish(self, next_position: int, leases: Iterable[Record]) -> None:
        queue, entries = self._queue, [*self._entries.values()]
        for record in leases:
            queue.leases.restore(record, self._entries)
        queue.restore(entries, next_position)
        for lease in queue.leases:
            queue.leases.save(lease)
        store = queue.vhost.store
        if store in queue.observers:
            store.enqueued(queue, entries)
            given = [entry for entry in entries if entry.holder is not None or entry.redelivered]
            if given:
                store.acquired(queue, given)
