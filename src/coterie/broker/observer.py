"""Queue observers: the store, limits, metrics and the cluster see a queue through one mechanism.

Every call is a batch, comes after the queue's state has changed, and names messages of that queue by ranges of their
positions, in the order in which it happened to them. An observer never changes the queue from within a call.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from coterie.broker.message import Message
    from coterie.broker.queue import Queue
    from coterie.broker.ranges import Range

Mark = int | str | None
"""What a queue's kind knows of a message: its priority, or its last-value key."""


class Reason(Enum):
    """Why a message left its queue. The text of those that make a dead letter is what `x-death` tells."""

    ACCEPTED = "accepted"
    GOT = "got"
    """Given to somebody who acknowledges nothing."""
    REJECTED = "rejected"
    EXPIRED = "expired"
    EVICTED = "maxlen"
    REPLACED = "replaced"
    PURGED = "purged"
    DELETED = "deleted"
    """With its queue."""
    MOVED = "moved"
    """To another queue."""
    EXHAUSTED = "delivery_limit"
    """Given back too often."""
    LOST = "lost"
    """The store has it no more: its disk is damaged."""

    __hash__ = object.__hash__
    """Members are one object each, and looked up for each message that leaves."""


class Arrived(NamedTuple):
    """Messages that came to a queue, with positions in a row."""

    first: int
    messages: Sequence[Message]
    expires: Sequence[float | None] | None = None
    """When each is over, by `Cluster.now`; None: none of them ever is."""
    marks: Sequence[Mark] | None = None
    """None: the queue's kind needs none."""

    @property
    def stop(self) -> int:
        """The position behind the last."""
        return self.first + len(self.messages)


class QueueObserver:
    """Does nothing; override what you care for."""

    def opened(self, queue: Queue) -> None:
        """The queue has come to be, and has its observers; its vhost has it after this turn."""

    def leapt(self, queue: Queue) -> None:
        """Its next position may be further on than any message says."""

    def flagged(self, queue: Queue, ranges: Sequence[Range]) -> None:
        """They are ready, and somebody may have seen them, as others say."""

    def enqueued(self, queue: Queue, arrived: Arrived) -> None:
        """New messages. Those that a limit evicts at once come too, and are dequeued after."""

    def acquired(self, queue: Queue, holder: object, ranges: Sequence[Range]) -> None:
        """They are that one's now."""

    def released(self, queue: Queue, ranges: Sequence[Range]) -> None:
        """They are ready again, at their places; what somebody may have seen is flagged."""

    def dequeued(self, queue: Queue, ranges: Sequence[Range], reason: Reason) -> None:
        """They are gone."""

    def consumers_changed(self, queue: Queue) -> None:
        """One came, went, or became the active one."""

    def deleted(self, queue: Queue) -> None:
        """The queue is gone; what was in it has been dequeued."""


DEADLY = frozenset({Reason.REJECTED, Reason.EXPIRED, Reason.EVICTED, Reason.EXHAUSTED})
"""Reasons for which a message goes to the dead-letter exchange, if its queue has one."""
