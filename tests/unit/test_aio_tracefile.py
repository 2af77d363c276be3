"""Trace files: what is flushed is in the file, whatever happens; segments have their name when they are whole."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from coterie.audit import files
from coterie.errors import UserError
from coterie.runtime.aio import AioRuntime, Segments, open_trace, run
from coterie.runtime.aio.tracefile import FLUSH_SIZE, FileTracer, adopt
from coterie.trace import Event


def trace_in(folder: Path, node: str = "a") -> FileTracer:
    return open_trace(folder, "run", node, 7, lambda: 1.5, lambda: 1000.25)


def events_of(path: Path) -> list[Event]:
    return [Event.from_json(line) for line in path.read_text().splitlines()]


def test_events_reach_the_file_on_flush_and_are_read_back_equal(tmp_path: Path) -> None:
    trace = trace_in(tmp_path / "traces")
    trace.emit("start", sender="a#7", stack=["TCP"])
    assert trace.path == tmp_path / "traces" / "a-7.jsonl"
    assert trace.path.read_text() == ""
    trace.flush()
    (event,) = events_of(trace.path)
    assert (event.run, event.node, event.inc, event.n, event.t, event.wall) == ("run", "a", 7, 0, 1.5, 1000.25)
    assert (event.kind, event.sender, event.data) == ("start", "a#7", {"stack": ["TCP"]})
    trace.close()


@pytest.mark.parametrize("segments", [None, Segments(5.0, 1 << 20)])
def test_a_trace_is_for_nobody_else_to_read(tmp_path: Path, segments: Segments | None) -> None:
    folder = tmp_path / "traces"
    trace = open_trace(folder, "run", "a", 7, lambda: 1.5, lambda: 1000.25, segments)
    trace.emit("start", sender="a#7", stack=["TCP"])
    trace.close()
    assert folder.stat().st_mode & 0o777 == 0o700
    assert {path.stat().st_mode & 0o777 for path in folder.iterdir()} == {0o600}


def test_a_full_buffer_is_written_without_being_asked(tmp_path: Path) -> None:
    trace = trace_in(tmp_path)
    emitted = 0
    while trace.path.stat().st_size == 0:
        trace.emit("buffers", window=emitted)
        emitted += 1
    assert FLUSH_SIZE <= trace.path.stat().st_size < FLUSH_SIZE + 1000
    assert [event.n for event in events_of(trace.path)] == list(range(emitted))
    trace.close()


def test_closing_flushes_and_later_events_are_dropped(tmp_path: Path) -> None:
    trace = trace_in(tmp_path)
    trace.emit("start")
    trace.close()
    assert not trace.on
    trace.emit("stop")
    trace.flush()
    trace.close()
    assert [event.kind for event in events_of(trace.path)] == ["start"]


def test_what_was_flushed_survives_kill_9_and_the_rest_does_not_spoil_it(tmp_path: Path) -> None:
    script = (
        "import os, signal, sys; from pathlib import Path; from coterie.runtime.aio import open_trace\n"
        "trace = open_trace(Path(sys.argv[1]), 'run', 'b', 1, lambda: 0.0, None)\n"
        "for i in range(100): trace.emit('send', first=i, last=i)\n"
        "trace.flush(); trace.emit('deliver', first=0, last=0)\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    ended = subprocess.run([sys.executable, "-c", script, str(tmp_path)], check=False)
    assert ended.returncode == -signal.SIGKILL
    events = events_of(tmp_path / "b-1.jsonl")
    assert [event.first for event in events] == list(range(100))
    assert {event.kind for event in events} == {"send"}


def test_a_disk_that_refuses_is_logged_once_and_ends_the_trace_only(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    os.symlink("/dev/full", tmp_path / "a-7.jsonl")
    trace = trace_in(tmp_path)
    for _ in range(2):
        trace.emit("start")
        trace.flush()
    trace.close()
    assert [record.name for record in caplog.records] == ["coterie.runtime"]
    assert "a-7.jsonl ends here: No space left" in caplog.text


def test_a_folder_that_cannot_be_written_is_a_user_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match=r"cannot write the trace .*choose another folder"):
        trace_in(tmp_path / "file")


def test_a_node_name_cannot_lead_out_of_the_folder(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="cannot begin a file name"):
        trace_in(tmp_path, node="../a")


# Segments.


def segments_in(folder: Path, segments: Segments) -> FileTracer:
    return open_trace(folder, "run", "a", 7, lambda: 1.5, lambda: 1000.25, segments)


def seen(folder: Path) -> list[Path]:
    """What a reader sees that does not look for hidden files."""
    return sorted(path for path in folder.iterdir() if not path.name.startswith("."))


def hidden(folder: Path) -> list[Path]:
    return sorted(folder.glob(".*"))


def numbers(paths: list[Path]) -> list[int]:
    return [event.n for path in paths for event in events_of(path)]


def test_a_segment_has_its_name_when_it_is_full_and_names_are_in_order(tmp_path: Path) -> None:
    trace = segments_in(tmp_path, Segments(seconds=1000, bytes=300))
    emitted = 0
    while len(seen(tmp_path)) < 12:
        trace.emit("buffers", window=emitted)
        trace.flush()
        emitted += 1
        assert sorted(numbers([*seen(tmp_path), *hidden(tmp_path)])) == list(range(emitted))
    assert numbers(seen(tmp_path)) == list(range(emitted))
    assert all(300 <= path.stat().st_size < 500 for path in seen(tmp_path))
    trace.emit("stop")
    trace.close()
    assert numbers(seen(tmp_path)) == list(range(emitted + 1))
    assert hidden(tmp_path) == []


def test_what_is_flushed_is_in_a_file_though_the_segment_has_no_name_yet(tmp_path: Path) -> None:
    trace = segments_in(tmp_path, Segments(seconds=1000))
    trace.emit("start")
    trace.flush()
    assert seen(tmp_path) == []
    assert [event.kind for path in hidden(tmp_path) for event in events_of(path)] == ["start"]
    trace.seal()
    assert [event.kind for path in seen(tmp_path) for event in events_of(path)] == ["start"]
    trace.close()


def test_a_node_that_has_nothing_more_to_say_leaves_no_empty_segment(tmp_path: Path) -> None:
    trace = segments_in(tmp_path, Segments(seconds=1000))
    trace.close()
    assert list(tmp_path.iterdir()) == []


def test_under_a_runtime_a_segment_grows_old_by_itself(tmp_path: Path) -> None:
    async def main() -> None:
        trace = segments_in(tmp_path, Segments(seconds=0.05))
        runtime = AioRuntime("a", trace=trace)
        for count in (1, 2, 3):
            trace.emit("buffers", window=count)  # nobody flushes
            while len(seen(tmp_path)) < count:
                slept = runtime.future()
                runtime.call_later(0.01, slept.set_result, None)
                await slept
        await runtime.close()
        trace.close()

    run(main())
    assert numbers(seen(tmp_path)) == [0, 1, 2]


def test_without_a_runtime_a_segment_is_found_old_when_something_is_flushed(tmp_path: Path) -> None:
    trace = segments_in(tmp_path, Segments(seconds=0))
    trace.emit("start")
    trace.flush()
    assert numbers(seen(tmp_path)) == [0]
    trace.close()


def test_two_processes_of_the_same_name_and_incarnation_never_write_to_one_segment(tmp_path: Path) -> None:
    one, two = (segments_in(tmp_path, Segments()) for _ in range(2))
    for trace in (one, two):
        trace.emit("start")
        trace.close()
    assert [len(events_of(path)) for path in seen(tmp_path)] == [1, 1]


def test_what_a_killed_node_left_is_read_where_it_is_and_adopted_when_it_is_old(tmp_path: Path) -> None:
    script = (
        "import os, signal, sys; from pathlib import Path; from coterie.runtime.aio import Segments, open_trace\n"
        "trace = open_trace(Path(sys.argv[1]), 'run', 'b', 1, lambda: 0.0, lambda: 1.0, Segments(1000))\n"
        "trace.emit('start'); trace.seal(); trace.emit('send', first=1); trace.flush(); trace.emit('deliver')\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    subprocess.run([sys.executable, "-c", script, str(tmp_path)], check=False)
    assert numbers(seen(tmp_path)) == [0]
    (found,) = files.runs(files.find([str(tmp_path)]), files.Reading())
    assert [event.kind for event in found.events] == ["start", "send", "truncated"]
    assert adopt(tmp_path, age=1000) == []
    (adopted,) = adopt(tmp_path, age=0)
    assert adopted in seen(tmp_path)
    assert numbers(seen(tmp_path)) == [0, 1]
    assert hidden(tmp_path) == []


def test_what_was_killed_before_the_first_line_of_a_segment_leaves_nothing_behind(tmp_path: Path) -> None:
    trace = segments_in(tmp_path, Segments(1000))
    trace.emit("start")
    trace.flush()
    (left,) = hidden(tmp_path)
    trace.close()
    left.touch()
    assert adopt(tmp_path, age=0) == []
    assert hidden(tmp_path) == []
    assert numbers(seen(tmp_path)) == [0]


def test_what_a_node_still_writes_is_not_adopted_nor_are_files_of_others(tmp_path: Path) -> None:
    trace = segments_in(tmp_path, Segments(1000))
    trace.emit("start")
    trace.flush()
    (tmp_path / ".vs-17.jsonl").write_text("{}")
    assert adopt(tmp_path, age=0) == []
    trace.close()
    assert [path.name for path in hidden(tmp_path)] == [".vs-17.jsonl"]


def test_a_segment_that_gets_its_name_while_somebody_reads_the_folder_is_not_missed(tmp_path: Path) -> None:
    trace = segments_in(tmp_path, Segments(1000))
    trace.emit("start")
    trace.flush()
    found = files.find([str(tmp_path)])
    trace.close()
    (one,) = files.runs(found, files.Reading())
    assert [event.kind for event in one.events] == ["start", "truncated"]


def test_a_disk_that_refuses_ends_a_trace_in_segments_too(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    trace = segments_in(tmp_path, Segments(1000))
    trace.emit("start")
    trace.flush()
    hidden(tmp_path)[0].unlink()
    for _ in range(2):
        trace.seal()
        trace.emit("stop")
    trace.close()
    assert caplog.text.count("ends here: No such file or directory") == 1


@pytest.mark.parametrize("name", [".a", "_a"])
def test_a_node_name_that_readers_take_for_hidden_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(UserError, match="cannot begin a file name"):
        trace_in(tmp_path, node=name)
