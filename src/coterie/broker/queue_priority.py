"""A priority queue: the ready message of the highest priority goes first, the older one among equals.

`x-max-priority` is the highest there is; a message that claims more has that. As in RabbitMQ the head is the next one
to be delivered, also for the limits of length: what a full queue lets go of is the oldest message of the highest
priority.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from coterie.broker.observer import Mark
from coterie.broker.queue import Queue
from coterie.broker.state.queue_state import QueueConfig
from coterie.broker.state.vocabulary import Kind

if TYPE_CHECKING:
    from coterie.broker.message import Message
    from coterie.broker.specs import QueueSpec


class PriorityQueue(Queue):
    kind = "priority"
    marked = True

    @staticmethod
    def _config(spec: QueueSpec) -> QueueConfig:
        return QueueConfig(Kind.PRIORITY, max_priority=spec.max_priority)

    def mark_of(self, message: Message) -> Mark:
        return min(message.priority, self.spec.max_priority)

    def _mark(self, first: int, messages: Sequence[Message]) -> Sequence[Mark]:
        highest = self.spec.max_priority
        priorities = [min(message.priority, highest) for message in messages]
        self.table.prioritise(first, priorities)
        return priorities

    def restore_mark(self, position: int, mark: Mark) -> None:
        if isinstance(mark, int):
            self.table.prioritise(position, [mark])
