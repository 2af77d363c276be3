"""Whole runs with agreed views, as a correct group would write them: no property complains, whatever is cut or merged.

The model knows no protocol: it has the global knowledge that real members lack, and writes the events that they would.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from random import Random

import pytest
from test_audit_fold import interleave

from coterie.audit import check, properties, split
from coterie.trace import Event, Json

Bundle = tuple[str, int]
SEEDS = range(40)


@dataclass
class Member:
    name: str
    view: str | None = None
    members: list[str] = field(default_factory=list)
    start: dict[str, int] = field(default_factory=dict)
    sent: int = 0
    received: dict[str, int] = field(default_factory=dict)
    delivered: dict[str, int] = field(default_factory=dict)
    ordered: list[Bundle] = field(default_factory=list)
    places: int = 0
    """How many positions of the view are delivered."""
    shut: bool = False
    alive: bool = True


class Group:
    """Members that join, send, are cut off, merge and die."""

    def __init__(self, seed: int, total: bool) -> None:
        self.random = Random(seed)
        self.total = total
        self.events: list[Event] = []
        self.members: dict[str, Member] = {}
        self.orders: dict[str, list[Bundle]] = {}
        """By view: what its coordinator has ordered."""
        self._written: Counter[tuple[str, str]] = Counter()
        self._counter = 0
        self._flushes = 0
        self._states = 0

    # The run.

    def run(self, steps: int = 120) -> list[Event]:
        for name in "ABCD":
            self.boot(name)
        actions = [self.send] * 12 + [self.hear] * 12 + [self.put_in_order] * 8 + [self.tell_held] * 3
        actions += [self.stabilise] * 3 + [
            self.part,
            self.merge,
            self.merge,
            self.die,
            self.transfer,
            self.application_flush,
        ]
        for _ in range(steps):
            self.random.choice(actions)(self.random.choice(self.live()))
        while len({m.view for m in self.live()}) > 1:
            self.merge(self.live()[0])
        for _ in range(5):
            self.send(self.random.choice(self.live()))
        self.reconcile(self.live())
        live: list[Json] = [m.name for m in self.live()]
        self.write(None, "end", live=live)
        return self.events

    def live(self) -> list[Member]:
        return [m for m in self.members.values() if m.alive]

    def write(self, who: Member | None, kind: str, **values: Json) -> None:
        node, _, inc = ("world#0" if who is None else who.name).partition("#")
        n = self._written[node, inc]
        self._written[node, inc] += 1
        event = Event("model", node, int(inc), n, len(self.events) * 0.001, kind)
        event.view = None if who is None else who.view
        for key, value in values.items():
            if key in ("view", "pos", "sender", "first", "last", "count", "sum"):
                setattr(event, key, value)
            else:
                event.data[key] = value
        self.events.append(event)

    def boot(self, name: str) -> None:
        incarnation = sum(m.partition("#")[0] == name for m in self.members) + 1
        member = self.members[f"{name}#{incarnation}"] = Member(f"{name}#{incarnation}")
        self.write(member, "start")
        self.install([[member]])

    # Multicasts.

    def send(self, member: Member) -> None:
        if not member.shut:
            member.sent += 1
            member.received[member.name] = member.sent
            about: dict[str, Json] = {"sender": member.name, "first": member.sent, "count": 1, "sum": member.sent}
            self.write(member, "send", to="all", **about)
            if not self.total:
                self.deliver(member, member.name, member.sent)

    def receive(self, member: Member, sender: str, upto: int) -> None:
        for number in range(member.received[sender] + 1, upto + 1):
            self.write(member, "receive", sender=sender, first=number, last=number)
            member.received[sender] = number
            if not self.total:
                self.deliver(member, sender, number)

    def deliver(self, member: Member, sender: str, number: int, pos: int | None = None) -> None:
        member.delivered[sender] = number
        self.write(member, "deliver", sender=sender, first=number, count=1, sum=number, pos=pos)

    def hear(self, member: Member) -> None:
        """Something more of someone in the same view, or from someone who has it."""
        sender = self.random.choice(member.members)
        there = [m.received[sender] for m in self.members.values() if m.view == member.view]
        if max(there) > member.received[sender]:
            self.receive(member, sender, member.received[sender] + 1)

    # Total order.

    def put_in_order(self, member: Member) -> None:
        """The coordinator orders something that it has; or a member learns of the next place."""
        order = self.orders.setdefault(member.view or "", [])
        if not self.total:
            return
        if member.name == member.members[0]:
            for sender in self.random.sample(member.members, len(member.members)):
                number = sum(s == sender for s, _ in order) + member.start[sender]
                if number <= member.received[sender]:
                    order.append((sender, number))
                    break
        if len(member.ordered) < len(order):
            sender, number = order[len(member.ordered)]
            self.receive(member, sender, number)
            self.place(member, (sender, number))
        if member.places < len(member.ordered) and self.random.random() < 0.7:
            self.deliver_place(member)

    def place(self, member: Member, bundle: Bundle) -> None:
        member.ordered.append(bundle)
        self.write(member, "ordered", sender=bundle[0], first=bundle[1], pos=len(member.ordered))

    def deliver_place(self, member: Member) -> None:
        sender, number = member.ordered[member.places]
        member.places += 1
        self.deliver(member, sender, number, member.places)

    def tell_held(self, member: Member) -> None:
        order = self.orders.get(member.view or "", [])
        everyone = [self.members[name] for name in member.members]
        known = [m for m in everyone if m.view == member.view and m.ordered == order[: len(m.ordered)]]
        by = self.random.choice(("majority", "all"))
        need = len(everyone) if by == "all" else len(everyone) // 2 + 1
        if self.total and len(known) >= need:
            upto = sorted((len(m.ordered) for m in known), reverse=True)[need - 1]
            if upto:
                holders: list[Json] = [m.name for m in known if len(m.ordered) >= upto]
                self.write(member, "held", pos=upto, by=by, members=holders)

    def stabilise(self, member: Member) -> None:
        everyone = [self.members[name] for name in member.members]
        if all(m.view == member.view for m in everyone):
            last = min(m.received[member.name] for m in everyone)
            if last >= member.start[member.name]:
                self.write(member, "stable", sender=member.name, last=last)
                self.write(member, "discard", sender=member.name, last=last, reason="stable")
                other = self.random.choice(everyone)
                if other.alive:
                    self.write(other, "discard", sender=member.name, last=last, reason="stable")

    # Flushes.

    def flush(self, leader: Member, targets: list[Member], mode: str) -> int:
        self._flushes += 1
        number = self._flushes
        names: list[Json] = [m.name for m in targets]
        self.write(leader, "flush_started", number=number, mode=mode, targets=names)
        for member in targets:
            self.write(member, "flush_joined", leader=leader.name, number=number, mode=mode)
            self.write(member, "block", limit=5)
            member.shut = True
        self.reconcile(targets)
        self.write(leader, "flush_held", number=number, mode=mode, targets=names)
        return number

    def release(self, leader: Member, targets: list[Member], number: int) -> None:
        self.write(leader, "flush_ended", number=number)
        for member in targets:
            self.write(member, "flush_left", leader=leader.name, number=number, reason="stop")
            self.write(member, "unblock")
            member.shut = False

    def reconcile(self, targets: list[Member]) -> None:
        """They all have, and deliver, what any of them has."""
        senders = targets[0].members
        for member in targets:
            for sender in senders:
                self.receive(member, sender, max(m.received[sender] for m in targets))
        if self.total:
            order = list(max(targets, key=lambda m: len(m.ordered)).ordered)
            for sender in senders:
                first = sum(s == sender for s, _ in order) + targets[0].start[sender]
                order += [(sender, number) for number in range(first, targets[0].received[sender] + 1)]
            if all(m in targets for m in self.live() if m.view == targets[0].view):
                self.orders[targets[0].view or ""] = order  # otherwise the rest go on with the order that they had
            for member in targets:
                for bundle in order[len(member.ordered) :]:
                    self.place(member, bundle)
                while member.places < len(member.ordered):
                    self.deliver_place(member)

    def application_flush(self, member: Member) -> None:
        targets = [m for m in self.live() if m.view == member.view]
        self.release(member, targets, self.flush(member, targets, "exclusive"))

    def transfer(self, member: Member) -> None:
        targets = [m for m in self.live() if m.view == member.view]
        requester = self.random.choice(targets)
        number = self.flush(requester, targets, "shared")
        self._states += 1
        for who, role in ((member, "provider"), (requester, "requester")):
            digest: dict[str, Json] = {**who.delivered}
            self.write(who, "state_cut", id=self._states, role=role, digest=digest)
        self.release(requester, targets, number)
        self.write(member, "state_sent", id=self._states, count=10, sum=number)
        self.write(requester, "state_set", id=self._states, count=10, sum=number)

    # Views.

    def part(self, member: Member) -> None:
        """Some of a view go on without the others."""
        here = [m for m in self.live() if m.view == member.view]
        self.install([self.random.sample(here, self.random.randint(1, len(here)))])

    def merge(self, member: Member) -> None:
        """The members of some views, each flushed for itself, come together; those of a dead one may be left out."""
        parts = [[m for m in self.live() if m.view == v] for v in dict.fromkeys(m.view for m in self.live())]
        self.install(self.random.sample(parts, self.random.randint(min(2, len(parts)), len(parts))))

    def die(self, member: Member) -> None:
        if len(self.live()) > 2 and self.random.random() < 0.6:
            self.write(member, "crash")
            member.alive = False
            self.boot(member.name.partition("#")[0])

    def install(self, parts: list[list[Member]]) -> None:
        """One view of several parts, each of one view; a part without a view joins."""
        self._counter += 1
        flushed = []
        for part in parts:
            part.sort(key=lambda m: m.name)
            if part[0].view is not None:
                self.write(part[0], "suspend", reason="views" if len(parts) == 1 else "merge", timeout=5)
                flushed.append((part, self.flush(part[0], part, "view")))
        coming = [m for part in parts for m in part]
        names: list[Json] = [m.name for m in coming]
        start = {m.name: m.sent + 1 for m in coming}
        groups: list[Json] = [[p[0].view, [m.name for m in p]] for p in parts if p[0].view is not None]
        for member in coming:
            before, member.view = member.view, f"{self._counter}@{coming[0].name}"
            data: dict[str, Json] = {"before": before} if before is not None else {}
            if len(groups) > 1:
                data["subgroups"] = groups
            member.members, member.start = [m.name for m in coming], start
            member.received = {name: number - 1 for name, number in start.items()}
            member.delivered = dict(member.received)
            member.ordered, member.places = [], 0
            welcomed: dict[str, Json] = {m.name: member.sent + 1 for m in coming if m is not member}
            self.write(member, "view", members=names, agreed=True, start={**start}, welcomed=welcomed, **data)
        for part, number in flushed:
            self.release(part[0], part, number)
            self.write(part[0], "resume", reason="done")


def verdict(trace: list[Event], causal: bool) -> list[str]:
    return sorted(f"{v.property}: {v.text}" for v in check(trace, properties(causal)))


@pytest.mark.parametrize("total", [False, True])
@pytest.mark.parametrize("seed", SEEDS)
def test_a_correct_run_violates_nothing_in_whatever_order_its_nodes_are_read(seed: int, total: bool) -> None:
    trace = Group(seed, total).run()
    assert verdict(trace, causal=True) == []
    assert verdict(interleave(trace, Random(seed)), causal=False) == []
    for fold in properties(causal=True):
        assert not [v for part in split(trace, fold) for v in check(part, [fold])]


@pytest.mark.parametrize("total", [False, True])
@pytest.mark.parametrize("seed", SEEDS)
def test_killed_nodes_whose_last_events_are_missing_violate_nothing(seed: int, total: bool) -> None:
    """Real nodes: some traces end early, some are not there at all; and nobody says how the run ended."""
    random = Random(seed)
    by_node: dict[tuple[str, int], list[Event]] = {}
    for event in Group(seed, total).run():
        if event.node != "world":
            by_node.setdefault((event.node, event.inc), []).append(replace(event, wall=1.7e9))
    trace: list[Event] = []
    for own in by_node.values():
        match random.choice(("whole", "cut", "gone")):
            case "whole":
                kept, last = own, own[-1]
                end = [] if last.kind == "crash" else [replace(last, n=len(kept), kind="stop", data={})]
            case "cut":
                kept = own[: random.randint(1, len(own))]
                end = [replace(kept[-1], n=len(kept), kind="truncated", data={})]
            case _:
                kept, end = [], []
        trace += kept + end
    assert verdict(trace, causal=False) == []


def followers(trace: list[Event]) -> set[tuple[str, int, str | None]]:
    """Node, incarnation and view of those who went on from that view together with somebody else."""
    together: dict[tuple[Json, str | None], list[Event]] = {}
    for event in trace:
        if event.kind == "view" and "before" in event.data:
            together.setdefault((event.data["before"], event.view), []).append(event)
    return {(e.node, e.inc, str(e.data["before"])) for group in together.values() if len(group) > 1 for e in group}


def without(trace: list[Event], random: Random, fits: Callable[[Event], bool]) -> list[Event]:
    victim = random.choice([event for event in trace if fits(event)])
    return [event for event in trace if event is not victim]


@pytest.mark.parametrize("total", [False, True])
@pytest.mark.parametrize("seed", range(10))
def test_one_delivery_less_at_someone_who_goes_on_with_others_is_noticed(seed: int, total: bool) -> None:
    trace = Group(seed, total).run()
    went = followers(trace)
    broken = without(trace, Random(seed), lambda e: e.kind == "deliver" and (e.node, e.inc, e.view) in went)
    names = {text.partition(":")[0] for text in verdict(broken, causal=False)}
    assert names >= ({"G6", "G9"} if total else {"G6"})


@pytest.mark.parametrize("seed", range(10))
def test_two_deliveries_the_other_way_round_are_noticed_in_total_order(seed: int) -> None:
    trace = Group(seed, total=True).run()
    went, random = followers(trace), Random(seed)
    pairs = []
    last: dict[tuple[str, int], int] = {}
    for index, event in enumerate(trace):
        if event.kind == "deliver" and (event.node, event.inc, event.view) in went:
            before = last.get((event.node, event.inc))
            if before is not None and trace[before].view == event.view and trace[before].sender != event.sender:
                pairs.append((before, index))
            last[event.node, event.inc] = index
    one, other = random.choice(pairs)
    trace[one], trace[other] = replace(trace[other], n=trace[one].n), replace(trace[one], n=trace[other].n)
    assert "G9" in {text.partition(":")[0] for text in verdict(trace, causal=False)}


@pytest.mark.parametrize("seed", range(10))
def test_a_place_that_a_holder_does_not_have_is_noticed(seed: int) -> None:
    trace = Group(seed, total=True).run(steps=500)
    claims = [e for e in trace if e.kind == "held"]

    def relied_on(event: Event) -> bool:
        who = f"{event.node}#{event.inc}"
        return event.kind == "ordered" and any(
            claim.view == event.view and (claim.pos or 0) >= (event.pos or 0) and who in str(claim.data["members"])
            for claim in claims
        )

    broken = without(trace, Random(seed), relied_on)
    assert "G10" in {text.partition(":")[0] for text in verdict(broken, causal=False)}
