"""An entry: one message in one queue, from the moment it has a position until it is gone.

READY     holder is None      at its place among the ready ones, or offered to nobody yet
ACQUIRED  holder is somebody  a consumer, a channel that got it, a lease: delivered or about to be
GONE      holder is GONE      accepted, dead-lettered, expired, evicted, replaced, purged or deleted; never comes back

The transitions are the table in `coterie.broker.queue`.
"""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from coterie.broker.message import Message
    from coterie.broker.queue import Queue


class State(Enum):
    READY = "ready"
    ACQUIRED = "acquired"
    GONE = "gone"


class _Gone:
    def __repr__(self) -> str:
        return "GONE"


GONE: Final = _Gone()
"""The holder of an entry that has left its queue."""


class Entry:
    """Hot path: made and read in batches, by position."""

    __slots__ = (
        "deliveries", "expires", "holder", "mark", "message", "paged", "position", "queue", "redelivered", "size",
        "stored",
    )  # fmt: skip

    def __init__(self, position: int, message: Message | None, queue: Queue, size: int) -> None:
        self.position = position
        """64 bit, rising, never given twice in one incarnation of a queue."""
        self.message = message
        """None: paged out; the store brings it back (`Store.load`)."""
        self.paged = False
        """The pager counts it among those on disk only. It may be loaded twice at a time, and is counted once."""
        self.queue = queue
        self.size = size
        """Bytes of the body."""
        self.holder: object | None = None
        self.redelivered = False
        """Somebody may have seen it already."""
        self.deliveries = 0
        """How often it was acquired."""
        self.expires: float | None = None
        """Time of `Cluster.now` from which on nobody is given it any more."""
        self.stored = 0
        """The store's reference; 0: not stored."""
        self.mark: int | str | None = None
        """What its queue's kind must know of it also while it is paged out: its priority, or its last-value key."""

    @property
    def state(self) -> State:
        if self.holder is None:
            return State.READY
        return State.GONE if self.holder is GONE else State.ACQUIRED

    def __repr__(self) -> str:
        return f"<Entry {self.queue.name}:{self.position} {self.state.value}>"
