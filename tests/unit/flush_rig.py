"""Members of an agreed view with FLUSH or FLUSH2 over the real NAKACK and UNICAST3, for scripts of messages.

    group = Group(Flush2, A, B, C)        # a view of three, and a network that loses what it is told to lose
    flush = group.suspend(A, Kind.SHARED)
    group.carry()
    assert flush.ok

`lone(Flush2, A, ...)` is one member whose peers are played by the test: `hear` and `sent` of the harness.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from harness import A, B, C, Lose, Net, Script, multicast, nothing

from coterie.group.events import Block, Event, Suspect, Unblock, Unsuspect, ViewChange
from coterie.group.members import Address, View, ViewId
from coterie.group.packet import APP, MCAST, Packet
from coterie.group.protocol import Protocol
from coterie.group.protocols.flow import Flow, FlowSettings
from coterie.group.protocols.flush2 import Flush2
from coterie.group.protocols.flush_base import Kind, Outcome
from coterie.group.protocols.flush_common import Flushing
from coterie.group.protocols.flush_messages import StartFlush, StartFlushOk, StopFlush
from coterie.group.protocols.nakack import Nakack, NakackSettings
from coterie.group.protocols.unicast3 import Unicast3
from coterie.trace import Event as TraceEvent

D = Address("d", 1)
E = Address("e", 1)
TIMEOUT, BLOCK_TIMEOUT, HOLD_MAX, EXCLUSIVE_MAX = 1.0, 0.5, 5.0, 3.0

FIRST = ViewId(10, A)


class Sequencer(Protocol):
    """Stands where total order would, and records what a flush asks of it."""

    name, id, role = "SEQUENCER", 210, "total order"

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[str] = []
        self.promises = self.releases = 0

    def pause(self) -> None:
        self.calls.append("pause")

    def go_on(self) -> None:
        self.calls.append("go_on")

    def promise(self) -> None:
        self.promises += 1

    def release(self) -> None:
        self.releases += 1


class Below(Protocol):
    """Stands where membership would, and records what a flush tells it."""

    name, id = "BELOW", 211

    def __init__(self) -> None:
        super().__init__()
        self.told: list[Event] = []

    def down_event(self, event: Event) -> None:
        self.told.append(event)
        super().down_event(event)


class Member(Script):
    """One member of an agreed view."""

    def __init__(self, kind: type[Flushing], local: Address, window: int = 1 << 20, **settings: Any) -> None:
        times = {
            "timeout": TIMEOUT, "block_timeout": BLOCK_TIMEOUT, "hold_max": HOLD_MAX, "exclusive_max": EXCLUSIVE_MAX,
        }  # fmt: skip
        self.flush = kind(kind.Settings(**times | settings))
        self.below, self.sequencer = Below(), Sequencer()
        super().__init__(
            Nakack(NakackSettings(ask_delay=0.01)),
            Unicast3(),
            self.below,
            self.sequencer,
            self.flush,
            Flow(FlowSettings(window=window)),
            local=local,
            members=(local,),
        )
        self.nakack, self.unicast3, self.flow = (
            self.stack.find(Nakack), self.stack.find(Unicast3), self.stack.find(Flow),
        )  # fmt: skip
        self.nakack.synchronous = True
        self.outcomes: list[Outcome] = []
        self.losses: list[str] = []
        """Why flushes that held do not hold any more."""

    def forget_views(self) -> None:
        """It has never been in a view: whoever installs one now lets it join."""
        self.flush.members = ()
        self.stack.view = View(ViewId(0, self.stack.local), (self.stack.local,))

    def install(
        self,
        members: tuple[Address, ...],
        id: ViewId,
        holders: tuple[Address, ...] | Mapping[Address, int] = (),
    ) -> None:
        """What GMS does when a view comes. Holders are of shared flushes, unless it is said."""
        if not isinstance(holders, Mapping):
            holders = dict.fromkeys(holders, Kind.SHARED)
        view = View(id, members)
        delivered = self.nakack.delivered()
        self.nakack.install(view, {m: delivered.get(m, 0) + 1 for m in members})
        self.stack.view = view
        self.stack.below(self.roof).down_event(ViewChange(view))
        self.event(ViewChange(view, holders=holders))
        self.below.told.clear()

    def suspend(self, kind: Kind, *targets: Address) -> int:
        return self.flush.suspend(kind, targets or self.stack.view.members, self.outcomes.append, self.losses.append)

    @property
    def outcome(self) -> Outcome:
        """Of the only flush that was asked for."""
        (outcome,) = self.outcomes
        return outcome

    def start(self, leader: Address, kind: Kind = Kind.SHARED, number: int = 1, round: int = 1, **other: Any) -> None:
        """START-FLUSH comes from a leader."""
        targets = other.get("targets", self.stack.view.members)
        view = other.get("view", self.stack.view.id)
        self.hear(leader, type(self.flush), StartFlush(number, round, view, kind, targets))

    def answer(self, *peers: Address, number: int = 1, round: int = 1, **digest: int) -> None:
        """START-FLUSH-OK comes from members that have no unicasts under way."""
        delivered = tuple(digest.get(member.name, 0) for member in self.stack.view.members)
        for peer in peers:
            self.hear(peer, Flush2, StartFlushOk(number, round, delivered, (), ()))

    def stop(self, leader: Address, number: int = 1) -> None:
        """STOP-FLUSH comes from a leader."""
        self.hear(leader, type(self.flush), StopFlush(number, self.stack.view.id))

    def told(self, kind: type) -> list[Any]:
        """The messages of one kind, without whom they are for."""
        return [message for _, message in self.sent(kind)]

    def whom(self, kind: type) -> list[Address | None]:
        return [dest for dest, _ in self.sent(kind)]

    def cast(self, text: str = "m") -> Packet:
        """The application multicasts, if it may."""
        return self.send(text)

    def suspect(self, *members: Address, proof: bool = False) -> None:
        self.event(Suspect(members, proof))

    def unsuspect(self, *members: Address) -> None:
        self.event(Unsuspect(members))

    def rules(self, name: str) -> int:
        return self.stack.rules.get(f"{self.flush.name.lower()}.{name}", 0)

    # What the application saw.

    @property
    def blocks(self) -> int:
        return sum(isinstance(event, Block) for event in self.roof.log)

    @property
    def unblocks(self) -> int:
        return sum(isinstance(event, Unblock) for event in self.roof.log)

    def texts(self) -> list[bytes]:
        return [bytes(p.body)[8:] for p in self.roof.log if isinstance(p, Packet)]

    def block_done(self) -> None:
        """The application's block() returns."""
        last = [event for event in self.roof.log if isinstance(event, Block)][-1]
        last.done()

    def trace(self, *kinds: str) -> list[TraceEvent]:
        return [event for event in self.traced if event.kind in kinds]

    def story(self, *kinds: str) -> list[tuple[str, ...]]:
        """Trace events as short tuples: kind, then leader, number and reason where there are any."""
        keys = ("leader", "number", "mode", "reason")
        return [(e.kind, *(str(e.data[key]) for key in keys if key in e.data)) for e in self.trace(*kinds)]


class Group(Net):
    """A view of them all, joined by a network."""

    def __init__(self, kind: type[Flushing], *members: Address, **settings: Any) -> None:
        super().__init__(*(Member(kind, member, **settings) for member in members))
        self.install(*members, id=FIRST)
        self.carry()
        for member in self:
            member.roof.log.clear()
            member.roof.events.clear()

    def __iter__(self) -> Iterator[Member]:
        return (self[address] for address in list(self.members))

    def __getitem__(self, address: Address) -> Member:
        member = self.members[address]
        assert isinstance(member, Member)
        return member

    def install(
        self, *members: Address, id: ViewId | None = None, at: tuple[Address, ...] = (), merge: bool = False
    ) -> None:
        """A view is installed at all of its members, or only at some. The first one has made it, and names those whose
        flushes it takes part in, unless it is a merge."""
        newest = max(self[m].stack.view.id for m in members)
        id = ViewId(newest.counter + 1, members[0]) if id is None else id
        holders = {} if merge else self[members[0]].flush.holders()
        for member in at or members:
            self[member].install(members, id, holders)

    def suspend(self, leader: Address, kind: Kind, *targets: Address) -> Member:
        self[leader].suspend(kind, *targets)
        return self[leader]

    def flush(self, leader: Address, kind: Kind, *targets: Address) -> Outcome:
        """A flush that holds, or has failed."""
        self.suspend(leader, kind, *targets)
        self.run(0.05)
        return self[leader].outcomes[-1]

    def kill(self, member: Address) -> None:
        """It is gone, and everybody knows."""
        self.die(member)
        for other in self:
            other.suspect(member)

    def die(self, member: Address) -> None:
        """It is gone, and nobody knows."""
        del self.members[member]

    @property
    def shut(self) -> list[str]:
        return [member.stack.local.name for member in self if member.flush.shut]

    def delivered(self) -> list[dict[Address, int]]:
        return [member.nakack.delivered() for member in self]


def lone(kind: type[Flushing], local: Address = A, *others: Address, **settings: Any) -> Member:
    """One member of a view of three whose peers are played by the test."""
    member = Member(kind, local, **settings)
    member.install((A, B, C) if not others else (local, *others), FIRST)
    member.floor.out.clear()
    member.roof.log.clear()
    member.roof.events.clear()
    return member


def of_view(packet: Packet, view: ViewId = FIRST) -> Packet:
    packet.view = view.tag
    return packet


def from_peer(sender: Address, seqno: int, text: bytes = b"m") -> Packet:
    """A multicast of the first view as it comes from the network."""
    return of_view(multicast(sender, seqno, text))


def between(*lost: tuple[Address, Address], of: type | None = None, kind: type[Flushing] = Flushing) -> Lose:
    """Loses everything, or one kind of a flush's messages, on the way from some to others."""

    def test(source: Address, target: Address, packet: Packet) -> bool:
        if (source, target) not in lost:
            return False
        return of is None or (packet.proto == kind.id and isinstance(kind.codec.decode(packet.body), of))

    return test


def multicasts_to(target: Address) -> Lose:
    """Loses what is multicast to one member by the application."""
    return lambda source, dest, packet: dest == target and packet.carrier == MCAST and packet.proto == APP


__all__ = ["BLOCK_TIMEOUT", "EXCLUSIVE_MAX", "FIRST", "HOLD_MAX", "TIMEOUT", "A", "B", "C", "D", "E", "Group", "Lose"]
__all__ += ["Member", "between", "from_peer", "lone", "multicasts_to", "nothing", "of_view"]
