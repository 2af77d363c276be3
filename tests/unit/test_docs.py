"""The documentation: its links lead somewhere, and what the README shows is what runs."""

from __future__ import annotations

import runpy
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_every_link_leads_to_a_file_and_a_heading_that_exist() -> None:
    check = runpy.run_path(str(ROOT / "scripts" / "check_links.py"))
    assert [line for page in check["pages"]() for line in check["broken"](page)] == []


def test_every_page_can_be_reached_from_the_index() -> None:
    index = (ROOT / "docs" / "index.md").read_text()
    pages = {path.name for path in (ROOT / "docs").glob("*.md")} - {"index.md"}
    assert [name for name in sorted(pages) if f"({name})" not in index] == []


def test_the_diagrams_of_the_protocols_are_what_the_protocols_do() -> None:
    folder = ROOT / "docs" / "img" / "protocols"
    drawn = runpy.run_path(str(ROOT / "scripts" / "diagrams.py"))["render"]()
    kept = {path.name: path.read_text(encoding="utf-8") for path in folder.glob("*.svg")}
    assert kept == drawn, "run `python scripts/diagrams.py`"


def test_every_decision_is_listed() -> None:
    folder = ROOT / "docs" / "decisions"
    listed = (folder / "README.md").read_text()
    assert [path.name for path in sorted(folder.glob("0*.md")) if f"({path.name})" not in listed] == []
