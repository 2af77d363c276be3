"""The leader's side of a flush: SUSPEND, answers, reconciliation, RESUME.

    (asked for) --> WAITING        another flush of this member must end first
                --> STARTING       START-FLUSH is out; an answer of each target is expected
    STARTING    --> HELD           all have answered, and are equally far
                --> RECONCILING    they are not: the cut is out
    RECONCILING --> HELD           everybody is exactly there
                --> STARTING       somebody is not, or is gone: the next round
    STARTING, RECONCILING --> PAUSED --> STARTING     a view change goes first
    any         --> OVER           RESUME, a failure, or its time is up

A member leads at most one flush for a view, and at most one of another kind, at a time.
"""

from __future__ import annotations

from collections import deque
from dataclasses import replace
from enum import Enum
from typing import TYPE_CHECKING

from coterie.group.events import ViewChange
from coterie.group.members import Address, View
from coterie.group.protocols import flush_cut
from coterie.group.protocols.flush_base import Done, Kind, Lost, Outcome
from coterie.group.protocols.flush_cut import Plan
from coterie.group.protocols.flush_messages import (
    INHERITED,
    AbortFlush,
    Cut,
    Digest,
    StartFlush,
    StartFlushOk,
    StopFlush,
    Why,
)
from coterie.runtime.base import Timer

if TYPE_CHECKING:
    from coterie.group.protocols.flush_common import Flushing

CLOCK_ERROR = 1e-6
LEFT = {Why.SUSPECT: "which takes this member for dead,", Why.TIMEOUT: "whose gate was shut for too long,"}


class Phase(Enum):
    WAITING = 1
    STARTING = 2
    RECONCILING = 3
    PAUSED = 4
    HELD = 5
    OVER = 6


class Lead:
    """One flush that this member leads: the FlushState of the document, as far as it is the leader's."""

    __slots__ = (
        "answers", "cut", "dropped", "expected", "handles", "is_lost", "kind", "limit", "lost", "number", "outcome",
        "phase", "round", "strayed", "targets", "timer", "told", "total",
    )  # fmt: skip

    def __init__(
        self, number: int, kind: Kind, targets: tuple[Address, ...], total: bool, done: Done, lost: Lost | None = None
    ) -> None:
        self.number = number
        self.kind = kind
        self.targets = targets
        self.total = total
        """All of the view: it stays so when members come."""
        self.handles: dict[int, Done] = {number: done}
        """Who asked for it, by the number that they know it by."""
        self.lost = lost
        """Told once if it ends by itself after it held."""
        self.is_lost = False
        """It has been told."""
        self.phase = Phase.WAITING
        self.round = 0
        self.expected: dict[Address, None] = {}
        """`start_flush_set`: of whom an answer is expected in this phase."""
        self.told: dict[Address, None] = {}
        """`stop_flush_set`: who must hear when it is over."""
        self.answers: dict[Address, StartFlushOk] = {}
        self.dropped = False
        """Somebody went away in this round: its stream has no known end."""
        self.strayed = False
        """Somebody is not at the cut."""
        self.cut: Digest = ()
        self.outcome: Outcome | None = None
        """As it was when it began to hold."""
        self.limit = 0.0
        """When it is over in any case."""
        self.timer: Timer | None = None


class Leading:
    def __init__(self, flush: Flushing) -> None:
        self.flush = flush
        self.leads: dict[int, Lead] = {}
        """Those that run, by number."""
        self._queue: deque[Lead] = deque()
        self._numbers = 0
        self._led_in_view = False
        """Since this view began: a joiner of the next may have been told that our flush holds."""

    def stop(self) -> None:
        leads = [*self.leads.values(), *self._queue]
        held = [lead for lead in leads if lead.phase is Phase.HELD]
        for lead in leads:
            self._end(lead)
        self._queue.clear()
        for lead in leads:
            if lead in held:
                self._say_lost(lead, "ended with its channel")
            else:
                self._say_failed(lead, "the channel was closed")

    # SUSPEND.

    def suspend(self, kind: Kind, targets: tuple[Address, ...], done: Done, lost: Lost | None = None) -> int:
        self._numbers += 1
        number = self._numbers
        flush, members = self.flush, self.flush.members
        if not members and kind is not Kind.VIEW:
            done(Outcome(False, number, reason="this member is in no view yet"))
            return number
        members = flush.stack.view.members
        targets = tuple(m for m in members if m in targets)
        lead = Lead(number, kind, targets, False, done, lost)
        lead.total = all(m in targets or self._is_gone(lead, m) for m in members)
        other = self._for_view() if kind is Kind.VIEW else self._own()
        if other is None:
            self._begin(lead)
        elif kind is Kind.VIEW:
            self._replace(other, lead)
            self._begin(lead)
        elif kind is other.kind is Kind.SHARED and set(targets) <= set(other.targets):
            other.handles[number] = done
            if other.outcome is not None:
                done(replace(other.outcome, number=number))
        elif len(self._queue) < flush.settings.waiting_max:
            flush.note("waits")
            self._queue.append(lead)
        else:
            flush.count("too_many_waiting")
            done(Outcome(False, number, reason="too many flushes of this member wait already"))
        return number

    def _for_view(self) -> Lead | None:
        return next((lead for lead in self.leads.values() if lead.kind is Kind.VIEW), None)

    def _own(self) -> Lead | None:
        """The one that runs for this member's own ends: state transfer, or the application."""
        return next((lead for lead in self.leads.values() if lead.kind is not Kind.VIEW), None)

    def _replace(self, old: Lead, new: Lead) -> None:
        """A view change starts over: whoever is a target of both hears of the new one only."""
        held = old.phase is Phase.HELD
        self._end(old)
        self._trace("flush_ended" if held else "flush_failed", old, reason=None if held else "replaced")
        self._tell_over(old, [m for m in old.told if m not in new.targets])
        if not held:
            self._say_failed(old, "replaced by a later one")

    def _begin(self, lead: Lead) -> None:
        flush = self.flush
        self.leads[lead.number] = lead
        self._led_in_view |= lead.kind is not Kind.VIEW
        lead.limit = flush.runtime.now() + flush.longest(lead.kind)
        self._trace("flush_started", lead, targets=lead.targets)
        flush.note("suspend")
        self._next_round(lead)

    def _next_round(self, lead: Lead) -> None:
        flush, local = self.flush, self.flush.stack.local
        lead.targets = tuple(m for m in lead.targets if not self._is_gone(lead, m) or m == local)
        if not lead.targets:
            self._fail(lead, "nobody is left to be flushed")
            return
        lead.round += 1
        lead.phase = Phase.STARTING
        lead.answers = {}
        lead.dropped = lead.strayed = False
        lead.expected = dict.fromkeys(lead.targets)
        lead.told |= lead.expected
        self._wait(lead)
        view = flush.stack.view
        targets = () if lead.targets == view.members else lead.targets
        start = StartFlush(lead.number, lead.round, view.id, lead.kind, targets)
        flush.tell_all([m for m in lead.targets if m != local], start)
        if local in lead.expected:  # last: the others can begin meanwhile
            flush.holding.start(local, start)

    # Answers.

    def answered(self, peer: Address, answer: StartFlushOk) -> None:
        """START-FLUSH-OK, or FLUSH_COMPLETED."""
        lead = self._expecting(peer, answer.number, answer.round, Phase.STARTING)
        if lead is not None and self.flush.fits(answer.digest, answer.sent, answer.received):
            del lead.expected[peer]
            lead.answers[peer] = answer
            if not lead.expected:
                self._all_answered(lead)

    def refused(self, peer: Address, number: int, round: int) -> None:
        """START-FLUSH-FAIL."""
        lead = self._expecting(peer, number, round, Phase.STARTING)
        if lead is not None:
            self.flush.note("abort")
            self._fail(lead, f"{peer} takes part in another flush")

    def reconciled(self, peer: Address, number: int, round: int, digest: Digest) -> None:
        lead = self._expecting(peer, number, round, Phase.RECONCILING)
        if lead is not None:
            del lead.expected[peer]
            lead.strayed |= digest != lead.cut
            if not lead.expected:
                if lead.strayed:
                    self._again(lead)
                else:
                    self._hold(lead)

    def _expecting(self, peer: Address, number: int, round: int, phase: Phase) -> Lead | None:
        lead = self.leads.get(number)
        if lead is None or lead.phase is not phase or lead.round != round or peer not in lead.expected:
            return None  # of an earlier round, or of one that is over
        return lead

    def _all_answered(self, lead: Lead) -> None:
        answers = lead.answers
        if not answers:
            self._fail(lead, "nobody has answered")
            return
        plan = flush_cut.plan(self.flush.stack.view.members, answers)
        lead.cut = plan.cut
        if plan.complete and not (lead.dropped and self.flush.delivers_ahead):
            self.flush.note("same_digests")
            self._hold(lead)
        else:
            self.flush.note("reconcile")
            if plan.waits:
                self.flush.note("unicasts")
            self._reconcile(lead, plan)

    def _reconcile(self, lead: Lead, plan: Plan) -> None:
        flush, local = self.flush, self.flush.stack.local
        lead.phase = Phase.RECONCILING
        lead.targets = tuple(m for m in lead.targets if m in lead.answers)
        lead.expected = dict.fromkeys(lead.targets)
        self._wait(lead)
        for member in sorted(lead.targets, key=lambda m: m == local):  # ourselves last
            flush.tell(member, Cut(lead.number, lead.round, plan.cut, plan.holders, plan.waits.get(member, ())))

    def _again(self, lead: Lead) -> None:
        self.flush.note("new_round")
        self.flush.count("rounds")
        self._next_round(lead)

    def _hold(self, lead: Lead) -> None:
        """SUSPEND_OK."""
        lead.phase = Phase.HELD
        lead.outcome = Outcome(True, lead.number, lead.targets, self.flush.by_member(lead.cut))
        self._trace("flush_held", lead, targets=lead.targets)
        for number, done in list(lead.handles.items()):
            done(replace(lead.outcome, number=number))

    def _say_failed(self, lead: Lead, reason: str) -> None:
        for number, done in list(lead.handles.items()):
            done(Outcome(False, number, reason=reason))

    # Time.

    def _wait(self, lead: Lead) -> None:
        self._wake_at(lead, self.flush.runtime.now() + self.flush.settings.timeout)

    def _wake_at(self, lead: Lead, time: float) -> None:
        if lead.timer is not None:
            lead.timer.cancel()
        delay = min(time, lead.limit) - self.flush.runtime.now()
        lead.timer = self.flush.runtime.call_later(max(0.0, delay), self._time_is_up, lead)

    def _time_is_up(self, lead: Lead) -> None:
        lead.timer = None
        flush = self.flush
        if self._is_over(lead):
            if lead.phase is Phase.HELD:
                self._expire(lead)
            else:
                self._fail(lead, "its time is up")
        elif lead.phase in (Phase.HELD, Phase.PAUSED):
            self._wake_at(lead, lead.limit)
        elif lead.kind is not Kind.VIEW:
            flush.note("timeout")
            self._fail(lead, f"no answer from {', '.join(map(str, lead.expected))}")
        else:
            flush.note("left_out")
            self._drop(lead, flush.late(lead.number, lead.round, tuple(lead.expected)))

    def _is_over(self, lead: Lead) -> bool:
        """Its time is up. Whoever takes part counts from a little later on, and may have released it by itself."""
        return self.flush.runtime.now() >= lead.limit - CLOCK_ERROR

    def _expire(self, lead: Lead) -> None:
        settings = self.flush.settings
        name = "exclusive_max" if settings.exclusive_max <= settings.hold_max else "hold_max"
        self._say_lost(lead, f"was released after {name} ({self.flush.longest(lead.kind):g} s)")
        self._release(lead)

    # A flush that held, and does not any more.

    def _say_lost(self, lead: Lead, why: str) -> None:
        if not lead.is_lost:
            lead.is_lost = True
            if lead.kind is Kind.EXCLUSIVE:
                self._trace("flush_lost", lead, reason=why)
            if lead.lost is not None:
                lead.lost(why)

    def left(self, peer: Address, number: int, round: int, why: int) -> None:
        """LEFT-FLUSH. The peer may have left by itself, or waits until it hears that we know."""
        flush = self.flush
        lead = self._own() if number == INHERITED else self.leads.get(number)
        if why not in list(Why):
            flush.count("malformed")
        elif lead is None or lead.kind is not Kind.EXCLUSIVE:
            flush.tell(peer, StopFlush(number, flush.stack.view.id))
        elif peer not in flush.stack.view or peer not in lead.told:
            return
        elif lead.phase is Phase.HELD and (number == INHERITED or round == lead.round):
            flush.note("lost")
            self._say_lost(lead, f"was left by {peer}, {LEFT[Why(why)]}")
            self._release(lead)
        elif lead.phase in (Phase.STARTING, Phase.RECONCILING) and round == lead.round:
            self._fail(lead, f"{peer} left it, {LEFT[Why(why)]}")

    def members_come(self, event: ViewChange, before: tuple[Address, ...]) -> None:
        """Whoever comes to a view is told whose flushes hold in it, by whoever made the view. In a merge nobody is:
        each part has its own. It is released when the application knows the view."""
        for lead in self.leads.values():
            if lead.kind is Kind.EXCLUSIVE and lead.phase is Phase.HELD and lead.total:
                came = [str(m) for m in event.view.members if m not in before]
                if came and event.holders.get(self.flush.stack.local) != Kind.EXCLUSIVE:
                    self.flush.note("newcomers")
                    self._say_lost(lead, f"ended when {', '.join(came)} came, whom it did not block,")

    def gate_opens(self) -> None:
        """Our gate was shut for too long, and opens by itself: what holds elsewhere does not hold here any more."""
        limit = self.flush.settings.hold_max
        for lead in list(self.leads.values()):
            if lead.phase is Phase.HELD and self.flush.stack.local in lead.targets:
                self._say_lost(lead, f"ended when a gate had been shut for hold_max ({limit:g} s)")

    def gate_opened(self, left: list[tuple[Address, int]]) -> None:
        """These are over here. Of ours, what holds for an application is released, and what has not come so far cannot
        hold any more: what was answered here is not true any longer."""
        for lead in list(self.leads.values()):
            if (self.flush.stack.local, lead.number) in left and self.leads.get(lead.number) is lead:
                if lead.phase in (Phase.STARTING, Phase.RECONCILING):
                    self._fail(lead, "our own gate was shut for too long")
                elif lead.phase is Phase.HELD and lead.kind is Kind.EXCLUSIVE:
                    self._release(lead)

    def _drop(self, lead: Lead, gone: tuple[Address, ...]) -> None:
        """Nothing is expected of these any more."""
        lead.targets = tuple(m for m in lead.targets if m not in gone)
        for member in gone:
            lead.expected.pop(member, None)
            lead.answers.pop(member, None)
        lead.dropped = True
        if lead.phase is Phase.RECONCILING or (lead.phase is Phase.STARTING and self.flush.starts_over):
            self._again(lead)
        elif lead.phase is Phase.STARTING and not lead.expected:
            self._all_answered(lead)

    # SUSPECT, view changes, and flushes for views, which go first.

    def suspected(self, members: tuple[Address, ...]) -> None:
        for lead in list(self.leads.values()):
            gone = tuple(m for m in members if m in lead.targets and self._is_gone(lead, m))
            if gone and lead.phase is not Phase.OVER:
                self.flush.note("suspect_expected")
                self._drop(lead, gone)

    def _is_gone(self, lead: Lead, member: Address) -> bool:
        """Nothing is expected of it any more. Who is only suspected may live, be in our view and multicast: an
        exclusive flush does not hold before it has answered, or is dead, or out of the view."""
        proven = self.flush.suspects.get(member)
        return proven is True if lead.kind is Kind.EXCLUSIVE else proven is not None

    def paused(self) -> None:
        """This member takes part in a flush for a view."""
        lead = self._own()
        if lead is not None and lead.phase in (Phase.STARTING, Phase.RECONCILING):
            self.flush.note("preempted")
            lead.phase = Phase.PAUSED
            self._wake_at(lead, lead.limit)

    def go_on(self) -> None:
        """No flush for a view holds here any more."""
        lead = self._own()
        if lead is not None and lead.phase is Phase.PAUSED:
            self._next_round(lead)

    def view_changed(self, view: View, before: tuple[Address, ...]) -> None:
        """Who is not part of it is not expected any more; rounds under way start over in it."""
        for lead in list(self.leads.values()):
            if lead.kind is Kind.VIEW:
                lead.is_lost = False
                if lead.phase is not Phase.HELD:
                    self._fail(lead, "the view changed")
                continue
            lead.targets = view.members if lead.total else tuple(m for m in lead.targets if m in view)
            if lead.is_lost:
                self._release(lead)
            elif lead.phase is not Phase.HELD:
                self.flush.note("view_expected")
                self._next_round(lead)
            elif lead.total:
                lead.told |= dict.fromkeys(view.members)  # those who came hold it, too
        own = self._own()
        if self._led_in_view:
            came = [m for m in view.members if m not in before and (own is None or m not in own.told)]
            self.flush.tell_all(came, StopFlush(0, view.id))
        self._led_in_view = own is not None

    # RESUME, and failure.

    def resume(self, number: int, made: View | None = None) -> None:
        lead = next((lead for lead in (*self.leads.values(), *self._queue) if number in lead.handles), None)
        if lead is None:
            return
        if len(lead.handles) > 1:  # others still hold it
            done = lead.handles.pop(number)
            if lead.phase is not Phase.HELD:
                done(Outcome(False, number, reason="given up"))
        elif lead.phase is Phase.HELD and self._is_over(lead):  # the process stood still: its timer comes later
            self._expire(lead)
        elif lead.phase is Phase.HELD:
            self._release(lead, made)
        elif lead.phase is Phase.WAITING:
            self._queue.remove(lead)
            self._say_failed(lead, "given up")
        else:
            self._fail(lead, "given up")

    def _release(self, lead: Lead, made: View | None = None) -> None:
        self.flush.note("resume")
        self._end(lead)
        self._trace("flush_ended", lead)
        # One for a view that our gate has not outlasted may have led others to a view that we cannot install: to say
        # that none came of it would be wrong. The next one, or time, opens their gates.
        unknown = lead.kind is Kind.VIEW and lead.is_lost
        self._tell_over(lead, [] if unknown else list(lead.told), ok=True, made=made)
        self._next_in_queue()

    def _fail(self, lead: Lead, reason: str) -> None:
        self._end(lead)
        self.flush.count("failed")
        self._trace("flush_failed", lead, reason=reason)
        self._tell_over(lead, list(lead.told))
        self._say_failed(lead, reason)
        self._next_in_queue()

    def _end(self, lead: Lead) -> None:
        if lead.timer is not None:
            lead.timer.cancel()
            lead.timer = None
        self.leads.pop(lead.number, None)
        lead.phase = Phase.OVER

    def _tell_over(self, lead: Lead, members: list[Address], ok: bool = False, made: View | None = None) -> None:
        """Suspects too, unless their death is proven: whoever was suspected in error must not stay blocked."""
        flush, local, view = self.flush, self.flush.stack.local, self.flush.stack.view
        stop, abort = StopFlush(lead.number, view.id), AbortFlush(lead.number, view.id)
        others = [m for m in members if m != local and not flush.suspects.get(m)]
        # A view that came of it concerns those who are in it: they are to wait for it.
        came = view if made is None else made
        told = [m for m in others if ok and (lead.kind is not Kind.VIEW or m in came)]
        flush.tell_all(told, StopFlush(lead.number, came.id))
        flush.tell_all([m for m in others if m not in told], abort)
        if local in members:
            flush.tell(local, stop if ok else abort)

    def _next_in_queue(self) -> None:
        if self._queue and self._own() is None:
            lead = self._queue.popleft()
            members = self.flush.stack.view.members
            lead.targets = members if lead.total else tuple(m for m in lead.targets if m in members)
            self._begin(lead)

    def _trace(self, kind: str, lead: Lead, targets: tuple[Address, ...] = (), reason: str | None = None) -> None:
        trace = self.flush.stack.trace
        if trace.on:
            trace.emit(
                kind, view=self.flush.stack.view.id, number=lead.number, mode=lead.kind.name.lower(), reason=reason,
                targets=[str(m) for m in targets] if targets else None,
                total=lead.total if kind == "flush_held" else None,
            )  # fmt: skip

    def held(self) -> dict[str, int]:
        return {"leading": len(self.leads), "waiting": len(self._queue)}
