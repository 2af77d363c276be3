"""What a Spark task of a campaign does: it has seeds run, one after the other, in a process that it can end.

The process (campaign_runs.py) serves several tasks, one after the other, as long as Spark keeps this worker. A seed
whose run takes too long, or whose process dies twice, is told as such, and the next one goes on in a new process.
"""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from coterie.errors import CoterieError
from coterie.spark.campaign_process import Runs
from coterie.spark.campaign_rows import catch_batch, outcome_batch
from coterie.spark.campaign_runs import Outcome

if TYPE_CHECKING:
    import pyarrow as pa

TIMEOUT, DIED = "timeout", "died"
"""What a run violates that never ends, or kills its process."""


@dataclass(frozen=True, slots=True)
class Work:
    """What the tasks of a campaign are told."""

    profile: str
    fingerprint: str
    """The code that they must run."""
    mutation: str | None = None
    run_limit: float = 300.0
    """CPU seconds that one run may take."""


@dataclass(frozen=True, slots=True)
class Hunt:
    """A mutation, and where to look for a run that violates its property."""

    mutation: str
    property: str
    seeds: tuple[int, ...]


_kept: list[Runs] = []
"""The process that the last task of this worker left."""


class Runner:
    """Runs seeds for one task."""

    def __init__(self, work: Work, mutation: str | None, keep: bool = True) -> None:
        self._work, self._mutation, self._keep = work, mutation, keep
        self._runs: Runs | None = None

    def __enter__(self) -> Runner:
        if self._keep and _kept:
            self._runs = _kept.pop()
            key = (self._work.profile, self._mutation)
            if self._runs.key != key or self._runs.fingerprint != self._work.fingerprint or self._runs.code is not None:
                self._drop()
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if self._runs is not None and self._keep and kind is None:
            _kept.append(self._runs)
        else:
            self._drop()

    def run(self, seed: int, trace: bool = True) -> Outcome:
        limit = self._work.run_limit
        for _ in range(2):  # once more, for a process that somebody else killed
            runs = self._ready()
            try:
                outcome = runs.run(seed, limit, trace)
            except TimeoutError:
                self._drop()
                return _failed(
                    self._work.profile, seed, TIMEOUT, f"the run was not over after {limit:g} CPU seconds", limit
                )
            if outcome is not None:
                return outcome
            code = runs.code
            self._drop()
        return _failed(self._work.profile, seed, DIED, f"the run ended its process, twice: exit code {code}")

    def _ready(self) -> Runs:
        if self._runs is None:
            self._runs = Runs(self._work.profile, self._mutation)
        if self._runs.fingerprint != self._work.fingerprint:
            found = self._runs.fingerprint
            raise OtherCodeError(f"the code at an executor ({found}) is not the campaign's ({self._work.fingerprint})")
        return self._runs

    def _drop(self) -> None:
        if self._runs is not None:
            self._runs.end()
            self._runs = None


class OtherCodeError(CoterieError):
    """Executors run other code than the campaign began with."""


def _failed(profile: str, seed: int, name: str, text: str, cpu_seconds: float = 0.0) -> Outcome:
    from coterie.sim.profiles import profile as find

    plan = find(profile).make(seed)
    return Outcome(
        seed, members=len(plan.members), planned=len(plan.faults), cpu_seconds=cpu_seconds,
        violations=[(name, text)], violation_count=1, plan=plan.to_json(),
    )  # fmt: skip


Batches = Callable[[Iterator["pa.RecordBatch"]], Iterator["pa.RecordBatch"]]


def run_seeds(work: Work) -> Batches:
    """For mapInArrow: rows of seeds become rows of outcomes."""

    def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # of a terminal: the driver decides
        with Runner(work, work.mutation) as runner:
            for batch in batches:
                for seed in batch.column(0).to_pylist():
                    yield outcome_batch([runner.run(seed)])

    return run


def hunt(work: Work, hunts: Sequence[Hunt]) -> Batches:
    """For mapInArrow: rows of numbers of hunts become rows that say where each mutation was caught."""

    def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        for batch in batches:
            for number in batch.column(0).to_pylist():
                with Runner(work, hunts[number].mutation, keep=False) as runner:
                    yield _catch(runner, hunts[number])

    return run


def _catch(runner: Runner, wanted: Hunt) -> pa.RecordBatch:
    caught, runs, events, cpu, others = None, 0, 0, 0.0, dict[str, None]()
    for seed in wanted.seeds:
        outcome = runner.run(seed, trace=False)
        runs, events, cpu = runs + 1, events + outcome.events, cpu + outcome.cpu_seconds
        names = [name for name, _ in outcome.violations]
        others.update(dict.fromkeys(name for name in names if name != wanted.property))
        if wanted.property in names:
            caught = seed
            break
    return catch_batch(wanted.mutation, caught, runs, events, cpu, list(others))
