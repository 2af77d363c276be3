"""The profile `channel`, and what all profiles are made of.

A fixed view of reliable channels. Three to six members, sometimes up to nine, over TCP or UDP, with settings
so small that windows fill, trains are cut, connections expire and are opened again within seconds; everybody
multicasts and unicasts in bursts; every kind of fault that the swarm enables.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass

from coterie.sim.link import Conditions
from coterie.sim.plan import FAULT_LAYERS, PEERS_NAME, Burst, FaultMaker, Plan, pick, swarm
from coterie.sim.situations import add_farewells
from coterie.sim.stream import Limits

STANDARD_SEEDS = 2000
"""In so many runs every rule of a profile is reached."""

PORT = 7800
GROUP = "239.1.1.1:7900"
DISCOVERY_GROUP = "239.1.1.2:7901"

Layers = list[tuple[str, dict[str, object]]]


@dataclass(frozen=True, slots=True)
class Profile:
    """A family of runs."""

    name: str
    make: Callable[[int], Plan]
    protocols: tuple[str, ...]
    """Protocols whose rules it has to reach."""
    synchronous: bool = False
    """Views are agreed on: it has to reach NAKACK's rules for that, too."""
    standard_seeds: int = STANDARD_SEEDS
    rules: tuple[str, ...] = ()
    """Other rules that it has to reach."""


# Settings to choose from; None is the default.

TCP = {
    "connect_timeout": (0.3, 1.0),
    "reconnect_min": (0.02, 0.1),
    "reconnect_max": (0.3, 0.6),
    "linger": (0.05, 0.5),
    "buffer_max": (None, 20_000, 4_000),
    "checksum": ("header", "full"),
}
UDP = {"reconnect_min": (0.02, 0.1), "reconnect_max": (0.3, 0.6), "multicast": (None, GROUP)}
FAILURE = {
    "heartbeat_interval": (0.15, 0.3),
    "heartbeat_timeout": (0.6, 1.0, 1.5),
    "verify_timeout": (0.1, 0.3),
}
NAKACK = {
    "window": (None, 3, 8, 40),
    "ask_delay": (0.003, 0.02),
    "ask_max_delay": (0.05, 0.2),
    "ask_most": (None, 2, 10),
    "ask_others_after": (1, 2, 3),
    "highest_interval": (0.03, 0.1),
    "keep_departed": (0.5, 2.0, None),
}
UNICAST3 = {
    "ack_interval": (0.0, 0.005, 0.02),
    "retransmit_interval": (0.04, 0.1),
    "window": (None, 4, 20),
    "ask_most": (None, 2, 10),
    "conn_expiry_timeout": (0.0, 0.2, 0.6, None),
    "conn_close_timeout": (0.0, 0.1, 0.5),
}
STABLE = {"after_bytes": (None, 4000), "after_bundles": (None, 5, 30), "interval": (0.1, 0.25)}
FIXED = {"welcome_interval": (0.03, 0.1)}
FLOW = {"window": (None, 300, 1000, 5000), "report_after": (0.25, 0.1, 0.5), "ask_interval": (0.05, 0.2)}
FRAG = {"size": (None, 64, 300, 1000)}
CHANNEL = {
    "bundle_size": (None, 64, 300, 2000),
    "buffer_max": (None, 500, 5000),
    "close_timeout": (0.1, 0.5),
}

CHANNEL_FAULTS = (
    "crash", "leave", "pause", "clock", "partition", "partial", "one_way", "loss", "duplicate", "reorder", "corrupt",
    "slow_link", "latency", "reset", "slow_receiver", "close",
)  # fmt: skip


def channel_plan(seed: int) -> Plan:
    """The plan of one run of the profile `channel`."""
    rng = random.Random(f"channel/{seed}")
    size = rng.choice((3, 3, 3, 4, 4, 5, 6)) if rng.random() < 0.95 else rng.randint(7, 9)
    members = [f"n{number}" for number in range(1, size + 1)]
    begin, quiet_at = 0.5, rng.uniform(2.5, 4.5)
    faults = FaultMaker(rng, members, begin, quiet_at)
    stack, channel = _stack(rng, size), pick(rng, CHANNEL)
    plan = Plan(
        seed=seed,
        profile="channel",
        members=members,
        stack=stack,
        channel=channel,
        network=network(rng),
        limits=rng.choice((Limits(), Limits(4096, 8192, 2048), Limits(1500, 4096, 1000))),
        skews={name: rng.uniform(-3600, 3600) for name in members if rng.random() < 0.3},
        starts={name: rng.uniform(0.0, 0.5) for name in members},
        bursts=make_bursts(rng, members, begin, quiet_at, cut_at(stack, channel)),
        faults=faults.make(swarm(rng, CHANNEL_FAULTS), intensity=2.5),
        quiet_at=quiet_at,
    )
    share_secret(rng, stack)
    add_farewells(rng, plan)
    return plan


def share_secret(rng: random.Random, stack: Layers) -> None:
    """Some groups prove to each other that they belong together. Chosen last, so that nothing else depends on it."""
    if rng.random() < 0.15:
        stack[0][1]["secret"] = "a secret of simulated groups"


def network(rng: random.Random) -> Conditions:
    latency = rng.choice((0.0002, 0.001, 0.005, 0.02))
    return Conditions(
        latency=latency,
        jitter=latency * rng.choice((0.1, 0.5, 1.0)),
        bandwidth=rng.choice((0.0, 0.0, 1_000_000.0)),
        loss=rng.choice((0.0, 0.0, 0.002, 0.01)),
        chop=rng.choice((0.0, 0.0, 0.1, 0.5)),
    )


def _stack(rng: random.Random, size: int) -> Layers:
    peers = [f"10.0.0.{number}:{PORT}" for number in range(1, size + 1)]
    layers = transport(rng, peers)
    layers += [
        ("FAILURE", pick(rng, FAILURE)),
        ("NAKACK", pick(rng, NAKACK)),
        ("UNICAST3", pick(rng, UNICAST3)),
        ("STABLE", pick(rng, STABLE)),
        ("FIXED", pick(rng, FIXED)),
        ("FLOW", pick(rng, FLOW)),
        ("FRAG", pick(rng, FRAG)),
    ]
    if rng.random() < 0.3:
        disturb(rng, layers)
    return layers


def transport(rng: random.Random, peers: list[str]) -> Layers:
    name, table = ("TCP", TCP) if rng.random() < 0.4 else ("UDP", UDP)
    transport: dict[str, object] = {"bind_host": "{ip}", "bind_port": PORT}
    return [(name, transport | pick(rng, table)), _discovery(rng, peers)]


def _discovery(rng: random.Random, peers: list[str]) -> tuple[str, dict[str, object]]:
    interval, choice = rng.choice((0.1, 0.3)), rng.random()
    if choice < 0.1:
        return "DNS", {"host": PEERS_NAME, "port": PORT, "interval": interval}
    if choice < 0.2:
        return "MULTICAST", {"group": DISCOVERY_GROUP, "bind_host": "{ip}", "interval": interval}
    return "STATIC", {"peers": peers, "interval": interval}


def disturb(rng: random.Random, layers: Layers) -> None:
    """Put a fault layer somewhere under the reliable protocols."""
    name = rng.choice(FAULT_LAYERS)
    settings: dict[str, object] = {"up": rng.choice((0.01, 0.05, 0.2))}
    if name != "SHUFFLE":
        settings["down"] = rng.choice((0.0, 0.01, 0.05))
    if name == "DELAY":
        settings["longest"] = rng.choice((0.005, 0.05))
    layers.insert(rng.choice((2, 3)), (name, settings))


def cut_at(stack: Layers, channel: dict[str, object]) -> int:
    """Bytes after which a bundle is full."""
    sizes = [settings.get("size") for name, settings in stack if name == "FRAG"] + [channel.get("bundle_size")]
    return min([size for size in sizes if isinstance(size, int)], default=60_000)


def _bundles(messages: int, size: int, cut_at: int) -> int:
    """How many bundles so many messages become, about."""
    size = max(20, size) + 4
    return -(-messages // (cut_at // size)) if size <= cut_at else messages * -(-size // cut_at)


def make_bursts(
    rng: random.Random, members: list[str], begin: float, end: float, cut_at: int, most: int = 320
) -> list[Burst]:
    """Some hundred bundles in all, in bursts with pauses between them."""
    bursts = []
    total, target = 0, rng.randint(most * 2 // 3, most)
    sizes = rng.choice(((12, 12, 30), (12, 30, 200), (30, 200, 3000)))
    to_all = rng.choice((0.2, 0.5, 0.8))
    while total < target:
        size = rng.choice(sizes)
        burst = Burst(
            at=rng.uniform(begin, end),
            node=rng.choice(members),
            to="all" if rng.random() < to_all else rng.choice(members),
            bundles=rng.choice((1, 2, 5, 12, 25)) if size < 1000 else rng.randint(1, 3),
            messages=rng.choice((1, 1, 3, 10)) if size < 1000 else 1,
            size=size,
            gap=rng.choice((0.0, 0.0005, 0.01, 0.05)),
            wait=rng.random() < 0.2,
        )
        burst.gap = min(burst.gap, (end - burst.at) / burst.bundles)
        bursts.append(burst)
        total += burst.bundles * _bundles(burst.messages, size, cut_at)
    return sorted(bursts, key=lambda burst: burst.at)


CHANNEL_PROFILE = Profile(
    "channel",
    channel_plan,
    (
        "TCP", "UDP", "STATIC", "MULTICAST", "DNS", "FAILURE", "NAKACK", "UNICAST3", "STABLE", "FIXED", "FLOW", "FRAG",
    ),
)  # fmt: skip
