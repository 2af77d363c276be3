"""The demonstration ends with Spark, which finds every order; without Spark it ends well too, and says why."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from coterie.demo.archive import Archive


def test_spark_finds_every_confirmed_order_in_the_archive_that_three_brokers_have(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "coterie", "demo", "--seconds", "0.5", "--out", str(tmp_path), "--json"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    told = json.loads(done.stdout)
    assert told["without_spark"] == ""
    found = told["spark"]
    assert found["missing"] == 0
    assert found["orders"] == found["different"] == told["consumed_once"] + told["consumed_again"]
    assert sorted(found["by_publisher"]) == ["p0", "p1", "p2"]
    assert sum(found["by_publisher"].values()) == found["orders"] >= told["confirmed"]


def test_where_spark_does_not_start_it_is_said_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "sitecustomize.py").write_text("import sys\nsys.modules['pyspark'] = None\n")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join((str(tmp_path), os.environ.get("PYTHONPATH", ""))))

    async def ask() -> str:
        archive = Archive(tmp_path / "spark.log")
        await archive.start()
        try:
            assert await archive.read(["http://127.0.0.1:1"], "archive", tmp_path / "confirmed.txt") is None
        finally:
            await archive.end()
        return archive.why_not

    assert asyncio.run(ask()) == "this needs pyspark: pip install 'coterie[spark]'"
