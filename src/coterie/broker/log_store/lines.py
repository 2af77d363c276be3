"""What the store knows of a queue: how far it may have gone, and the parts that its messages are in.

A *part* is a row of messages with rising positions: the store's index has it as a queue of its own. Most queues have
one. What another broker brings when this one is updated comes from the back, and each batch of that is another part; so
are messages with priorities among messages without.

How far deliveries have gone is noted for a proper end only. A note for a crash would have to be on disk before each
delivery, so after a crash everything that a queue has may have been delivered, as in RabbitMQ.
"""

from __future__ import annotations

import json
from collections.abc import Sequence

from coterie.broker.observer import Mark
from coterie.broker.state.vocabulary import Kind

QueueKey = tuple[str, str, int]
"""Vhost, name and incarnation."""
_Image = tuple[int, int, int, int]


class Part:
    """Of one queue; also what is known of it beside the index."""

    __slots__ = ("kind", "line", "next", "number", "safe", "texts")

    def __init__(self, number: int, line: Line, kind: Kind) -> None:
        self.number = number
        self.line = line
        self.kind = kind
        self.next = 0
        """It takes messages from this position on."""
        self.safe = 0
        """Those below this position are on disk."""
        self.texts: dict[int, str] = {}
        """Marks that are texts, by position; perhaps of some more that have left."""

    @property
    def current(self) -> bool:
        return self.line.current is self

    def takes(self, first: int, kind: Kind) -> bool:
        return self.next <= first and self.kind is kind

    def record(self) -> bytes:
        return json.dumps([*self.line.key, self.kind], separators=(",", ":")).encode()


class Line:
    """One queue. The next position that is saved is never behind, as long as saving is quicker than half a step."""

    __slots__ = ("_noted_next", "current", "delivered", "key", "next", "parts", "reserve_at")

    def __init__(self, key: QueueKey, next: int, delivered: int) -> None:
        self.key = key
        self.next = next
        """The next position."""
        self.delivered = delivered
        """No higher position was delivered."""
        self.reserve_at = 0
        """When this position is given, it is time to note more."""
        self._noted_next = next
        self.parts: dict[int, Part] = {}
        self.current: Part | None = None
        """The part that takes what comes next."""

    def image(self) -> _Image:
        return self.next, self.delivered, self.reserve_at, self._noted_next

    def restore(self, image: _Image) -> None:
        """As it was."""
        self.next, self.delivered, self.reserve_at, self._noted_next = image

    @property
    def text(self) -> str:
        return json.dumps(self.key, separators=(",", ":"))

    def reserve(self, position: int, ahead: int) -> None:
        """Up to this position all are given; note so many more."""
        self._noted_next = position + 1 + ahead
        self.reserve_at = position + ahead // 2

    def settle(self) -> None:
        """Nothing will happen any more: note exactly what has."""
        self._noted_next = self.next

    def record(self) -> dict[str, object]:
        return {"next": self._noted_next, "delivered": self.delivered}

    def part_for(self, first: int, kind: Kind) -> Part | None:
        """One that takes a message at this position; None: there has to be another."""
        if self.current is not None and self.current.takes(first, kind):
            return self.current
        if self.parts:
            last = next(reversed(self.parts.values()))
            if last.takes(first, kind):
                return last
        return None


def kind_of(marks: Sequence[Mark] | None) -> Kind:
    return Kind.PRIORITY if marks is not None and any(isinstance(mark, int) for mark in marks) else Kind.FIFO


def read_key(text: str | bytes) -> QueueKey | None:
    """None: it makes no sense."""
    try:
        match json.loads(text):
            case [str(vhost), str(name), int(incarnation), *_]:
                return vhost, name, incarnation
    except (ValueError, RecursionError):
        pass
    return None
