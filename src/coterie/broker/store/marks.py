"""How far a queue may have gone: the next position, and the highest that may have been delivered, both noted ahead."""

from __future__ import annotations

import json

from coterie.broker.storage import Record
from coterie.broker.store.operations import Name


class QueueMarks:
    """Of one queue. What is saved is never behind what happened, as long as saving is quicker than half a step."""

    __slots__ = ("_noted_delivered", "_noted_next", "deliver_at", "delivered", "name", "next", "reserve_at")

    def __init__(self, name: Name, next: int, delivered: int) -> None:
        self.name = name
        self.next = next
        """The next position."""
        self.delivered = delivered
        """No higher position was delivered."""
        self.reserve_at = 0
        """When this position is given, it is time to note more."""
        self.deliver_at = 0
        self._noted_next = next
        self._noted_delivered = delivered

    @property
    def key(self) -> str:
        return json.dumps([self.name.vhost, self.name.name, self.name.incarnation], separators=(",", ":"))

    def reserve(self, position: int, ahead: int) -> None:
        """Up to this position all are given; note so many more."""
        self._noted_next = position + 1 + ahead
        self.reserve_at = position + ahead // 2

    def deliver_ahead(self, position: int, ahead: int) -> None:
        self._noted_delivered = position + ahead
        self.deliver_at = position + ahead // 2

    def settle(self) -> None:
        """Nothing will happen any more: note exactly what has."""
        self._noted_next, self._noted_delivered = self.next, self.delivered

    def record(self) -> Record:
        name = self.name
        return {
            "vhost": name.vhost,
            "name": name.name,
            "incarnation": name.incarnation,
            "next": self._noted_next,
            "delivered": self._noted_delivered,
        }
