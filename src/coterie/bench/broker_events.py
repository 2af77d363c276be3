"""What happens to a cluster while clients use it: a new node joins, a node is killed.

And to a broker that stands alone, as far as it can happen to one: it starts with what it has, it is killed and started
again at once.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from functools import partial

from coterie.bench.broker_figures import ALONE
from coterie.bench.broker_nodes import Node, Nodes, working
from coterie.bench.broker_stage import PATIENCE, RATE, Stage, Step, ask, heard, patience
from coterie.errors import CoterieError
from coterie.workers import Message, Worker

CLIENTS = "coterie.bench.broker_faults"
JOINED = "credit"
"""A queue without consumers is nobody's, so both kinds of cluster join alike."""
LEAD = 0.5
"""Seconds of load before a kill."""
OWNED = 5
"""Messages in a row to one node's consumer, by which it is the owner of the queue for some time to come."""
LINGER = 20.0
"""Seconds after which what has not come is lost."""


# Join.


def joins(stage: Stage) -> Iterator[Step]:
    plan = stage.plan
    if "join" not in plan.parts:
        return
    for number in range(plan.joins):
        yield Step(f"join {number + 1}: {ALONE}", partial(_starts, stage))
        if plan.clusters:
            yield Step(f"join {number + 1}: {JOINED}", partial(_joins, stage))


def _steady(stage: Stage, clients: Worker, nodes: Nodes) -> str:
    """A queue with what is to be sent to the new one, and somebody who publishes to it."""
    stage.fill(nodes, "bench-join", stage.plan.joined)
    queue = f"bench-join-{os.getpid()}"
    ask(
        clients,
        {"do": "publish", "queue": queue, "size": stage.plan.size, "port": nodes.ports[0], "rate": RATE},
    )
    time.sleep(stage.plan.warmup)
    ask(clients, {"do": "gap"})
    return queue


def _gap(stage: Stage, clients: Worker, name: str, figure: str) -> None:
    time.sleep(stage.plan.rest)
    stage.measured.add(name, "join", figure, ask(clients, {"do": "gap"})["gap"])


def _stop(stage: Stage, clients: Worker, name: str) -> int:
    """How much was published meanwhile."""
    answer = ask(clients, {"do": "stop", "patience": PATIENCE})
    stage.blame(name, answer)
    return int(answer["sent"])


def _drain(stage: Stage, name: str, queue: str, port: int, sent: int) -> None:
    """Everything must be there, at the node with this port."""
    filled = stage.plan.joined
    order: Message = {
        "do": "drain", "queue": queue, "size": stage.plan.size, "port": port, "messages": filled + sent,
        "sum": filled * (filled + 1) // 2 + sent * (sent + 1) // 2, "patience": patience(filled),
    }  # fmt: skip
    stage.blame(name, ask(stage.load, order))


def _joins(stage: Stage) -> None:
    """All but one begin the cluster; the last one, which is empty, comes later."""
    with (
        stage.plan.ours(JOINED, size=stage.plan.nodes - 1, consoles=True) as nodes,
        working(CLIENTS) as (clients, _),
    ):
        new = nodes.each[-1]
        nodes.start(stage.plan.nodes - 1)
        queue = _steady(stage, clients, nodes)
        _gap(stage, clients, JOINED, "gap_before")
        clients.tell({"do": "joined", "port": new.port, "patience": PATIENCE})
        began = new.start()
        new.up()
        up = time.monotonic()
        answer = heard(clients)
        nodes.wait_in_step(new, PATIENCE)
        in_step = time.monotonic()
        stage.measured.add(JOINED, "join", "serves", (answer["at"] - began) * 1000)
        stage.measured.add(JOINED, "join", "in_step", (in_step - began) * 1000)
        stage.measured.add(JOINED, "join", "update", (in_step - up) * 1000)
        stage.measured.add(JOINED, "join", "gap", max(answer["gap"], ask(clients, {"do": "gap"})["gap"]))
        _drain(stage, JOINED, queue, new.port, _stop(stage, clients, JOINED))


def _starts(stage: Stage) -> None:
    """Nobody joins one that stands alone. It is started with as many messages, and is watched for the same time."""
    with stage.plan.ours(ALONE) as nodes, working(CLIENTS) as (clients, _):
        node = nodes.each[0]
        nodes.start()
        queue = _steady(stage, clients, nodes)
        _gap(stage, clients, ALONE, "gap_before")
        _gap(stage, clients, ALONE, "gap")
        sent = _stop(stage, clients, ALONE)
        node.kill()
        began = node.start()
        node.up()
        up = time.monotonic()
        served = ask(stage.load, {"do": "serve", "ports": [node.port], "patience": PATIENCE})["at"]
        stage.measured.add(ALONE, "join", "serves", (served - began) * 1000)
        stage.measured.add(ALONE, "join", "in_step", (served - began) * 1000)
        stage.measured.add(ALONE, "join", "update", (served - up) * 1000)
        _drain(stage, ALONE, queue, node.port, sent)


# Kill.


def kills(stage: Stage) -> Iterator[Step]:
    plan = stage.plan
    if "kill" not in plan.parts:
        return
    yield Step(f"kill: {ALONE}", partial(_killed_alone, stage))
    for name in plan.clusters:
        yield Step(f"kill: {name}", partial(_killed, stage, name))


def _order(stage: Stage, do: str, victim: Node, number: int) -> Message:
    return {
        "do": do, "queue": f"bench-kill-{number}-{os.getpid()}", "size": stage.plan.size, "rate": RATE,
        "victim": victim.port, "pid": victim.pid, "lead": LEAD, "linger": LINGER, "patience": PATIENCE,
    }  # fmt: skip


def _note(stage: Stage, name: str, case: str, answer: Message) -> None:
    for figure in ("delivery", "held", "confirm"):
        stage.measured.add(name, case, figure, answer[figure])
    stage.blame(name, answer)


def _killed_alone(stage: Stage) -> None:
    with stage.plan.ours(ALONE) as nodes, working(CLIENTS) as (clients, _):
        node = nodes.each[0]
        nodes.start()
        for number in range(stage.plan.kills):
            ask(clients, _order(stage, "kill_alone", node, number))
            node.kill()  # it is dead; this takes its remains away
            node.start()
            node.up()
            _note(stage, ALONE, "kill", heard(clients))


def _killed(stage: Stage, name: str) -> None:
    with stage.plan.ours(name, consoles=True) as nodes, working(CLIENTS) as (clients, _):
        nodes.start()
        for number in range(stage.plan.kills):
            for case in ("kill_oldest", "kill"):
                stage.served(nodes)
                oldest = nodes.oldest(nodes.each[number % len(nodes.each)])
                others = [node for node in nodes.each if node is not oldest]
                victim = oldest if case == "kill_oldest" else others.pop()
                survivors = [node for node in (oldest, *others) if node is not victim]
                if len(survivors) < 2:
                    raise CoterieError("bench broker: a cluster of two does not serve without one of them")
                order = _order(stage, "kill", victim, number)
                order["queue"] += f"-{case}"
                order["in_a_row"] = OWNED if name == "ownership" else 1
                order |= {"publish_at": survivors[0].port, "consume_at": survivors[1].port}
                _note(stage, name, case, ask(clients, order))
                victim.kill()
                victim.start()
                victim.up()
