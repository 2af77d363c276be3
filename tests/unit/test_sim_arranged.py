"""Situations in plans of the profiles `broker` and `cluster`: they are there, and lead where they are meant to."""

from __future__ import annotations

from coterie.sim.plan import Plan
from coterie.sim.profile_broker import FANOUT, QUEUES
from coterie.sim.profiles import broker_plan, cluster_plan
from coterie.sim.runner import trace_plan
from coterie.trace import Event

LATE_SYNC, REPLACED = 27, 26
"""Seeds whose plans have them."""


def of(events: list[Event], node: str, kind: str) -> list[Event]:
    return [event for event in events if event.node == node and event.kind == kind]


def test_a_sync_of_a_longer_log_ends_in_the_next_life_of_its_store_and_then_others_confirm() -> None:
    plan = cluster_plan(LATE_SYNC)
    orders = plan.members[0]
    _, events = trace_plan(plan)
    (ends,) = [e.t for e in events if e.kind == "heal" and e.data.get("fault") == "hung_sync"]
    stores = {str(e.data["state"]): e.t for e in of(events, orders, "generation")}
    assert stores["begun"] < ends < stores["whole"]
    logged = of(events, orders, "logged")
    former = max(_number(e) for e in logged if e.t < stores["begun"])
    present = max(_number(e) for e in logged if stores["begun"] < e.t <= stores["whole"])
    promised = [_number(e) for e in events if e.kind == "promise" and e.t > stores["whole"] and "number" in e.data]
    assert any(present < number <= former for number in promised), "what the late sync seems to speak of, too"


def _number(event: Event) -> int:
    number = event.data["number"]
    assert isinstance(number, int)
    return number


def test_messages_are_replaced_in_one_queue_in_the_turn_in_which_others_get_them() -> None:
    plan = broker_plan(REPLACED)
    assert {burst.to for burst in plan.bursts} == {FANOUT}
    assert not any("x-max-length" in QUEUES[name] for name in _queues(plan))
    _, events = trace_plan(plan)
    gone = {e.t for e in events if e.kind == "dequeue" and e.data["reason"] == "replaced"}
    came = {e.t for e in events if e.kind == "enqueue" and e.queue is not None and "last" not in e.queue}
    assert len(gone & came) > 5


def _queues(plan: Plan) -> list[str]:
    queues = plan.channel["queues"]
    assert isinstance(queues, list)
    return [str(name) for name in queues]


def test_few_plans_have_nothing_but_a_situation() -> None:
    late = [seed for seed in range(400) if cluster_plan(seed).channel["only"] and not cluster_plan(seed).actions]
    replaced = [seed for seed in range(400) if not broker_plan(seed).actions]
    assert LATE_SYNC in late
    assert REPLACED in replaced
    assert 8 < len(late) < 30
    assert 6 < len(replaced) < 24
