"""Batches of messages as Arrow record batches: columns are made of the buffers as a broker sent them.

What a row is, is said here once: for Spark, and for whoever reads without it. Bodies, positions and flags are the
broker's buffers; exchanges, routing keys and the bytes of all properties together are taken from dictionaries. Only
single properties are decoded, each distinct header once: whoever has no use for them leaves them out.

Properties and routing keys are what a publisher sent, and need not be UTF-8; columns of text are. Bytes that are none
become U+FFFD, so that no message stops a reader; the column `properties` has them as they were.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from functools import partial
from typing import Any, Final

import pyarrow as pa

from coterie.amqp.wire.properties import Properties
from coterie.errors import UserError
from coterie.streams.columns import Batch, properties, utf8

_TEXTS: Final = (
    "content_type", "content_encoding", "correlation_id", "reply_to", "expiration", "message_id", "type", "user_id",
    "app_id",
)  # fmt: skip
COLUMNS: Final[Mapping[str, str]] = {
    "value": "binary",
    "queue": "string",
    "position": "bigint",
    "redelivered": "boolean",
    "exchange": "string",
    "routing_key": "string",
    "headers": "map<string,string>",
    "delivery_mode": "int",
    "priority": "int",
    "timestamp": "timestamp",
    **dict.fromkeys(_TEXTS, "string"),
    "properties": "binary",
}
"""Every column, with its type in Spark."""
_TYPES: Final[Mapping[str, pa.DataType]] = {
    "binary": pa.binary(), "string": pa.string(), "bigint": pa.int64(), "boolean": pa.bool_(), "int": pa.int32(),
    "timestamp": pa.timestamp("us", tz="UTC"), "map<string,string>": pa.map_(pa.string(), pa.string()),
}  # fmt: skip
"""Spark's types as it hands them to Arrow."""


def chosen(columns: Sequence[str]) -> tuple[str, ...]:
    """The columns that somebody wants; all of them if none is named. Raises UserError."""
    for name in columns:
        if name not in COLUMNS:
            raise UserError(f"columns: there is no '{name}'; there are: {', '.join(COLUMNS)}")
    if len({*columns}) < len(columns):
        raise UserError(f"columns: one is there twice: {', '.join(columns)}")
    return tuple(columns) or tuple(COLUMNS)


def ddl(names: Sequence[str]) -> str:
    return ", ".join(f"{name} {COLUMNS[name]}" for name in names)


def schema(names: Sequence[str]) -> pa.Schema:
    """What Spark makes of `ddl`."""
    return pa.schema([(name, _TYPES[COLUMNS[name]]) for name in names])


def _strings(batch: Batch, name: str, kind: pa.DataType) -> pa.Array:
    offsets, data = batch.buffers[f"{name}.offsets"], batch.buffers[f"{name}.data"]
    return pa.Array.from_buffers(kind, len(offsets) // 4 - 1, [None, pa.py_buffer(offsets), pa.py_buffer(data)])


def _numbers(batch: Batch, name: str, kind: pa.DataType) -> pa.Array:
    return pa.Array.from_buffers(kind, batch.rows, [None, pa.py_buffer(batch.buffers[name])])


def _headers(found: Properties) -> list[tuple[str, str]] | None:
    return None if found.headers is None else [(utf8(name), _text(value)) for name, value in found.headers.items()]


def _text(value: object) -> str:
    if isinstance(value, str):
        return utf8(value)
    if isinstance(value, bytes):
        return value.decode(errors="replace")
    return json.dumps(value, default=str)


def _moment(found: Properties) -> datetime | None:
    return found.timestamp if isinstance(found.timestamp, datetime) else None


def _property(name: str, found: Properties) -> str | None:
    value: str | None = getattr(found, name)
    return None if value is None else utf8(value)


_DECODED: Final[Mapping[str, Callable[[Properties], Any]]] = {
    "headers": _headers,
    "timestamp": _moment,
    "delivery_mode": lambda found: found.delivery_mode,
    "priority": lambda found: found.priority,
    **{name: partial(_property, name) for name in _TEXTS},
}


def record_batch(batch: Batch, queue: str, schema: pa.Schema) -> pa.RecordBatch:
    """As `schema`, whose names are of COLUMNS, wants it."""
    codes: pa.Array | None = None
    known: list[Properties] = []
    arrays: list[pa.Array] = []
    for field in schema:
        name = field.name
        if name == "value":
            arrays.append(_strings(batch, "body", pa.binary()))
        elif name == "position":
            arrays.append(_numbers(batch, "position", pa.int64()))
        elif name == "redelivered":
            arrays.append(_numbers(batch, "redelivered", pa.bool_()))
        elif name == "queue":
            arrays.append(pa.repeat(pa.scalar(queue), batch.rows))
        elif name in ("exchange", "routing_key"):
            dictionary = _strings(batch, f"route.{'key' if name == 'routing_key' else 'exchange'}", pa.string())
            arrays.append(dictionary.take(_numbers(batch, "route", pa.int32())))
        elif name == "properties":
            arrays.append(_strings(batch, "header", pa.binary()).take(_numbers(batch, "header", pa.int32())))
        else:
            if codes is None:
                codes = _numbers(batch, "header", pa.int32())
                known = [properties(header) for header in _strings(batch, "header", pa.binary()).to_pylist()]
            decode = _DECODED[name]
            arrays.append(pa.array([decode(each) for each in known], field.type).take(codes))
    return pa.RecordBatch.from_arrays(arrays, schema=schema)
