"""What a coordinator does: view changes, merges that it leads, and its part in merges that another leads.

Each is told here from its beginning to its end. Whenever it has waited, it looks whether its time is over: the view
handler has been resumed by someone else (`turn`), or another view was installed.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from coterie.group.members import Address, View
from coterie.group.protocols.flush_base import Kind, Outcome
from coterie.group.protocols.gms.messages import (
    COUNTER_MAX,
    Ack,
    CancelMerge,
    Installation,
    InstallMerge,
    JoinRsp,
    LeaveRsp,
    MergeAccepted,
    MergeReq,
    MergeRsp,
    NewView,
    Part,
)
from coterie.group.protocols.gms.view_handler import Join, Leave, Request, Work
from coterie.runtime.base import Future

if TYPE_CHECKING:
    from coterie.group.protocols.gms.gms import Gms


class Coordinator:
    def __init__(self, gms: Gms) -> None:
        self._gms = gms
        self._flushing: int | None = None
        """The flush that our present work holds."""
        self._made: View | None = None
        """The view that came of it, if we leave with it."""
        self._outcome: Future[Outcome] | None = None
        self._merge: tuple[Address, int] | None = None
        """The merge that we take part in: its leader, and its number there."""
        self._offer: MergeRsp | None = None
        """Repeated until it is decided on."""
        self._partners: dict[tuple[Address, int], None] = {}
        """Whose offers to the merge that we lead came in time: they are repeated until it is decided on."""
        self._decision: Future[InstallMerge | None] | None = None

    def stop(self) -> None:
        self._give_up_waiting()

    # The flush around everything.

    async def _flush(self, targets: tuple[Address, ...]) -> Outcome:
        """Suspend the group. The flush is released by `_release`, whatever happens meanwhile."""
        future: Future[Outcome] = self._gms.runtime.future()
        self._outcome = future

        def done(outcome: Outcome) -> None:
            if not future.done():
                future.set_result(outcome)

        self._flushing = self._gms.flush.suspend(Kind.VIEW, targets, done)
        outcome = await future
        if self._outcome is future:
            self._outcome = None
        return outcome

    def _release(self) -> None:
        if self._flushing is not None:
            number, self._flushing = self._flushing, None
            made, self._made = self._made, None
            self._gms.flush.resume(number, made)

    def _overtaken(self, turn: int, view: View) -> bool:
        gms = self._gms
        return turn != gms.handler.turn or gms.stack.view is not view or not gms.stack.running

    def resumed(self) -> None:
        """The view handler is free again: whatever it worked on is over."""
        self._give_up_waiting()
        self._release()

    def _give_up_waiting(self) -> None:
        self._merge = self._offer = None
        outcome, self._outcome = self._outcome, None
        if outcome is not None and not outcome.done():
            outcome.set_result(Outcome(False, 0, reason="given up"))
        decision, self._decision = self._decision, None
        if decision is not None and not decision.done():
            decision.set_result(None)

    # Joins, leaves, crashes.

    async def change_view(self, requests: list[Request], turn: int) -> None:
        self._gms.handler.done(turn, await self._change_view(requests, turn))

    async def _change_view(self, requests: list[Request], turn: int) -> bool:
        """V2 = M - S - L + J."""
        gms, view, local = self._gms, self._gms.stack.view, self._gms.stack.local
        if not gms.leads:
            return True
        gone = gms.out_of_touch()
        leavers = [r.member for r in requests if isinstance(r, Leave) and r.member in view]
        joiners = self._joiners(requests, view)
        replaced = [m for m in view.members for j in joiners if j.name == m.name]
        staying = tuple(m for m in view.members if m not in gone and m not in replaced)
        if len(staying) == len(view.members) and not leavers and not joiners:
            return True
        if view.coordinator != local:
            gms.rule("gms.took_over")
        if gone:
            gms.announce()  # whoever missed a view that its dead maker made, or is ahead of us, says so now
        outcome = await self._flush(staying)
        if self._overtaken(turn, view) or not outcome.ok:
            return False
        if len(outcome.answered) < len(staying):
            gms.rule("gms.silent")
        going = tuple(m for m in view.members if m in outcome.answered and m not in leavers)
        states = tuple(m for m, state in joiners.items() if state and going)
        install = Installation(
            gms.next_id(), (*going, *joiners), (Part(view.id, going, outcome.cut),), states,
            going[0] if states else None, gms.flush.holders(),
        )  # fmt: skip
        for name, happened in (
            ("crash", gone), ("leave", leavers), ("join", joiners), ("join_state", states), ("reincarnated", replaced),
        ):  # fmt: skip
            if happened:
                gms.rule(f"gms.{name}")
        return await self._disseminate(install, outcome.answered, leavers, list(joiners), turn)

    def _joiners(self, requests: list[Request], view: View) -> dict[Address, bool]:
        """Of several incarnations of a name the newest."""
        joiners = {r.member: r.state for r in requests if isinstance(r, Join) and r.member not in view}
        newest: dict[str, int] = {}
        for member in joiners:
            newest[member.name] = max(member.incarnation, newest.get(member.name, 0))
        return {m: state for m, state in joiners.items() if newest[m.name] == m.incarnation}

    async def _disseminate(
        self, install: Installation, old: tuple[Address, ...], leavers: list[Address], joiners: list[Address], turn: int
    ) -> bool:
        """Tell those who were in the view, then those who leave, then those who come, each when the former acked."""
        gms, local = self._gms, self._gms.stack.local
        timeout = gms.settings.ack_timeout
        if local not in install.members:
            self._made = install.view()
        elif not gms.install(install):
            return False
        number = gms.rounds.number()
        told = {m: NewView(number, install) for m in old if m != local}
        await self._until_acked(number, told, install)
        if leavers:
            number = gms.rounds.number()
            await gms.rounds.run(number, {m: LeaveRsp(number) for m in leavers if m != local}, timeout / 4)
        if turn == gms.handler.turn and joiners:
            number = gms.rounds.number()
            await self._until_acked(number, {m: JoinRsp(number, install) for m in joiners}, install)
        if local in leavers:
            if turn == gms.handler.turn:
                self._release()
            gms.let_go()
        return True

    async def _until_acked(self, number: int, messages: Mapping[Address, object], install: Installation) -> None:
        gms = self._gms
        acks = await gms.rounds.run(number, messages, gms.settings.ack_timeout)
        missing = [m for m in messages if acks.get(m) is not True]
        if messages and not missing:
            gms.rule("gms.acked")
        elif missing and gms.stack.running:
            gms.rule("gms.no_ack")
            if gms.stack.view.id == install.id:
                for member in missing:
                    gms.depart(member)

    # A merge that we lead.

    def found(self, others: tuple[Address, ...]) -> None:
        """MERGE."""
        if self._gms.handler.merge():
            self._gms.runtime.spawn(self._lead_merge(others, self._gms.handler.turn))

    async def _lead_merge(self, others: tuple[Address, ...], turn: int) -> None:
        gms = self._gms
        number = gms.rounds.number()
        asked = {m: MergeReq(number) for m in others}
        answers = await gms.rounds.run(number, asked, gms.settings.merge_timeout, gms.flush_timeout)
        offers = {m: part for m, part in sorted(answers.items()) if isinstance(part, Part)}
        self._partners = {(member, number): None for member in offers}
        ok = await self._merge_parts(number, dict(offers), turn)
        self._partners.clear()
        if not ok and gms.stack.running:
            for member in offers:
                self._call_off(member, number)
        gms.handler.done(turn, ok)

    def offered(self, member: Address, number: int, part: Part | None) -> None:
        """MERGE-RSP. What is offered too late is turned down: a part must not stay flushed for nothing."""
        if part is not None and part.view.counter > COUNTER_MAX:
            part = None
        in_time = self._gms.rounds.answered(number, member, part)
        if part is None:
            return
        if in_time:
            self._partners[member, number] = None  # at once: the same offer may come again in this turn
        elif (member, number) not in self._partners:
            self._call_off(member, number)

    def _call_off(self, member: Address, number: int) -> None:
        self._gms.rule("gms.merge_cancelled")
        self._gms.send(CancelMerge(number), member)

    async def _merge_parts(self, merge: int, others: dict[Address, Part], turn: int) -> bool:
        gms, view = self._gms, self._gms.stack.view
        if not others or turn != gms.handler.turn or not gms.leads:
            return False
        gone = gms.out_of_touch()
        outcome = await self._flush(tuple(m for m in view.members if m not in gone))
        if self._overtaken(turn, view) or not outcome.ok:
            return False
        parts = [Part(view.id, tuple(m for m in view.members if m in outcome.answered), outcome.cut)]
        for member in list(others):
            if _overlap(parts, others[member]):
                self._call_off(member, merge)
                del others[member]
            else:
                parts.append(others[member])
        if not others:
            return False
        gms.counter = max(gms.counter, *(part.view.counter for part in parts))
        members = tuple(m for part in parts for m in part.members)
        install = Installation(gms.next_id(), members, tuple(parts))
        gms.rule("gms.merged")
        # The other parts first: while we wait for acks of our own they install it, too.
        number = gms.rounds.number()
        told = {m: InstallMerge(number, merge, install) for m in others}
        parts_done = gms.runtime.spawn(gms.rounds.run(number, told, gms.settings.ack_timeout))
        ok = await self._disseminate(install, parts[0].members, [], [], turn)
        await parts_done
        return ok

    # A merge that another leads.

    def asked(self, leader: Address, number: int) -> None:
        """MERGE-REQ."""
        gms = self._gms
        if self._merge == (leader, number):
            if self._offer is None:
                gms.send(MergeAccepted(number), leader)
        elif not gms.leads or leader in gms.stack.view or not gms.handler.merge_request(leader):
            gms.send(MergeRsp(number, None), leader)
        else:
            self._merge = leader, number
            gms.send(MergeAccepted(number), leader)
            gms.runtime.spawn(self._take_part(leader, number, gms.handler.turn))

    async def _take_part(self, leader: Address, number: int, turn: int) -> None:
        gms, view = self._gms, self._gms.stack.view
        gone = gms.out_of_touch()
        outcome = await self._flush(tuple(m for m in view.members if m not in gone))
        if self._overtaken(turn, view) or not outcome.ok:
            if gms.stack.running:
                gms.send(MergeRsp(number, None), leader)
            gms.handler.done(turn, False)
            return
        part = Part(view.id, tuple(m for m in view.members if m in outcome.answered), outcome.cut)
        self._decision = gms.runtime.future()
        self._offer = MergeRsp(number, part)
        self._repeat(self._offer, leader)
        decision = await self._decision
        if decision is None:
            return
        if self._overtaken(turn, view):  # its view, or another one, has come by another way in the same turn
            gms.handler.done(turn, ok=gms.stack.view.id == decision.install.id)
            return
        ok = await self._disseminate(decision.install, part.members, [], [], turn)
        gms.handler.merge_view(turn)
        if gms.stack.running:
            gms.send(Ack(decision.round, ok), leader)

    def _repeat(self, offer: MergeRsp, leader: Address) -> None:
        if self._offer is offer and self._gms.stack.running:
            self._gms.send(offer, leader)
            self._gms.runtime.call_later(self._gms.settings.resend_interval, self._repeat, offer, leader)

    def decided(self, leader: Address, number: int, merge: int, install: Installation) -> None:
        gms = self._gms
        if install.id == gms.stack.view.id and gms.handler.suspended is not Work.MERGE_REQ:
            gms.send(Ack(number, True), leader)
        elif self._merge == (leader, merge) and self._decision is not None and not self._decision.done():
            self._offer = None
            gms.handler.decided()
            self._decision.set_result(InstallMerge(number, merge, install))

    def called_off(self, leader: Address, merge: int) -> None:
        decided = self._decision is not None and self._decision.done()
        if self._merge == (leader, merge) and not decided:
            self._gms.handler.cancelled(self._gms.handler.turn)

    def view_installed(self, view: View) -> None:
        """A merge view that came by another way than through us."""
        gms = self._gms
        decision = self._decision
        if decision is not None and not decision.done() and gms.handler.merge_leader in view:
            gms.handler.merge_view(gms.handler.turn)


def _overlap(parts: list[Part], other: Part) -> bool:
    """Somebody is in two parts, or two incarnations of the same name are: what we know is out of date."""
    names = {m.name for part in parts for m in part.members}
    return any(m.name in names for m in other.members) or not other.members
