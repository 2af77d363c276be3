"""The profile `cluster`: a sample of seeds without a violation, exact replay, and what its runs reach."""

from __future__ import annotations

import os

import pytest

from coterie.audit import check, properties, split
from coterie.sim.profile_cluster import CLUSTER_FAULTS, RULES
from coterie.sim.profiles import cluster_plan
from coterie.sim.runner import campaign, trace_plan
from coterie.trace import KINDS

SEEDS = int(os.environ.get("COTERIE_SIM_SEEDS", "240")) // 8
"""How many seeds the sample has: a run of a cluster costs as much as several of the others."""
PARTS = 3


@pytest.mark.parametrize("part", range(PARTS))
def test_a_sample_of_seeds_violates_nothing(part: int) -> None:
    share = range(SEEDS * part // PARTS, SEEDS * (part + 1) // PARTS)
    total = campaign("cluster", share, jobs=1)
    assert total.runs == len(share)
    assert [f"seed {seed}: {name}: {text}" for seed, name, text in total.failures] == []


def test_the_same_seed_gives_the_same_run() -> None:
    first, events = trace_plan(cluster_plan(3))
    second, again = trace_plan(cluster_plan(3))
    assert first.violations == second.violations == []
    assert [event.to_json() for event in events] == [event.to_json() for event in again]
    assert {event.kind for event in events} <= set(KINDS)


def test_the_properties_of_a_cluster_hold_of_the_parts_of_a_run_too() -> None:
    _, events = trace_plan(cluster_plan(5))
    for fold in properties(causal=True):
        if fold.name.startswith("B"):
            assert [v for part in split(events, fold) for v in check(part, [fold])] == []


def test_a_few_runs_reach_nearly_every_rule_and_most_faults() -> None:
    total = campaign("cluster", range(5), jobs=1)
    assert len(total.unreached()) <= 1
    assert set(total.rules) >= set(RULES) - set(total.unreached())
    assert len(set(CLUSTER_FAULTS) - set(total.faults)) <= 5
