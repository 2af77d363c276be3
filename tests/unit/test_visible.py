"""Nothing that others chose moves an operator's terminal."""

from __future__ import annotations

import io
import json
import logging

import pytest

from coterie import logs
from coterie.cli.output import print_json, table
from coterie.cli.remote import cell
from coterie.cli.top_screen import Look, draw
from coterie.visible import LINES, json_text, visible

HOSTILE = [
    "\x1b[2J\x1b[H", "\x1b]0;owned\x07", "\x9b2J", "\x7f", "\r\n", "\x00", "\u202egnp.exe", "\u2066x\u2069", "\u200b",
    "\u2028", "\udc9b", "\ud83d", "\U000e0041", "\ufeff", "\x08\x08", "\x85",
]  # fmt: skip
FRIENDLY = ["orders", "Grüße", "注文", "a b", "заказы", "🙂", "e\u0301"]


@pytest.mark.parametrize("text", HOSTILE)
def test_what_does_not_print_is_spelled(text: str) -> None:
    assert visible(f"q{text}q").isprintable()
    assert json_text(text).isprintable()
    assert json.loads(json_text({text: [text]})) == {text: [text]}
    visible(text).encode()


@pytest.mark.parametrize("text", FRIENDLY)
def test_what_prints_stays_as_it_is(text: str) -> None:
    assert visible(text) == text
    assert json.loads(json_text(text)) == text


def test_ends_of_lines_stay_where_they_are_meant() -> None:
    assert visible("a\n\tb\x1b", LINES) == "a\n\tb\\x1b"


@pytest.mark.parametrize("name", HOSTILE)
def test_tables_json_logs_and_top_show_it_spelled(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert table(["name", "n"], [[name, 1]]).replace("\n", "").isprintable()
    assert str(cell({"name": name}, "name")).isprintable()
    assert str(cell({"names": [name]}, "names")).isprintable()
    assert str(cell({"name": {name: [name]}}, "name")).isprintable()
    print_json({name: name})
    assert capsys.readouterr().out.replace("\n", "").isprintable()
    page = {"items": [{"name": name, "vhost": name, "state": name}], "total_count": 1, "filtered_count": 1}
    lines = draw({"node": name, "members": [{"name": name, "state": name}], "alarms": [name]}, page, Look(), 100, 30)  # type: ignore[arg-type]
    assert all(line.isprintable() for line in lines)
    for formatter in (logs.TextFormatter(name), logs.JsonFormatter(name)):
        stream = io.StringIO()
        logger = logging.Logger("coterie.test")
        logger.addHandler(handler := logging.StreamHandler(stream))
        handler.setFormatter(formatter)
        try:
            raise ValueError(name)
        except ValueError:
            logger.warning(
                "%s", f"event {name}", extra={"coterie_facts": {"queue": name, "many": [name]}}, exc_info=True
            )
        assert stream.getvalue().replace("\n", "").isprintable()


def test_errors_of_a_node_are_spelled(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    from coterie import cli
    from coterie.errors import UserError

    def fail(arguments: list[str]) -> int:
        raise UserError("no queue '\x1b[2J\x9b'")

    monkeypatch.setattr(cli, "_run", fail)
    assert cli.main(["queues"]) == 2
    assert capsys.readouterr().err == "coterie: no queue '\\x1b[2J\\x9b'\n"
