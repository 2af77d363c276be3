"""The command line: help that teaches, errors of one line, exit codes that scripts may rely on."""

from __future__ import annotations

import argparse
import io
import json
import subprocess
import sys
import types
from pathlib import Path

import pytest

import coterie
from coterie.cli import COMMANDS, main, make_parser
from coterie.cli.output import Progress, duration, table
from coterie.cli.settings import reference
from coterie.errors import CoterieError, DiskError, UserError
from coterie.group.presets import PRESETS, REGISTRY, preset
from coterie.group.stack import build, parse_toml
from coterie.settings import describe

ROOT = Path(__file__).parents[2]


def test_help_lists_every_command_and_every_exit_code(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main(["--help"])
    assert caught.value.code == 0
    text = capsys.readouterr().out
    for name in COMMANDS:
        assert f"\n  {name} " in text
    for code in ("0  ", "1  ", "2  ", "130", "141"):
        assert f"\n  {code}" in text


def test_help_imports_no_command_so_that_it_is_there_at_once() -> None:
    code = (
        "import sys; from coterie.cli import main\n"
        "try: main(['--help'])\n"
        "except SystemExit: pass\n"
        "print(sorted(name for name in sys.modules if name.startswith('coterie')), file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stderr.strip() == "['coterie', 'coterie.cli', 'coterie.errors']"


@pytest.mark.parametrize("command", list(COMMANDS))
def test_every_command_has_help_of_its_own(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main([command, "--help"])
    assert caught.value.code == 0
    assert f"usage: coterie {command}" in capsys.readouterr().out


def test_version_is_the_version_of_the_package(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main(["--version"])
    assert caught.value.code == 0
    assert capsys.readouterr().out == f"coterie {coterie.__version__}\n"


def test_without_a_command_there_is_help_and_the_exit_code_of_wrong_usage(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 2
    assert "examples:" in capsys.readouterr().out


def test_an_unknown_command_is_wrong_usage(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main(["stcks"])
    assert caught.value.code == 2
    assert "invalid choice: 'stcks'" in capsys.readouterr().err


def command_that(outcome: BaseException | int) -> types.ModuleType:
    """A sub-command's module, for what becomes of its outcome."""

    def run(_: argparse.Namespace) -> int:
        if isinstance(outcome, BaseException):
            raise outcome
        return outcome

    def add(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
        subparsers.add_parser("sample").set_defaults(run=run)

    module = types.ModuleType("coterie_sample_command")
    module.__dict__["add"] = add
    return module


@pytest.mark.parametrize(
    ("outcome", "code", "error"),
    [
        (0, 0, ""),
        (1, 1, ""),
        (UserError("a.toml: no such file: give another"), 2, "coterie: a.toml: no such file: give another\n"),
        (DiskError("disk full"), 1, "coterie: disk full\n"),
        (CoterieError("odd"), 1, "coterie: odd\n"),
        (KeyboardInterrupt(), 130, ""),
    ],
)
def test_what_a_command_ends_with_becomes_one_line_at_most_and_an_exit_code(
    outcome: BaseException | int,
    code: int,
    error: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setitem(sys.modules, "coterie_sample_command", command_that(outcome))
    monkeypatch.setitem(COMMANDS, "sample", ("coterie_sample_command", "a command"))
    assert main(["sample"]) == code
    assert capsys.readouterr().err == error


def test_a_reader_that_stops_reading_is_no_reason_for_a_traceback() -> None:
    command = [sys.executable, "-m", "coterie", "settings", "--markdown"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert process.stdout is not None
    assert process.stderr is not None
    process.stdout.close()
    assert process.stderr.read() == b""
    process.stderr.close()
    assert process.wait() == 141


def test_python_dash_m_is_the_same_command() -> None:
    done = subprocess.run([sys.executable, "-m", "coterie", "--version"], capture_output=True, text=True, check=True)
    assert done.stdout == f"coterie {coterie.__version__}\n"


# Stacks, protocols, settings.


def names_of(settings: type) -> list[str]:
    return [item.name for item in describe(settings)]


def test_stacks_are_listed_with_their_protocols(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["stacks"]) == 0
    text = capsys.readouterr().out
    for name, protocols in PRESETS.items():
        assert name in text
        assert " · ".join(protocols) in text


@pytest.mark.parametrize("stack", sorted(PRESETS))
def test_a_stack_is_shown_with_every_setting_of_its_protocols(stack: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["stacks", stack]) == 0
    text = capsys.readouterr().out
    for protocol in build(preset(stack), REGISTRY):
        assert f"{protocol.name}: " in text
        for name in names_of(protocol.Settings):
            assert f"\n{name} " in text


@pytest.mark.parametrize("stack", sorted(PRESETS))
def test_a_stack_printed_as_toml_is_the_same_stack_when_read_back(
    stack: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["stacks", stack, "--toml"]) == 0
    again = build(parse_toml(capsys.readouterr().out), REGISTRY)
    before = build(preset(stack), REGISTRY)
    assert [(p.name, p.settings) for p in again] == [(p.name, p.settings) for p in before]


def test_json_is_one_object(capsys: pytest.CaptureFixture[str]) -> None:
    for arguments, key in (
        (["stacks"], "stacks"),
        (["stacks", "reliable"], "stack"),
        (["protocols"], "protocols"),
        (["protocols", "NAKACK"], "rules"),
        (["settings"], "settings"),
    ):
        assert main([*arguments, "--json"]) == 0
        captured = capsys.readouterr()
        assert key in json.loads(captured.out)
        assert captured.err == ""


@pytest.mark.parametrize("name", sorted(REGISTRY))
def test_a_protocol_is_shown_with_its_settings_and_rules(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["protocols", name.lower()]) == 0
    text = capsys.readouterr().out
    kind = REGISTRY[name]
    for word in (*kind.rules, *kind.rules.values(), *names_of(kind.Settings)):
        assert word in text


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        (["stacks", "relaible"], "coterie: there is no stack 'relaible' (did you mean 'reliable'?)\n"),
        (["stacks", "--toml"], "coterie: stacks: --toml needs the name of a stack: coterie stacks reliable --toml\n"),
        (["protocols", "NAKAK"], "coterie: protocols: there is no protocol 'NAKAK' (did you mean 'NAKACK'?)\n"),
    ],
)
def test_a_wrong_name_is_answered_with_the_right_one(
    arguments: list[str], error: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments) == 2
    assert capsys.readouterr().err == error


def test_the_settings_reference_in_docs_is_what_the_code_says() -> None:
    page = (ROOT / "docs" / "settings.md").read_text()
    assert page == "\n".join(reference()) + "\n", "docs/settings.md is out of date: run `make docs`"


# What commands write with.


def test_a_table_puts_numbers_right_and_words_left() -> None:
    assert table(["name", "n"], [("a", 5), ("long", 10)]) == "name   n\n----  --\na      5\nlong  10"


def test_progress_shows_rate_and_what_is_left() -> None:
    now = 0.0
    stream = io.StringIO()
    progress = Progress("runs", 200, stream, clock=lambda: now)
    progress.update(1)
    assert stream.getvalue() == ""
    now = 20.0
    progress.update(100, "2 violations")
    now = 21.0
    progress.update(150)
    assert stream.getvalue() == "100 of 200 runs, 5/s, 20 s left, 2 violations\n"


def test_durations_are_read_at_a_glance() -> None:
    assert [duration(s) for s in (0.4, 59, 61, 3599, 7500)] == ["0 s", "59 s", "1 min 1 s", "59 min 59 s", "2 h 5 min"]


def test_a_parser_for_one_command_knows_only_that_module() -> None:
    with pytest.raises(SystemExit):
        make_parser("stacks").parse_args(["settings"])


@pytest.mark.parametrize(
    ("module", "extra", "command"),
    [
        ("pika", "demo", ["demo"]),
        ("pyspark", "spark", ["audit", ".", "--out", "audit"]),
        ("pyarrow", "spark", ["audit", "--stream", ".", "--out", "audit"]),
        ("pandas", "spark", ["campaign", "--profile", "broker", "--seeds", "1", "--out", "campaign"]),
        ("pyspark", "spark", ["bench", "audit"]),
        ("pyspark", "spark", ["bench", "spark"]),
        ("pika", "demo", ["bench", "spark"]),
        ("aiohttp", "console", ["bench", "spark"]),
        ("grpc", "connect", ["audit", ".", "--out", "audit", "--master", "sc://127.0.0.1:1"]),
    ],
)
def test_what_is_not_installed_is_told_in_one_line_with_the_extra_that_brings_it(
    module: str, extra: str, command: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    (tmp_path / "trace.jsonl").write_text("{}\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(sys.modules, module, None)
    assert main(command) == 2
    out, errors = capsys.readouterr()
    assert (out, errors.count("\n")) == ("", 1)
    assert module in errors
    assert f"pip install 'coterie[{extra}]'" in errors
