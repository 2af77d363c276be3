"""FLUSH: everybody stops multicasting and has delivered the same; everybody tells everybody.

Promises what FLUSH2 does, in the older way: each member says to each other that it has stopped (FLUSH_OK), and how far
it had multicast; whoever has that of all, and everything before it, tells the requester (FLUSH_COMPLETED). What was
sent by unicast before comes before the FLUSH_OK, which takes the same way. A member goes on delivering until it has
every FLUSH_OK, so that a block() may wait for answers to what it multicasts. It costs a message from each to each.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING

from coterie.group.events import ViewChange
from coterie.group.members import Address, View, ViewId
from coterie.group.protocols.flush_base import Kind, Outcome
from coterie.group.protocols.flush_common import Flushing
from coterie.group.protocols.flush_hold import JOINER, Goal, Hold, Key
from coterie.group.protocols.flush_messages import (
    COMMON_RULES,
    AbortFlush,
    Cut,
    FlushCompleted,
    FlushOk,
    LeftFlush,
    Reconciled,
    StartFlush,
    StartFlushFail,
    StartFlushOk,
    StopFlush,
    StopFlushOk,
)
from coterie.group.wire import Codec

if TYPE_CHECKING:
    from coterie.group.stack import Stack


@dataclass(slots=True)
class Vector:
    """The FLUSH_OKs of one flush: how far each member had multicast when it stopped."""

    round: int = 0
    oks: dict[Address, int] = field(default_factory=dict)
    complete: bool = False
    said: bool = False
    """The requester knows that it is complete, and that all of it is delivered."""


class Flush(Flushing):
    """Flushing in which everybody tells everybody that it has stopped."""

    name = "FLUSH"
    id = 25
    starts_over = True
    successor_flushes = True
    codec = Codec(
        {
            1: StartFlush, 2: FlushOk, 3: FlushCompleted, 4: StopFlush, 5: StopFlushOk, 6: StartFlushFail,
            7: AbortFlush, 8: Cut, 9: Reconciled, 10: LeftFlush,
        }
    )  # fmt: skip
    rules = {
        "flush.suspend": "SUSPEND: START_FLUSH goes to everybody who is to take part.",
        "flush.start": "START_FLUSH: BLOCK goes up to the application.",
        "flush.flush_ok": "block() has returned: FLUSH_OK goes to everybody.",
        "flush.all_ok": "The FLUSH_OKs of all members are there.",
        "flush.completed": "Everything that was sent before the FLUSH_OKs is there: FLUSH_COMPLETED to the requester.",
        "flush.same_digests": "FLUSH_COMPLETED has come from all, with the same digest: SUSPEND_OK.",
        "flush.resume": "RESUME: STOP_FLUSH goes to everybody.",
        "flush.stop_member": "STOP_FLUSH after a state transfer: all but the requester unblock, and say STOP_FLUSH_OK.",
        "flush.stop_ok_requester": "STOP_FLUSH_OK after a state transfer: the requester unblocks.",
        "flush.stop_view": "STOP_FLUSH after a view change: who was in the view before unblocks; STOP_FLUSH_OK.",
        "flush.joiner_waits": "Who comes to a view is blocked at first.",
        "flush.stop_ok_joiner": "STOP_FLUSH_OK after a view change: who came with the view unblocks.",
        "flush.suspect_expected": "Suspect: nothing is expected of a suspected member any more.",
        "flush.requester_crashed": "Suspect: the member next to a suspected requester runs the flush from scratch.",
        **{f"flush.{name}": sentence for name, sentence in COMMON_RULES.items()},
    }

    def attach(self, stack: Stack) -> None:
        super().attach(stack)
        self._vectors: dict[Key, Vector] = {}
        self._stopping: dict[Key, dict[Address, None]] = {}
        """By flush of ours that is over: whose STOP_FLUSH_OK is still expected."""
        self._opened: ViewId | None = None
        """The latest view whose members said that their gates are open again."""
        self._succeeding = False

    def handle(self, peer: Address, message: object) -> None:
        match message:
            case FlushOk(leader, number, round, upto):
                self._record((leader, number), round, peer, upto)
            case FlushCompleted(number, round, digest):
                self.leading.answered(peer, StartFlushOk(number, round, digest, (), ()))
            case StopFlushOk(leader, number, view):
                self._others_open(peer, (leader, number), view)
            case _:
                super().handle(peer, message)

    # FLUSH_OK from everybody, then FLUSH_COMPLETED.

    def ready(self, hold: Hold) -> None:
        """FLUSH_OK."""
        hold.answered = True
        self.holding.promise(hold)
        self.note("flush_ok")
        local = self.stack.local
        ok = FlushOk(hold.leader, hold.number, hold.round, self.nakack.sent)
        self.tell_all([m for m in hold.targets if m != local], ok)
        self.handle(local, ok)

    def _record(self, key: Key, round: int, peer: Address, upto: int) -> None:
        """It may come before the START_FLUSH that it answers."""
        vector = self._vectors.get(key)
        if vector is None:
            early = [k for k in self._vectors if k not in self.holding.holds]
            if len(early) >= self.holding.kept_max():
                del self._vectors[early[0]]
            vector = self._vectors[key] = Vector()
        if round > vector.round:
            vector.round, vector.oks, vector.complete, vector.said = round, {}, False, False
        if round == vector.round:
            vector.oks[peer] = upto
            self._look_at(key)

    def _look_at(self, key: Key) -> None:
        """Is every FLUSH_OK there? One counts when everything that was multicast before it has been delivered."""
        hold, vector = self.holding.holds.get(key), self._vectors.get(key)
        if hold is None or vector is None or vector.complete or not hold.answered or vector.round != hold.round:
            return
        live = [m for m in hold.targets if m not in self.suspects]
        if all(m in vector.oks for m in live) and self.shut and self.holding.current(hold):
            vector.complete = True
            self.note("all_ok")
            self.nakack.freeze()
            cut = {m: vector.oks[m] for m in live}
            self.holding.pursue(hold, Goal(cut, {m: m for m in live}, {}, partial(self._completed, hold, vector)))

    def _completed(self, hold: Hold, vector: Vector) -> None:
        vector.said = True
        self.note("completed")
        self.tell(hold.leader, FlushCompleted(hold.number, vector.round, self.delivered()))

    def late(self, number: int, round: int, expected: tuple[Address, ...]) -> tuple[Address, ...]:
        """If somebody has not said FLUSH_OK, it is nobody else's fault."""
        vector = self._vectors.get((self.stack.local, number))
        oks = vector.oks if vector is not None and vector.round == round else {}
        return tuple(m for m in expected if m not in oks) or expected

    # STOP_FLUSH and STOP_FLUSH_OK.

    def stopped(self, leader: Address, number: int, hold: Hold | None) -> None:
        local, view = self.stack.local, self.stack.view
        if hold is not None and hold.kind is Kind.VIEW:
            self.note("stop_view")
            joiners = [m for m in view.members if m not in hold.targets]
            self.holding.over(hold)
            self.tell_all(joiners, StopFlushOk(leader, number, view.id))
        elif leader != local:
            if hold is not None:
                self.note("stop_member")
                self.holding.over(hold)
            self.tell(leader, StopFlushOk(leader, number, view.id))
        elif hold is not None:
            others = {m: None for m in hold.targets if m != local and m in view and m not in self.suspects}
            if others:
                rest = self.holding.leave_rest(hold, "stop")
                rest.timer = self.runtime.call_later(self.settings.timeout, self.holding.over, rest)
                self._stopping[rest.key] = others
            else:
                self.holding.over(hold)

    def _others_open(self, peer: Address, key: Key, view: ViewId) -> None:
        rest = self.holding.holds.get(key)
        if key in self._stopping and rest is not None:
            self._stopping[key].pop(peer, None)
            if not self._stopping[key]:
                self.note("stop_ok_requester")
                self.holding.over(rest)
        elif key[0] != self.stack.local:
            self._opened = view if self._opened is None else max(view, self._opened)
            for hold in list(self.holding.holds.values()):
                if hold.number == JOINER and view >= self.stack.view.id:
                    self.note("stop_ok_joiner")
                    self.holding.over(hold)

    # Suspects and views.

    def suspected(self, members: tuple[Address, ...]) -> None:
        """Nothing of theirs is expected any more; and if one of them had flushed the group, its successor does."""
        super().suspected(members)
        self._do_not_wait_for(members)
        for key, vector in list(self._vectors.items()):
            if vector.complete and not vector.said:  # what we still wait for may never come
                vector.complete = False
            self._look_at(key)
        if any(hold.orphan and hold.rest and self._next_to(hold.leader) for hold in self.holding.holds.values()):
            self._succeed()

    def changed(self, view: View, before: tuple[Address, ...]) -> None:
        super().changed(view, before)
        self._do_not_wait_for(tuple(m for m in before if m not in view))

    def _do_not_wait_for(self, members: tuple[Address, ...]) -> None:
        for key in list(self._stopping):
            for member in members:
                self._others_open(member, key, self.stack.view.id)

    def _next_to(self, requester: Address) -> bool:
        """Are we the next member of the view, of those who live?"""
        members = self.stack.view.members
        if requester not in members:
            return False
        at = members.index(requester)
        following = [m for m in (*members[at + 1 :], *members[:at]) if m not in self.suspects]
        return following[:1] == [self.stack.local]

    def _succeed(self) -> None:
        if not self._succeeding:
            self._succeeding = True
            self.note("requester_crashed")
            live = tuple(m for m in self.stack.view.members if m not in self.suspects)
            self.suspend(Kind.SHARED, live, self._succeeded)

    def _succeeded(self, outcome: Outcome) -> None:
        self._succeeding = False
        if outcome.ok:
            self.resume(outcome.number)

    def left(self, hold: Hold) -> None:
        self._vectors.pop(hold.key, None)
        self._stopping.pop(hold.key, None)

    def joins(self, event: ViewChange, before: tuple[Address, ...]) -> None:
        """Who comes to a view waits until those who were there before have opened their gates."""
        view = event.view
        if not before and len(view.members) > 1 and not (self._opened is not None and self._opened >= view.id):
            leader = view.id.creator if view.id.creator in view else view.coordinator
            self.note("joiner_waits")
            self.holding.wait_for_view(leader)
        super().joins(event, before)
