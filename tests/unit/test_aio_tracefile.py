"""Trace files: what is flushed is in the file, whatever happens to the process."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from coterie.errors import UserError
from coterie.runtime.aio import open_trace
from coterie.runtime.aio.tracefile import FLUSH_SIZE, FileTracer
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
    with pytest.raises(UserError, match="cannot be part of a file name"):
        trace_in(tmp_path, node="../a")
