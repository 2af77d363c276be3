"""What `bench broker` has measured, as rows: each figure beside what it is to be compared with, from the same run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from coterie.trace import Json

RAW, ALONE, DISK = "raw", "standalone", "disk"
CLUSTERS = ("credit", "ownership")
"""The ways in which a cluster gives out messages; a cluster is named by its own."""
ENCRYPTED = "encrypted"
"""One with the first of them whose brokers encrypt what they tell each other."""

UNITS = {
    "confirmed": "messages/s", "consumed": "messages/s", "written": "messages/s", "cpu": "broker CPU us per message",
    "confirm_p50": "us", "confirm_p99": "us", "consume_p50": "us", "consume_p99": "us",
    "idle": "MiB", "queued": "MiB",
    "serves": "ms", "in_step": "ms", "update": "ms", "gap_before": "ms", "gap": "ms",
    "delivery": "ms", "held": "ms", "confirm": "ms",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Goal:
    """What a cluster of three should reach; `of` is the field of the row that is compared."""

    of: str
    bound: float
    least: bool = False


_KILL = {"delivery": Goal("median", 50.0), "confirm": Goal("median", 100.0)}
GOALS: dict[str, dict[str, Goal]] = {
    "persistent": {"confirmed": Goal("of_disk", 0.6, least=True)},
    "persistent_apart": {"confirmed": Goal("of_disk", 0.6, least=True)},
    "latency": {"consume_p50": Goal("ratio", 1.5)},
    "latency_apart": {"consume_p50": Goal("ratio", 1.5)},
    "memory": {"idle": Goal("median", 60.0), "queued": Goal("median", 200.0)},
    "join": {"in_step": Goal("median", 2000.0), "gap": Goal("median", 20.0)},
    "kill": _KILL,
    "kill_oldest": _KILL,
}
"""By case and figure, for messages of 1 KiB: 100,000 of them queued, 200,000 for one who joins."""


class Measured:
    """By target, case and figure: one value for each round, or for each time that it happened."""

    def __init__(self) -> None:
        self._values: dict[tuple[str, str, str], list[float]] = {}

    def add(self, target: str, case: str, figure: str, value: float) -> None:
        self._values.setdefault((target, case, figure), []).append(value)

    def rows(self, peers: Sequence[str] = (), copies: int = 1, goals: bool = False) -> dict[str, dict[str, Json]]:
        """By `target.case.figure`. The standalone broker's baseline is the raw relay, that of a cluster that encrypts
        one that does not, and that of all others the standalone broker."""
        found: dict[str, dict[str, Json]] = {}
        for (target, case, figure), values in self._values.items():
            if target == RAW or (target, case) == (DISK, "copy"):
                continue
            row: dict[str, Json] = {
                "median": _round(median(values)), "min": _round(min(values)), "max": _round(max(values)),
                "values": [_round(value) for value in values], "unit": UNITS[figure],
            }  # fmt: skip
            against = {ALONE: RAW, DISK: DISK, ENCRYPTED: CLUSTERS[0]}.get(target, ALONE)
            base = self._values.get((DISK, "copy", figure)) if target == DISK else self._of(against, case, figure)
            if base:
                row["baseline"] = _round(median(base))
                row["ratio"] = ratio(values, base)
                row["against"] = "one copy" if target == DISK else against
            disk = self._values.get((DISK, "copy" if target == ALONE or copies == 1 else "copies", "written"))
            if disk and figure == "confirmed" and case.startswith("persistent") and target not in peers:
                row["of_disk"] = ratio(values, disk)
            if target not in peers:
                others = {peer: self._of(peer, case, figure) for peer in peers}
                beside: dict[str, Json] = {peer: ratio(values, theirs) for peer, theirs in others.items() if theirs}
                if beside:
                    row["peers"] = beside
            if goals and target in CLUSTERS:
                _judge(row, GOALS.get(case, {}).get(figure))
            found[f"{target}.{case}.{figure}"] = row
        return found

    def _of(self, target: str, case: str, figure: str) -> list[float] | None:
        """The same of another one: on one node, if it has but one; and a broker alone is the oldest."""
        plain = case.removesuffix("_apart").removesuffix("_oldest")
        return self._values.get((target, case, figure)) or self._values.get((target, plain, figure))


def _judge(row: dict[str, Json], goal: Goal | None) -> None:
    value = None if goal is None else row.get(goal.of)
    if goal is None or not isinstance(value, int | float):
        return
    row["goal"] = goal.bound
    row["goal_of"] = goal.of
    row["met"] = value >= goal.bound if goal.least else value <= goal.bound


def ratio(values: Sequence[float], base: Sequence[float]) -> float:
    """Round by round if both were played in the same rounds, and the median of that; else of the medians."""
    if len(values) == len(base):
        pairs = [(value, other) for value, other in zip(values, base, strict=True) if other]
        return round(median(value / other for value, other in pairs), 3) if pairs else 0.0
    return round(median(values) / median(base), 3) if median(base) else 0.0


def _round(value: float) -> float:
    return round(value, 1)
