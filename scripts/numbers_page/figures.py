"""Figures with their spread, as the page writes them; and ratios, round by round."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

YES, NO = "**yes**", "no"
Row = Mapping[str, Any]
"""Of what a benchmark has measured, as its JSON has it."""


@dataclass(frozen=True, slots=True)
class Spread:
    """The median of some rounds, with the least and the most."""

    median: float
    least: float
    most: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread:
        return cls(median(values), min(values), max(values))

    @classmethod
    def of_row(cls, row: Row, prefix: str = "") -> Spread:
        """A figure, or with `ratio` its ratio to its baseline."""
        if prefix:
            return cls(row[prefix], row.get(f"{prefix}_min", row[prefix]), row.get(f"{prefix}_max", row[prefix]))
        return cls(row["median"], row["min"], row["max"])


def ratio(ours: Row, theirs: Row) -> Spread:
    """Of rounds that were played one after the other; where there is not one for each, of the medians, and then the
    widest that it could be."""
    mine, other = ours["values"], theirs["values"]
    if len(mine) == len(other):
        return Spread.of([a / b for a, b in zip(mine, other, strict=True) if b])
    return Spread(
        median(mine) / median(other), min(mine) / max(other), max(mine) / max(min(other), 1e-9)
    )  # fmt: skip


def figure(spread: Spread, unit: str) -> str:
    """With its unit: times in the one that reads best, rates in whole numbers."""
    scale, name = 1.0, re.split("[,;]", unit)[0]
    if unit == "us" and spread.median >= 1000:
        scale, name = 1000.0, "ms"
    elif unit == "ms" and spread.median >= 2000:
        scale, name = 1000.0, "s"
    middle, least, most = (number(value / scale) for value in (spread.median, spread.least, spread.most))
    per_second = name.endswith("/s") or "/s at" in name
    ending = "/s" if per_second else f" {name}"
    return f"{middle}{ending}" if least == most else f"{middle} [{least}..{most}]{ending}"


def number(value: float) -> str:
    """Three digits that count."""
    if abs(value) >= 100:
        return f"{value:,.0f}"
    return f"{value:.1f}" if abs(value) >= 10 else f"{value:.2f}"


def times(spread: Spread) -> str:
    if number(spread.least) == number(spread.most):
        return f"{number(spread.median)}x"
    return f"{number(spread.median)}x [{number(spread.least)}..{number(spread.most)}]"


@dataclass(frozen=True, slots=True)
class Goal:
    """What is aimed at. `least`: more is better."""

    bound: float
    least: bool
    unit: str = "x"

    def __str__(self) -> str:
        unit = self.unit if self.unit == "x" else f" {self.unit}"
        return f"{'≥' if self.least else '≤'} {self.bound:g}{unit}"

    def met(self, value: float) -> bool:
        return value >= self.bound if self.least else value <= self.bound


def verdict(goal: Goal | None, spread: Spread | None) -> tuple[str, str]:
    """The goal and whether the median meets it; where rounds do not agree on that, it is said."""
    if goal is None or spread is None:
        return "", ""
    met = goal.met(spread.median)
    firm = goal.met(spread.least) == goal.met(spread.most)
    return str(goal), (YES if met else NO) + ("" if firm else ", not in every round")


def table(headers: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """Of Markdown, without columns in which nothing is."""
    kept = [at for at in range(len(headers)) if at == 0 or any(row[at] for row in rows)]
    lines = [[headers[at] for at in kept], ["---"] * len(kept), *([row[at] for at in kept] for row in rows)]
    return ["| " + " | ".join(line) + " |" for line in lines]
