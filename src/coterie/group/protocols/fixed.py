"""FIXED: a membership without agreement, for groups whose processes are known beforehand.

Promises: every process that can be reached and is not suspected is in this member's own view, and gets this member's
multicasts without a hole from the number that it was told (WELCOME). Each member has its own views (it is their
creator): two members' views agree once the network is quiet, but nothing is agreed on. A member that was suspected
and comes back, or that restarts as a new incarnation, is welcomed again and told where the stream goes on. Agreement
is GMS's business.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from coterie.group.events import Event, PeerClosed, PeerConnected, StreamOpened, Suspect, Unsuspect, ViewChange
from coterie.group.members import Address, View, ViewId
from coterie.group.packet import Packet
from coterie.group.protocol import Protocol
from coterie.group.protocols.nakack import Nakack
from coterie.group.wire import Codec
from coterie.runtime.base import Timer
from coterie.settings import setting

if TYPE_CHECKING:
    from coterie.group.stack import Stack


@dataclass(frozen=True, slots=True)
class Welcome:
    """You are in my view: my multicasts start at `start` for you. Repeated until JOINED comes back."""

    epoch: int
    """How often I have welcomed you: a later one overrides an earlier one."""
    start: int
    want: bool
    """I have no stream of yours: welcome me, too."""


@dataclass(frozen=True, slots=True)
class Joined:
    """I know where your stream starts."""

    epoch: int


@dataclass(frozen=True, slots=True)
class Bye:
    """I leave for good."""


@dataclass(frozen=True, slots=True)
class FixedSettings:
    welcome_interval: float = setting(0.1, "Time between repeated welcomes.", unit="s", minimum=0.001)


class Guest:
    """What we told another member about our stream, and it told us about its own."""

    __slots__ = ("answered", "epoch", "heard_epoch", "start", "waiting")

    def __init__(self) -> None:
        self.epoch = 0
        self.start = 0
        self.answered = True
        self.heard_epoch = 0
        self.waiting = False
        """It is in the view, but not welcome before the message that we are sending is complete."""


class Fixed(Protocol):
    """Membership without agreement: whoever can be reached is in the view."""

    name = "FIXED"
    id = 19
    role = "membership"
    needs_below = ("reliable multicast",)
    only_own = True
    Settings = FixedSettings
    codec = Codec({1: Welcome, 2: Joined, 3: Bye})
    rules = {
        "fixed.welcome": "A member that can be reached is told where our stream starts for it.",
        "fixed.waits": "A member that comes while a message is half sent is welcomed when it is complete.",
        "fixed.welcome_repeated": "A welcome is repeated until it is answered.",
        "fixed.welcome_wanted": "A member that lost our stream asks to be welcomed again.",
        "fixed.removed": "A suspected member is removed from the view.",
        "fixed.returned": "A member that was suspected in error is welcomed again.",
        "fixed.reincarnated": "A new incarnation replaces the old one.",
        "fixed.bye": "A member that says good-bye is removed at once.",
    }

    settings: FixedSettings

    def attach(self, stack: Stack) -> None:
        super().attach(stack)
        self._nakack = stack.find(Nakack)
        self._guests: dict[Address, Guest] = {}
        self._gone: dict[str, int] = {}
        """Per name: the highest incarnation that said good-bye or was replaced. It does not come back."""
        self._timer: Timer | None = None

    def start(self) -> None:
        self._install([self.stack.local])

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self.send(Bye(), None)

    # Who is in.

    def up_event(self, event: Event) -> None:
        match event:
            case PeerConnected(peer):
                self._add(peer)
            case Unsuspect(members):
                for member in members:
                    self._add(member)
            case Suspect(members):
                self._remove(members)
            case PeerClosed(peer, True):
                self._remove((peer,))
        super().up_event(event)

    def _add(self, peer: Address) -> None:
        members = self.stack.view.members
        if peer in members or peer.incarnation <= self._gone.get(peer.name, -1) or peer.name == self.stack.local.name:
            return
        others = [m for m in self._guests if m.name == peer.name and m != peer]
        if any(m.incarnation > peer.incarnation for m in others):
            return
        for old in others:
            self.rule("fixed.reincarnated")
            self._forget(old)
        guest = self._guests.get(peer)
        if guest is None:
            guest = self._guests[peer] = Guest()
        else:
            self.rule("fixed.returned")
        staying = [m for m in members if m.name != peer.name]
        if self._nakack.in_train:
            # It belongs to the view at once, or members that wait for each other's credit would wait for ever.
            self.rule("fixed.waits")
            guest.waiting = guest.answered = True
            self._install([*staying, peer])
            self._nakack.between_trains(self._welcome_waiting)
        else:
            self._welcome(guest)
            self._install([*staying, peer], welcomed=[peer])
            self._say_welcome(peer, guest)

    def _welcome_waiting(self) -> None:
        """The message is complete: our stream starts for those who came meanwhile."""
        members = list(self.stack.view.members)
        waiting = {m: guest for m, guest in self._guests.items() if guest.waiting and m in members}
        if waiting:
            for guest in waiting.values():
                self._welcome(guest)
            self._install(members, welcomed=list(waiting))
            for peer, guest in waiting.items():
                self._say_welcome(peer, guest)

    def _remove(self, gone: tuple[Address, ...]) -> None:
        members = self.stack.view.members
        staying = [m for m in members if m not in gone or m == self.stack.local]
        if len(staying) < len(members):
            self.rule("fixed.removed")
            self._install(staying)

    def _forget(self, member: Address) -> None:
        self._gone[member.name] = max(member.incarnation, self._gone.get(member.name, -1))
        self._guests.pop(member, None)

    def _install(
        self, members: list[Address], welcomed: list[Address] | None = None, opened: dict[Address, int] | None = None
    ) -> None:
        stack = self.stack
        view = View(ViewId(stack.view.id.counter + 1, stack.local), tuple(sorted(members)))
        stack.view = view
        waiting = tuple(m for m, guest in self._guests.items() if guest.waiting and m in view)
        if stack.trace.on:
            stack.trace.emit(
                "view", view=view.id, members=[str(m) for m in view.members], waiting=[str(m) for m in waiting],
                welcomed={str(m): self._guests[m].start for m in welcomed or ()},
                start={str(m): n for m, n in (opened or {}).items()},
            )  # fmt: skip
        stack.below(self).down_event(ViewChange(view, waiting))
        stack.above(self).up_event(ViewChange(view, waiting))

    # Where the streams start.

    def _welcome(self, guest: Guest) -> None:
        guest.epoch += 1
        guest.start = self._nakack.sent + 1
        guest.answered = guest.waiting = False
        self.rule("fixed.welcome")

    def _say_welcome(self, peer: Address, guest: Guest) -> None:
        self.send(Welcome(guest.epoch, guest.start, not self._nakack.has(peer)), peer)
        if self._timer is None:
            self._timer = self.runtime.call_later(self.settings.welcome_interval, self._repeat)

    def _repeat(self) -> None:
        self._timer = None
        for peer, guest in self._guests.items():
            if not guest.answered and peer in self.stack.view:
                self.rule("fixed.welcome_repeated")
                self._say_welcome(peer, guest)

    def up(self, batch: list[Packet]) -> None:
        for packet in self.pass_up_others(batch):
            self._handle(packet.sender, self.decode(packet))

    def _handle(self, peer: Address, message: object) -> None:
        guest = self._guests.get(peer)
        if guest is None or peer not in self.stack.view:
            return  # it will say it again
        match message:
            case Welcome(epoch, start, want):
                self._welcomed(peer, guest, epoch, start)
                if want:
                    self._wanted(peer, guest)
            case Joined(epoch):
                if epoch == guest.epoch:
                    guest.answered = True
            case Bye():
                self.rule("fixed.bye")
                self._forget(peer)
                self._remove((peer,))

    def _wanted(self, peer: Address, guest: Guest) -> None:
        if guest.waiting:
            return  # it will be welcomed
        if not guest.answered:
            self._say_welcome(peer, guest)
            return
        # It gave our stream up while we kept counting on it: it is owed nothing more of the old one.
        self.rule("fixed.welcome_wanted")
        self._remove((peer,))
        self._add(peer)

    def _welcomed(self, peer: Address, guest: Guest, epoch: int, start: int) -> None:
        if epoch < guest.heard_epoch or start < 1:
            return
        if epoch > guest.heard_epoch or not self._nakack.has(peer):
            guest.heard_epoch = epoch
            if self._nakack.open(peer, start):
                self._install(list(self.stack.view.members), opened={peer: start})
                self.stack.above(self).up_event(StreamOpened(peer, start))
        self.send(Joined(epoch), peer)
