"""The report in a real browser: it shows what it should in both themes and on a phone, and runs nothing but its own."""

from __future__ import annotations

import base64
import hashlib
import json
import re
import shutil
import subprocess
from collections.abc import Callable
from html import unescape
from pathlib import Path

import pytest

from spark.reports import EVIL, SEED, Audited

pytestmark = pytest.mark.browser

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
FLAGS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync", "--disable-dev-shm-usage",
)  # fmt: skip

Browse = Callable[..., dict[str, object]]

ASK = """
    const shown = (el) => !!(el && el.getClientRects().length);
    const colour = (el, what) => getComputedStyle(el)[what];
    document.documentElement.dataset.answer = JSON.stringify({
        title: document.title,
        ready: document.documentElement.dataset.ready,
        scripts: document.scripts.length,
        images: document.images.length,
        page: colour(document.body, "backgroundColor"),
        ink: colour(document.body, "color"),
        verdict: document.querySelector(".verdict").innerText,
        button: document.getElementById("theme").innerText,
        plots: [...document.querySelectorAll("figure > svg")].map((svg) => svg.getBoundingClientRect().width),
        lines: new Set([...document.querySelectorAll("figure g .line")].map((l) =>
            colour(l, "stroke") + colour(l, "strokeDasharray"))).size,
        most: Math.max(...[...document.querySelectorAll("figure > svg")].map((svg) =>
            svg.querySelectorAll("g .line").length)),
        broken: [...document.links].map((a) => a.getAttribute("href")).filter((h) =>
            h.startsWith("#") && !document.getElementById(h.slice(1))),
        over: document.documentElement.scrollWidth - document.documentElement.clientWidth,
        small: Math.min(...[...document.querySelectorAll("figure text")].map((t) => t.getBoundingClientRect().height)),
        ...more(),
    });
"""


@pytest.fixture
def browse(tmp_path: Path) -> Browse:
    """Opens a page; `more` is an expression whose value is part of the answer, after `first` was done."""
    if CHROMIUM is None:
        pytest.skip("chromium is missing: `apt-get install chromium` gives it")
    browser = CHROMIUM

    def load(
        file: Path, first: str = "", more: str = "({})", size: str = "1280,900", link: str = ""
    ) -> dict[str, object]:
        script = f"{{ const more = () => {more};\n{first};\n{ASK} }}"
        allowed = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
        page = file.read_text(encoding="utf-8").replace("script-src '", f"script-src 'sha256-{allowed}' '")
        copy = file.with_name("asked.html")
        copy.write_text(page.replace("</body>", f"<script>{script}</script></body>"), encoding="utf-8")
        done = subprocess.run(
            [browser, *FLAGS, f"--window-size={size}", f"--user-data-dir={tmp_path / 'profile'}", "--dump-dom",
             f"{copy.as_uri()}{link}"],
            capture_output=True, text=True, timeout=120, check=True,
        )  # fmt: skip
        copy.unlink()
        answer = re.search(r'data-answer="([^"]*)"', done.stdout)
        assert answer is not None, done.stdout[:2000]
        found: dict[str, object] = json.loads(unescape(answer[1]))
        return found

    return load


def test_a_person_sees_the_verdict_and_plots_whose_lines_can_be_told_apart(
    browse: Browse, broken_audit: Audited
) -> None:
    seen = browse(broken_audit.out / "report.html")
    assert seen["ready"] == "true"
    assert f"{broken_audit.summary.violations} violations of" in str(seen["verdict"])
    assert isinstance(seen["plots"], list)
    assert len(seen["plots"]) >= 4
    assert min(seen["plots"]) > 400
    assert seen["lines"] == seen["most"]  # each line of a plot has its own colour and dashes
    assert seen["broken"] == []


def test_nothing_that_a_trace_says_is_run(browse: Browse, broken_audit: Audited) -> None:
    seen = browse(broken_audit.out / "report.html", more="({body: document.body.textContent})")
    assert EVIL in str(seen["body"])
    assert seen["scripts"] == 2  # the page's and the one that asks
    assert seen["title"] != "evil"
    refused = broken_audit.out / "refused.html"
    refused.write_text(broken_audit.page.replace("</body>", f"{EVIL}</body>"))
    assert browse(refused)["title"] != "evil"
    refused.unlink()


def test_the_other_theme_is_one_click_away(browse: Browse, clean_audit: Audited) -> None:
    file = clean_audit.out / "report.html"
    light = browse(file)
    dark = browse(file, first='document.getElementById("theme").click()')
    assert (light["page"], light["button"]) == ("rgb(253, 253, 252)", "dark")
    assert dark["page"] == "rgb(18, 21, 27)"
    assert dark["ink"] != light["ink"]
    assert dark["button"] == "light"
    assert browse(file, link="#theme=dark")["page"] == dark["page"]


def test_on_a_phone_nothing_is_wider_than_the_screen_and_plots_can_be_read(
    browse: Browse, broken_audit: Audited
) -> None:
    seen = browse(broken_audit.out / "report.html", size="500,900")
    assert seen["over"] == 0
    assert isinstance(seen["small"], int | float)
    assert seen["small"] >= 12  # a line of text, in pixels


def test_a_link_leads_to_the_diagram_of_the_run(browse: Browse, broken_audit: Audited) -> None:
    target = f"diagrams/total-{SEED}.html"
    seen = browse(
        broken_audit.out / "report.html",
        more=f"({{there: [...document.links].some((a) => a.getAttribute('href') === '{target}')}})",
    )
    assert seen["there"] is True
    assert CHROMIUM is not None
    done = subprocess.run(
        [CHROMIUM, *FLAGS, "--window-size=1600,1000", "--dump-dom", (broken_audit.out / target).as_uri()],
        capture_output=True, text=True, timeout=120, check=True,
    )  # fmt: skip
    assert 'data-ready="true"' in done.stdout
    assert 'class="ring"' in done.stdout
