"""Campaigns: many runs, over several processes, added up.

What a campaign says does not depend on the number of processes or on their speed: results are added in the order of the
seeds. A mutation is applied in processes of their own, before anything is imported there.
"""

from __future__ import annotations

import gc
import multiprocessing
import multiprocessing.process
import os
import signal
import sys
import threading
from collections import Counter
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from coterie.sim import mutations
from coterie.trace import Event, Json

if TYPE_CHECKING:
    from coterie.sim.broker_run import BrokerSimulation
    from coterie.sim.plan import Plan
    from coterie.sim.result import Result
    from coterie.sim.simulation import Simulation

CHUNK = 8
"""Seeds that a process gets at a time."""


@dataclass(slots=True)
class Task:
    """What a process is asked to run."""

    profile: str
    seeds: Sequence[int]
    trace_dir: str | None = None


@dataclass(slots=True)
class Campaign:
    """The results of many runs, added up."""

    profile: str
    runs: int = 0
    events: int = 0
    sim_seconds: float = 0.0
    faults: Counter[str] = field(default_factory=Counter)
    rules: Counter[str] = field(default_factory=Counter)
    failures: list[tuple[int, str, str]] = field(default_factory=list)
    """Seed, property, text of each violation."""
    interrupted: bool = False

    def add(self, result: Result) -> None:
        self.runs += 1
        self.events += result.events
        self.sim_seconds += result.sim_seconds
        self.faults.update(result.faults)
        self.rules.update(result.rules)
        self.failures += [(result.seed, name, text) for name, text in result.violations]

    @property
    def failing_seeds(self) -> list[int]:
        return list(dict.fromkeys(seed for seed, _, _ in self.failures))

    def caught_by(self, name: str) -> list[int]:
        """The seeds at which that property was violated."""
        return list(dict.fromkeys(seed for seed, found, _ in self.failures if found == name))

    def unreached(self) -> list[str]:
        return [rule for rule in known_rules(self.profile) if not self.rules[rule]]

    def to_json(self) -> dict[str, Json]:
        rules: dict[str, Json] = {rule: self.rules[rule] for rule in known_rules(self.profile)}
        return {
            "profile": self.profile,
            "runs": self.runs,
            "events": self.events,
            "sim_seconds": round(self.sim_seconds, 3),
            "faults": {kind: self.faults[kind] for kind in sorted(self.faults)},
            "rules": rules,
            "unreached_rules": list(self.unreached()),
            "violations": len(self.failures),
            "failing_seeds": list(self.failing_seeds),
            "failures": [{"seed": seed, "property": name, "text": text} for seed, name, text in self.failures],
        }


def known_rules(profile: str) -> list[str]:
    """Every rule that the profile has to reach."""
    from coterie.group.presets import REGISTRY
    from coterie.group.protocols.nakack_streams import SYNCHRONOUS_RULES
    from coterie.sim.profiles import profile as find

    found = find(profile)
    rules = [rule for name in found.protocols for rule in REGISTRY[name].rules] + list(found.rules)
    return rules + list(SYNCHRONOUS_RULES) if found.synchronous else rules


def run_plan(plan: Plan, trace_dir: str | None = None) -> Result:
    """One run, in this process."""
    if trace_dir is None:
        return _simulation(plan).run()
    path = Path(trace_dir) / f"{plan.profile}-{plan.seed}.jsonl"
    hidden = path.with_name(f".{path.name}")  # whoever follows the folder sees whole files only
    with hidden.open("w", encoding="utf-8") as file:
        result = _simulation(plan, lambda event: _write(file.write, event)).run()
    hidden.rename(path)
    return result


def _write(write: Callable[[str], object], event: Event) -> None:
    write(event.to_json() + "\n")


def trace_plan(plan: Plan) -> tuple[Result, list[Event]]:
    """One run with its events."""
    events: list[Event] = []
    return _simulation(plan, events.append).run(), events


def _simulation(plan: Plan, sink: Callable[[Event], None] | None = None) -> Simulation | BrokerSimulation:
    """Nothing of what a mutation may change is imported before it is needed."""
    if plan.profile == "broker":
        from coterie.sim.broker_run import BrokerSimulation

        return BrokerSimulation(plan, sink)
    if plan.profile == "cluster":
        from coterie.sim.cluster_run import ClusterSimulation

        return ClusterSimulation(plan, sink)
    from coterie.sim.simulation import Simulation

    return Simulation(plan, sink)


def run_task(task: Task) -> list[Result]:
    from coterie.sim.profiles import profile

    make = profile(task.profile).make
    collecting = gc.isenabled()
    gc.disable()  # a run is short, and most of what it makes lives as long as it does
    try:
        return [run_plan(make(seed), task.trace_dir) for seed in task.seeds]
    finally:
        gc.collect()
        if collecting:
            gc.enable()


def campaign(
    profile: str,
    seeds: Sequence[int],
    jobs: int | None = None,
    mutation: str | None = None,
    trace_dir: str | None = None,
    progress: Callable[[Campaign], None] = lambda _: None,
    stop: Callable[[Campaign], bool] = lambda _: False,
) -> Campaign:
    """Run all seeds. An interrupt (or `stop`) keeps what is done, up to the first seed that is not."""
    if mutation is not None:
        mutations.check(mutations.find(mutation))
    total = Campaign(profile)
    tasks = [Task(profile, seeds[at : at + CHUNK], trace_dir) for at in range(0, len(seeds), CHUNK)]
    jobs = max(1, min(jobs or os.cpu_count() or 1, len(tasks) or 1))
    results = _here(tasks) if jobs == 1 and mutation is None else _in_processes(tasks, jobs, mutation)
    try:
        for chunk in results:
            for result in chunk:
                total.add(result)
            progress(total)
            if stop(total):
                break
    except KeyboardInterrupt:
        total.interrupted = True
    finally:
        results.close()
    return total


def _here(tasks: list[Task]) -> Generator[list[Result], None, None]:
    for task in tasks:
        yield run_task(task)


def _in_processes(tasks: list[Task], jobs: int, mutation: str | None) -> Generator[list[Result], None, None]:
    """The results of the tasks, in their order."""
    context = multiprocessing.get_context("spawn")
    pool = ProcessPoolExecutor(jobs, context, _prepare, (mutation,))
    try:
        waiting: dict[Future[list[Result]], int] = {}
        done: dict[int, list[Result]] = {}
        upcoming = iter(enumerate(tasks))
        next_out = 0
        while next_out < len(tasks):
            while len(waiting) < 2 * jobs and (task := next(upcoming, None)) is not None:
                waiting[pool.submit(run_task, task[1])] = task[0]
            finished, _ = wait(waiting, return_when=FIRST_COMPLETED)
            for future in finished:
                done[waiting.pop(future)] = future.result()
            while next_out in done:
                yield done.pop(next_out)
                next_out += 1
    finally:
        workers = list((pool._processes or {}).values())
        pool.shutdown(wait=False, cancel_futures=True)
        for worker in workers:  # a run that nobody waits for any more may take minutes: one with a mutation, for ever
            worker.kill()


def _prepare(mutation: str | None) -> None:
    """First thing in a new process."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent decides
    threading.Thread(target=_die_with, args=(multiprocessing.parent_process(),), daemon=True).start()
    if mutation is not None:
        mutations.install(mutations.find(mutation))


def _die_with(parent: multiprocessing.process.BaseProcess | None) -> None:
    """Whoever asked may have been killed: a long run that nobody waits for any more would go on for minutes."""
    if parent is not None:
        parent.join()
        os._exit(1)


def imported_protocols() -> bool:
    """Whether it is too late for a mutation in this process."""
    return any(name.startswith("coterie.group.protocols.") for name in sys.modules)
