"""The process in which simulated runs are carried out: `python -m coterie.spark.campaign_runs PROFILE [MUTATION]`.

A run may kill its process, or never end. So it has one of its own, told a seed at a time by the Spark task that started
it (campaign_task.py), which can end it. For a mutation, which must be there before its module is imported, it needs to
be a fresh process anyway. It says first which code it runs; it ends when its standard input does, even within a run.
"""

from __future__ import annotations

import gc
import hashlib
import os
import pickle
import queue
import resource
import signal
import struct
import sys
import threading
import time
import zlib
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

from coterie.sim import mutations

if TYPE_CHECKING:
    from coterie.sim.plan import Plan

Order = tuple[int, bool, float]
"""A seed, whether its trace is wanted if it fails, and the CPU seconds that it may take."""

HEAD = struct.Struct(">Q")
VIOLATIONS_MAX = 50
"""Violations of one run that are told; the others are counted."""
TEXT_MAX = 4000
"""Characters of the text of one violation."""
TRACE_MAX = 32 * 2**20
"""Bytes of a compressed trace that are sent: a longer one is left to `coterie sim replay`."""
MEMORY_MAX = 8 * 2**30
"""Bytes of address space: a run that wants more fails rather than its machine."""
COLLECT_EVENTS = 200_000
"""The garbage of so many events is collected at once."""

CODE = (
    "amqp", "audit", "auditlog", "broker", "cluster", "group", "log", "runtime/base.py", "sim", "site_replication",
    "addresses.py", "crowd.py", "durations.py", "errors.py", "patterns.py", "settings.py", "trace.py", "visible.py",
)  # fmt: skip
"""What the outcome of a run depends on, within the package."""
NO_CODE = (
    "audit/files.py", "sim/diagram.py", "sim/mutants.py", "sim/mutants_broker.py", "sim/mutants_cluster.py",
    "sim/mutants_vs.py", "sim/mutation.py", "sim/mutations.py", "sim/runner.py", "sim/shrink.py",
)  # fmt: skip
"""And what it does not, within that."""


@dataclass(slots=True)
class Outcome:
    """What one run gives, as it goes from the process that made it to the campaign's folder."""

    seed: int
    events: int = 0
    sim_seconds: float = 0.0
    cpu_seconds: float = 0.0
    members: int = 0
    planned: int = 0
    """Faults in its plan."""
    faults: dict[str, int] = field(default_factory=dict)
    rules: dict[str, int] = field(default_factory=dict)
    violations: list[tuple[str, str]] = field(default_factory=list)
    """Property and text, VIOLATIONS_MAX at most."""
    violation_count: int = 0
    plan: str | None = None
    """As JSON, if it failed."""
    trace: bytes | None = None
    """JSON lines, compressed, if it failed."""

    @property
    def failed(self) -> bool:
        return self.violation_count > 0


@dataclass(slots=True)
class Hello:
    """What the process says first."""

    fingerprint: str = ""
    error: str = ""
    """Why it cannot run anything."""


def code_files(home: Path) -> list[Path]:
    """The files that runs depend on, relative to the folder of the package."""
    paths = [home / name for name in CODE]
    files = [file for path in paths for file in (sorted(path.rglob("*.py")) if path.is_dir() else [path])]
    return [file.relative_to(home) for file in files if file.relative_to(home).as_posix() not in NO_CODE]


def fingerprint() -> str:
    """A short name for the code that runs depend on."""
    home, digest = Path(__file__).parents[1], hashlib.sha256()
    for file in code_files(home):
        digest.update(f"{file.as_posix()}\0".encode() + (home / file).read_bytes() + b"\0")
    return digest.hexdigest()[:16]


def run_seed(make: Callable[[int], Plan], seed: int, trace: bool = True) -> Outcome:
    """One run, checked. One that fails is run again for its trace: runs are exact."""
    from coterie.sim.runner import run_plan, trace_plan

    began = time.process_time()
    plan = make(seed)
    result = run_plan(plan)
    outcome = Outcome(
        seed,
        result.events,
        result.sim_seconds,
        time.process_time() - began,
        len(plan.members),
        len(plan.faults),
        {kind: times for kind, times in result.faults.items() if times},
        {rule: times for rule, times in result.rules.items() if times},
        [(name, shortened(text, TEXT_MAX)) for name, text in result.violations[:VIOLATIONS_MAX]],
        len(result.violations),
    )
    if outcome.failed and trace:
        again, events = trace_plan(make(seed))
        if again.violations != result.violations or again.events != result.events:
            outcome.violations.append(("replay", "the same seed gave another run the second time"))
            outcome.violation_count += 1
        lines = zlib.compress("".join(event.to_json() + "\n" for event in events).encode(), 6)
        outcome.trace = lines if len(lines) <= TRACE_MAX else None
        outcome.plan = plan.to_json()
    return outcome


def shortened(text: str, most: int) -> str:
    """Both ends of a long text: a traceback says most with its last line."""
    return text if len(text) <= most else f"{text[: most // 4]}\n...\n{text[-(most - most // 4) :]}"


def send(file: BinaryIO, message: Outcome | Hello) -> None:
    data = pickle.dumps(message)
    file.write(HEAD.pack(len(data)) + data)
    file.flush()


def _prepare(mutation: str | None) -> Hello:
    try:
        mark = fingerprint()
        if mutation is not None:
            mutations.install(mutations.find(mutation))
        import coterie.sim.simulation  # noqa: F401  what a run imports, before its time counts

        return Hello(mark)
    except Exception as error:
        return Hello(error=f"{type(error).__name__}: {error}")


def _listen(orders: queue.SimpleQueue[Order]) -> None:
    for line in sys.stdin:
        seed, trace, limit = line.split()
        orders.put((int(seed), trace == "1", float(limit)))
    os._exit(0)  # nobody waits for what runs just now


def main(profile: str, mutation: str | None = None) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the campaign decides
    signal.signal(signal.SIGPROF, signal.SIG_DFL)  # ends the process, whatever it is doing
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_MAX, MEMORY_MAX))
    out = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # whatever prints must not come between
    hello = _prepare(mutation)
    send(out, hello)
    if hello.error:
        return
    from coterie.sim.profiles import profile as find

    make = find(profile).make
    orders: queue.SimpleQueue[Order] = queue.SimpleQueue()
    threading.Thread(target=_listen, args=(orders,), daemon=True).start()
    gc.disable()  # a run is short, and most of what it makes lives as long as it does
    gc.freeze()
    since = 0
    while True:
        seed, trace, limit = orders.get()
        signal.setitimer(signal.ITIMER_PROF, limit)  # CPU seconds: a busy machine is no fault of the run
        outcome = run_seed(make, seed, trace)
        signal.setitimer(signal.ITIMER_PROF, 0)
        send(out, outcome)
        since += outcome.events
        if since > COLLECT_EVENTS:
            since = 0
            gc.collect()


if __name__ == "__main__":
    # The classes that are sent must be those that the other side imports.
    from coterie.spark import campaign_runs

    campaign_runs.main(*sys.argv[1:])
