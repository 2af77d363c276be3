"""FLUSH and FLUSH2 in groups to which anything happens: gates always open again, and cuts are the same everywhere.

The members run the real protocols from NAKACK up. Membership is the test's own and simple: when somebody is gone, the
oldest who lives flushes the rest, and whoever is exactly at the cut installs the next view.
"""

from __future__ import annotations

import random

import pytest
from flush_rig import HOLD_MAX, Group, Member

from coterie.group.members import Address, ViewId
from coterie.group.packet import MCAST, Packet
from coterie.group.protocols.flush import Flush
from coterie.group.protocols.flush2 import Flush2
from coterie.group.protocols.flush_base import Kind, Outcome
from coterie.group.protocols.flush_common import Flushing

SEEDS = 40
STEPS = 60
MEMBERS = tuple(Address(name, 1) for name in "abcde")


class Story:
    """One group, and what befalls it."""

    def __init__(self, kind: type[Flushing], seed: int) -> None:
        self.rng = random.Random(f"{kind.name}/{seed}")
        self.group = Group(kind, *MEMBERS[: self.rng.randint(2, 5)])
        self.loss = self.rng.choice((0.0, 0.05, 0.3))
        self.changing: Address | None = None
        """Who changes the view at the moment."""
        self.flushed_for_view: tuple[Member, Outcome] | None = None
        self.holding: dict[Address, list[int]] = {}
        self.sent = 0
        self.in_view: dict[Address, list[bytes]] = {}
        """By member: what it delivered in this view."""
        self.views = 0
        self.cuts = 0

    def lose(self, source: Address, target: Address, packet: Packet) -> bool:
        return self.rng.random() < self.loss

    @property
    def members(self) -> list[Member]:
        return list(self.group)

    # What happens.

    def step(self) -> None:
        happens = self.rng.choice(
            (self.cast, self.cast, self.cast, self.unicast, self.flush, self.flush, self.resume, self.crash,
             self.doubt, self.slow_block, self.change_view, self.wait, self.wait, self.wait)
        )  # fmt: skip
        happens()
        self.pass_time(0.02)

    def pass_time(self, seconds: float) -> None:
        self.group.run(seconds, self.lose)
        self.take()
        if self.flushed_for_view is not None:
            leader, outcome = self.flushed_for_view
            self.flushed_for_view = None
            self.install(leader, outcome)

    def take(self) -> None:
        for member in self.members:
            multicasts = [bytes(p.body)[8:] for p in member.arrived() if p.carrier == MCAST]
            self.in_view.setdefault(member.stack.local, []).extend(multicasts)

    def cast(self) -> None:
        self.sent += 1
        self.rng.choice(self.members).cast(f"{self.sent}")

    def unicast(self) -> None:
        self.rng.choice(self.members).send("u", self.rng.choice(self.members).stack.local)

    def flush(self) -> None:
        leader = self.rng.choice(self.members)
        kind = self.rng.choice((Kind.SHARED, Kind.EXCLUSIVE))
        everyone = leader.stack.view.members
        targets = everyone if self.rng.random() < 0.7 else tuple(m for m in everyone if self.rng.random() < 0.6)
        leader.flush.suspend(kind, targets, lambda outcome: self.flushed(leader, kind, outcome))

    def flushed(self, leader: Member, kind: Kind, outcome: Outcome) -> None:
        if outcome.ok:
            self.holding.setdefault(leader.stack.local, []).append(outcome.number)
            self.check(leader, outcome)

    def check(self, leader: Member, outcome: Outcome) -> None:
        """Whoever takes part, and has not left it for reasons of its own, is blocked exactly at the cut."""
        self.cuts += 1
        for address in outcome.answered:
            if address not in self.group.members:
                continue
            member = self.group[address]
            hold = member.flush.holding.holds.get((leader.stack.local, outcome.number))
            if hold is not None and member.flush.holding.current(hold) and not member.flush.suspects:
                assert member.flush.shut
                assert member.nakack.delivered() == outcome.cut

    def resume(self) -> None:
        for address, numbers in self.holding.items():
            if numbers and address in self.group.members and self.rng.random() < 0.6:
                self.group[address].flush.resume(numbers.pop())

    def crash(self) -> None:
        if len(self.members) > 2 and self.rng.random() < 0.3:
            self.group.die(self.rng.choice(self.members).stack.local)

    def doubt(self) -> None:
        """Somebody is suspected: rightly, or for a while."""
        doubter = self.rng.choice(self.members)
        dead = [m for m in doubter.stack.view.members if m not in self.group.members]
        if dead:
            doubter.suspect(self.rng.choice(dead))
        elif self.rng.random() < 0.3:
            victim = self.rng.choice(self.members).stack.local
            doubter.suspect(victim)
            self.pass_time(0.05)
            doubter.unsuspect(victim)

    def slow_block(self) -> None:
        member = self.rng.choice(self.members)
        member.roof.blocks_at_once = not member.roof.blocks_at_once

    def wait(self) -> None:
        self.pass_time(self.rng.choice((0.02, 0.1, 0.3)))

    def change_view(self) -> None:
        """The oldest who lives leads."""
        leader = next(self.group[m] for m in self.members[0].stack.view.members if m in self.group.members)
        staying = tuple(m for m in leader.stack.view.members if m not in leader.flush.suspects)
        if self.changing not in self.group.members:
            self.changing = leader.stack.local
            leader.flush.suspend(Kind.VIEW, staying, lambda outcome: self.view_flushed(leader, outcome))

    def view_flushed(self, leader: Member, outcome: Outcome) -> None:
        if outcome.ok and leader.stack.local == self.changing:
            self.check(leader, outcome)
            self.flushed_for_view = leader, outcome
        else:
            self.changing = None

    def install(self, leader: Member, outcome: Outcome) -> None:
        self.changing = None
        going = [
            m for m in outcome.answered
            if m in self.group.members and self.group[m].nakack.delivered() == outcome.cut
            and self.group[m].stack.view.id == leader.stack.view.id
        ]  # fmt: skip
        if leader.stack.local not in going:
            leader.flush.resume(outcome.number)
            return
        self.take()
        for address in list(self.group.members):
            if address not in going:
                self.group.die(address)  # it is in another view now, and no business of ours
        delivered = [sorted(self.in_view.get(m, [])) for m in going]
        assert all(one == delivered[0] for one in delivered), "they go on together, but have not delivered the same"
        self.in_view.clear()
        self.views += 1
        id = ViewId(leader.stack.view.id.counter + 1, leader.stack.local)
        for address in going:
            self.group[address].install(tuple(going), id)
        leader.flush.resume(outcome.number)

    # And how it ends.

    def end(self) -> None:
        self.loss = 0.0
        for member in self.members:
            member.roof.blocks_at_once = True
            for other in member.stack.view.members:
                if other in self.group.members:
                    member.unsuspect(other)
                else:
                    member.suspect(other)
        self.pass_time(1.0)
        while any(member.flush.leading.leads for member in self.members):  # one after the other
            for member in self.members:
                for number in list(member.flush.leading.leads):
                    member.flush.resume(number)
            self.pass_time(0.3)
        self.pass_time(HOLD_MAX + 1.0)


@pytest.mark.parametrize("kind", [Flush2, Flush], ids=["FLUSH2", "FLUSH"])
def test_whatever_happens_gates_open_again_and_cuts_are_the_same(kind: type[Flushing]) -> None:
    views = cuts = 0
    for seed in range(SEEDS):
        story = Story(kind, seed)
        for _ in range(STEPS):
            story.step()
        story.end()
        for member in story.members:
            assert not member.flush.shut, f"seed {seed}: {member.stack.local} is blocked at the end"
            assert not member.nakack.frozen
            held = {name: left for name, left in member.stack.held().items() if name.startswith(kind.name)}
            assert not any(held.values()), f"seed {seed}: {held}"
            assert member.blocks == member.unblocks
        views, cuts = views + story.views, cuts + story.cuts
    assert views > SEEDS  # or nothing was tested
    assert cuts > 2 * SEEDS
