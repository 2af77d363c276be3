"""The page's own files: nothing in them makes markup of data, or comes from elsewhere."""

from __future__ import annotations

import re
from importlib.resources import files
from pathlib import Path

import pytest

from coterie.console.assets import POLICY, Assets

STATIC = Path(str(files("coterie.console"))) / "static"
MARKUP = re.compile(
    r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\(|new Function|setHTML|ContextualFragment|DOMParser"
)
CODE = sorted(path for path in STATIC.rglob("*") if path.suffix in (".js", ".html", ".css", ".svg"))


def test_no_script_makes_markup_or_code_of_text() -> None:
    assert len(CODE) > 25
    assert [path.name for path in CODE if MARKUP.search(path.read_text(encoding="utf-8"))] == []


def test_nothing_is_fetched_from_elsewhere() -> None:
    for path in CODE:
        found = re.findall(r"""(?:https?:)?//[a-z0-9.-]+\.[a-z]{2,}[^\s"'`]*""", path.read_text(encoding="utf-8"))
        assert [each for each in found if "www.w3.org" not in each] == [], path


def test_every_import_and_every_file_that_the_page_names_is_there() -> None:
    names = set(Assets().names)
    assert names == {str(path.relative_to(STATIC)) for path in CODE}
    for path in CODE:
        for target in re.findall(r"""from "(\.[^"]+)";""", path.read_text(encoding="utf-8")):
            assert (path.parent / target).resolve().is_file(), (path, target)
    for target in re.findall(r'(?:src|href)="/static/([^"]+)"', (STATIC / "index.html").read_text(encoding="utf-8")):
        assert target in names


def test_the_policy_lets_no_inline_script_or_style_run_and_no_text_become_markup() -> None:
    assert "unsafe" not in POLICY
    assert "require-trusted-types-for 'script'" in POLICY
    page = (STATIC / "index.html").read_text(encoding="utf-8")
    assert re.findall(r"<script(?![^>]*\bsrc=)|<style|\son\w+=|\sstyle=", page) == []


# Colours.


def tokens(theme: str) -> dict[str, str]:
    """The colours of a theme."""
    text = (STATIC / "css" / "base.css").read_text(encoding="utf-8")
    block = re.search(
        {"light": r":root \{(.*?)\n\}", "dark": r':root\[data-theme="dark"\] \{(.*?)\n\}'}[theme], text, re.DOTALL
    )
    assert block is not None
    return dict(re.findall(r"--([a-z0-9-]+): (#[0-9a-f]{6})", block[1]))


def luminance(colour: str) -> float:
    parts = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(one: str, other: str) -> float:
    light, dark = sorted((luminance(one), luminance(other)), reverse=True)
    return (light + 0.05) / (dark + 0.05)


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_every_text_can_be_read_on_its_ground(theme: str) -> None:
    found = tokens(theme)
    pairs = [(ink, ground) for ink in ("ink", "faint", "accent") for ground in ("page", "panel", "sunk", "accent-area")]
    pairs += [(word, f"{word}-area") for word in ("bad", "good", "mind")] + [("accent-ink", "accent"), ("panel", "bad")]
    weak = {f"{ink} on {ground}": contrast(found[ink], found[ground]) for ink, ground in pairs}
    assert {pair: round(ratio, 2) for pair, ratio in weak.items() if ratio < 4.5} == {}
    lines = {line: contrast(found[line], found["panel"]) for line in ("s0", "s1", "s2", "s3")}
    assert min(lines.values()) >= 3, lines


def test_the_dark_theme_that_is_chosen_is_the_one_that_the_system_asks_for() -> None:
    text = (STATIC / "css" / "base.css").read_text(encoding="utf-8")
    blocks = re.findall(r"\{\s*(--page: #0f1217.*?)color-scheme: dark;", text, re.DOTALL)
    assert len(blocks) == 2
    assert re.sub(r"\s+", " ", blocks[0]) == re.sub(r"\s+", " ", blocks[1])
