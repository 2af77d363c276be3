"""The simulated runtime: one incarnation of one node, in the world's virtual time.

It keeps the promises of `coterie.runtime.base.Runtime`. Its clock starts anywhere and may run too fast or too slow;
once the node has crashed nothing of it is called again, and nothing that it still does reaches the world.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any, TypeVar

from coterie.runtime.base import Disk, Network, Runtime
from coterie.sim.clock import DEAD, Call, Owner, World
from coterie.sim.future import SimFuture, Task
from coterie.trace import Event, Tracer

if TYPE_CHECKING:
    from coterie.sim.node import Node

T = TypeVar("T")

_EPOCH = 1_700_000_000.0
_EARLY = 1e-9
"""How much too early a timer may fire: less than any clock resolves."""


class SimTimer:
    """A call that has not happened yet."""

    __slots__ = ("_args", "_call", "_due", "_runtime")

    def __init__(self, runtime: SimRuntime, due: float, call: Call, args: tuple[Any, ...]) -> None:
        self._runtime = runtime
        self._due = due
        self._call: Call | None = call
        self._args = args

    def cancel(self) -> None:
        self._call = None
        self._args = ()

    def fire(self) -> None:
        call = self._call
        if call is None:
            return
        runtime = self._runtime
        if runtime.drifted:  # the clock changed its rate since: by it, the time may not have come
            missing = self._due - runtime.now()
            if missing > _EARLY:
                runtime.world.after(missing / runtime.rate, runtime.owner, self.fire)
                return
        self._call = None
        call(*self._args)


class SimRuntime(Runtime):
    """One incarnation of a node."""

    hash_cost = 1

    def __init__(self, world: World, node: Node, incarnation: int, net: Network, disk: Disk) -> None:
        self.world = world
        self.host = node
        self.node = node.name
        self.incarnation = incarnation
        self.owner = Owner(f"{node.name}#{incarnation}")
        self.net = net
        self.disk = disk
        self.rng = world.rng(f"{node.name}/{incarnation}")
        self.trace = Tracer(world.run_id, node.name, incarnation, self._record if world.sink else None, world.clock)
        self._chance = world.rng(f"{node.name}/{incarnation}/outside")
        self.rate = 1.0
        """Seconds that this node's clock counts in one second."""
        self.drifted = False
        self._base = self._chance.uniform(0.0, 1e6)
        self._since = world.time
        self._tasks: dict[int, Task[Any]] = {}
        self._spawned = 0

    @property
    def dead(self) -> bool:
        return self.owner.state == DEAD

    def now(self) -> float:
        return self._base + (self.world.time - self._since) * self.rate

    def wall(self) -> float:
        return _EPOCH + self.host.skew + self.world.time

    def set_rate(self, rate: float) -> None:
        """The clock runs at another rate from now on."""
        self._base, self._since = self.now(), self.world.time
        self.rate = rate
        self.drifted = True

    def call_soon(self, call: Callable[..., object], *args: object) -> None:
        self.world.ready.append((self.owner, call, args))

    def call_later(self, delay: float, call: Callable[..., object], *args: object) -> SimTimer:
        timer = SimTimer(self, self.now() + delay, call, args)
        self.world.after(delay / self.rate, self.owner, timer.fire)
        return timer

    def entropy(self, size: int) -> bytes:
        return self._chance.randbytes(size)

    def offload(self, work: Callable[[], T], done: Callable[[T | Exception], None]) -> None:
        def finish() -> None:
            try:
                result: T | Exception = work()
            except Exception as error:
                result = error
            done(result)

        self.world.after(self._chance.uniform(0.0005, 0.02), self.owner, finish)

    def future(self) -> SimFuture[Any]:
        return SimFuture(self.world, self.owner)

    def spawn(self, coroutine: Coroutine[Any, Any, T]) -> Task[T]:
        task = Task(self.world, self.owner, coroutine)
        self._spawned += 1
        number = self._spawned
        self._tasks[number] = task
        task.add_done_callback(lambda _: self._tasks.pop(number, None))
        return task

    def sleep(self, seconds: float) -> SimFuture[None]:
        """For workloads: a future that is done once the time has passed."""
        future: SimFuture[None] = SimFuture(self.world, self.owner)
        self.call_later(seconds, future.set_result, None)
        return future

    def _record(self, event: Event) -> None:
        if self.owner.state != DEAD and self.world.sink is not None:  # clean-up after death leaves no trace
            self.world.sink(event)

    def die(self, cut_off: Callable[[], None] = lambda: None) -> None:
        """The process is gone, and its tasks with it. `cut_off` is called before those end: what they do at their end,
        as in a `finally`, reaches nobody."""
        self.world.kill(self.owner)
        cut_off()
        for task in list(self._tasks.values()):
            task.close()
        self._tasks.clear()
