"""What both sides hold when a sender would send ten times as fast as its receiver takes."""

from __future__ import annotations

import time
from collections.abc import Callable

from coterie.bench.cases import MEMBER
from coterie.trace import Json
from coterie.workers import Message, Workers, free_ports

RATE = 20_000
"""Messages per second that the receiver takes: less than a tenth of what a sender can do."""
BOUND_MIB = 64.0
"""Flow-control windows, unstable bundles and socket buffers, with room for the allocator."""


def outrun(seconds: float, size: int, done: Callable[[int], None]) -> dict[str, Json]:
    """Run it and watch the memory. The bound is on growth over what an idle member has."""
    ports = free_ports(2)
    arguments: list[Message] = [
        {
            "name": name,
            "port": port,
            "peers": [other for other in ports if other != port],
            "role": "multicast",
            "rate": rate,
            "sends": rate == 0,
            "size": size,
            "bundle": 60_000,
            "stack": "reliable",
        }
        for name, port, rate in (("fast", ports[0], 0), ("slow", ports[1], RATE))
    ]
    with Workers(MEMBER, arguments) as workers:
        workers.connect()
        idle = [worker.memory() for worker in workers.each]
        for worker in workers.each:
            worker.tell({"warmup": 0.0, "seconds": seconds})
        most, end, ticks = list(idle), time.monotonic() + seconds, 0
        while time.monotonic() < end:
            time.sleep(0.05)
            ticks += 1
            done(ticks)
            most = [max(a, worker.memory()) for a, worker in zip(most, workers.each, strict=True)]
        answers = [worker.hear() for worker in workers.each]
    growth = [a - b for a, b in zip(most, idle, strict=True)]
    return {
        "seconds": seconds,
        "taken_per_second": round(answers[1]["per_second"]),
        "sender_growth_mib": round(growth[0], 1),
        "receiver_growth_mib": round(growth[1], 1),
        "bound_mib": BOUND_MIB,
        "bounded": max(growth) <= BOUND_MIB,
    }
