"""The commands with real processes, as a user runs them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from coterie.audit import properties


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
    return folder, coterie("demo", "group", "--out", str(folder), "--rate", "200")


def test_the_demonstration_joins_parts_merges_leaves_and_kills_and_loses_nothing(demo: tuple[Path, Any]) -> None:
    _, told = demo
    assert told["good"]
    assert (told["wrong"], told["violations"]) == (0, [])
    assert sorted(told["removed_ms"]) == ["ada", "ben", "dee"]
    for step in ("complete_ms", "joined_ms", "apart_ms", "merged_ms", "left_ms", "returned_ms", "held_up_ms"):
        assert told[step] > 0
    assert told["state_bytes"] > 10_000
    assert told["delivered"] > 1000
    assert told["events"] > 1000


def test_the_demonstration_checks_every_property_and_leaves_a_picture(demo: tuple[Path, Any]) -> None:
    folder, told = demo
    assert told["properties"] == [fold.name for fold in properties()]
    page = (folder / "demo.html").read_text()
    assert told["diagram"] == str(folder / "demo.html")
    for word in ("ada", "ben", "cy", "dee", "eve", "partition", "kill -9"):
        assert word in page


def test_in_the_demonstration_views_are_agreed_and_one_of_them_is_a_merge(demo: tuple[Path, Any]) -> None:
    folder, _ = demo
    lines = [line for path in folder.glob("*.jsonl") for line in path.read_text().splitlines() if '"view"' in line]
    views = [event for event in map(json.loads, lines) if event["kind"] == "view"]
    merges = {event["view"]: event["data"]["subgroups"] for event in views if "subgroups" in event["data"]}
    members: dict[str, set[str]] = {}
    for event in views:
        members.setdefault(event["view"], set()).add(" ".join(event["data"]["members"]))
    assert all(len(lists) == 1 for lists in members.values())
    parts = [sorted(len(names) for _, names in subgroups) for subgroups in merges.values()]
    assert [2, 3] in parts


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


def test_of_three_brokers_one_is_killed_and_every_order_is_accounted_for(tmp_path: Path) -> None:
    told = coterie("demo", "--seconds", "1", "--out", str(tmp_path), "--no-spark")
    assert told["good"], told["violations"]
    assert (told["spark"], told["without_spark"]) == (None, "")
    assert (told["lost"], told["violations"]) == (0, [])
    assert told["published"] == told["confirmed"] + told["unconfirmed"]
    assert told["consumed_once"] + told["consumed_again"] == told["confirmed"] + told["unconfirmed_consumed"]
    assert told["confirmed"] > 500
    assert told["reconnected"] == 2
    assert sorted(told["elsewhere_ms"]) == ["node1", "node3"]
    for step in ("up_ms", "served_ms"):
        assert told[step] > 0
    assert told["handed_over_ms"] is None or told["handed_over_ms"] > 0  # on a slow machine nothing may be held
    assert told["properties"] == [fold.name for fold in properties()]
    checked = coterie("check", str(tmp_path))
    assert (checked["violations"], checked["events"]) == (0, told["events"])


def test_without_pika_the_demonstration_says_what_to_install(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text("import sys\nsys.modules['pika'] = None\n")
    done = subprocess.run(
        [sys.executable, "-m", "coterie", "demo", "--out", str(tmp_path)],
        capture_output=True, text=True, timeout=60, check=False, env={**os.environ, "PYTHONPATH": str(tmp_path)},
    )  # fmt: skip
    assert done.returncode == 2
    assert done.stderr.startswith("coterie: demo: its clients are pika, which is not installed: pip install ")
    assert len(done.stderr.splitlines()) == 1


@pytest.mark.parametrize("case", ["group", "unicast"])
def test_a_benchmark_measures_the_group_beside_raw_sockets(case: str) -> None:
    measured = coterie("bench", case, "--rounds", "1", "--seconds", "0.5")
    for name in ("delivered", "cpu", *(["round_trip_p50"] if case == "unicast" else [])):
        figure = measured["cases"][name]
        assert {"median", "min", "max", "baseline", "ratio", "unit"} <= figure.keys()
        assert figure["median"] > 0
        assert figure["baseline"] > 0


def test_a_benchmark_measures_how_long_a_member_waits_for_its_own_multicast() -> None:
    measured = coterie("bench", "own", "--rounds", "1", "--seconds", "0.3")
    assert measured["order"] == "total"
    assert measured["members"] == 3
    for name in ("own_p50", "own_p99"):
        assert measured["cases"][name]["median"] > 0
        assert measured["cases"][name]["baseline"] > 0


def test_a_benchmark_measures_total_order_beside_fifo_and_both_beside_raw_sockets() -> None:
    measured = coterie("bench", "group", "--order", "both", "--members", "3", "--rounds", "1", "--seconds", "0.5")
    cases = measured["cases"]
    assert measured["order"] == "both"
    assert cases["fifo_delivered"]["baseline"] == cases["total_delivered"]["baseline"] > 0
    assert cases["total_to_fifo_delivered"]["median"] == cases["total_delivered"]["median"] > 0
    assert cases["total_to_fifo_delivered"]["baseline"] == cases["fifo_delivered"]["median"] > 0


def test_a_sender_that_outruns_its_receiver_stays_within_bounds_on_both_sides() -> None:
    measured = coterie("bench", "memory", "--seconds", "4")
    assert measured["bounded"]
    assert measured["taken_per_second"] > 0


def check_figures(cases: dict[str, Any]) -> None:
    for figure in cases.values():
        assert {"median", "min", "max", "baseline", "ratio", "unit"} <= figure.keys()
        assert figure["min"] <= figure["median"] <= figure["max"]


def test_the_benchmark_of_views_measures_both_flush_protocols_beside_raw_sockets() -> None:
    measured = coterie("bench", "views", "--rounds", "1", "--joins", "1", "--flushes", "2", "--kills", "1")
    check_figures(measured["cases"])
    for case in ("join", "leave", "kill", "kill_coordinator", "flush_idle", "flush_loaded", "held_up_loaded_max"):
        for flush in ("flush2", "flush"):
            figure = measured["cases"][f"{flush}.{case}"]
            assert figure["median"] > 0
            assert figure["baseline"] > 0
            assert figure["unit"] == "ms"
    assert measured["cases"]["flush2.kill"]["goal"] == 25


def test_the_benchmark_of_state_transfer_gets_the_right_state_in_bounded_memory() -> None:
    measured = coterie("bench", "state", "--size", "48MiB", "--rounds", "1", "--seconds", "0.5")
    check_figures(measured["cases"])
    assert measured["size"] == 48 << 20
    assert measured["bounded"]
    assert measured["cases"]["throughput"]["median"] > 0
    assert measured["cases"]["held_up_p50"]["median"] > 0


def test_the_benchmark_of_flush_messages_counts_and_plots_them(tmp_path: Path) -> None:
    measured = coterie("bench", "flush-messages", "--members", "2,4", "--plot", str(tmp_path / "plots" / "m.svg"))
    check_figures(measured["cases"])
    assert {name: figure["median"] for name, figure in measured["cases"].items()} == {
        "flush2.2": 3, "flush2.4": 9, "flush.2": 6, "flush.4": 24,
    }  # fmt: skip
    assert (tmp_path / "plots" / "m.svg").read_text().startswith("<svg")


@pytest.mark.parametrize(
    "arguments",
    [
        "demo --rate 0",
        "demo broker --seconds 0",
        "demo --out /dev/null/traces",
        "demo group --rate 0",
        "demo group --size 7",
        "demo group --out /dev/null/traces",
        "demo --seconds 3 group",
        "bench group --members 1",
        "bench group --size 0",
        "bench group --bundle 10",
        "bench unicast --size 2000 --bundle 1000",
        "bench memory --seconds -1",
        "bench memory --size 0",
        "bench views --members 2",
        "bench views --flushes 0",
        "bench flush-messages --members 2,x",
        "bench flush-messages --members 1",
        "bench flush-messages --members 2 --plot /dev/null/plot.svg",
        "bench state --size 1.5GiB",
        "bench state --rate 0",
        "bench state --message-size 7",
        "bench broker --nodes 0",
        "bench broker --nodes 3 --only throughput,x",
        "bench broker --nodes 2 --only kill",
        "bench broker --joined 0",
        "bench broker --data /dev/null",
        "bench broker --peer rabbitmq",
        "bench broker --peer credit=5672",
        "bench broker --peer rabbitmq=1",
    ],
)
def test_a_wrong_flag_is_one_line_and_exit_code_2(arguments: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "coterie", *arguments.split()], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 2
    assert done.stderr.startswith("coterie: ")
    assert len(done.stderr.splitlines()) == 1
