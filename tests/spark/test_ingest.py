"""Traces become a table of events; what is no event is told with line and reason, as `coterie check` tells it."""

from __future__ import annotations

import json
import random
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tracescript import events

from coterie.audit.files import parse
from coterie.errors import UserError
from coterie.sim.profiles import profile
from coterie.sim.runner import trace_plan
from coterie.spark import check, ingest, lines
from coterie.spark.intake import LINE_MAX, Piece, take_in
from coterie.spark.rows import arrow_schema, columns_of, events_of
from coterie.spark.schema import EVENTS
from coterie.trace import Event
from spark.traces import plain, write

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

GOOD = "A start\n B view members=A,B start=A:1\n A view members=A,B\n A send n=1 to=all\n B deliver from=A n=1"

HEAD = '{"v":1,"run":"r","node":"a","inc":1,"n":0,"t":0.5,"kind":"x"'
"""An event, but for its end."""
BROKEN: dict[str, str] = {
    "not JSON": '{"v":1,"run":"r"',
    "garbage": "\x00\x01\x02",
    "not an object": "[1,2]",
    "another version": HEAD.replace('"v":1', '"v":2') + "}",
    "an unknown key": HEAD + ',"colour":"red"}',
    "no kind": '{"v":1,"run":"r","node":"a","inc":1,"n":0,"t":0.5}',
    "a number for a name": HEAD.replace('"node":"a"', '"node":5') + "}",
    "n of 70 bits": HEAD.replace('"n":0', '"n":1180591620717411303424') + "}",
    "a fraction for n": HEAD.replace('"n":0', '"n":1.5') + "}",
    "true for a number": HEAD + ',"last":true}',
    "no time": HEAD.replace("0.5", "NaN") + "}",
    "a time without end": HEAD.replace("0.5", "1e999") + "}",
    "text for a connection": HEAD + ',"data":{"conn":"x"}}',
    "a fraction for a connection": HEAD + ',"data":{"conn":1.5}}',
    "a list for a receiver": HEAD + ',"data":{"to":[]}}',
    "a range backwards": HEAD + ',"first":5,"last":4}',
    "an endless range": HEAD + ',"first":0,"last":1000000}',
    "data that is no object": HEAD + ',"data":[1]}',
    "half a pair": HEAD.replace('"r"', '"\\ud800"') + "}",
    "too deep": HEAD + ',"data":{"a":' + "[" * 99 + "]" * 99 + "}}",
    "far too deep": HEAD + ',"data":{"a":' + "[" * 9999,
    "two in a line": HEAD + ',"data":{"a":1}} {"b":2}}',
}
"""Lines that are no events."""

UNUSUAL = (
    ' {"v": 1, "kind": "start", "run": "r", "node": "a", "inc": 1, "n": 0, "t": 0.5} ',
    HEAD.replace('"r"', '"\\u00e4"') + "}",
    HEAD.replace('"r"', '"\\ud83d\\ude00"').replace('"a"', '"ä"') + "}",
    HEAD.replace("0.5", "1") + ',"wall":2}',
    '{"v":1,"run":"r","node":"a","inc":1,"n":-0,"t":-0.0,"kind":"","view":"","data":{}}',
    HEAD.replace("0.5", "1.5e-7") + ',"sum":9223372036854775807}',
    HEAD + ',"pos":null,"data":{"conn":null,"a":{"b":{"c":[]}}}}',
    HEAD + ',"data":{"conn":-5,"conn":6,"x":1e5,"y":"\\n"}}',
    HEAD + ',"data":{"start":{"conn":"x"},"number":3}}',
    HEAD.replace('"v":1', '"v":1.0') + "}",
)
"""Events that a node of ours would not write like this."""


def judged(values: list[bytes]) -> list[Event | str | None]:
    """What becomes of each line: an event, the reason why it is none, or nothing."""
    rows = pa.RecordBatch.from_arrays(
        [pa.array(values, pa.binary()), pa.repeat("file:///f", len(values)), pa.repeat(0, len(values))],
        names=["value", "file", "block"],
    )
    found: list[Event | str | None] = [None] * len(values)
    for batch in lines.parsed_in_blocks(iter([rows])):
        assert batch.schema == lines.PARSED_SCHEMA
        places = batch.column("place").to_pylist()
        if batch.column("run").null_count == 0:
            for place, event in zip(places, events_of(batch), strict=True):
                found[place] = event
        elif batch.column("reason").null_count == 0:
            for place, reason in zip(places, batch.column("reason").to_pylist(), strict=True):
                found[place] = reason
    return found


def by_parse(value: bytes) -> Event | str | None:
    text = value.decode(errors="replace")
    if not text.strip():
        return None
    try:
        return parse(text)
    except ValueError as error:
        return str(error).encode(errors="replace").decode()[: lines.REASON_MAX]


def simulated_lines() -> list[bytes]:
    return [
        event.to_json().encode()
        for name, seed in (("channel", 3), ("total", 3))
        for event in trace_plan(profile(name).make(seed))[1]
    ]


def test_what_a_node_writes_is_certain_but_for_the_few_with_deep_data(monkeypatch: pytest.MonkeyPatch) -> None:
    doubted: list[str] = []

    def note(text: str) -> Event:
        doubted.append(text)
        return parse(text)

    monkeypatch.setattr(lines, "parse", note)
    values = simulated_lines()
    assert judged(values) == [parse(value.decode()) for value in values]
    assert len(doubted) < len(values) / 50
    assert {json.loads(text)["kind"] for text in doubted} <= {"end", "fault", "view"}


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_line_is_corrupt_for_the_reason_that_the_plain_reader_gives(name: str) -> None:
    value = BROKEN[name].encode()
    (found,) = judged([value])
    assert isinstance(found, str)
    assert found == by_parse(value)


@pytest.mark.parametrize("text", UNUSUAL)
def test_an_event_that_is_spelled_in_an_unusual_way_is_one(text: str) -> None:
    assert judged([text.encode()]) == [parse(text)]


def test_lines_that_are_no_utf_8_are_read_as_the_plain_reader_reads_them() -> None:
    line = HEAD.encode() + b"}"
    values = [line.replace(b'"r"', b'"r\xff"'), b"\xff\xfe", line, b"", b"  "]
    found = judged(values)
    assert found == [by_parse(value) for value in values]
    assert isinstance(found[0], Event)
    assert found[0].run == "r\ufffd"


def test_fuzzed_lines_are_judged_as_the_plain_reader_judges_them(fuzz_rounds: int) -> None:
    """Real lines with pieces taken out, doubled, exchanged or overwritten."""
    rng = random.Random(7)
    originals = simulated_lines()
    pieces = [
        *(b'"conn":', b'"to":', b'"number":', b":5", b':"x"', b":null", b"{", b"}", b"[", b"]", b",", b'"', b"\\"),
        *(
            b"e9",
            b".5",
            b"-",
            b"00",
            b"true",
            b'"data":{}',
            b'"first":3',
            b'"last":1',
            b"\xff",
            b"\xc3\xa4",
            b" ",
            b"\t",
        ),
    ]
    values = []
    for _ in range(max(5_000, fuzz_rounds // 2)):
        line = bytearray(rng.choice(originals))
        for _ in range(rng.randint(0, 2)):
            here, there = sorted((rng.randrange(len(line) + 1), rng.randrange(len(line) + 1)))
            match rng.randrange(4):
                case 0:
                    line[here : min(there, here + 9)] = b""
                case 1:
                    line[here:here] = rng.choice(pieces)
                case 2:
                    piece = rng.choice(pieces)
                    line[here : here + len(piece)] = piece
                case _:
                    line[there:there] = line[here : min(there, here + 40)]
        values.append(bytes(line).replace(b"\n", b"").replace(b"\r", b""))
    found, expected = judged(values), [by_parse(value) for value in values]
    assert [pair for pair in zip(values, found, expected, strict=True) if pair[1] != pair[2]] == []
    assert sum(isinstance(each, Event) for each in found) > len(values) // 10
    assert sum(isinstance(each, str) for each in found) > len(values) // 10


def test_numbers_become_the_same_floats_as_in_python() -> None:
    rng = random.Random(5)
    times = [rng.random() * 10 ** rng.randint(-9, 9) for _ in range(2_000)]
    written = [Event("r", "a", 1, n, t, "start", wall=t * 1.7) for n, t in enumerate(times)]
    assert judged([event.to_json().encode() for event in written]) == written


def taken(tasks: list[list[Piece]], folder: Path) -> tuple[list[tuple[int, Event]], list[dict[str, Any]]]:
    """The events with their places, and what else the tasks tell."""
    folder.mkdir()
    numbers = pa.RecordBatch.from_arrays([pa.array(range(len(tasks)))], names=["id"])
    told = [row for batch in take_in(tasks, str(folder), iter([numbers])) for row in batch.to_pylist()]
    found = [
        (place, event)
        for file in sorted(folder.glob("*.parquet"))
        for batch in pq.ParquetFile(file).iter_batches()
        for place, event in zip(batch.column("place").to_pylist(), events_of(batch), strict=True)
    ]
    return found, told


@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
def test_wherever_a_file_is_cut_every_line_is_read_once_and_in_order(tmp_path: Path, end: str) -> None:
    trace = events(GOOD)
    text = end.join(event.to_json() for event in trace)
    file = tmp_path / "run.jsonl"
    file.write_bytes(text.encode())
    size = file.stat().st_size
    cuts = range(1, size, 7) if end != "\r" else (size,)  # lines without a newline are in no piece but the first
    for number, cut in enumerate(cuts):
        tasks = [[Piece(str(file), 0, cut)], [Piece(str(file), cut, size)]]
        found, told = taken(tasks, tmp_path / f"events-{number}")
        assert [event for _, event in sorted(found, key=lambda pair: pair[0])] == trace
        assert len({place for place, _ in found}) == len(trace)
        assert sum(row["count"] for row in told if row["what"] == "block") == len(trace)


def test_files_are_dealt_out_whole_and_in_pieces_and_nothing_twice(tmp_path: Path) -> None:
    files = [tmp_path / f"{index}.jsonl" for index in range(40)]
    for index, file in enumerate(files):
        file.write_bytes(b"x" * (100_000 if index == 7 else 10 * index))
    tasks = ingest.planned(ingest.Inputs([*map(str, files)], []))
    assert ingest.TASKS_MIN <= len(tasks) <= 2 * ingest.TASKS_MIN
    sizes = [sum(piece.end - piece.begin for piece in task) for task in tasks]
    assert max(sizes) < 2 * sum(sizes) / len(sizes)
    covered: dict[str, int] = {}
    for piece in (piece for task in tasks for piece in task):
        assert covered.get(piece.file, 0) == piece.begin
        covered[piece.file] = piece.end
    assert covered == {str(file): file.stat().st_size for file in files if file.stat().st_size}


def test_a_task_that_fails_leaves_no_part_of_the_table_behind(tmp_path: Path) -> None:
    file = write(tmp_path / "run.jsonl", events(GOOD))
    tasks = [[Piece(str(file), 0, file.stat().st_size), Piece(str(tmp_path / "gone.jsonl"), 0, 5)]]
    with pytest.raises(UserError, match=r"gone\.jsonl: cannot be read: No such file"):
        taken(tasks, tmp_path / "events")
    assert list((tmp_path / "events").iterdir()) == []


@pytest.fixture(scope="module")
def odd_files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Corrupt lines between good ones, in files with odd names and odd ends."""
    folder = tmp_path_factory.mktemp("odd")
    good = [event.to_json() for event in events(GOOD)]
    broken = list(BROKEN.values())
    names = ("a b%20c.jsonl", "[1]{2}*.jsonl", "_hidden.jsonl", ".dot/é.jsonl", "plain.jsonl")
    for index, name in enumerate(names):
        mine = [line.replace('"run":"test"', f'"run":"run {index}"') for line in good]
        mixed = [*mine[:2], *broken[index :: len(names)], "", "  ", *mine[2:], *broken[:index]]
        path = folder / name
        path.parent.mkdir(exist_ok=True)
        path.write_bytes("\n".join(mixed).encode() + (b"" if index % 2 else b"\n"))
    (folder / "mark.jsonl").write_bytes(b"\xef\xbb\xbf" + "\r\n".join(good).encode() + b'\r\n{"v":1,"run":"tes')
    (folder / "bytes.jsonl").write_bytes(
        b'\xff\n{"v":1,"run":"\xff","node":"a","inc":1,"n":0,"t":0.5,"kind":"start"}\n'
    )
    (folder / "empty.jsonl").touch()
    return folder


def rows_of(spark: SparkSession, folder: Path) -> list[Event]:
    frame = spark.read.schema(EVENTS.ddl).parquet(str(folder)).orderBy("file", "place")
    return events_of(frame.toArrow().combine_chunks().to_batches()[0])


def test_corrupt_lines_are_counted_and_told_with_file_line_and_reason(
    spark: SparkSession, odd_files: Path, tmp_path: Path
) -> None:
    answer = check.judge(spark, ingest.find([str(odd_files)]), tmp_path / "events")
    told = sorted(f"{row['file']}:{row['place']}: {row['reason']}" for row in answer.corrupt().collect())
    expected: list[str] = []
    for file in sorted(odd_files.rglob("*.jsonl")):
        for number, line in enumerate(file.read_text("utf-8-sig", errors="replace").splitlines(), 1):
            if isinstance(reason := by_parse(line.encode()), str):
                expected.append(f"{file}:{number}: {reason}")
    _, total = plain(odd_files)
    assert told == sorted(expected)
    assert set(total.corrupt_places) <= set(told)
    assert answer.sizes.corrupt == total.corrupt == len(told)
    assert len(rows_of(spark, tmp_path / "events")) == total.events
    assert all(len(row["text"]) <= lines.TEXT_MAX for row in answer.corrupt().collect())
    answer.close()


def test_the_rest_of_files_with_corrupt_lines_is_still_checked(
    spark: SparkSession, odd_files: Path, tmp_path: Path
) -> None:
    answer = check.judge(spark, ingest.find([str(odd_files)]), tmp_path / "events")
    found = answer.checked.where("property IS NULL").collect()
    said, reading = plain(odd_files)
    assert {row["run"] for row in found} == set(said)
    assert sum(row["ignored"] for row in found) == reading.ignored
    answer.close()


def test_an_events_table_reads_as_the_lines_that_it_was_made_of(
    spark: SparkSession, odd_files: Path, tmp_path: Path
) -> None:
    first = check.judge(spark, ingest.find([str(odd_files)]), tmp_path / "audit" / "events")
    for named in ("audit", "audit/events", "audit/events/part-*.parquet"):
        again = check.judge(spark, ingest.find([str(tmp_path / named)]), tmp_path / "again")
        assert rows_of(spark, tmp_path / "again") == rows_of(spark, tmp_path / "audit" / "events")
        columns = ("run", "node", "inc", "file", "events", "first", "last", "end", "real")
        assert again.outline.select(*columns).exceptAll(first.outline.select(*columns)).isEmpty()
        assert again.sizes.corrupt == 0
        shutil.rmtree(tmp_path / "again")
        again.close()
    first.close()


def test_rows_of_a_table_that_are_no_events_are_corrupt(spark: SparkSession, tmp_path: Path) -> None:
    trace = events(GOOD)
    columns = [*columns_of(trace), pa.repeat("/f.jsonl", len(trace)), pa.array(range(len(trace)))]
    table = pa.Table.from_arrays(columns, schema=arrow_schema(EVENTS.columns)).to_pylist()
    table[1]["data"] = "{oh no"
    table[2]["kind"] = None
    table[3] |= {"first": 2**63 - 1, "last": -(2**63)}
    table[4]["t"] = float("nan")
    (tmp_path / "in").mkdir()
    pq.write_table(pa.Table.from_pylist(table, arrow_schema(EVENTS.columns)), tmp_path / "in" / "events.parquet")
    answer = check.judge(spark, ingest.find([str(tmp_path / "in")]), tmp_path / "events")
    assert rows_of(spark, tmp_path / "events") == trace[:1]
    assert sorted(row["place"] for row in answer.corrupt().collect()) == [1, 2, 3, 4]
    answer.close()


def some_paths(tmp_path: Path) -> Iterator[tuple[str, str]]:
    yield str(tmp_path / "nowhere"), "there is no such file or folder"
    (tmp_path / "nothing").mkdir()
    yield str(tmp_path / "nothing"), r"no \*\.jsonl file in that folder"
    yield str(tmp_path / "nothing" / "*.parquet"), "there is no such file or folder"


def test_what_is_not_there_is_named(tmp_path: Path) -> None:
    for path, text in some_paths(tmp_path):
        with pytest.raises(UserError, match=text):
            ingest.find([path])


def test_parquet_of_something_else_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    pq.write_table(pa.table({"a": [1]}), tmp_path / "a.parquet")
    (tmp_path / "b.parquet").write_bytes(b"PAR1 or not")
    for name, text in (("a", "not the events of an audit"), ("b", "cannot be read")):
        with pytest.raises(UserError, match=text):
            check.judge(spark, ingest.find([str(tmp_path / f"{name}.parquet")]), tmp_path / "events")


def test_a_line_without_end_is_read_in_pieces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("coterie.spark.intake.LINE_MAX", 1_000)
    monkeypatch.setattr("coterie.spark.intake.CHUNK", 1_000)
    assert LINE_MAX > 1_000
    file = tmp_path / "endless.jsonl"
    good = events(GOOD)[0]
    file.write_bytes(b"x" * 10_000 + b"\n" + good.to_json().encode())
    found, told = taken([[Piece(str(file), 0, file.stat().st_size)]], tmp_path / "events")
    assert [event for _, event in found] == [good]
    assert {row["what"] for row in told} == {"corrupt", "block", "outline", "chunk"}
    assert all(len(row["text"]) <= 1_000 for row in told if row["text"])
