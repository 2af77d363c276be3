"""What a campaign found, added up from its folder: a piece at a time, into counters that do not grow with the runs.

Only the failing seeds are kept one by one, the smallest first, and no more than can be read.
"""

from __future__ import annotations

import heapq
import math
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from coterie.sim.mutations import MUTATIONS
from coterie.sim.profiles import profile
from coterie.sim.runner import known_rules
from coterie.spark.campaign_folder import failing
from coterie.trace import Json

if TYPE_CHECKING:
    import pyarrow as pa

    from coterie.spark.campaign_folder import Asked, Folder

FAILING_MAX = 10_000
"""Failing seeds that are named; the others are counted."""
TEXTS_MAX = 200
"""Failing seeds of which the violations are told."""
SLOWEST = 10
"""Slowest runs that are named."""
STEP = 1.02
"""Percentiles of CPU seconds are exact to this factor."""


@dataclass(slots=True)
class Failure:
    """A run that violated something."""

    seed: int
    events: int
    members: int
    planned: int
    violations: list[tuple[str, str]]
    count: int

    @property
    def properties(self) -> list[str]:
        return list(dict.fromkeys(name for name, _ in self.violations))


@dataclass(slots=True)
class Caught:
    """How a mutation fared."""

    name: str
    property: str
    what: str
    seed: int | None
    """Where its property caught it; None: it survived."""
    runs: int
    others: list[str]
    """Other properties that were violated on the way."""


@dataclass(slots=True)
class Totals:
    """The whole campaign, so far."""

    asked: Asked
    runs: int = 0
    events: int = 0
    sim_seconds: float = 0.0
    cpu_seconds: float = 0.0
    violations: int = 0
    failing: int = 0
    """Runs that violated something."""
    faults: Counter[str] = field(default_factory=Counter)
    fault_runs: Counter[str] = field(default_factory=Counter)
    rules: Counter[str] = field(default_factory=Counter)
    rule_runs: Counter[str] = field(default_factory=Counter)
    """In how many runs each was reached."""
    members: Counter[int] = field(default_factory=Counter)
    by_property: Counter[str] = field(default_factory=Counter)
    """In how many runs each property was violated."""
    failing_seeds: list[int] = field(default_factory=list)
    failures: list[Failure] = field(default_factory=list)
    slowest: list[tuple[float, int]] = field(default_factory=list)
    """CPU seconds and seed, the slowest first."""
    mutations: list[Caught] = field(default_factory=list)
    given_up: list[tuple[str, str]] = field(default_factory=list)
    """What was tried in vain this time, and why."""
    interrupted: bool = False
    _steps: Counter[int] = field(default_factory=Counter)

    def add(self, outcomes: pa.Table) -> None:
        seeds, cpu_seconds = outcomes.column("seed").to_pylist(), outcomes.column("cpu_seconds").to_pylist()
        self.runs += len(seeds)
        self.events += sum(outcomes.column("events").to_pylist())
        # In the order of the seeds: so the sum does not depend on how they were cut into jobs.
        for seconds in outcomes.column("sim_seconds").to_pylist():
            self.sim_seconds += seconds
        self.cpu_seconds += sum(cpu_seconds)
        self._steps.update(map(_step, cpu_seconds))
        self.slowest = heapq.nlargest(SLOWEST, [*self.slowest, *zip(cpu_seconds, seeds, strict=True)])
        self.members.update(outcomes.column("members").to_pylist())
        _count(outcomes.column("faults"), self.faults, self.fault_runs)
        _count(outcomes.column("rules"), self.rules, self.rule_runs)
        for row in outcomes.filter(failing(outcomes)).to_pylist():
            violations = [(found["property"], found["text"]) for found in row["violations"]]
            self._add_failure(
                Failure(
                    row["seed"], row["events"], row["members"], row["planned"], violations, row["violation_count"]
                )
            )  # fmt: skip

    def _add_failure(self, failure: Failure) -> None:
        self.failing += 1
        self.violations += failure.count
        self.by_property.update(failure.properties)
        if len(self.failing_seeds) < FAILING_MAX:
            self.failing_seeds.append(failure.seed)
        if len(self.failures) < TEXTS_MAX:
            self.failures.append(failure)

    def known(self) -> list[str]:
        return known_rules(self.asked.profile)

    def unreached(self) -> list[str]:
        return [rule for rule in self.known() if not self.rules[rule]]

    @property
    def must_reach(self) -> bool:
        """There were enough runs for every rule to be reached."""
        return self.asked.mutation is None and self.runs >= profile(self.asked.profile).standard_seeds

    @property
    def survived(self) -> list[str]:
        return [found.name for found in self.mutations if found.seed is None]

    @property
    def complete(self) -> bool:
        return self.runs >= self.asked.seeds

    def cpu_percentile(self, share: float) -> float:
        """CPU seconds that so large a share of the runs did not exceed, about."""
        wanted, sofar = share * self.runs, 0
        for step in sorted(self._steps):
            sofar += self._steps[step]
            if sofar >= wanted:
                return float(STEP**step)
        return 0.0

    def to_json(self) -> dict[str, Json]:
        rules: dict[str, Json] = {rule: self.rules[rule] for rule in self.known()}
        rule_runs: dict[str, Json] = {rule: self.rule_runs[rule] for rule in self.known()}
        failures: list[Json] = [
            {"seed": failure.seed, "property": name, "text": text}
            for failure in self.failures
            for name, text in failure.violations
        ]
        mutations: list[Json] = [
            {
                "name": found.name,
                "property": found.property,
                "caught": found.seed,
                "runs": found.runs,
                "others": [*found.others],
            }
            for found in self.mutations
        ]
        return {
            "profile": self.asked.profile,
            "first_seed": self.asked.first_seed,
            "seeds": self.asked.seeds,
            "mutation": self.asked.mutation,
            "version": self.asked.version,
            "code": self.asked.fingerprint,
            "earlier_code": [*self.asked.earlier],
            "complete": self.complete,
            "runs": self.runs,
            "events": self.events,
            "sim_seconds": round(self.sim_seconds, 3),
            "violations": self.violations,
            "failing_runs": self.failing,
            "failing_seeds": [*self.failing_seeds],
            "failures": failures,
            "by_property": {name: self.by_property[name] for name in sorted(self.by_property)},
            "faults": {kind: self.faults[kind] for kind in sorted(self.faults)},
            "fault_runs": {kind: self.fault_runs[kind] for kind in sorted(self.fault_runs)},
            "rules": rules,
            "rule_runs": rule_runs,
            "unreached_rules": [*self.unreached()],
            "mutations": mutations,
            "survived": [*self.survived],
            "given_up": [{"what": what, "reason": reason} for what, reason in self.given_up],
            "interrupted": self.interrupted,
            "cpu_seconds": round(self.cpu_seconds, 3),
            "cpu_per_run": {"p50": round(self.cpu_percentile(0.5), 3), "p99": round(self.cpu_percentile(0.99), 3)},
            "events_per_cpu_second": round(self.events / self.cpu_seconds) if self.cpu_seconds else 0,
            "slowest": [{"seed": seed, "cpu_seconds": round(seconds, 3)} for seconds, seed in self.slowest],
        }


def _count(column: pa.ChunkedArray, times: Counter[str], runs: Counter[str]) -> None:
    """Add up a column of counters: how often each thing happened, and in how many runs."""
    import pyarrow as pa

    for chunk in column.chunks:
        sums = pa.table({"name": chunk.keys, "times": chunk.items}).group_by("name")
        for row in sums.aggregate([("times", "sum"), ("times", "count")]).to_pylist():
            times[row["name"]] += row["times_sum"]
            runs[row["name"]] += row["times_count"]


def _step(seconds: float) -> int:
    return math.ceil(math.log(max(seconds, 1e-4)) / math.log(STEP))


def add_up(asked: Asked, folder: Folder) -> Totals:
    """Everything that is in the folder."""
    totals = Totals(asked)
    for table in folder.tables():
        totals.add(table)
    totals.mutations = caught(folder.mutation_tables())
    return totals


def caught(tables: Iterable[pa.Table]) -> list[Caught]:
    """Survivors first."""
    known = {mutation.name: mutation for mutation in MUTATIONS}
    found = [
        Caught(
            row["name"], known[row["name"]].property, known[row["name"]].what, row["caught"], row["runs"], row["others"]
        )
        for table in tables
        for row in table.to_pylist()
        if row["name"] in known
    ]
    order = {name: place for place, name in enumerate(known)}
    return sorted(found, key=lambda one: (one.seed is not None, order[one.name]))
