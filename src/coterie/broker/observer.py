"""Queue observers: the store, limits, metrics and the cluster see a queue through one mechanism.

Every call is a batch, comes after the queue's state has changed, and names entries of that queue alone. An observer
never changes the queue from within a call.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from coterie.broker.entry import Entry
    from coterie.broker.queue import Queue


class Reason(Enum):
    """Why an entry left its queue. The text of those that make a dead letter is what `x-death` tells."""

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


class QueueObserver:
    """Does nothing; override what you care for."""

    def opened(self, queue: Queue) -> None:
        """The queue has come to be, and has its observers; its vhost has it after this turn."""

    def leapt(self, queue: Queue) -> None:
        """Its next position may be further on than any message says."""

    def flagged(self, queue: Queue, entries: Sequence[Entry]) -> None:
        """They are ready, and somebody may have seen them, as others say: `redelivered` of each is up to date."""

    def enqueued(self, queue: Queue, entries: Sequence[Entry]) -> None:
        """New entries, with rising positions. Those that a limit evicts at once come too, and are dequeued after."""

    def acquired(self, queue: Queue, entries: Sequence[Entry]) -> None:
        """Each has a holder now."""

    def released(self, queue: Queue, entries: Sequence[Entry]) -> None:
        """They are ready again, at their places; `redelivered` of each is up to date."""

    def dequeued(self, queue: Queue, entries: Sequence[Entry], reason: Reason) -> None:
        """They are gone."""

    def consumers_changed(self, queue: Queue) -> None:
        """One came, went, or became the active one."""

    def deleted(self, queue: Queue) -> None:
        """The queue is gone; what was in it has been dequeued."""


DEADLY = frozenset({Reason.REJECTED, Reason.EXPIRED, Reason.EVICTED, Reason.EXHAUSTED})
"""Reasons for which a message goes to the dead-letter exchange, if its queue has one."""
