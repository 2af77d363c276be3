"""Each mutation is caught by the property that should catch it; a failing run can be shrunk and looked at.

Each is first tried with the seed at which it is known to be caught, and then, should that have changed, with the first
200 seeds, within which it must be. Where several rare things must come together, it is tried with a plan that was kept.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from coterie.sim.mutants import MUTATIONS, Mutation
from coterie.sim.plan import Plan
from coterie.sim.profiles import channel_plan
from coterie.sim.runner import Campaign, campaign


def coterie(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-m", "coterie", *arguments], capture_output=True, text=True, check=False)


FLAGGED = "what-was-given-by-brokers-that-lost-it-is-flagged-by-the-one-that-did-not-know"
PLANS = {"cluster-believes-one-proper-stop": FLAGGED}


@pytest.mark.parametrize(
    "mutation", [each for each in MUTATIONS if each.name in PLANS], ids=lambda mutation: mutation.name
)
def test_what_needs_rare_things_together_is_caught_in_a_plan_that_was_kept(mutation: Mutation) -> None:
    plan = Path(__file__).parent / "plans" / f"{PLANS[mutation.name]}.json"
    done = coterie("sim", "replay", "--plan", str(plan), "--mutate", mutation.name, "--json")
    assert done.returncode == 1
    assert mutation.property in {failure["property"] for failure in json.loads(done.stdout)["failures"]}


@pytest.mark.parametrize(
    "mutation", [each for each in MUTATIONS if each.name not in PLANS], ids=lambda mutation: mutation.name
)
def test_each_mutation_is_caught_by_its_property(mutation: Mutation) -> None:
    def caught(total: Campaign) -> bool:
        return bool(total.caught_by(mutation.property))

    first = campaign(mutation.profile, [mutation.seed], 1, mutation.name, stop=caught)
    if not caught(first):
        first = campaign(mutation.profile, range(200), os.cpu_count(), mutation.name, stop=caught)
    assert caught(first), f"{mutation.name}: {first.failing_seeds} fail, but none by {mutation.property}"


def test_a_failing_run_shrinks_to_a_smaller_plan_that_still_fails(tmp_path: Path) -> None:
    mutation = MUTATIONS[0]
    seed, out = str(mutation.seed), str(tmp_path / "plan.json")
    done = coterie("sim", "shrink", seed, "--mutate", mutation.name, "--out", out, "--tries", "60", "--json")
    assert done.returncode == 0, done.stderr
    answer = json.loads(done.stdout)
    assert answer["property"] == mutation.property
    plan = Plan.from_json((tmp_path / "plan.json").read_text())
    assert plan.size < channel_plan(mutation.seed).size / 2
    again = coterie("sim", "replay", "--plan", out, "--mutate", mutation.name, "--json")
    assert again.returncode == 1
    assert mutation.property in {failure["property"] for failure in json.loads(again.stdout)["failures"]}


def test_a_run_with_a_mutation_says_so_in_its_exit_code() -> None:
    mutation = MUTATIONS[0]
    done = coterie(
        "sim", "run", "--seeds", "1", "--first-seed", str(mutation.seed), "--mutate", mutation.name, "--json"
    )
    assert done.returncode == 1
    assert json.loads(done.stdout)["failing_seeds"] == [mutation.seed]
