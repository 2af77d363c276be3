"""The world of one simulated run: virtual time and the order in which everything happens.

It promises that one seed gives one history. Calls happen by (time, order of scheduling), one at a time; nothing reads a
real clock, and every random number comes from a generator that is named and seeded with text, so that neither
PYTHONHASHSEED nor another part of the run's use of chance can change what a part draws.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable
from heapq import heappop, heappush
from typing import Any

from coterie.trace import Event, Json

RUNNING, PAUSED, DEAD = 0, 1, 2

Call = Callable[..., object]


class Owner:
    """Whose call it is. A paused owner's calls wait and then come in order; a dead one's never come."""

    __slots__ = ("held", "name", "state")

    def __init__(self, name: str) -> None:
        self.name = name
        self.state = RUNNING
        self.held: list[tuple[Call, tuple[Any, ...]]] = []


class StillBusy(Exception):
    """The run took more steps than any sane run: something keeps itself busy without time passing."""


class World:
    """One simulated universe."""

    def __init__(self, seed: int | str, run: str = "", sink: Callable[[Event], None] | None = None) -> None:
        self.seed = seed
        self.run_id = run
        self.sink = sink
        self.time = 0.0
        """Seconds since the run began: the only true clock."""
        self.steps = 0
        self.owner = self.nature = Owner("world")
        """`owner` is whose call runs just now; `nature` owns what belongs to no process: the network, the plan."""
        self.ready: deque[tuple[Owner, Call, tuple[Any, ...]]] = deque()
        self._heap: list[tuple[float, int, Owner, Call, tuple[Any, ...]]] = []
        self._scheduled = 0
        self.unhandled: dict[int, tuple[str, BaseException]] = {}
        """Failures of tasks that nobody has asked for, by the order in which they happened."""
        self._failures = 0
        self._emitted = 0

    def rng(self, name: str) -> random.Random:
        """A generator of its own for each purpose. Text seeds do not depend on hash()."""
        return random.Random(f"{self.seed}/{name}")

    def clock(self) -> float:
        return self.time

    def emit(self, kind: str, **data: Json) -> None:
        """Put what the simulator itself does into the trace."""
        if self.sink is not None:
            self.sink(Event(self.run_id, "world", 0, self._emitted, self.time, kind, data=data))
            self._emitted += 1

    def soon(self, owner: Owner, call: Call, *args: Any) -> None:
        """Call at this very time, after what is ready already."""
        self.ready.append((owner, call, args))

    def after(self, delay: float, owner: Owner, call: Call, *args: Any) -> None:
        """Call once `delay` seconds have passed."""
        self._scheduled += 1
        heappush(self._heap, (self.time + delay, self._scheduled, owner, call, args))

    def at(self, time: float, owner: Owner, call: Call, *args: Any) -> None:
        """Call at that time, or now if it is over."""
        self._scheduled += 1
        heappush(self._heap, (time if time > self.time else self.time, self._scheduled, owner, call, args))

    def run(self, until: float, max_steps: int = 5_000_000) -> None:
        """Let time pass up to `until`. An exception of what is called comes out; `owner` tells whose it was."""
        ready, heap = self.ready, self._heap
        popleft = ready.popleft
        steps = 0
        try:
            while True:
                while ready:
                    owner, call, args = popleft()
                    if owner.state == RUNNING:
                        self.owner = owner
                        call(*args)
                    elif owner.state == PAUSED:
                        owner.held.append((call, args))
                    steps += 1
                    if steps > max_steps:
                        raise StillBusy(f"{steps} steps, and it is only {self.time:g} s")
                if not heap or heap[0][0] > until:
                    break
                self.time, _, owner, call, args = heappop(heap)
                if owner.state == RUNNING:
                    self.owner = owner
                    call(*args)
                elif owner.state == PAUSED:
                    owner.held.append((call, args))
                steps += 1
                if steps > max_steps:
                    raise StillBusy(f"{steps} steps, and it is only {self.time:g} s")
            self.time = until
        finally:
            self.steps += steps

    def failed(self, who: str, error: BaseException) -> int:
        """Remember the failure of a task until somebody asks for it; gives the ticket to take it back with."""
        self._failures += 1
        self.unhandled[self._failures] = who, error
        return self._failures

    @property
    def idle(self) -> bool:
        """Nothing will ever happen again."""
        return not self.ready and not self._heap

    def pause(self, owner: Owner) -> None:
        """SIGSTOP: the owner's calls wait."""
        if owner.state == RUNNING:
            owner.state = PAUSED

    def resume(self, owner: Owner) -> None:
        """SIGCONT: what waited comes now, in its order, before anything newer."""
        if owner.state == PAUSED:
            owner.state = RUNNING
            self.ready.extend((owner, call, args) for call, args in owner.held)
            owner.held.clear()

    def kill(self, owner: Owner) -> None:
        """SIGKILL: nothing of the owner is ever called again."""
        owner.state = DEAD
        owner.held.clear()
