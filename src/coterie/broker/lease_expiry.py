"""Leases that nobody uses end after a time (`broker.lease_expires`), and what they held is ready again.

Every step of a lease is a use, `take` by the session that has it too. When a lease was used last, each broker knows for
itself, and forgets with its process: a restart is a use. The broker that keeps the time proposes the end as a step of
the session that it saw, so that a reader which takes the lease over at the same moment keeps it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from coterie.broker.leases import Lease
    from coterie.broker.queue import Queue
    from coterie.runtime.base import Runtime, Timer

_LOOK_MIN: Final = 0.01
_LOOK_MAX: Final = 3600.0
"""Seconds between two looks: timers are no good at very short and very long times."""
_AGAIN: Final = 1.0
"""Seconds after which a lease that should have ended is looked at again."""


class LeaseExpiry:
    """The timer of one queue's leases."""

    def __init__(self, queue: Queue, runtime: Runtime) -> None:
        self._queue = queue
        self._runtime = runtime
        self._timer: Timer | None = None

    @property
    def after(self) -> float:
        """Seconds; 0: never."""
        return self._queue.vhost.settings.lease_expires

    def used(self, lease: Lease) -> None:
        lease.used = self._runtime.now()
        self.arm()

    def idle(self, lease: Lease) -> float:
        """Seconds."""
        return self._runtime.now() - lease.used

    def arm(self) -> None:
        if self._timer is None and self.after and self._queue.leases and not self._queue.deleted:
            self._timer = self._runtime.call_later(self._next_look(), self._look)

    def _next_look(self) -> float:
        left = self.after - max(map(self.idle, self._queue.leases))
        return min(max(left, _LOOK_MIN), _LOOK_MAX)

    def _look(self) -> None:
        self._timer = None
        queue = self._queue
        if queue.deleted or not self.after:
            return
        over = [lease for lease in queue.leases if self.idle(lease) >= self.after]
        if over and queue.cluster.keeps_time():
            for lease in over:
                queue.cluster.lease(queue, lease.end_step(), lambda _: None)
        if over:  # it has more messages than one step gives back; or whoever keeps the time is gone by then
            self._timer = self._runtime.call_later(_AGAIN, self._look)
        else:
            self.arm()

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
