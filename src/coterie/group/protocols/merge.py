"""MERGE: finding out that the group has fallen apart, and that a member is in another view than ours.

Promises: members that can reach each other and are in different views learn it within about two intervals, and a
process that comes into reach is told at once which view we are in. Coordinators tell everybody; others tell their
coordinator, and whoever is not in their view. Whoever hears of another view answers with its own. What follows from it
is for membership to decide: MergeFound at a coordinator, OtherView at everybody.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from coterie.group.events import Announce, Event, MergeFound, OtherView, PeerClosed, PeerConnected, ViewChange
from coterie.group.members import Address, ViewId
from coterie.group.packet import Packet
from coterie.group.protocol import Protocol
from coterie.group.protocols.transport import Transport
from coterie.group.wire import Codec
from coterie.runtime.base import Timer
from coterie.settings import setting

if TYPE_CHECKING:
    from coterie.group.stack import Stack

MERGE_ID = 7
HEARD_MAX = 1024
"""Peers whose views are kept in mind."""
FRESH = 2.5
"""How many intervals what was heard is believed."""


@dataclass(frozen=True, slots=True)
class Info:
    """The view that I am in; its counter is 0 as long as there is none."""

    view: ViewId
    coordinator: Address
    yours: bool
    """You are a member of it."""


@dataclass(frozen=True, slots=True)
class MergeSettings:
    interval: float = setting(1.0, "Time between two announcements of our view.", unit="s", minimum=0.001)


class Merge(Protocol):
    """Announces which view we are in, and notices other views."""

    name = "MERGE"
    id = MERGE_ID
    role = "merge probe"
    needs_below = ("transport",)
    only_own = True
    Settings = MergeSettings
    codec = Codec({1: Info})
    rules = {
        "merge.told_at_once": "A process that comes into reach is told at once which view we are in.",
        "merge.other_view": "A member hears of a view that it is not in.",
        "merge.found": "A coordinator hears of other coordinators.",
    }

    settings: MergeSettings

    def attach(self, stack: Stack) -> None:
        super().attach(stack)
        self._transport = stack.find(Transport)  # type: ignore[type-abstract]
        self._heard: dict[Address, tuple[Info, float]] = {}
        self._told: dict[Address, float] = {}
        """When we last answered whom."""
        self._timer: Timer | None = None

    def start(self) -> None:
        self._next()

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def _next(self) -> None:
        """Not in step with the others: coordinators that start a merge together only get in each other's way."""
        pause = self.settings.interval * (0.75 + self.runtime.rng.random() / 2)
        self._timer = self.runtime.call_later(pause, self._run)

    def _run(self) -> None:
        self._next()
        view = self.stack.view
        peers = self._transport.peers()
        if view.coordinator != self.stack.local:
            peers = [peer for peer in peers if peer == view.coordinator or peer not in view]
        self._tell(peers)
        self._look()

    def _tell(self, peers: Iterable[Address]) -> None:
        view = self.stack.view
        for peer in peers:
            self.send(Info(view.id, view.coordinator, peer in view), peer)

    def _look(self) -> None:
        """Only what coordinators say of themselves counts: others may be behind."""
        view, now = self.stack.view, self.runtime.now()
        oldest = now - FRESH * self.settings.interval
        self._heard = {peer: (info, at) for peer, (info, at) in self._heard.items() if at >= oldest}
        self._told = {peer: at for peer, at in self._told.items() if at >= oldest}
        if view.coordinator != self.stack.local or not view.id.counter:
            return
        others = [
            peer
            for peer, (info, _) in self._heard.items()
            if info.coordinator == peer and info.view.counter and peer not in view
        ]
        if others:
            self.rule("merge.found")
            self.stack.above(self).up_event(MergeFound(tuple(sorted([self.stack.local, *others]))))

    def up(self, batch: list[Packet]) -> None:
        for packet in self.pass_up_others(batch):
            info = self.decode(packet)
            if isinstance(info, Info):
                self._hear(packet.sender, info)

    def _hear(self, peer: Address, info: Info) -> None:
        now = self.runtime.now()
        if len(self._heard) >= HEARD_MAX and peer not in self._heard:
            self.count("too_many")  # those who are heard of no more make room
            return
        self._heard[peer] = info, now
        if info.view == self.stack.view.id:
            return
        self.rule("merge.other_view")
        if now - self._told.get(peer, -1e9) > self.settings.interval / 4:
            self._told[peer] = now
            self._tell((peer,))
        self.stack.above(self).up_event(OtherView(peer, info.view, info.coordinator, info.yours))

    def up_event(self, event: Event) -> None:
        super().up_event(event)
        match event:
            case PeerConnected(peer):
                self.rule("merge.told_at_once")
                self._tell((peer,))
            case PeerClosed(peer):
                self._heard.pop(peer, None)

    def down_event(self, event: Event) -> None:
        match event:
            case ViewChange(view):
                self._tell([peer for peer in self._transport.peers() if peer not in view])
            case Announce():
                self._tell(self._transport.peers())
                return
        super().down_event(event)
