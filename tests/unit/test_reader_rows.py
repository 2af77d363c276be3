"""Rows that are read without Spark are the rows that Spark gets, whatever the message."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
import pytest
from broker_rig import message
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql import types
from pyspark.sql.pandas.types import to_arrow_schema

from coterie.amqp.wire.properties import PREFIX, Properties, encode
from coterie.broker.message import Message, make_message
from coterie.broker.rows import Row
from coterie.errors import UserError
from coterie.reader import Look, properties, schema
from coterie.reader.brokers import Brokers, brokers
from coterie.spark import source
from coterie.spark.source_options import SourceOptions
from coterie.streams.arrow import COLUMNS
from coterie.streams.client import Node, Tail
from coterie.streams.columns import Batch, batch_of, encode_rows, read_frame

SPARK: dict[str, types.DataType] = {
    "binary": types.BinaryType(), "string": types.StringType(), "bigint": types.LongType(),
    "boolean": types.BooleanType(), "int": types.IntegerType(), "timestamp": types.TimestampType(),
    "map<string,string>": types.MapType(types.StringType(), types.StringType()),
}  # fmt: skip
STRUCT = types.StructType([types.StructField(name, SPARK[kind]) for name, kind in COLUMNS.items()])
QUEUE = "orders"

short = st.one_of(
    st.text(max_size=12), st.binary(max_size=12).map(lambda raw: raw.decode("utf-8", "surrogateescape"))
).filter(lambda text: len(text.encode("utf-8", "surrogateescape")) < 256)
"""What AMQP lets publishers send: bytes that are mostly UTF-8."""
simple = st.one_of(
    st.none(), st.booleans(), st.integers(-(2**63), 2**63 - 1), st.floats(), st.text(max_size=10),
    st.binary(max_size=6), st.datetimes(datetime(1971, 1, 1), datetime(2200, 1, 1), timezones=st.just(UTC)).map(
        lambda moment: moment.replace(microsecond=0)
    ),
)  # fmt: skip
values = st.recursive(simple, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(short, inner, max_size=3))
octet = st.one_of(st.none(), st.integers(0, 255))
messages = st.builds(
    lambda key, body, **sent: make_message("", key, body, Properties(**sent)),
    key=short,
    body=st.binary(max_size=20),
    headers=st.one_of(st.none(), st.dictionaries(short, values, max_size=4)),
    delivery_mode=octet,
    priority=octet,
    timestamp=st.one_of(
        st.none(),
        st.just(2**64 - 1),
        st.integers(0, 2**33).map(lambda second: datetime.fromtimestamp(second, UTC)),
    ),
    **{
        name: st.one_of(st.none(), short)
        for name in ("content_type", "correlation_id", "reply_to", "message_id", "type", "user_id", "app_id")
    },
)


def batch_from(given: list[Message]) -> Batch:
    file = io.BytesIO(encode_rows([Row(n, each, n % 2 == 0, "ready") for n, each in enumerate(given, 1)]))
    _, said, data = read_frame(lambda size: memoryview(file.read(size)))
    return batch_of(said, data)


class Answering:
    """A client that has its answers."""

    asked = "http://one:15672"

    def __init__(self, batch: Batch) -> None:
        self._batch = batch
        self.tail = Tail("/", QUEUE, 1, 1, batch.rows + 1, batch.rows, 0, batch.rows, 0, 0, "0.0")

    def __enter__(self) -> Answering:
        return self

    def __exit__(self, *_: object) -> None: ...

    def close(self) -> None: ...

    def nodes(self) -> list[Node]:
        return [Node("one", self.asked, True)]

    def prefer(self, urls: object, first: int = 0) -> None: ...

    def cut(self, queue: str) -> Tail:
        return self.tail

    def read_range(self, cut: Tail, first: int, last: int) -> Iterator[Batch]:
        yield self._batch


def by_reader(client: Answering) -> pa.Table:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Brokers, "client", lambda self: client)
        return Look(brokers("one", {}, {}), QUEUE, batch_rows=2).to_table()


def by_spark(client: Answering) -> pa.Table:
    """What the data source hands to Spark."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(SourceOptions, "client", lambda self: client)
        table = source.QueueTable(SourceOptions.of({"servers": "http://one:15672", "queue": QUEUE}), STRUCT)
        part = source.CutPart(0, client.tail, 1, client.tail.next, ())
        return pa.Table.from_batches(table.read(part))


@given(st.lists(messages, min_size=1, max_size=6))
def test_any_message_is_the_row_that_spark_makes_of_it(given: list[Message]) -> None:
    found, expected = by_reader(Answering(batch_from(given))), by_spark(Answering(batch_from(given)))
    assert found.schema == expected.schema
    # NaN is text in headers: plain equality holds.
    assert found.equals(expected)
    for number, (row, sent) in enumerate(zip(found.to_pylist(), given, strict=True), 1):
        assert row == expected_row(number, sent)
        assert encode(properties(row["properties"]), len(sent.body))[PREFIX:] == sent.header[PREFIX:]


def expected_row(number: int, sent: Message) -> dict[str, Any]:
    """The columns as docs/spark-streams.md says."""
    told = sent.properties()
    texts = (
        "content_type", "content_encoding", "correlation_id", "reply_to", "expiration", "message_id", "type",
        "user_id", "app_id",
    )  # fmt: skip
    return {
        "value": sent.body, "queue": QUEUE, "position": number, "redelivered": number % 2 == 0, "exchange": "",
        "routing_key": readable(sent.key),
        "headers": None if told.headers is None else [(readable(k), shown(v)) for k, v in told.headers.items()],
        "delivery_mode": told.delivery_mode, "priority": told.priority,
        "timestamp": told.timestamp if isinstance(told.timestamp, datetime) else None,
        **{name: None if (text := getattr(told, name)) is None else readable(text) for name in texts},
        "properties": sent.header[PREFIX:],
    }  # fmt: skip


def readable(text: str) -> str:
    return text.encode("utf-8", "surrogateescape").decode("utf-8", "replace")


def shown(value: object) -> str:
    if isinstance(value, bytes):
        return value.decode("utf-8", "replace")
    return readable(value) if isinstance(value, str) else json.dumps(value, default=str)


def test_the_schema_is_the_one_that_spark_hands_to_arrow() -> None:
    assert schema().equals(to_arrow_schema(STRUCT, timezone="UTC"), check_metadata=True)
    assert schema(["position", "value"]).names == ["position", "value"]


def test_bytes_that_are_no_utf8_stop_no_reader_and_are_there_as_they_were() -> None:
    sent = message("b", "", "key\udcff", content_type="a\udcfe", headers={"h\udcfd": 1})
    (row,) = by_reader(Answering(batch_from([sent]))).to_pylist()
    assert (row["routing_key"], row["content_type"], row["headers"]) == ("key\ufffd", "a\ufffd", [("h\ufffd", "1")])
    assert properties(row["properties"]).content_type == "a\udcfe"


@pytest.mark.parametrize(
    ("columns", "wrong"),
    [(["body"], "no 'body'"), (["value", "value"], "twice"), ("value", "a list of names")],
)
def test_columns_that_there_are_not_are_refused(columns: Any, wrong: str) -> None:
    with pytest.raises(UserError, match=wrong):
        schema(columns)


@pytest.mark.parametrize("wrong", [{"first": -1}, {"limit": True}, {"batch_rows": 0}, {"last": "7"}])
def test_limits_that_make_no_sense_are_refused_before_anybody_is_asked(wrong: dict[str, Any]) -> None:
    with pytest.raises(UserError, match=next(iter(wrong))):
        Look(brokers("http://127.0.0.1:1", {}, {}), QUEUE, **wrong)


def test_a_limit_ends_a_look_in_the_middle_of_a_batch_and_says_where_to_go_on() -> None:
    client = Answering(batch_from([message(str(n)) for n in range(9)]))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Brokers, "client", lambda self: client)
        found = Look(brokers("one", {}, {}), QUEUE, ["value"], limit=5, batch_rows=2)
        assert [batch.num_rows for batch in found] == [2, 2, 1]
        assert found.next == 6
        whole = Look(brokers("one", {}, {}), QUEUE, ["value"])
        assert whole.to_reader().read_all()["value"].to_pylist() == [b"%d" % n for n in range(9)]
        assert whole.next == 10
