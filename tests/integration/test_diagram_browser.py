"""The diagram in a real browser: the scripts run, and what a person should see is there."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from pretend import Pretend
from tracescript import events

from coterie.sim.diagram import render
from coterie.trace import Event

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
FLAGS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
    "--disable-background-networking", "--disable-component-update",
    "--disable-sync", "--disable-dev-shm-usage", "--window-size=1600,1000",
)  # fmt: skip

Browse = Callable[..., str]


@pytest.fixture
def browse(tmp_path: Path) -> Browse:
    """Loads the diagram of a trace; `script` runs when the page is complete. Gives the document as it then is."""
    if CHROMIUM is None:
        pytest.skip("chromium is missing: `apt-get install chromium` gives it")
    browser = CHROMIUM

    def load(trace: list[Event], script: str = "", link: str = "") -> str:
        file = tmp_path / "run.html"
        file.write_text(render(trace, "a <run>").replace("</body>", f"<script>{{{script}}}</script></body>"))
        done = subprocess.run(
            [browser, *FLAGS, f"--user-data-dir={tmp_path / 'profile'}", "--dump-dom", f"{file.as_uri()}{link}"],
            capture_output=True, text=True, timeout=120, check=True,
        )  # fmt: skip
        root = re.search(r"<html[^>]*>", done.stdout)
        assert root is not None
        assert "data-error" not in root[0], root[0]
        assert 'data-ready="true"' in root[0]
        return done.stdout

    return load


def behind(page: str, text: str) -> str:
    """What follows the last such text: before that it stands in the page's own script."""
    return page.rpartition(text)[2]


def elements(page: str, kind: str, name: str) -> list[str]:
    """The tags of that kind that have the class, in the picture (the legend is not of it)."""
    chart = behind(page, '<main id="chart">').partition("</main>")[0]
    return [tag for tag in re.findall(rf"<{kind}\b[^>]*>", chart) if re.search(rf'class="[^"]*\b{name}\b', tag)]


def test_a_person_sees_members_messages_views_and_faults(browse: Browse) -> None:
    page = browse(Pretend().events(), script="ACTIONS.all()")
    assert re.findall(r'class="member" data-name="(\w)"', page) == ["A", "B", "C", "D"]
    assert len(elements(page, "line", "life")) == 5
    assert 'data-member="D#2"' in page
    assert elements(page, "path", "death")
    assert len(elements(page, "line", "mcast")) > 50
    assert len(elements(page, "line", "ucast")) > 3
    assert elements(page, "line", "again")
    assert len(elements(page, "line", "lost")) == len(elements(page, "path", "cross")) > 5
    assert len(elements(page, "rect", "band")) > 10
    assert {re.sub(r".*data-fault=\"(\w+)\".*", r"\1", tag) for tag in elements(page, "g", "fault")} == {
        "partition", "loss", "crash", "pause",
    }  # fmt: skip
    assert elements(page, "rect", "fault-area")
    assert elements(page, "line", "fault-moment")
    assert "a &lt;run&gt;" in page
    assert "switched off: received; acks" in page


def test_violations_are_ringed_and_can_be_gone_to(browse: Browse) -> None:
    trace = Pretend().events()
    twice = next(event for event in reversed(trace) if event.kind == "deliver")
    trace.append(replace(twice, n=twice.n + 1000))
    page = browse(trace, script="document.querySelector('[data-found]').click()")
    assert "violations</span>" in page
    assert elements(page, "circle", "ring")
    assert "<pre>" in behind(page, 'id="picked"')


def test_filters_take_away_what_is_switched_off(browse: Browse) -> None:
    script = """
        for (const box of ["class=mcast", "class=view", "class=fault", "class=ack", "row='3'"])
            document.querySelector(`[data-${box}]`).click();
    """
    page = browse(Pretend().events(), script)
    assert not elements(page, "line", "mcast")
    assert elements(page, "line", "ucast")
    assert not elements(page, "rect", "band")
    assert not elements(page, "rect", "fault-bar")
    assert elements(page, "rect", "ack")
    assert 'data-name="D"' not in page


def test_a_range_can_be_typed_linked_to_zoomed_and_dragged(browse: Browse) -> None:
    trace = Pretend().events()
    linked = browse(trace, link="#from=0.5&to=0.7&theme=dark")
    assert "0.500 s to 0.700 s" in linked
    assert re.search(r'<html[^>]*class="dark"', linked)
    typed = browse(
        trace,
        script="""
        document.getElementById("from").value = 0.2;
        document.getElementById("to").value = 0.4;
        document.getElementById("to").dispatchEvent(new Event("change", { bubbles: true }));
    """,
    )
    assert "0.200 s to 0.400 s" in typed
    moved = browse(trace, link="#from=0.5&to=0.7", script="""
        const svg = document.querySelector("#chart svg"), at = (type, x, y, more = {}) =>
            svg.dispatchEvent(new (type === "wheel" ? WheelEvent : PointerEvent)(type, { bubbles: true, clientX: x, clientY: y, ...more }));
        at("pointerdown", 800, 400);
        at("pointermove", 800 - plot.w / 2, 400);
        at("pointerup", 800 - plot.w / 2, 400);
    """)  # fmt: skip  # noqa: E501
    assert "0.600 s to 0.800 s" in moved
    zoomed = browse(trace, link="#from=0.5&to=0.7", script="ACTIONS.in()")
    assert "0.5500 s to 0.6500 s" in zoomed


def test_pointing_says_what_it_is_and_clicking_shows_the_events(browse: Browse) -> None:
    trace = events("""
        A view members=A,B
        B view members=A,B start=A:1
        A send n=1 to=all
        B receive from=A n=1
        B deliver from=A n=1
    """)
    page = browse(trace, script="""
        const box = document.querySelector("#chart svg").getBoundingClientRect();
        const arrow = document.querySelector("line.arrow.mcast"), middle = (a, b) => (+arrow.getAttribute(a) + +arrow.getAttribute(b)) / 2;
        const place = { bubbles: true, clientX: box.left + middle("x1", "x2"), clientY: box.top + middle("y1", "y2") };
        for (const type of ["pointermove", "pointerdown", "pointerup"]) document.querySelector("#chart svg").dispatchEvent(new PointerEvent(type, place));
    """)  # fmt: skip  # noqa: E501
    assert "multicast number 1 of A#1" in behind(page, 'id="tip"')
    picked = behind(page, 'id="picked"').partition("<h2>Show")[0]
    assert [kind in picked for kind in ("send", "receive", "deliver")] == [True] * 3
    assert elements(page, "line", "picked")


def test_thousands_of_messages_are_drawn_as_some_and_the_page_says_so(browse: Browse) -> None:
    page = browse(Pretend(members=6, bundles=3000, seconds=10.0).events(), script="ACTIONS.all()")
    assert 100 < len(elements(page, "line", "arrow")) <= 1600
    assert re.search(r"messages in sight · drawn as [\d,]+ arrows", page)
