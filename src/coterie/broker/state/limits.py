"""What limits a queue now, as far as it decides what becomes of messages; not the routes of dead letters.

In an encoding each number is one more than it is, and 0 stands for none.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from coterie.broker import limits as effective
from coterie.broker.arguments import DROP_HEAD, REJECT, REJECT_DEAD, RING
from coterie.broker.state.vocabulary import Overflow

NUMBER_MAX: Final = 2**63 - 2
_OVERFLOWS: Final = {
    DROP_HEAD: Overflow.DROP_HEAD, RING: Overflow.RING, REJECT: Overflow.REJECT, REJECT_DEAD: Overflow.REJECT_DEAD,
}  # fmt: skip
DEDUP_LENGTH: Final = 1_000_000
"""Ids that a queue remembers which says for how long, but not how many."""


class QueueLimits(NamedTuple):
    """None: there is no such limit."""

    ttl: int | None = None
    """Milliseconds that a message may stay."""
    max_length: int | None = None
    max_bytes: int | None = None
    delivery_limit: int | None = None
    """How often a message may be given back before it is dead."""
    dedup_length: int | None = None
    dedup_ttl: int | None = None
    overflow: Overflow = Overflow.DROP_HEAD
    dead: bool = False
    """There is an exchange for dead letters."""

    @property
    def bounded(self) -> bool:
        return self.max_length is not None or self.max_bytes is not None

    @property
    def refuses(self) -> bool:
        """A full queue takes nothing more, instead of letting its oldest go."""
        return self.overflow >= 2 and self.bounded  # REJECT, REJECT_DEAD

    @property
    def deduplicates(self) -> bool:
        return self.dedup_length is not None or self.dedup_ttl is not None

    @staticmethod
    def of(limits: effective.Limits) -> QueueLimits:
        """What the arguments and policies of a queue come to."""
        return QueueLimits(
            limits.ttl, limits.max_length, limits.max_bytes, limits.delivery_limit, limits.deduplicate_length,
            limits.deduplicate_ttl, _OVERFLOWS[limits.overflow], limits.dead_exchange is not None,
        )  # fmt: skip
