"""A large state to a joiner, while others keep multicasting: time, memory on both sides, and who is held up by it."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from types import TracebackType

from coterie.bench.cases import Figure
from coterie.bench.state_member import checksum
from coterie.bench.views import hear, percentile
from coterie.errors import CoterieError, UserError
from coterie.workers import Message, Worker, Workers, free_ports

MEMBER, RAW = "coterie.bench.state_member", "coterie.bench.state_raw"
SENDERS = 2
BOUND_MIB = 64.0
"""Chunks under way, multicasts that wait for the state, socket buffers, with room for the allocator."""
UNITS = {"": 1, "B": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30, "kB": 1000, "MB": 1000**2, "GB": 1000**3}


def parse_size(text: str) -> int:
    """`1GiB`, `64MiB`, `1000000`. Raises UserError."""
    number = text.rstrip("kKMGiB")
    unit = text[len(number) :]
    if not number.strip().isdecimal() or unit not in UNITS:
        raise UserError(f"'{text}' is not a size: a whole number of {', '.join(unit for unit in UNITS if unit)}")
    return int(number) * UNITS[unit]


@dataclass(frozen=True, slots=True)
class Load:
    """How it is run."""

    state: int = 1 << 30
    size: int = 1024
    rate: float = 1000.0
    """Messages per second of each sender."""
    quiet: float = 3.0
    """Seconds for which hold-ups are measured without a transfer."""
    rounds: int = 3


@dataclass(slots=True)
class Round:
    """What one of them gives."""

    seconds: float = 0.0
    raw_seconds: float = 0.0
    provider_mib: float = 0.0
    joiner_mib: float = 0.0
    without: list[float] = field(default_factory=list)
    during: list[float] = field(default_factory=list)


class Memory:
    """How much the resident memory of processes grows inside the `with` block."""

    def __init__(self, workers: Sequence[Worker]) -> None:
        self._workers = workers
        self._idle = self._most = [worker.memory() for worker in workers]
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._look)

    def _look(self) -> None:
        while not self._over.wait(0.01):
            self._most = [max(a, worker.memory()) for a, worker in zip(self._most, self._workers, strict=True)]

    @property
    def growth(self) -> list[float]:
        return [most - idle for most, idle in zip(self._most, self._idle, strict=True)]

    def __enter__(self) -> Memory:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._over.set()
        self._thread.join()


def _arguments(count: int, load: Load) -> list[Message]:
    ports = free_ports(count)
    return [
        {
            "name": f"m{number}",
            "port": port,
            "peers": [other for other in ports if other != port],
            "state_size": load.state,
            "size": load.size,
        }
        for number, port in enumerate(ports)
    ]


def _raw(load: Load, expected: int) -> float:
    arguments = _arguments(2, load)
    with Workers(RAW, arguments) as workers:
        for worker in workers.each:
            hear(worker)
        workers.each[1].tell({"do": "fetch", "port": arguments[0]["port"]})
        return _judge(hear(workers.each[1]), load, expected)


def _judge(answer: Message, load: Load, expected: int) -> float:
    if (answer["count"], answer["sum"]) != (load.state, expected):
        raise CoterieError(
            f"bench: the state that arrived is another: {answer['count']:,} bytes of {load.state:,}, "
            f"checksum {answer['sum']:08x} instead of {expected:08x}"
        )
    return float(answer["seconds"])


def _round(load: Load, expected: int) -> Round:
    found = Round(raw_seconds=_raw(load, expected))
    with Workers(MEMBER, _arguments(SENDERS + 2, load)) as workers:
        for worker in workers.each:
            hear(worker)
        *group, joiner = workers.each
        for number, worker in enumerate(group):
            worker.tell({"do": "connect", "state": False, "members": number + 1})
            hear(worker)
        senders = group[1:]
        for sender in senders:
            sender.tell({"do": "load", "rate": load.rate})
            hear(sender)
        time.sleep(0.5)
        _held_up(senders)
        time.sleep(load.quiet)
        found.without = _held_up(senders)
        time.sleep(0.2)  # to tell so many figures has held them up, too
        _held_up(senders)
        with Memory(workers.each) as memory:
            joiner.tell({"do": "connect", "state": True, "members": len(workers.each)})
            answer = hear(joiner)
        found.seconds = _judge(answer, load, expected)
        found.during = _held_up(senders)
        for worker in group:
            worker.tell({"do": "held_up"})
        provided = [hear(worker)["given"] > 0 for worker in group]
        found.provider_mib = max(grown for grown, gave in zip(memory.growth, provided, strict=False) if gave)
        found.joiner_mib = memory.growth[-1]
    return found


def _held_up(senders: Sequence[Worker]) -> list[float]:
    """How long each multicast since the last look was, in milliseconds."""
    found: list[float] = []
    for sender in senders:
        sender.tell({"do": "held_up"})
        found += [seconds * 1000 for seconds in hear(sender)["seconds"]]
    return found


def measure(load: Load, done: Callable[[int], None]) -> tuple[dict[str, Figure], bool]:
    """All rounds; the cases, and whether memory stayed within its bound."""
    expected = checksum(load.state)
    rounds: list[Round] = []
    for number in range(load.rounds):
        rounds.append(_round(load, expected))
        done(number + 1)
    mib = load.state / 2**20
    bound = [BOUND_MIB] * load.rounds
    figures = {
        "time": Figure("s", [r.seconds for r in rounds], [r.raw_seconds for r in rounds]),
        "throughput": Figure("MiB/s", [mib / r.seconds for r in rounds], [mib / r.raw_seconds for r in rounds]),
        "provider_growth": Figure("MiB; baseline: the bound", [r.provider_mib for r in rounds], bound),
        "joiner_growth": Figure("MiB; baseline: the bound", [r.joiner_mib for r in rounds], bound),
    }
    for name, share in (("p50", 0.5), ("p99", 0.99), ("max", 1.0)):
        figures[f"held_up_{name}"] = Figure(
            "ms; baseline: without transfer",
            [percentile(r.during, share) for r in rounds],
            [percentile(r.without, share) for r in rounds],
        )
    return figures, all(max(r.provider_mib, r.joiner_mib) <= BOUND_MIB for r in rounds)
