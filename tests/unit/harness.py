"""One protocol between a floor that records what it sends and a roof that records what it delivers, in virtual time.

script = Script(Unicast3(...))
script.up(packet)                 # comes from the network
script.run(0.5)                   # time passes
script.sent(Ack)                  # what it sent of its own messages since the last look

`Net` joins several scripts by a network that loses what a test tells it to lose.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from coterie.group import bundle
from coterie.group.events import Block, Event, ViewChange
from coterie.group.members import Address, View, ViewId
from coterie.group.packet import APP, FIRST, MCAST, NOBODY, UCAST, Packet
from coterie.group.protocol import Protocol
from coterie.group.stack import Stack
from coterie.sim.clock import World
from coterie.sim.network import Fabric
from coterie.sim.node import Node
from coterie.trace import Event as TraceEvent

A, B, C = Address("a", 1), Address("b", 1), Address("c", 1)


class Floor(Protocol):
    name, id, role = "FLOOR", 200, "transport"

    def __init__(self) -> None:
        super().__init__()
        self.out: list[Packet] = []

    def down(self, packet: Packet) -> None:
        self.out.append(packet)

    def down_event(self, event: Event) -> None:
        pass


class Roof(Protocol):
    name, id = "ROOF", 201

    def __init__(self) -> None:
        super().__init__()
        self.batches: list[list[Packet]] = []
        self.events: list[Event] = []
        self.log: list[Packet | Event] = []
        """Both, in the order in which they came."""
        self.blocks_at_once = True
        """The application has nothing to do in its block(); otherwise a test calls `done` of the event."""
        self.on_up: Callable[[], object] = lambda: None
        """Called with each batch, when it comes."""

    def up(self, batch: list[Packet]) -> None:
        self.on_up()
        self.batches.append(batch)
        self.log += batch

    def up_event(self, event: Event) -> None:
        self.events.append(event)
        self.log.append(event)
        if isinstance(event, Block) and self.blocks_at_once:
            event.done()


class Script:
    """A stack of a floor, the protocols under test, and a roof."""

    def __init__(self, *protocols: Protocol, local: Address = A, members: tuple[Address, ...] = (A, B, C)) -> None:
        self.traced: list[TraceEvent] = []
        self.world = World(1, "script", self.traced.append)
        self.runtime = Node(self.world, Fabric(self.world), local.name).boot()
        self.floor, self.roof = Floor(), Roof()
        self.stack = Stack(self.runtime, "test", local, [self.floor, *protocols], self.roof)
        self._codecs = {protocol.id: protocol.codec for protocol in protocols}
        self.stack.start()
        self.view(*members)
        self.floor.out.clear()
        self.roof.events.clear()

    def view(self, *members: Address) -> None:
        """Membership, wherever it stands, installs a view: layers below and above it are told."""
        self.stack.view = View(ViewId(self.stack.view.id.counter + 1, self.stack.local), members)
        self.stack.below(self.roof).down_event(ViewChange(self.stack.view))
        self.event(ViewChange(self.stack.view))

    def event(self, event: Event) -> None:
        """An event comes from below."""
        self.stack.above(self.floor).up_event(event)

    def up(self, *packets: Packet) -> None:
        """A batch comes from the network."""
        self.floor.pass_up(list(packets))
        self.run(0)

    def hear(self, sender: Address, protocol: type[Protocol], message: object) -> None:
        """One of a protocol's own messages comes from `sender`."""
        packet = Packet(protocol.codec.encode(message), None, protocol.id)
        packet.sender = sender
        self.up(packet)

    def send(self, text: str, dest: Address | None = None) -> Packet:
        """The layer above sends a bundle of one message."""
        packet = Packet(bundle.join([text.encode()]), dest, APP, MCAST if dest is None else UCAST)
        self.roof.pass_down(packet)
        return packet

    def run(self, seconds: float) -> None:
        self.world.run(self.world.time + seconds)

    # What happened since the last look.

    def packets(self) -> list[Packet]:
        """The numbered packets that went down."""
        out = [p for p in self.floor.out if p.carrier in (MCAST, UCAST)]
        self.floor.out = [p for p in self.floor.out if p.carrier not in (MCAST, UCAST)]
        return out

    def sent(self, kind: type) -> list[tuple[Address | None, Any]]:
        """The protocols' own messages of one kind, with whom they are for."""
        found, rest = [], []
        for packet in self.floor.out:
            codec = self._codecs.get(packet.proto) if packet.proto != APP else None
            message = None if codec is None else codec.decode(packet.body)
            if isinstance(message, kind):
                found.append((packet.dest, message))
            else:
                rest.append(packet)
        self.floor.out = rest
        return found

    def delivered(self) -> list[int]:
        """The numbers of what was delivered."""
        return [p.seqno for p in self.arrived()]

    def arrived(self) -> list[Packet]:
        """The packets that were delivered."""
        packets = [p for batch in self.roof.batches for p in batch]
        self.roof.batches.clear()
        return packets

    def events(self, kind: type[Event]) -> list[Event]:
        """The events of one kind that reached the top."""
        found = [event for event in self.roof.events if isinstance(event, kind)]
        self.roof.events = [event for event in self.roof.events if not isinstance(event, kind)]
        return found


Lose = Callable[[Address, Address, Packet], bool]
"""From whom, to whom, what: is it lost?"""


def nothing(source: Address, target: Address, packet: Packet) -> bool:
    return False


class Net:
    """Members joined by a network that does what it is told; multicasts go to the sender's view."""

    def __init__(self, *members: Script) -> None:
        self.members = {member.stack.local: member for member in members}

    def carry(self, lose: Lose = nothing) -> None:
        """Bring everything across until nothing moves."""
        moved = True
        while moved:
            moved = False
            for local, member in self.members.items():
                out, member.floor.out = member.floor.out, []
                for packet in out:
                    moved = True
                    if packet.sender == NOBODY:
                        packet.sender = local
                    everyone = [m for m in member.stack.view.members if m != local]
                    for target in everyone if packet.dest is None else [packet.dest]:
                        if target in self.members and not lose(local, target, packet):
                            self.members[target].up(packet.copy(packet.dest))

    def run(self, seconds: float, lose: Lose = nothing) -> None:
        """Time passes in small steps, and the network carries."""
        self.carry(lose)
        for _ in range(round(seconds / 0.01)):
            for member in self.members.values():
                member.run(0.01)
            self.carry(lose)


def unit(sender: Address, conn: int, seqno: int, *, first: bool = False, dest: Address = A) -> Packet:
    """A unicast bundle as it comes from the network."""
    packet = Packet(bundle.join([b"%d" % seqno]), dest, APP, UCAST, FIRST if first else 0)
    packet.sender, packet.conn, packet.seqno = sender, conn, seqno
    return packet


def units(sender: Address, conn: int, first: int, last: int) -> list[Packet]:
    return [unit(sender, conn, n, first=n == 1) for n in range(first, last + 1)]


def multicast(sender: Address, seqno: int, text: bytes = b"m") -> Packet:
    """A multicast bundle as it comes from the network."""
    packet = Packet(bundle.join([text]), None, APP, MCAST)
    packet.sender, packet.seqno = sender, seqno
    return packet
