"""How the broker's demonstration is told: lines that fit, and commands as they must be typed here."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from coterie.cli.demo_broker import INDENT, NEXT, Screen, what_next
from coterie.demo import shop


def test_lines_fit_on_the_screen_and_go_on_under_their_text(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "60")
    screen = Screen(True)
    screen.chapter("A chapter")
    screen.say("many words " * 12)
    screen.show(("kind", "orders"), [("cake", 7)])
    title, first, *more = capsys.readouterr().out.strip().splitlines()
    assert title == "A chapter"
    assert first[: len(INDENT)].strip() == "0.0 s"
    assert max(map(len, [first, *more])) <= 60
    assert all(line.startswith(INDENT) for line in more)
    assert more[-1].split() == ["cake", "7"]


def test_for_a_machine_nothing_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    screen = Screen(False)
    screen.chapter("A chapter")
    screen.say("a sentence")
    screen.show(("kind",), [("cake",)])
    assert capsys.readouterr().out == ""


def test_what_to_try_next_is_typed_as_it_is_found_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / ".venv" / "bin"
    folder.mkdir(parents=True)
    for program in ("python", "coterie"):
        (folder / program).write_text("#!/bin/sh\n")
        (folder / program).chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(folder / "python"))
    monkeypatch.setenv("PATH", str(folder))
    assert all(f"  {line} " in what_next() for line, _ in NEXT)
    monkeypatch.setenv("PATH", str(tmp_path))  # the virtual environment is not active
    monkeypatch.chdir(tmp_path)
    assert all(f"  .venv/bin/{line} " in what_next() for line, _ in NEXT)
    monkeypatch.chdir("/usr")
    assert all(f"  {folder}/{line} " in what_next() for line, _ in NEXT)


def test_orders_have_their_names_and_products_that_have_a_price() -> None:
    orders = shop.Orders(1)
    said = [orders.write(f"p1-{number}") for number in range(50)]
    assert [shop.name(body) for body in said] == [f"p1-{number}" for number in range(50)]
    assert {name for name, _, _ in shop.PRODUCTS} == {
        name for name, _, _ in shop.PRODUCTS for body in said if f'"{name}"' in body.decode()
    }
    assert shop.name(shop.closing()) == "closing"
    assert 0 < shop.good(600) == pytest.approx(3 * shop.good(200), abs=2)
