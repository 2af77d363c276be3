"""A few threads that do blocking work: what ThreadPoolExecutor does, without a future for each piece of it.

A broker's disk is asked for something small hundreds of times a second, and each hand-over between threads costs more
than the work itself: so there is one queue, one wake-up, and nothing else.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from queue import SimpleQueue

_Job = tuple[Callable[..., object], tuple[object, ...]]


class Workers:
    """At most so many threads, started when they are needed. What they do must not raise."""

    def __init__(self, most: int, name: str) -> None:
        self._most = most
        self._name = name
        self._jobs: SimpleQueue[_Job | None] = SimpleQueue()
        self._lock = threading.Lock()
        self._idle = 0
        """Threads that wait and that nobody counts on."""
        self._threads = 0

    def submit(self, call: Callable[..., object], *args: object) -> None:
        self._jobs.put((call, args))
        with self._lock:
            if self._idle:
                self._idle -= 1
            elif self._threads < self._most:
                self._threads += 1
                threading.Thread(target=self._work, name=f"{self._name}_{self._threads}", daemon=True).start()

    def close(self) -> None:
        """The threads end when they have done what was submitted."""
        with self._lock:
            threads, self._threads, self._most = self._threads, 0, 0
        for _ in range(threads):
            self._jobs.put(None)

    def _work(self) -> None:
        while (job := self._jobs.get()) is not None:
            call, args = job
            call(*args)
            del job, call, args
            with self._lock:
                self._idle += 1
