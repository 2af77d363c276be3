"""`make quick`: which tests it chooses for what has changed."""

from __future__ import annotations

import runpy
from pathlib import Path
from typing import Any

import pytest

from coterie.sim.profiles import PROFILES

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def quick() -> dict[str, Any]:
    return runpy.run_path(str(ROOT / "scripts" / "quick.py"))


def chosen(quick: dict[str, Any], *files: str) -> list[str]:
    return [path.name for path in quick["tests_of"]([Path(file) for file in files])]


def test_the_tests_of_a_module_are_those_that_import_it(quick: dict[str, Any]) -> None:
    found = chosen(quick, "src/coterie/broker/queue.py")
    assert "test_broker_queue.py" in found
    assert "test_amqp_tables.py" not in found


def test_a_test_that_has_changed_comes_first(quick: dict[str, Any]) -> None:
    assert chosen(quick, "tests/unit/test_wire.py", "src/coterie/broker/queue.py")[0] == "test_wire.py"


def test_a_rig_that_has_changed_brings_the_tests_that_use_it(quick: dict[str, Any]) -> None:
    assert "test_broker_queue.py" in chosen(quick, "tests/unit/broker_rig.py")


def test_every_profile_of_the_simulator_has_a_sample(quick: dict[str, Any]) -> None:
    assert set(quick["PROFILES"]) == set(quick["SEEDS"]) == set(PROFILES)
