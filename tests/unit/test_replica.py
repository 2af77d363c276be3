"""The replica, by scripts that a person can read: testdata/replica. `REWRITE=1` writes the answers of now into them."""

from __future__ import annotations

import os
import re
import runpy
from pathlib import Path

import pytest
from replica_script import FOLDER, Script, played

from coterie.cluster import standing, states
from coterie.cluster.ready import Apply, Persist, Send, Tell
from coterie.cluster.states import TRANSITIONS, Cause, Impossible, State, after

ROOT = Path(__file__).parents[2]
SCRIPTS = sorted(FOLDER.glob("*.txt"))


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.stem)
def test_a_script_is_answered_as_it_says(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    found = played(text, Script())
    if os.environ.get("REWRITE"):
        path.write_text(text := found, encoding="utf-8")
    assert found == text


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.stem)
def test_what_is_applied_and_persisted_comes_before_anything_is_said_about_it(path: Path) -> None:
    script = Script()
    played(path.read_text(encoding="utf-8"), script)
    for found in script.readies:
        kept = [isinstance(effect, (Apply, Persist)) for effect in found]
        assert kept == sorted(kept, reverse=True), found


def test_the_scripts_walk_every_row_of_the_table(monkeypatch: pytest.MonkeyPatch) -> None:
    walked: set[tuple[State, Cause]] = set()

    def noted(state: State, cause: Cause) -> State:
        walked.add((state, cause))
        return after(state, cause)

    monkeypatch.setattr(standing, "after", noted)
    for path in SCRIPTS:
        played(path.read_text(encoding="utf-8"), Script())
    rows = {(state, cause) for state, causes in TRANSITIONS.items() for cause in causes}
    assert sorted((state.name, cause.name) for state, cause in rows - walked) == []
    assert {Cause.LEFT, Cause.CLOSED} <= {cause for _, cause in walked}


def test_a_script_gives_the_same_answers_again() -> None:
    for path in SCRIPTS:
        text = path.read_text(encoding="utf-8")
        assert played(text, Script()) == played(text, Script())


def test_what_has_no_row_is_impossible() -> None:
    with pytest.raises(Impossible, match="WHOLE while JOINING"):
        after(State.JOINING, Cause.WHOLE)


@pytest.mark.parametrize("state", [State.DRAINED, State.CLOSED])
def test_whatever_comes_after_the_end_changes_nothing(state: State) -> None:
    for cause in {*Cause} - {Cause.LEFT, Cause.CLOSED}:
        assert after(state, cause) is state


def test_from_everywhere_a_broker_may_leave_and_be_closed() -> None:
    for state in State:
        assert after(state, Cause.LEFT) is State.DRAINED
        assert after(state, Cause.CLOSED) is State.CLOSED


def test_the_code_says_of_every_state_what_it_is() -> None:
    assert states.__doc__ is not None
    assert re.findall(r"^  ([A-Z_]+) +\S", states.__doc__, re.MULTILINE) == [state.name for state in State]


def test_the_tables_of_the_docs_are_the_codes() -> None:
    page = (ROOT / "docs" / "cluster.md").read_text(encoding="utf-8")
    renewed = runpy.run_path(str(ROOT / "scripts" / "cluster_states.py"))["renewed"]
    assert renewed(page) == page, "run `python scripts/cluster_states.py`"


def test_every_file_of_the_cluster_that_the_docs_name_is_there() -> None:
    pages = "".join(path.read_text(encoding="utf-8") for path in (ROOT / "docs").glob("*.md"))
    named = {*re.findall(r"\bcluster/[a-z_/]+\.py", pages)}
    assert sorted(name for name in named if not (ROOT / "src" / "coterie" / name).exists()) == []


def test_the_replica_knows_no_runtime_no_channel_no_broker_and_no_store() -> None:
    pure = (
        "chain", "commit", "divergence", "membership", "quorum", "ready", "replica", "shared_settings", "standing",
        "states", "versions",
    )  # fmt: skip
    folder = ROOT / "src" / "coterie" / "cluster"
    known = {
        name: {*re.findall(r"^ *from (coterie\S*) import (.+)$", (folder / f"{name}.py").read_text(), re.MULTILINE)}
        for name in pure
    }
    allowed = {f"coterie.cluster.{name}" for name in (*pure, "wire")}
    allowed |= {"coterie.cluster", "coterie.group.members", "coterie.logs", "coterie.broker.message_codec"}
    strange = [(name, found) for name, each in known.items() for found in each if found[0] not in allowed]
    assert [found for found in strange if found[1] != ("coterie.runtime.base", "Buffer")] == []


def test_majorities_are_counted_in_one_file() -> None:
    files = [path for path in (ROOT / "src" / "coterie" / "cluster").rglob("*.py") if path.name != "quorum.py"]
    assert [path.name for path in files if re.search(r"voters\S*\) *// *2", path.read_text())] == []


def test_every_effect_is_carried_out() -> None:
    kinds = [kind for base in (Apply, Persist, Send, Tell) for kind in base.__subclasses__()]
    carried_out = (ROOT / "src" / "coterie" / "cluster" / "member.py").read_text(encoding="utf-8")
    assert [kind.__name__ for kind in kinds if f"case ready.{kind.__name__}(" not in carried_out] == []
