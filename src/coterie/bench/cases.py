"""What is measured: each case as a group and as a raw loop, in turn, so that both meet the same machine."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from statistics import median

from coterie.trace import Json
from coterie.workers import Message, Workers, free_ports

MEMBER, RAW = "coterie.bench.member", "coterie.bench.raw"


@dataclass(frozen=True, slots=True)
class Load:
    """How a benchmark is run."""

    members: int = 4
    size: int = 1024
    bundle: int = 60_000
    warmup: float = 1.0
    seconds: float = 3.0
    rounds: int = 3
    stack: str = "reliable"


@dataclass(frozen=True, slots=True)
class Figure:
    """One measured thing: per round, ours and the baseline's."""

    unit: str
    ours: list[float]
    baseline: list[float]

    def to_json(self) -> dict[str, Json]:
        ratios = [a / b for a, b in zip(self.ours, self.baseline, strict=True)]
        return {
            "median": round(median(self.ours), 3),
            "min": round(min(self.ours), 3),
            "max": round(max(self.ours), 3),
            "baseline": round(median(self.baseline), 3),
            "ratio": round(median(ratios), 3),
            "ratio_min": round(min(ratios), 3),
            "ratio_max": round(max(ratios), 3),
            "unit": self.unit,
        }


def once(module: str, role: str, load: Load, members: int) -> list[Message]:
    """One round: start the processes, let them run, give their figures."""
    ports = free_ports(members)
    arguments: list[Message] = [
        {
            "name": f"m{number}",
            "port": port,
            "peers": [other for other in ports if other != port],
            "role": role,
            "sends": role == "multicast" or number == 0,
            "size": load.size,
            "bundle": load.bundle,
            "stack": load.stack,
        }
        for number, port in enumerate(ports)
    ]
    with Workers(module, arguments) as workers:
        workers.connect()
        return workers.go({"warmup": load.warmup, "seconds": load.seconds})


def rounds(role: str, load: Load, members: int, done: Callable[[int], None]) -> tuple[list[list[Message]], ...]:
    """All rounds of a case: ours, and the baseline's."""
    ours, baseline = [], []
    for number in range(load.rounds):
        baseline.append(once(RAW, role, load, members))
        ours.append(once(MEMBER, role, load, members))
        done(number + 1)
    return ours, baseline


def throughput(role: str, load: Load, members: int, done: Callable[[int], None]) -> dict[str, Figure]:
    """Messages delivered to the application per second at each receiver, and the processor time that one million costs.

    Processor time is of all members together, per million messages delivered at all of them together; the difference to
    the baseline is the cost of the stack: all that is neither sockets nor the application's own handler.
    """
    ours, baseline = rounds(role, load, members, done)

    def rate(answers: list[Message]) -> float:
        return float(median(a["per_second"] for a in answers if a["delivered"]))

    def cost(answers: list[Message]) -> float:
        return float(sum(a["cpu_seconds"] for a in answers) / sum(a["delivered"] for a in answers) * 1e6)

    def memory(answers: list[Message]) -> float:
        return float(max(a["rss_mib"] for a in answers))

    return {
        "delivered": Figure("messages/s at each receiver", [rate(r) for r in ours], [rate(r) for r in baseline]),
        "cpu": Figure("CPU s per million delivered", [cost(r) for r in ours], [cost(r) for r in baseline]),
        "memory": Figure("MiB, largest process", [memory(r) for r in ours], [memory(r) for r in baseline]),
    }


def round_trip(load: Load, done: Callable[[int], None]) -> dict[str, Figure]:
    """One message to a peer and its answer, one at a time."""
    ours, baseline = rounds("ping", load, 2, done)
    return {
        f"round_trip_{name}": Figure("us", [_first(r, key) for r in ours], [_first(r, key) for r in baseline])
        for name, key in (("p50", "p50_us"), ("p99", "p99_us"))
    }


def _first(answers: list[Message], key: str) -> float:
    return next(float(answer[key]) for answer in answers if key in answer)
