"""The part of a node's time that readers of streams get together, while it has other things to do.

One batch is made at a time. After it, the loop does what else there is; if that was something, readers wait for as long
as it takes until their part is what it shall be. On an idle node nobody waits.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Final, TypeVar

T = TypeVar("T")
IDLE: Final = 0.0002
"""Seconds: a turn of the loop that takes no longer had nothing to do."""
SENDING: Final = 1.5
"""Making a batch and sending it takes so many times what making it takes."""


class Pace:
    """Of one node."""

    def __init__(self, share: float, readers_max: int) -> None:
        self._share = share
        self._readers_max = readers_max
        self._turn = asyncio.Lock()
        self.readers = 0

    def enter(self) -> bool:
        """Whether one more may read."""
        if self.readers >= self._readers_max:
            return False
        self.readers += 1
        return True

    def leave(self) -> None:
        self.readers -= 1

    async def work(self, call: Callable[[], T]) -> T:
        """Do it when it is the caller's turn, and wait before the next may."""
        async with self._turn:
            began = time.perf_counter()
            result = call()
            done = time.perf_counter()
            await asyncio.sleep(0)
            if time.perf_counter() - done > IDLE and self._share < 1:
                await asyncio.sleep((done - began) * SENDING * (1 / self._share - 1))
            return result
