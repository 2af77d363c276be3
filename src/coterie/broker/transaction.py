"""A transaction: publishes and answers to deliveries that take effect together, or not at all."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from coterie.broker.delivery import HeldRanges
    from coterie.broker.publish import Routed


@dataclass(slots=True)
class Transaction:
    """What one commit does. Publishes are routed already."""

    routed: Routed = field(default_factory=dict)
    accepts: Sequence[HeldRanges] = ()
    rejects: Sequence[HeldRanges] = ()
    requeues: Sequence[HeldRanges] = ()
