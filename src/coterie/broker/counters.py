"""What a queue has done so far: numbers that only grow, for metrics and the console."""

from __future__ import annotations

from dataclasses import dataclass, fields

from coterie.broker.observer import Reason


@dataclass(slots=True)
class Churn:
    """How queues came and went in a vhost, since this node started."""

    declared: int = 0
    """Also those that were there already."""
    created: int = 0
    deleted: int = 0

    def add(self, other: Churn) -> None:
        self.declared += other.declared
        self.created += other.created
        self.deleted += other.deleted


@dataclass(slots=True)
class Counters:
    """Of one queue, since it was declared or recovered here."""

    enqueued: int = 0
    delivered: int = 0
    """Given to consumers that acknowledge."""
    delivered_no_ack: int = 0
    got: int = 0
    """By basic.get, to be acknowledged."""
    got_no_ack: int = 0
    redelivered: int = 0
    accepted: int = 0
    released: int = 0
    rejected: int = 0
    expired: int = 0
    evicted: int = 0
    """By a limit of length."""
    replaced: int = 0
    """By a newer value of the same key."""
    purged: int = 0
    moved: int = 0
    exhausted: int = 0
    """Given back more often than the delivery limit allows."""
    lost: int = 0
    """That the disk does not give back."""
    refused: int = 0
    """Publishes that the full queue did not take."""
    duplicates: int = 0
    """Publishes whose message id the queue had seen before."""
    dead_lettered: int = 0
    unwritable: int = 0
    """Messages that died and of which no letter could be made: they were dropped."""

    def left(self, reason: Reason, count: int) -> None:
        """So many have left the queue."""
        name = _FIELDS.get(reason)
        if name is not None:
            setattr(self, name, getattr(self, name) + count)

    def add(self, other: Counters) -> None:
        for name in NAMES:
            setattr(self, name, getattr(self, name) + getattr(other, name))

    def image(self) -> tuple[tuple[str, ...], tuple[int, ...]]:
        """Names and values, as they are now."""
        return NAMES, tuple(getattr(self, name) for name in NAMES)

    def as_dict(self) -> dict[str, int]:
        return {name: getattr(self, name) for name in NAMES}


NAMES = tuple(field.name for field in fields(Counters))

_FIELDS = {
    Reason.ACCEPTED: "accepted",
    Reason.REJECTED: "rejected",
    Reason.EXPIRED: "expired",
    Reason.EVICTED: "evicted",
    Reason.REPLACED: "replaced",
    Reason.PURGED: "purged",
    Reason.MOVED: "moved",
    Reason.EXHAUSTED: "exhausted",
    Reason.LOST: "lost",
}
"""GOT is counted by who got it; DELETED is nobody's business any more."""
