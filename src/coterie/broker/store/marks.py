"""How far a queue may have gone: the next position, noted ahead, and the highest that was delivered.

The latter is noted for a proper end only. A note for a crash would have to be on disk before each delivery, so after a
crash everything that a queue has may have been delivered, as in RabbitMQ.
"""

from __future__ import annotations

import json

from coterie.broker.storage import Record
from coterie.broker.store.operations import Name


class QueueMarks:
    """Of one queue. The next position that is saved is never behind, as long as saving is quicker than half a step."""

    __slots__ = ("_noted_next", "delivered", "name", "next", "reserve_at")

    def __init__(self, name: Name, next: int, delivered: int) -> None:
        self.name = name
        self.next = next
        """The next position."""
        self.delivered = delivered
        """No higher position was delivered."""
        self.reserve_at = 0
        """When this position is given, it is time to note more."""
        self._noted_next = next

    def image(self) -> tuple[int, int, int, int]:
        return self.next, self.delivered, self.reserve_at, self._noted_next

    def restore(self, image: tuple[int, int, int, int]) -> None:
        """As it was."""
        self.next, self.delivered, self.reserve_at, self._noted_next = image

    @property
    def key(self) -> str:
        return json.dumps([self.name.vhost, self.name.name, self.name.incarnation], separators=(",", ":"))

    def reserve(self, position: int, ahead: int) -> None:
        """Up to this position all are given; note so many more."""
        self._noted_next = position + 1 + ahead
        self.reserve_at = position + ahead // 2

    def settle(self) -> None:
        """Nothing will happen any more: note exactly what has."""
        self._noted_next = self.next

    def record(self) -> Record:
        name = self.name
        return {
            "vhost": name.vhost,
            "name": name.name,
            "incarnation": name.incarnation,
            "next": self._noted_next,
            "delivered": self.delivered,
        }
