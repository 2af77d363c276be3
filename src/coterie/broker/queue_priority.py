"""A priority queue: the ready message of the highest priority goes first, the older one among equals.

`x-max-priority` is the highest there is; a message that claims more has that. As in RabbitMQ the head is the next one
to be delivered, also for the limits of length: what a full queue lets go of is the oldest message of the highest
priority.
"""

from __future__ import annotations

from collections.abc import Sequence

from coterie.broker.entry import Entry
from coterie.broker.queue import Queue
from coterie.broker.ready import Lanes, Ready


class PriorityQueue(Queue):
    kind = "priority"

    def _make_lanes(self) -> Ready:
        return Lanes()

    def _mark(self, entries: Sequence[Entry]) -> None:
        highest = self.spec.max_priority
        for entry in entries:
            if entry.message is not None:
                entry.mark = min(entry.message.priority, highest)
            elif not isinstance(entry.mark, int):
                entry.mark = 0
