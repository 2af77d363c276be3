"""Lines of a trace as events, a batch at a time: what is certain by a pattern in C, everything else line by line.

A line as `Event.to_json` writes it (keys in their order, whole numbers that fit, texts without escapes, data of the
shape that folds rely on) is an event beyond doubt, and its columns come from Arrow's JSON reader. Any other line is
given to `audit.files.parse`, the one place that knows what an event is, and why a line is none. A line that is certain
is always one that `parse` would take, and gives the same event: a test compares the two.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from typing import Any
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json as pj

from coterie.audit.files import RANGE_MAX, WHOLE_MAX, parse
from coterie.spark.blocks import Blocks
from coterie.spark.rows import EVENT_SCHEMA, arrow_schema, columns_of
from coterie.spark.schema import CORRUPT, EVENT_COLUMNS, EVENTS, PLACE_COLUMNS
from coterie.trace import FIELDS, SCHEMA_VERSION, Event

TEXT_MAX = 1_000
"""Characters that are kept of a corrupt line."""
REASON_MAX = 300

PARSED = {**EVENTS.columns, **{name: CORRUPT.columns[name] for name in ("text", "reason")}}
"""What parsing gives: an event; or a line that is none, and then only its place, text and reason."""
PARSED_SCHEMA = arrow_schema(PARSED)
_HERE = arrow_schema(PLACE_COLUMNS)

_TEXT = r'"[^"\\\x00-\x1f\x7f]*"'
_WHOLE = r"-?(?:0|[1-9][0-9]{0,17})"
_NUMBER = r"-?(?:0|[1-9][0-9]{0,15})(?:\.[0-9]{1,20})?(?:[eE]-[0-9]{1,2})?"
_SIMPLE = rf"(?:{_TEXT}|{_NUMBER}|true|false|null)"
_LIST = rf"\[(?:{_SIMPLE}(?:,{_SIMPLE})*)?\]"
_OBJECT = rf"\{{(?:{_TEXT}:{_SIMPLE}(?:,{_TEXT}:{_SIMPLE})*)?\}}"
_ENTRY = rf"{_TEXT}:(?:{_SIMPLE}|{_LIST}|{_OBJECT})"
_DATA = rf"\{{{_ENTRY}(?:,{_ENTRY})*\}}"
_VALUES = {"string": _TEXT, "bigint": _WHOLE, "double": _NUMBER}
_REQUIRED = ("run", "node", "inc", "n", "t", "kind")


def _key(name: str) -> str:
    entry = rf',"{name}":{_VALUES[EVENT_COLUMNS[name][0]]}'
    return entry if name in _REQUIRED else f"(?:{entry})?"


CANONICAL = rf'^\{{"v":1{"".join(map(_key, FIELDS))}(?:,"data":{_DATA})?\}}$'
CANONICAL_DATA = f"^{_DATA}$"
ODD_DATA = r'"(?:conn|number)":(?:[^-0-9]|-?[0-9]+[.eE])|"(?:to|peer|leader|mode)":[^"]'
"""A key that folds use, with a value that it must not have; also where it stands deeper and does no harm."""
_MARK = ',"data":'
_FAR = 2**62
"""Beyond it, a difference may not fit."""


def parsed(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Batches of value (bytes), file and place -> batches of PARSED. Empty lines are nothing."""
    for batch in batches:
        here = _here(_names(batch.column("file")), batch.column("place"))
        yield from _parse(batch.column("value"), here)


def parsed_in_blocks(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The same for batches of value, file and block: the lines of a block of a file come one after the other.

    A line's place is where its block begins, in bytes, plus its number in the block; no two lines of a file have the
    same, because a line has at least one byte. For each block there is also a row that is neither an event nor corrupt:
    `place` is where the block begins, `count` how many lines it has.
    """
    blocks = Blocks()
    for batch in batches:
        file = _names(batch.column("file"))
        yield from _parse(batch.column("value"), _here(file, blocks.places(file, batch.column("block"))))
        yield from _counts(blocks.finished())
    yield from _counts(blocks.finished(all=True))


def verified(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Batches of EVENTS, whoever wrote them -> batches of PARSED."""
    for batch in batches:
        event = batch.select(list(EVENT_COLUMNS)).cast(EVENT_SCHEMA)
        here = _here(batch.column("file"), batch.column("place"))
        data = event.column("data")
        usual = pc.and_(pc.match_substring_regex(data, CANONICAL_DATA), _is_usual(data))
        certain = pc.and_(_is_range(event), pc.fill_null(usual, True))
        for name in _REQUIRED:
            certain = pc.and_(certain, event.column(name).is_valid())
        for name, limit in (("t", float(WHOLE_MAX)), ("wall", float(WHOLE_MAX)), ("first", _FAR), ("last", _FAR)):
            column = event.column(name)
            inside = pc.and_(pc.greater(column, -limit), pc.less(column, limit))
            certain = pc.and_(certain, pc.fill_null(inside, True))
        yield from _events(event.filter(certain), here.filter(certain))
        rest = pc.invert(certain)
        yield from _doubtful(event.filter(rest).to_pylist(), here.filter(rest), _line_of_row)


def _parse(value: pa.Array, here: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    text = _decoded(value)
    certain = pc.match_substring_regex(text, CANONICAL)
    lines, there = _filtered(text, certain), _filtered(here, certain)
    if len(lines):
        event = _columns(lines)
        good = pc.and_(_is_range(event), pc.fill_null(_is_usual(event.column("data")), True))
        yield from _events(_filtered(event, good), _filtered(there, good))
        bad = pc.invert(good)
        yield from _doubtful(lines.filter(bad).to_pylist(), there.filter(bad), str)
    rest = pc.and_(pc.invert(certain), pc.greater(pc.binary_length(value), 0))
    yield from _doubtful(value.filter(rest).to_pylist(), here.filter(rest), _replaced)


def _filtered(rows: Any, wanted: pa.Array) -> Any:
    """Mostly all of them are wanted, and nothing has to be copied."""
    return rows if wanted.true_count == len(wanted) else rows.filter(wanted)


def _is_usual(data: pa.Array) -> pa.Array:
    """Whether there is nothing odd in it. The same few texts come again and again: each is looked at once."""
    encoded = data.dictionary_encode()
    return pc.invert(pc.match_substring_regex(encoded.dictionary, ODD_DATA)).take(encoded.indices)


def _decoded(value: pa.Array) -> pa.Array:
    """As text; what is no UTF-8 becomes a line that is not certain, and is looked at as the bytes that it is."""
    try:
        return value.cast(pa.string())
    except pa.ArrowInvalid:
        return pa.array([line.decode(errors="ignore") if _sound(line) else "" for line in value.to_pylist()])


def _sound(line: bytes) -> bool:
    try:
        line.decode()
    except UnicodeDecodeError:
        return False
    return True


def _columns(lines: pa.Array) -> pa.RecordBatch:
    """What certain lines say, as the columns of an event."""
    one = pc.binary_join(pa.ListArray.from_arrays(pa.array([0, len(lines)], pa.int32()), lines), "\n").buffers()[2]
    table = pj.read_json(
        pa.BufferReader(one),
        pj.ReadOptions(use_threads=False, block_size=one.size + 1),  # one block: the order stays
        pj.ParseOptions(explicit_schema=EVENT_SCHEMA.remove(len(EVENT_SCHEMA) - 1), unexpected_field_behavior="ignore"),
    )
    assert table.num_rows == len(lines), "a certain line is one object"
    tail = pc.list_slice(pc.split_pattern(lines, _MARK, max_splits=1), 1, 2, return_fixed_size_list=True)
    data = pc.utf8_slice_codeunits(tail.flatten(), 0, -1)  # the last brace is the line's, not the data's
    columns = [table[name].combine_chunks() for name in EVENT_SCHEMA.names[:-1]]
    return pa.RecordBatch.from_arrays([*columns, data], schema=EVENT_SCHEMA)


def _is_range(event: pa.RecordBatch) -> pa.Array:
    """Whether `first` and `last` are a range, where there are both."""
    span = pc.subtract(event.column("last"), event.column("first"))
    return pc.fill_null(pc.and_(pc.greater_equal(span, 0), pc.less(span, RANGE_MAX)), True)


def _doubtful(lines: Sequence[Any], here: pa.RecordBatch, text_of: Callable[[Any], str]) -> Iterator[pa.RecordBatch]:
    """Lines that `parse` decides about, one by one."""
    events: list[Event] = []
    good: list[int] = []
    corrupt: list[tuple[str, str]] = []
    bad: list[int] = []
    for index, line in enumerate(lines):
        text = text_of(line)
        if not text.strip():
            continue
        try:
            events.append(parse(text))
            good.append(index)
        except ValueError as error:
            corrupt.append((_writable(text)[:TEXT_MAX], _writable(str(error))[:REASON_MAX]))
            bad.append(index)
    if good:
        yield from _events(pa.RecordBatch.from_arrays(columns_of(events), schema=EVENT_SCHEMA), here.take(good))
    if bad:
        texts, reasons = zip(*corrupt, strict=True)
        there = here.take(bad)
        yield _batch(len(bad), file=there.column("file"), place=there.column("place"), text=texts, reason=reasons)


def _replaced(line: bytes) -> str:
    return line.decode(errors="replace")


def _line_of_row(row: dict[str, Any]) -> str:
    """What would have been the line of such an event."""
    data = row.pop("data")
    fields = json.dumps({"v": SCHEMA_VERSION, **{name: value for name, value in row.items() if value is not None}})
    return fields if data is None else f"{fields[:-1]}{_MARK}{data}}}"


def _writable(text: str) -> str:
    """Without what no column of text can hold: half a surrogate pair."""
    return text.encode(errors="replace").decode()


def _events(event: pa.RecordBatch, here: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    if event.num_rows:
        yield _batch(
            event.num_rows,
            **dict(zip(event.schema.names, event.columns, strict=True)),
            **dict(zip(here.schema.names, here.columns, strict=True)),
        )


def _counts(blocks: Sequence[tuple[str, int, int]]) -> Iterator[pa.RecordBatch]:
    if blocks:
        file, place, count = zip(*blocks, strict=True)
        yield _batch(len(blocks), file=file, place=place, count=count)


def _batch(rows: int, **columns: Any) -> pa.RecordBatch:
    """A batch of PARSED: what is not given is NULL."""
    arrays = [
        pa.nulls(rows, field.type)
        if (given := columns.get(field.name)) is None
        else given
        if isinstance(given, pa.Array)
        else pa.array(given, field.type)
        for field in PARSED_SCHEMA
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=PARSED_SCHEMA)


def _here(file: pa.Array, place: pa.Array) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays([file, place], schema=_HERE)


def _names(file: pa.Array) -> pa.Array:
    """Files by their names, where Spark gives addresses: file:///a%20b is /a b."""
    encoded = file.dictionary_encode()
    names = [_name(address) for address in encoded.dictionary.to_pylist()]
    return pa.array(names, pa.string()).take(encoded.indices)


def _name(address: str) -> str:
    scheme, colon, path = address.partition(":")
    return unquote("/" + path.lstrip("/")) if colon and scheme == "file" else address
