"""CHANGELOG.md keeps its form: each release has each kind of change once, in the order of Keep a Changelog."""

from __future__ import annotations

import re
from pathlib import Path

PAGE = (Path(__file__).parents[2] / "CHANGELOG.md").read_text()
KINDS = ["Added", "Changed", "Deprecated", "Removed", "Fixed", "Security"]


def test_each_kind_of_change_stands_once_in_a_release_and_in_order() -> None:
    releases = re.split(r"^## ", PAGE, flags=re.MULTILINE)[1:]
    assert releases
    for release in releases:
        found = re.findall(r"^### (.*)$", release, re.MULTILINE)
        assert found == [kind for kind in KINDS if kind in found]


def test_every_line_is_an_entry_or_goes_on_with_one() -> None:
    _, *sections = re.split(r"^### .*$", PAGE, flags=re.MULTILINE)
    for section in sections:
        lines = [line for line in section.splitlines() if line and not line.startswith(("## ", "["))]
        assert lines[0].startswith("- ")
        assert [line for line in lines if not line.startswith(("- ", "  "))] == []
