"""Time limits of a queue: how long a message may stay, and how long the queue may be unused.

A message whose time is over is never given to anybody. It leaves (as a dead letter, if the queue has an exchange for
those) when it has come to the head of its queue, by one timer for the head; in the middle it waits, as in RabbitMQ. A
message with no time at all is given to a consumer that has room this very moment, or to nobody.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from coterie.broker.queue import Queue
    from coterie.runtime.base import Runtime, Timer

_INSTANT = 1e-6
"""Seconds that a message without time lives: until the dispatch that its arrival has caused, which goes by the time
of the arrival, but not until any later one."""
_AGAIN = 0.1
"""Seconds after which the cluster is asked again to let the head expire."""
_PAUSE_MIN, _PAUSE_MAX = 1.0, 60.0
"""Seconds after which a head that cannot expire is tried again: the first time, and at most."""
_DELAY_MIN = 0.0005
_DELAY_MAX = 3600.0
"""Seconds between two looks: timers are no good at very short and very long times."""


class Expiry:
    """The timers of one queue."""

    def __init__(self, queue: Queue, runtime: Runtime) -> None:
        self.mortal = False
        """Something in the queue may expire."""
        self._queue = queue
        self._runtime = runtime
        self._timer: Timer | None = None
        self._due = 0.0
        self._pause = self._paused_until = 0.0
        self._used = runtime.now()
        self._lease: Timer | None = None

    # Messages.

    def stamp(self, first: int, lives: Iterable[int | None], ttl: int | None, now: float) -> list[float | None]:
        """Note when each is over that came last: by its own time, or by the queue's if that is shorter."""
        self.mortal = True
        times = [_end(own, ttl, now) for own in lives]
        self._queue.table.stamp(first, times)
        return times

    def begin_anew(self, now: float) -> None:
        """What may expire has as much time, from `now` on, as it had when it came."""
        times = [*self._anew(now)]
        if times:
            self.mortal = True
            self._queue.table.stamp_anew(times)
            self.arm()

    def _anew(self, now: float) -> Iterator[tuple[int, float]]:
        table, ttl = self._queue.table, self._queue.limits.ttl
        for first, stop, before in table.expiries(table.state.live.ranges()):
            for position, message in enumerate(table.messages([(first, stop)]), first):
                if before is not None:
                    assert message is not None
                    time = _end(message.ttl, ttl, now)
                    yield position, before if time is None else time

    def restored(self) -> None:
        """What is in the queue comes from the store, which has kept when each expires."""
        self.mortal = self._queue.table.is_mortal
        if self._queue.limits.ttl is not None:
            self.shorten(self._queue.limits.ttl)

    def again(self, mortal: bool) -> None:
        """A step was taken back: it may have stopped timers, or let go of what they are for."""
        self.mortal = mortal
        if not self._queue.deleted:
            if mortal:
                self.arm(asked=True)
                self.mortal = True
            if self._lease is None and self._queue.limits.expires is not None and not self._queue.consumers:
                self._lease = self._runtime.call_later(_bounded(self._queue.limits.expires / 1000), self._look)

    def pause(self) -> None:
        """What is at the head cannot expire: it is tried again, but ever more seldom."""
        self._pause = min(max(2 * self._pause, _PAUSE_MIN), _PAUSE_MAX)
        self._paused_until = self._runtime.now() + self._pause

    def shorten(self, ttl: int) -> None:
        """From now on nothing in the queue has more time than this."""
        self._queue.table.cap(self._queue.cluster.now() + ttl / 1000)
        self.mortal = self.mortal or self._queue.count > 0
        self.arm()

    def arm(self, asked: bool = False) -> None:
        """There may be a new head. `asked`: the cluster knows already of those that have expired."""
        queue = self._queue
        if not queue.count:
            self.mortal = False
            return
        table = queue.table
        due = min((time for head in table.heads() if (time := table.expiry(head)) is not None), default=None)
        if due is not None and (self._timer is None or due < self._due):
            if self._timer is not None:
                self._timer.cancel()
            self._due = due
            delay = _bounded(due - self._queue.cluster.now())
            if asked and not delay:
                delay = max(_AGAIN, self._paused_until - self._runtime.now())
            self._timer = self._runtime.call_later(delay, self._fire)

    def _fire(self) -> None:
        self._timer = None
        self._queue.cluster.expire(self._queue)
        if not self._queue.deleted:
            self.arm(asked=True)

    # The queue.

    def used(self) -> None:
        """A client did something with the queue: its lease begins anew."""
        self._used = self._runtime.now()
        if self._lease is None and self._queue.limits.expires is not None and not self._queue.consumers:
            self._lease = self._runtime.call_later(_bounded(self._queue.limits.expires / 1000), self._look)

    def reset(self) -> None:
        """The queue's limit is another one now."""
        if self._lease is not None:
            self._lease.cancel()
            self._lease = None
        self.used()

    def _look(self) -> None:
        self._lease = None
        queue = self._queue
        if queue.limits.expires is None or queue.consumers or queue.leases:
            return
        left = self._used + queue.limits.expires / 1000 - self._runtime.now()
        if left <= 0:
            if queue.cluster.keeps_time():
                queue.vhost.expire_queue(queue)
            else:  # unless whoever keeps the time is gone by then
                self._lease = self._runtime.call_later(1.0, self._look)
        else:
            self._lease = self._runtime.call_later(_bounded(left), self._look)

    def stop(self) -> None:
        for timer in (self._timer, self._lease):
            if timer is not None:
                timer.cancel()
        self._timer = self._lease = None


def _end(own: int | None, ttl: int | None, now: float) -> float | None:
    """Of a message with this time of its own, in a queue with this one."""
    time = own if ttl is None or (own is not None and own < ttl) else ttl
    if time is None:
        return None
    return now + (time / 1000 if time else _INSTANT)


def _bounded(delay: float) -> float:
    return min(max(delay, _DELAY_MIN), _DELAY_MAX) if delay > 0 else 0.0
