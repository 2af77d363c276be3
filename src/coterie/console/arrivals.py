"""Readers that wait for messages: an answer is held back until queues have some that are ready, or for a time.

So nobody has to ask again and again. Those who wait are bounded (`console.stream_waiters_max`), and for how long
(`console.stream_wait_max`); whoever is one too many is answered at once.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from coterie.broker.observer import QueueObserver

if TYPE_CHECKING:
    from coterie.broker.observer import Arrived
    from coterie.broker.queue import Queue
    from coterie.broker.ranges import Range
    from coterie.console.settings import ConsoleSettings

_QUEUES_MAX: Final = 1000
"""Queues that one request waits for; with more it is answered at once."""


class Arrivals:
    """Of one console."""

    def __init__(self, settings: ConsoleSettings) -> None:
        self._settings = settings
        self._waiting = 0

    async def wait(self, queues: Sequence[Queue], ready: int, seconds: float) -> None:
        """Until these queues have so many ready messages together, or one of them is gone, or it has been so long."""
        if self._waiting >= self._settings.stream_waiters_max or len(queues) > _QUEUES_MAX:
            return
        self._waiting += 1
        waiter = _Waiter(queues, ready)
        for queue in queues:
            queue.observers.append(waiter)
        try:
            async with asyncio.timeout(min(seconds, self._settings.stream_wait_max)):
                await waiter.enough.wait()
        except TimeoutError:
            pass
        finally:
            self._waiting -= 1
            for queue in queues:
                if waiter in queue.observers:
                    queue.observers.remove(waiter)


class _Waiter(QueueObserver):
    """One who waits. It looks when something has happened that may be enough."""

    def __init__(self, queues: Sequence[Queue], ready: int) -> None:
        self._queues = queues
        self._ready = ready
        self.enough = asyncio.Event()
        self._look()

    def _look(self) -> None:
        if sum(queue.ready for queue in self._queues) >= self._ready:
            self.enough.set()

    def _more(self, queue: Queue) -> None:
        if queue.ready >= self._ready:
            self.enough.set()
        elif self._ready > 1 and not self.enough.is_set():
            self._look()

    def enqueued(self, queue: Queue, arrived: Arrived) -> None:
        self._more(queue)

    def released(self, queue: Queue, ranges: Sequence[Range]) -> None:
        self._more(queue)

    def deleted(self, queue: Queue) -> None:
        self.enough.set()
