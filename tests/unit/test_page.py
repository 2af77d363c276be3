"""The pieces of a report: what comes from outside is text, numbers can be read, pictures are described."""

from __future__ import annotations

import base64
import hashlib
import re
from importlib import resources
from xml.etree import ElementTree

import pytest

from coterie import plot
from coterie.plot import Axis
from coterie.spark import page
from coterie.spark.page import Html, Section

EVIL = '<script>alert("x")</script>'


def whole(body: str = "") -> str:
    facts = {EVIL: EVIL}
    return page.page("kind", EVIL, page.verdict(False, EVIL, EVIL), facts, [Section("one", EVIL, Html(body))])


# Text.


def test_what_is_not_html_is_shown_as_text_wherever_it_stands() -> None:
    body = page.join(
        page.paragraph(EVIL), page.note(EVIL), page.heading(EVIL), page.command(EVIL), page.link(EVIL, EVIL),
        page.details(EVIL, Html("")), page.table([EVIL], [[EVIL]], EVIL), page.bars(EVIL, (EVIL, EVIL), {EVIL: 1.0}),
        page.lines(EVIL, EVIL, Axis(EVIL), Axis(EVIL), {EVIL: [(1.0, 1.0), (2.0, 3.0)]}),
    )  # fmt: skip
    text = whole(body)
    assert text.count("<script") == 1  # the page's own
    assert text.count("&lt;script&gt;") > 20
    for attribute in re.findall(r'(?:href|aria-label)="([^"]*)"', text):
        assert "<" not in attribute


def test_the_page_fetches_nothing_and_runs_no_script_but_its_own() -> None:
    text = whole()
    assert "default-src 'none'" in text
    (script,) = re.findall(r"<script>(.*?)</script>", text, re.DOTALL)
    allowed = re.search(r"script-src 'sha256-([^']+)'", text)
    assert allowed is not None
    assert base64.b64decode(allowed[1]) == hashlib.sha256(script.encode()).digest()
    assert not re.search(r"\b(src|srcset)=|url\(|@import|https?:", text)


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (None, "–"), (0.0, "0"), (0.0000012, "1.2 µs"), (0.0009999, "1 ms"), (0.01234, "12.3 ms"), (0.9999, "1 s"),
        (1.5, "1.5 s"), (119.0, "119 s"), (600.0, "10.0 min"),
    ],
)  # fmt: skip
def test_times_can_be_read_at_a_glance(value: float | None, shown: str) -> None:
    assert page.seconds(value) == shown


# Tables.


def test_numbers_stand_at_the_right_and_names_head_their_rows() -> None:
    table = ElementTree.fromstring(
        page.table(["name", "many", "time", "text"], [["a", 1234567, page.seconds(0.5), "x"]])
    )
    head = [(cell.text, cell.get("class")) for cell in table.iter("th") if cell.get("scope") == "col"]
    assert head == [("name", None), ("many", "n"), ("time", "n"), ("text", None)]
    (row,) = [cell for cell in table.iter("th") if cell.get("scope") == "row"]
    assert row.text == "a"
    assert [(cell.text, cell.get("class")) for cell in table.iter("td")] == [
        ("1,234,567", "n"), ("500 ms", "n"), ("x", None),
    ]  # fmt: skip


def test_bars_are_as_long_as_their_numbers_which_stand_beside_them() -> None:
    table = ElementTree.fromstring(page.bars("caption", ("what", "how many"), {"a": 5, "b": 20}))
    assert [rect.get("width") for rect in table.iter("rect")] == ["25.0", "100.0"]
    assert [cell.text for cell in table.iter("td") if cell.get("class") == "n"] == ["5", "20"]


# Plots.


def drawn(x: Axis, y: Axis, **series: list[plot.Point]) -> ElementTree.Element:
    return ElementTree.fromstring(plot.figure("what is to be seen", x, y, series))


def places(root: ElementTree.Element) -> list[list[tuple[float, float]]]:
    paths = [path.get("d", "") for path in root.iter("path") if path.get("class") == "line"]
    return [[tuple(map(float, point.split())) for point in path[1:].split("L")] for path in paths]  # type: ignore[misc]


def test_a_straight_axis_begins_where_it_is_told_and_has_round_ticks_that_cover_the_data() -> None:
    root = drawn(Axis("x", log=False), Axis("y", log=False, least=0.0), a=[(0.0, 10.0), (30.0, 170.0), (59.0, 90.0)])
    texts = [text.text for text in root.iter("text")]
    assert {"0", "10", "50", "100", "200"} <= set(texts)
    ((first, second, third),) = places(root)
    assert second[0] - first[0] == pytest.approx((third[0] - first[0]) * 30 / 59, abs=0.2)
    assert first[1] - second[1] == pytest.approx((first[1] - third[1]) * 2, abs=0.3)
    assert min(y for _, y in places(root)[0]) > plot.FIGURE.top


def test_each_line_of_a_figure_has_a_class_and_a_name_of_its_own() -> None:
    root = drawn(Axis("x"), Axis("y"), a=[(1.0, 1.0), (10.0, 5.0)], b=[(1.0, 2.0), (10.0, 3.0)])
    assert [(g.get("class"), g.findtext("title")) for g in root.iter("g")] == [("s0", "a"), ("s1", "b")]
    assert (root.get("role"), root.get("aria-label")) == ("img", "what is to be seen")


def test_a_plot_stands_beside_its_key_its_words_and_its_numbers() -> None:
    html = page.lines("Title", "Says.", Axis("x"), Axis("y"), {"a": [(1.0, 1.0), (10.0, 5.0)], "none": []})
    figure = ElementTree.fromstring(html)
    assert figure.findtext("figcaption") == "Title"
    assert "".join(figure.itertext()).count("Says.") == 1
    assert [item.get("class") for item in figure.iter("li")] == ["s0"]
    cells = [cell.text for cell in figure.iter("td")]
    assert cells == ["1", "1", "10", "5"]


@pytest.mark.parametrize("line", [[], [(1.0, 1.0)], [(0.001, 0.001), (1e9, 1e12)], [(5.0, 5.0), (5.0, 5.0)]])
def test_any_line_can_be_drawn(line: list[plot.Point]) -> None:
    for log in (True, False):
        html = page.lines("Title", "Says.", Axis("x", log=log), Axis("y", log=log), {"a": line})
        assert "nan" not in html
        assert ElementTree.fromstring(html).tag == ("figure" if line else "p")


# Colours.


def themes() -> dict[str, dict[str, str]]:
    css = resources.files("coterie.spark").joinpath("page.css").read_text()
    blocks = re.findall(r"(:root[^{]*)\{([^}]*)\}", css)
    return {name.strip(): dict(re.findall(r"--([\w-]+): (#\w{6})", body)) for name, body in blocks}


def contrast(one: str, other: str) -> float:
    """As WCAG defines it."""

    def light(colour: str) -> float:
        parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
        linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
        return sum(weight * part for weight, part in zip((0.2126, 0.7152, 0.0722), linear, strict=True))

    high, low = sorted((light(one), light(other)), reverse=True)
    return (high + 0.05) / (low + 0.05)


def test_text_and_lines_can_be_seen_in_both_themes() -> None:
    found = themes()
    assert len(found) == 3
    light, chosen, preferred = found.values()
    assert chosen == preferred
    assert light.keys() == chosen.keys()
    for colours in (light, chosen):
        on = {"page": ("ink", "faint", "link", "bad"), "panel": ("ink", "faint"), "mind-area": ("ink", "mind")}
        for ground, names in {**on, "bad-area": ("ink", "bad"), "good-area": ("ink", "good")}.items():
            for name in names:
                assert contrast(colours[name], colours[ground]) >= 4.5, (name, ground)
        for number in range(plot.SERIES_MAX):
            assert contrast(colours[f"s{number}"], colours["page"]) >= 3, number
