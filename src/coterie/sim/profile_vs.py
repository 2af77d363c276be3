"""The profiles `vs` and `total`: groups with agreed views, in FIFO and in total order.

Three to nine members, a few times forty, over TCP or UDP, with FLUSH or FLUSH2. They join, leave, crash, restart, pause
and are cut off from each other; meanwhile everybody multicasts and unicasts, applications flush the group and hold it,
take their time over block(), join with state and fetch it again. Some runs have a scene (scenes.py) around flushes that
are held: a merge, a suspicion of one member alone, a clock that runs fast, a rush.
"""

from __future__ import annotations

import random

from coterie.sim.link import Conditions
from coterie.sim.plan import FAULT_LAYERS, Action, FaultMaker, Plan, pick, swarm
from coterie.sim.profile_channel import (
    CHANNEL,
    CHANNEL_FAULTS,
    FAILURE,
    FLOW,
    FRAG,
    NAKACK,
    PORT,
    STABLE,
    UNICAST3,
    Layers,
    Profile,
    cut_at,
    disturb,
    make_bursts,
    network,
    share_secret,
    transport,
)
from coterie.sim.scenes import add_scenes
from coterie.sim.situations import add_farewells, add_situations
from coterie.sim.stream import Limits

LARGE = 40
LARGE_SHARE = 0.002
"""Of the runs have so many members."""

# Settings to choose from; None is the default.

MERGE = {"interval": (0.1, 0.25)}
GMS = {
    "alone_after": (0.05, 0.2),
    "join_retry": (0.05, 0.15),
    "resend_interval": (0.03, 0.1),
    "ack_timeout": (0.3, 0.8),
    "merge_timeout": (0.2, 0.6),
    "behind_after": (0.15, 0.5),
    "resumer_timeout": (1.2, 2.0, 4.0),
}
STATE = {"chunk_size": (None, 200, 1000)}
FLUSH = {
    "timeout": (0.5, 1.0),
    "block_timeout": (0.1, 0.4),
    "hold_max": (3.0, 6.0),
    "exclusive_max": (None, 0.3, 1.0),
}
CALM: dict[str, dict[str, object]] = {
    "MERGE": {"interval": 0.5},
    "FAILURE": {"heartbeat_interval": 0.5, "heartbeat_timeout": 1.5, "verify_timeout": 0.3},
    "NAKACK": {},
    "UNICAST3": {},
    "STABLE": {},
    "FLOW": {},
    "FRAG": {},
    "GMS": {"ack_timeout": 0.8, "resumer_timeout": 4.0},
    "FLUSH": {"timeout": 1.0, "block_timeout": 0.4, "hold_max": 6.0},
    "FLUSH2": {"timeout": 1.0, "block_timeout": 0.4, "hold_max": 6.0},
}
"""By protocol: what it has in a large group."""
CALM_NETWORK = Conditions(latency=0.001, jitter=0.001)
TOTAL = {"delivery": ("agreed", "agreed", "safe"), "held": ("off", "majority", "all")}


def vs_plan(seed: int) -> Plan:
    """The plan of one run of the profile `vs`."""
    return _plan("vs", seed)


def total_plan(seed: int) -> Plan:
    """The plan of one run of the profile `total`."""
    return _plan("total", seed)


def _plan(profile: str, seed: int) -> Plan:
    rng = random.Random(f"{profile}/{seed}")
    size = LARGE if rng.random() < LARGE_SHARE else rng.choice((3, 3, 3, 4, 4, 4, 5, 5, 6, 7, 8, 9))
    large = size == LARGE
    members = [f"n{number}" for number in range(1, size + 1)]
    begin, quiet_at = 0.6, rng.uniform(2.5, 4.5)
    stack, channel = _stack(rng, profile, members), pick(rng, CHANNEL)
    if large:
        stack = _calmer(stack)
    faults = FaultMaker(rng, members, begin, quiet_at)
    plan = Plan(
        seed=seed,
        profile=profile,
        members=members,
        stack=stack,
        channel=channel,
        network=CALM_NETWORK if large else network(rng),
        limits=rng.choice((Limits(), Limits(4096, 8192, 2048))),
        skews={name: rng.uniform(-3600, 3600) for name in members if rng.random() < 0.3},
        starts=_starts(rng, members, quiet_at),
        bursts=make_bursts(rng, members, begin, quiet_at, cut_at(stack, channel), 30 if large else 220),
        faults=faults.make(swarm(rng, CHANNEL_FAULTS), intensity=2.5),
        actions=_actions(rng, members, begin, quiet_at),
        with_state=[name for name in members if rng.random() < 0.3],
        blocks={name: rng.choice((0.001, 0.02, 0.2)) for name in members if rng.random() < 0.3},
        state_size=rng.choice((0, 100, 5000, 20_000)),
        quiet_at=quiet_at,
    )
    share_secret(rng, stack)
    arranged = add_situations(rng, plan)
    add_farewells(rng, plan)
    if not large and not arranged:
        add_scenes(plan)
    return plan


def _starts(rng: random.Random, members: list[str], quiet_at: float) -> dict[str, float]:
    """All together, one after the other, or some of them in the middle of it all."""
    spread = rng.choice((0.0, 0.1, 0.5))
    starts = {name: rng.uniform(0.0, spread) for name in members}
    if rng.random() < 0.5:
        starts[rng.choice(members)] = rng.uniform(0.6, quiet_at - 0.3)
    return starts


def _actions(rng: random.Random, members: list[str], begin: float, end: float) -> list[Action]:
    kinds = [kind for kind in ("flush", "state") if rng.random() < 0.5]
    actions = []
    for kind in kinds:
        for _ in range(rng.randint(1, 4)):
            at = rng.uniform(begin, end - 0.1)
            action = Action(at, rng.choice(members), kind)
            if kind == "flush":
                action.hold = min(end - at, rng.choice((0.0, 0.01, 0.1, 0.5)))
                if rng.random() < 0.3:
                    action.targets = rng.sample(members, rng.randint(1, len(members)))
            actions.append(action)
            if kind == "flush" and rng.random() < 0.4:  # and somebody else at the same time
                actions.append(Action(at + rng.choice((0.0, 0.001, 0.02)), rng.choice(members), kind, action.hold))
    return sorted(actions, key=lambda action: action.at)


def _stack(rng: random.Random, profile: str, members: list[str]) -> Layers:
    peers = [f"10.0.0.{number}:{PORT}" for number in range(1, len(members) + 1)]
    layers = transport(rng, peers)
    layers += [
        ("MERGE", pick(rng, MERGE)),
        ("FAILURE", pick(rng, FAILURE)),
        ("NAKACK", pick(rng, NAKACK)),
        ("UNICAST3", pick(rng, UNICAST3)),
        ("STABLE", pick(rng, STABLE)),
        ("GMS", pick(rng, GMS)),
    ]
    if profile == "total":
        layers.append(("TOTAL", pick(rng, TOTAL)))
    layers += [
        ("STATE", pick(rng, STATE)),
        (rng.choice(("FLUSH2", "FLUSH2", "FLUSH")), pick(rng, FLUSH)),
        ("FLOW", pick(rng, FLOW)),
        ("FRAG", pick(rng, FRAG)),
    ]
    if rng.random() < 0.2:
        disturb(rng, layers)
    return layers


def _calmer(layers: Layers) -> Layers:
    """The stack for a large group: the time that a few members need is too short for forty on one bad network. Of
    their 1,560 pairs some would always suspect each other, and nothing would ever settle."""
    return [(name, CALM.get(name, settings)) for name, settings in layers if name not in FAULT_LAYERS]


_PROTOCOLS = ("MERGE", "GMS", "STATE", "FLUSH2", "FLUSH")

VS_PROFILE = Profile("vs", vs_plan, _PROTOCOLS, synchronous=True, standard_seeds=3000)
TOTAL_PROFILE = Profile("total", total_plan, (*_PROTOCOLS, "TOTAL"), synchronous=True, standard_seeds=3000)
