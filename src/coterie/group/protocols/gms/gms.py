"""GMS: agreed views, with joins, leaves, crashes and merges.

Promises: a member installs only views that contain it, with rising ids; one id means one list of members everywhere;
two members that go together from one view to the next have delivered the same bundles in the first (virtual synchrony).
After the last fault all that can reach each other come to one view. The oldest member coordinates: it flushes the
group, decides on the next view, and has every member ack it; if it dies, the next one does. A member refuses a view if
what it delivered is not exactly the view's cut, whoever sends it: that alone makes views safe, all else makes them
happen. Members that went on without us, or refuse our view, count as gone, and come back by a merge.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from coterie.errors import UserError
from coterie.group.events import (
    Announce,
    Event,
    MergeFound,
    OtherView,
    PeerClosed,
    Suspect,
    ViewChange,
    ViewEnding,
)
from coterie.group.members import Address, MergeView, ViewId
from coterie.group.packet import Packet
from coterie.group.protocol import Protocol
from coterie.group.protocols.failure import Failure
from coterie.group.protocols.flush_base import FlushProtocol
from coterie.group.protocols.gms.coordinator import Coordinator
from coterie.group.protocols.gms.joiner import Joiner
from coterie.group.protocols.gms.messages import (
    CODEC,
    COUNTER_MAX,
    Ack,
    CancelMerge,
    Installation,
    InstallMerge,
    JoinReq,
    JoinRsp,
    LeaveReq,
    LeaveRsp,
    MergeAccepted,
    MergeReq,
    MergeRsp,
    NewView,
    Redirect,
)
from coterie.group.protocols.gms.rounds import Rounds
from coterie.group.protocols.gms.view_handler import RULES, Gone, Join, Leave, Request, ViewHandler, Work
from coterie.group.protocols.nakack import Nakack
from coterie.runtime.base import Future, Timer
from coterie.settings import setting

if TYPE_CHECKING:
    from coterie.group.stack import Stack


@dataclass(frozen=True, slots=True)
class GmsSettings:
    alone_after: float = setting(
        0.3, "How long a process that finds no group waits before it begins one.", unit="s", minimum=0
    )
    join_retry: float = setting(0.2, "Time between requests to join or to leave.", unit="s", minimum=0.001)
    resend_interval: float = setting(
        0.1, "Time after which an unanswered message is repeated.", unit="s", minimum=0.001
    )
    gather: float = setting(
        0.01, "How long requests are gathered for one view when many come at once.", unit="s", minimum=0
    )
    ack_timeout: float = setting(
        2.0, "How long the coordinator waits for acks of a view; who gives none is left out.", unit="s", minimum=0.01
    )
    merge_timeout: float = setting(
        1.0, "How long the leader of a merge waits for the other coordinators.", unit="s", minimum=0.01
    )
    behind_after: float = setting(
        1.0, "How long a member may be in another view of ours before it counts as gone.", unit="s", minimum=0
    )
    resumer_timeout: float = setting(
        20.0, "The view handler is resumed after this time, whatever it works on.", unit="s", minimum=0.1
    )


class Gms(Protocol):
    """Membership with agreed views: joins, leaves, crashes, merges."""

    name = "GMS"
    id = 9
    role = "membership"
    needs_below = ("merge probe", "failure detection", "reliable multicast", "reliable unicast")
    only_own = True
    Settings = GmsSettings
    codec = CODEC
    rules = {
        "gms.first": "A process that finds no group begins one.",
        "gms.join_asked": "A process that hears of a coordinator asks it to join.",
        "gms.asked_again": "Whoever was turned away is told when it is worth to ask again.",
        "gms.redirected": "A member that is not the coordinator names it to a joiner.",
        "gms.join": "A joiner is let in, and told by JOIN_RSP.",
        "gms.join_state": "A joiner that wants the state is let in with it, under one flush.",
        "gms.reincarnated": "A new incarnation replaces the old one, in one view.",
        "gms.leave": "A member that wants to leave is let go, and told by LEAVE_RSP.",
        "gms.leave_coordinator": "The coordinator leaves: it makes the view without itself.",
        "gms.leaver_acks": "A leaver acks the view without it, and does not install it.",
        "gms.crash": "A suspected member is left out of the next view.",
        "gms.acked": "A view counts as installed when all of its members have acked it.",
        "gms.no_ack": "A member that does not ack a view counts as gone.",
        "gms.took_over": "The next member in line acts for a coordinator that is gone.",
        "gms.silent": "A member that does not take part in the flush is left out.",
        "gms.refused": "A member refuses a view whose cut is not what it has delivered.",
        "gms.forwarded": "A member that is behind is sent the view that it missed.",
        "gms.departed": "A member that is in a view without us counts as gone.",
        "gms.merged": "Several views become one.",
        "gms.merge_cancelled": "A merge that fails is called off at those who agreed to it.",
        **{f"gms.{name}": sentence for name, sentence in RULES.items()},
    }

    settings: GmsSettings

    def attach(self, stack: Stack) -> None:
        super().attach(stack)
        self.want_state = False
        """Join with state: set before the stack starts."""
        self.joined = False
        self.nakack = stack.find(Nakack)
        self.nakack.synchronous = True
        self.failure = stack.find(Failure)
        self.rounds = Rounds(self.runtime, self.send, self.settings.resend_interval)
        self.handler = ViewHandler(self, self.settings.resumer_timeout, self.settings.gather)
        self._coordinator = Coordinator(self)
        self._joiner = Joiner(self)
        self.counter = 0
        """Highest counter of a view that we have heard of."""
        self.installed: Installation | None = None
        """How the present view came about: for those who missed it."""
        self._departed: dict[Address, None] = {}
        """Members of the view that are known to be in another one."""
        self._apart_since: dict[Address, tuple[ViewId, float]] = {}
        """Members of the view that are behind or ahead: in which view, and since when as far as we know."""
        self._forwarded: dict[Address, float] = {}
        self._leaving: Future[None] | None = None
        self._out = False
        """We have left: the group goes on without us."""
        self._leave_timer: Timer | None = None
        self._retry_timer: Timer | None = None

    def start(self) -> None:
        if not self.stack.has(FlushProtocol):
            raise UserError("stack: GMS needs a flush above it: add FLUSH2")
        self.flush = self.stack.find(FlushProtocol)  # type: ignore[type-abstract]
        self.flush_timeout: float = self.flush.settings.timeout
        """How long any flush takes, at most."""
        if self.settings.resumer_timeout <= self.flush_timeout:
            raise UserError(
                "GMS: resumer_timeout must be longer than timeout of FLUSH2, or no view change may ever end"
            )
        self._joiner.start()

    def stop(self) -> None:
        self._joiner.stop()
        self._coordinator.stop()
        self.handler.stop()
        self.rounds.stop()
        for timer in (self._leave_timer, self._retry_timer):
            if timer is not None:
                timer.cancel()
        self._left()

    # Who is there.

    def out_of_touch(self) -> list[Address]:
        """Members of the view that are suspected, or in another view."""
        suspects = self.failure.suspects()
        local = self.stack.local
        return [m for m in self.stack.view.members if m != local and (m in suspects or m in self._departed)]

    def acting(self) -> Address:
        """The coordinator, or whoever is next in line if it is gone."""
        gone = self.out_of_touch()
        return next(m for m in self.stack.view.members if m not in gone)

    @property
    def leads(self) -> bool:
        return self.joined and not self._out and self.acting() == self.stack.local

    def begin(self) -> None:
        """Be the first member of a new view."""
        self.install(Installation(self.next_id(), (self.stack.local,), ()))

    def next_id(self) -> ViewId:
        self.counter += 1
        return ViewId(self.counter, self.stack.local)

    def depart(self, member: Address) -> None:
        """It has gone on without us, or cannot come along."""
        if member in self.stack.view and member not in self._departed and member != self.stack.local:
            self.rule("gms.departed")
            self._departed[member] = None
            self.rounds.gone(member)
            self.stack.above(self).up_event(Suspect((member,), False))
        self.look_around()

    def look_around(self) -> None:
        """Nothing is told only once: whoever is gone from the view is found here, whenever there is time for it."""
        gone = self.out_of_touch()
        if gone and self.leads and self.handler.suspended is None:
            for member in gone:
                self.handler.add(Gone(member))

    # Installing a view.

    def install(self, install: Installation) -> bool:
        """Install a view, unless it is not for us as we are. True if it is in force now."""
        stack = self.stack
        if install.id == stack.view.id:
            return True
        part = install.part_of(stack.view.id)
        if install.id <= stack.view.id or stack.local not in install.members or not install.sound():
            return False
        if self.joined and (part is None or stack.local not in part.members or self.nakack.delivered() != part.cut):
            self.rule("gms.refused")
            return False
        if not self.joined and not install.is_new(stack.local):
            return False
        self._joiner.stop()
        before = stack.view
        if self.joined:
            stack.above(self).up_event(ViewEnding(before))
        view, starts = install.view(), install.starts()
        events = self.nakack.install(view, starts)
        stack.view = view
        self.installed = install
        self.counter = max(self.counter, view.id.counter)
        self._departed.clear()
        self._apart_since.clear()
        self._out = False
        if stack.trace.on:
            self._trace_view(install, before.id if self.joined else None, starts)
        self.joined = True
        change = ViewChange(view, (), install.states, install.provider, install.holders)
        stack.below(self).down_event(change)
        stack.above(self).up_event(change)
        for event in events:
            stack.above(self).up_event(event)
        self.handler.view_installed(view)
        self._coordinator.view_installed(view)
        self.look_around()
        return True

    def _trace_view(self, install: Installation, before: ViewId | None, starts: dict[Address, int]) -> None:
        local, view = self.stack.local, self.stack.view
        self.stack.trace.emit(
            "view", view=install.id, members=[str(m) for m in view.members], agreed=True,
            before=None if before is None else str(before),
            start={str(m): n for m, n in starts.items()},
            welcomed={str(m): self.nakack.sent + 1 for m in install.members if m != local},
            subgroups=[[str(part.id), [str(m) for m in part.members]] for part in view.subgroups]
            if isinstance(view, MergeView) else None,
        )  # fmt: skip

    # Events.

    def up_event(self, event: Event) -> None:
        match event:
            case OtherView():
                self._other_view(event)
                return
            case MergeFound(coordinators):
                if self.leads and coordinators[0] == self.stack.local:
                    self._coordinator.found(coordinators[1:])
                return
            case Suspect(members):
                for member in members:
                    self.rounds.gone(member)
                    self.handler.leader_gone(member)
                super().up_event(event)
                self.look_around()
                return
            case PeerClosed(peer, True):
                self.handler.leader_gone(peer)
        super().up_event(event)

    def down_event(self, event: Event) -> None:
        if isinstance(event, OtherView):
            self._other_view(event)
        else:
            super().down_event(event)

    def _other_view(self, event: OtherView) -> None:
        peer, view = event.peer, self.stack.view
        if event.view.counter > COUNTER_MAX:
            self.count("malformed")
            return
        self.counter = max(self.counter, event.view.counter)
        if not self.joined:
            self._joiner.hear(event)
        elif peer not in view or self._out:
            return
        elif event.view < view.id:
            self._forward(peer, event.view)
        elif not event.ours and self._leaving is not None:
            self._out = True  # as we asked for; LEAVE_RSP follows
        elif not event.ours:
            self.depart(peer)
        elif self._apart_for(peer, event.view) > self.settings.behind_after:
            self.depart(peer)  # it is ahead of us, and neither it nor whoever made that view has sent it to us

    def _apart_for(self, peer: Address, view: ViewId) -> float:
        """How long it has been in that other view."""
        now = self.runtime.now()
        known, since = self._apart_since.get(peer, (view, now))
        self._apart_since[peer] = view, since if known == view else now
        return now - self._apart_since[peer][1]

    def _forward(self, peer: Address, view: ViewId) -> None:
        """It is behind us, in that view."""
        now = self.runtime.now()
        if self.installed is not None and now - self._forwarded.get(peer, -1e9) > self.settings.resend_interval / 2:
            self._forwarded = {m: at for m, at in self._forwarded.items() if m in self.stack.view} | {peer: now}
            self.rule("gms.forwarded")
            self.send(NewView(0, self.installed), peer)
            if self._apart_for(peer, view) > self.settings.behind_after + self.settings.ack_timeout:
                self.depart(peer)

    # Messages.

    def up(self, batch: list[Packet]) -> None:
        for packet in self.pass_up_others(batch):
            self._handle(packet.sender, self.decode(packet))

    def _handle(self, peer: Address, message: object) -> None:
        match message:
            case NewView(number, install):
                self._new_view(peer, number, install)
            case JoinRsp(number, install):
                self.send(Ack(number, self.install(install)), peer)
            case Ack(number, ok):
                if not self.rounds.answered(number, peer, ok) and not number and not ok:
                    self.depart(peer)
            case JoinReq(state):
                self._join_requested(peer, state)
            case Redirect(coordinator):
                if not self.joined:
                    self._joiner.redirected(peer, coordinator)
                elif self._leave_timer is not None and coordinator == peer:
                    self._leave_timer.cancel()
                    self._ask_to_leave()
            case LeaveReq():
                self._leave_requested(peer)
            case LeaveRsp(number):
                self.send(Ack(number, True), peer)
                self._out = self._leaving is not None
                self._left()
            case MergeReq(number):
                self._coordinator.asked(peer, number)
            case MergeAccepted(number):
                self.rounds.wait_for(number, peer)
            case MergeRsp(number, part):
                self._coordinator.offered(peer, number, part)
            case InstallMerge(number, merge, install):
                self._coordinator.decided(peer, number, merge, install)
            case CancelMerge(merge):
                self._coordinator.called_off(peer, merge)

    def _new_view(self, peer: Address, number: int, install: Installation) -> None:
        if not self.joined:
            return
        if self.stack.local in install.members:
            ok = self.install(install)
            if not ok and install.id < self.stack.view.id and peer in self.stack.view:
                self._forward(peer, install.id)
        else:
            ok = True
            if self._leaving is not None and install.part_of(self.stack.view.id) is not None:
                self.rule("gms.leaver_acks")
                self._out = True
                self.stack.above(self).up_event(ViewEnding(self.stack.view))
        self.send(Ack(number, ok), peer)

    def _join_requested(self, peer: Address, state: bool) -> None:
        if not self.joined or self._out:
            return
        if not self.leads:
            self.send(Redirect(self.acting()), peer)
        elif peer in self.stack.view:  # whoever let it in did not come to telling it
            if self.installed is not None and self.installed.is_new(peer) and self.handler.suspended is None:
                self.send(JoinRsp(0, self.installed), peer)
        elif not any(m.name == peer.name and m.incarnation > peer.incarnation for m in self.stack.view.members):
            self.handler.add(Join(peer, state))

    def _leave_requested(self, peer: Address) -> None:
        if self.joined and peer not in self.stack.view:
            self.send(LeaveRsp(0), peer)  # it is out already
        elif self.leads:
            self.handler.add(Leave(peer))

    # Leaving.

    def leave(self) -> Future[None]:
        """Ask to be let go. The future is done when we are, or when nobody is left to ask."""
        if self._leaving is None:
            self._leaving = self.runtime.future()
            self._ask_to_leave()
        return self._leaving

    def _ask_to_leave(self) -> None:
        self._leave_timer = None
        if not self.joined or len(self.stack.view.members) == 1:
            self._left()
            return
        acting = self.acting()
        if acting != self.stack.local:
            self.send(LeaveReq(), acting)
        elif self._out and self.handler.suspended is None:
            self._left()
            return
        elif not self._out:  # otherwise others are in the view without us already; those who join with it are not yet
            self.handler.add(Leave(acting))
        self._leave_timer = self.runtime.call_later(self.settings.join_retry, self._ask_to_leave)

    def _left(self) -> None:
        if self._leaving is not None and not self._leaving.done():
            self._leaving.set_result(None)
        if self._leave_timer is not None:
            self._leave_timer.cancel()
            self._leave_timer = None

    def let_go(self) -> None:
        """The coordinator has made the view without itself."""
        self.rule("gms.leave_coordinator")
        self._out = True
        self._left()

    # What the view handler needs.

    def later(self, delay: float, call: Callable[[], None]) -> Timer:
        return self.runtime.call_later(delay, call)

    def soon(self, call: Callable[[], None]) -> None:
        self.runtime.call_soon(call)

    def rule(self, name: str) -> None:
        super().rule(name if name.startswith("gms.") else f"gms.{name}")

    def note(self, kind: str, reason: str, timeout: float | None = None) -> None:
        if self.stack.trace.on:
            self.stack.trace.emit(kind, view=self.stack.view.id, reason=reason, timeout=timeout)

    def process(self, requests: list[Request]) -> None:
        self.runtime.spawn(self._coordinator.change_view(requests, self.handler.turn))

    def resumed(self, work: Work, reason: str, turned_away: list[Address]) -> None:
        self._coordinator.resumed()
        for member in turned_away:
            if self.leads and member != self.stack.local:
                self.rule("gms.asked_again")
                self.send(Redirect(self.stack.local), member)
        if reason == "done" or work is not Work.VIEWS:
            self.look_around()
        elif self._retry_timer is None:  # what failed just now is not tried again at once
            self._retry_timer = self.runtime.call_later(self.settings.resend_interval, self._retry)

    def _retry(self) -> None:
        self._retry_timer = None
        self.look_around()

    def announce(self) -> None:
        self.stack.below(self).down_event(Announce())

    def held(self) -> dict[str, int]:
        return {"requests": len(self.handler.queue) + (self.handler.suspended is not None)}
