"""The pages of docs/protocols: every test, rule and place that their tables name exists, and no rule is left out."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

import pytest

from coterie.group.presets import REGISTRY
from coterie.group.protocol import Protocol
from coterie.group.protocols.fixed import Fixed
from coterie.group.protocols.flow import Flow
from coterie.group.protocols.flush import Flush
from coterie.group.protocols.flush2 import Flush2
from coterie.group.protocols.fragment import Fragment
from coterie.group.protocols.gms.gms import Gms
from coterie.group.protocols.merge import Merge
from coterie.group.protocols.nakack import Nakack
from coterie.group.protocols.stable import Stable
from coterie.group.protocols.state import State
from coterie.group.protocols.total import Total
from coterie.group.protocols.unicast3 import Unicast3

ROOT = Path(__file__).parents[2]
GROUP = ROOT / "src" / "coterie" / "group"
HEADER = ["what", "rule", "test", "where"]


@dataclass(frozen=True)
class Page:
    """A page, the protocol whose rules it must cover, and where its tests and its code are."""

    name: str
    protocol: type[Protocol] | None
    sources: tuple[str, ...]
    tests: tuple[str, ...] = ()
    """The files of its tests, if there are several, or one of another name."""

    @property
    def text(self) -> str:
        return (ROOT / "docs" / "protocols" / f"{self.name}.md").read_text(encoding="utf-8")

    def rows(self) -> list[list[str]]:
        """The rows of all tables with the four columns."""
        rows: list[list[str]] = []
        inside = False
        for line in self.text.splitlines():
            cells = [cell.strip() for cell in line.strip().strip("|").split("|")] if line.startswith("|") else []
            if cells == HEADER:
                inside = True
            elif not cells:
                inside = False
            elif inside and set(cells[0]) != {"-"}:
                rows.append(cells)
        return rows

    def bounds(self) -> str:
        """The table of what bounds what the protocol keeps, if there is one."""
        return self.text.partition("## What bounds what it keeps")[2].partition("\n## ")[0]

    def rules(self) -> list[str]:
        """Those of the protocol, also the ones that it has in some stacks only."""
        if self.protocol is None:
            return []
        tables = (value for name, value in vars(self.protocol).items() if name == "rules" or name.endswith("_rules"))
        return [rule for table in tables for rule in table]

    def names(self, column: int) -> list[str]:
        return [name for row in self.rows() for name in re.findall(r"`([^`]+)`", row[column])]


FLUSHING = tuple(f"protocols/flush_{part}.py" for part in ("base", "common", "cut", "gate", "hold", "lead", "messages"))
PAGES = [
    Page(
        "nakack",
        Nakack,
        ("protocols/nakack.py", "protocols/nakack_streams.py", "window.py"),
        ("test_nakack", "test_nakack_synchronous"),
    ),
    Page(
        "unicast3",
        Unicast3,
        tuple(f"protocols/unicast3{part}.py" for part in ("", "_acks", "_digests", "_entries")),
        ("test_unicast3", "test_unicast3_limits", "test_flush_hooks"),
    ),
    Page("stable", Stable, ("protocols/stable.py",)),
    Page("fixed", Fixed, ("protocols/fixed.py",)),
    Page(
        "flush2", Flush2, ("protocols/flush2.py", *FLUSHING), ("test_flush2", "test_flush2_settled", "test_flush_lost")
    ),
    Page("flush", Flush, ("protocols/flush.py", *FLUSHING), ("test_flush", "test_flush_lost")),
    Page("flow", Flow, ("protocols/flow.py",), ("test_flow", "test_flush_hooks")),
    Page("fragment", Fragment, ("protocols/fragment.py",)),
    Page("merge", Merge, ("protocols/merge.py",)),
    Page(
        "gms",
        Gms,
        tuple(
            f"protocols/gms/{name}.py"
            for name in ("gms", "coordinator", "joiner", "messages", "rounds", "view_handler")
        ),
        ("test_gms", "test_gms_views", "test_gms_takeover", "test_gms_merge", "test_view_handler"),
    ),
    Page("total", Total, ("protocols/total.py", "protocols/total_held.py")),
    Page("faults", None, ("protocols/faults.py", "protocols/cut.py")),
    Page(
        "state_transfer",
        State,
        (
            "protocols/state.py",
            "protocols/state_fetch.py",
            "protocols/state_stream.py",
            "inbox.py",
        ),
        ("test_state", "test_state_group"),
    ),
    Page(
        "channel",
        None,
        ("channel.py", "outbox.py", "inbox.py", "flushing.py", "blocking.py"),
        ("test_channel", "test_channel_vs", "test_inbox"),
    ),
]
each_page = pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)


@each_page
def test_the_page_has_a_table_and_every_row_of_it_has_four_cells_and_names_a_test(page: Page) -> None:
    assert page.rows()
    assert [row for row in page.rows() if len(row) != 4 or not row[0] or "`test_" not in row[2]] == []


@each_page
def test_every_test_that_is_named_exists(page: Page) -> None:
    files = [ROOT / "tests" / "unit" / f"{name}.py" for name in page.tests or (f"test_{page.name}",)]
    text = "".join(file.read_text(encoding="utf-8") for file in files)
    tests = re.findall(r"^def (test_\w+)", text, re.MULTILINE)
    assert [name for name in page.names(2) if name not in tests] == []
    assert [name for name in re.findall(r"`(test_[a-z0-9_]+)`", page.bounds()) if name not in tests] == []


@each_page
def test_every_rule_that_is_named_is_a_rule_of_the_protocol_and_no_rule_is_left_out(page: Page) -> None:
    assert sorted(set(page.names(1))) == sorted(page.rules())


@each_page
def test_every_place_in_the_code_that_is_named_exists(page: Page) -> None:
    code = "".join((GROUP / source).read_text() for source in page.sources)
    files = [source.rpartition("/")[2] for source in page.sources]
    places = set(re.findall(r"^\s*(?:async )?(?:def|class) (\w+)", code, re.MULTILINE)) | set(files)
    assert [name for name in page.names(3) if name not in places] == []


@each_page
def test_the_page_tells_promises_settings_and_shows_a_diagram(page: Page) -> None:
    assert re.search(r"^## What (it|they) promises?", page.text, re.MULTILINE)
    assert "settings.md#" in page.text
    assert "```" in page.text


def test_every_protocol_has_a_page() -> None:
    pages = "\n".join(path.read_text(encoding="utf-8") for path in (ROOT / "docs" / "protocols").glob("*.md"))
    assert [name for name in REGISTRY if not re.search(rf"^#.*\b{name}\b", pages, re.MULTILINE)] == []
