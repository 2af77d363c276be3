"""The profile `broker`: one broker with a store, and a few clients that do everything a client may do.

They publish persistent and transient messages, with confirms and in transactions, to queues of every kind; they consume
with a changing prefetch and accept, refuse, give back or keep what they get; they purge and delete queues, close
channels and connections. Meanwhile the broker is killed, loses power or is stopped, connections break, the disk is
slow or full. In some runs one more client is hostile (`hostile_client`); and some are for one situation (`_replaced`).
In the end everything is consumed, and what was confirmed must have been found.
"""

from __future__ import annotations

import random
from typing import TypeVar

from coterie.sim.broker_antics import antics
from coterie.sim.link import Conditions
from coterie.sim.plan import Action, Burst, Fault, Plan, pick, swarm
from coterie.sim.profile_channel import Profile
from coterie.sim.stream import Limits

T = TypeVar("T", Action, Burst, Fault)

BROKER = "broker"
FANOUT, GRAVES = "all", "dlx"
DEAD = "dead"

QUEUES: dict[str, dict[str, object]] = {
    "plain": {},
    "short": {"x-max-length": 6, "x-dead-letter-exchange": GRAVES},
    "brief": {"x-message-ttl": 150, "x-dead-letter-exchange": GRAVES},
    "rank": {"x-max-priority": 3},
    "last": {"x-last-value-key": "k"},
    "ring": {"x-max-length": 5, "x-overflow": "ring", "x-dead-letter-exchange": GRAVES},
    "single": {"x-single-active-consumer": True, "x-delivery-limit": 2, "x-dead-letter-exchange": GRAVES},
    "strict": {"x-max-length": 8, "x-overflow": "reject-publish"},
    "letters": {"x-dead-letter-exchange": GRAVES},
    "fleeting": {},
}
"""What there is to choose from, each with its arguments."""
HOMES: dict[str, dict[str, object]] = {
    "here": {"x-replicated": False, "x-max-length": 10, "x-dead-letter-exchange": GRAVES},
    "hearth": {"qpid.replicated": "false", "x-max-priority": 3, "x-message-ttl": 300, "x-dead-letter-exchange": GRAVES},
}
"""Those that a cluster does not replicate: what is in them may be lost with one broker, and nobody counts on it."""
OWN = "own-"
"""How the exclusive queue of each client is called, before the client's name."""
DURABLE = (frozenset(QUEUES) | frozenset(HOMES)) - {"fleeting"}
SURE = frozenset({"plain", "rank", "single", "strict", "letters"})
"""What is confirmed there is found in the end, in the queue or among the dead letters, unless somebody purges it."""

STORE = {
    "segment_bytes": (None, 3_000, 20_000),
    "record_bytes": (None, 500),
    "sync_interval": (0.005, 0.05),
    "retry_interval": (0.05, 0.2),
    "reserve_bytes": (0, 2_000),
    "positions_ahead": (None, 600),
    "compact_bytes": (None, 700),
    "read_bytes": (None, 500),
    "copy_max": (None, 30),
}
SNAPSHOTS = {
    "snapshot_bytes": (None, 700, 4_000),
    "compact_garbage": (None, 0.1),
    "load_gap": (None, 0),
}


def store_settings(rng: random.Random, seed: int) -> dict[str, object]:
    """What came later is drawn apart, so that everything else of a seed stays what it was."""
    return {**pick(rng, STORE), **pick(random.Random(f"snapshots/{seed}"), SNAPSHOTS)}


BROKER_SETTINGS = {
    "dispatch_batch": (None, 2),
    "queue_resident_max": (None, None, 0, 200),
    "page_interval": (0.01, 0.1),
    "page_batch": (None, 3),
}
AMQP = {"publish_window": (None, 400), "write_high": (None, 2_000)}
BROKER_FAULTS = (
    "crash", "stop", "reset", "pause", "slow_disk", "disk_full", "disk_tear", "slow_receiver", "latency", "slow_link",
)  # fmt: skip
HOSTILE_NAME = "h"
"""How the names of hostile clients begin."""
HOSTILE = (
    "declare", "declare", "declare", "exchange", "bind", "bind", "publish", "publish", "publish", "publish", "consume",
    "get", "answer", "disorder", "garbage", "transaction", "step", "step", "policy", "define", "lease",
)  # fmt: skip
"""What they do."""
ARRANGED = 0.03
"""Of the plans are for one situation, and have nothing else."""
ACTIONS = ("purge", "delete", "get", "prefetch", "cancel", "close_channel", "recover", "tx", "disconnect")

RULES = (
    "accept", "reject", "confirm", "confirm.refused", "publish.unroutable",
    "acquire.redelivered", "acquire.no_ack", "acquire.lease",
    "release.flagged", "release.unflagged",
    "dequeue.accepted", "dequeue.got", "dequeue.rejected", "dequeue.expired", "dequeue.maxlen", "dequeue.replaced",
    "dequeue.purged", "dequeue.deleted", "dequeue.delivery_limit",
    "dead_letter.sent", "dead_letter.dropped",
    "tx.begins", "tx.committed", "tx.accepts", "tx.rejects", "tx.requeues", "tx.enqueues",
    "recovered.clean", "recovered.unclean", "recovered.entries", "recovered.redelivered",
    "queue.deleted", "client.closed", "unsettled",
)  # fmt: skip
"""What happens in some run."""


def broker_plan(seed: int) -> Plan:
    """The plan of one run of the profile `broker`."""
    rng = random.Random(f"broker/{seed}")
    clients = [f"c{number}" for number in range(1, rng.choice((2, 2, 3, 4)) + 1)]
    begin, quiet_at = 0.3, rng.uniform(1.5, 2.5)
    names = sorted(rng.sample(sorted(QUEUES), rng.randint(3, 5)))
    latency = rng.choice((0.0003, 0.001, 0.005))
    hostile, deeds = hostile_actions(random.Random(f"broker/{seed}/hostile"), begin, quiet_at)
    more = antics(f"broker/{seed}/antics", clients, names, begin, quiet_at)
    plan = Plan(
        seed=seed,
        profile="broker",
        members=[BROKER, *clients, *hostile],
        stack=[("STORE", store_settings(rng, seed)), ("BROKER", pick(rng, BROKER_SETTINGS)), ("AMQP", pick(rng, AMQP))],
        channel={"queues": names, "unbound": rng.random() < 0.2},
        network=Conditions(latency, latency * rng.choice((0.1, 1.0)), chop=rng.choice((0.0, 0.0, 0.3))),
        limits=rng.choice((Limits(), Limits(4096, 8192, 2048))),
        skews={BROKER: rng.uniform(-3600, 3600)} if rng.random() < 0.3 else {},
        bursts=client_bursts(rng, clients, names, begin, quiet_at),
        actions=in_order([*client_actions(rng, clients, names, begin, quiet_at), *deeds, *more]),
        faults=in_order([*_faults(rng, clients, begin, quiet_at), *_errors(seed, begin, quiet_at)]),
        quiet_at=quiet_at,
        settle=20.0,
    )
    chance = random.Random(f"broker/{seed}/arranged")
    if chance.random() < ARRANGED:
        _replaced(chance, plan, clients, begin)
    return plan


def in_order(planned: list[T]) -> list[T]:
    return sorted(planned, key=lambda each: each.at)


def client_bursts(rng: random.Random, clients: list[str], names: list[str], begin: float, end: float) -> list[Burst]:
    bursts = []
    left = rng.randint(80, 200)
    while left > 0:
        burst = Burst(
            at=rng.uniform(begin, end - 0.1),
            node=rng.choice(clients),
            to=FANOUT if rng.random() < 0.15 else rng.choice(names),
            bundles=rng.choice((1, 2, 4)),
            messages=rng.choice((1, 3, 8)),
            size=rng.choice((20, 20, 60, 200)),
            gap=rng.choice((0.0, 0.002, 0.02)),
        )
        bursts.append(burst)
        left -= burst.bundles * burst.messages
    return sorted(bursts, key=lambda burst: burst.at)


def client_actions(rng: random.Random, clients: list[str], names: list[str], begin: float, end: float) -> list[Action]:
    actions = []
    for name in names:  # each queue has somebody who consumes it; now and then nobody has
        for client in rng.sample(clients, rng.choice((0, 1, 1, 2))):
            at = rng.uniform(begin, begin + (end - begin) * 0.7)
            actions.append(Action(at, client, "consume", rng.choice((0, 1, 3, 10)), [name]))
    for kind in [kind for kind in ACTIONS if rng.random() < 0.5]:
        for _ in range(rng.randint(1, 3 if kind != "tx" else 6)):
            at = rng.uniform(begin, end - 0.1)
            actions.append(Action(at, rng.choice(clients), kind, rng.choice((0, 1, 2, 5)), [rng.choice(names)]))
    return sorted(actions, key=lambda action: action.at)


def hostile_actions(rng: random.Random, begin: float, end: float) -> tuple[list[str], list[Action]]:
    """In some runs there is a hostile client, and what it does: each deed has a seed of its own."""
    if rng.random() >= 0.4:
        return [], []
    name = f"{HOSTILE_NAME}1"
    kinds = [kind for kind in HOSTILE if rng.random() < 0.6]
    count = rng.choice((20, 60, 120)) if kinds else 0
    deeds = [
        Action(rng.uniform(begin, end - 0.1), name, rng.choice(kinds), float(rng.randrange(1_000_000)))
        for _ in range(count)
    ]
    if rng.random() < 0.15:
        deeds.append(Action(rng.uniform(begin, end - 0.5), name, "cascade", float(rng.randrange(1_000_000))))
    return [name], deeds


def _faults(rng: random.Random, clients: list[str], begin: float, end: float) -> list[Fault]:
    faults = []
    for kind in swarm(rng, BROKER_FAULTS):
        for _ in range(rng.choice((1, 1, 2, 3))):
            at = rng.uniform(begin, end - 0.2)
            fault = Fault(at, kind, [BROKER], min(end - at, rng.choice((0.02, 0.1, 0.4))))
            match kind:
                case "crash":
                    fault.values = {"power": float(rng.random() < 0.7), "silent": float(rng.random() < 0.2)}
                case "pause":
                    fault.nodes = [rng.choice([BROKER, *clients])]
                case "reset":
                    fault.nodes, fault.duration = [rng.choice(clients), BROKER], 0.0
                case "slow_receiver":
                    fault.nodes, fault.values = [rng.choice(clients)], {"delay": rng.choice((0.02, 0.2))}
                case "slow_disk":
                    fault.values = {"factor": rng.choice((5.0, 40.0))}
                case "disk_full":
                    fault.values = {"room": float(rng.choice((0, 300, 3000)))}
                case "latency" | "slow_link":
                    client = rng.choice(clients)
                    fault.links = [[client, BROKER], [BROKER, client]]
                    values = {"latency": 0.03} if kind == "latency" else {"bandwidth": rng.choice((5_000.0, 50_000.0))}
                    fault.nodes, fault.values = [], values
            faults.append(fault)
    return sorted(faults, key=lambda fault: fault.at)


def _errors(seed: int, begin: float, end: float) -> list[Fault]:
    """A disk that fails for a moment, with power lost soon after, or not. Chance of its own, so that what a seed stood
    for before there were such faults it still stands for, but for these."""
    rng = random.Random(f"broker/{seed}/errors")
    faults: list[Fault] = []
    if rng.random() < 0.25:
        for _ in range(rng.choice((1, 2, 3))):
            at = rng.uniform(begin, end - 0.2)
            duration = min(end - at, rng.choice((0.02, 0.1, 0.4)))
            chance = rng.choice((0.2, 0.5, 1.0))
            values = {"chance": chance, "sticking": chance}
            if rng.random() < 0.4:  # files can be written and synced, and neither removed nor renamed
                duration, values = min(end - at, rng.choice((0.3, 1.0))), {"chance": 0.0, "sticking": chance}
            faults.append(Fault(at, "disk_error", [BROKER], duration, values=values))
            if rng.random() < 0.5:
                later = min(at + duration * rng.uniform(0.5, 2.0), end - 0.1)
                values = {"power": float(rng.random() < 0.8), "silent": 0.0}
                faults.append(Fault(later, "crash", [BROKER], rng.choice((0.02, 0.1)), values=values))
    return faults


def _replaced(rng: random.Random, plan: Plan, clients: list[str], begin: float) -> None:
    """Messages for several queues are replaced in the first of them by others of the same batch, while records of the
    store end wherever they can: that a message is gone from there may be on disk before that it is in the others. No
    queue is bounded: a broker that stands alone takes what may fail half-way as one step, in one record."""
    plan.members = [BROKER, *clients]
    plan.channel["queues"] = ["last", *rng.sample(("letters", "plain", "rank", "single"), rng.randint(1, 3))]
    dict(plan.stack)["STORE"]["record_bytes"] = rng.choice((1, 500))
    plan.actions = []
    plan.bursts = in_order(
        [
            Burst(
                rng.uniform(begin, plan.quiet_at - 0.3), rng.choice(clients), FANOUT, 2, rng.choice((3, 8)), gap=0.002
            )
            for _ in range(12)
        ]
    )
    plan.faults = in_order(
        [
            Fault(at, "crash", [BROKER], 0.05, values={"power": float(rng.random() < 0.5), "silent": 0.0})
            for at in (rng.uniform(begin + 0.3, plan.quiet_at - 0.1) for _ in range(2))
        ]
    )


BROKER_PROFILE = Profile("broker", broker_plan, (), rules=RULES)
