"""Situations in plans of the profile `cluster` that chance seldom makes: see situations.py.

Some plans get one, in place of their other faults and of most that clients do. Whether they do, a chance of its own
decides, so that all other plans are what they would be without it.
"""

from __future__ import annotations

import random

from coterie.sim.plan import Burst, Fault, Plan
from coterie.sim.profile_broker import DURABLE

SHARE = 0.04
"""Of the plans that get the situation."""
ENOUGH = 256 << 20
"""Bytes that may wait for a disk: a broker whose sync hangs neither steps back nor blocks its clients."""


def add_cluster_situations(plan: Plan, brokers: list[str], clients: list[str], queues: list[str]) -> None:
    rng = random.Random(f"cluster/{plan.seed}/arranged")
    if rng.random() < SHARE:
        late_sync(rng, plan, brokers, clients, rng.choice([name for name in queues if name in DURABLE]))
        plan.faults.sort(key=lambda fault: fault.at)
        plan.bursts.sort(key=lambda burst: burst.at)


def late_sync(rng: random.Random, plan: Plan, brokers: list[str], clients: list[str], queue: str) -> None:
    """A sync of the broker that orders ends in the next life of its store, and is of a log that nobody else had.

    While it is cut off, one client has it order more than the others do; they have next to nothing to do until it is
    in step again. Then its disk is slow, and often all but one: what the late sync seems to say is not true yet.
    """
    orders, *others = brokers
    busy, *idle = clients
    _alone(plan, brokers, clients)
    plan.starts = {name: rng.uniform(0.1, 0.3) for name in others}  # the first coordinates, and so it orders
    plan.channel["only"] = {busy: orders} | {client: rng.choice(others) for client in idle}
    settings = dict(plan.stack)
    settings["CLUSTER"] |= {"heartbeat_timeout": 0.5, "lease": 0.25, "unsynced_max": ENOUGH}
    settings["CLUSTER"].pop("backlog_max", None)
    settings["STORE"]["pending_max"] = ENOUGH
    settings["AMQP"].pop("publish_window", None)
    at, away = rng.uniform(1.0, 1.4), rng.uniform(1.5, 2.5)
    ends = at + away + rng.uniform(1.0, 2.5)
    in_step = ends + rng.uniform(0.3, 0.5)
    plan.quiet_at = in_step + rng.uniform(1.0, 1.5)
    cut = [link for other in others for link in ([orders, other], [other, orders])]
    slow = [orders, *others[: rng.choice((0, len(others) - 1))]]
    values = {"factor": rng.choice((40.0, 100.0))}
    plan.faults = [
        Fault(at, "hung_sync", [orders], ends - at),
        Fault(at + 0.05, "partition", [], away, links=cut),
        *(Fault(in_step, "slow_disk", [name], plan.quiet_at - in_step, values=values) for name in slow),
    ]
    plan.bursts = [Burst(rng.uniform(0.6, 0.9), client, queue, 2, 3) for client in clients]
    plan.bursts.append(Burst(at + 0.06, busy, queue, 60, 1, gap=0.02))
    plan.bursts += [Burst(in_step + 0.01, client, queue, 10, 1, gap=0.04) for client in idle]


def _alone(plan: Plan, brokers: list[str], clients: list[str]) -> None:
    """Nobody else is there, and nothing else happens."""
    plan.members = [*brokers, *clients]
    plan.channel |= {"brokers": brokers, "homes": [], "own": False, "leases": [], "mistakes": 0.0}
    plan.skews = {}
    plan.actions = []
