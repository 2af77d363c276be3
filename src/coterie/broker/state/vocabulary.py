"""The words of a queue's state, each with the number that stands for it in effects and snapshots.

Numbers are never given to another meaning: logs have them on disk.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Final


class Kind(IntEnum):
    """Of a queue."""

    FIFO = 0
    RING = 1
    LAST_VALUE = 2
    PRIORITY = 3


class Overflow(IntEnum):
    """What a queue that is too long does."""

    DROP_HEAD = 0
    RING = 1
    REJECT = 2
    REJECT_DEAD = 3


class Reason(IntEnum):
    """Why a message left its queue."""

    ACCEPTED = 0
    GOT = 1
    """Given to somebody who acknowledges nothing."""
    REJECTED = 2
    EXPIRED = 3
    EVICTED = 4
    REPLACED = 5
    PURGED = 6
    MOVED = 7
    """To another queue."""
    EXHAUSTED = 8
    """Given back too often."""
    LOST = 9
    """No broker has its body any more."""


DEADLY: Final = (Reason.REJECTED, Reason.EXPIRED, Reason.EVICTED, Reason.EXHAUSTED)
"""Reasons for which a message becomes a dead letter, if its queue has an exchange for those."""


# What becomes of a message that leaves, besides; they may be added. Plain numbers: this is the hot path.
GONE: Final = 0
"""Nothing: it is off its holder's account."""
DYING: Final = 1
"""It stays as a dying one until its letter is sent."""
OWED: Final = 2
"""Its holder does not know yet: it counts for the holder until that settles it."""
IN_FLIGHT: Final = 4
"""Its holder acknowledges nothing: it counts until the holder's broker says that it was sent."""


class HolderKind(IntEnum):
    """Who holds messages."""

    CONSUMER = 0
    GETTER = 1
    """Somebody with basic.get."""
    LEASE = 2


class Count(IntEnum):
    """What a queue counts; the numbers only grow. The names are those of `coterie.broker.counters`."""

    ENQUEUED = 0
    DELIVERED = 1
    DELIVERED_NO_ACK = 2
    GOT = 3
    GOT_NO_ACK = 4
    REDELIVERED = 5
    ACCEPTED = 6
    RELEASED = 7
    REJECTED = 8
    EXPIRED = 9
    EVICTED = 10
    REPLACED = 11
    PURGED = 12
    MOVED = 13
    EXHAUSTED = 14
    LOST = 15
    REFUSED = 16
    DUPLICATES = 17
    DEAD_LETTERED = 18
    UNWRITABLE = 19


COUNTED: Final = tuple([None if reason is Reason.GOT else Count[reason.name] for reason in Reason])
"""By reason: where it is counted. GOT is counted by who got it."""
