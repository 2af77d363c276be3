"""Scenes: things that go wrong together, around a flush that is held. Chance alone brings them about too seldom.

Each adds faults, actions or settings to a plan that is otherwise made, by a chance of its own: the rest of the plan is
what it would be without it.
"""

from __future__ import annotations

import random
from collections.abc import Callable

from coterie.sim.plan import Action, Burst, Fault, Plan

SHARE = 0.4
"""Of the plans have a scene, some a second one."""
BEGIN = 0.7
"""Before that, members have hardly found each other."""


def add_scenes(plan: Plan) -> None:
    """Put some scenes into the plan, or none."""
    rng = random.Random(f"{plan.profile}/{plan.seed}/scenes")
    if rng.random() < SHARE:
        for scene in rng.sample(SCENES, rng.choice((1, 1, 2))):
            scene(rng, plan)
        plan.greet = True
        plan.faults.sort(key=lambda fault: fault.at)
        plan.actions.sort(key=lambda action: action.at)
        plan.bursts.sort(key=lambda burst: burst.at)


def _merge(rng: random.Random, plan: Plan) -> None:
    """Parts of a group, in each of which a flush is held, come together again."""
    _hold_long(rng, plan)
    _hasty(plan)
    part = rng.sample(plan.members, rng.randint(1, len(plan.members) // 2))
    others = [member for member in plan.members if member not in part]
    end = rng.uniform(min(2.0, plan.quiet_at - 0.3), plan.quiet_at - 0.2)
    start = max(BEGIN, end - rng.uniform(0.8, 1.6))
    links = [[a, b] for a in plan.members for b in plan.members if (a in part) != (b in part)]
    plan.faults.append(Fault(start, "partition", duration=end - start, links=links))
    holders = [rng.choice(others), rng.choice(part)]
    for holder in holders[: rng.choice((1, 2, 2))]:
        at = max(start + 0.1, end + rng.uniform(-0.4, 0.1))
        plan.actions.append(Action(at, holder, "flush", rng.choice((0.6, 1.2))))
    plan.bursts += [Burst(end, member, "all") for member in plan.members]


def _one_sided(rng: random.Random, plan: Plan) -> None:
    """One member, or two, cannot reach the holder and take it for dead. The others can, and so no view follows."""
    _flush_settings(plan).pop("exclusive_max", None)
    _hasty(plan)
    holder = rng.choice(plan.members[1:])
    others = rng.sample([m for m in plan.members[1:] if m != holder], min(rng.choice((1, 1, 2)), len(plan.members) - 2))
    at = rng.uniform(BEGIN, plan.quiet_at - 1.5)
    links = [link for other in others for link in ([holder, other], [other, holder])]
    plan.faults.append(Fault(at + 0.1, "partial", duration=rng.uniform(0.6, 1.0), links=links))
    plan.actions.append(Action(at, holder, "flush", rng.choice((1.2, 1.4))))
    plan.bursts += [Burst(at + 0.3, other, "all") for other in others]


def _join(rng: random.Random, plan: Plan) -> None:
    """Somebody joins, or comes back, while a flush is held."""
    _hold_long(rng, plan)
    newcomer, holder = rng.sample(plan.members, 2)
    at = rng.uniform(BEGIN, plan.quiet_at - 0.8)
    plan.actions.append(Action(at, holder, "flush", rng.choice((0.5, 1.0))))
    if rng.random() < 0.5:
        plan.starts[newcomer] = at + rng.uniform(-0.1, 0.2)
    else:
        values = {"silent": 0.0, "restart": 1.0}
        plan.faults.append(Fault(at + rng.uniform(-0.2, 0.1), "crash", [newcomer], rng.uniform(0.05, 0.4), [], values))


def _fast_clock(rng: random.Random, plan: Plan) -> None:
    """The time of a flush is up at one member long before it is at the holder."""
    _flush_settings(plan)["exclusive_max"] = rng.choice((0.5, 0.8))
    holder, other = rng.sample(plan.members, 2)
    at = rng.uniform(BEGIN, plan.quiet_at - 1.0)
    plan.faults.append(Fault(at - 0.05, "clock", [other], 0.9, [], {"rate": 2.0}))
    plan.faults.append(Fault(at - 0.05, "clock", [holder], 0.9, [], {"rate": rng.choice((0.5, 1.0))}))
    plan.actions.append(Action(at, holder, "flush", rng.choice((0.4, 0.6, 0.75))))
    plan.bursts.append(Burst(at + 0.1, other, "all"))


def _long_gate(rng: random.Random, plan: Plan) -> None:
    """A gate that views have kept shut opens by itself while a flush is held."""
    settings = _flush_settings(plan)
    settings.pop("exclusive_max", None)
    settings |= {"block_timeout": 0.1, "timeout": 0.5, "hold_max": 0.8}
    at = rng.uniform(BEGIN, plan.quiet_at - 1.5)
    for member in rng.sample(plan.members, min(2, len(plan.members) - 1)):
        plan.faults.append(Fault(at, "crash", [member], 0.3, [], {"silent": 1.0, "restart": 1.0}))
    for _ in range(3):
        later = at + rng.uniform(0.1, 0.8)
        plan.actions.append(Action(later, rng.choice(plan.members), "flush", rng.choice((0.7, 0.9))))
    plan.bursts += [Burst(at + 0.3, member, "all") for member in plan.members]


def _rush(rng: random.Random, plan: Plan) -> None:
    """Everybody wants the state at once, and flushes of applications come between."""
    at = rng.uniform(BEGIN, plan.quiet_at - 0.5)
    spread = rng.choice((0.0, 0.005, 0.05))
    for member in plan.members:
        plan.actions.append(Action(at + rng.uniform(0, spread), member, "state"))
        plan.blocks.setdefault(member, rng.choice((0.001, 0.02, 0.2)))
    if rng.random() < 0.5:
        plan.actions.append(Action(at + rng.uniform(0, 0.1), rng.choice(plan.members), "flush", 0.1))
    if rng.random() < 0.5:
        links = [[a, b] for a in plan.members for b in plan.members if a != b and rng.random() < 0.4]
        plan.faults.append(Fault(at - 0.05, "loss", duration=0.5, links=links, values={"loss": 0.5}))


def _one_after_another(rng: random.Random, plan: Plan) -> None:
    """Leaders begin one after the other, while some miss what one has sent and multicasts out of its block()."""
    sender, *leaders = rng.sample(plan.members, len(plan.members))
    at = rng.uniform(BEGIN, plan.quiet_at - 0.8)
    links = [[sender, other] for other in leaders]
    plan.faults.append(Fault(at - 0.05, "loss", duration=0.7, links=links, values={"loss": rng.choice((0.5, 0.7))}))
    plan.bursts.append(Burst(at - 0.04, sender, "all", 8, gap=0.006))
    plan.blocks[sender] = rng.choice((0.02, 0.05))
    for leader in leaders * 2:
        plan.actions.append(Action(at, leader, "state"))
        at += rng.uniform(0.005, 0.08)


SCENES: tuple[Callable[[random.Random, Plan], None], ...] = (
    _merge, _one_sided, _join, _fast_clock, _long_gate, _rush, _one_after_another
)  # fmt: skip


def _hold_long(rng: random.Random, plan: Plan) -> None:
    """Let applications' flushes last, most of the time."""
    if rng.random() < 0.7:
        _flush_settings(plan).pop("exclusive_max", None)


def _hasty(plan: Plan) -> None:
    """Let members suspect each other soon, and find each other again soon."""
    hasty: dict[str, dict[str, object]] = {
        "FAILURE": {"heartbeat_interval": 0.1, "heartbeat_timeout": 0.3, "verify_timeout": 0.1},
        "MERGE": {"interval": 0.1},
    }
    for name, settings in plan.stack:
        settings |= hasty.get(name, {})


def _flush_settings(plan: Plan) -> dict[str, object]:
    return next(settings for name, settings in plan.stack if name.startswith("FLUSH"))
