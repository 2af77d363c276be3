"""The profile `channel`: a sample of seeds without a violation, exact replay, and what campaigns add up to."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from coterie.cli import main
from coterie.sim.profiles import channel_plan
from coterie.sim.runner import campaign, run_plan, trace_plan
from coterie.trace import KINDS, Event

SEEDS = int(os.environ.get("COTERIE_SIM_SEEDS", "240"))
"""How many seeds the sample has."""
PARTS = 8


@pytest.mark.parametrize("part", range(PARTS))
def test_a_sample_of_seeds_violates_nothing(part: int) -> None:
    share = range(SEEDS * part // PARTS, SEEDS * (part + 1) // PARTS)
    total = campaign("channel", share, jobs=1)
    assert total.runs == len(share)
    assert [f"seed {seed}: {name}: {text}" for seed, name, text in total.failures] == []


def test_the_same_seed_gives_the_same_bytes_in_processes_with_other_hash_seeds(tmp_path: Path) -> None:
    traces = []
    for hash_seed in ("0", "1", "4242"):
        directory = tmp_path / hash_seed
        command = ["sim", "run", "--profile", "channel", "--seeds", "6", "--jobs", "1", "--trace"]
        subprocess.run(
            [sys.executable, "-m", "coterie", *command, str(directory)],
            env=os.environ | {"PYTHONHASHSEED": hash_seed},
            stdout=subprocess.DEVNULL,
            check=False,
        )
        traces.append({path.name: path.read_bytes() for path in sorted(directory.iterdir())})
    assert len(traces[0]) == 6
    assert all(len(trace) > 10_000 for trace in traces[0].values())
    assert traces[0] == traces[1] == traces[2]


def test_a_replay_is_the_run_again(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    result = run_plan(channel_plan(5), str(tmp_path))
    trace = (tmp_path / "channel-5.jsonl").read_bytes()
    again = tmp_path / "again"
    main(["sim", "replay", "--profile", "channel", "5", "--trace", str(again), "--json"])
    answer = json.loads(capsys.readouterr().out)
    assert (again / "channel-5.jsonl").read_bytes() == trace
    assert answer["events"] == result.events == trace.count(b"\n")
    plan_file = tmp_path / "plan.json"
    plan_file.write_text(channel_plan(5).to_json())
    main(["sim", "replay", "--plan", str(plan_file), "--trace", str(again)])
    assert (again / "channel-5.jsonl").read_bytes() == trace


def test_a_campaign_says_the_same_whatever_the_number_of_processes() -> None:
    one, two = (campaign("channel", range(20), jobs=jobs).to_json() for jobs in (1, 2))
    assert json.dumps(one) == json.dumps(two)
    assert one["runs"] == 20


def test_a_trace_holds_known_kinds_numbered_without_holes_and_says_how_it_ended() -> None:
    _, events = trace_plan(channel_plan(11))
    assert {event.kind for event in events} <= set(KINDS)
    following: dict[tuple[str, int], int] = {}
    for event in events:
        key = (event.node, event.inc)
        assert event.n == following.get(key, 0)
        following[key] = event.n + 1
        assert Event.from_json(event.to_json()) == event
    assert [event.t for event in events] == sorted(event.t for event in events)
    assert events[-1].kind == "end"
    assert [event.data.get("last") for event in events if event.kind == "heal"].count(True) == 1


def test_the_json_of_a_campaign_has_the_keys_that_tools_rely_on(capsys: pytest.CaptureFixture[str]) -> None:
    main(["sim", "run", "--profile", "channel", "--seeds", "4", "--jobs", "1", "--json"])
    answer = json.loads(capsys.readouterr().out)
    assert answer["runs"] == 4
    assert answer["events"] > 1000
    assert answer["sim_seconds"] > 4
    assert set(answer) >= {"faults", "rules", "violations", "failing_seeds", "unreached_rules"}
    assert isinstance(answer["violations"], int)
    assert answer["rules"]["nakack.ask_sender"] >= 0
    assert set(answer["unreached_rules"]) == {rule for rule, times in answer["rules"].items() if not times}


def test_every_run_sends_hundreds_of_bundles() -> None:
    for seed in range(3, 15):
        _, events = trace_plan(channel_plan(seed))
        assert sum(event.kind == "send" for event in events) >= 150


def test_an_interrupted_campaign_keeps_what_is_done_and_says_so_in_its_exit_code(tmp_path: Path) -> None:
    command = ["sim", "run", "--seeds", "100000", "--jobs", "2", "--trace", str(tmp_path), "--json"]
    with subprocess.Popen([sys.executable, "-m", "coterie", *command], stdout=subprocess.PIPE, text=True) as process:
        while len(list(tmp_path.iterdir())) < 40:  # so that some whole chunks are done
            assert process.poll() is None
            time.sleep(0.05)
        process.send_signal(signal.SIGINT)
        out, _ = process.communicate()
    assert process.returncode == 130
    assert 0 < json.loads(out)["runs"] < 1000
