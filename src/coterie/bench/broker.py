"""A broker under load, beside the least that could be called the same on this machine, and beside other brokers.

Everything is played in turn against the raw relay (broker_raw.py), against a broker of ours that stands alone, against
clusters of ours in both of their ways to give out messages, and against whatever other brokers are named: rounds are
outermost, so that all of them meet the same machine.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial

from coterie.bench import broker_disk, broker_events
from coterie.bench.broker_figures import ALONE, DISK, RAW
from coterie.bench.broker_nodes import Nodes, listener, resident, scratch, working
from coterie.bench.broker_stage import RATE, Case, Peer, Plan, Stage, Step, Target

LOAD, RELAY = "coterie.bench.broker_load", "coterie.bench.broker_raw"
REST = 1.0
"""Seconds after which a broker that has just begun to serve counts as idle."""

CASES: dict[str, tuple[Case, ...]] = {
    "throughput": (
        Case("persistent"),
        Case("persistent_apart", apart=True),
        Case("persistent_4+4", 4, 4),
        Case("persistent_4+4_apart", 4, 4, apart=True),
        Case("transient", persistent=False),
    ),
    "latency": (Case("latency", rate=RATE), Case("latency_apart", rate=RATE, apart=True)),
}
"""By part."""


@contextmanager
def staged(plan: Plan) -> Iterator[tuple[Stage, list[Step]]]:
    """All that is to be played, in its order, and where its figures come to be.

    Memory comes first, as other brokers are idle only then.
    """
    with working(LOAD) as (load, _):
        stage = Stage(plan, load)
        yield stage, [*_memory(stage), *_rounds(stage), *broker_events.joins(stage), *broker_events.kills(stage)]


def _rounds(stage: Stage) -> Iterator[Step]:
    plan = stage.plan
    cases = [case for part in plan.parts for case in CASES.get(part, ())]
    for number in range(plan.rounds):
        within = f"round {number + 1}"
        if "disk" in plan.parts:
            yield Step(f"{within}: disk", partial(_disk, stage))
        if not cases:
            continue
        yield Step(f"{within}: {RAW}", partial(_relay, stage, cases, number))
        for name in (ALONE, *plan.clusters):
            yield Step(f"{within}: {name}", partial(_ours, stage, name, cases, number))
        for peer in plan.peers:
            yield Step(f"{within}: {peer.name}", partial(_cases, stage, peer, cases, number))


def _disk(stage: Stage) -> None:
    plan = stage.plan
    for case, copies in (("copy", 1), ("copies", plan.nodes)):
        if case == "copy" or copies > 1:
            rate = broker_disk.written(copies, plan.size, plan.seconds, plan.data)
            stage.measured.add(DISK, case, "written", rate)


@dataclass(frozen=True, slots=True)
class Relay:
    """The raw relay."""

    name: str
    ports: tuple[int, ...]


def _relay(stage: Stage, cases: list[Case], number: int) -> None:
    """A relay knows one size of messages, and whether it writes them: each case has its own."""
    for case in cases:
        if case.apart:
            continue
        folder = scratch(stage.plan.data)
        try:
            with working(RELAY, {"folder": str(folder), "persistent": case.persistent}) as (_, found):
                _cases(stage, Relay(RAW, (found["port"],)), [case], number)
        finally:
            shutil.rmtree(folder, ignore_errors=True)


def _ours(stage: Stage, name: str, cases: list[Case], number: int) -> None:
    with stage.plan.ours(name) as nodes:
        nodes.start()
        stage.served(nodes)
        _cases(stage, nodes, cases, number)


def _cases(stage: Stage, target: Target, cases: list[Case], number: int) -> None:
    measured = stage.measured
    for case in cases:
        if case.apart and len(target.ports) == 1:
            continue
        before = target.cpu() if isinstance(target, Nodes) else 0.0
        answer = stage.play(case, target, f"bench-{case.name}-{number}")
        if case.rate:
            for figure in ("confirm_p50", "confirm_p99", "consume_p50", "consume_p99"):
                measured.add(target.name, case.name, figure, answer[figure])
            continue
        measured.add(target.name, case.name, "confirmed", answer["confirmed_per_second"])
        measured.add(target.name, case.name, "consumed", answer["got_per_second"])
        if isinstance(target, Nodes):
            measured.add(target.name, case.name, "cpu", (target.cpu() - before) / answer["sent"] * 1e6)


def _memory(stage: Stage) -> Iterator[Step]:
    if "memory" in stage.plan.parts:
        for name in (ALONE, *stage.plan.clusters):
            yield Step(f"memory: {name}", partial(_remembers, stage, name))
        # All while they are idle: two of them may be two kinds of queues of one cluster.
        for case in (_idle, _filled):
            for peer in stage.plan.peers:
                yield Step(f"memory: {peer.name}", partial(_theirs, stage, peer, case))


def _remembers(stage: Stage, name: str) -> None:
    with stage.plan.ours(name) as nodes:
        nodes.start()
        stage.served(nodes)
        time.sleep(REST)
        _idle(stage, nodes, nodes.memory)
        _filled(stage, nodes, nodes.memory)


def _theirs(stage: Stage, peer: Peer, case: Callable[[Stage, Target, Callable[[], float]], None]) -> None:
    """Unless somebody else runs it."""
    pids = [pid for pid in map(listener, peer.ports) if pid is not None]
    if pids:
        case(stage, peer, lambda: max(map(resident, pids)))


def _idle(stage: Stage, target: Target, memory: Callable[[], float]) -> None:
    stage.measured.add(target.name, "memory", "idle", memory())


def _filled(stage: Stage, target: Target, memory: Callable[[], float]) -> None:
    stage.fill(target, "bench-memory", stage.plan.queued)
    stage.measured.add(target.name, "memory", "queued", memory())
    stage.delete(target, "bench-memory")
