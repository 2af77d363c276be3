"""What is measured: each case as a group and as a raw loop, in turn, so that both meet the same machine."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median

from coterie.trace import Json
from coterie.workers import Message, Workers, free_ports

MEMBER, RAW = "coterie.bench.member", "coterie.bench.raw"
ORDERS = {"fifo": "virtual-synchrony", "total": "total-order"}
"""Which stack delivers in which order."""
Round = list[Message]
"""What the processes of one round measured."""


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


def once(module: str, role: str, load: Load, members: int, stack: str = "") -> Round:
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
            "stack": stack,
        }
        for number, port in enumerate(ports)
    ]
    with Workers(module, arguments) as workers:
        workers.connect()
        return workers.go({"warmup": load.warmup, "seconds": load.seconds})


def rounds(
    role: str, load: Load, members: int, stacks: Sequence[str], done: Callable[[int], None]
) -> tuple[list[Round], ...]:
    """All rounds of a case: the baseline's, then each stack's. They take turns, so that all meet the same machine."""
    every: tuple[list[Round], ...] = ([], *([] for _ in stacks))
    for number in range(load.rounds):
        every[0].append(once(RAW, role, load, members))
        for stack, measured in zip(stacks, every[1:], strict=True):
            measured.append(once(MEMBER, role, load, members, stack))
        done(number + 1)
    return every


def throughput(role: str, load: Load, members: int, done: Callable[[int], None]) -> dict[str, Figure]:
    """Messages delivered to the application per second at each receiver, and the processor time that one million costs.

    Processor time is of all members together, per million messages delivered at all of them together; the difference to
    the baseline is the cost of the stack: all that is neither sockets nor the application's own handler.
    """
    baseline, ours = rounds(role, load, members, (load.stack,), done)
    return compare(ours, baseline)


def orders(load: Load, done: Callable[[int], None]) -> dict[str, Figure]:
    """FIFO and total order, each beside the raw loop, and total order beside FIFO."""
    baseline, fifo, total = rounds("multicast", load, load.members, (ORDERS["fifo"], ORDERS["total"]), done)
    pairs = {"fifo": (fifo, baseline), "total": (total, baseline), "total_to_fifo": (total, fifo)}
    return {f"{pair}_{name}": figure for pair, both in pairs.items() for name, figure in compare(*both).items()}


def compare(ours: list[Round], baseline: list[Round]) -> dict[str, Figure]:
    def rate(answers: Round) -> float:
        return float(median(a["per_second"] for a in answers if a["delivered"]))

    def cost(answers: Round) -> float:
        return float(sum(a["cpu_seconds"] for a in answers) / sum(a["delivered"] for a in answers) * 1e6)

    def memory(answers: Round) -> float:
        return float(max(a["rss_mib"] for a in answers))

    return {
        "delivered": Figure("messages/s at each receiver", [rate(r) for r in ours], [rate(r) for r in baseline]),
        "cpu": Figure("CPU s per million delivered", [cost(r) for r in ours], [cost(r) for r in baseline]),
        "memory": Figure("MiB, largest process", [memory(r) for r in ours], [memory(r) for r in baseline]),
    }


def round_trip(load: Load, done: Callable[[int], None]) -> dict[str, Figure]:
    """One message to a peer and its answer, one at a time."""
    baseline, ours = rounds("ping", load, 2, (load.stack,), done)
    return {
        f"round_trip_{name}": Figure("us", [_first(r, key) for r in ours], [_first(r, key) for r in baseline])
        for name, key in (("p50", "p50_us"), ("p99", "p99_us"))
    }


def own_delivery(load: Load, done: Callable[[int], None]) -> dict[str, Figure]:
    """One multicast at a time, until its own sender gets it; beside one message to one peer and back over raw sockets,
    which is the least that it takes to hear of a place in the order from somebody else."""
    baseline: list[Round] = []
    ours: list[Round] = []
    for number in range(load.rounds):
        baseline.append(once(RAW, "ping", load, 2))
        ours.append(once(MEMBER, "own", load, load.members, load.stack))
        done(number + 1)
    return {
        f"own_{name}": Figure("us", [_first(r, key) for r in ours], [_first(r, key) for r in baseline])
        for name, key in (("p50", "p50_us"), ("p99", "p99_us"))
    }


def _first(answers: Round, key: str) -> float:
    return next(float(answer[key]) for answer in answers if key in answer)
