"""STATE: gives a member the state of another, as it is at one cut through the group.

Promises: what a member sets is exactly what its provider's application had taken at the cut; what either delivers after
it is the same, and reaches the requester's application when the state is set. For a joiner the cut is the view that it
joins in; for a member it is made inside a shared flush, which is released before the first byte is sent. The bytes are
streamed with back-pressure (state_stream.py); a provider that dies means another provider and another cut
(state_fetch.py).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from coterie.errors import UserError
from coterie.group.events import Event, SnapshotWanted, Suspect, Unsuspect, ViewChange
from coterie.group.members import Address, View
from coterie.group.packet import HEADER_SIZE, NAME_MAX, Packet
from coterie.group.protocol import Protocol
from coterie.group.protocols.flush_base import FlushProtocol
from coterie.group.protocols.nakack import Nakack
from coterie.group.protocols.state_fetch import Fetch, StateFailed
from coterie.group.protocols.state_messages import (
    CODEC,
    FIRST_VIEW_TAG,
    Ack,
    Cancel,
    Chunk,
    Cut,
    End,
    Failed,
    Point,
    Request,
)
from coterie.group.protocols.state_stream import Outgoing, Pace
from coterie.group.protocols.total import Total
from coterie.group.protocols.transport import Transport
from coterie.logs import Log
from coterie.runtime.base import Buffer, Future, Timer
from coterie.settings import setting
from coterie.trace import Json

if TYPE_CHECKING:
    from coterie.group.stack import Stack

__all__ = ["State", "StateFailed", "StateProgress", "StateSettings"]

log = Log(__name__)

CHUNK_OVERHEAD = HEADER_SIZE + NAME_MAX + 64
"""What a packet adds to a chunk, at most."""


@dataclass(frozen=True, slots=True)
class StateSettings:
    chunk_size: int = setting(
        256 << 10, "Size of a chunk; less if the transport's packets are smaller.", unit="B", minimum=1
    )
    window: int = setting(
        16, "Chunks that a provider may be ahead of the requester's application.", unit="chunks", minimum=1
    )
    resend_interval: float = setting(
        0.1, "How soon what is not answered, or was overtaken, is said again.", unit="s", minimum=0.001
    )
    buffer_max: int = setting(
        256 << 20,
        "Bytes delivered after the cut that wait for the state without holding up their senders.",
        unit="B",
        minimum=0,
    )
    transfers_max: int = setting(8, "States that a member gives at the same time.", minimum=1)
    cut_timeout: float = setting(
        1.0, "How long a provider may take to answer while the group is flushed.", unit="s", minimum=0.001
    )
    stall_timeout: float = setting(
        10.0, "How long nothing may come, or be asked for, before a transfer is given up.", unit="s", minimum=0.001
    )
    attempts: int = setting(20, "Cuts that are tried before a state is given up.", minimum=1)
    retry_delay: float = setting(0.05, "Pause before another attempt; doubled for each.", unit="s", minimum=0)
    retry_max_delay: float = setting(2.0, "Longest pause before another attempt.", unit="s", minimum=0.001)
    join_without: bool = setting(
        False, "Whether a joiner that finds nobody to give it the state goes on without it instead of failing."
    )


@dataclass(frozen=True, slots=True)
class StateProgress:
    """How far a state has come to this member's application."""

    provider: Address
    bytes: int
    total: int | None
    """None as long as the provider does not know it itself."""
    complete: bool


class State(Protocol):
    """State transfer: a joiner, or any member that asks, gets another member's state."""

    name = "STATE"
    id = 23
    role = "state transfer"
    needs_below = ("membership",)
    only_own = True
    Settings = StateSettings
    codec = CODEC
    rules = {
        "state.join_cut": "A joiner's state is cut at the view in which it joins.",
        "state.member_cut": "A member's cut is made while a shared flush holds, where both have delivered the same.",
        "state.window": "A provider that is a window ahead of the requester's application waits.",
        "state.resent": "A chunk that seems to be lost is sent again.",
        "state.flush_failed": "A flush that fails is tried again after a pause.",
        "state.provider_gone": "A provider that is gone or suspected is replaced by another, with a new cut.",
        "state.provider_failed": "A provider that refuses, or fails to make its state, is replaced as well.",
        "state.refused": "A member that has no state itself, or gives it to too many already, refuses.",
        "state.requester_gone": "A transfer to a member that is gone ends.",
        "state.gave_up": "A member that finds nobody to give it the state says so.",
    }

    settings: StateSettings

    def attach(self, stack: Stack) -> None:
        super().attach(stack)
        self._nakack = stack.find(Nakack)
        self._total = stack.find(Total) if stack.has(Total) else None
        self.suspects: dict[Address, None] = {}
        self.flush: FlushProtocol | None = None
        self._fetch: Fetch | None = None
        """The state that we want."""
        self._outgoing: dict[tuple[Address, int], Outgoing] = {}
        """The states that we give."""
        self._cuts: dict[tuple[Address, int], Cut] = {}
        """What we said about them, for those who did not hear it."""
        self._last: Fetch | None = None
        self._lacking = False
        """The application has no state that is worth anything: it began to set one, and failed."""
        self._joining: Future[None] | None = None
        self._fetches = 0
        self._timer: Timer | None = None

    def start(self) -> None:
        if self.stack.has(FlushProtocol):
            self.flush = self.stack.find(FlushProtocol)  # type: ignore[type-abstract]
        size = self.settings.chunk_size
        if self.stack.has(Transport):
            packet = self.stack.find(Transport).settings.max_packet  # type: ignore[type-abstract]
            size = min(size, packet - CHUNK_OVERHEAD)
        self.pace = Pace(size, self.settings.window, self.settings.resend_interval)

    def stop(self) -> None:
        if self._fetch is not None:
            self._fetch.stop()
        for transfer in list(self._outgoing.values()):
            self._end(transfer, "the provider leaves")
        if self._timer is not None:
            self._timer.cancel()

    # What the channel asks for.

    def joins(self, future: Future[None]) -> None:
        """Before the stack starts: the member joins with the state, and wants to know when it has it."""
        self._joining = future

    def fetch(self, provider: Address | None, future: Future[None]) -> Fetch:
        """Get the state of another member. The future is done when it is set."""
        view = self.stack.view
        if self.flush is None:
            raise UserError("get_state(): the stack has no FLUSH2 above STATE: add it")
        if self._fetch is not None:
            raise UserError("get_state(): a state is on its way already: wait for it")
        if provider is not None and (provider not in view or provider == self.stack.local):
            raise UserError(f"get_state(): {provider} is not another member of the view {view}")
        self._fetch = self._last = fetch = Fetch(self, future, provider, joins=False)
        fetch.attempt()
        return fetch

    @property
    def progress(self) -> StateProgress | None:
        incoming = None if self._last is None else self._last.incoming
        if incoming is None:
            return None
        return StateProgress(incoming.peer, incoming.count, incoming.total, incoming.complete)

    def fetch_over(self, lacks: bool | None) -> None:
        """Whether the application lacks a state now; None if nothing was changed."""
        self._fetch = None
        if lacks is not None:
            self._lacking = lacks

    # The cut.

    def point(self) -> Point:
        """How much has been delivered here."""
        delivered = self._nakack.delivered()
        view, position = self.stack.view, 0 if self._total is None else self._total.delivered
        return Point(view.tag, {member: delivered.get(member, 0) for member in view.members}, position)

    def next_id(self) -> int:
        self._fetches += 1
        return self._fetches

    def up_event(self, event: Event) -> None:
        match event:
            case ViewChange(view, states=states, provider=provider):
                if provider == self.stack.local:
                    for joiner in states:
                        self._serve(joiner, view.tag)  # first: what is delivered in the view is not in the state
                elif self.stack.local in states:
                    self._join(view, states, provider)
                super().up_event(event)
                self._view_changed(view)
                return
            case Suspect(members):
                self.suspects |= dict.fromkeys(members)
                if self._fetch is not None:
                    self._fetch.suspected(members)
            case Unsuspect(members):
                for member in members:
                    self.suspects.pop(member, None)
        super().up_event(event)

    def _join(self, view: View, states: tuple[Address, ...], provider: Address | None) -> None:
        future, self._joining = self._joining, None
        if self._fetch is None:
            self._fetch = self._last = Fetch(self, future, None, joins=True)
        if provider is not None:
            self._fetch.join(provider, view.tag)
        elif all(member in states for member in view.members):
            self._fetch.give_up("nobody in the view has one")
        else:
            self._fetch.attempt()

    def _view_changed(self, view: View) -> None:
        if self._joining is not None:  # the first view, and nobody in it could give us a state
            self._joining.set_result(None)
            self._joining = None
        self.suspects = {member: None for member in self.suspects if member in view}
        for transfer in list(self._outgoing.values()):
            if transfer.peer not in view:
                self.rule("state.requester_gone")
                self._end(transfer, "the requester left the view")
        if self._fetch is not None:
            self._fetch.view_changed(view)

    # Messages.

    def up(self, batch: list[Packet]) -> None:
        for packet in self.pass_up_others(batch):
            self._handle(packet.sender, self.decode(packet))

    def _handle(self, peer: Address, message: object) -> None:
        match message:
            case Chunk() | End():
                if self._fetch is None or not self._fetch.arrived(peer, message):
                    self.send(Cancel(message.id), peer)
            case Ack():
                self._acked(peer, message)
            case Request():
                self._requested(peer, message)
            case Cut():
                if self._fetch is not None:
                    self._fetch.cut(peer, message)
            case Failed():
                if self._fetch is not None:
                    self._fetch.failed(peer, message)
            case Cancel(id):
                transfer = self._outgoing.get((peer, id))
                if transfer is not None:
                    self._end(transfer, "" if transfer.ended else "the requester cancelled it")

    # The provider's side.

    def _requested(self, peer: Address, request: Request) -> None:
        key = peer, request.id
        if key not in self._cuts:
            if peer not in self.stack.view or request.at != self.point():
                return  # one of us is behind: it will ask again
            self._serve(peer, request.id)
        if key in self._cuts:
            self.send(self._cuts[key], peer)
        else:
            self.send(self._failed(request.id, self._refusal()), peer)

    def _lacks(self) -> bool:
        return self._lacking or (self._fetch is not None and self._fetch.cut_made)

    def _failed(self, id: int, reason: str) -> Failed:
        return Failed(id, reason, self._lacks())

    def _refusal(self) -> str:
        """Why we give no state now, if that is so."""
        if self._lacks():
            return "it has no state itself" if self._lacking else "it waits for the state itself"
        if len(self._outgoing) >= self.settings.transfers_max:
            return "it gives its state to others already"
        return ""

    def _serve(self, peer: Address, id: int) -> None:
        """Cut here, unless we refuse. The application's snapshot comes when it has taken what was delivered before."""
        if self._refusal():
            self.rule("state.refused")
            return
        key = peer, id
        transfer = Outgoing(self, peer, id, self.pace, lambda reason: self._end(transfer, reason))
        self._outgoing[key] = transfer
        self._cuts[key] = Cut(id, self.point())
        self.trace_cut("provider", peer, id)
        self.tell_above(SnapshotWanted(lambda: key in self._outgoing, lambda state: self._snapshot(transfer, state)))
        if self._timer is None:
            self._timer = self.runtime.call_later(self.settings.resend_interval, self._look)

    def _snapshot(self, transfer: Outgoing, state: Iterable[Buffer] | Exception) -> None:
        if (transfer.peer, transfer.id) not in self._outgoing:
            return
        if isinstance(state, Exception):
            self._end(transfer, f"its application failed: {state!r}")
        else:
            transfer.offer(state)

    def _acked(self, peer: Address, ack: Ack) -> None:
        transfer = self._outgoing.get((peer, ack.id))
        if transfer is not None:
            transfer.acked(ack)
        elif ack.id < FIRST_VIEW_TAG or ack.id >> 32 <= self.stack.view.id.counter:
            self.send(self._failed(ack.id, self._refusal() or "it knows of no such transfer"), peer)

    def _end(self, transfer: Outgoing, reason: str) -> None:
        """A transfer is over: all of it is there, or for this reason."""
        key = transfer.peer, transfer.id
        if self._outgoing.pop(key, None) is None:
            return
        del self._cuts[key]
        transfer.close()
        if reason:
            self.count("transfers_failed")
            self.trace_failed(transfer.peer, transfer.id, reason)
            self.send(self._failed(transfer.id, reason), transfer.peer)
        else:
            self.count("states_given")

    def _look(self) -> None:
        """From time to time: send again what may be lost, forget who has fallen silent."""
        self._timer = None
        now = self.runtime.now()
        for transfer in list(self._outgoing.values()):
            if now - transfer.heard_at >= self.settings.stall_timeout:
                self._end(transfer, f"nothing was heard for {self.settings.stall_timeout:g} s")
            else:
                transfer.look(now)
        if self._outgoing:
            self._timer = self.runtime.call_later(self.settings.resend_interval, self._look)

    # For both sides.

    def tell_above(self, event: Event) -> None:
        self.stack.above(self).up_event(event)

    def trace_cut(self, role: str, requester: Address, id: int) -> None:
        if self.stack.trace.on:
            digest: Json = {str(member): number for member, number in self.point().digest.items()}
            self.stack.trace.emit(
                "state_cut", view=self.stack.view.id, role=role, id=f"{requester}/{id}", digest=digest
            )

    def trace_failed(self, requester: Address, id: int, reason: str) -> None:
        if self.stack.trace.on:
            self.stack.trace.emit("state_failed", view=self.stack.view.id, id=f"{requester}/{id}", reason=reason)

    def held(self) -> dict[str, int]:
        return {"transfers": len(self._outgoing), "awaited": self._fetch is not None}
