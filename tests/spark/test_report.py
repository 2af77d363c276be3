"""The report of an audit: what is wrong comes first, with its proof; nothing that a trace says is more than text."""

from __future__ import annotations

import html
import json
import re
import shlex
from collections.abc import Iterator
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow.parquet as pq
import pytest

from coterie.audit import properties
from coterie.cli import main
from coterie.spark import report_diagrams
from coterie.spark.report_diagrams import file_name
from coterie.spark.report_violations import local_path, when, words
from coterie.spark.schema import TABLES, TRAFFIC
from coterie.trace import Event
from spark.reports import EVIL, SEED, Audited, rewritten, simulated

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class Plain(HTMLParser):
    """What a page says, section by section, and where it links to."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.sections: dict[str, str] = {}
        self.links: list[str] = []
        self.tags: list[str] = []
        self._section = "head"
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        found = dict(attrs)
        if tag == "section":
            self._section = found["id"] or ""
        if tag == "a":
            self.links.append(found["href"] or "")

    def handle_data(self, data: str) -> None:
        self.sections[self._section] = self.sections.get(self._section, "") + " " + data.strip()


def commands(page: str) -> list[str]:
    return [html.unescape(text) for text in re.findall(r'<pre class="command"><code>(.*?)</code>', page, re.DOTALL)]


# What is wrong.


def test_violations_come_first_and_are_counted_for_each_property(broken_audit: Audited) -> None:
    plain = Plain(broken_audit.page)
    assert broken_audit.summary.violations > 0
    assert f"{broken_audit.summary.violations} violations of" in plain.sections["head"]
    assert list(plain.sections)[1] == "violations"
    for fold in properties():
        count = broken_audit.summary.by_property[fold.name]
        assert (f"{fold.name} {fold.title}: {count} violation" in plain.sections["violations"]) == bool(count)
        assert fold.sentence in plain.sections["violations"]


def test_a_violation_shows_its_text_and_the_events_that_prove_it(broken_audit: Audited) -> None:
    text = Plain(broken_audit.page).sections["violations"]
    assert "B#1 delivered number 2 of A#1's multicasts, which was never sent" in text
    assert re.search(r"0\.080000 s\s+B#1\s+4\s+deliver\s+number 2 of A#1 in view 1@A#1, count 1", text)
    assert '"kind":"deliver"' in text


def test_a_simulated_run_is_replayed_by_its_profile_and_seed(broken_audit: Audited) -> None:
    replays = {line for line in commands(broken_audit.page) if line.startswith("coterie sim")}
    assert replays == {f"coterie sim replay --profile total {SEED} --html run.html"}


def test_the_command_that_shows_a_violation_finds_it_again(
    broken_audit: Audited, capsys: pytest.CaptureFixture[str]
) -> None:
    checks = {line for line in commands(broken_audit.page) if line.startswith("coterie check")}
    assert {Path(shlex.split(line)[-1]).name for line in checks} == {"forged.jsonl", f"total-{SEED}.jsonl"}
    (line,) = [line for line in checks if "forged" in line]
    assert main(shlex.split(line)[1:]) == 1
    assert "which was never sent" in capsys.readouterr().out


def test_a_run_that_went_wrong_has_a_diagram_with_the_proof_ringed(broken_audit: Audited) -> None:
    links = {link for link in Plain(broken_audit.page).links if link.startswith("diagrams/")}
    assert f"diagrams/total-{SEED}.html" in links
    assert len(links) == len(list((broken_audit.out / "diagrams").iterdir())) == 2
    for link in links:
        drawn = (broken_audit.out / link).read_text(encoding="utf-8")
        assert re.search(r'"violations":\[\{"property":"G\d+","text":"[^"]+","events":\[\d', drawn)
        assert EVIL not in drawn


# What was read.


def test_lines_that_are_no_events_are_counted_and_the_first_of_them_shown(broken_audit: Audited) -> None:
    text = Plain(broken_audit.page).sections["read"]
    assert "2 lines could not be read as events" in text
    assert str(broken_audit.traces / "worse.jsonl") in text
    assert "schema version" in text
    assert EVIL in text
    assert re.search(r"live\s+1\s+14\s+2 .*simulated\s+2 ", text)


def test_names_and_lines_from_outside_are_shown_as_text(broken_audit: Audited) -> None:
    assert EVIL not in broken_audit.page
    assert broken_audit.page.count(html.escape(EVIL)) >= 3
    assert Plain(broken_audit.page).tags.count("script") == 1


def test_clocks_that_disagree_are_named(broken_audit: Audited) -> None:
    text = Plain(broken_audit.page).sections["latency"]
    assert "Latency of live runs, in real time" in text
    assert "Left out because they are below zero: 1 of 2." in text  # received before it was sent


# Statistics.


def test_every_hop_duration_and_cost_is_in_the_report(clean_audit: Audited) -> None:
    plain = Plain(clean_audit.page)
    for hop in ("send to receive", "receive to deliver", "send to deliver", "send to ordered", "send to held"):
        assert hop in plain.sections["latency"]
    for what in ("view change", "flush until it holds", "flush held", "senders held up", "handler suspended"):
        assert what in plain.sections["durations"]
    (cost,) = pq.read_table(clean_audit.out / TRAFFIC.name, filters=[("run", "=", f"total-{SEED}")]).to_pylist()
    again = f"{100 * cost['retransmitted'] / cost['sent']:.1f}"
    row = [f"{cost[name]:,}" for name in ("sent", "messages", "delivered", "retransmitted", "unicasts", "acks")]
    row = [cost["run"], *row[:4], again, *row[4:], f"{cost['acks_per_unicast']:.2f}"]
    assert " ".join(row) in " ".join(plain.sections["traffic"].split())
    assert f"Run total-{SEED} (simulated)" in plain.sections["throughput"]
    assert plain.tags.count("figure") == 5  # latency of both origins, throughput of three runs


def test_every_table_is_explained_and_linked(clean_audit: Audited) -> None:
    plain = Plain(clean_audit.page)
    for table in TABLES:
        assert f"{table.name}/" in plain.links
        assert (clean_audit.out / table.name).is_dir()
        assert all(what in plain.sections["tables"] for _, what in table.columns.values())


def test_an_audit_without_violations_says_so_first(clean_audit: Audited) -> None:
    plain = Plain(clean_audit.page)
    assert clean_audit.summary.violations == 0
    assert "No violations" in plain.sections["head"]
    assert 'class="verdict good"' in clean_audit.page
    assert all(fold.sentence in plain.sections["violations"] for fold in properties())
    assert not (clean_audit.out / "diagrams").exists()


# Bounds.


@pytest.fixture(scope="module")
def crowded(spark: SparkSession, broken_audit: Audited) -> Iterator[Audited]:
    """Thousands of violations, in a run that is too large for a diagram."""
    late = [event for event in simulated(SEED) if event.kind == "deliver"][-1].to_json()
    rows = [(f"total-{SEED}", f"number {i}", [late], name) for name in ("G3", "G10") for i in range(2000)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(report_diagrams, "EVENTS_MAX", 300)
        yield rewritten(spark, broken_audit, "crowded", rows, {"G3": 2000, "G10": 2000})


def test_thousands_of_violations_make_a_small_report_that_says_how_many_are_left_out(crowded: Audited) -> None:
    page = crowded.page
    assert len(page) < 500_000
    assert page.count("<h4>") == 100
    text = Plain(page).sections["violations"]
    assert text.index("G3 integrity: 2,000 violations") < text.index("G10 held: 2,000 violations")
    assert text.count("… and 1,950 more of") == 2


def test_a_diagram_of_a_large_run_holds_who_was_there_and_what_is_near_the_proof(crowded: Audited) -> None:
    drawn = (crowded.out / "diagrams" / f"total-{SEED}.html").read_text()
    title = re.search(r"<title>(.*?)</title>", drawn)
    assert title is not None
    assert re.fullmatch(rf"total-{SEED}: 300 of 5,\d\d\d events", title[1])
    events = simulated(SEED)
    assert drawn.count(',"view",{') == sum(event.kind == "view" for event in events)
    model = json.loads(re.findall(r'id="model">(.*?)</script>', drawn)[0])
    delivered = [t for t, *_, kind, _ in model["events"] if kind == "deliver"]
    assert delivered
    assert min(delivered) > sorted(event.t for event in events if event.kind == "deliver")[-200]
    assert not any(kind == "ack" for *_, kind, _ in model["events"])


# Small things.


def test_diagrams_of_different_runs_have_different_and_harmless_names() -> None:
    assert file_name("total-17") == "total-17.html"
    names = [file_name(run) for run in ("a/b", "a_b", "../x", ".hidden", "a b", "x" * 300, "x" * 301, "", EVIL)]
    assert len(set(names)) == len(names)
    assert all(re.fullmatch(r"[A-Za-z0-9_-][A-Za-z0-9._-]{0,130}\.html", name) for name in names)


def test_an_event_is_told_in_words() -> None:
    sent = Event("r", "A", 1, 7, 1.5, "send", first=3, last=3, sender="A#1", view="1@A#1", count=2)
    assert words(sent) == "number 3 of A#1 in view 1@A#1, count 2"
    view = Event("r", "A", 1, 7, 1.5, "view", view="1@A#1", data={"members": ["A#1", "B#1"], "start": {"B#1": 4}})
    assert words(view) == "1@A#1, members A#1 B#1, start B#1:4"
    assert words(Event("r", "A", 1, 7, 1.5, "discard", sender="B#1", first=2, last=9)) == "numbers 2 to 9 of B#1"
    assert len(words(replace(view, data={"digest": {f"m{i}": i for i in range(1000)}}))) < 310


def test_times_of_real_nodes_are_of_the_calendar_and_a_mad_clock_does_no_harm() -> None:
    event = Event("r", "A", 1, 7, 1.5, "send", wall=1.7e9)
    assert when(event) == "2023-11-14 22:13:20.000000"
    assert when(replace(event, wall=None)) == "1.500000 s"
    assert when(replace(event, wall=1e30)) == "1.500000 s"


def test_files_are_named_as_a_shell_knows_them() -> None:
    assert local_path("file:///traces/a%20b.jsonl") == "/traces/a b.jsonl"
    assert local_path("/traces/a%20b.jsonl") == "/traces/a%20b.jsonl"
