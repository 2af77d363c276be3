"""The page of numbers: what it makes of recorded results, small ones, whose ratios can be told in one's head."""

from __future__ import annotations

import importlib
import re
import xml.etree.ElementTree as ElementTree
from pathlib import Path
from typing import Any

import pytest

from coterie.plot_bars import Bar, bars

ROOT = Path(__file__).parents[2]
Result = dict[str, Any]


def row(unit: str, *values: float, **more: object) -> Result:
    ordered = sorted(values)
    return {
        "median": ordered[len(ordered) // 2], "min": ordered[0], "max": ordered[-1], "values": [*values], "unit": unit,
        **more,
    }  # fmt: skip


def beside(unit: str, value: float, baseline: float, ratios: tuple[float, float, float], **more: object) -> Result:
    names = ("ratio", "ratio_min", "ratio_max")
    return row(unit, value, **dict(zip(names, ratios, strict=True)), baseline=baseline, **more)


BROKER: Result = {
    "parts": ["throughput"], "size": 1024, "nodes": 3, "rounds": 3, "queued": 1000, "joined": 2000, "wrong": {},
    "cases": {
        "standalone.persistent.confirmed": row("messages/s", 60_000, 70_000, 80_000),
        "classic.persistent.confirmed": row("messages/s", 10_000, 10_000, 10_000),
        "standalone.latency.consume_p50": row("us", 500, 500, 500),
        "disk.copies.written": row("messages/s", 100_000, 100_000, 100_000),
        "credit.persistent.confirmed": row("messages/s", 20_000, 50_000, 100_000),
        "credit.latency.consume_p50": row("us", 900, 1_000, 1_100),
        "credit.kill.delivery": row("ms", 20, 30, 90),
        "credit.memory.idle": row("MiB", 50),
        "quorum.persistent.confirmed": row("messages/s", 10_000, 10_000, 10_000),
        "quorum.latency.consume_p50": row("us", 2_000, 2_000, 2_000),
    },
}  # fmt: skip
COROSYNC: Result = {
    "cases": {
        "coterie.delivered": row("messages/s", 300, 400),
        "corosync.delivered": row("messages/s", 100, 100),
        "coterie.own_p50": row("us", 150),
        "coterie.own_p99": row("us", 350),
    },
}
GROUP: Result = {
    "cases": {"fifo_delivered": beside("messages/s at each receiver", 700, 1_000, (0.7, 0.6, 0.8))},
}
VIEWS: Result = {"members": 4, "cases": {"flush2.kill": beside("ms", 12, 6, (2.0, 1.9, 2.1), goal=25.0, met=True)}}
UNICAST: Result = {"cases": {"round_trip_p50": beside("us", 120, 60, (2.0, 1.9, 2.1))}}
STATE: Result = {"size": 1 << 30, "cases": {"time": beside("s", 2.5, 0.5, (5.0, 4.0, 6.0))}}
SPARK: Result = {"rows": 5000, "cases": {"batch.to_loop": beside("rows/s", 500, 50, (10.0, 9.0, 11.0), goal=10.0)}}
AUDIT: Result = {
    "cases": {
        "1000.2_cores.check": beside("events/s", 300, 200, (1.5, 1.5, 1.5)),
        "1000.2_cores.start": beside("s", 15, 1, (15.0, 15.0, 15.0)),
        "1000.apart.java_mib": beside("MiB, most", 500, 500, (1.0, 1.0, 1.0)),
    },
}
RESULTS = {
    "broker": BROKER, "corosync": COROSYNC, "group": GROUP, "unicast": UNICAST, "views": VIEWS, "state": STATE,
    "spark": SPARK, "audit": AUDIT,
}  # fmt: skip


def run(**parts: Result) -> Result:
    return {
        "command": "make bench", "date": "November 2026", "seconds": 90.0, "quick": False,
        "machine": {"processor": "2 cores"}, "peers": {"NATS JetStream": "left out: nats-server: not installed"},
        "parts": {name: {"file": "", "commands": [f"coterie bench {name} --json"], "seconds": 5.0} for name in parts},
    }  # fmt: skip


@pytest.fixture
def page(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(ROOT / "scripts"))
    return importlib.import_module("numbers_page.page")


def written(page: Any, folder: Path, results: dict[str, Result]) -> str:
    page.write(run(**results), results, folder / "numbers.md")
    return (folder / "numbers.md").read_text(encoding="utf-8")


def cells(text: str, label: str) -> list[list[str]]:
    """All rows of that name, in all tables."""
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in text.splitlines() if line.startswith("|")]
    return [found[1:] for found in rows if found[0] == label]


def test_a_ratio_is_taken_round_by_round_and_judged_by_its_median(page: Any, tmp_path: Path) -> None:
    text = written(page, tmp_path, RESULTS)
    _, alone, _, cluster = cells(text, "1 publisher, 1 consumer")
    assert alone == ["7.00x [6.00..8.00]", "≥ 6x", "**yes**"]
    assert cluster == ["5.00x [2.00..10.0]", "≥ 4x", "**yes**, not in every round"]
    assert cells(text, "publish to consume at 500/s, p50")[-1] == ["0.50x [0.45..0.55]", "≤ 0.35x", "no"]


def test_no_two_rows_of_a_table_and_no_two_cases_of_a_plot_have_one_name(
    page: Any,
) -> None:
    brokers = importlib.import_module("numbers_page.brokers")
    labels = [*brokers.RATES.values(), *brokers.DELAYS.values(), *brokers.MEMORY.values()]
    assert len(set(labels)) == len(labels)


def test_figures_have_their_spread_and_the_unit_that_reads_best(page: Any, tmp_path: Path) -> None:
    text = written(page, tmp_path, RESULTS)
    assert cells(text, "1 publisher, 1 consumer")[0] == ["70,000 [60,000..80,000]/s", "10,000/s"]
    assert cells(text, "publish to consume at 500/s, p50")[1] == ["1.00 [0.90..1.10] ms", "2.00 ms"]
    assert cells(text, "of another node")[0] == ["30.0 [20.0..90.0] ms", "≤ 50 ms", "**yes**, not in every round"]
    assert cells(text, "memory, idle")[0] == ["50.0 MiB", "≤ 60 MiB", "**yes**"]


def test_goals_of_clusters_by_themselves_are_of_the_disk_and_of_one_broker(page: Any, tmp_path: Path) -> None:
    text = written(page, tmp_path, RESULTS)
    assert cells(text, "rate, of what the disk allows for three copies") == [
        ["0.50x [0.20..1.00]", "≥ 0.6x", "no, not in every round"]
    ]
    assert cells(text, "publish to consume, p50, of one broker's") == [["2.00x [1.80..2.20]", "≤ 1.5x", "no"]]


def test_corosync_and_plain_sockets_stand_beside_groups(page: Any, tmp_path: Path) -> None:
    text = written(page, tmp_path, RESULTS)
    assert cells(text, "total order, 3 members, all send: delivered at each")[0][:3] == [
        "400 [300..400]/s", "100/s", "3.50x [3.00..4.00]",
    ]  # fmt: skip
    label = "to all, 4 members, FIFO: delivered at each"
    assert cells(text, label) == [["700/s", "1,000/s", "0.70x [0.60..0.80]", "≥ 0.65x", "**yes**, not in every round"]]


def test_views_states_and_spark_stand_beside_their_baselines(page: Any, tmp_path: Path) -> None:
    text = written(page, tmp_path, RESULTS)
    assert cells(text, "kill -9, until the last survivor has the next view") == [
        ["12.0 ms", "6.00 ms", "2.00x [1.90..2.10]", "≤ 25 ms", "**yes**"]
    ]
    assert cells(text, "to one and back, p50")[0][-2:] == ["≤ 100 us", "no"]
    assert cells(text, "1,024 MiB to a joiner") == [["2.50 s", "0.50 s", "5.00x [4.00..6.00]"]]
    assert cells(text, "as a table, beside a loop with pika") == [
        ["500/s", "50.0/s", "10.0x [9.00..11.0]", "≥ 10x", "**yes**, not in every round"]
    ]
    assert cells(text, "1,000 events, 2 cores: checked") == [["300/s", "200/s", "1.50x"]]


def test_goals_are_counted(page: Any, tmp_path: Path) -> None:
    assert "Goals met: 1 of 1," in written(page, tmp_path, {"corosync": COROSYNC})
    slower = {"cases": {**COROSYNC["cases"], "coterie.own_p50": row("us", 150, 250, 350)}}
    assert "Goals met: 1 of 2," in written(page, tmp_path, {"corosync": slower, "group": GROUP})


def test_every_part_has_the_command_that_made_it(page: Any, tmp_path: Path) -> None:
    text = written(page, tmp_path, RESULTS)
    for part in RESULTS:
        assert f"```\ncoterie bench {part} --json\n```" in text


def test_who_was_left_out_and_why_is_said(page: Any, tmp_path: Path) -> None:
    text = written(page, tmp_path, RESULTS)
    assert "| NATS JetStream | left out: nats-server: not installed |" in text
    assert "NATS JetStream, R3: not measured in this run." in text


def test_who_lost_a_message_is_named(page: Any, tmp_path: Path) -> None:
    assert "Lost or given twice: none, by anybody." in written(page, tmp_path, RESULTS)
    worse = {"broker": {**BROKER, "wrong": {"quorum": 3}}}
    assert "Lost or given twice: 3 by RabbitMQ, quorum queue." in written(page, tmp_path, worse)


def test_plots_are_files_beside_the_page_and_old_ones_go(page: Any, tmp_path: Path) -> None:
    (tmp_path / "img").mkdir()
    (tmp_path / "img" / "numbers-old.svg").touch()
    (tmp_path / "img" / "other.svg").touch()
    text = written(page, tmp_path, RESULTS)
    shown = set(re.findall(r"\]\(img/(numbers-\w+\.svg)\)", text))
    assert shown == {"numbers-throughput.svg", "numbers-latency.svg", "numbers-corosync.svg", "numbers-group.svg"}
    assert {path.name for path in (tmp_path / "img").iterdir()} == shown | {"other.svg"}


def test_a_part_that_was_not_run_has_no_chapter(page: Any, tmp_path: Path) -> None:
    text = written(page, tmp_path, {"corosync": COROSYNC})
    assert "## Brokers" not in text
    assert "## Spark" not in text
    assert "### Total order beside corosync" in text


def test_bars_are_as_long_as_their_figures() -> None:
    text = bars("Title & more", "unit", {"case": {"one": Bar(50, 40, 60), "two": Bar(100, 100, 100)}})
    root = ElementTree.fromstring(text)
    rects = [element for element in root if element.tag.endswith("rect")][1:]
    one, two = (float(rect.attrib["width"]) for rect in rects)
    assert two == pytest.approx(2 * one)
    assert [element.text for element in root if element.attrib.get("class") == "title"] == ["Title & more"]


def test_each_case_has_its_own_bars_and_everybody_one_colour_in_all() -> None:
    cases = {"first": {"one": Bar(1, 1, 1), "two": Bar(2, 2, 2)}, "second": {"two": Bar(3, 3, 3)}}
    rects = [element for element in ElementTree.fromstring(bars("t", "u", cases)) if element.tag.endswith("rect")][1:]
    one, two, again = (rect.attrib["fill"] for rect in rects)
    assert one != two == again
