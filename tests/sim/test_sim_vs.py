"""The profiles `vs` and `total`: samples of seeds without a violation, and exact replay."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from coterie.sim import scenes
from coterie.sim.profile_vs import LARGE
from coterie.sim.profiles import profile
from coterie.sim.runner import campaign

SEEDS = int(os.environ.get("COTERIE_SIM_SEEDS", "200"))
"""How many seeds each sample has."""
PARTS = 8


@pytest.mark.parametrize("part", range(PARTS))
@pytest.mark.parametrize("name", ["vs", "total"])
def test_a_sample_of_seeds_violates_nothing(name: str, part: int) -> None:
    share = range(SEEDS * part // PARTS, SEEDS * (part + 1) // PARTS)
    total = campaign(name, share, jobs=1)
    assert total.runs == len(share)
    assert [f"seed {seed}: {found}: {text}" for seed, found, text in total.failures] == []


@pytest.mark.parametrize("name", ["vs", "total"])
def test_the_same_seed_gives_the_same_bytes_in_processes_with_other_hash_seeds(name: str, tmp_path: Path) -> None:
    traces = []
    for hash_seed in ("0", "4242"):
        directory = tmp_path / hash_seed
        subprocess.run(
            [
                sys.executable, "-m", "coterie", "sim", "run", "--profile", name, "--seeds", "4", "--jobs", "1",
                "--trace", str(directory),
            ],
            env=os.environ | {"PYTHONHASHSEED": hash_seed},
            stdout=subprocess.DEVNULL,
            check=False,
        )  # fmt: skip
        traces.append({path.name: path.read_bytes() for path in sorted(directory.iterdir())})
    assert len(traces[0]) == 4
    assert traces[0] == traces[1]


@pytest.mark.parametrize("name", ["vs", "total"])
def test_plans_use_both_flushes_sizes_from_three_to_nine_and_some_with_forty_members(name: str) -> None:
    plans = [profile(name).make(seed) for seed in range(3000)]
    sizes = Counter(len(plan.members) for plan in plans)
    assert set(sizes) == {*range(3, 10), LARGE}
    assert 3 <= sizes[LARGE] <= 30
    flushes = Counter(layer for plan in plans for layer, _ in plan.stack if layer.startswith("FLUSH"))
    assert min(flushes["FLUSH"], flushes["FLUSH2"]) > 500
    assert {action.kind for plan in plans for action in plan.actions} == {"flush", "state"}
    assert any(action.targets for plan in plans for action in plan.actions)


@pytest.mark.parametrize("name", ["vs", "total"])
def test_scenes_are_added_to_some_plans_and_change_nothing_else_of_them(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with_scenes = [profile(name).make(seed) for seed in range(300)]
    monkeypatch.setattr(scenes, "SHARE", 0.0)
    without = [profile(name).make(seed) for seed in range(300)]
    assert not any(plan.greet for plan in without)
    assert 80 < sum(plan.greet for plan in with_scenes) < 160
    for plan, plain in zip(with_scenes, without, strict=True):
        assert all(fault in plan.faults for fault in plain.faults)
        assert all(action in plan.actions for action in plain.actions)
        assert plan.greet or plan == plain
    assert max(len(plan.actions) for plan in with_scenes) >= 9  # everybody at once
