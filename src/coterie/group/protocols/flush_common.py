"""What FLUSH and FLUSH2 share: SUSPEND and RESUME, several leaders, kinds and conflicts, suspects, views, the gate.

The leader's side is in flush_lead.py, the member's in flush_hold.py, the gate in flush_gate.py, messages and settings
in flush_messages.py. What is left to each protocol is what a member does when its gate is shut (`ready`), when a flush
is stopped, and what becomes of one whose leader is gone.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, ClassVar

from coterie.errors import UserError
from coterie.group.events import Event, StreamEnded, Suspect, Unsuspect, ViewChange
from coterie.group.members import Address, View
from coterie.group.packet import APP, MCAST, UCAST, Packet
from coterie.group.protocols.flush_base import Done, FlushProtocol, Kind, Lost
from coterie.group.protocols.flush_gate import Gate
from coterie.group.protocols.flush_hold import Hold, Holding
from coterie.group.protocols.flush_lead import Leading
from coterie.group.protocols.flush_messages import (
    AbortFlush,
    Cut,
    Digest,
    FlushSettings,
    LeftFlush,
    Reconciled,
    StartFlush,
    StartFlushFail,
    StopFlush,
    Units,
)
from coterie.group.protocols.nakack import Nakack
from coterie.group.protocols.unicast3 import Unicast3

if TYPE_CHECKING:
    from coterie.group.stack import Stack


class Flushing(FlushProtocol):
    """Base of FLUSH and FLUSH2."""

    Settings = FlushSettings
    delivers_ahead: ClassVar[bool] = False
    """A member may deliver more after its answer: who is gone without one leaves a doubt behind."""
    starts_over: ClassVar[bool] = False
    """Members wait for each other: who is gone has to be named to all of them."""

    successor_flushes: ClassVar[bool] = False
    """Whoever comes next in the view flushes from scratch when a leader is gone, whatever it had flushed for."""

    settings: FlushSettings

    def attach(self, stack: Stack) -> None:
        super().attach(stack)
        settings = self.settings
        if not settings.block_timeout < settings.timeout < settings.hold_max:
            raise UserError(f"{self.name}: block_timeout must be shorter than timeout, and that shorter than hold_max")
        self.nakack, self.unicast3 = stack.find(Nakack), stack.find(Unicast3)
        self.shut, self.closing = True, False
        self.suspects: dict[Address, bool] = {}
        """With proof of their death, or without."""
        self.members: tuple[Address, ...] = ()
        """Of the view that we were told of last; none before the first."""
        self._early: list[Packet | StreamEnded] = []
        """What came before the first view, and the ends of its streams. Its senders' credit bounds it."""
        self._rules = {rule.partition(".")[2]: rule for rule in self.rules}
        self.gate, self.holding, self.leading = Gate(self), Holding(self), Leading(self)

    def stop(self) -> None:
        self.gate.stop()
        self.holding.stop()
        self.leading.stop()

    # What GMS, state transfer and the channel call.

    def suspend(self, kind: Kind, targets: tuple[Address, ...], done: Done, lost: Lost | None = None) -> int:
        return self.leading.suspend(kind, targets, done, lost)

    def resume(self, number: int, made: View | None = None) -> None:
        self.leading.resume(number, made)

    def holders(self) -> dict[Address, int]:
        return self.holding.leaders()

    def inherit(self, holders: Mapping[Address, int]) -> None:
        self.holding.inherit({m: kind for m, kind in holders.items() if m != self.stack.local})

    # Packets.

    def holds_back(self) -> bool:
        if self.shut:
            self.note("gate")
        return self.shut

    def down(self, packet: Packet) -> None:
        if packet.proto != APP or (packet.carrier != MCAST and self.members):
            self.pass_down(packet)
        elif self.shut and self.holds_back():
            self.gate.wait(packet)
        else:
            self.pass_down(packet)
            if self.closing:
                self.block_runs()

    def up(self, batch: list[Packet]) -> None:
        if not self.members:  # unicasts of those who know already that we are in their view
            self._early += [packet for packet in batch if packet.proto == APP]
            batch = [packet for packet in batch if packet.proto != APP]
        for packet in self.pass_up_others(batch):
            self.handle(packet.sender, self.decode(packet))

    def handle(self, peer: Address, message: object) -> None:
        match message:
            case StartFlush():
                self.holding.start(peer, message)
            case StartFlushFail(number, round):
                self.leading.refused(peer, number, round)
            case Cut():
                self.holding.cut(peer, message)
            case Reconciled(number, round, digest):
                self.leading.reconciled(peer, number, round, digest)
            case StopFlush(number, view):
                hold = self.holding.find(peer, number, view)
                if hold is not None and hold.kind is Kind.VIEW and view > self.stack.view.id:
                    self.note("stop_before_view")
                    hold.stopped = True
                else:
                    self.holding.no_view_came(peer, number)
                    self.stopped(peer, number, hold)
            case LeftFlush(number, round, why):
                self.leading.left(peer, number, round, why)
            case AbortFlush(number, view):
                self.holding.no_view_came(peer, number)
                hold = self.holding.find(peer, number, view)
                if hold is not None:
                    self.note("aborted")
                    self.holding.end(hold, "abort")

    def tell(self, peer: Address, message: object) -> None:
        if peer == self.stack.local:
            self.handle(peer, message)
        else:
            self.send(message, peer, UCAST)

    def tell_all(self, peers: Iterable[Address], message: object) -> None:
        """A multicast is one unicast to each: the streams of multicasts hold nothing that comes after the gate."""
        body = self.codec.encode(message)
        for peer in peers:
            self.pass_down(Packet(body, peer, self.id, UCAST))

    def delivered(self) -> Digest:
        delivered = self.nakack.delivered()
        return tuple(delivered.get(member, 0) for member in self.stack.view.members)

    def by_member(self, digest: Digest) -> dict[Address, int]:
        return dict(zip(self.stack.view.members, digest, strict=True))

    def fits(self, digest: Digest, *units: Units) -> bool:
        """Digests are in the order of the view, and as long as it is."""
        size = len(self.stack.view.members)
        fits = len(digest) == size and all(len(each) in (0, size) for each in units)
        if not fits:
            self.count("malformed")
        return fits

    # Where the two protocols differ.

    @abstractmethod
    def ready(self, hold: Hold) -> None:
        """The gate is shut, and the leader of this flush does not know it yet."""

    def block_runs(self) -> None:
        """The gate waits for the application, which may have sent something more."""

    def stopped(self, leader: Address, number: int, hold: Hold | None) -> None:
        """STOP-FLUSH."""
        if hold is not None:
            self.holding.over(hold)

    def left(self, hold: Hold) -> None:
        """A flush is over here, for whatever reason."""

    def longest(self, kind: Kind) -> float:
        """How long a flush of that kind may last."""
        settings = self.settings
        return min(settings.exclusive_max, settings.hold_max) if kind is Kind.EXCLUSIVE else settings.hold_max

    def late(self, number: int, round: int, expected: tuple[Address, ...]) -> tuple[Address, ...]:
        """Who of these is to blame that no answer has come."""
        return expected

    # The gate.

    def gate_shut(self) -> None:
        self.holding.gate_shut()

    def held_too_long(self) -> None:
        self.count("held_too_long")
        self.leading.gate_opens()
        self.holding.end_all()

    # Events.

    def up_event(self, event: Event) -> None:
        match event:
            case Suspect(members, proof):
                members = tuple(m for m in members if m in self.stack.view and m != self.stack.local)
                self.suspects |= dict.fromkeys(members, proof)
                if members:
                    self.suspected(members)
            case Unsuspect(members):
                for member in members:
                    self.suspects.pop(member, None)
                self.holding.trusted(members)
            case ViewChange():
                self._view_changed(event)
                return
            case StreamEnded() if self._early and self._ends_early(event):
                self._early.append(event)
                return
        super().up_event(event)

    def suspected(self, members: tuple[Address, ...]) -> None:
        self.leading.suspected(members)
        self.holding.suspected(members)

    def _view_changed(self, event: ViewChange) -> None:
        view, before, self.members = event.view, self.members, event.view.members
        returned = [m for m in self.suspects if m in view and m not in before]
        gone = [] if self.leading.leads else [m for m in self.suspects if m not in view]
        for member in (*returned, *gone):
            del self.suspects[member]
        self.leading.members_come(event, before)
        self.joins(event, before)
        super().up_event(event)
        self.gate.tell_blocked()
        if not before:
            self.stack.only_own_from_now(self)
            self.gate.first_view()
            early, self._early = self._early, []
            self._pass_up_early(early)
        self.changed(view, before)

    def _pass_up_early(self, early: list[Packet | StreamEnded]) -> None:
        batch: list[Packet] = []
        for each in early:
            if isinstance(each, Packet):
                batch.append(each)
                continue
            if batch:
                self.pass_up(batch)
                batch = []
            super().up_event(each)
        if batch:
            self.pass_up(batch)

    def _ends_early(self, ended: StreamEnded) -> bool:
        """Whether units of that stream wait here: its end comes after them."""
        stream = (ended.sender, ended.carrier, ended.conn)
        waiting = (each for each in self._early if isinstance(each, Packet))
        return any((packet.sender, packet.carrier, packet.conn) == stream for packet in waiting)

    def changed(self, view: View, before: tuple[Address, ...]) -> None:
        """The application knows the view."""
        self.leading.view_changed(view, before)
        self.holding.view_changed(view)

    def joins(self, event: ViewChange, before: tuple[Address, ...]) -> None:
        """What holds in the view that we come to holds for us, before the application knows the view."""
        self.inherit({m: kind for m, kind in event.holders.items() if m not in before})

    def note(self, name: str) -> None:
        """A rule that may be in both documents, or in one."""
        rule = self._rules.get(name)
        if rule is not None:
            self.rule(rule)

    def held(self) -> dict[str, int]:
        return {**self.holding.held(), **self.leading.held(), "multicasts": self.gate.held()}
