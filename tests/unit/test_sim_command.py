"""`coterie sim`: what it says when asked wrongly, and its lists."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from coterie.cli import main
from coterie.cli.sim import RUN_EPILOG
from coterie.sim.mutants import MUTATIONS


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["run", "--profile", "chanel"], "did you mean 'channel'"),
        (["run", "--seeds", "0"], "--seeds must be at least 1"),
        (["run", "--jobs", "0"], "--jobs must be at least 1"),
        (["run", "--mutate", "nope"], "there is no mutation 'nope'"),
        (["replay"], "say which run"),
        (["replay", "3", "--plan", "x"], "say which run"),
        (["replay", "--plan", "does-not-exist.json"], "does-not-exist.json"),
        (["shrink", "1", "--out", "x", "--tries", "0"], "--tries must be at least 1"),
        (["mutations", "nope"], "there is no mutation 'nope'"),
    ],
)
def test_wrong_usage_is_told_in_a_sentence_and_by_exit_code_2(
    arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["sim", *arguments]) == 2
    assert said in capsys.readouterr().err


def test_the_mutations_that_the_help_names_are_there() -> None:
    named = re.findall(r"--mutate (\S+)", RUN_EPILOG)
    assert {*named} <= {mutation.name for mutation in MUTATIONS}
    assert named


def test_a_file_that_is_no_plan_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "plan.json").write_text('{"format": 1}')
    assert main(["sim", "replay", "--plan", str(tmp_path / "plan.json")]) == 2
    assert "not a plan" in capsys.readouterr().err


def test_mutations_are_listed_for_people_and_for_machines(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["sim", "mutations"]) == 0
    assert MUTATIONS[0].name in capsys.readouterr().out
    assert main(["sim", "mutations", "--json"]) == 0
    listed = json.loads(capsys.readouterr().out)["mutations"]
    assert [entry["name"] for entry in listed] == [mutation.name for mutation in MUTATIONS]
    assert set(listed[0]) == {"name", "profile", "property", "what"}


def test_without_a_command_the_help_is_shown(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["sim"]) == 2
    assert "replay" in capsys.readouterr().out
