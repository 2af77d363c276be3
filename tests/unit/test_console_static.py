"""The page's own files: nothing in them makes markup of data, or comes from elsewhere."""

from __future__ import annotations

import re
from importlib.resources import files
from pathlib import Path

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
