"""Events as rows of Arrow columns, and back: how they travel between Spark and the folds.

Both ways go column by column, in C, and no line of Python runs for each row. Texts that occur again and again (names,
kinds, views, data) are one object for the whole batch: they are hashed once and parsed once. So an event's data may be
shared with others, and is only ever read.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa

from coterie.spark.schema import EVENT_COLUMNS
from coterie.trace import Event, Json

TYPES = {
    "string": pa.string(), "bigint": pa.int64(), "double": pa.float64(), "boolean": pa.bool_(),
    "binary": pa.binary(), "array<string>": pa.list_(pa.string()), "array<double>": pa.list_(pa.float64()),
}  # fmt: skip
"""Spark's types as Arrow has them."""
REPEATED = ("run", "node", "kind", "view", "sender", "queue")
"""Columns of few different texts."""


def arrow_schema(columns: Mapping[str, tuple[str, str]]) -> pa.Schema:
    """Columns of schema.py."""
    return pa.schema([(name, TYPES[kind]) for name, (kind, _) in columns.items()])


EVENT_SCHEMA = arrow_schema(EVENT_COLUMNS)


def events_of(batch: pa.RecordBatch) -> list[Event]:
    """The events in the columns of that name."""
    columns: list[list[Any]] = []
    for name in EVENT_COLUMNS:
        column = batch.column(name)
        if name == "data":
            columns.append(_shared(column, json.loads, {}))
        elif name in REPEATED:
            columns.append(_shared(column))
        else:
            columns.append(column.to_pylist())
    return list(map(Event, *columns))


def _shared(column: pa.Array, make: Callable[[str], Any] | None = None, absent: Any = None) -> list[Any]:
    """The column's values, equal ones the same object; `make` is applied to each different one."""
    encoded = column.dictionary_encode()
    values = encoded.dictionary.to_pylist()
    if make is not None:
        values = list(map(make, values))
    values.append(absent)
    different = np.empty(len(values), dtype=object)
    different[:] = values
    found: list[Any] = different[encoded.indices.fill_null(len(values) - 1).to_numpy(zero_copy_only=False)].tolist()
    return found


def columns_of(events: Sequence[Event]) -> list[pa.Array]:
    """The same events as columns, in the order of EVENT_COLUMNS."""
    columns = []
    for field in EVENT_SCHEMA:
        if field.name == "data":
            values: Iterable[Any] = [data_text(event.data) for event in events]
        elif field.type == pa.float64():
            values = [None if (v := getattr(event, field.name)) is None else float(v) for event in events]
        else:
            values = [getattr(event, field.name) for event in events]
        columns.append(pa.array(values, field.type))
    return columns


def data_text(data: Mapping[str, Json]) -> str | None:
    """As `Event.to_json` writes it; None if there is nothing."""
    return json.dumps(data, separators=(",", ":"), ensure_ascii=False) if data else None


def segments(*columns: pa.Array) -> Iterator[tuple[int, int]]:
    """From where to where the values of all these columns, which have no NULLs, stay the same."""
    rows = len(columns[0])
    changes = np.zeros(max(rows - 1, 0), dtype=bool)
    for column in columns:
        values = (
            column.to_numpy() if pa.types.is_integer(column.type) else column.dictionary_encode().indices.to_numpy()
        )
        changes |= values[1:] != values[:-1]
    return pairwise((*([0] if rows else []), *(np.flatnonzero(changes) + 1).tolist(), rows))
