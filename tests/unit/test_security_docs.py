"""docs/security.md: every test that it names exists, and every check of `coterie doctor` is explained as it is. And
whoever does what README and help say is safe without having read it."""

from __future__ import annotations

import ast
import re
import shlex
from datetime import UTC, datetime
from pathlib import Path

import pytest
from certificates import Authority

from coterie.cli import make_parser
from coterie.cli.node import NODE_EPILOG, node_config
from coterie.config import flags_of, load_config
from coterie.node.security_checks import CHECKS, UNSAFE, findings
from coterie.node.security_facts import facts_of
from coterie.secret_file import make_secret_file

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "security.md").read_text()
NAMED = re.compile(r"`(tests/[\w/]+\.py)::(\w+)`")


def functions(file: Path) -> set[str]:
    tree = ast.parse(file.read_text()) if file.exists() else ast.Module([], [])
    return {each.name for each in tree.body if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef)}


def rows(heading: str) -> list[list[str]]:
    """The cells of the table under a heading, without its head."""
    (section,) = re.findall(rf"^## {heading}$(.*?)(?=^## |\Z)", PAGE, re.MULTILINE | re.DOTALL)
    lines = [line for line in section.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[2:]]


def test_every_test_that_the_threat_model_names_exists() -> None:
    named = NAMED.findall(PAGE)
    assert len(named) > 30
    assert [f"{file}::{name}" for file, name in named if name not in functions(ROOT / file)] == []


def test_every_line_of_the_threat_model_has_a_test() -> None:
    lines = rows("Threat model")
    assert len(lines) > 20
    assert [line for line in lines if len(line) != 4 or not NAMED.search(line[3])] == []


def test_every_check_is_explained_with_its_severity() -> None:
    assert [(name.strip("`"), severity) for name, severity, _ in rows("coterie doctor")] == [
        (check.name, check.severity) for check in CHECKS
    ]


@pytest.mark.parametrize("text", [(ROOT / "README.md").read_text(), NODE_EPILOG], ids=["README", "help"])
def test_the_nodes_that_are_shown_are_safe(text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    made = Authority(tmp_path).certificate("broker", "10.0.0.1")
    make_secret_file(Path("secret"))
    Path(made.key).chmod(0o600)
    here = {"cert.pem": made.cert, "key.pem": made.key, "coterie.secret": "secret", "/etc/coterie/secret": "secret"}
    lines = [line.strip() for line in re.sub(r"\\\n\s*", "", text).splitlines()]
    commands = [re.split(r" {3,}|#", line)[0] for line in lines if line.startswith("coterie node ")]
    shown = [command for command in commands if "--config" not in command]
    assert any("--peers" in command for command in shown)
    assert any("--amqps" in command for command in shown)
    for command in shown:
        words = [here.get(word, word) for word in shlex.split(command)[1:]]
        config = node_config(load_config(None, {}, flags_of(make_parser("node").parse_args(words))))
        config.check()
        unsafe = [each for each in findings(facts_of(config, datetime.now(UTC))) if each.severity == UNSAFE]
        assert unsafe == [], command


def test_no_page_and_no_help_shows_a_password_on_a_command_line() -> None:
    files = [ROOT / "README.md", *(ROOT / "docs").rglob("*.md"), *(ROOT / "src" / "coterie" / "cli").glob("*.py")]
    shown = re.compile(r"--url[ =]\S*?[^\s/]:[^\s/@]+@")
    assert shown.search("coterie doctor --url http://ops:...@127.0.0.1:15672")
    assert [file.name for file in files if shown.search(file.read_text())] == []
