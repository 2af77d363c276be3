"""An audit of traces in which much is wrong, for the tests of the report."""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from tracescript import parse

from coterie.sim.profiles import profile
from coterie.sim.runner import trace_plan
from coterie.spark.schema import VIOLATIONS
from coterie.trace import Event

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from coterie.spark.audit import Summary

REPORT = "report.html"
EVIL = '<script>document.title="evil"</script>'
SEED = 1

FORGED = """
    A start
    B start
    A view members=A,B agreed view=1@A start=A:1
    B view members=A,B agreed view=1@A start=A:1
    A send n=1 to=all
    A deliver from=A n=1
    B receive from=A n=1
    B deliver from=A n=1
    B deliver from=A n=2
"""
"""B delivers what nobody has sent."""

SKEWED = """
    real
    A start
    B start
    A view members=A,B agreed view=1@A start=A:1 t=0.5
    B view members=A,B agreed view=1@A start=A:1 t=0.5
    A send n=1 to=all t=1.0
    A deliver from=A n=1 t=1.0
    B receive from=A n=1 t=1.02
    B deliver from=A n=1 t=1.07
    A send n=2 to=all t=2.0
    A deliver from=A n=2 t=2.0
    B receive from=A n=2 t=2.3
    B deliver from=A n=2 t=2.3
    A stop t=3.0
    B stop t=3.0
"""


@dataclass(frozen=True, slots=True)
class Audited:
    out: Path
    summary: Summary
    traces: Path

    @property
    def page(self) -> str:
        return (self.out / REPORT).read_text(encoding="utf-8")


def simulated(seed: int) -> list[Event]:
    return trace_plan(profile("total").make(seed))[1]


def twice(events: list[Event]) -> list[Event]:
    """A delivery happens a second time."""
    again = next(event for event in events if event.kind == "deliver" and event.data.get("app") is True)
    last = max(event.n for event in events if (event.node, event.inc) == (again.node, again.inc))
    return [*events, replace(again, n=last + 1, t=events[-1].t)]


def skewed() -> list[Event]:
    """B's wall clock is 40 ms behind A's, and its monotonic clock began at another time."""
    shift = {"A": (0.0, 0.0), "B": (5000.0, -0.04)}
    return [
        replace(e, t=e.t + shift[e.node][0], wall=1.7e9 + e.t + shift[e.node][1])
        for e in parse(SKEWED, "cluster").events
    ]  # fmt: skip


def write(file: Path, events: Sequence[Event], more: str = "") -> None:
    file.write_text("".join(event.to_json() + "\n" for event in events) + more, encoding="utf-8")


@pytest.fixture(scope="session")
def broken_audit(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Audited:
    """A run whose name is a script, a simulated one that delivers twice, real nodes with bad clocks, bad lines."""
    from coterie.spark.audit import audit

    traces, out = tmp_path_factory.mktemp("bad traces"), tmp_path_factory.mktemp("audits") / "broken"
    write(traces / "forged.jsonl", [replace(e, run=EVIL) for e in parse(FORGED, "forged").events], f"{EVIL}\n")
    write(traces / f"total-{SEED}.jsonl", twice(simulated(SEED)))
    for node in ("A", "B"):
        write(traces / f"{node}.jsonl", [event for event in skewed() if event.node == node])
    (traces / "worse.jsonl").write_text(json.dumps({"v": 9}) + "\n")
    return Audited(out, audit(spark, [str(traces)], out), traces)


@pytest.fixture(scope="session")
def clean_audit(spark: SparkSession, broken_audit: Audited) -> Audited:
    """The report of the same tables, had nothing been wrong."""
    return rewritten(spark, broken_audit, "clean", [], {})


def rewritten(
    spark: SparkSession, audit: Audited, name: str, violations: Sequence[tuple[object, ...]], counts: dict[str, int]
) -> Audited:
    """A copy with other violations (rows of the table), and its report."""
    from coterie.spark.audit_folder import AuditFolder
    from coterie.spark.report import write as write_report

    out = audit.out.with_name(name)
    shutil.copytree(audit.out, out, ignore=shutil.ignore_patterns(VIOLATIONS.name, "diagrams", REPORT))
    AuditFolder(out).write(VIOLATIONS, spark.createDataFrame([*violations], VIOLATIONS.ddl))
    by_property = {fold: counts.get(fold, 0) for fold in audit.summary.by_property}
    summary = replace(
        audit.summary, violations=len(violations), corrupt=0, ignored=0, by_property=by_property, report=out / REPORT
    )  # fmt: skip
    write_report(spark, out, summary)
    return Audited(out, summary, audit.traces)
