"""Stacks for the tests of the lower layers: a real transport, simulated or real sockets, and a recorder on top."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from coterie.group.events import Event, PeerClosed, PeerConnected, PeerFound, Suspect, Unsuspect
from coterie.group.members import Address, View, ViewId
from coterie.group.packet import APP, RAW, Packet
from coterie.group.protocol import Protocol
from coterie.group.protocols.transport import Transport
from coterie.group.stack import Stack
from coterie.runtime.aio import AioRuntime
from coterie.runtime.base import Runtime
from coterie.sim.clock import World
from coterie.sim.link import Conditions
from coterie.sim.network import Fabric
from coterie.sim.node import Node
from coterie.trace import Event as TraceEvent

GROUP = "friends"


class Recorder(Protocol):
    """Stands on top and keeps what comes up."""

    name = "RECORDER"
    id = 254

    def __init__(self) -> None:
        super().__init__()
        self.events: list[Event] = []
        self.batches: list[list[Packet]] = []
        self.on_change: Callable[[], object] = lambda: None

    def up(self, batch: list[Packet]) -> None:
        self.batches.append(batch)
        self.on_change()

    def up_event(self, event: Event) -> None:
        self.events.append(event)
        self.on_change()


@dataclass
class Member:
    """One process: its stack, and what a test asks about it."""

    runtime: Runtime
    stack: Stack
    transport: Any
    layers: Sequence[Protocol]
    top: Recorder
    node: Node | None = None
    traced: list[TraceEvent] = field(default_factory=list)

    @property
    def local(self) -> Address:
        return self.stack.local

    @property
    def peers(self) -> list[str]:
        return [str(peer) for peer in self.transport.peers()]

    @property
    def events(self) -> list[str]:
        """The events that came up, as short text: `+b#1` connected, `-b#1` closed, `!b#1` closed with proof, ..."""
        return [text for text in map(_short, self.top.events) if text]

    @property
    def bodies(self) -> list[bytes]:
        return [bytes(packet.body) for batch in self.top.batches for packet in batch]

    def send(self, body: bytes, dest: Address | None = None, carrier: int = RAW, proto: int = APP) -> None:
        self.top.pass_down(Packet(body, dest, proto, carrier))

    def find(self, *others: Member) -> None:
        """Discovery told it where these are."""
        for other in others:
            self.transport.found(other.transport.endpoint)

    def see(self, *members: Member) -> None:
        """Membership installed this view."""
        view = View(ViewId(self.stack.view.id.counter + 1, self.local), tuple(sorted(m.local for m in members)))
        self.stack.view = view


def _short(event: Event) -> str:
    match event:
        case PeerConnected(peer):
            return f"+{peer}"
        case PeerClosed(peer, proof):
            return f"{'!' if proof else '-'}{peer}"
        case Suspect(members, proof):
            return f"suspect{'!' if proof else ''} {' '.join(map(str, members))}"
        case Unsuspect(members):
            return f"unsuspect {' '.join(map(str, members))}"
        case PeerFound(endpoint):
            return f"found {endpoint}"
    return ""


def make_stack(runtime: Runtime, local: Address, layers: Sequence[Protocol], group: str = GROUP) -> Member:
    top = Recorder()
    stack = Stack(runtime, group, local, layers, top)
    return Member(runtime, stack, stack.find(Transport), layers, top)  # type: ignore[type-abstract]


class SimGroup:
    """Members in a simulated world, each on a host of its own."""

    def __init__(self, seed: int = 1, base: Conditions | None = None) -> None:
        self.traced: list[TraceEvent] = []
        self.world = World(seed, "test", self.traced.append)
        self.fabric = Fabric(self.world, base)
        self.nodes: dict[str, Node] = {}

    def boot(self, name: str, *layers: Protocol, group: str = GROUP) -> Member:
        """Start (or start again) the process on host `name`."""
        return self.boot_as(name, None, *layers, group=group)

    def boot_as(self, host: str, local: Address | None, *layers: Protocol, group: str = GROUP) -> Member:
        """The same under an address that has nothing to do with the host's name, if one is given."""
        node = self.nodes.get(host)
        if node is None:
            node = self.nodes[host] = Node(self.world, self.fabric, host)
        runtime = node.boot()
        member = make_stack(runtime, local or Address(host, runtime.incarnation), layers, group)
        member.node = node
        member.stack.start()
        return member

    def run(self, seconds: float) -> None:
        self.world.run(self.world.time + seconds)

    def block(self, one: str, other: str) -> None:
        """Nothing gets from `one` to `other`."""
        self.fabric.link(one, other).block()

    def part(self, one: str, other: str) -> None:
        self.block(one, other)
        self.block(other, one)

    def heal(self, one: str, other: str) -> None:
        self.fabric.link(one, other).unblock()
        self.fabric.link(other, one).unblock()


async def until(condition: Callable[[], bool], *members: Member) -> None:
    """Wait until it holds, looking again whenever something comes up at one of the members."""
    changed = asyncio.Event()
    for member in members:
        member.top.on_change = changed.set
    async with asyncio.timeout(30):
        while not condition():
            changed.clear()
            await changed.wait()


@contextlib.asynccontextmanager
async def real(name: str, *layers: Protocol, incarnation: int = 1, group: str = GROUP) -> AsyncIterator[Member]:
    """A member with real sockets."""
    runtime = AioRuntime(name)
    try:
        member = make_stack(runtime, Address(name, incarnation), layers, group)
        member.stack.start()
        try:
            yield member
        finally:
            member.stack.stop()
    finally:
        await runtime.close()
