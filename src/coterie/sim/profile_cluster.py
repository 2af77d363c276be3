"""The profile `cluster`: two, three or five brokers that are one, and clients that do everything on any of them.

What clients do is as in the profile `broker`; and readers lease messages of some queues, read them from any broker,
retire them, crash, and take over. In some runs one more client is hostile (`hostile_client`), or brokers have lived
so long that they have counted beyond 32 bits. More brokers may join later. Brokers are killed, lose power, are stopped
and paused; links between them are cut, in both directions or in one; disks are slow, full or torn; now and then the
power fails for all of them, and while they are brought up to date again some die once more; a sync hangs for longer
than its broker is cut off; brokers of another cluster come along; all connections between brokers are reset while
consumers without acknowledgements leave; one restarts with a setting that the others do not have, and must be kept out
until it has theirs again; one makes another state of the log than the others. Some plans are for one situation, and
have nothing else (cluster_situations.py). In the end all brokers serve, everything is consumed, and what was confirmed
must have been found. In a quarter of the runs some events fail half-way, at every broker alike, and brokers send
nonsense: all of that is void, and must leave nothing.
"""

from __future__ import annotations

import random
from itertools import combinations

from coterie.sim.cluster_situations import add_cluster_situations
from coterie.sim.link import Conditions
from coterie.sim.plan import Action, Burst, Fault, Plan, pick, swarm
from coterie.sim.profile_broker import (
    AMQP,
    BROKER_SETTINGS,
    HOMES,
    OWN,
    QUEUES,
    client_actions,
    client_bursts,
    hostile_actions,
    in_order,
    store_settings,
)
from coterie.sim.profile_channel import Profile
from coterie.sim.stream import Limits

CLUSTER_FAULTS = (
    "crash", "crash", "stop", "pause", "partition", "partition", "one_way", "reset", "slow_disk", "disk_full",
    "disk_tear", "slow_receiver", "latency", "slow_link",
)  # fmt: skip
FOREIGN = "f"
"""The names of brokers of another cluster begin with it."""
ALARMS = ("memory_alarm", "disk_full")
"""What brings alarms, for a while that is long enough for all to hear of them."""
CLUSTER = {"credit_max": (None, 5, 40), "backlog_max": (None, None, 3_000)}
OTHERWISE = (("dispatch_batch", 3), ("death_records_max", 1), ("lease_rows_max", 2), ("queues_max", 7))
"""Settings that decide inside events, with values that no broker has by the plan."""
LASTING = ("plain", "letters", "rank")
"""Queues that take everything, and give it to everybody."""
DEEDS = ("consume", "consume", "purge", "delete", "get", "tx")
"""What is done to queues that are not replicated."""
RULES = (
    "given", "given.redelivered", "promise", "promise.disk", "void", "replica", "replica.updated",
    "serving.joining", "serving.serving", "serving.stranded", "serving.astray", "strays",
    "lease.acquire", "lease.read", "lease.retire", "lease.release", "lease.take", "lease.end",
    "home.given", "home.refused", "home.missing", "own.given",
)  # fmt: skip
"""What happens in some run."""


def cluster_plan(seed: int) -> Plan:
    """The plan of one run of the profile `cluster`."""
    rng = random.Random(f"cluster/{seed}")
    brokers = [f"b{number}" for number in range(1, rng.choice((3, 3, 3, 3, 5)) + 1)]
    late = [f"b{number}" for number in range(len(brokers) + 1, len(brokers) + 1 + rng.choice((0, 0, 0, 1, 2)))]
    if random.Random(f"cluster/{seed}/two").random() < 0.1:  # none of them can be spared; and no two others come, as
        brokers, late = brokers[:2], late[:0]  # those would be enough to begin a cluster of their own
    clients = [f"c{number}" for number in range(1, rng.choice((2, 3, 4)) + 1)]
    begin, quiet_at = 1.0, rng.uniform(3.0, 5.0)
    names = sorted(rng.sample(sorted(QUEUES), rng.randint(2, 4)))
    latency = rng.choice((0.0003, 0.001, 0.005))
    timeout = rng.choice((0.5, 1.0))
    hanging, meanwhile = _hang(seed, brokers, clients, names, begin)
    if hanging:  # there must be time to be excluded, and to come back
        timeout, quiet_at = 0.5, max(quiet_at, meanwhile[-1].at + 0.5)
    chance = random.Random(f"cluster/{seed}/dispatch")
    shared = {
        "dispatch": chance.choice(("credit", "ownership")),
        "ownership_time": chance.choice((0.005, 0.05)),
        "update_batch": chance.choice((1, 2_000, 256 << 10)),
    }
    settings = {
        "size": len(brokers),
        **shared,
        "heartbeat_timeout": timeout,
        "lease": timeout / 2,
        **pick(rng, CLUSTER),
    }
    short = random.Random(f"cluster/{seed}/bounds")
    pending = {"pending_max": short.choice((1_000, 128 << 20))}
    settings["unsynced_max"] = short.choice((800, 256 << 20))
    homely = random.Random(f"cluster/{seed}/homes")
    homes = sorted(homely.sample(sorted(HOMES), homely.choice((0, 0, 1, 2))))
    own = [f"{OWN}{client}" for client in clients] if homes and homely.random() < 0.5 else []
    more: list[Burst] = []
    deeds: list[Action] = []
    if homes:
        more = client_bursts(homely, clients, [*homes, *own], begin, quiet_at)
        deeds = [each for each in client_actions(homely, clients, homes, begin, quiet_at) if each.kind in DEEDS]
    hostile, misdeeds = hostile_actions(random.Random(f"cluster/{seed}/hostile"), begin, quiet_at)
    reading = random.Random(f"cluster/{seed}/leases")
    leased = sorted(reading.sample(names, reading.choice((0, 1, 2))))
    life: dict[str, object] = {"numbers": reading.choice((2**32 - 1, 2**32 - 4))} if reading.random() < 0.3 else {}
    strangers, of_strangers = _strangers(seed, brokers, late, begin, quiet_at)
    unread = [name for name in names if name not in leased]  # who reads in bulk knows messages by their bodies
    tiny = _tiny(random.Random(f"cluster/{seed}/tiny"), clients, unread, begin)
    stale = _stale(random.Random(f"cluster/{seed}/stale"), clients, names, begin)
    left, leaving, resets, then = _leavers(seed, brokers, clients, names, latency, begin, quiet_at)
    others = [name for name in names if name != left]
    broker = {name: value for name, value in pick(rng, BROKER_SETTINGS).items() if name == "dispatch_batch"}
    plan = Plan(
        seed=seed,
        profile="cluster",
        members=[*brokers, *late, *strangers, *clients, *hostile],
        starts={name: rng.uniform(begin, quiet_at) for name in late},
        stack=[
            ("STORE", {**store_settings(rng, seed), **pending}),
            ("BROKER", broker),
            ("AMQP", pick(rng, AMQP)),
            ("CLUSTER", settings),
            ("LIFE", life),
        ],
        channel={
            "queues": names,
            "brokers": [*brokers, *late, *strangers],
            "unbound": rng.random() < 0.2,
            "homes": homes,
            "own": bool(own),
            "leases": leased,
            "mistakes": _mistakes(seed),
            "only": {clients[-1]: hanging[0].nodes[0]} if hanging else {},
        },
        network=Conditions(latency, latency * rng.choice((0.1, 1.0)), chop=rng.choice((0.0, 0.0, 0.3))),
        limits=rng.choice((Limits(), Limits(4096, 8192, 2048))),
        skews={name: rng.uniform(-3600, 3600) for name in brokers if rng.random() < 0.2},
        bursts=in_order(
            [*client_bursts(rng, clients, names, begin, quiet_at), *more, *meanwhile, *tiny, *stale, *then]
        ),
        actions=in_order([*client_actions(rng, clients, others, begin, quiet_at), *deeds, *misdeeds, *leaving]),
        faults=sorted(
            [
                *_faults(rng, seed, [*brokers, *late], clients, begin, quiet_at),
                *_blackout(seed, brokers, begin, quiet_at),
                *_hostile(seed, brokers, begin, quiet_at),
                *_restart(seed, brokers, begin, quiet_at),
                *hanging,
                *of_strangers,
                *resets,
                *_alarms(short, brokers, begin, quiet_at),
                *_otherwise(seed, brokers, begin, quiet_at),
                *_astray(seed, brokers, begin, quiet_at),
            ],
            key=lambda fault: fault.at,
        ),
        quiet_at=quiet_at,
        settle=40.0,
    )
    add_cluster_situations(plan, brokers, clients, names)
    return plan


def _tiny(rng: random.Random, clients: list[str], names: list[str], begin: float) -> list[Burst]:
    """Messages of no byte or one, of all clients at once, for a queue that refuses: of such bodies Python has one."""
    if "strict" not in names:
        return []
    at, size = rng.uniform(begin - 0.1, begin + 0.3), rng.choice((0, 1))
    return [Burst(at + rng.choice((0.0, 0.001)), client, "strict", 3, 5, size, 0.001) for client in clients]


def _stale(rng: random.Random, clients: list[str], names: list[str], begin: float) -> list[Burst]:
    """Messages that expire behind others which do not."""
    lasting = [name for name in names if name in ("plain", "letters", "fleeting", "single")]
    if not lasting:
        return []
    at, client, to = begin + rng.uniform(-0.1, 0.1), rng.choice(clients), rng.choice(lasting)
    return [Burst(at, client, to), Burst(at + 0.01, client, to, messages=3, ttl=100), Burst(at + 0.02, client, to)]


def _leavers(
    seed: int, brokers: list[str], clients: list[str], names: list[str], latency: float, begin: float, end: float
) -> tuple[str, list[Action], list[Fault], list[Burst]]:
    """Now and then somebody consumes without acknowledgements and leaves, in one of three ways, and when its broker
    tells the others so, all connections between them are reset: they live on, and hear of it late. Others publish
    meanwhile to that queue, which nobody else consumes or clears; so it is known what must be in it."""
    rng = random.Random(f"cluster/{seed}/leave")
    queue = next((name for name in names if name in LASTING), "")
    if rng.random() >= 0.2 or not queue:
        return "", [], [], []
    client, way = rng.choice(clients), rng.choice((0, 1, 2))
    at = rng.uniform(begin, begin + 0.5)
    away = at + rng.uniform(0.1, 0.4)
    told = away + latency * rng.uniform(1.0, 3.0)
    return (
        queue,
        [Action(at, client, "take", 0, [queue]), Action(away, client, "leave", way, [queue])],
        [Fault(told, "reset", [one, other]) for one, other in combinations(brokers, 2)],
        [Burst(told + 0.01, other, queue, 20, 1, gap=0.01) for other in clients if other != client],
    )


def _alarms(rng: random.Random, brokers: list[str], begin: float, end: float) -> list[Fault]:
    """One of the brokers is low on memory, or its disk is full, while nothing else need be wrong."""
    if rng.random() >= 0.4:
        return []
    at = rng.uniform(begin, begin + 0.5)
    fault = Fault(at, rng.choice(ALARMS), [rng.choice(brokers)], rng.choice((0.5, end - at - 0.1)))
    if fault.kind == "disk_full":
        fault.values = {"room": float(rng.choice((0, 300)))}
    return [fault]


def _blackout(seed: int, brokers: list[str], begin: float, end: float) -> list[Fault]:
    """Now and then all brokers lose power at once: what they had in memory alone is gone. One whose disk was quick,
    while those of others were slow, comes back last."""
    rng = random.Random(f"cluster/{seed}/blackout")
    if rng.random() >= 0.1:
        return []
    at, quick, slow = rng.uniform(begin + 0.5, end - 1.0), rng.choice(brokers), rng.choice((5.0, 40.0, 200.0))
    faults = [
        Fault(at, "crash", [broker], 0.6 if broker == quick else 0.05, values={"power": 1.0, "silent": 0.0})
        for broker in brokers
    ]
    others = (broker for broker in brokers if broker != quick)
    return [*(Fault(at - 0.4, "slow_disk", [broker], 0.4, values={"factor": slow}) for broker in others), *faults]


def _astray(seed: int, brokers: list[str], begin: float, end: float) -> list[Fault]:
    """Now and then one of the brokers makes another state of the log than the others."""
    rng = random.Random(f"cluster/{seed}/astray")
    if rng.random() >= 0.15:
        return []
    return [Fault(rng.uniform(begin, end - 0.3), "other_state", [rng.choice(brokers)], 0.0)]


def _hostile(seed: int, brokers: list[str], begin: float, end: float) -> list[Fault]:
    """Where there are mistakes, brokers may also send what makes no sense; and often the power fails for all."""
    rng = random.Random(f"cluster/{seed}/hostile")
    if not _mistakes(seed):
        return []
    at = rng.uniform(begin + 0.5, end - 1.0) if rng.random() < 0.6 else None
    return [
        *(
            Fault(rng.uniform(begin, end - 0.5), "hostile", [rng.choice(brokers)], 0.0, values={"number": float(n)})
            for n in range(rng.choice((0, 3, 10)))
        ),
        *(
            Fault(at or 0.0, "crash", [broker], 0.1, values={"power": 1.0, "silent": 0.0})
            for broker in (brokers if at is not None else [])
        ),
    ]


def _restart(seed: int, brokers: list[str], begin: float, end: float) -> list[Fault]:
    """Now and then all die at once and come back one after the other, with stores that are equal, or one of which is
    older; and as slow disks make the updates long, some die again in the midst of them."""
    rng = random.Random(f"cluster/{seed}/restart")
    if rng.random() >= 0.12:
        return []
    at, power = rng.uniform(begin + 0.5, end - 1.2), float(rng.random() < 0.5)
    faults = [
        Fault(at, "crash", [broker], rng.uniform(0.05, 0.3), values={"power": power, "silent": 0.0})
        for broker in brokers
    ]
    if rng.random() < 0.5:
        faults.append(Fault(at - 0.3, "slow_disk", [rng.choice(brokers)], 0.3, values={"factor": 200.0}))
    faults += [Fault(at + 0.05, "slow_disk", [broker], 0.8, values={"factor": 60.0}) for broker in brokers]
    for _ in range(rng.choice((1, 2))):
        again = at + rng.uniform(0.3, 0.8)
        values = {"power": float(rng.random() < 0.5), "silent": 0.0}
        faults.append(Fault(again, "crash", [rng.choice(brokers)], rng.uniform(0.1, 0.4), values=values))
    return faults


def _hang(
    seed: int, brokers: list[str], clients: list[str], names: list[str], begin: float
) -> tuple[list[Fault], list[Burst]]:
    """Now and then a sync of one broker, likely the one that orders, hangs while it is cut off and comes back. One
    client knows no other broker: so that one orders events that nobody else ever has."""
    rng = random.Random(f"cluster/{seed}/hang")
    if rng.random() >= 0.12:
        return [], []
    broker = brokers[0] if rng.random() < 0.7 else rng.choice(brokers)
    at, away = rng.uniform(begin, begin + 0.4), rng.uniform(2.0, 2.6)
    hangs = away + rng.uniform(0.8, 2.0)
    cut = [[broker, other] for other in brokers if other != broker]
    faults = [
        Fault(at, "hung_sync", [broker], hangs),
        Fault(at + 0.05, "partition", [], away, links=[*cut, *([b, a] for a, b in cut)]),
    ]
    bursts = [Burst(at + 0.1, client, rng.choice(names), 20, 1, gap=0.02) for client in clients]
    bursts += [Burst(at + hangs + 0.05, client, rng.choice(names), 10, 1, gap=0.05) for client in clients]
    return faults, bursts


def _strangers(
    seed: int, brokers: list[str], late: list[str], begin: float, end: float
) -> tuple[list[str], list[Fault]]:
    """Now and then two brokers are another cluster, and nobody reaches them, until all die. One of them comes back, and
    meets those to whom it does not belong."""
    rng = random.Random(f"cluster/{seed}/strangers")
    if rng.random() >= 0.06:
        return [], []
    names = [f"{FOREIGN}1", f"{FOREIGN}2"]
    at = rng.uniform(begin + 0.5, end - 1.0)
    cut = [[name, other] for name in names for other in (*brokers, *late)]
    faults = [Fault(0.0, "partition", [], at + 0.02, links=[*cut, *([b, a] for a, b in cut)])]
    values = {"power": 1.0, "silent": 0.0}
    faults += [Fault(at, "crash", [broker], rng.uniform(0.1, 0.6), values=values) for broker in brokers]
    faults.append(Fault(at, "crash", [names[0]], rng.uniform(0.05, 0.6), values=values))
    faults.append(Fault(at, "crash", [names[1]], 0.0, values=values))
    return names, faults


def _otherwise(seed: int, brokers: list[str], begin: float, end: float) -> list[Fault]:
    """Now and then a broker restarts with other settings than the others have, and later with theirs again."""
    rng = random.Random(f"cluster/{seed}/settings")
    if rng.random() >= 0.08:
        return []
    at, broker, lasts = rng.uniform(begin, end - 1.2), rng.choice(brokers), rng.uniform(0.8, 2.0)
    values = {"power": float(rng.random() < 0.5), "setting": float(rng.randrange(len(OTHERWISE)))}
    return [Fault(at, "otherwise", [broker], min(end - at, lasts), values=values)]


def _mistakes(seed: int) -> float:
    """Which part of all events meets a mistake in the code: in a quarter of the runs there are some."""
    return random.Random(f"cluster/{seed}/mistakes").choice((0.01, 0.05, 0.15)) if seed % 4 == 3 else 0.0


def _faults(
    rng: random.Random, seed: int, brokers: list[str], clients: list[str], begin: float, end: float
) -> list[Fault]:
    faults = []
    chance = random.Random(f"cluster/{seed}/pairs")
    for kind in swarm(rng, CLUSTER_FAULTS):
        for _ in range(rng.choice((1, 1, 2))):
            at = rng.uniform(begin, end - 0.5)
            broker = rng.choice(brokers)
            fault = Fault(at, kind, [broker], min(end - at, rng.choice((0.05, 0.3, 0.8, 1.5))))
            match kind:
                case "crash":
                    fault.values = {"power": float(rng.random() < 0.7), "silent": float(rng.random() < 0.3)}
                case "pause":
                    fault.nodes = [rng.choice([*brokers, *clients])]
                case "partition" | "one_way":
                    side = rng.sample(brokers, rng.randint(1, len(brokers) // 2))
                    cut = [[a, b] for a in side for b in brokers if b not in side]
                    if chance.random() < 0.3:  # two that reach each other no more, but all others
                        cut = [chance.sample(brokers, 2)]
                    fault.nodes = []
                    fault.links = cut if kind == "one_way" else [*cut, *([b, a] for a, b in cut)]
                case "reset":
                    fault.nodes, fault.duration = rng.sample([*brokers, *clients], 2), 0.0
                case "slow_receiver":
                    fault.nodes, fault.values = [rng.choice(clients)], {"delay": rng.choice((0.02, 0.2))}
                case "slow_disk":
                    fault.values = {"factor": rng.choice((5.0, 40.0))}
                case "disk_full":
                    fault.values = {"room": float(rng.choice((0, 300, 3000)))}
                case "latency" | "slow_link":
                    other = rng.choice([name for name in (*brokers, *clients) if name != broker])
                    fault.links = [[other, broker], [broker, other]]
                    values = (
                        {"latency": 0.03} if kind == "latency" else {"bandwidth": rng.choice((20_000.0, 200_000.0))}
                    )
                    fault.nodes, fault.values = [], values
            faults.append(fault)
    return sorted(faults, key=lambda fault: fault.at)


CLUSTER_PROFILE = Profile("cluster", cluster_plan, (), rules=RULES)
