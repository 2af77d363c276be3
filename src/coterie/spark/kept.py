"""Connections that a Python worker keeps from one task to the next.

Spark runs many short tasks in one worker process, and a new connection costs more than a small part of a batch: TCP,
TLS, a login. What a task has used and left in good order is lent to the next one that wants the same; what fails is
closed, and so is what nobody has wanted for a while.
"""

from __future__ import annotations

import atexit
import time
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from typing import Final, Generic, Protocol, TypeVar

from pyspark import TaskContext

MOST: Final = 4
"""That nobody uses just now."""
IDLE_SECONDS: Final = 60.0
"""After which one is not used again: whoever is between may have forgotten it."""


class Closable(Protocol):
    def close(self) -> None: ...


T = TypeVar("T", bound=Closable)


class Kept(Generic[T]):
    """Of one process, which asks from one thread at a time."""

    def __init__(self, most: int = MOST, idle: float = IDLE_SECONDS) -> None:
        self._most = most
        self._idle = idle
        self._free: list[tuple[Hashable, T, float]] = []
        """With when each was left; the latest comes last."""
        atexit.register(self.close)

    @contextmanager
    def lent(self, key: Hashable, make: Callable[[], T]) -> Iterator[T]:
        """One with this key, or a new one. If the block raises, or is left before its end, it is closed."""
        found = self._take(key) or make()
        try:
            yield found
        except BaseException:
            found.close()
            raise
        self._free.append((key, found, time.monotonic()))
        while len(self._free) > self._most:
            self._free.pop(0)[1].close()

    def _take(self, key: Hashable) -> T | None:
        oldest = time.monotonic() - self._idle
        while self._free and self._free[0][2] < oldest:
            self._free.pop(0)[1].close()
        for at in range(len(self._free) - 1, -1, -1):
            if self._free[at][0] == key:
                return self._free.pop(at)[1]
        return None

    def close(self) -> None:
        while self._free:
            self._free.pop()[1].close()


@contextmanager
def lent(kept: Kept[T], key: Hashable, make: Callable[[], T]) -> Iterator[T]:
    """In a task one that is kept; elsewhere one for this block alone."""
    if TaskContext.get() is not None:
        with kept.lent(key, make) as found:
            yield found
        return
    found = make()
    try:
        yield found
    finally:
        found.close()
