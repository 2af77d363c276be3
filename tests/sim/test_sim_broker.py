"""The profile `broker`: a sample of seeds without a violation, exact replay, and what its runs reach."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from coterie.audit import check, properties
from coterie.audit.files import Reading, runs
from coterie.cli import main
from coterie.sim.plan import Plan
from coterie.sim.profile_broker import BROKER_FAULTS, RULES
from coterie.sim.profiles import broker_plan
from coterie.sim.runner import campaign, run_plan, trace_plan
from coterie.trace import KINDS, Event

SEEDS = int(os.environ.get("COTERIE_SIM_SEEDS", "240"))
"""How many seeds the sample has."""
PARTS = 6


@pytest.mark.parametrize("part", range(PARTS))
def test_a_sample_of_seeds_violates_nothing(part: int) -> None:
    share = range(SEEDS * part // PARTS, SEEDS * (part + 1) // PARTS)
    total = campaign("broker", share, jobs=1)
    assert total.runs == len(share)
    assert [f"seed {seed}: {name}: {text}" for seed, name, text in total.failures] == []


def test_the_same_seed_gives_the_same_bytes_in_processes_with_other_hash_seeds(tmp_path: Path) -> None:
    traces = []
    for hash_seed in ("0", "4242"):
        directory = tmp_path / hash_seed
        command = ["sim", "run", "--profile", "broker", "--seeds", "5", "--jobs", "1"]
        subprocess.run(
            [sys.executable, "-m", "coterie", *command, "--trace", str(directory)],
            env=os.environ | {"PYTHONHASHSEED": hash_seed},
            stdout=subprocess.DEVNULL,
            check=True,
        )
        traces.append({path.name: path.read_bytes() for path in sorted(directory.iterdir())})
    assert len(traces[0]) == 5
    assert traces[0] == traces[1]


def test_a_replay_of_the_seed_or_of_its_plan_is_the_run_again(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    result = run_plan(broker_plan(4), str(tmp_path))
    trace = (tmp_path / "broker-4.jsonl").read_bytes()
    plan_file = tmp_path / "plan.json"
    plan_file.write_text(broker_plan(4).to_json())
    for number, which in enumerate((["--profile", "broker", "4"], ["--plan", str(plan_file)])):
        again = tmp_path / str(number)
        assert main(["sim", "replay", *which, "--trace", str(again), "--json"]) == 0
        assert json.loads(capsys.readouterr().out)["events"] == result.events == trace.count(b"\n")
        assert (again / "broker-4.jsonl").read_bytes() == trace


def test_the_trace_of_a_run_passes_as_a_file_and_has_known_kinds_only(tmp_path: Path) -> None:
    run_plan(broker_plan(8), str(tmp_path))
    reading = Reading()
    (run,) = runs([tmp_path / "broker-8.jsonl"], reading)
    assert (reading.corrupt, reading.ignored) == (0, 0)
    assert run.causal
    assert {event.kind for event in run.events} <= set(KINDS)
    assert check(run.events, properties(causal=True)) == []
    assert [Event.from_json(event.to_json()) for event in run.events] == run.events


def test_a_few_runs_reach_nearly_every_rule_and_every_fault() -> None:
    total = campaign("broker", range(40), jobs=1)
    assert len(total.unreached()) <= 3
    assert set(total.faults) == {*BROKER_FAULTS, "disk_error"}
    assert set(total.rules) >= set(RULES) - set(total.unreached())
    answer = total.to_json()
    assert (answer["violations"], answer["failing_seeds"]) == (0, [])


def test_what_is_confirmed_is_checked_by_the_clients_too() -> None:
    """A run in which nothing goes wrong delivers everything that was confirmed."""
    plan = broker_plan(2)
    calm = Plan(**{name: getattr(plan, name) for name in Plan.__slots__})
    calm.faults, calm.actions = [], []
    result, events = trace_plan(calm)
    assert result.violations == []
    confirmed = sum(event.count or 0 for event in events if event.kind == "confirm")
    assert confirmed > 50
