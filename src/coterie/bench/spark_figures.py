"""What `bench spark` has measured, as rows: each figure beside what it is to be compared with, from the same round."""

from __future__ import annotations

from typing import NamedTuple

from coterie.bench.cases import Figure
from coterie.trace import Json

SIZE = 1024
"""Bytes of a message."""
START = "start"


class Pair(NamedTuple):
    """A case and its baseline; `goal`: the least ratio that is aimed at."""

    ours: str
    baseline: str
    goal: float | None = None
    unit: str = "rows/s"


PAIRS = (
    Pair("batch", "parquet", 0.5),
    Pair("batch", "loop", 10.0),
    Pair("batch_all", "parquet_all", 0.5),
    Pair("batch_all", "loop", 10.0),
    Pair("stream", "parquet", 0.5),
    Pair("stream", "loop", 10.0),
    Pair("stream_whole", "stream"),
    Pair("sink", "publisher"),
    Pair("publishers_beside_reader", "publishers", 0.8, "messages/s"),
    Pair("publishers_beside_parquet", "publishers", None, "messages/s"),
    Pair("reader_beside_publishers", "batch"),
)


class Measured:
    """By case: one value for each round."""

    def __init__(self) -> None:
        self._values: dict[str, list[float]] = {}

    def add(self, case: str, value: float) -> None:
        self._values.setdefault(case, []).append(value)

    def rows(self, goals: bool = False) -> dict[str, dict[str, Json]]:
        """By `case.to_baseline`; of those that were measured. `goals`: they are told."""
        found: dict[str, dict[str, Json]] = {}
        for pair in PAIRS:
            ours, baseline = self._values.get(pair.ours), self._values.get(pair.baseline)
            if not ours or not baseline:
                continue
            row = Figure(pair.unit, ours, baseline).to_json()
            middle, ratio = row["median"], row["ratio"]
            assert isinstance(middle, int | float)
            assert isinstance(ratio, int | float)
            row["mb_per_second"] = round(middle * SIZE / 1e6, 3)
            if goals and pair.goal is not None:
                row["goal"] = pair.goal
                row["met"] = ratio >= pair.goal
            found[f"{pair.ours}.to_{pair.baseline}"] = row
        starts = self._values.get(START)
        if starts:
            found[START] = Figure("s", starts, [1.0] * len(starts)).to_json()
        return found
