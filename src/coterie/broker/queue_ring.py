"""A ring: it holds the newest messages, as many as its size allows, and the oldest makes room for the next.

Whoever holds it: unlike `drop-head`, which counts what is ready, a ring counts everything that is in the queue, and an
acquired message may be evicted. Its holder may go on with it; what he accepts or gives back later is gone already. Only
what is leased is left alone: it does not count, and stays until its lease gives it back.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from coterie.broker.observer import Arrived, Reason
from coterie.broker.queue import Queue
from coterie.broker.state.queue_state import QueueConfig
from coterie.broker.state.vocabulary import Kind

if TYPE_CHECKING:
    from coterie.broker.limits import Limits
    from coterie.broker.specs import QueueSpec


class RingQueue(Queue):
    kind = "ring"

    @staticmethod
    def _config(spec: QueueSpec) -> QueueConfig:
        return QueueConfig(Kind.RING)

    def _fit(self, arrived: Arrived | None, now: float | None) -> None:
        if self.limits.refuses or not self._too_many(self.limits):
            return
        if arrived is not None and self.rotation.hungry:
            self.dispatch(now)
        count = self._too_many(self.limits)
        if not count:
            return
        table = self.table
        oldest = table.state.loose.first_ranges(count)
        self.dequeue_all(table.shares(oldest), oldest, Reason.EVICTED)
        ready = table.ready_of(oldest)
        if ready:
            self.leave(ready, Reason.EVICTED)

    def _too_many(self, limits: Limits) -> int:
        """How many of the oldest must go: of what is not leased, and not dying."""
        state = self.table.state
        loose = state.loose
        count = 0
        if limits.max_length is not None:
            count = max(loose.count - limits.max_length, 0)
        if limits.max_bytes is not None:
            excess = self.bytes - self.leases.bytes - self.pager.dying_bytes - limits.max_bytes
            if excess > 0:
                count = max(count, state.lengths.fitting(loose.ranges(), excess - 1) + 1)
        return min(count, loose.count)
