"""What all queues of a broker share in the ordered state: the time of the log, limits of channels, who is ready."""

from __future__ import annotations

from typing import Final

from coterie.broker.state.holders import Pool, PoolKey
from coterie.broker.state.positions import LIST_MAX
from coterie.broker.state.queue_state import QueueState

SECOND: Final = 1_000_000
"""The log counts microseconds."""
BATCH: Final = 64
"""Messages that one consumer is given before it is another one's turn."""


class BrokerState:
    """Alike at every broker, at the same place of the log."""

    __slots__ = ("batch", "ownership", "pools", "queues", "time", "unready")

    def __init__(self, batch: int = BATCH, ownership: bool = False) -> None:
        self.batch = max(1, min(batch, LIST_MAX))
        self.ownership = ownership
        """Only the consumers of one broker are served at a time (`dispatch = "ownership"`)."""
        self.time = 0
        """Of the log, in microseconds. It never falls."""
        self.queues: dict[int, QueueState] = {}
        self.pools: dict[PoolKey, Pool] = {}
        self.unready: dict[int, set[int]] = {}
        """By broker, queues of which it has not got all messages yet: its consumers are given nothing of them. None is
        empty."""
