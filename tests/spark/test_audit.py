"""`coterie audit`: the verdict of `coterie check`, in tables that others may rely on; and what it refuses to do."""

from __future__ import annotations

import contextlib
import io
import json
import signal
import subprocess
import sys
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow.parquet as pq
import pytest

from coterie.cli import audit, main
from coterie.errors import UserError
from coterie.spark import check
from coterie.spark.audit_folder import NOTE, AuditFolder
from coterie.spark.schema import EVENTS, RUNS, TABLES, VIOLATIONS, reference
from coterie.trace import Event
from spark.traces import FAULTS, damaged, is_bundle, live, plain, read, simulate, write

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

DOCS = Path(__file__).parents[2] / "docs"
RUNS_AUDITED = ("channel-3", "vs-0", "total-0", "live", "damaged")


@dataclass
class Audited:
    traces: Path
    out: Path
    code: int
    answer: dict[str, Any]
    events: list[Event]
    """All that are in the traces."""

    def rows(self, spark: SparkSession, name: str) -> list[dict[str, Any]]:
        return [row.asDict() for row in spark.read.parquet(str(self.out / name)).collect()]

    def of(self, run: str) -> list[Event]:
        return [event for event in self.events if event.run == run]


@pytest.fixture(scope="module")
def audited(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Audited:
    """Simulated runs, one of real processes, one with an altered message, and a line that is none; audited."""
    home = tmp_path_factory.mktemp("audit")
    traces, out = home / "traces", home / "deep" / "out"
    simulate(traces)
    live(traces / "live")
    changed, _ = damaged(read(traces / "vs-0.jsonl"), "damaged", FAULTS["altered"][0])
    write(traces / "damaged.jsonl", changed)
    found = [event for file in sorted(traces.rglob("*.jsonl")) for event in read(file)]
    with (traces / "channel-3.jsonl").open("a") as file:
        file.write('{"v":1,"run":"channel-3","node"')
    code, answer, _ = coterie("audit", str(traces), "--out", str(out), "--json")
    return Audited(traces, out, code, json.loads(answer), found)


def coterie(*arguments: str) -> tuple[int, str, str]:
    """The command in this process, on the session that the tests share: exit code, standard output, standard error."""
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = main(arguments)
    return code, out.getvalue(), err.getvalue()


def test_the_answer_is_that_of_check(audited: Audited) -> None:
    said, reading = plain(audited.traces)
    answer = audited.answer
    assert audited.code == 1
    assert answer["violations"] == sum(map(len, said.values())) == 1
    assert (answer["runs"], answer["events"]) == (len(said), reading.events)
    assert (answer["corrupt_lines"], answer["ignored_events"]) == (1, reading.ignored)
    assert answer["corrupt_places"] == reading.corrupt_places
    assert answer["properties"]["G3"] == 1
    assert sum(answer["properties"].values()) == 1
    (detail,), ((name, text, proof),) = answer["details"], said["damaged"]
    assert (detail["run"], detail["property"], detail["text"]) == ("damaged", name, text)
    assert detail["events"] == [json.loads(line) for line in proof]
    assert answer["report"] == str(audited.out / "report.html")


def test_the_folder_says_what_was_audited_and_that_it_is_done(audited: Audited) -> None:
    note = json.loads((audited.out / NOTE).read_text())
    assert note["state"] == "done"
    assert note["traces"] == [str(audited.traces)]
    assert note["violations"] == 1
    assert "G3" in (audited.out / "report.html").read_text()


def test_the_tables_have_exactly_the_columns_that_are_documented(spark: SparkSession, audited: Audited) -> None:
    for table in TABLES:
        found = spark.read.parquet(str(audited.out / table.name))
        assert dict(found.dtypes) == {name: kind for name, (kind, _) in table.columns.items()}, table.name
        assert found.columns == [*(name for name in table.columns if name not in table.partitions), *table.partitions]


def test_the_page_about_audits_has_the_current_reference_of_tables() -> None:
    assert "\n".join(reference()).strip() in (DOCS / "audit.md").read_text()


def test_every_event_is_in_the_table_as_it_was_written(spark: SparkSession, audited: Audited) -> None:
    rows = audited.rows(spark, "events")
    assert len(rows) == len(audited.events)
    one = next(row for row in rows if row["kind"] == "view" and row["run"] == "total-0")
    event = next(e for e in audited.of("total-0") if (e.node, e.inc, e.n) == (one["node"], one["inc"], one["n"]))
    assert json.loads(one.pop("data")) == event.data
    assert one.pop("file") == str(audited.traces / "total-0.jsonl")
    of_the_file = sorted((row for row in rows if row["run"] == "total-0"), key=lambda row: row["place"])
    in_file_order = [(e.node, e.inc, e.n) for e in read(audited.traces / "total-0.jsonl")]
    assert [(row["node"], row["inc"], row["n"]) for row in of_the_file] == in_file_order
    del one["place"]
    assert all(getattr(event, name) == value for name, value in one.items())


def test_runs_are_told_with_their_size_and_how_they_were_read(spark: SparkSession, audited: Audited) -> None:
    rows = {row["run"]: row for row in audited.rows(spark, "runs")}
    assert sorted(rows) == sorted(RUNS_AUDITED)
    for run, row in rows.items():
        mine = audited.of(run)
        moments = [event.t if event.wall is None else event.wall for event in mine]
        assert row["events"] == len(mine)
        assert row["files"] == (4 if run == "live" else 1)
        assert row["incarnations"] == len({(event.node, event.inc) for event in mine if event.node != "world"})
        assert row["causal"] == (run != "live")
        assert row["seconds"] == pytest.approx(max(moments) - min(moments))
        assert row["violations"] == (run == "damaged")
        assert row["origin"] == ("live" if run == "live" else "simulated")


def test_members_are_told_with_how_their_traces_end(spark: SparkSession, audited: Audited) -> None:
    rows = {(row["run"], row["node"], row["inc"]): row for row in audited.rows(spark, "members")}
    by_member: dict[tuple[str, str, int], list[Event]] = {}
    for event in audited.events:
        if event.node != "world":
            by_member.setdefault((event.run, event.node, event.inc), []).append(event)
    assert rows.keys() == by_member.keys()
    for who, mine in by_member.items():
        last = max(mine, key=lambda event: event.n).kind
        assert rows[who]["events"] == len(mine)
        assert (rows[who]["first_t"], rows[who]["last_t"]) == (min(e.t for e in mine), max(e.t for e in mine))
        assert rows[who]["end"] == (last if last in ("stop", "crash") else "truncated" if who[0] == "live" else "end")
    assert rows["live", "cy", 1]["end"] == "truncated"
    assert Counter(row["end"] for row in rows.values()).keys() == {"stop", "crash", "truncated", "end"}


def test_views_are_told_with_their_members_and_where_they_come_from(spark: SparkSession, audited: Audited) -> None:
    rows = {(row["run"], row["node"], row["inc"], row["n"]): row for row in audited.rows(spark, "views")}
    views = [event for event in audited.events if event.kind == "view"]
    assert len(rows) == len(views)
    for event in views:
        row = rows[event.run, event.node, event.inc, event.n]
        assert (row["t"], row["view"]) == (event.t, event.view)
        assert row["members"] == event.data["members"]
        assert row["before"] == event.data.get("before")
        assert row["agreed"] == event.data.get("agreed", False)
        assert row["merge"] == ("subgroups" in event.data)
    assert any(row["merge"] for row in rows.values())


def test_deliveries_are_told_with_the_time_since_they_were_sent(spark: SparkSession, audited: Audited) -> None:
    rows = {(row["run"], row["node"], row["inc"], row["n"]): row for row in audited.rows(spark, "deliveries")}
    delivered = [e for e in audited.events if e.kind == "deliver" and e.data.get("app") is not False]
    assert rows.keys() == {(e.run, e.node, e.inc, e.n) for e in delivered}
    sends = {
        (e.run, e.sender, e.first, e.data.get("conn"), e.data.get("to")): e for e in audited.events if e.kind == "send"
    }
    for event in delivered:
        row, conn = rows[event.run, event.node, event.inc, event.n], event.data.get("conn")
        sent = sends.get(
            (event.run, event.sender, event.first, conn, "all" if is_bundle(event) else f"{event.node}#{event.inc}")
        )
        assert row["multicast"] == is_bundle(event)
        assert (row["sender"], row["first"], row["pos"]) == (event.sender, event.first, event.pos)
        if sent is None:
            assert row["latency"] is None
        else:
            clocks = (event.t, sent.t) if event.wall is None or sent.wall is None else (event.wall, sent.wall)
            assert row["latency"] == pytest.approx(clocks[0] - clocks[1])
    assert any(row["latency"] for row in rows.values())


def test_the_events_of_an_audit_give_the_same_audit_again(
    spark: SparkSession, audited: Audited, tmp_path: Path
) -> None:
    out = tmp_path / "again"
    code, text, steps = coterie("audit", str(audited.out), "--out", str(out), "--split-above", "1000")
    assert code == 1
    assert "G3 in run damaged" in text
    assert f"{audited.answer['events']:,} events of {audited.answer['runs']} runs: 1 violations" in text
    assert f"report: {out / 'report.html'}" in text
    assert [line.split(":")[0] for line in steps.splitlines()] == [f"step {n} of 4" for n in range(1, 5)]
    for table in TABLES:
        if table.name not in ("corrupt", "latency", "durations"):  # percentiles are near enough, not to the bit
            one, other = (spark.read.parquet(str(folder / table.name)) for folder in (audited.out, out))
            assert one.exceptAll(other).isEmpty(), table.name
            assert one.count() == other.count()


def test_what_is_wrong_with_the_question_is_one_line(spark: SparkSession, tmp_path: Path) -> None:
    out = str(tmp_path / "out")
    (tmp_path / "empty").mkdir()
    (tmp_path / "garbage").mkdir()
    (tmp_path / "garbage" / "a.jsonl").write_text("\n\nnothing of the kind\n")
    (tmp_path / "void").mkdir()
    (tmp_path / "void" / "a.jsonl").touch()
    for arguments, told in (
        ([str(tmp_path / "nowhere"), "--out", out], "nowhere: there is no such file or folder"),
        ([str(tmp_path / "empty"), "--out", out], "no *.jsonl file in that folder"),
        ([str(tmp_path / "garbage"), "--out", out], f"{tmp_path}/garbage/a.jsonl:3: Expecting value"),
        ([str(tmp_path / "void"), "--out", out], "no trace events in"),
        (["--out", out], "name the files or folders"),
        ([str(tmp_path / "void"), "--stream", str(tmp_path), "--out", out], "only one of them"),
        ([str(tmp_path / "void"), "--out", out, "--split-above", "0"], "--split-above must be 1 at least"),
        ([str(tmp_path / "void" / "a.jsonl"), "--out", str(tmp_path / "void")], "name another folder"),
    ):
        code, _, error = coterie("audit", *arguments)
        assert code == 2
        assert told in error.splitlines()[-1]
        assert "Traceback" not in error
        assert not Path(out).exists()


def make_audit(path: Path) -> AuditFolder:
    """A folder as an audit leaves it, without the audit."""
    folder = AuditFolder(path)
    folder.begin(["x"], [], overwrite=False)
    for table in TABLES:
        folder.write_empty(table)
    (path / "report.html").write_text("a report")
    (path / "diagrams").mkdir()
    (path / "diagrams" / "run.html").write_text("a picture")
    return folder


def test_an_audit_in_the_way_is_replaced_only_if_that_is_asked_for(tmp_path: Path) -> None:
    folder = make_audit(tmp_path / "out")
    with pytest.raises(UserError, match="holds an audit already: name another folder, or add --overwrite"):
        folder.begin(["y"], [], overwrite=False)
    assert (tmp_path / "out" / "report.html").exists()
    folder.begin(["y"], [], overwrite=True)
    assert [path.name for path in (tmp_path / "out").iterdir()] == [NOTE]
    assert json.loads((tmp_path / "out" / NOTE).read_text())["traces"] == ["y"]


def test_what_is_left_of_an_interrupted_audit_can_be_replaced(tmp_path: Path) -> None:
    folder = make_audit(tmp_path / "out")
    deep = tmp_path / "out" / RUNS.name / "_temporary" / "0" / "_temporary"
    deep.mkdir(parents=True)
    (deep / "part-0").touch()
    (tmp_path / "out" / EVENTS.name / "_part-00003.parquet-1234").touch()
    folder.begin(["y"], [], overwrite=True)
    assert [path.name for path in (tmp_path / "out").iterdir()] == [NOTE]


@pytest.mark.parametrize("overwrite", [False, True])
def test_a_folder_with_other_things_in_it_is_left_alone(tmp_path: Path, overwrite: bool) -> None:
    (tmp_path / "mine.txt").write_text("precious")
    with pytest.raises(UserError, match="holds other things than an audit"):
        AuditFolder(tmp_path).begin(["x"], [], overwrite)
    assert (tmp_path / "mine.txt").read_text() == "precious"


@pytest.mark.parametrize(
    "name", ["events/mine.txt", "violations/mine/a.parquet", "diagrams/notes.txt", "runs/part-1.parquet/mine.txt"]
)
def test_what_an_audit_did_not_write_is_never_deleted(tmp_path: Path, name: str) -> None:
    folder = make_audit(tmp_path)
    (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / name).write_text("precious")
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(UserError, match="was not written by an audit: move it away first"):
        folder.begin(["x"], [], overwrite=True)
    assert sorted(tmp_path.rglob("*")) == before


def test_other_things_beside_an_audit_stay(tmp_path: Path) -> None:
    folder = make_audit(tmp_path)
    (tmp_path / "notes.txt").write_text("mine")
    folder.begin(["x"], [], overwrite=True)
    assert sorted(path.name for path in tmp_path.iterdir()) == [NOTE, "notes.txt"]


def test_a_table_without_rows_can_be_read_by_anyone(spark: SparkSession, tmp_path: Path) -> None:
    folder = AuditFolder(tmp_path)
    folder.write(VIOLATIONS, spark.createDataFrame([], VIOLATIONS.ddl))
    found = spark.read.parquet(str(tmp_path / VIOLATIONS.name))
    assert dict(found.dtypes) == {name: kind for name, (kind, _) in VIOLATIONS.columns.items()}
    assert found.count() == 0
    assert pq.read_table(tmp_path / VIOLATIONS.name).num_rows == 0


def test_a_folder_whose_name_is_hidden_works(spark: SparkSession, tmp_path: Path) -> None:
    folder = AuditFolder(tmp_path / "_hidden" / ".out")
    folder.begin(["x"], [], overwrite=False)
    rows = [("r", "text", ["a"], "G1")]
    folder.write(VIOLATIONS, spark.createDataFrame(rows, VIOLATIONS.ddl))
    assert folder.read(spark, VIOLATIONS).count() == 1


def test_the_limit_that_help_names_is_the_one_of_the_check() -> None:
    assert audit.SPLIT_ABOVE == check.WHOLE_MAX


def test_an_interrupted_audit_exits_with_130_and_can_be_replaced(audited: Audited, tmp_path: Path) -> None:
    out = tmp_path / "out"
    arguments = [
        sys.executable,
        "-m",
        "coterie",
        "audit",
        str(audited.traces),
        "--out",
        str(out),
        "--master",
        "local[1]",
    ]
    with subprocess.Popen(arguments, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        for line in process.stderr:
            if line.startswith("step 2"):
                process.send_signal(signal.SIGINT)
                break
        rest = process.stderr.read()
        assert process.wait(120) == 130
    assert "Traceback" not in rest
    assert json.loads((out / NOTE).read_text())["state"] == "running"
    AuditFolder(out).begin(["x"], [], overwrite=True)
    assert [path.name for path in out.iterdir()] == [NOTE]
