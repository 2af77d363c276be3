"""How fast a group changes: joins, leaves, deaths and flushes, and how long senders are held up by them.

Each round is played three times with real processes: by raw sockets (views_raw.py), and by the group with FLUSH2 and
with FLUSH. All play the same script, so that each figure has a baseline from the same minute.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median

from coterie.bench.cases import Figure
from coterie.errors import CoterieError
from coterie.trace import Json
from coterie.workers import Message, Worker, free_ports

MEMBER, RAW = "coterie.bench.views_member", "coterie.bench.views_raw"
FLUSHES = ("FLUSH2", "FLUSH")
PAUSE_IDLE, PAUSE_LOADED = 0.01, 0.05
"""Seconds between two flushes."""
WARMUP = 0.5
"""Seconds from the beginning of the load to the first flush, from its end to what follows, and before each kill."""

GOALS: dict[str, float] = {
    "join": 30.0, "join_at_last": 30.0, "kill": 25.0, "kill_coordinator": 25.0, "flush_idle": 1.0, "flush_loaded": 10.0,
}  # fmt: skip
"""Milliseconds, for four members on one host."""

Samples = dict[str, list[float]]
"""By case: milliseconds."""


@dataclass(frozen=True, slots=True)
class Script:
    """How much is played in each round."""

    members: int = 4
    size: int = 1024
    joins: int = 5
    flushes: int = 20
    """By each member."""
    kills: int = 3
    """Of the youngest member, and of the coordinator."""
    rounds: int = 3
    stack: str = "virtual-synchrony"


class Group:
    """The processes of one round. The first is the oldest, the last comes and goes."""

    def __init__(self, module: str, script: Script, flush: str) -> None:
        self._module, self._script, self._flush = module, script, flush
        self.ports = free_ports(script.members)
        self.workers: dict[int, Worker] = {}
        for number in range(script.members):
            self.start(number)

    def start(self, number: int) -> None:
        script = self._script
        self.workers[number] = Worker(
            self._module,
            {
                "name": f"m{number}",
                "port": self.ports[number],
                "peers": [port for port in self.ports if port != self.ports[number]],
                "size": script.size,
                "stack": script.stack,
                "flush": self._flush,
            },
        )

    def ready(self, number: int) -> None:
        hear(self.workers[number])

    def join(self, number: int, old: Sequence[int]) -> tuple[float, float]:
        """One joins; seconds until it has its view, and until the last of the old ones has."""
        since, size = time.monotonic(), len(old) + 1
        for each in old:
            self.workers[each].tell({"do": "until", "members": size, "since": since})
        ports = [self.ports[each] for each in old]
        self.workers[number].tell({"do": "connect", "members": size, "ports": ports})
        joined = hear(self.workers[number])
        last = max((hear(self.workers[each])["at"] for each in old), default=joined["at"])
        return joined["at"] - joined["began"], last - joined["began"]

    def leave(self, number: int, others: Sequence[int]) -> tuple[float, float]:
        """The same for one that leaves."""
        since = time.monotonic()
        for each in others:
            self.workers[each].tell({"do": "until", "members": len(others), "since": since})
        self.workers[number].tell({"do": "leave"})
        left = hear(self.workers[number])
        last = max(hear(self.workers[each])["at"] for each in others)
        return left["at"] - left["began"], last - left["began"]

    def kill(self, number: int) -> float:
        """One is killed with -9; seconds until the last survivor has its view."""
        victim = self.workers.pop(number)
        since = time.monotonic()
        for worker in self.workers.values():
            worker.tell({"do": "until", "members": len(self.workers), "since": since})
        time.sleep(0.05)  # let them read that first
        killed = time.monotonic()
        victim.kill()
        last: float = max(hear(worker)["at"] for worker in self.workers.values())
        return last - killed

    def all(self, order: Message) -> list[Message]:
        for worker in self.workers.values():
            worker.tell(order)
        return [hear(worker) for worker in self.workers.values()]

    def gates(self) -> list[float]:
        """How long each flush since the last look kept each member from sending, in milliseconds."""
        return [gate * 1000 for answer in self.all({"do": "gates"}) for gate in answer["gates"]]

    def flush(self, count: int, pause: float) -> list[float]:
        """So many flushes by each member in turn, in milliseconds."""
        took = []
        for worker in self.workers.values():
            worker.tell({"do": "flush", "count": count, "pause": pause})
            took += [seconds * 1000 for seconds in hear(worker)["took"]]
        if not took:
            raise CoterieError("bench: not one flush succeeded")
        return took

    def end(self) -> None:
        for worker in self.workers.values():
            worker.end()


def hear(worker: Worker) -> Message:
    answer = worker.hear()
    if "error" in answer:
        raise CoterieError(f"bench: {answer['error']}")
    return answer


def play(module: str, script: Script, flush: str = "") -> Samples:
    """One round of one contestant."""
    group = Group(module, script, flush)
    last, old = script.members - 1, list(range(script.members - 1))
    found: Samples = {}

    def note(case: str, *seconds: float) -> None:
        found.setdefault(case, []).extend(each * 1000 for each in seconds)

    try:
        for number in range(script.members):
            group.ready(number)
        for number in old:
            group.join(number, old[:number])
        group.gates()
        for _ in range(script.joins):
            joined, at_last = group.join(last, old)
            note("join", joined)
            note("join_at_last", at_last)
            found.setdefault("held_up_by_join", []).extend(group.gates())
            left, at_last = group.leave(last, old)
            note("leave", left)
            note("leave_at_last", at_last)
            found.setdefault("held_up_by_leave", []).extend(group.gates())
        group.join(last, old)
        _flushes(group, script, found)
        ages = [*old, last]
        for _ in range(script.kills):
            for case, victim in (("kill", ages[-1]), ("kill_coordinator", ages[0])):
                time.sleep(WARMUP)  # one that dies right after it came is dialled again more slowly
                group.gates()
                note(case, group.kill(victim))
                found.setdefault(f"held_up_by_{case}", []).extend(group.gates())
                ages.remove(victim)
                group.start(victim)
                group.ready(victim)
                group.join(victim, ages)
                ages.append(victim)
    finally:
        group.end()
    return found


def _flushes(group: Group, script: Script, found: Samples) -> None:
    group.gates()
    found["flush_idle"] = group.flush(script.flushes, PAUSE_IDLE)
    found["held_up_idle"] = group.gates()
    group.all({"do": "load"})
    time.sleep(WARMUP)
    found["flush_loaded"] = group.flush(script.flushes, PAUSE_LOADED)
    found["held_up_loaded"] = group.gates()
    if not all(answer["delivered"] for answer in group.all({"do": "rest"})):
        raise CoterieError("bench: there was no load")
    time.sleep(WARMUP)


def measure(script: Script, done: Callable[[int], None]) -> dict[str, Figure]:
    """All rounds; the cases of both flush protocols."""
    raw: list[Samples] = []
    ours: dict[str, list[Samples]] = {flush: [] for flush in FLUSHES}
    for number in range(script.rounds):
        raw.append(play(RAW, script))
        for flush in FLUSHES:
            ours[flush].append(play(MEMBER, script, flush))
        done(number + 1)
    return {
        f"{flush.lower()}.{case}": figure
        for flush, rounds in ours.items()
        for case, figure in figures(rounds, raw).items()
    }


def figures(ours: Sequence[Samples], raw: Sequence[Samples]) -> dict[str, Figure]:
    """Of each round the median; of hold-ups also the 99th percentile and the longest."""
    made: dict[str, Figure] = {}
    for case in ours[0]:
        if not case.startswith("held_up"):
            made[case] = Figure("ms", [median(r[case]) for r in ours], [median(r[case]) for r in raw])
            continue
        base = [median(r[BASELINE[case]]) for r in raw]
        for name, share in (("p50", 0.5), ("p99", 0.99), ("max", 1.0)):
            made[f"{case}_{name}"] = Figure("ms", [percentile(r[case], share) for r in ours], base)
    return made


BASELINE = {
    "held_up_by_join": "flush_idle", "held_up_by_leave": "flush_idle", "held_up_by_kill": "flush_idle",
    "held_up_by_kill_coordinator": "flush_idle", "held_up_idle": "flush_idle", "held_up_loaded": "flush_loaded",
}  # fmt: skip
"""Nobody can be held up for a shorter time than a message takes to everybody and back."""


def percentile(samples: Sequence[float], share: float) -> float:
    """The smallest sample that is not less than that share of them; 0 if there is none."""
    ordered = sorted(samples)
    return ordered[min(len(ordered) - 1, int(len(ordered) * share))] if ordered else 0.0


def with_goals(rows: dict[str, dict[str, Json]], members: int) -> None:
    """Add what each case should take, where that was said: for groups of four."""
    for name, row in rows.items():
        goal = GOALS.get(name.partition(".")[2]) if members == 4 else None
        if goal is not None:
            figure = row["median"]
            row["goal"] = goal
            row["met"] = isinstance(figure, int | float) and figure <= goal
