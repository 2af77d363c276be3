"""Plans of runs that once went wrong, shrunk: each stays fixed.

`coterie sim replay --plan FILE --html run.html` shows one.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from coterie.sim.plan import Plan
from coterie.sim.runner import run_plan

PLANS = sorted((Path(__file__).parent / "plans").glob("*.json"))


@pytest.mark.parametrize("path", PLANS, ids=lambda path: path.stem)
def test_a_plan_that_once_went_wrong_violates_nothing(path: Path) -> None:
    assert run_plan(Plan.from_json(path.read_text(encoding="utf-8"), path.name)).violations == []
