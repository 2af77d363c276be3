"""What is put into a queue that is empty yet: from the store after a restart, or from another broker.

It is gathered message by message, and becomes ranges at once. Whether it is ready or somebody's is said afterwards.
"""

from __future__ import annotations

from array import array
from typing import TYPE_CHECKING

from coterie.broker.delivery import add_range, ranges_of
from coterie.broker.ranges import Range

if TYPE_CHECKING:
    from coterie.broker.message import Message
    from coterie.broker.observer import Mark
    from coterie.broker.queue import Queue


class Restored:
    """Messages of one queue, by rising positions."""

    __slots__ = ("deliveries", "expires", "flagged", "marks", "messages", "positions", "sizes")

    def __init__(self) -> None:
        self.positions = array("Q")
        self.sizes = array("I")
        self.messages: dict[int, Message] = {}
        """By position; the others are on disk only."""
        self.flagged: list[Range] = []
        self.deliveries: dict[int, list[Range]] = {}
        """How often they were given back by somebody who may have seen them."""
        self.expires: list[tuple[int, float]] = []
        self.marks: list[tuple[int, Mark]] = []

    def add(self, position: int, size: int, message: Message | None = None) -> None:
        self.positions.append(position)
        self.sizes.append(size)
        if message is not None:
            self.messages[position] = message

    def flag(self, position: int) -> None:
        add_range(self.flagged, position, position + 1)

    def count(self, position: int, deliveries: int) -> None:
        add_range(self.deliveries.setdefault(deliveries, []), position, position + 1)

    def ranges(self) -> list[Range]:
        return ranges_of([*self.positions])


def restore(queue: Queue, found: Restored) -> None:
    """Everything is ready."""
    table, absent = queue.table, queue.pager.absent
    at = 0
    for first, stop in found.ranges():
        count = stop - first
        table.put(first, found.sizes[at : at + count])
        at += count
        absent.add(first, stop)
    for position, message in found.messages.items():
        table.contents.put(position, [message])
        absent.remove(position, position + 1)
    table.flag(found.flagged)
    for count, ranges in sorted(found.deliveries.items()):
        table.set_deliveries(ranges, count)
    for position, time in found.expires:
        table.stamp(position, [time])
    if queue.marked:
        for position, mark in found.marks:
            queue.restore_mark(position, mark)
