"""How fast traces are audited: on Spark with one core and with two, beside the plain checkers in one process.

The traces are those of simulated runs with all their faults, copied under other names until there are enough events.
Every measurement is a process of its own, and in each round they take turns, so that all meet the same machine.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

from coterie.bench.cases import Figure
from coterie.errors import CoterieError, UserError
from coterie.sim.profiles import profile
from coterie.sim.runner import run_plan
from coterie.workers import Message

PROFILE = "vs"
SEEDS = 40
SIZES = (100_000, 1_000_000, 10_000_000)
CORES = (1, 2)
PLACES = {"plain": (0, ""), "1": (1, "local[1]"), "2": (2, "local[2]"), "apart": (2, "local-cluster[2,1,1024]")}
"""By name: cores, and where Spark runs: in the driver's process, or apart from it."""


def make_traces(folder: Path, events: int, seeds: int = SEEDS) -> int:
    """Write traces with about so many events; how many there are."""
    originals = folder.with_name("originals")
    if not originals.exists():
        originals.mkdir(parents=True)
        for seed in range(seeds):
            run_plan(profile(PROFILE).make(seed), str(originals))
    texts = [file.read_text(encoding="utf-8") for file in sorted(originals.glob("*.jsonl"))]
    names = [json.loads(text.partition("\n")[0])["run"] for text in texts]
    folder.mkdir(parents=True)
    written = copy = 0
    while written < events:
        name, text = names[copy % len(names)], texts[copy % len(texts)]
        other = f"{name}-{copy // len(names)}"
        (folder / f"{copy}.jsonl").write_text(text.replace(f'"run":"{name}"', f'"run":"{other}"'), encoding="utf-8")
        written += text.count("\n")
        copy += 1
    return written


def measure(
    sizes: Sequence[int], rounds: int, done: Callable[[int, str], None], seeds: int = SEEDS
) -> dict[str, dict[str, list[Message]]]:
    """By number of events and by place: what each round measured."""
    found: dict[str, dict[str, list[Message]]] = {}
    steps = 0
    with tempfile.TemporaryDirectory(prefix="coterie-bench-") as home:
        for size in sizes:
            traces = Path(home) / str(size)
            make_traces(traces, size, seeds)
            for _ in range(rounds):
                for name, (cores, master) in PLACES.items():
                    answer = _run(
                        {"folder": str(traces), "cores": cores, "master": master, "out": str(Path(home) / "out")}
                    )
                    shutil.rmtree(Path(home) / "out", ignore_errors=True)
                    found.setdefault(str(size), {}).setdefault(name, []).append(answer)
                    steps += 1
                    done(steps, f"{size:,} events, {name}")
            shutil.rmtree(traces)
    _same_verdicts(found)
    return found


def _run(arguments: Message) -> Message:
    command = [sys.executable, "-m", "coterie.bench.audit_worker", json.dumps(arguments)]
    answer = subprocess.run(command, capture_output=True, text=True, check=False)
    if answer.returncode:
        last = (answer.stderr.strip().splitlines() or ["no reason given"])[-1]
        raise UserError(f"bench audit: a measurement failed: {last}")
    result: Message = json.loads(answer.stdout.splitlines()[-1])
    return result


def _same_verdicts(found: dict[str, dict[str, list[Message]]]) -> None:
    for size, measured in found.items():
        verdicts = {(a["events"], a["runs"], a["violations"]) for answers in measured.values() for a in answers}
        if len(verdicts) > 1:
            raise CoterieError(f"bench audit: of {size} events the checkers do not say the same: {sorted(verdicts)}")


def figures(found: dict[str, dict[str, list[Message]]]) -> dict[str, Figure]:
    """Events per second against the plain checkers: of what they do too, of that with Spark's start, of the whole job
    with tables, statistics and report; and the memory of the driver against the next smaller size's."""
    rows: dict[str, Figure] = {}
    before: dict[str, list[Message]] = {}
    for size, measured in found.items():
        plain = [answer["events"] / answer["check_seconds"] for answer in measured["plain"]]
        for cores in map(str, CORES):
            answers = measured[cores]
            seconds = {
                "check": [a["check_seconds"] for a in answers],
                "check_with_start": [a["check_seconds"] + a["start_seconds"] for a in answers],
                "audit": [a["audit_seconds"] for a in answers],
            }
            for what, taken in seconds.items():
                rates = [a["events"] / s for a, s in zip(answers, taken, strict=True)]
                rows[f"{size}.{cores}_cores.{what}"] = Figure("events/s", rates, plain)
            rows[f"{size}.{cores}_cores.start"] = Figure("s", [a["start_seconds"] for a in answers], [1.0] * len(plain))
            _memory(rows, f"{size}.{cores}_cores", answers, before.get(cores, answers))
        _memory(rows, f"{size}.apart", measured["apart"], before.get("apart", measured["apart"]))
        before = measured
    return rows


def _memory(rows: dict[str, Figure], name: str, answers: list[Message], smaller: list[Message]) -> None:
    """Of the driver, beside that of the next smaller number of events."""
    for what, unit in (("python_mib", "MiB, most"), ("java_mib", "MiB, most"), ("java_kept_mib", "MiB, at the end")):
        rows[f"{name}.{what}"] = Figure(unit, [a[what] for a in answers], [a[what] for a in smaller])
