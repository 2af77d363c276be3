"""Members with hubs, channels and whole stacks, in one simulated world.

group = Group(3)
dicts = group.make(lambda hub: SharedDict(hub, "stock"))
group.connect()
group.ask(0, dicts[0].set("apples", b"3"))          # runs until it is done, and gives the result
group.split([0], [1, 2]); group.heal()
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Mapping
from typing import Any, TypeVar

from coterie.blocks.copies import Own
from coterie.blocks.hub import Hub
from coterie.blocks.replicated import Replicated
from coterie.group.members import Address
from coterie.group.presets import PRESETS, preset
from coterie.group.stack import Layer
from coterie.sim.clock import World
from coterie.sim.future import Task
from coterie.sim.link import Link
from coterie.sim.network import Fabric
from coterie.sim.node import Node
from coterie.sim.runtime import SimRuntime

T = TypeVar("T")
PORT = 7800
Settings = Mapping[str, Mapping[str, object]]
QUICK: Settings = {
    "FAILURE": {"heartbeat_interval": 0.1, "heartbeat_timeout": 0.5, "verify_timeout": 0.15},
    "MERGE": {"interval": 0.2},
    "GMS": {"alone_after": 0.1, "join_retry": 0.1, "resend_interval": 0.05, "ack_timeout": 0.6, "merge_timeout": 0.4,
            "behind_after": 0.3, "resumer_timeout": 3.0},
    "FLUSH2": {"timeout": 0.5, "block_timeout": 0.2, "hold_max": 5.0},
}  # fmt: skip
"""Settings under which what takes seconds by default takes tenths of them."""


class Group:
    """Nodes by number; on each a hub, once it is made."""

    def __init__(
        self,
        size: int,
        stack: str = "total-order",
        settings: Settings | None = None,
        majority_of: int = 0,
        seed: int = 1,
    ) -> None:
        self.world = World(seed, "blocks")
        self.fabric = Fabric(self.world)
        self.nodes = [Node(self.world, self.fabric, "abcdefgh"[n]) for n in range(size)]
        self._stack = stack
        self._settings: Settings = {**QUICK, **(settings or {})}
        if majority_of:
            self._settings = {"TOTAL": {"held": "all"}, **self._settings}
        self._majority_of = majority_of
        self.hubs: dict[int, Hub] = {}
        self._blocked: list[Link] = []

    def layers(self, node: Node) -> list[Layer]:
        own: Settings = {
            "TCP": {"bind_host": node.ports.ip, "bind_port": PORT},
            "STATIC": {"peers": [f"{other.ports.ip}:{PORT}" for other in self.nodes], "interval": 0.1},
        }
        there = PRESETS[self._stack]
        return preset(
            self._stack, **{name: values for name, values in {**self._settings, **own}.items() if name in there}
        )

    def hub(self, number: int) -> Hub:
        """Boot the node, with a hub on it that is not connected yet."""
        node = self.nodes[number]
        runtime = node.boot()
        self.hubs[number] = hub = Hub(
            runtime, self.layers(node), group="test", name=node.name, incarnation=node.incarnation,
            majority_of=self._majority_of,
        )  # fmt: skip
        return hub

    def make(self, block: Callable[[Hub], T], *numbers: int) -> list[T]:
        """The same block at each of these nodes, or at all of them; on a new hub if the node has none."""
        chosen = numbers or range(len(self.nodes))
        return [block(self.hubs[n] if n in self.hubs else self.hub(n)) for n in chosen]

    def connect(self, *numbers: int) -> None:
        """Connect them, one after the other, and wait until all that have a hub are in one view."""
        for number in numbers or tuple(self.hubs):
            self.ask(number, self.hubs[number].connect())
        self.until(lambda: self.together(*self.hubs))

    def together(self, *numbers: int) -> bool:
        """These, and nobody else, are in one view, and have the same copy of what they share."""
        views = [self.hubs[n].view for n in numbers]
        members = {self.address(n) for n in numbers}
        agreed = "GMS" not in PRESETS[self._stack] or all(view == views[0] for view in views)
        return (
            agreed
            and all(view is not None and set(view.members) == members for view in views)
            and all(
                replicated is None or replicated.copies.own is Own.REFERENCE
                for replicated in (self.replicated(n) for n in numbers)
            )
        )

    def replicated(self, number: int) -> Replicated | None:
        port = self.hubs[number].find("replicated")
        if port is None:
            return None
        assert isinstance(port.receiver, Replicated)
        return port.receiver

    def address(self, number: int) -> Address:
        return self.hubs[number].local

    def runtime(self, number: int) -> SimRuntime:
        runtime = self.nodes[number].process
        assert runtime is not None
        return runtime

    def start(self, number: int, coroutine: Coroutine[Any, Any, T]) -> Task[T]:
        """Begin it on that node."""
        return self.runtime(number).spawn(coroutine)

    def ask(self, number: int, coroutine: Coroutine[Any, Any, T]) -> T:
        """Run it on that node until it is done."""
        task = self.runtime(number).spawn(coroutine)
        self.until(task.done)
        return task.result()

    def run(self, seconds: float) -> None:
        self.world.run(self.world.time + seconds)
        assert not self.world.unhandled

    def until(self, condition: Callable[[], bool], seconds: float = 60) -> None:
        end = self.world.time + seconds
        while not condition():
            assert self.world.time < end, "it never happened"
            self.world.run(self.world.time + 0.01)

    def split(self, *parts: list[int]) -> None:
        """Cut the network into these parts, and wait until each part has a view of its own."""
        self.cut(*parts)
        self.until(lambda: all(self.together(*part) for part in parts))

    def cut(self, *parts: list[int]) -> None:
        """Cut the network into these parts."""
        for part in parts:
            for other in parts:
                if other is not part:
                    self._blocked += [
                        self.fabric.link(self.nodes[m].name, self.nodes[n].name) for m in part for n in other
                    ]
        for link in self._blocked:
            link.block()

    def heal(self) -> None:
        """Join the parts again, and wait until all are in one view."""
        self.mend()
        self.until(lambda: self.together(*self.hubs))

    def mend(self) -> None:
        """The network is whole again."""
        for link in self._blocked:
            link.unblock()
        self._blocked.clear()

    def crash(self, number: int, silent: bool = False) -> None:
        self.nodes[number].crash(silent)
        del self.hubs[number]
