"""Trace files: put together by run, cut at holes, never fatal; and `coterie check` on them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tracescript import Script, events, load

from coterie.audit.files import Reading, Run, find, runs
from coterie.cli import main
from coterie.trace import Event

SCRIPTS = load(Path(__file__).parent / "testdata" / "traces")
GOOD = "A start\n B view members=A,B start=A:1\n A view members=A,B\n A send n=1 to=all\n B deliver from=A n=1"


def write(path: Path, trace: list[Event]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(event.to_json() + "\n" for event in trace))
    return path


def read(*paths: Path) -> tuple[list[Run], Reading]:
    reading = Reading()
    return list(runs(find([str(path) for path in paths]), reading)), reading


def kinds(run: Run, node: str) -> list[str]:
    return [event.kind for event in run.events if event.node == node]


def test_a_simulated_run_in_one_file_keeps_its_order(tmp_path: Path) -> None:
    trace = events(GOOD)
    ((run,), reading) = read(write(tmp_path / "run.jsonl", trace))
    assert run.events == trace
    assert run.causal
    assert (reading.events, reading.corrupt, reading.ignored) == (5, 0, 0)


def test_a_run_in_several_files_is_put_together_and_not_taken_for_causal(tmp_path: Path) -> None:
    trace = events(GOOD)
    for node in "AB":
        write(tmp_path / f"{node}.jsonl", [event for event in trace if event.node == node])
    ((run,), _) = read(tmp_path)
    assert not run.causal
    assert sorted(map(Event.to_json, run.events)) == sorted(map(Event.to_json, trace))


def test_a_corrupt_line_is_counted_and_its_node_s_trace_ends_there(tmp_path: Path) -> None:
    lines = [event.to_json() for event in events(GOOD)]
    lines[2] = lines[2][:30]
    (tmp_path / "run.jsonl").write_text("\n".join(lines))
    ((run,), reading) = read(tmp_path)
    assert reading.corrupt == 1
    assert reading.corrupt_places[0].startswith(f"{tmp_path / 'run.jsonl'}:3: ")
    assert reading.ignored == 1
    assert kinds(run, "A") == ["start", "truncated"]
    assert kinds(run, "B") == ["view", "deliver"]


def test_events_whose_keys_have_the_wrong_shape_are_corrupt_lines(tmp_path: Path) -> None:
    broken = events(
        "A send n=1 to=B conn=1\n A receive from=B n=1-5\n A send n=3 to=B conn=1\n A flush_joined leader=B"
    )
    broken[0].data["conn"] = [1]
    broken[1].last = 10**12
    broken[2].data["to"] = 5
    broken[3].data["leader"] = {}
    _, reading = read(write(tmp_path / "run.jsonl", [*events(GOOD), *broken]))
    assert reading.corrupt == 4


def test_a_real_node_that_did_not_stop_in_good_order_is_truncated(tmp_path: Path) -> None:
    trace = events("real\n A start\n B start\n A stop")
    ((run,), _) = read(write(tmp_path / "run.jsonl", trace))
    assert kinds(run, "A") == ["start", "stop"]
    assert kinds(run, "B") == ["start", "truncated"]


def test_a_file_that_is_named_twice_and_events_that_are_there_twice_count_once(tmp_path: Path) -> None:
    file = write(tmp_path / "run.jsonl", events(GOOD))
    assert len(find([str(file), str(tmp_path), str(tmp_path / "*.jsonl")])) == 1
    copy = write(tmp_path / "copy.jsonl", events(GOOD))
    ((run,), reading) = read(file, copy)
    assert len(run.events) == 5
    assert reading.ignored == 5


def test_files_that_share_a_run_in_their_middle_are_read_together(tmp_path: Path) -> None:
    def named(name: str) -> list[Event]:
        trace = events(GOOD)
        for event in trace:
            event.run = name
        return trace

    one, two, three = named("one"), named("two"), named("three")
    write(tmp_path / "1.jsonl", [*one, *two[:2]])
    write(tmp_path / "2.jsonl", three)
    write(tmp_path / "3.jsonl", two[2:])
    found, _ = read(tmp_path)
    assert {run.name: len(run.events) for run in found} == {"one": 5, "two": 5, "three": 5}
    assert {run.name: run.causal for run in found} == {"one": True, "two": False, "three": True}


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.name)
def test_check_says_of_a_file_what_the_properties_say(
    script: Script, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write(tmp_path / "deep" / "run.jsonl", script.events)
    code = main(["check", str(tmp_path), "--json"])
    answer = json.loads(capsys.readouterr().out)
    assert code == (1 if script.expected else 0)
    assert answer["violations"] == len(script.expected)
    assert answer["runs"] == 1
    assert answer["events"] == len(script.events)
    assert [f"{d['property']}: {d['text']}" for d in answer["details"]] == script.expected
    assert all(detail["events"] for detail in answer["details"])


def test_check_tells_a_person_what_is_wrong_and_shows_the_events(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = write(tmp_path / "run.jsonl", events(GOOD + "\n B deliver from=A n=1"))
    assert main(["check", str(file)]) == 1
    out = capsys.readouterr().out
    assert "G3 in run test: B#1 delivered number 1 of A#1's multicasts twice" in out
    assert '"kind":"deliver"' in out
    assert "6 events of 1 runs: 2 violations" in out


def test_check_without_events_is_wrong_usage(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", str(tmp_path / "nowhere.jsonl")]) == 2
    assert "there is no such file or folder" in capsys.readouterr().err
    assert main(["check", str(tmp_path)]) == 2
    assert "no *.jsonl file in that folder" in capsys.readouterr().err
    (tmp_path / "garbage.jsonl").write_bytes(b"\xff\xfe not a trace\n{}\n")
    assert main(["check", str(tmp_path)]) == 2
    assert "no trace events" in capsys.readouterr().err
