"""How many functions written in Python a broker of a simulated cluster calls for one event: the same in every run."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable
from types import FrameType

from cluster_rig import Cluster, Host

EVENTS = 100
APART = 0.002
"""Seconds between two events, as at 500 a second."""
_OUTSIDE = ("/sim/", "/tests/", "<")
"""What a broker of a real node does not run."""


class Calls:
    """By the broker that has called, and the function: its file below the package, and its name."""

    def __init__(self, cluster: Cluster) -> None:
        self._world = cluster.world
        self._counts: Counter[tuple[str, object]] = Counter()

    def of(self, host: Host) -> dict[str, float]:
        """An event."""
        found: Counter[str] = Counter()
        for (owner, code), count in self._counts.items():
            file: str = code.co_filename  # type: ignore[attr-defined]
            if owner == host.runtime.owner.name and not any(part in file for part in _OUTSIDE) and "coterie/" in file:
                place = f"{file.rpartition('coterie/')[2]}:{code.co_qualname}"  # type: ignore[attr-defined]
                found[place] += count
        return {place: count / EVENTS for place, count in found.most_common()}

    def counted(self, run: Callable[[], None]) -> None:
        sys.setprofile(self._saw)
        try:
            run()
        finally:
            sys.setprofile(None)

    def _saw(self, frame: FrameType, what: str, _: object) -> None:
        if what == "call":
            self._counts[self._world.owner.name, frame.f_code] += 1


def calls_of_publishes(origin: int, consumer: int) -> tuple[list[Host], Calls]:
    """Brokers, the first of which is the sequencer, and what an event of one persistent message costs them: one that is
    published at this broker, and consumed and accepted at that one."""
    cluster = Cluster(3)
    cluster.world.sink = None  # as in production, unless somebody traces
    hosts = [cluster.start(0)]
    cluster.run(0.5)
    hosts += [cluster.start(1), cluster.start(2)]
    cluster.until(lambda: all(host.serves for host in hosts))
    hosts[0].declare("q")
    client = hosts[consumer].consume("q", prefetch=500)
    cluster.settle()

    at = hosts[origin]

    def many() -> None:
        for number in range(EVENTS):
            at.runtime.call_soon(at.publish, f"{number:04}" + "x" * 1020)
            cluster.run(APART)
            if number % 8 == 7:
                client.host.runtime.call_soon(client.accept)

    cluster.run(0.5)
    calls = Calls(cluster)
    calls.counted(many)
    cluster.settle()
    assert len(at.confirmed) == EVENTS
    assert len(client.seen) == EVENTS
    return hosts, calls
