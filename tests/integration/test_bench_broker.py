"""`coterie bench broker` with too little load for its figures to mean anything: they are there, and nothing is lost."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

PATIENCE = 60.0
CLUSTERS = ("credit", "ownership")


def bench(*arguments: str) -> dict[str, Any]:
    command = [sys.executable, "-m", "coterie", "bench", "broker", "--json", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=200, check=False)
    assert done.returncode == 0, done.stderr
    answer: dict[str, Any] = json.loads(done.stdout)
    assert answer["wrong"] == {}
    for name, row in answer["cases"].items():
        assert row["min"] <= row["median"] <= row["max"], name
        assert row["unit"], name
    return answer


def check_beside(cases: dict[str, Any], against: str, *names: str) -> None:
    """Each was measured, and has its ratio."""
    for name in names:
        row = cases[name]
        assert row["median"] > 0, name
        assert row["baseline"] > 0, name
        assert row["ratio"] > 0, name
        assert row["against"] == against, name


def test_load_is_measured_in_both_kinds_of_cluster_beside_a_broker_alone_and_the_disk() -> None:
    measured = bench("--nodes", "3", "--only", "latency,throughput,disk", "--rounds", "1", "--seconds", "0.2")
    assert measured["parts"] == ["disk", "throughput", "latency"]
    cases = measured["cases"]
    loads = ("persistent", "persistent_4+4", "transient")
    check_beside(cases, "raw", *(f"standalone.{load}.confirmed" for load in loads), "standalone.latency.consume_p50")
    check_beside(cases, "one copy", "disk.copies.written")
    for name in CLUSTERS:
        for load in (*loads, "persistent_apart", "persistent_4+4_apart"):
            check_beside(cases, "standalone", *(f"{name}.{load}.{what}" for what in ("confirmed", "consumed", "cpu")))
        for load in ("latency", "latency_apart"):
            figures = ("confirm_p50", "confirm_p99", "consume_p50", "consume_p99")
            check_beside(cases, "standalone", *(f"{name}.{load}.{figure}" for figure in figures))
        assert cases[f"{name}.persistent.confirmed"]["of_disk"] > 0
        assert cases[f"{name}.persistent.confirmed"]["goal_of"] == "of_disk"
    assert cases["standalone.persistent.confirmed"]["of_disk"] > 0


def test_a_node_joins_a_cluster_with_messages_and_has_them_all() -> None:
    measured = bench("--nodes", "3", "--only", "join", "--joins", "1", "--joined", "700", "--seconds", "0.2")
    assert measured["joined"] == 700
    figures = ("serves", "in_step", "gap", "gap_before")
    check_beside(measured["cases"], "standalone", *(f"credit.join.{figure}" for figure in figures))


def test_nodes_are_killed_in_both_kinds_of_cluster_and_nothing_is_lost() -> None:
    cases = bench("--nodes", "3", "--only", "kill", "--kills", "1")["cases"]
    for name in CLUSTERS:
        for case in ("kill", "kill_oldest"):
            figures = ("delivery", "held", "confirm")
            check_beside(cases, "standalone", *(f"{name}.{case}.{figure}" for figure in figures))
            assert cases[f"{name}.{case}.delivery"]["met"] in (True, False)


def test_memory_is_that_of_the_largest_node() -> None:
    cases = bench("--nodes", "3", "--only", "memory", "--queued", "500")["cases"]
    for name in CLUSTERS:
        check_beside(cases, "standalone", f"{name}.memory.idle", f"{name}.memory.queued")


@contextmanager
def another_broker() -> Iterator[int]:
    """Its port."""
    command = [sys.executable, "-m", "coterie", "up", "--port", "0", "--console-port", "", "--json"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            text = ""
            while not text.endswith("\n}\n"):
                line = process.stdout.readline()
                assert line, "it did not start"
                text += line
            yield int(json.loads(text)["amqp"][0].rpartition(":")[2])
        finally:
            process.terminate()


def test_another_broker_is_measured_in_the_same_rounds() -> None:
    with another_broker() as port:
        measured = bench(
            "--only", "memory,latency", "--rounds", "1", "--seconds", "0.2", "--queued", "500",
            "--peer", f"other={port}",
        )  # fmt: skip
    cases = measured["cases"]
    check_beside(cases, "standalone", "other.memory.queued", "other.latency.confirm_p99")
    for name in ("standalone.memory.idle", "standalone.latency.consume_p50"):
        assert cases[name]["peers"]["other"] > 0


def processes_of(folder: Path) -> list[int]:
    """Those that were told of it."""
    found = []
    for entry in Path("/proc").iterdir():
        try:
            if entry.name.isdigit() and str(folder).encode() in (entry / "cmdline").read_bytes():
                found.append(int(entry.name))
        except OSError:
            continue  # it has ended meanwhile
    return found


def test_ctrl_c_leaves_no_process_and_no_folder(tmp_path: Path) -> None:
    command = [
        sys.executable, "-m", "coterie", "bench", "broker", "--nodes", "3", "--only", "memory", "--data", str(tmp_path)
    ]  # fmt: skip
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True, start_new_session=True) as process:
        deadline = time.monotonic() + PATIENCE
        while not list(tmp_path.glob("*/node3")):
            assert time.monotonic() < deadline, "there is no third broker"
            time.sleep(0.02)  # nothing tells from outside when it is there
        os.killpg(process.pid, signal.SIGINT)
        out, errors = process.communicate(timeout=PATIENCE)
    assert (process.returncode, out) == (130, "")
    assert "Traceback" not in errors
    assert list(tmp_path.iterdir()) == []
    assert processes_of(tmp_path) == []
