"""What `bench views`, `bench state` and `bench flush-messages` compute, apart from the processes they start."""

from __future__ import annotations

import zlib
from xml.etree import ElementTree

import pytest

from coterie import plot
from coterie.bench import flush_messages, state, views
from coterie.bench.state_member import BLOCK, blocks, checksum
from coterie.errors import UserError
from coterie.trace import Json

SVG = "{http://www.w3.org/2000/svg}"


# Figures.


def test_a_percentile_is_one_of_the_samples() -> None:
    samples = [float(n) for n in range(100, 0, -1)]
    assert [views.percentile(samples, share) for share in (0.0, 0.5, 0.99, 1.0)] == [1.0, 51.0, 100.0, 100.0]


def test_nothing_was_held_up_if_there_is_no_sample() -> None:
    assert views.percentile([], 0.99) == 0.0


def test_of_each_round_the_median_counts_and_of_hold_ups_their_tail_as_well() -> None:
    ours = [
        {"join": [10.0, 30.0, 20.0], "held_up_idle": [1.0, 2.0, 9.0]},
        {"join": [40.0], "held_up_idle": [3.0]},
    ]
    raw = [{"join": [2.0], "flush_idle": [0.5]}, {"join": [4.0], "flush_idle": [0.25]}]
    made = views.figures(ours, raw)
    assert (made["join"].ours, made["join"].baseline) == ([20.0, 40.0], [2.0, 4.0])
    assert made["held_up_idle_p50"].ours == [2.0, 3.0]
    assert made["held_up_idle_max"].ours == [9.0, 3.0]
    assert made["held_up_idle_max"].baseline == [0.5, 0.25]
    assert {"median", "min", "max", "baseline", "ratio", "unit"} <= made["join"].to_json().keys()


def test_a_goal_is_met_by_the_median_and_only_groups_of_four_have_one() -> None:
    rows: dict[str, dict[str, Json]] = {
        "flush2.join": {"median": 29.0},
        "flush.join": {"median": 31.0},
        "flush2.leave": {"median": 1.0},
    }
    views.with_goals(rows, 5)
    assert all(row.keys() == {"median"} for row in rows.values())
    views.with_goals(rows, 4)
    assert rows["flush2.join"] == {"median": 29.0, "goal": 30.0, "met": True}
    assert rows["flush.join"] == {"median": 31.0, "goal": 30.0, "met": False}
    assert rows["flush2.leave"] == {"median": 1.0}


# The state.


@pytest.mark.parametrize(
    ("text", "size"), [("1GiB", 1 << 30), ("64MiB", 64 << 20), ("3 kB", 3000), ("12B", 12), ("5", 5)]
)
def test_a_size_is_a_number_with_or_without_a_unit(text: str, size: int) -> None:
    assert state.parse_size(text) == size


@pytest.mark.parametrize("text", ["", "GiB", "1.5GiB", "-1MiB", "1TiB", "1GG"])
def test_what_is_no_size_is_refused(text: str) -> None:
    with pytest.raises(UserError, match="is not a size"):
        state.parse_size(text)


@pytest.mark.parametrize("size", [1, BLOCK - 1, BLOCK, 2 * BLOCK + 5])
def test_the_state_has_the_size_it_should_have(size: int) -> None:
    assert sum(len(block) for block in blocks(size)) == size


def test_the_checksum_tells_when_blocks_are_missing_or_swapped() -> None:
    one, two, three = (bytes(block) for block in blocks(3 * BLOCK))
    assert zlib.crc32(one + two + three) == checksum(3 * BLOCK)
    assert checksum(3 * BLOCK) not in (zlib.crc32(one + three + two), zlib.crc32(one + two), zlib.crc32(one * 3))


# Messages per flush.


@pytest.mark.parametrize("members", [2, 3, 5])
def test_flush2_costs_three_messages_for_each_other_member(members: int) -> None:
    cost = flush_messages.count(members, "FLUSH2")
    assert cost.messages == [3 * (members - 1)] * 3  # START-FLUSH, START-FLUSH-OK, STOP-FLUSH, whoever leads
    assert cost.to_json()["ratio"] == 1.0


@pytest.mark.parametrize("members", [2, 3, 5])
def test_flush_costs_a_message_from_everybody_to_everybody_and_four_for_each_other_member(members: int) -> None:
    cost = flush_messages.count(members, "FLUSH")
    assert cost.messages == [members * (members - 1) + 4 * (members - 1)] * 3
    assert min(cost.packets) > max(cost.messages)  # acks come on top


# The plot.


def drawn(**series: list[plot.Point]) -> ElementTree.Element:
    return ElementTree.fromstring(plot.lines("A <title>", "x", "y", series, dashed=["b"]))


def test_the_plot_is_one_picture_that_fetches_nothing() -> None:
    text = plot.lines("A <title>", "x & y", "y", {"a": [(2.0, 3.0), (200.0, 597.0)]})
    root = ElementTree.fromstring(text)
    assert root.findtext(f"{SVG}title") == "A <title>"
    assert "href" not in text
    assert "url(" not in text


def test_points_are_drawn_on_logarithmic_axes() -> None:
    root = drawn(a=[(1.0, 1.0), (10.0, 10.0), (100.0, 100.0)])
    places = [(float(c.attrib["cx"]), float(c.attrib["cy"])) for c in root.iter(f"{SVG}circle")]
    (x1, y1), (x2, y2), (x3, y3) = places
    assert x2 - x1 == pytest.approx(x3 - x2, abs=0.2)
    assert y1 - y2 == pytest.approx(y2 - y3, abs=0.2)
    assert x1 < x2
    assert y2 < y1
    assert (y1, y3) == (plot.FILE.height - plot.FILE.bottom, plot.FILE.top)


def test_a_dashed_line_has_no_points_and_each_line_says_its_last_value() -> None:
    root = drawn(a=[(1.0, 1.0), (10.0, 1234.0)], b=[(1.0, 2.0), (10.0, 2468.0)])
    assert len([*root.iter(f"{SVG}circle")]) == 2
    assert [p.attrib["class"] for p in root.iter(f"{SVG}path") if "line" in p.attrib["class"]] == [
        "line",
        "line dashed",
    ]
    texts = [text.text for text in root.iter(f"{SVG}text")]
    assert "a: 1,234" in texts
    assert "b: 2,468" in texts
