"""Situations that chance seldom makes: several things that have to come together at the same moment.

Some plans get one of them, in place of their other faults, which would only get in its way. It is chosen after
everything else, so that nothing else of a plan depends on it. It sets members, times and settings; what comes of it is
for the protocols to decide.
"""

from __future__ import annotations

import random

from coterie.sim.link import Conditions
from coterie.sim.plan import FAULT_LAYERS, Action, Burst, Fault, Plan

SHARE = 0.05
"""Of the plans that get each situation."""
HOLD_MAX = 60.0
"""Seconds after which a gate opens by itself in some plans: longer than a run may take to settle."""
UDP = ("bind_host", "bind_port", "reconnect_min", "reconnect_max", "secret")
"""Settings that both transports have."""
MULTICAST = "239.1.1.1:7900"
SLOW = 0.2
"""Seconds that an application takes over block(), so that a view change or a merge takes its time."""


def add_situations(rng: random.Random, plan: Plan) -> bool:
    """For groups with agreed views. Whether the plan has got one."""
    if len(plan.members) > 9:
        return False
    if rng.random() < 0.3:
        _settings(plan, "FLUSH", "FLUSH2")["hold_max"] = HOLD_MAX
    choice = rng.random()
    situations = [handover, crowd, merge, cut_off, leader_dies, reborn]
    if plan.profile == "total" and len(plan.members) > 3:
        situations.append(gate_opens)
    if choice < SHARE * len(situations):
        situations[int(choice / SHARE)](rng, plan)
        plan.faults.sort(key=lambda fault: fault.at)
        return True
    return False


def add_farewells(rng: random.Random, plan: Plan) -> None:
    """Some applications have something to say to those who left."""
    if rng.random() < 0.4:
        plan.farewells = [name for name in plan.members if rng.random() < 0.5]


def _settings(plan: Plan, *names: str) -> dict[str, object]:
    return next(settings for name, settings in plan.stack if name in names)


def _begin(rng: random.Random, plan: Plan) -> tuple[str, list[str], float]:
    """The first member coordinates, the others join it; from some time on they are all there."""
    first, *others = plan.members
    plan.starts = {first: 0.0} | {name: rng.uniform(0.4, 0.6) for name in others}
    plan.faults = []
    rng.shuffle(others)
    return first, others, rng.uniform(1.3, plan.quiet_at - 0.7)


def _use_udp(plan: Plan) -> None:
    if plan.stack[0][0] == "TCP":
        plan.stack[0] = "UDP", {name: value for name, value in plan.stack[0][1].items() if name in UDP}


def _cut(plan: Plan, begin: float, end: float, part: list[str], others: list[str]) -> None:
    """These cannot reach those for some time."""
    links = [
        [a, b] for a in plan.members for b in plan.members if (a in part and b in others) or (a in others and b in part)
    ]
    plan.faults.append(Fault(begin, "partition", duration=end - begin, links=links))


def handover(rng: random.Random, plan: Plan) -> None:
    """The coordinator leaves for good while others join: it makes the last view for some that are not in its own."""
    first, others, at = _begin(rng, plan)
    gms = _settings(plan, "GMS")
    gms["gather"], gms["join_retry"], gms["alone_after"] = 0.2, 0.05, 0.4  # who was turned away is answered together
    plan.blocks[first] = SLOW
    for name in others[1:]:
        plan.starts[name] = at + rng.uniform(0.0, 0.1)
    plan.bursts = [burst for burst in plan.bursts if burst.at < at - 0.3]  # what it sends would keep it
    plan.actions = []
    plan.channel["close_timeout"] = 2.0
    _settings(plan, "FLUSH", "FLUSH2")["hold_max"] = HOLD_MAX
    plan.faults.append(Fault(at, "leave", [first], on=f"{first} suspend views"))


def crowd(rng: random.Random, plan: Plan) -> None:
    """Several join while a view is made; they ask again together, and a part of the group comes back at that moment."""
    first, others, at = _begin(rng, plan)
    gms = _settings(plan, "GMS")
    gms["gather"], gms["join_retry"] = 0.2, 0.05
    _settings(plan, "MERGE")["interval"] = 0.1
    plan.blocks[first] = SLOW
    for name in others[1:]:
        plan.starts[name] = at + rng.uniform(0.0, 0.15)
    _cut(plan, 0.8, at + rng.uniform(0.3, 0.8), others[:1], plan.members)


def merge(rng: random.Random, plan: Plan) -> None:
    """Somebody comes while two parts are merged, and first hears of the one whose coordinator then is none any more."""
    first, others, _ = _begin(rng, plan)
    at = rng.uniform(1.8, plan.quiet_at - 0.6)
    _settings(plan, "GMS")["alone_after"] = 0.4
    _settings(plan, "MERGE")["interval"] = 0.1
    _settings(plan, "FAILURE").update(heartbeat_interval=0.15, heartbeat_timeout=0.6, verify_timeout=0.1)
    part, *newcomers = others
    plan.blocks[first] = plan.blocks[part] = SLOW
    _cut(plan, 0.8, at, [part], [first])
    for name in newcomers:
        plan.starts[name] = plan.quiet_at
        plan.faults.append(Fault(at - 0.2, "start", [name], on=f"{first} suspend merge"))
        latency = rng.uniform(0.015, 0.05)
        for other, factor in ((part, 1.0), (first, 1.5)):
            links = [[name, other], [other, name]]
            values = {"latency": factor * latency, "jitter": 0.001}
            plan.faults.append(Fault(at - 0.2, "latency", duration=1.0, links=links, values=values))


def leader_dies(rng: random.Random, plan: Plan) -> None:
    """The leader of a merge is gone before it has ended."""
    first, others, _ = _begin(rng, plan)
    at = rng.uniform(1.8, plan.quiet_at - 0.6)
    _settings(plan, "MERGE")["interval"] = 0.1
    _settings(plan, "FAILURE").update(heartbeat_interval=0.15, heartbeat_timeout=0.6, verify_timeout=0.1)
    part = others[0]
    plan.blocks[first] = plan.blocks[part] = SLOW
    _cut(plan, 0.8, at, others[: rng.randint(1, len(others))], plan.members)
    plan.faults.append(
        Fault(at - 0.2, "crash", [first], duration=rng.uniform(0.1, 0.5), on=f"{part} suspend merge_req")
    )


def reborn(rng: random.Random, plan: Plan) -> None:
    """Several join while a view is made, and ask again together; so does one that died and came back at that moment."""
    first, others, at = _begin(rng, plan)
    gms = _settings(plan, "GMS")
    gms["gather"], gms["join_retry"] = 0.2, 0.05
    plan.blocks[first] = SLOW
    for name in others[1:]:
        plan.starts[name] = at + rng.uniform(0.0, 0.1)
    values = {"silent": 1.0, "restart": 1.0}
    plan.faults.append(
        Fault(at, "crash", others[:1], duration=rng.uniform(0.01, 0.05), values=values, on=f"{first} resume done")
    )


def cut_off(rng: random.Random, plan: Plan) -> None:
    """A member answers a flush, and then hears nothing of its leader until the view that came of it is old news."""
    first, others, at = _begin(rng, plan)
    leaver, deaf = others[:2]
    plan.stack = [("FLUSH" if name == "FLUSH2" else name, settings) for name, settings in plan.stack]
    _use_udp(plan)  # over TCP what is said later never comes first
    _settings(plan, "UNICAST3").update(retransmit_interval=0.04, conn_close_timeout=0.5)
    plan.faults += [
        Fault(at, "leave", [leaver], duration=1.0),
        Fault(at, "one_way", duration=rng.uniform(0.35, 0.8), links=[[first, deaf]], on=f"{first} flush_held view"),
    ]


def gate_opens(rng: random.Random, plan: Plan) -> None:
    """The gate of a coordinator opens by itself while it flushes for a merge that it leads: what it orders then, one
    member has answered without, and another, which it takes for dead, gets and calls held. For total order."""
    first, others, _ = _begin(rng, plan)
    answers, stays, *part = others
    _use_udp(plan)
    plan.stack[0][1]["multicast"] = MULTICAST  # it reaches also whom the sender does not hear
    plan.stack = [(name, settings) for name, settings in plan.stack if name not in FAULT_LAYERS]
    plan.network = Conditions(latency=0.002, jitter=0.001)  # a few times must fit together
    _settings(plan, "MERGE")["interval"] = 0.1
    _settings(plan, "FAILURE").update(heartbeat_interval=0.05, heartbeat_timeout=0.4, verify_timeout=0.05)
    _settings(plan, "GMS").update(behind_after=0.15, merge_timeout=1.2, resumer_timeout=4.0)
    _settings(plan, "TOTAL").update(delivery="agreed", held="majority")
    _settings(plan, "FLUSH", "FLUSH2").update(block_timeout=0.4, timeout=1.0, hold_max=1.5, exclusive_max=1.5)
    merges = rng.uniform(3.2, 3.6)
    opens = merges + rng.uniform(0.83, 0.93)
    plan.quiet_at = merges + 2.0
    plan.blocks, plan.with_state = {}, []  # a view takes no longer than it must
    plan.bursts = [burst for burst in plan.bursts if burst.at < 0.7]  # all have delivered the same
    plan.bursts.append(Burst(opens - 0.3, first, "all", 3))  # they wait at the gate
    plan.actions = [Action(opens - 1.5, answers, "flush", 2.0, [first])]
    _cut(plan, 1.3, merges, part, [first, answers, stays])
    begins, late = f"{first} suspend merge", {"jitter": 0.0}
    plan.faults += [
        # The other part takes longer than it takes to suspect somebody, whom the flush then leaves out.
        Fault(merges, "one_way", duration=1.5, links=[[stays, first]], on=begins),
        Fault(
            merges, "latency", duration=1.5, links=[[m, first] for m in part], values=late | {"latency": 0.6}, on=begins
        ),
        # The gate opens before the answer is there; and that the flush is over is heard after the merge.
        Fault(merges, "latency", duration=1.5, links=[[answers, first]], values=late | {"latency": 0.3}, on=begins),
        Fault(merges, "one_way", duration=0.6, links=[[first, answers]], on=f"{first} flush_left timeout"),
    ]
