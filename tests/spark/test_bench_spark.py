"""`coterie bench spark` with too few rows for its figures to mean anything: they are there, and nothing is lost."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

QUICK = "-XX:TieredStopAtLevel=1 -XX:-UsePerfData"
"""A JVM that starts rather than runs fast."""


@pytest.mark.slow
def test_every_figure_is_there_and_nothing_is_lost(tmp_path: Path) -> None:
    command = [
        sys.executable, "-m", "coterie", "bench", "spark", "--json", "--rows", "600", "--rounds", "1",
        "--seconds", "0.2", "--master", "local[2]", "--data", str(tmp_path),
    ]  # fmt: skip
    environment = {**os.environ, "JAVA_TOOL_OPTIONS": QUICK}
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False, env=environment)
    assert done.returncode == 0, done.stderr
    measured = json.loads(done.stdout)
    assert measured["wrong"] == {}
    assert (measured["rows"], measured["nodes"], measured["size"]) == (600, 3, 1024)
    cases = measured["cases"]
    assert [*cases] == [
        "batch.to_parquet", "batch.to_loop", "batch_all.to_parquet_all", "batch_all.to_loop", "stream.to_parquet",
        "stream.to_loop", "stream_whole.to_stream", "sink.to_publisher", "publishers_beside_reader.to_publishers",
        "publishers_beside_parquet.to_publishers", "reader_beside_publishers.to_batch", "start",
    ]  # fmt: skip
    for name, row in cases.items():
        assert row["median"] >= 0 if name.startswith("reader") else row["median"] > 0, name
        assert row["baseline"] > 0, name
        assert "goal" not in row, "they are for many rows"
    assert cases["stream.to_loop"]["mb_per_second"] > 0
    assert [*tmp_path.iterdir()] == []


def test_wrong_flags_are_told_before_anything_starts(tmp_path: Path) -> None:
    for flags, text in (
        (("--rows", "0"), "--rows 0: 1 to"),
        (("--rows", "9000000"), "brokers can hold in memory"),
        (("--rounds", "0"), "--rounds must be 1 at least"),
        (("--nodes", "50"), "--nodes 50: 1 to 9"),
        (("--data", str(tmp_path / "missing")), "is no folder"),
    ):
        command = [sys.executable, "-m", "coterie", "bench", "spark", *flags]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
        assert (done.returncode, done.stdout) == (2, "")
        assert text in done.stderr
        assert "Traceback" not in done.stderr
