"""Channels with agreed views, on simulated hosts: what tests of the whole stack share.

group = Group("virtual-synchrony", size=3)
a, b, c = group.connected()
group.run(1)
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterable, Mapping
from typing import Any

from coterie.group.channel import Channel, Delivery, Receiver, StateInterrupted
from coterie.group.members import Address, View
from coterie.group.presets import preset
from coterie.group.stack import Layer
from coterie.runtime.base import Buffer, Future
from coterie.sim.clock import World
from coterie.sim.network import Fabric
from coterie.sim.node import Node
from coterie.sim.runtime import SimRuntime
from coterie.trace import Event as TraceEvent

PORT = 7800
NAMES = "abcdefgh"
Settings = Mapping[str, Mapping[str, object]]
"""By layer; `channel` for the channel itself."""


class App(Receiver):
    """An application whose state is everything that was multicast, in the order in which it came."""

    def __init__(self) -> None:
        self.state: list[bytes] = []
        self.got: list[bytes] = []
        """Messages, unicasts too."""
        self.told: list[object] = []
        """Everything: messages, views, `block`, `unblock`, `get`, `set`."""
        self.views: list[View] = []
        self.ended: list[str] = []
        """Why the channel closed by itself."""
        self.interrupted = 0
        self.then: Callable[[], Awaitable[None] | None] = lambda: None
        self.blocks: Callable[[], Awaitable[None] | None] = lambda: None
        self.give: Callable[[], Iterable[Buffer]] | None = None
        self.take: Callable[[AsyncIterator[Buffer]], Awaitable[bytes]] = self.join

    def receive(self, batch: list[Delivery]) -> Awaitable[None] | None:
        for delivery in batch:
            for message in delivery.messages:
                self.got.append(bytes(message))
                self.told.append(bytes(message))
                if delivery.multicast:
                    self.state.append(bytes(message))
        return self.then()

    def view_accepted(self, view: View) -> None:
        self.views.append(view)
        self.told.append("".join(member.name for member in view.members))

    def block(self) -> Awaitable[None] | None:
        self.told.append("block")
        return self.blocks()

    def unblock(self) -> None:
        self.told.append("unblock")

    def closed(self, why: str) -> None:
        self.ended.append(why)

    def get_state(self) -> Iterable[Buffer]:
        self.told.append("get")
        return [b"".join(b"%d:" % len(entry) + entry for entry in self.state)] if self.give is None else self.give()

    async def set_state(self, chunks: AsyncIterator[Buffer]) -> None:
        self.told.append("set")
        try:
            data = await self.take(chunks)
        except StateInterrupted:
            self.interrupted += 1
            raise
        self.state = []
        while data:
            size, _, data = data.partition(b":")
            self.state.append(data[: int(size)])
            data = data[int(size) :]

    @staticmethod
    async def join(chunks: AsyncIterator[Buffer]) -> bytes:
        return b"".join([bytes(chunk) async for chunk in chunks])


class Member:
    """A channel, its application, and the node that it runs on."""

    def __init__(
        self, node: Node, layers: list[Layer], name: str = "", incarnation: int | None = None, **settings: object
    ) -> None:
        self.node = node
        self.app = App()
        self.runtime: SimRuntime = node.boot()
        self.channel = Channel(
            self.runtime, layers, group="test", name=name or node.name, receiver=self.app,
            incarnation=node.incarnation if incarnation is None else incarnation, **settings,
        )  # fmt: skip

    def do(self, coroutine: Coroutine[Any, Any, Any]) -> Any:
        return self.runtime.spawn(coroutine)

    @property
    def local(self) -> Address:
        return self.channel.local

    def view(self) -> str:
        return "".join(member.name for member in self.channel.view.members)

    def chatter(self, pause: float = 0.01, size: int = 20) -> Callable[[], None]:
        """Multicast from now on until the returned function is called."""
        going = True
        number = 0

        async def talk() -> None:
            nonlocal number
            while going and self.channel.stack.running:
                number += 1
                await self.channel.send(f"{self.node.name}{number}.".encode().ljust(size, b"x"))
                await self.runtime.sleep(pause)

        def stop() -> None:
            nonlocal going
            going = False

        self.do(talk())
        return stop


class Group:
    """Members in one simulated world."""

    def __init__(self, stack: str = "virtual-synchrony", size: int = 3, settings: Settings | None = None) -> None:
        self.traced: list[TraceEvent] = []
        self.world = World(1, "test", self.traced.append)
        self.fabric = Fabric(self.world)
        self.stack = stack
        self.settings = settings or {}
        self.nodes = [Node(self.world, self.fabric, NAMES[n]) for n in range(size)]
        self.members: list[Member] = []

    def layers(self, node: Node, settings: Settings) -> list[Layer]:
        peers = [f"{other.ports.ip}:{PORT}" for other in self.nodes]
        own: dict[str, Mapping[str, object]] = {
            "TCP": {"bind_host": node.ports.ip, "bind_port": PORT},
            "STATIC": {"peers": peers, "interval": 0.1},
        }
        return preset(self.stack, **{**own, **{name: s for name, s in settings.items() if name != "channel"}})

    def boot(
        self, number: int, settings: Settings | None = None, name: str = "", incarnation: int | None = None
    ) -> Member:
        """The next incarnation of a process, or one with the name of another; it has not connected yet."""
        settings = {**self.settings, **(settings or {})}
        node = self.nodes[number]
        member = Member(node, self.layers(node, settings), name, incarnation, **settings.get("channel", {}))
        self.members.append(member)
        return member

    def connect(self, number: int, settings: Settings | None = None, state: bool = False) -> Member:
        member = self.boot(number, settings)
        self.wait(member.do(member.channel.connect(state=state)))
        return member

    def connected(self, size: int | None = None) -> list[Member]:
        """The first members, all in one view, at rest."""
        members = [self.connect(number) for number in range(size or len(self.nodes))]
        self.until(lambda: all(len(m.channel.view.members) == len(members) for m in members))
        self.run(1)
        return members

    def run(self, seconds: float) -> None:
        self.world.run(self.world.time + seconds)
        assert not self.world.unhandled

    def until(self, condition: Callable[[], bool], seconds: float = 30) -> None:
        end = self.world.time + seconds
        while not condition():
            assert self.world.time < end, "it never happened"
            self.run(0.01)

    def wait(self, future: Any, seconds: float = 30) -> Any:
        """What a task ends with."""
        end = self.world.time + seconds
        while not future.done():
            assert self.world.time < end, "it never ended"
            self.world.run(self.world.time + 0.01)
        return future.result()

    def rest(self, seconds: float = 10) -> None:
        """Until nothing is kept back at anybody who lives."""
        self.until(lambda: not any(self.kept().values()), seconds)

    def kept(self) -> dict[str, int]:
        kept = {}
        for member in self.members:
            if not member.runtime.dead and member.channel.stack.running:
                for name, amount in member.channel.stack.held().items():
                    if amount:
                        kept[f"{member.local} {name}"] = amount
        return kept

    def rules(self) -> dict[str, int]:
        total: dict[str, int] = {}
        for member in self.members:
            for rule, count in member.channel.stack.rules.items():
                total[rule] = total.get(rule, 0) + count
        return total

    def events(self, kind: str, node: str | None = None) -> list[TraceEvent]:
        return [e for e in self.traced if e.kind == kind and node in (None, e.node)]


def hold(member: Member) -> Future[None]:
    """A future of that member, to wait for."""
    future: Future[None] = member.runtime.future()
    return future
