"""The audit log in its parts: files, floods, texts, and what of HTTP it knows."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pyarrow as pa
import pytest

from coterie.auditlog.files import AuditFiles
from coterie.auditlog.flood import HOSTS_MAX, Flood
from coterie.auditlog.log import AuditLog, clean, plain
from coterie.auditlog.settings import AuditSettings
from coterie.console import (
    api_access,
    api_backup,
    api_broker,
    api_clients,
    api_cluster,
    api_features,
    api_health,
    api_leases,
    api_log,
    api_messages,
    api_parameters,
    api_policies,
    api_replication,
    api_session,
    api_streams,
    api_tracing,
    api_wiring,
)
from coterie.console.audited import ACTIONS
from coterie.errors import UserError
from coterie.spark.lines import parsed
from coterie.trace import Event

MODULES = (
    api_access, api_backup, api_broker, api_clients, api_cluster, api_features, api_health, api_leases, api_log,
    api_messages, api_parameters, api_policies, api_replication, api_session, api_streams, api_tracing, api_wiring,
)  # fmt: skip


def made(**settings: float) -> tuple[AuditLog, list[Event], list[float]]:
    """With its lines, and its clock."""
    time = [0.0]
    given = AuditSettings(**settings)  # type: ignore[arg-type]
    log = AuditLog("g", "n1", 7, lambda: time[0], lambda: 1000 + time[0], given)
    events: list[Event] = []

    def take(action: str, event: Event) -> bool:
        events.append(event)
        return True

    log.sinks.append(take)
    return log, events, time


def test_every_request_that_can_change_something_has_an_action() -> None:
    routes = {
        (method, path.replace(":[eq]", "").replace(":acquire|retire|release|take", ""))
        for module in MODULES
        for method, path, _ in module.ROUTES
        if method not in ("GET", "HEAD")
    }
    assert routes == ACTIONS.keys()


def test_files_are_rotated_and_the_oldest_are_deleted_those_of_earlier_lives_too(tmp_path: Path) -> None:
    folder = tmp_path / "deep" / "audit"
    log, _, _ = made()
    for life in (7, 8):
        files = AuditFiles(folder, "n/1", life, 2000, 3)
        log.sinks.append(files)
        for number in range(40):
            log.record("vhost.created", "guest", "h", "http", of_vhost=f"v{number}")
        log.sinks.remove(files)
        files.close()
    (tmp_path / "deep" / "audit" / "other-1.000001.jsonl").touch()
    kept = sorted(file.name for file in folder.glob("n*"))
    assert len(kept) == 3
    assert all(name.startswith("n%2F1-8.") for name in kept)
    assert all(file.stat().st_size <= 2000 for file in folder.iterdir())
    last = (folder / kept[-1]).read_text().splitlines()[-1]
    assert Event.from_json(last).data["of_vhost"] == "v39"


def test_a_disk_that_refuses_costs_lines_and_nothing_else(tmp_path: Path) -> None:
    log, events, _ = made()
    folder = tmp_path / "audit"
    files = AuditFiles(folder, "n1", 1, 100_000, 3)
    log.sinks.append(files)
    folder.rmdir()
    log.record("vhost.created", "guest", "h", "http")
    assert files.lost == 1
    folder.mkdir()
    log.record("vhost.created", "guest", "h", "http")
    assert (files.lost, len(events)) == (0, 2)
    assert [len(file.read_text().splitlines()) for file in folder.iterdir()] == [1]
    files.close()
    (tmp_path / "file").touch()
    with pytest.raises(UserError, match=r"audit\.folder"):
        AuditFiles(tmp_path / "file", "n1", 1, 100_000, 3)


def test_a_full_disk_costs_new_lines_and_none_that_it_has(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log, _, _ = made()
    files = AuditFiles(tmp_path, "n1", 1, 2000, 3)
    log.sinks.append(files)
    for number in range(60):
        log.record("vhost.created", "guest", "h", "http", of_vhost=f"v{number}")
    before = {file.name: file.read_text() for file in tmp_path.iterdir()}
    assert len(before) == 3
    write = os.write

    def half_then_full(descriptor: int, data: memoryview) -> int:
        if len(data) < 20:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return write(descriptor, data[:-10])

    monkeypatch.setattr(os, "write", half_then_full)
    for _ in range(30):
        log.record("vhost.created", "guest", "h", "http", of_vhost="lost")
    monkeypatch.undo()
    assert (files.lost, log.lost) == (30, 30)
    there = {file.name: file.read_text() for file in tmp_path.iterdir()}
    assert {name: there[name] for name in before} == before
    log.record("vhost.created", "guest", "h", "http", of_vhost="kept")
    assert files.lost == 0
    files.close()
    lines = [line for file in sorted(tmp_path.iterdir()) for line in file.read_text().splitlines()]
    numbers = [Event.from_json(line).n for line in lines]  # no half line; the gap shows how many are missing
    assert numbers[-2:] == [59, 90]


def test_clients_of_amqp_leave_operators_their_lines_and_are_counted_by_themselves() -> None:
    log, events, _ = made(window=10.0, lines_per_host=2, lines_in_all=5)
    for number in range(9):
        log.record("queue.deleted", "app", "h", "amqp", of_name=f"q{number}")
        log.record("queue.deleted", "ops", "h", "http", of_name=f"q{number}")
    assert [each.data["door"] for each in events].count("http") == 9
    log.close()
    assert [(each.data["door"], each.count) for each in events if each.data["result"] == "counted"] == [("amqp", 7)]


def test_one_host_cannot_hide_another_and_what_is_left_out_is_counted() -> None:
    log, events, time = made(window=10.0, lines_per_host=2, lines_in_all=5)
    for _ in range(50):
        log.record("login.refused", "x", "evil", "amqp", "refused")
    log.record("login.refused", "x", "honest", "amqp", "refused")
    log.record("user.created", "ops", "evil", "http")
    assert [each.data["from"] for each in events] == ["evil", "evil", "honest", "evil"]
    time[0] = 10.0
    log.record("login.refused", "x", "evil", "amqp", "refused")
    summary, again = events[4:]
    assert (summary.count, summary.data["hosts"], summary.data["seconds"]) == (48, {"evil": 48}, 10.0)
    assert again.count == 1
    assert [each.n for each in events] == list(range(6))


def test_what_a_flood_is_remembered_by_is_bounded() -> None:
    flood = Flood(10.0, 1, 10)
    for number in range(HOSTS_MAX * 3):
        flood.takes("login.refused", "amqp", f"h{number}", 0.0)
    (summary,) = flood.due(10.0)
    assert summary.count == HOSTS_MAX * 3 - 10
    assert summary.hosts["others"] >= HOSTS_MAX
    assert len(summary.hosts) == 10
    assert flood.due(11.0) == []


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("plain", "plain"), ("", ""), ("é", "é"), ("a\nb\x7f", "a\\x0ab\\x7f"), ("\u202e\u2028", "\\u202e\\u2028"),
        ("\udcff", "\\udcff"), ("x" * 256, "x" * 256), ("x" * 257, "x" * 256 + "..."), ("\U0001f600", "\U0001f600"),
    ],
)  # fmt: skip
def test_texts_are_bounded_and_printable(text: str, wanted: str) -> None:
    assert clean(text) == wanted


def test_values_are_what_a_line_can_hold() -> None:
    assert plain(2**63) == str(2**63)
    assert plain({"a": {"b": 1}, "c": 2}) == {"a": "{'b': 1}", "c": 2}
    assert len(plain(list(range(1000)))) == 20  # type: ignore[arg-type]
    assert plain(["x\n", None, True]) == ["x\\x0a", None, True]


def test_spark_reads_the_lines_as_it_reads_any_trace() -> None:
    log, events, _ = made(window=1.0, lines_per_host=1)
    log.record("login.refused", 'x"\n\udcff\u202e', "127.0.0.1", "amqp", "refused", "no\x00", mechanism="PLAIN")
    log.record("user.created", "guest", "::1", "http", tags=["a", "b"], value=2**70, of_user="ü" * 400, limits={"a": 1})
    log.record("login.refused", "y", "127.0.0.1", "amqp", "refused")
    log.close()
    lines = [event.to_json() for event in events]
    batch = pa.RecordBatch.from_pydict({
        "value": pa.array([line.encode() for line in lines], pa.binary()),
        "file": pa.array(["audit.jsonl"] * len(lines)),
        "place": pa.array(range(len(lines)), pa.int64()),
    })  # fmt: skip
    rows = [row for found in parsed(iter([batch])) for row in found.to_pylist()]
    assert sorted(row["n"] for row in rows) == [0, 1, 2]
    assert {(row["kind"], row["run"], row["reason"]) for row in rows} == {("audit", "g/audit", None)}
    assert [Event.from_json(line) for line in lines] == events
