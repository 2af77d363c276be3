"""Field tables: every type there and back, and nothing but ProtocolError for what is none."""

from __future__ import annotations

import struct
from collections.abc import Callable
from datetime import UTC, datetime
from decimal import Decimal
from functools import partial
from typing import TypeVar

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from coterie.amqp.wire.tables import FarMoment, RawText, Table, Value, decode_table, encode_table, skip_table
from coterie.errors import ProtocolError

T = TypeVar("T")
keys = st.text(max_size=40).filter(lambda key: len(key.encode("utf-8", "surrogateescape")) <= 255)
scalars: st.SearchStrategy[Value] = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(1 << 63), (1 << 63) - 1),
    st.floats(allow_nan=False),
    st.text(max_size=50),
    st.binary(max_size=50),
    st.datetimes(datetime(1970, 1, 1), datetime(9999, 12, 31)).map(lambda at: at.replace(microsecond=0, tzinfo=UTC)),
    st.builds(lambda n, scale: Decimal(n).scaleb(-scale), st.integers(-(1 << 31), (1 << 31) - 1), st.integers(0, 255)),
    st.integers(1 << 40, (1 << 64) - 1).map(FarMoment),
    st.binary(min_size=1, max_size=20).map(lambda raw: RawText(b"\xff" + raw)),
)  # fmt: skip
values = st.recursive(
    scalars, lambda inner: st.lists(inner, max_size=5) | st.dictionaries(keys, inner, max_size=5), max_leaves=20
)
tables = st.dictionaries(keys, values, max_size=8)


def outcome(call: Callable[[], T]) -> T | int:
    """The result, or the code of the ProtocolError; anything else is raised."""
    try:
        return call()
    except ProtocolError as error:
        return error.reply_code


def same(one: Value, other: Value) -> bool:
    """Equal, and of the same type: True is not 1, and bytes are no text."""
    if isinstance(one, dict):
        return isinstance(other, dict) and list(one) == list(other) and all(same(one[key], other[key]) for key in one)
    if isinstance(one, list):
        return isinstance(other, list) and len(one) == len(other) and all(map(same, one, other))
    return type(one) is type(other) and one == other


@given(tables)
def test_a_table_comes_back_as_it_was(table: Table) -> None:
    data = encode_table(table)
    back, end = decode_table(b"before" + data + b"after", 6)
    assert same(back, table)
    assert end == 6 + len(data)
    assert skip_table(b"before" + data + b"after", 6) == end


@pytest.mark.parametrize(
    ("raw", "value"),
    [
        (b"t\x01", True),
        (b"b\xff", -1),
        (b"B\xff", 255),
        (b"s\xff\xfe", -2),
        (b"u\xff\xfe", 65534),
        (b"I\xff\xff\xff\xff", -1),
        (b"i\xff\xff\xff\xff", 4294967295),
        (b"l\xff\xff\xff\xff\xff\xff\xff\xff", -1),
        (b"L\x00\x00\x00\x00\x00\x00\x00\x07", 7),
        (b"f\x3f\x80\x00\x00", 1.0),
        (b"d\x3f\xf0\x00\x00\x00\x00\x00\x00", 1.0),
        (b"D\x02\x00\x00\x00\x7b", Decimal("1.23")),
        (b"S\x00\x00\x00\x02hi", "hi"),
        (b"S\x00\x00\x00\x01\xff", RawText(b"\xff")),
        (b"x\x00\x00\x00\x02hi", b"hi"),
        (b"T\x00\x00\x00\x00\x00\x00\x00\x00", datetime(1970, 1, 1, tzinfo=UTC)),
        (b"T\xff\xff\xff\xff\xff\xff\xff\xff", FarMoment((1 << 64) - 1)),
        (b"V", None),
        (b"A\x00\x00\x00\x04t\x01t\x00", [True, False]),
        (b"F\x00\x00\x00\x03\x01kV", {"k": None}),
    ],
)
def test_every_type_that_clients_send_is_read(raw: bytes, value: Value) -> None:
    data = struct.pack(">I", len(raw) + 2) + b"\x01k" + raw
    table, end = decode_table(data, 0)
    assert same(table["k"], value)
    assert end == len(data) == skip_table(data, 0)


@given(st.binary(max_size=200))
@example(b"\x00\x00\x00\x05\x01kS\x00\x00")
@example(b"\x00\x00\x00\x08\x01kA\x00\x00\x00\x01t")
@example(b"\x00\x00\x00\x07\x01kD\x00\x00\x00\x00")
def test_table_garbage_is_a_protocol_error_or_a_table_that_can_be_written_again(data: bytes) -> None:
    for raw in (data, struct.pack(">I", len(data)) + data):
        skipped, decoded = outcome(partial(skip_table, raw, 0)), outcome(partial(decode_table, raw, 0))
        if isinstance(decoded, int):
            assert decoded == skipped == 502
        else:
            table, end = decoded
            assert skipped == end
            again, _ = decode_table(encode_table(table), 0)
            assert repr(again) == repr(table)  # by repr, because NaN is not equal to itself


@given(tables, st.data())
def test_altered_and_truncated_tables_fuzz(table: Table, data: st.DataObject) -> None:
    raw = bytearray(encode_table(table))
    place = data.draw(st.integers(0, len(raw) - 1))
    raw[place] = data.draw(st.integers(0, 255))
    cut = bytes(raw[: data.draw(st.integers(0, len(raw)))])
    skipped, decoded = outcome(lambda: skip_table(cut, 0)), outcome(lambda: decode_table(cut, 0))
    assert skipped == (decoded if isinstance(decoded, int) else decoded[1])


def test_tables_nested_too_deeply_are_refused_before_the_stack_is() -> None:
    deep = b"V"
    for _ in range(1000):
        deep = b"A" + struct.pack(">I", len(deep)) + deep
    data = struct.pack(">I", len(deep) + 2) + b"\x01k" + deep
    for read in (decode_table, skip_table):
        with pytest.raises(ProtocolError, match="nested"):
            read(data, 0)


@pytest.mark.parametrize("value", [1 << 63, Decimal("1e300"), Decimal("NaN"), Decimal(1 << 40)])
def test_what_no_table_can_hold_is_refused(value: Value) -> None:
    with pytest.raises(ProtocolError):
        encode_table({"k": value})


def test_a_name_of_more_than_255_bytes_is_refused() -> None:
    with pytest.raises(ProtocolError, match="255 bytes"):
        encode_table({"é" * 128: 1})
