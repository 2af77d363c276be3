"""The application of every throughput benchmark: sends all the time, touches each message that arrives once, counts."""

from __future__ import annotations

import asyncio
import resource
import time
from collections.abc import Callable, Iterable

from coterie.workers import Message


class Counter:
    """What arrived so far."""

    def __init__(self) -> None:
        self.messages = 0
        self._touched = 0

    def take(self, messages: Iterable[memoryview | bytes]) -> None:
        """The application's handler: looks at one byte of each message."""
        touched = count = 0
        for message in messages:
            touched += message[0]
            count += 1
        self._touched += touched
        self.messages += count


async def measure(counter: Counter, warmup: float, seconds: float, extra: Callable[[], Message] = dict) -> Message:
    """Let it run for a while, then count what arrives, and what it costs, for `seconds`."""
    await asyncio.sleep(warmup)
    began, cpu, before = time.perf_counter(), time.process_time(), counter.messages
    await asyncio.sleep(seconds)
    elapsed = time.perf_counter() - began
    delivered = counter.messages - before
    return {
        "delivered": delivered,
        "per_second": delivered / elapsed,
        "cpu_seconds": time.process_time() - cpu,
        "rss_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
        **extra(),
    }
