"""`coterie.reader` and `coterie read` on a real node: looks, work under a lease, files, errors of one line."""

from __future__ import annotations

import csv
import json
import subprocess
import sys
import threading
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pika
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from console_rig import Running

from coterie import reader
from coterie.errors import UserError

MOMENT = datetime(2026, 5, 4, 3, 2, 1, tzinfo=UTC)


@pytest.fixture(scope="module")
def node() -> Iterator[Running]:
    with Running() as running:
        yield running


@pytest.fixture
def queue(node: Running, request: pytest.FixtureRequest) -> str:
    """With ten messages, the bodies 0 to 9."""
    name = str(request.node.name)
    fill(node, name, 10)
    return name


def fill(node: Running, name: str, count: int, size: int = 0) -> None:
    channel = node.channel()
    channel.queue_declare(name, durable=True)
    channel.tx_select()
    for number in range(count):
        properties = pika.BasicProperties(
            delivery_mode=2, headers={"n": number, "t": MOMENT}, timestamp=int(MOMENT.timestamp())
        )
        channel.basic_publish("", name, f"{number}".encode().ljust(size), properties)
    channel.tx_commit()


def url(node: Running) -> str:
    return f"http://{node.console}"


def bodies(batch: pa.RecordBatch) -> list[bytes]:
    return [bytes(body) for body in batch["value"].to_pylist()]


def values(node: Running, name: str) -> list[tuple[bytes, bool]]:
    """What is in the queue, and whether somebody may have seen it."""
    found = reader.read_table(name, url(node), columns=["value", "redelivered"])
    return [*zip(found["value"].to_pylist(), found["redelivered"].to_pylist(), strict=True)]


def test_a_look_has_what_was_there_when_it_was_made_and_takes_nothing(node: Running, queue: str) -> None:
    look = reader.read(queue, url(node), batch_rows=4)
    node.channel().basic_publish("", queue, b"later")
    node.eventually(lambda: reader.read(queue, url(node)).cut.next == 12)
    for _ in range(2):
        batches = [*look]
        assert [batch.num_rows for batch in batches] == [4, 4, 2]
        assert [body for batch in batches for body in bodies(batch)] == [b"%d" % n for n in range(10)]
    assert look.next == 11
    assert all(batch.schema == reader.schema() for batch in batches)
    row = batches[0].slice(3, 1).to_pylist()[0]
    assert (row["queue"], row["position"], row["routing_key"], row["timestamp"]) == (queue, 4, queue, MOMENT)
    assert row["headers"] == [("n", "3"), ("t", json.dumps(str(MOMENT)))]
    assert reader.properties(row["properties"]).headers == {"n": 3, "t": MOMENT}
    assert values(node, queue)[:10] == [(b"%d" % n, False) for n in range(10)]


def test_positions_and_columns_are_chosen(node: Running, queue: str) -> None:
    found = reader.read_table(queue, url(node), columns=["position", "value"], first=4, last=6)
    assert found.to_pylist() == [{"position": n, "value": b"%d" % (n - 1)} for n in (4, 5, 6)]
    assert reader.read_table(queue, url(node), first=100).num_rows == 0
    assert reader.read_table(queue, url(node), limit=0).num_rows == 0


def test_what_takes_arrow_streams_takes_a_look(node: Running, queue: str) -> None:
    look = reader.read(queue, url(node), columns=["position"])
    table = pa.RecordBatchReader.from_stream(look).read_all()
    assert table["position"].to_pylist() == [*range(1, 11)]
    assert table.to_pandas()["position"].sum() == 55


def test_what_is_done_is_gone_and_the_rest_is_ready_again(node: Running, queue: str) -> None:
    with reader.lease(queue, "loader", url(node), batch_rows=4) as taken:
        batches = iter(taken)
        assert bodies(next(batches)) == [b"0", b"1", b"2", b"3"]
        assert node.channel().basic_get(queue, auto_ack=True)[2] == b"4"  # nobody else gets what is taken
        assert taken.done(3) == 3
        assert taken.pending == 1
        assert bodies(next(batches)) == [b"5", b"6", b"7", b"8"]
        assert (taken.done(2), taken.pending, taken.lease.count) == (2, 3, 3)
        with pytest.raises(UserError, match="3 are given"):
            taken.done(4)
    assert values(node, queue) == [(b"6", True), (b"7", True), (b"8", True), (b"9", False)]
    assert node.get(f"/api/leases/%2F/{queue}") == []


def test_an_error_in_the_block_gives_back_what_is_not_done(node: Running, queue: str) -> None:
    lease = reader.lease(queue, "loader", url(node), batch_rows=4)

    def work() -> None:
        with lease as taken:
            for batch in taken:
                if b"5" in bodies(batch):
                    raise ZeroDivisionError
                taken.done()

    with pytest.raises(ZeroDivisionError):
        work()
    assert values(node, queue) == [(b"%d" % n, n < 8) for n in range(4, 10)]
    assert node.get(f"/api/leases/%2F/{queue}") == []
    with pytest.raises(UserError, match="within its with block"):
        lease.done()


KILLED = """
import sys
from coterie import reader

with reader.lease(sys.argv[1], "loader", sys.argv[2], batch_rows=6) as taken:
    for batch in taken:
        taken.done(2)
        print("two are done", flush=True)
        sys.stdin.read()
"""


def test_the_next_of_the_same_name_is_given_first_what_a_killed_one_had(node: Running, queue: str) -> None:
    command = [sys.executable, "-c", KILLED, queue, url(node)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as killed:
        assert killed.stdout is not None
        assert killed.stdout.readline() == b"two are done\n"
        killed.kill()
    found = []
    with reader.lease(queue, "loader", url(node), batch_rows=100) as taken:
        for batch in taken:
            found.append(bodies(batch))
            taken.done()
    assert found == [[b"2", b"3", b"4", b"5"], [b"6", b"7", b"8", b"9"]]
    assert values(node, queue) == []


def test_of_two_under_one_name_the_first_is_told_that_it_is_out(node: Running, queue: str) -> None:
    def first() -> None:
        with reader.lease(queue, "loader", url(node), batch_rows=4) as taken:
            for _ in taken:
                with reader.lease(queue, "loader", url(node), batch_rows=4) as second:
                    assert bodies(next(iter(second))) == [b"0", b"1", b"2", b"3"]
                    assert second.done() == 4
                    taken.done()

    with pytest.raises(reader.Conflict, match="another session"):
        first()
    assert values(node, queue) == [(b"%d" % n, False) for n in range(4, 10)]


def test_a_reader_waits_for_messages_and_gets_them_when_they_come(node: Running, queue: str) -> None:
    found: list[bytes] = []
    all_there = threading.Event()

    def work() -> None:
        with reader.lease(queue, "loader", url(node), wait=None) as taken:
            for batch in taken:
                found.extend(bodies(batch))
                taken.done()
                if len(found) == 10:
                    all_there.set()
                if b"last" in found:
                    return

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    assert all_there.wait(60)
    node.channel().basic_publish("", queue, b"last")
    thread.join(60)
    assert not thread.is_alive()
    assert found[-1] == b"last"


def test_batches_are_bounded_by_bytes_too(node: Running) -> None:
    fill(node, "large", 30, size=100_000)
    with reader.lease("large", "loader", url(node), batch_bytes=500_000) as taken:
        held = []
        for _ in taken:
            held.append(taken.lease.bytes)
            taken.done()
        assert max(held) <= 600_000
    assert values(node, "large") == []


def test_nobody_is_asked_for_ever(node: Running) -> None:
    with pytest.raises(reader.Unavailable, match="nobody could answer"):
        reader.read("q", "http://ann:geheim@127.0.0.1:1", patience=0.2)
    with pytest.raises(reader.NotFound, match="no queue 'none'"):
        reader.read("none", url(node))
    with pytest.raises(reader.NotFound, match="no queue 'none'"), reader.lease("none", "loader", url(node)):
        pass
    with pytest.raises(reader.Refused, match="Login failed"):
        reader.read("none", url(node), user="guest", password="wrong")


def test_a_lease_that_an_operator_ends_is_an_error_and_no_gap(node: Running, queue: str) -> None:
    def work() -> None:
        with reader.lease(queue, "loader", url(node), batch_rows=4) as taken:
            for _ in taken:
                node.command("leases", "release", "loader", "--queue", queue)
                taken.done()

    with pytest.raises(reader.NotFound, match="no lease 'loader'"):
        work()
    assert len(values(node, queue)) == 10


@pytest.mark.parametrize("form", ["arrow", "parquet", "csv", "jsonl"])
def test_the_command_writes_a_queue_into_a_file(node: Running, queue: str, form: str, tmp_path: Path) -> None:
    file = tmp_path / f"out.{form}"
    node.channel().basic_publish("", queue, b"\xff\x00")
    node.eventually(lambda: reader.read(queue, url(node)).cut.next == 12)
    told = json.loads(node.command("read", queue, "--out", str(file), "--last", "11", "--json").stdout)
    assert (told["rows"], told["next"], told["format"], told["queue"]) == (11, 12, form, queue)
    expected = [*(str(n) for n in range(10)), "/wA="]
    if form in ("arrow", "parquet"):
        table = pa.ipc.open_stream(file).read_all() if form == "arrow" else pq.read_table(file)
        assert table.equals(reader.read_table(queue, url(node)))
    else:
        text = file.read_text().splitlines()
        lines: list[Any] = [*csv.DictReader(text)] if form == "csv" else [*map(json.loads, text)]
        assert [line["value"] for line in lines] == expected
        assert [line["value_encoding"] for line in lines] == ["string"] * 10 + ["base64"]
        headers = lines[3]["headers"]
        assert (json.loads(headers) if form == "csv" else headers)["n"] == "3"
        assert lines[3]["timestamp"] == "2026-05-04T03:02:01Z"
    assert [path.name for path in tmp_path.iterdir()] == [file.name]


def test_the_command_goes_on_where_it_was(node: Running, queue: str, tmp_path: Path) -> None:
    file = str(tmp_path / "part.jsonl")
    first = json.loads(node.command("read", queue, "--count", "7", "--out", file, "--json").stdout)
    more = node.command("read", queue, "--first", str(first["next"]), "--columns", "value,position").stdout
    assert [json.loads(line) for line in more.splitlines()] == [
        {"value": str(n), "value_encoding": "string", "position": n + 1} for n in (7, 8, 9)
    ]
    assert "is there already" in node.command("read", queue, "--out", file, expect=2).stderr
    node.command("read", queue, "--out", file, "--overwrite")
    assert len(Path(file).read_text().splitlines()) == 10


@pytest.mark.parametrize(
    ("arguments", "code", "text"),
    [
        (["none"], 2, "no queue 'none' in vhost '/' (asked: "),
        (["q", "--columns", "body"], 2, "there is no 'body'"),
        (["q", "--json"], 2, "give --out FILE too"),
        (["q", "--out", "q.txt"], 2, "say which by --format"),
        (["q", "--out", "/nowhere/q.csv"], 2, "there is no folder for it"),
        (["q", "--first", "-1"], 2, "first: a whole number"),
    ],
)
def test_a_mistake_is_one_line(node: Running, arguments: list[str], code: int, text: str) -> None:
    done = node.command("read", *arguments, expect=code)
    (line,) = done.stderr.splitlines()
    assert line.startswith("coterie: ")
    assert text in line


def test_a_file_that_cannot_be_read_whole_is_not_there(node: Running, tmp_path: Path) -> None:
    file = tmp_path / "out.parquet"
    done = node.command("read", "q", "--out", str(file), "--url", "http://127.0.0.1:1", "--timeout", "0.2", expect=1)
    assert "nobody could answer" in done.stderr
    assert [*tmp_path.iterdir()] == []
