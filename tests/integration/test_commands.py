"""The commands with real processes, as a user runs them."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest


def coterie(*arguments: str, expect: int = 0) -> Any:
    """Run the command; gives the JSON object that it wrote."""
    done = subprocess.run(
        [sys.executable, "-m", "coterie", *arguments, "--json"],
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == expect, done.stderr + done.stdout
    return json.loads(done.stdout)


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Any]:
    folder = tmp_path_factory.mktemp("demo")
    return folder, coterie("demo", "--out", str(folder), "--rate", "200")


def test_the_demonstration_kills_a_member_and_loses_nothing(demo: tuple[Path, Any]) -> None:
    _, told = demo
    assert told["good"]
    assert told["wrong"] == 0
    assert sorted(told["removed_ms"]) == ["ada", "ben", "dee"]
    assert told["delivered"] > 1000
    assert told["events"] > 1000


def test_the_traces_of_real_processes_are_clean(demo: tuple[Path, Any]) -> None:
    folder, told = demo
    checked = coterie("check", str(folder))
    assert (checked["violations"], checked["events"]) == (0, told["events"])


def test_a_delivery_that_is_altered_in_the_traces_of_real_processes_is_found(
    demo: tuple[Path, Any], tmp_path: Path
) -> None:
    folder, _ = demo
    for path in folder.glob("*.jsonl"):
        lines = path.read_text().splitlines(keepends=True)
        if path.name.startswith("ada-"):
            at = next(i for i, line in enumerate(lines) if '"kind":"deliver"' in line and '"sender":"ben#' in line)
            event = json.loads(lines[at])
            event["sum"] ^= 1
            lines[at] = json.dumps(event) + "\n"
        (tmp_path / path.name).write_text("".join(lines))
    checked = coterie("check", str(tmp_path), expect=1)
    assert {violation["property"] for violation in checked["details"]} == {"G3"}


@pytest.mark.parametrize("case", ["group", "unicast"])
def test_a_benchmark_measures_the_group_beside_raw_sockets(case: str) -> None:
    measured = coterie("bench", case, "--rounds", "1", "--seconds", "0.5")
    for name in ("delivered", "cpu", *(["round_trip_p50"] if case == "unicast" else [])):
        figure = measured["cases"][name]
        assert {"median", "min", "max", "baseline", "ratio", "unit"} <= figure.keys()
        assert figure["median"] > 0
        assert figure["baseline"] > 0


def test_a_sender_that_outruns_its_receiver_stays_within_bounds_on_both_sides() -> None:
    measured = coterie("bench", "memory", "--seconds", "4")
    assert measured["bounded"]
    assert measured["taken_per_second"] > 0


@pytest.mark.parametrize(
    "arguments",
    [
        "demo --rate 0",
        "demo --size 7",
        "demo --out /dev/null/traces",
        "bench group --members 1",
        "bench group --size 0",
        "bench group --bundle 10",
        "bench unicast --size 2000 --bundle 1000",
        "bench memory --seconds -1",
        "bench memory --size 0",
    ],
)
def test_a_wrong_flag_is_one_line_and_exit_code_2(arguments: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "coterie", *arguments.split()], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 2
    assert done.stderr.startswith("coterie: ")
    assert len(done.stderr.splitlines()) == 1
