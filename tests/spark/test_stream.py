"""The audit as a stream, on real Spark: what it tells and when, what it keeps over a kill, what it sets aside."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil
import pyarrow as pa
import pyarrow.dataset as ds
import pytest
from tracescript import events

from coterie.audit import Checker, files, properties
from coterie.audit.live import Patience
from coterie.errors import UserError
from coterie.runtime.aio import Segments, open_trace
from coterie.sim.profiles import profile
from coterie.sim.runner import trace_plan
from coterie.spark.stream import Outcome, Stream, Watch, claimed
from coterie.spark.stream_chunks import files_of, gathered, unpacked
from coterie.spark.stream_tables import written
from coterie.trace import Event

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PATIENCE = 600.0
"""Seconds that a test waits at most, on a machine that has other things to do."""
Found = list[tuple[str, str, str]]
"""Run, property, text."""


def write(folder: Path, name: str, trace: Iterable[Event]) -> None:
    """As nodes do it: under a hidden name first."""
    folder.mkdir(parents=True, exist_ok=True)
    hidden = folder / f".{name}.jsonl"
    hidden.write_text("".join(event.to_json() + "\n" for event in trace))
    hidden.rename(folder / f"{name}.jsonl")


def live(run: str, text: str) -> list[Event]:
    """Events of real nodes of that run."""
    trace = events(f"real\n{text}")
    for event in trace:
        event.run = run
    return trace


def simulated(seed: int) -> list[Event]:
    return trace_plan(profile("channel").make(seed))[1]


def plain(folder: Path) -> tuple[Found, files.Reading, int]:
    """What `coterie check` finds in those files."""
    reading = files.Reading()
    found: Found = []
    runs = 0
    for run in files.runs(files.find([str(folder)]), reading):
        checker = Checker(properties(run.causal))
        for event in run.events:
            checker.feed(event)
        found += [(run.name, violation.property, violation.text) for violation in checker.finish()]
        runs += 1
    return sorted(found), reading, runs


def table(out: Path, name: str) -> list[dict[str, Any]]:
    """The rows of a table, read as anybody would who has no Spark."""
    parts = [str(file) for file in written(out / name)]
    if not parts:
        return []
    rows: list[dict[str, Any]] = ds.dataset(parts, partitioning="hive").to_table().to_pylist()
    return rows


def found_in(out: Path, *names: str) -> Found:
    return sorted((row["run"], row["property"], row["text"]) for name in names for row in table(out, name))


def until(condition: Callable[[], bool], what: str, process: subprocess.Popen[str] | None = None) -> None:
    """Wait for it; not for ever, and not if the process that should do it has ended."""
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert process is None or process.poll() is None, process.communicate()
        assert time.monotonic() < deadline, f"not within {PATIENCE:g} s: {what}"
        time.sleep(0.05)


@contextmanager
def following(spark: SparkSession, watch: Watch) -> Iterator[Stream]:
    """A stream that follows its folder in a thread of its own, until the block ends or it has done its work."""
    stopped = threading.Event()
    with claimed(watch):
        stream = Stream(spark, watch)
        failed: list[BaseException] = []

        def follow() -> None:
            try:
                stream.follow(stopped, lambda _: None)
            except BaseException as error:
                failed.append(error)

        thread = threading.Thread(target=follow)
        thread.start()
        try:
            yield stream
        finally:
            stopped.set()
            thread.join(PATIENCE)
        assert not failed, failed


def available(spark: SparkSession, folder: Path, out: Path) -> Outcome:
    """With no patience at all: in any batch after the one that brought it, every run would be over."""
    watch = Watch(folder, out, out / "checkpoint", available_now=True, patience=Patience(0.001, 0.001))
    with claimed(watch):
        stream = Stream(spark, watch)
        stream.follow(threading.Event(), lambda _: None)
        return stream.outcome()


@pytest.mark.timeout(1500)
def test_what_is_available_now_gets_the_verdict_of_the_batch(spark: SparkSession, tmp_path: Path) -> None:
    folder, out = tmp_path / "traces", tmp_path / "out"
    broken = simulated(3)
    for event in [event for event in broken if event.kind == "deliver"][50:53]:
        event.sum = 99
    write(folder / "sim", "broken", broken)
    write(folder / "sim", "whole", simulated(4))
    trace = simulated(5)
    write(folder, "first", trace[:700])
    write(folder, "second", [*trace[600:1500], *trace[1501:]])  # some twice, one missing
    one = live("live", "A start\n A view members=A,B\n A send n=1 to=all\n A send n=2 to=all\n A stop")
    other = live("live", "B start\n B view members=A,B start=A:1\n B deliver from=A n=1 sum=5\n B deliver from=A n=2")
    write(folder, "A-1", one)
    tracer = open_trace(folder, "live", "B", 1, lambda: 0.0, lambda: 1.0, Segments())
    tracer.path.with_name(f".{tracer.path.name}").write_text("".join(event.to_json() + "\n" for event in other))
    tracer._file._shut()  # killed, a while ago: the segment stays hidden
    os.utime(tracer.path.with_name(f".{tracer.path.name}"), (1.7e9, 1.7e9))
    (folder / "odd.jsonl").write_text('{"v":1}\n\nnot json\n' + one[0].to_json().replace('"n":0', '"n":true'))
    expected, reading, runs = plain(folder)
    assert {name for _, name, _ in expected} >= {"G3"}
    outcome = available(spark, folder, out)
    assert found_in(out, "violations", "open_violations") == expected
    assert (outcome.violations, outcome.runs, outcome.events) == (len(expected), runs, reading.events)
    assert (outcome.corrupt, outcome.ignored, outcome.late) == (reading.corrupt, reading.ignored, 0)
    places = [f"{row['file']}:{row['place']}: {row['reason']}" for row in table(out, "corrupt")]
    assert sorted(places) == sorted(reading.corrupt_places)
    # Again, with nothing new: the same answer, and nothing is told twice.
    assert available(spark, folder, out) == outcome
    assert found_in(out, "violations", "open_violations") == expected


@pytest.mark.timeout(1500)
def test_a_violation_is_told_while_its_run_goes_on_and_what_comes_late_is_set_aside(
    spark: SparkSession, tmp_path: Path
) -> None:
    folder, out = tmp_path / "traces", tmp_path / "out"
    trace = live(
        "run",
        "A start\n A view members=A\n A send n=1 to=all\n A deliver from=A n=1 sum=9\n"
        "A send n=2 to=all\n A deliver from=A n=2\n A send n=3 to=all\n A deliver from=A n=3\n A stop",
    )
    ended = live("ended", "B start\n B stop")
    write(folder, "1", trace[:2])
    watch = Watch(folder, out, out / "checkpoint", 0.2, patience=Patience(3.0, 1000.0), adopt_after=1.0)
    with following(spark, watch) as stream:
        until(lambda: stream.seen.lines == 2, "the first file is read")
        write(folder, "2", trace[2:5])
        until(lambda: bool(table(out, "violations")), "the violation is told")
        text = "A#1 delivered number 1 of A#1's multicasts with another content than was sent"
        assert found_in(out, "violations") == [("run", "G3", text)]
        # One file is missing for too long: the trace ends before it, and so does the run; then the file comes.
        write(folder, "4", trace[6:])
        until(lambda: bool(table(out, "runs")), "the hole ends the run's only incarnation, and the run")
        write(folder, "3", trace[5:6])
        write(folder, "5", ended)
        until(lambda: len(table(out, "late")) == 1, "the missing file is set aside")
        until(lambda: len(table(out, "runs")) == 2, "a run that has ended is over soon")
        write(folder, "6", live("run", "A#2 start\n A#2 stop"))
        until(lambda: len(table(out, "runs")) == 3, "a group that comes back is judged anew")
    (late,) = table(out, "late")
    assert (late["run"], late["node"], late["n"], late["reason"]) == ("run", "A", 5, "over")
    assert late["line"] == trace[5].to_json()
    assert found_in(out, "violations") == [("run", "G3", text)]
    assert stream.outcome().late == 1


@contextmanager
def coterie(*words: str) -> Iterator[subprocess.Popen[str]]:
    """The command, in a process of its own that does not outlive the block."""
    env = {**os.environ, "JAVA_TOOL_OPTIONS": "-XX:TieredStopAtLevel=1"}  # a JVM that starts rather than runs fast
    command = [sys.executable, "-m", "coterie", *words]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=env)
    try:
        yield process
    finally:
        kill(process)


def kill(process: subprocess.Popen[str]) -> None:
    """kill -9, and so its JVM and workers: nothing that is under way may still come to a good end."""
    if process.poll() is None:
        itself = psutil.Process(process.pid)
        everybody = [*itself.children(recursive=True), itself]
        for step in (psutil.Process.suspend, psutil.Process.kill):
            for each in everybody:
                with suppress(psutil.NoSuchProcess):  # workers of Spark come and go
                    step(each)
        process.communicate()


@pytest.mark.timeout(1500)
def test_the_traces_of_real_processes_stream_clean_down_to_what_a_killed_one_left(
    spark: SparkSession, tmp_path: Path
) -> None:
    folder, out = tmp_path / "traces", tmp_path / "out"
    folder.mkdir()
    watch = Watch(folder, out, out / "checkpoint", 1.0, adopt_after=1.0)
    words = ("--json", "--rate", "40", "--trace-segment-seconds", "0.5", "--out", str(folder))
    with coterie("demo", "group", *words) as demo, following(spark, watch) as stream:
        told = json.loads(demo.communicate(timeout=PATIENCE)[0])
        assert told["good"]
        until(lambda: not list(folder.rglob(".*.jsonl")), "what cy was writing when it was killed is taken over")
        until(lambda: stream.seen.lines >= told["events"], "all of it is read")
    outcome = stream.outcome()
    assert stream.adopted in (0, 1)  # none: it was killed before the first line of a segment, and an empty one goes
    assert outcome.violations == 0
    assert (outcome.runs, outcome.late, outcome.ignored) == (1, 0, 0)
    assert outcome.events == told["events"]


def broken(run: str) -> list[list[Event]]:
    """Segments of a run in which some deliveries differ from what was sent, and one bundle was never sent at all."""
    text = "A start\n A view members=A,B\n B start\n B view members=A,B start=A:1\n"
    for number in range(1, 40):
        text += f"A send n={number} to=all\n B deliver from=A n={number} sum={number + number % 7 // 6}\n"
    trace = live(run, f"{text} B deliver from=A n=40\n A stop\n B stop")
    nodes = [[event for event in trace if event.node == node] for node in "AB"]
    return [node[at : at + 10] for at in range(0, 50, 10) for node in nodes if node[at : at + 10]]


def in_a_batch(out: Path) -> bool:
    """Whether a batch was begun that is not done."""
    begun, done = (
        {file.name for file in (out / "checkpoint" / log).glob("[0-9]*") if file.name.isdigit()}
        for log in ("offsets", "commits")
    )
    return bool(begun - done)


@pytest.mark.timeout(2000)
def test_killed_in_a_batch_and_started_again_it_loses_no_violation_and_tells_none_twice(tmp_path: Path) -> None:
    folder, out = tmp_path / "traces", tmp_path / "out"
    runs = {f"run-{number}": broken(f"run-{number}") for number in range(4)}
    pieces = [(f"{name}.{at}", segment) for name, parts in runs.items() for at, segment in enumerate(parts)]
    for name, segment in pieces[:12]:
        write(folder, name, segment)
    command = (
        "audit", "--stream", str(folder), "--out", str(out), "--master", "local[2]", "--trigger", "0.3",
        "--lateness", "600", "--idle", "1000", "--json",
    )  # fmt: skip
    sources = out / "checkpoint" / "sources" / "0"
    with coterie(*command) as process:
        until(lambda: bool(table(out, "violations")), "the first violations", process)
        before = len(list(sources.iterdir()))
        for name, segment in pieces[12:24]:
            write(folder, name, segment)
        until(lambda: len(list(sources.iterdir())) > before, "the next files are seen", process)
        until(lambda: in_a_batch(out), "it is in a batch", process)
        kill(process)
    assert in_a_batch(out)
    for name, segment in pieces[24:]:
        write(folder, name, segment)
    expected, reading, _ = plain(folder)
    certain = [each for each in expected if "never sent" not in each[2]]
    with coterie(*command) as process:
        until(lambda: len(table(out, "violations")) >= len(certain), "all that is certain", process)
        process.send_signal(signal.SIGTERM)
        answer = json.loads(process.communicate(timeout=PATIENCE)[0])
        assert process.returncode == 1
    assert found_in(out, "violations") == certain
    assert found_in(out, "violations", "open_violations") == expected
    assert (answer["violations"], answer["runs"], answer["open_runs"]) == (len(expected), 4, 4)
    assert answer["events"] == reading.events == sum(len(segment) for _, segment in pieces)
    assert answer["interrupted"]
    assert "run-3" in Path(answer["report"]).read_text()


def test_chunks_bring_the_events_of_a_run_back_in_the_order_of_their_file() -> None:
    one, other = (live(name, "A start\n A view members=A\n A send n=1 to=all\n A stop") for name in ("one", "other"))
    mixed = [event for pair in zip(one, other, strict=True) for event in pair]
    lines = [event.to_json() for event in mixed]
    lines[2] = lines[2].replace('"v":1,', '"v": 1, ')  # an event, but not as it is usually written
    lines.insert(4, "no event")
    rows = {"value": [line.encode() for line in lines], "file": ["file:///a%20b"] * 9, "block": [0] * 9}
    chunks = [row for batch in gathered(iter([pa.RecordBatch.from_pydict(rows)])) for row in batch.to_pylist()]
    for run, trace in (("one", one), ("other", other)):
        mine = [(row["file"], row["payload"]) for row in chunks if row["what"] == "events" and row["key"] == run]
        assert list(files_of(reversed(mine))) == [("/a b", trace)]
    (corrupt,) = [row for row in chunks if row["what"] == "corrupt"]
    assert unpacked(corrupt["payload"]).column("place").to_pylist() == [4]


def test_a_stream_has_its_folders_for_itself_and_keeps_to_what_it_followed(tmp_path: Path) -> None:
    here, there, out = tmp_path / "here", tmp_path / "there", tmp_path / "out"
    here.mkdir()
    there.mkdir()
    watch = Watch(here, out, out / "checkpoint")
    with claimed(watch), pytest.raises(UserError, match="another stream works with this checkpoint"):
        claimed(watch).__enter__()
    with claimed(watch):
        pass
    with pytest.raises(UserError, match=f"this checkpoint has the folder {here}"):
        claimed(Watch(there, out, out / "checkpoint")).__enter__()
    with pytest.raises(UserError, match="holds other things than a stream of this checkpoint"):
        claimed(Watch(here, out, tmp_path / "checkpoint")).__enter__()
    with pytest.raises(UserError, match="is in the folder that is followed"):
        claimed(Watch(here, here / "out", here / "checkpoint")).__enter__()
    with pytest.raises(UserError, match="is no folder"):
        claimed(Watch(tmp_path / "nowhere", out, out / "checkpoint")).__enter__()
