"""A broker under load, beside the least that could be called the same on this machine, and beside other brokers.

Every case is played in turn against the raw relay (broker_raw.py), against ours, and against whatever other brokers
are named: rounds are outermost, so that all of them meet the same machine.
"""

from __future__ import annotations

import json
import os
import resource
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median

from coterie.errors import CoterieError
from coterie.trace import Json
from coterie.workers import Message, Worker

LOAD, RAW = "coterie.bench.broker_load", "coterie.bench.broker_raw"
PATIENCE = 60.0
RATE = 500.0
"""Messages per second at which latency is measured."""


@dataclass(frozen=True, slots=True)
class Case:
    """One way to use a broker."""

    name: str
    publishers: int = 1
    consumers: int = 1
    persistent: bool = True
    rate: float = 0.0
    apart: bool = False
    """Consumers are on another node than publishers."""


CASES = (
    Case("persistent"),
    Case("transient", persistent=False),
    Case("persistent_4+4", 4, 4),
    Case("latency", rate=RATE),
)
APART = (Case("persistent_apart", apart=True), Case("latency_apart", rate=RATE, apart=True))


@dataclass(frozen=True, slots=True)
class Plan:
    size: int = 1024
    warmup: float = 1.0
    seconds: float = 4.0
    rounds: int = 3
    nodes: int = 1
    queued: int = 100_000
    """Messages of the memory case; 0 leaves it out."""
    peers: tuple[tuple[str, int], ...] = ()
    """Names and ports of other brokers on this host."""


@dataclass(slots=True)
class Target:
    """A broker to be measured."""

    name: str
    ports: list[int]
    pids: list[int] = field(default_factory=list)

    def memory(self) -> float:
        """MiB of its largest process."""
        return max((_resident(pid) for pid in self.pids), default=0.0)

    def cpu(self) -> float:
        return sum(_cpu_seconds(pid) for pid in self.pids)


def _resident(pid: int) -> float:
    with open(f"/proc/{pid}/statm") as file:
        return int(file.read().split()[1]) * resource.getpagesize() / 2**20


def _cpu_seconds(pid: int) -> float:
    with open(f"/proc/{pid}/stat") as file:
        fields = file.read().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


@contextmanager
def coterie(nodes: int) -> Iterator[Target]:
    """Ours, with a data folder, as `coterie up` starts it."""
    folder = Path(tempfile.mkdtemp(prefix="coterie-bench-"))
    command = [
        sys.executable, "-m", "coterie", "up", "--nodes", str(nodes), "--data", str(folder), "--port", "0",
        "--console-port", "", "--json",
    ]  # fmt: skip
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    try:
        found = _read_json(process)
        each = found["nodes"] if nodes > 1 else [found]
        ports = [int(str(node["amqp"][0]).rpartition(":")[2]) for node in each]
        pids = [node["pid"] for node in each] if nodes > 1 else [process.pid]
        yield Target(f"coterie_{nodes}" if nodes > 1 else "coterie", ports, pids)
    finally:
        process.terminate()
        process.wait(60)
        shutil.rmtree(folder, ignore_errors=True)


def _read_json(process: subprocess.Popen[str]) -> Message:
    assert process.stdout is not None
    lines: list[str] = []
    while not lines or lines[-1] != "}\n":
        line = process.stdout.readline()
        if not line:
            raise CoterieError("the broker did not start: run `coterie up` to see why")
        lines.append(line)
    found: Message = json.loads("".join(lines))
    return found


@contextmanager
def raw(case: Case) -> Iterator[Target]:
    folder = tempfile.mkdtemp(prefix="coterie-bench-")
    worker = Worker(RAW, {"folder": folder, "persistent": case.persistent})
    try:
        yield Target("raw", [worker.hear()["port"]], [worker.pid])
    finally:
        worker.end()
        shutil.rmtree(folder, ignore_errors=True)


class Measured:
    """What was measured, by target, case and figure: one value for each round."""

    def __init__(self) -> None:
        self._values: dict[tuple[str, str, str], list[float]] = {}

    def add(self, target: str, case: str, figure: str, value: float) -> None:
        self._values.setdefault((target, case, figure), []).append(value)

    def rows(self, targets: Sequence[str], units: dict[str, str]) -> dict[str, dict[str, Json]]:
        """By `target.case.figure`, each beside the raw relay's."""
        found: dict[str, dict[str, Json]] = {}
        for (target, case, figure), values in self._values.items():
            if target not in targets:
                continue
            row: dict[str, Json] = {
                "median": round(median(values), 1), "min": round(min(values), 1), "max": round(max(values), 1),
                "unit": units[figure],
            }  # fmt: skip
            base = self._values.get(("raw", case, figure))
            if base:
                row["baseline"] = round(median(base), 1)
                row["ratio"] = round(median(a / b for a, b in zip(values, base, strict=True) if b), 3)
            found[f"{target}.{case}.{figure}"] = row
        return found


UNITS = {
    "confirmed": "messages/s", "consumed": "messages/s", "cpu": "broker CPU us per message",
    "confirm_p50": "us", "confirm_p99": "us", "consume_p50": "us", "consume_p99": "us",
    "idle": "MiB", "queued": "MiB",
}  # fmt: skip


def measure(plan: Plan, done: Callable[[int], None]) -> tuple[Measured, list[str], dict[str, int]]:
    """Figures, the names of the targets, and how many messages each of them lost, or gave twice."""
    measured, wrong = Measured(), Counter[str]()
    targets: dict[str, None] = {}
    worker = Worker(LOAD, {})
    worker.hear()
    try:
        for number in range(plan.rounds):
            for case in CASES:
                with raw(case) as target:
                    wrong["raw"] += _play(worker, plan, case, target, number, measured)
            kinds = (1,) if plan.nodes == 1 else (1, plan.nodes)
            for nodes in kinds:
                with coterie(nodes) as target:
                    targets[target.name] = None
                    measured.add(target.name, "memory", "idle", target.memory())
                    for case in CASES if nodes == 1 else (*CASES, *APART):
                        wrong[target.name] += _play(worker, plan, case, target, number, measured)
                    if plan.queued:
                        wrong[target.name] += _fill(worker, plan, target, number, measured)
            for name, port in plan.peers:
                target = Target(name, [port])
                targets[name] = None
                for case in CASES:
                    wrong[name] += _play(worker, plan, case, target, number, measured)
            done(number + 1)
    finally:
        worker.end()
    return measured, list(targets), {name: count for name, count in wrong.items() if count}


def _play(worker: Worker, plan: Plan, case: Case, target: Target, number: int, measured: Measured) -> int:
    before = target.cpu()
    answer = _order(worker, plan, case, target, f"bench-{case.name}-{number}", None)
    if case.rate:
        for figure in ("confirm_p50", "confirm_p99", "consume_p50", "consume_p99"):
            measured.add(target.name, case.name, figure, answer[figure])
    else:
        measured.add(target.name, case.name, "confirmed", answer["confirmed_per_second"])
        measured.add(target.name, case.name, "consumed", answer["got_per_second"])
        if target.pids:
            measured.add(target.name, case.name, "cpu", (target.cpu() - before) / answer["sent"] * 1e6)
    return _faults(answer)


def _fill(worker: Worker, plan: Plan, target: Target, number: int, measured: Measured) -> int:
    case = Case("memory", consumers=0)
    answer = _order(worker, plan, case, target, f"bench-memory-{number}", plan.queued)
    measured.add(target.name, "memory", "queued", target.memory())
    return _faults(answer)


def _order(worker: Worker, plan: Plan, case: Case, target: Target, queue: str, messages: int | None) -> Message:
    worker.tell(
        {
            "queue": f"{queue}-{os.getpid()}", "size": plan.size, "persistent": case.persistent, "rate": case.rate,
            "publishers": case.publishers, "consumers": case.consumers, "messages": messages,
            "publish_at": target.ports[0], "consume_at": target.ports[1 if case.apart else 0],
            "warmup": plan.warmup, "seconds": plan.seconds, "patience": PATIENCE,
        }
    )  # fmt: skip
    return worker.hear()


def _faults(answer: Message) -> int:
    return abs(int(answer["lost"])) + bool(answer.get("wrong"))
