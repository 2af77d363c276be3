"""The programs that the documentation shows run as they stand, and print what it says."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from coterie.testing import EmbeddedBroker, broker

DOCS = Path(__file__).parents[2] / "docs"
PROGRAM = re.compile(r"```python\n(.*?)```\n+```text\n(.*?)```", re.DOTALL)
PAGES = ("start.md", "tutorial-broker.md", "tutorial-group.md")


def programs(page: str) -> list[tuple[str, str]]:
    return PROGRAM.findall((DOCS / page).read_text())


@pytest.fixture(scope="module")
def running() -> Iterator[EmbeddedBroker]:
    with broker() as running:
        yield running


@pytest.mark.parametrize(
    ("page", "number"), [(page, number) for page in PAGES for number in range(len(programs(page)))]
)
def test_a_program_of_the_documentation_prints_what_it_says(running: EmbeddedBroker, page: str, number: int) -> None:
    program, printed = programs(page)[number]
    program = program.replace("127.0.0.1:5672", f"127.0.0.1:{running.port}")
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False)
    assert done.stderr == ""
    assert sorted(done.stdout.splitlines()) == sorted(printed.splitlines())


def test_every_page_of_the_tutorials_has_programs_that_are_run() -> None:
    assert [len(programs(page)) for page in PAGES] == [1, 2, 2]
