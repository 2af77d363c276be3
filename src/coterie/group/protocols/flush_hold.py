"""A member's side of flushes: which ones it takes part in, and the way to the cut.

The gate is shut as long as one flush holds. Flushes for views go first: while one holds, others wait to begin, and
what others had under way is broken off; of two for views, the later one. So nobody is led past the cut of a view.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from coterie.group.events import OtherView
from coterie.group.members import Address, View, ViewId
from coterie.group.protocols.flush_base import Kind
from coterie.group.protocols.flush_messages import (
    INHERITED,
    Cut,
    LeftFlush,
    Reconciled,
    StartFlush,
    StartFlushFail,
    Why,
)
from coterie.runtime.base import Timer

if TYPE_CHECKING:
    from coterie.group.protocols.flush_common import Flushing

Key = tuple[Address, int]
"""A flush: its leader, and the number by which the leader knows it."""
JOINER = -1
"""The number under which a joiner waits for those who were in the view before it."""
KEPT_MAX = 64


@dataclass(slots=True)
class Hold:
    """One of `flush_leaders`: a flush that this member takes part in."""

    leader: Address
    number: int
    kind: Kind
    view: ViewId | None = None
    """That is flushed."""
    round: int = 0
    targets: tuple[Address, ...] = ()
    answered: bool = False
    """In this round."""
    orphan: bool = False
    """Its leader is suspected: a successor must flush before the gate may open. If it is exclusive: its leader must
    know, or be out of the view."""
    rest: bool = False
    """The flush itself is over here: only the gate stays shut until something else has happened."""
    stopped: bool = False
    """It is over at its leader, who is in the view that came of it; here it is when that is installed."""
    at_cut: bool = False
    """Its leader has said how far to go, in this round."""
    views: int = 0
    """Installed since it began."""
    timer: Timer | None = None

    @property
    def key(self) -> Key:
        return self.leader, self.number

    @property
    def binds(self) -> bool:
        """It is a flush, and its leader may count on us."""
        return not self.rest and (not self.orphan or self.kind is Kind.EXCLUSIVE)


@dataclass(frozen=True, slots=True)
class Goal:
    """How far we have to come for one flush, and what is to be said then."""

    cut: Mapping[Address, int]
    holders: Mapping[Address, Address]
    waits: Mapping[Address, tuple[int, int]]
    then: Callable[[], None]


class Holding:
    def __init__(self, flush: Flushing) -> None:
        self.flush = flush
        self.holds: dict[Key, Hold] = {}
        self._view_key: Key | None = None
        """The flush for a view that began last."""
        self._later: dict[Key, StartFlush] = {}
        """What cannot begin yet: it is of a view to come, or a view change goes first."""
        self._promises: set[Key] = set()
        """Flushes for a view that were answered here, and of which nobody has said that no view came of them."""
        self._over: dict[Address, ViewId] = {}
        """Leaders that said in a view to come that their flush is over."""
        self._goals: dict[Key, Goal] = {}
        self._pursuit = 0
        """Counts ways to cuts: what was asked for on an earlier one is of no interest."""
        self._steps_left = 0

    def stop(self) -> None:
        for hold in self.holds.values():
            if hold.timer is not None:
                hold.timer.cancel()

    def leaders(self) -> dict[Address, int]:
        """Of those flushes that hold here whoever makes a view: with their kinds."""
        return {hold.leader: hold.kind for hold in self.holds.values() if hold.kind is not Kind.VIEW and hold.binds}

    @property
    def at_cut(self) -> bool:
        """Some leader has said how far to go, and to go no farther, and has not begun another round since."""
        return any(hold.at_cut for hold in self.holds.values())

    @property
    def under_way(self) -> bool:
        """We are on the way to a cut, and somebody waits for word that we are there."""
        return bool(self._goals)

    # START-FLUSH.

    def start(self, leader: Address, start: StartFlush, kept: bool = False) -> None:
        flush, ours, key = self.flush, self.flush.stack.view.id, (leader, start.number)
        if start.view != ours:
            if flush.stack.view.replaces(leader):
                return  # of a former life, as late as it may be: no view of it will ever come
            if start.view > ours:
                flush.note("later_view")
                self._keep(key, start)
            elif not kept:
                flush.note("older_view")
                flush.stack.below(flush).down_event(OtherView(leader, start.view, leader, ours=True))
            return
        if leader not in flush.stack.view or start.kind not in list(Kind):
            flush.count("malformed")
            return
        if start.kind != Kind.VIEW and self._for_view():
            flush.note("deferred")
            self._keep(key, start)
            return
        hold = self.holds.get(key) or self._join(leader, start)
        if hold is None:
            flush.note("fail")
            flush.tell(leader, StartFlushFail(start.number, start.round))
            return
        hold.round, hold.view, hold.answered = start.round, start.view, False
        hold.targets = start.targets or flush.stack.view.members
        hold.orphan = hold.at_cut = False
        if hold.kind is Kind.VIEW:
            self._view_key = key
            self._give_up_goals()
            flush.leading.paused()
        else:
            self._drop_goal(key)
        if flush.shut:
            flush.ready(hold)
        else:
            flush.gate.close()

    def _join(self, leader: Address, start: StartFlush) -> Hold | None:
        """None if another flush holds that this one cannot run beside."""
        flush, kind = self.flush, Kind(start.kind)
        for_view = kind is Kind.VIEW
        replaced = [h for h in self.holds.values() if h.leader == leader and (h.kind is Kind.VIEW) == for_view]
        if any(self._conflicts(kind, hold) for hold in self.holds.values() if hold not in replaced):
            return None
        if len(self.holds) > len(replaced):
            flush.note("joins")
        for hold in replaced:  # its end did not reach us, or it starts over
            self._leave(hold, "stop")
            self._promises.discard(hold.key)  # no view came of it; what is answered to this one binds
        flush.note("start")
        return self._add(Hold(leader, start.number, kind))

    def _conflicts(self, kind: Kind, other: Hold) -> bool:
        if Kind.VIEW in (kind, other.kind) or not other.binds:
            return False
        return kind is Kind.EXCLUSIVE or other.kind is Kind.EXCLUSIVE

    def _add(self, hold: Hold) -> Hold:
        flush = self.flush
        self.holds[hold.key] = hold
        if hold.kind is Kind.EXCLUSIVE and hold.leader != flush.stack.local:  # we know how long our own may last
            hold.timer = flush.runtime.call_later(flush.longest(hold.kind), self._hold_too_long, hold)
        if flush.stack.trace.on:
            flush.stack.trace.emit(
                "flush_joined", view=flush.stack.view.id, leader=str(hold.leader), number=hold.number,
                mode=hold.kind.name.lower(),
            )  # fmt: skip
        return hold

    def kept_max(self) -> int:
        """How much is kept of flushes that have not begun here: of each member one for a view and one of its own."""
        return max(KEPT_MAX, 2 * len(self.flush.stack.view.members))

    def _keep(self, key: Key, start: StartFlush) -> None:
        self._later[key] = start
        if len(self._later) > self.kept_max():
            del self._later[next(iter(self._later))]
            self.flush.count("starts_dropped")

    def inherit(self, leaders: Mapping[Address, int]) -> None:
        """These hold flushes in the view that we come to."""
        view = self.flush.stack.view
        for leader, kind in leaders.items():
            if leader in view and self._over.get(leader, ViewId(0, leader)) < view.id and leader not in self.leaders():
                self.flush.note("inherited")
                kind = Kind.EXCLUSIVE if kind == Kind.EXCLUSIVE else Kind.SHARED
                self._add(Hold(leader, INHERITED, kind, answered=True))
                self.flush.gate.close_before_view()

    def wait_for_view(self, leader: Address) -> None:
        """Those who were here before us have not opened their gates yet."""
        hold = Hold(leader, JOINER, Kind.VIEW, answered=True, rest=True)
        self.holds[hold.key] = hold
        self.flush.gate.close_before_view()

    def gate_shut(self) -> None:
        """Each leader that waits for it is told."""
        for hold in list(self.holds.values()):
            current = hold.view == self.flush.stack.view.id  # otherwise its leader starts over
            if current and self.flush.shut and not hold.answered and self.holds.get(hold.key) is hold:
                self.flush.ready(hold)

    # STOP-FLUSH, ABORT-FLUSH, and the ends that come by themselves.

    def find(self, leader: Address, number: int, view: ViewId) -> Hold | None:
        """The flush that its leader says is over; a joiner knows it by no number."""
        self._later.pop((leader, number), None)
        hold = self.holds.get((leader, number)) or self.holds.get((leader, INHERITED))
        if view > self.flush.stack.view.id:
            self._over[leader] = view
            if len(self._over) > self.kept_max():
                del self._over[next(iter(self._over))]
            if hold is None:
                self._trace_left(leader, number, "stop")
        return hold

    def over(self, hold: Hold) -> None:
        """STOP-FLUSH. What a successor has flushed need not stay shut for its predecessor."""
        self._leave(hold, "stop")
        for other in list(self.holds.values()):
            if other.orphan and not other.binds and (hold.kind is Kind.VIEW or other.kind is not Kind.VIEW):
                self._leave(other, "suspect")
        self.flush.note("stop" if not self.holds else "stop_not_last")
        self.settle()

    def end(self, hold: Hold, reason: str) -> None:
        self._leave(hold, reason)
        self.settle()

    def _hold_too_long(self, hold: Hold) -> None:
        hold.timer = None
        self.flush.note("exclusive_max")
        self._tell_left(hold, Why.TIMEOUT)
        self.end(hold, "timeout")

    def end_all(self) -> None:
        """The gate has been shut for too long. Whoever leads a flush of ours is told before anything is sent."""
        holds = list(self.holds.values())
        for hold in holds:
            if hold.leader != self.flush.stack.local:
                self._tell_left(hold, Why.TIMEOUT)
            self._leave(hold, "timeout")
        self.flush.gate.open()
        self.settle()
        self.flush.leading.gate_opened([hold.key for hold in holds])  # last, for others of ours may begin then

    def _tell_left(self, hold: Hold, why: Why) -> None:
        """LEFT-FLUSH. Only an exclusive flush promises its holder what others do meanwhile."""
        if hold.kind is Kind.EXCLUSIVE and not hold.rest:
            self.flush.note("left")
            self.flush.tell(hold.leader, LeftFlush(hold.number, hold.round, why))

    def _leave(self, hold: Hold, reason: str) -> None:
        flush = self.flush
        if self.holds.get(hold.key) is not hold:
            return
        del self.holds[hold.key]
        if hold.timer is not None:
            hold.timer.cancel()
        if not hold.rest:
            self._trace_left(hold.leader, hold.number, reason)
        self._drop_goal(hold.key)
        flush.left(hold)

    def _trace_left(self, leader: Address, number: int, reason: str) -> None:
        stack = self.flush.stack
        if stack.trace.on:
            stack.trace.emit("flush_left", view=stack.view.id, leader=str(leader), number=number, reason=reason)

    def leave_rest(self, hold: Hold, reason: str) -> Hold:
        """The flush is over here, but the gate stays shut for something that is to follow."""
        self._leave(hold, reason)
        rest = Hold(hold.leader, hold.number, Kind.SHARED, targets=hold.targets, answered=True, rest=True)
        self.holds[rest.key] = rest
        return rest

    # What was answered to a flush for a view binds until it is known what became of it.

    def promise(self, hold: Hold) -> None:
        order = self.flush.gate.order
        if hold.kind is Kind.VIEW and order is not None:
            self._promises.add(hold.key)
            order.promise()

    def no_view_came(self, leader: Address, number: int) -> None:
        """Its leader has given it up, or is in our view still when it is over."""
        self._promises.discard((leader, number))
        order = self.flush.gate.order
        if order is not None and not self._promises:
            order.release()

    def settle(self) -> None:
        """After every end: what waited may begin; if nothing holds, the gate opens."""
        if not self._for_view():
            later, self._later = self._later, {}
            for (leader, _), start in later.items():
                self.start(leader, start, kept=True)
            self.flush.leading.go_on()
        if not self.holds:
            self.flush.gate.open()

    def _for_view(self) -> bool:
        return any(hold.kind is Kind.VIEW for hold in self.holds.values())

    # SUSPECT and view changes.

    def suspected(self, members: tuple[Address, ...]) -> None:
        for hold in [hold for hold in self.holds.values() if hold.leader in members]:
            if hold.kind is Kind.VIEW:
                self.flush.note("orphaned")
                hold.orphan = True
            elif hold.kind is Kind.EXCLUSIVE and not self.flush.suspects[hold.leader]:
                self.flush.note("suspect_holder")
                hold.orphan = True
                self._tell_left(hold, Why.SUSPECT)
            elif self.flush.successor_flushes and not hold.rest:
                self.leave_rest(hold, "suspect").orphan = True
            else:
                self.flush.note("suspect_leader")
                self._leave(hold, "suspect")
        self._later = {k: s for k, s in self._later.items() if k[0] not in members or s.kind == Kind.VIEW}
        if any(member in goal.waits for goal in self._goals.values() for member in members):
            self._pursue()
        self.settle()

    def trusted(self, members: tuple[Address, ...]) -> None:
        for hold in self.holds.values():
            if hold.leader in members and not hold.rest:
                hold.orphan = False

    def view_changed(self, view: View) -> None:
        self._promises.clear()
        self._give_up_goals()
        for hold in list(self.holds.values()):
            hold.views += 1
            if hold.stopped:
                self.flush.stopped(hold.leader, hold.number, hold)
            elif hold.leader not in view:
                self.flush.note("view_leader")
                if hold.kind is Kind.VIEW and not hold.rest and hold.leader == view.id.creator:
                    # It left with the view that came of its flush: that says what its STOP-FLUSH would.
                    self.flush.stopped(hold.leader, hold.number, hold)
                else:
                    self._leave(hold, "view")
            elif hold.kind is Kind.VIEW and hold.views > 1:  # its end got lost while we were in different views
                self._leave(hold, "view")
        self._over = {leader: over for leader, over in self._over.items() if over > view.id}
        if self._for_view():  # what is of this view and for the next one need not wait
            for key, start in list(self._later.items()):
                if start.kind == Kind.VIEW:
                    del self._later[key]
                    self.start(key[0], start, kept=True)
        self.settle()

    # Reconciliation.

    def cut(self, leader: Address, cut: Cut) -> None:
        hold = self.holds.get((leader, cut.number))
        if hold is None or hold.round != cut.round or not hold.answered or not self.current(hold):
            return
        if not self.flush.fits(cut.cut, cut.waits):
            return
        hold.at_cut = True
        members = self.flush.stack.view.members
        waits = {m: unit for m, unit in zip(members, cut.waits, strict=False) if unit > (0, 0)}
        then = partial(self._say_reconciled, hold, cut.round)
        self.pursue(hold, Goal(self.flush.by_member(cut.cut), cut.holders, waits, then))

    def _say_reconciled(self, hold: Hold, round: int) -> None:
        self.flush.tell(hold.leader, Reconciled(hold.number, round, self.flush.delivered()))

    def current(self, hold: Hold) -> bool:
        """No other flush goes before this one."""
        if hold.kind is not Kind.VIEW:
            return not self._for_view()
        return hold.key == self._view_key or self._view_key not in self.holds

    def pursue(self, hold: Hold, goal: Goal) -> None:
        self._goals[hold.key] = goal
        self._pursue()

    def _pursue(self) -> None:
        """On to the farthest of all cuts that we were given; those who gave them are told when we are there."""
        self._pursuit += 1
        cut: dict[Address, int] = {}
        holders: dict[Address, Address] = {}
        waits: dict[Address, tuple[int, int]] = {}
        for goal in self._goals.values():
            for sender, last in goal.cut.items():
                cut[sender] = max(last, cut.get(sender, 0))
            holders |= goal.holders
            for peer, unit in goal.waits.items():
                if peer not in self.flush.suspects:
                    waits[peer] = max(unit, waits.get(peer, (0, 0)))
        self._steps_left = 2
        done = partial(self._step_done, self._pursuit)
        self.flush.unicast3.await_units(waits, done)
        self.flush.nakack.advance(cut, holders, done)

    def _step_done(self, pursuit: int) -> None:
        if pursuit == self._pursuit:
            self._steps_left -= 1
            if not self._steps_left:
                goals, self._goals = self._goals, {}
                for goal in goals.values():
                    goal.then()

    def _drop_goal(self, key: Key) -> None:
        if self._goals.pop(key, None) is not None:
            if self._goals:
                self._pursue()
            else:
                self._give_up_goals()

    def _give_up_goals(self) -> None:
        """Stay where we are."""
        self._pursuit += 1
        self._goals.clear()
        if self.flush.nakack.frozen:
            self.flush.nakack.advance({}, {}, lambda: None)
            self.flush.unicast3.await_units({}, lambda: None)

    def held(self) -> dict[str, int]:
        return {"holds": len(self.holds), "kept": len(self._later)}
