"""FAILURE: who does not answer any more.

It promises that a member whose death is proven is suspected at once; that any other is looked at a second time (VERIFY)
before it is suspected, whether its connection closed or it fell silent; that a member of the view which is dead or cut
off is suspected within `heartbeat_timeout` + 2 `heartbeat_interval` + 4/3 `verify_timeout`; and that a suspicion is
taken back when the member is heard or connected again. Time during which this process itself stood still is held
against nobody.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from coterie.errors import UserError
from coterie.group.events import Event, PeerClosed, PeerConnected, PeerHeard, Suspect, Unsuspect
from coterie.group.members import Address
from coterie.group.packet import AGAIN, Packet
from coterie.group.protocol import Protocol
from coterie.group.wire import Codec
from coterie.runtime.base import Timer
from coterie.settings import setting

FAILURE_ID = 8
LOOKS = 3
"""How often VERIFY is sent before a suspicion."""
_ROUNDING = 1e-6
"""Seconds by which a timer may be called early."""


@dataclass(frozen=True, slots=True)
class Heartbeat:
    """I am alive."""


@dataclass(frozen=True, slots=True)
class Verify:
    """Are you?"""


@dataclass(frozen=True, slots=True)
class Alive:
    """I am, since you ask."""


@dataclass(frozen=True, slots=True)
class FailureSettings:
    heartbeat_interval: float = setting(0.5, "time between heartbeats to each member", unit="s", minimum=0.001)
    heartbeat_timeout: float = setting(
        3.0, "silence after which a member is looked at; at least twice the interval", unit="s", minimum=0.002
    )
    verify_timeout: float = setting(
        1.0, "how long a member that is looked at has to give a sign of life", unit="s", minimum=0.001
    )
    suspects_max: int = setting(1024, "suspects outside the view that are kept in mind", minimum=1)


class Failure(Protocol):
    """Failure detection by closed connections and by heartbeats, with a second look before a suspicion."""

    name = "FAILURE"
    id = FAILURE_ID
    role = "failure detection"
    needs_below = ("transport",)
    Settings = FailureSettings
    codec = Codec({1: Heartbeat, 2: Verify, 3: Alive})
    rules = {
        "failure.proof": "A member whose death is proven is suspected at once.",
        "failure.closed": "A member whose connection closed without proof is looked at a second time.",
        "failure.silent": "A member that is silent for too long is looked at a second time.",
        "failure.verified_alive": "A member that was looked at gave a sign of life, and is not suspected.",
        "failure.suspected": "A member that was looked at gave no sign of life, and is suspected.",
        "failure.unsuspected": "A suspected member is heard or connected again, and is trusted.",
        "failure.own_pause": "This process stood still: everyone gets a new full period.",
        "failure.forgotten": "A suspect that is out of the view and cannot come back is forgotten.",
    }

    settings: FailureSettings

    def __init__(self, settings: Any = None) -> None:
        super().__init__(settings)
        if self.settings.heartbeat_timeout < 2 * self.settings.heartbeat_interval:
            raise UserError("FAILURE: heartbeat_timeout must be at least twice heartbeat_interval")
        self._noted: dict[Address, None] = {}  # heard since the last heartbeat: noted without asking for the time
        self._last: dict[Address, float] = {}  # last sign of life of each that is watched
        self._looking: dict[Address, float] = {}  # looked at a second time, until then
        self._suspects: dict[Address, bool] = {}  # with proof or without
        self._doubted: dict[Address, None] = {}  # the last two: whose sign of life matters at once
        self._connected: dict[Address, None] = {}
        self._beat_timer: Timer | None = None
        self._beat_due = 0.0
        self._look_timer: Timer | None = None
        self._look_due = 0.0

    def start(self) -> None:
        self._next_beat()

    def stop(self) -> None:
        for timer in (self._beat_timer, self._look_timer):
            if timer is not None:
                timer.cancel()
        self._beat_timer = self._look_timer = None

    def suspects(self) -> list[Address]:
        """Who is suspected now, sorted."""
        return sorted(self._suspects)

    # Signs of life.

    def up(self, batch: list[Packet]) -> None:
        noted, last, own = self._noted, None, False
        for packet in batch:
            sender = packet.sender
            if sender is not last and not packet.flags & AGAIN:  # what is sent again may come from somebody else
                last = sender
                noted[sender] = None
            if packet.proto == FAILURE_ID:
                own = True
        if self._doubted:
            self._signs_of_life(batch)
        if own:
            for packet in batch:
                if packet.proto == FAILURE_ID and isinstance(self.decode(packet), Verify):
                    self.send(Alive(), packet.sender)
            batch = [packet for packet in batch if packet.proto != FAILURE_ID]
        if batch:
            self.pass_up(batch)

    def _signs_of_life(self, batch: list[Packet]) -> None:
        heard = {packet.sender: None for packet in batch if not packet.flags & AGAIN}
        for member in heard:
            # Proof is stronger than a packet that may have been under way for long: only a connection refutes it.
            if member in self._looking or self._suspects.get(member) is False:
                self._trust(member)

    def _trust(self, member: Address) -> None:
        self._doubted.pop(member, None)
        self._last[member] = self.runtime.now()
        if self._looking.pop(member, None) is not None:
            self.rule("failure.verified_alive")
        if self._suspects.pop(member, None) is not None:
            self.rule("failure.unsuspected")
            self.count("unsuspected")
            if self.runtime.trace.on:
                self.runtime.trace.emit("unsuspect", members=[str(member)])
            self.stack.above(self).up_event(Unsuspect((member,)))

    # What the transport says.

    def up_event(self, event: Event) -> None:
        if isinstance(event, PeerHeard):  # a large packet on a slow link holds up the heartbeats behind it
            self._noted[event.peer] = None
            if event.peer in self._looking or self._suspects.get(event.peer) is False:
                self._trust(event.peer)
            return
        super().up_event(event)
        match event:
            case PeerConnected(peer):
                self._peer_connected(peer)
            case PeerClosed(peer, proof):
                self._peer_closed(peer, proof)

    def _peer_connected(self, peer: Address) -> None:
        self._connected[peer] = None
        self._noted[peer] = None
        older = {
            member: None
            for member in (*self.stack.view.members, *self._looking)
            if member.name == peer.name and member.incarnation < peer.incarnation
        }
        self._suspect([member for member in older if self._suspects.get(member) is not True], proof=True)
        if peer in self._doubted:
            self._trust(peer)
        self._forget()

    def _peer_closed(self, peer: Address, proof: bool) -> None:
        was_connected = self._connected.pop(peer, peer) is None
        in_view = peer in self.stack.view and peer != self.stack.local
        if proof:
            if self._suspects.get(peer) is not True and (in_view or was_connected or peer in self._doubted):
                self.rule("failure.proof")
                self._suspect([peer], proof=True)
        elif in_view and peer not in self._doubted:
            self.rule("failure.closed")
            self._look([peer])

    # The second look.

    def _look(self, members: Iterable[Address]) -> None:
        until = self.runtime.now() + self.settings.verify_timeout
        for member in members:
            self._looking[member] = until
            self._doubted[member] = None
            self.send(Verify(), member)
        if self._looking and self._look_timer is None:
            self._next_look()

    def _next_look(self) -> None:
        pause = self.settings.verify_timeout / LOOKS
        self._look_due = self.runtime.now() + pause
        self._look_timer = self.runtime.call_later(pause, self._look_again)

    def _look_again(self) -> None:
        self._look_timer = None
        now = self.runtime.now()
        if self._stood_still(self._look_due):
            self._new_period()
        silent = [member for member, until in self._looking.items() if now >= until - _ROUNDING]
        if silent:
            self.rule("failure.suspected")
            self._suspect(silent, proof=False)
        for member in self._looking:
            self.send(Verify(), member)
        if self._looking and self._look_timer is None:
            self._next_look()

    def _suspect(self, members: list[Address], *, proof: bool) -> None:
        if not members:
            return
        for member in members:
            self._looking.pop(member, None)
            self._suspects[member] = proof
            self._doubted[member] = None
        self.count("suspected", len(members))
        if self.runtime.trace.on:
            self.runtime.trace.emit("suspect", members=[str(member) for member in members], proof=proof)
        event = Suspect(tuple(members), proof)
        self.stack.above(self).up_event(event)
        if not proof:  # the transport makes a new connection, which answers sooner than a stuck one
            self.stack.below(self).down_event(event)

    # Heartbeats.

    def _next_beat(self) -> None:
        self._beat_due = self.runtime.now() + self.settings.heartbeat_interval
        self._beat_timer = self.runtime.call_later(self.settings.heartbeat_interval, self._beat)

    def _beat(self) -> None:
        if self._stood_still(self._beat_due):
            self._new_period()
        self._next_beat()
        now = self.runtime.now()
        self._forget()
        last = self._last
        self._last = {
            member: now if member in self._noted else last.get(member, now)
            for member in (*self.stack.view.members, *self._suspects)
            if member != self.stack.local
        }
        self._noted.clear()
        silent = []
        for member, heard in self._last.items():
            if self._suspects.get(member) is not True:
                self.send(Heartbeat(), member)
            if now - heard > self.settings.heartbeat_timeout and member not in self._doubted:
                silent.append(member)
        if silent:
            self.rule("failure.silent")
            self._look(silent)

    def _stood_still(self, due: float) -> bool:
        """A timer that is this late was not late alone: nothing was read meanwhile either."""
        return self.runtime.now() - due > self.settings.heartbeat_timeout / 2

    def _new_period(self) -> None:
        self.rule("failure.own_pause")
        now = self.runtime.now()
        for member in self._last:
            self._last[member] = now
        for member in self._looking:
            self._looking[member] = now + self.settings.verify_timeout

    def _forget(self) -> None:
        """Forget suspects that nobody will ask for: out of the view, and dead, replaced, or too many."""
        gone = [member for member in self._suspects if member not in self.stack.view]
        surplus = len(gone) - self.settings.suspects_max
        newest: dict[str, int] = {}
        for peer in self._connected:
            newest[peer.name] = max(peer.incarnation, newest.get(peer.name, 0))
        for position, member in enumerate(gone):
            if self._suspects[member] or newest.get(member.name, 0) > member.incarnation or position < surplus:
                self.rule("failure.forgotten")
                del self._suspects[member]
                self._doubted.pop(member, None)
