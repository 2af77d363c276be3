"""Situations in plans of the profiles `vs` and `total`: each leads where chance seldom does; faults that wait."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from coterie.sim import situations
from coterie.sim.plan import Fault, Plan
from coterie.sim.profiles import profile
from coterie.sim.runner import run_plan, trace_plan
from coterie.trace import Event

Make = Callable[[random.Random, Plan], None]
SITUATIONS: dict[Make, tuple[str, int]] = {
    situations.crowd: ("gms.merge.queue_first", 1),
    situations.merge: ("gms.redirected", 3),
    situations.cut_off: ("flush.stop_before_view", 12),
    situations.leader_dies: ("gms.resume.leader_gone", 0),
    situations.reborn: ("gms.reincarnated", 1),
}
"""And the rule that each is for, with a seed that is known to reach it."""


def plan_with(situation: Make, seed: int, name: str = "vs") -> Plan:
    plan = profile(name).make(seed)
    situation(random.Random(seed), plan)
    return plan


@pytest.mark.parametrize("situation", SITUATIONS, ids=lambda situation: str(situation.__name__))
def test_each_situation_reaches_its_rule_in_some_of_forty_runs(situation: Make) -> None:
    rule, first = SITUATIONS[situation]
    results = (run_plan(plan_with(situation, seed)) for seed in range(first, first + 40))
    assert next((result for result in results if result.rules[rule]), None), f"{rule} was not reached"


def joined_without_its_maker(events: list[Event]) -> list[Event]:
    """First views of members that were made by somebody who is not in them."""
    first = [event for event in events if event.kind == "view" and event.data.get("before") is None]
    return [event for event in first if str(event.view).partition("@")[2] not in _members(event)]


def test_a_coordinator_that_leaves_lets_others_in_with_its_last_view_in_some_of_forty_runs() -> None:
    traces = (trace_plan(plan_with(situations.handover, seed))[1] for seed in range(40))
    assert any(joined_without_its_maker(events) for events in traces)


def gave_up(events: list[Event]) -> bool:
    """The leader of a flush for a view whose own gate had opened by itself."""
    failed = [event for event in events if event.kind == "flush_failed" and event.data["mode"] == "view"]
    return any(event.data["reason"] == "our own gate was shut for too long" for event in failed)


def test_the_gate_of_a_coordinator_opens_while_it_flushes_for_a_merge_in_some_of_forty_runs() -> None:
    plans = (plan_with(situations.gate_opens, seed, "total") for seed in range(52, 92))
    assert any(gave_up(trace_plan(plan)[1]) for plan in plans if len(plan.members) > 3)


def _members(event: Event) -> list[str]:
    members = event.data["members"]
    assert isinstance(members, list)
    return [str(member) for member in members]


def test_every_situation_is_in_some_plans_and_most_plans_have_none(monkeypatch: pytest.MonkeyPatch) -> None:
    made: dict[str, int] = {}
    for situation in (situations.handover, *SITUATIONS):

        def noted(rng: random.Random, plan: Plan, name: str = situation.__name__) -> None:
            made[name] = made.get(name, 0) + 1

        monkeypatch.setattr(situations, situation.__name__, noted)
    plans = [profile("vs").make(seed) for seed in range(400)]
    assert len(made) == len(SITUATIONS) + 1
    assert sum(made.values()) < 160
    assert any(plan.farewells for plan in plans)


def test_situations_of_total_order_are_in_some_plans_of_total_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[str] = []
    monkeypatch.setattr(situations, "gate_opens", lambda rng, plan: made.append(plan.profile))
    for seed in range(200):
        profile("vs").make(seed)
        profile("total").make(seed)
    assert set(made) == {"total"}


def test_a_plan_with_a_situation_survives_json() -> None:
    plan = plan_with(situations.cut_off, 3)
    assert any(fault.on for fault in plan.faults)
    assert Plan.from_json(plan.to_json()) == plan


def test_a_fault_that_waits_for_a_moment_comes_with_it_and_once() -> None:
    plan = plan_with(situations.cut_off, 3)
    leader = plan.members[0]
    plan.faults.append(Fault(0.0, "pause", [plan.members[1]], duration=0.1, on=f"{leader} never happens"))
    _, events = trace_plan(plan)
    faults = [e for e in events if e.kind == "fault"]
    assert [e.data["fault"] for e in faults].count("one_way") == 1
    assert "pause" not in [e.data["fault"] for e in faults]
    (cut,) = [e for e in faults if e.data["fault"] == "one_way"]
    before = events[events.index(cut) - 1]
    assert (before.node, before.kind, before.data["mode"], before.t) == (leader, "flush_held", "view", cut.t)


def test_a_node_that_is_started_by_a_fault_is_started_once() -> None:
    plan = plan_with(situations.merge, 3)
    newcomer = next(fault.nodes[0] for fault in plan.faults if fault.kind == "start")
    plan.faults.append(Fault(0.1, "start", [newcomer]))
    plan.faults.append(Fault(0.2, "start", [newcomer]))
    _, events = trace_plan(plan)
    assert [e.data.get("nodes") for e in events if e.kind == "fault"].count([newcomer]) == 1
    assert {e.inc for e in events if e.node == newcomer} == {1}
