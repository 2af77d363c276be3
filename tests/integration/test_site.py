"""The documentation as a site: it is made without a warning, its links lead somewhere, and it needs no network."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote

import pytest

ROOT = Path(__file__).parents[2]
OUTSIDE = re.compile(r"^(?:https?:)?//")


class Links(HTMLParser):
    """What a page loads, where it leads, and which anchors it has."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.loads: list[str] = []
        self.leads: list[str] = []
        self.anchors: set[str] = set()
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = {name: value or "" for name, value in attrs}
        if "src" in given or (tag == "link" and given.get("rel") != "canonical"):
            self.loads.append(given.get("src") or given.get("href", ""))
        if tag == "a" and "href" in given:
            self.leads.append(given["href"])
        self.anchors |= {given[name] for name in ("id", "name") if name in given}


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(folder)],
        cwd=ROOT, env={**os.environ, "NO_MKDOCS_2_WARNING": "1"}, capture_output=True, text=True, timeout=200,
        check=False,
    )  # fmt: skip
    assert (done.returncode, done.stdout + done.stderr) == (0, "")
    return folder


@pytest.fixture(scope="module")
def pages(site: Path) -> dict[Path, Links]:
    return {page: Links(page.read_text(encoding="utf-8")) for page in sorted(site.rglob("*.html"))}


def test_nothing_is_loaded_from_elsewhere(site: Path, pages: dict[Path, Links]) -> None:
    assert [(page.name, link) for page, found in pages.items() for link in found.loads if OUTSIDE.match(link)] == []
    styles = [path for path in site.rglob("*.css") if re.search(r"url\(['\"]?(?:https?:)?//", path.read_text())]
    assert styles == []


def test_what_pages_load_and_lead_to_is_there(site: Path, pages: dict[Path, Links]) -> None:
    broken: list[str] = []
    for page, found in pages.items():
        if page.name == "404.html":  # its links are those of a server's root
            continue
        for link in (*found.loads, *found.leads):
            path, _, anchor = link.partition("#")
            if OUTSIDE.match(link) or link.startswith(("mailto:", "data:")):
                continue
            target = (page.parent / unquote(path.partition("?")[0])).resolve() if path else page
            known = pages.get(target)
            missing = anchor and known is not None and unquote(anchor) not in known.anchors and anchor != "__skip"
            if not target.is_file() or missing:
                broken.append(f"{page.relative_to(site)}: {link}")
    assert broken == []


def test_what_the_repository_links_to_is_part_of_the_site(site: Path) -> None:
    for page in ("readme", "changelog", "examples/index", "source/examples/celery_cluster.py", "protocols/reference"):
        assert (site / f"{page}.html").is_file(), page
    assert "START-FLUSH-OK" in (site / "protocols" / "reference.html").read_text()
