"""A ring: it holds the newest messages, as many as its size allows, and the oldest makes room for the next.

Whoever holds it: unlike `drop-head`, which counts what is ready, a ring counts everything that is in the queue, and an
acquired message may be evicted. Its holder may go on with it; what he accepts or gives back later is gone already. Only
what is leased is left alone: it does not count, and stays until its lease gives it back.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from coterie.broker.entry import GONE, Entry
from coterie.broker.leases import Lease
from coterie.broker.limits import Limits
from coterie.broker.observer import Reason
from coterie.broker.queue import Queue

_SLACK = 64
"""Entries that are gone may stay in the order for a while: this many, and as many as there are live ones."""


class RingQueue(Queue):
    kind = "ring"

    def _prepare(self) -> None:
        self._order: deque[Entry] = deque()
        """Everything that is in the queue and not leased, the oldest first; and some that is no longer."""
        self._stale = False
        """What is leased has changed."""

    def _mark(self, entries: Sequence[Entry]) -> None:
        self._order.extend(entries)
        if self.leases:
            self._stale = True

    def _remake(self) -> None:
        self._sort_out()

    def leased(self) -> None:
        self._stale = True

    def _fit(self, arrived: Sequence[Entry], now: float | None) -> None:
        if self.limits.refuses or not self._too_much(self.limits):
            return
        if self._stale:
            self._sort_out()
        if arrived and self.rotation.hungry:
            self.dispatch(now)
        ready: list[Entry] = []
        held: list[Entry] = []
        count, size = self._living()
        while self._order and self._too_much(self.limits, count, size):
            entry = self._order.popleft()
            if entry.holder is not GONE:
                if entry.holder is self.pager:
                    continue  # it is dying already: it is brought from disk for that
                (ready if entry.holder is None else held).append(entry)
                count -= 1
                size -= entry.size
        if held:
            self.dequeue(held, Reason.EVICTED)
        if ready:
            taken = self.lanes.take(len(ready))
            assert taken == ready, "the oldest ones are at the head"
            self.leave(ready, Reason.EVICTED)

    def _too_much(self, limits: Limits, count: int = -1, size: int = -1) -> bool:
        if count < 0:
            count, size = self._living()
        too_many = limits.max_length is not None and count > limits.max_length
        return too_many or (limits.max_bytes is not None and size > limits.max_bytes)

    def _living(self) -> tuple[int, int]:
        """Messages and bytes, without what is dying or leased."""
        count, size = self.pager.dying + self.leases.count, self.pager.dying_bytes + self.leases.bytes
        return len(self.entries) - count, self.bytes - size

    def _forget(self, entries: list[Entry]) -> None:
        if len(self._order) > 2 * len(self.entries) + _SLACK:
            self._sort_out()

    def _sort_out(self) -> None:
        self._stale = False
        self._order = deque(entry for entry in self.entries.values() if not isinstance(entry.holder, Lease))
