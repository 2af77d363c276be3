"""One audit of a folder of traces, measured from within: by the plain checkers in this process, or as a Spark job."""

from __future__ import annotations

import gc
import json
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from coterie.audit import Checker, properties
from coterie.audit.files import Reading, find, runs
from coterie.workers import Message

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession


def plain(folder: str) -> Message:
    """As `coterie check`, and without the collector of cycles, as the Spark tasks are."""
    gc.disable()
    began = time.monotonic()
    reading, violations, checked = Reading(), 0, 0
    for run in runs(find([folder]), reading):
        checker = Checker(properties(run.causal))
        for event in run.events:
            checker.feed(event)
        violations += len(checker.finish())
        checked += 1
    return {
        "events": reading.events,
        "runs": checked,
        "violations": violations,
        "check_seconds": time.monotonic() - began,
        "python_mib": peak_mib("self"),
    }


def spark(folder: str, cores: int, out: str, master: str) -> Message:
    """The whole job; `check_seconds` is the part that the plain checkers do too: read, put together, check."""
    began = time.monotonic()
    from coterie.spark.audit import audit
    from coterie.spark.effort import settings_for
    from coterie.spark.session import session

    with session("coterie bench audit", master, settings_for([folder])) as started:
        # Spark is up when a first job on every core is done, and the Python processes have loaded what they will need.
        started.range(0, cores, 1, cores).mapInArrow(_same, "id long").count()
        up = time.monotonic()
        steps: dict[int, float] = {}

        def step(done: int, _: str) -> None:
            steps[done] = time.monotonic()

        summary = audit(started, [folder], Path(out), step)
        end = time.monotonic()
        kept = _kept_mib(started)
        return {
            "events": summary.events,
            "runs": summary.runs,
            "violations": summary.violations,
            "start_seconds": up - began,
            "check_seconds": steps[1] - up,
            "audit_seconds": end - up,
            "python_mib": peak_mib("self"),
            "java_mib": max((peak_mib(pid) for pid in _children() if _is_java(pid)), default=0.0),
            "java_kept_mib": kept,
        }


def _same(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    from coterie.spark import check  # noqa: F401

    yield from batches


def _kept_mib(started: SparkSession) -> float:
    """What the driver's Java still holds once its garbage is collected."""
    java = started.sparkContext._jvm.java.lang  # type: ignore[union-attr]
    java.System.gc()
    return float(java.management.ManagementFactory.getMemoryMXBean().getHeapMemoryUsage().getUsed()) / (1 << 20)


def peak_mib(process: str) -> float:
    """The most resident memory that a process ever had."""
    for line in Path(f"/proc/{process}/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) / 1024
    return 0.0


def _children() -> list[str]:
    return Path("/proc/self/task").joinpath(str(os.getpid()), "children").read_text().split()


def _is_java(process: str) -> bool:
    return Path(f"/proc/{process}/comm").read_text().strip() == "java"


def main(arguments: Message) -> Message:
    if arguments["cores"] == 0:
        return plain(arguments["folder"])
    return spark(arguments["folder"], arguments["cores"], arguments["out"], arguments["master"])


if __name__ == "__main__":
    print(json.dumps(main(json.loads(sys.argv[1]))))
