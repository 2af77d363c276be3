"""docs/conformance.md lists what tests/conformance/differences.py knows, and both speak of tests that exist."""

from __future__ import annotations

import re
import runpy
from pathlib import Path

ROOT = Path(__file__).parents[2]
CONFORMANCE = ROOT / "tests" / "conformance"


def known() -> dict[str, str]:
    found = runpy.run_path(str(CONFORMANCE / "differences.py"))["RABBITMQ"]
    assert isinstance(found, dict)
    return found


def test_the_page_lists_every_known_difference_with_its_reason() -> None:
    page = (ROOT / "docs" / "conformance.md").read_text()
    assert dict(re.findall(r"^\| `(test_\w+)` \| (.+) \|$", page, re.MULTILINE)) == known()


def test_every_known_difference_is_of_a_test_that_exists() -> None:
    tests = "".join(path.read_text() for path in CONFORMANCE.glob("test_*.py"))
    assert [name for name in known() if f"def {name}(" not in tests] == []
