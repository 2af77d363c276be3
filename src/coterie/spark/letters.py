"""Rows to messages: which columns a sink takes, and the bytes of a publish that each row becomes.

A column has the name of what it is: `value` is the body, `routing_key` and `exchange` say where it goes, and the others
are properties of AMQP. Where all that differs is the body and the id, as is mostly so, a row costs a digest and three
short joins.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final

from coterie.amqp.wire.codes import FRAME_BODY, FRAME_END, FRAME_HEADER, FRAME_OVERHEAD
from coterie.amqp.wire.methods import METHODS
from coterie.amqp.wire.properties import PREFIX, Properties, encode, join, split
from coterie.amqp.wire.tables import short
from coterie.errors import ProtocolError, UserError
from coterie.spark.link import CHANNEL
from coterie.spark.publisher import Bulk

if TYPE_CHECKING:
    from pyarrow import Array, RecordBatch
    from pyspark.sql.types import StructType

    from coterie.spark.ids import Ids

BULK_MESSAGES: Final = 500
BULK_BYTES: Final = 512 << 10
"""What goes out together."""
_TEXTS: Final = ("string",)
_NUMBERS: Final = ("tinyint", "smallint", "int", "bigint")
_HEADERS: Final = tuple(
    f"map<string,{kind}>" for kind in ("string", "binary", "boolean", *_NUMBERS, "float", "double", "timestamp")
)
COLUMNS: Final[Mapping[str, tuple[str, ...]]] = {
    "value": ("binary", "string"),
    "exchange": _TEXTS,
    "routing_key": _TEXTS,
    "headers": _HEADERS,
    **dict.fromkeys(("content_type", "content_encoding", "correlation_id", "reply_to", "expiration"), _TEXTS),
    **dict.fromkeys(("message_id", "type", "user_id", "app_id"), _TEXTS),
    **dict.fromkeys(("delivery_mode", "priority"), _NUMBERS),
    "timestamp": ("timestamp",),
    "properties": ("binary",),
}
"""With the types that each may have."""
_PROPERTIES: Final = tuple(
    name for name in COLUMNS if name not in ("value", "exchange", "routing_key", "message_id", "properties")
)
_KNOWN_MAX: Final = 1000
"""Distinct properties of other messages that a task remembers."""
_FRAME = struct.Struct(">BHI")
_SIZE = struct.Struct(">Q")
_END: Final = bytes((FRAME_END,))
_FIXED: Final = encode(Properties(), 0)[:4]
"""Class and weight."""


def check_schema(schema: StructType) -> None:
    """Raises UserError for rows that are no messages."""
    there = {field.name: field.dataType.simpleString() for field in schema.fields}
    if "value" not in there:
        raise UserError(f"a sink needs a column 'value', the body; there are: {', '.join(there)}")
    for name, kind in there.items():
        kinds = COLUMNS.get(name)
        if kinds is None:
            raise UserError(f"column '{name}': a message has none; there are: {', '.join(COLUMNS)}")
        if kind not in kinds:
            raise UserError(f"column '{name}': {' or '.join(kinds)} is due, not {kind}")


class Letters:
    """How the rows of one task become messages. What is given here for all of them wins over columns."""

    def __init__(
        self, ids: Ids | None, exchange: str | None, key: str | None, mandatory: bool, persistent: bool, frame_max: int
    ) -> None:
        self._ids = ids
        self._exchange = exchange
        self._key = key
        self._mandatory = mandatory
        self._static = Properties(delivery_mode=2 if persistent else 1)
        self._body_most = frame_max - FRAME_OVERHEAD
        self._methods: dict[tuple[str, str], bytes] = {}
        self._known: dict[bytes, dict[str, bytes]] = {}
        """Of other messages: properties, and each of them."""

    def bulks(self, batch: RecordBatch) -> Iterator[Bulk]:
        """Of one batch of rows, whose names were checked."""
        columns = {name: batch.column(at) for at, name in enumerate(batch.schema.names)}
        bodies = _bodies(columns["value"])
        routes = self._routes(columns, batch.num_rows)
        heads = self._heads(columns, batch.num_rows, routes, bodies)
        parts: list[bytes] = []
        ends: list[int] = []
        size = 0
        for route, head, body in zip(routes, heads, bodies, strict=True):
            method = self._methods.get(route) or self._method(route)
            message = b"".join((method, head, *self._body(body)))
            parts.append(message)
            size += len(message)
            ends.append(size)
            if size >= BULK_BYTES or len(ends) >= BULK_MESSAGES:
                yield Bulk(b"".join(parts), ends)
                parts, ends, size = [], [], 0
        if ends:
            yield Bulk(b"".join(parts), ends)

    # Where to.

    def _routes(self, columns: Mapping[str, Array], rows: int) -> list[tuple[str, str]]:
        exchanges = _texts(columns.get("exchange"), self._exchange, rows)
        keys = _texts(columns.get("routing_key"), self._key, rows)
        return list(zip(exchanges, keys, strict=True))

    def _method(self, route: tuple[str, str]) -> bytes:
        exchange, key = route
        try:
            method = METHODS["basic.publish"].frame(
                CHANNEL, exchange=exchange, routing_key=key, mandatory=self._mandatory
            )
        except ProtocolError as error:
            raise UserError(f"exchange '{exchange[:40]}', routing key '{key[:40]}': {error}") from None
        if len(self._methods) < 10_000:
            self._methods[route] = method
        return method

    # Properties.

    def _heads(
        self, columns: Mapping[str, Array], rows: int, routes: Sequence[tuple[str, str]], bodies: Sequence[bytes]
    ) -> Iterator[bytes]:
        if "properties" in columns:
            yield from self._heads_like(columns, rows, routes, bodies)
            return
        given = columns["message_id"].to_pylist() if "message_id" in columns else None
        changing = [name for name in _PROPERTIES if name in columns]
        if changing:
            values = {name: columns[name].to_pylist() for name in changing}
            rest: Callable[[int], Properties] = lambda row: self._of_row(values, row)  # noqa: E731
        else:
            rest = lambda row: self._static  # noqa: E731
        before, after, flags = _around(self._static)
        same = _static_head(before, after, flags)
        for row in range(rows):
            properties = rest(row)
            found = None if given is None else given[row]
            if found is None and self._ids is not None:
                told = b"" if not changing else encode(properties, 0)
                found = self._ids.next(routes[row], told, bodies[row])
            if changing or found is None:
                yield _frame(FRAME_HEADER, self._encode(replace(properties, message_id=found), len(bodies[row])))
            else:
                yield same(found, len(bodies[row]))

    def _heads_like(
        self, columns: Mapping[str, Array], rows: int, routes: Sequence[tuple[str, str]], bodies: Sequence[bytes]
    ) -> Iterator[bytes]:
        """Where rows bring the properties of another message: byte for byte, but for what other columns say."""
        raw = columns["properties"].to_pylist()
        values = {name: columns[name].to_pylist() for name in (*_PROPERTIES, "message_id") if name in columns}
        usual = split(encode(self._static, 0)[PREFIX:])
        for row in range(rows):
            own = {name: column[row] for name, column in values.items() if column[row] is not None}
            found = usual if raw[row] is None else self._split(raw[row])
            if own:
                if "headers" in own:
                    own["headers"] = dict(own["headers"])
                found = {**found, **split(self._encode(Properties(**own), 0)[PREFIX:])}
            if "message_id" not in found and self._ids is not None:
                id = self._ids.next(routes[row], join(found), bodies[row])
                found = {**found, "message_id": short(id)}
            yield _frame(FRAME_HEADER, b"".join((_FIXED, _SIZE.pack(len(bodies[row])), join(found))))

    def _split(self, raw: bytes) -> dict[str, bytes]:
        known = self._known.get(raw)
        if known is None:
            try:
                known = split(raw)
            except ProtocolError as error:
                raise UserError(f"column 'properties': not the properties of a message: {error}") from None
            if len(self._known) >= _KNOWN_MAX:
                self._known.clear()
            self._known[raw] = known
        return known

    def _of_row(self, values: Mapping[str, Sequence[Any]], row: int) -> Properties:
        found = {name: column[row] for name, column in values.items() if column[row] is not None}
        if "headers" in found:
            found["headers"] = dict(found["headers"])
        return replace(self._static, **found)

    @staticmethod
    def _encode(properties: Properties, size: int) -> bytes:
        try:
            return encode(properties, size)
        except (ProtocolError, ValueError, OverflowError, struct.error) as error:
            raise UserError(f"a row's properties cannot be sent: {error}") from None

    # Bodies.

    def _body(self, body: bytes) -> tuple[bytes, ...]:
        size, most = len(body), self._body_most
        if not size:
            return ()
        if size <= most:
            return _FRAME.pack(FRAME_BODY, CHANNEL, size), body, _END
        return tuple(_frame(FRAME_BODY, body[at : at + most]) for at in range(0, size, most))


def _frame(kind: int, payload: bytes) -> bytes:
    return b"".join((_FRAME.pack(kind, CHANNEL, len(payload)), payload, _END))


def _around(properties: Properties) -> tuple[bytes, bytes, bytes]:
    """What stands before and behind the message id in a header, and the flags with it."""
    probe = encode(replace(properties, message_id="?"), 0)
    before, _, after = probe[PREFIX + 2 :].partition(short("?"))
    return before, after, probe[PREFIX : PREFIX + 2]


def _static_head(before: bytes, after: bytes, flags: bytes) -> Callable[[str, int], bytes]:
    """Makes header frames that differ in id and size only."""
    known = len(_FIXED) + _SIZE.size + len(flags) + len(before) + len(after) + 1

    def head(id: str, size: int) -> bytes:
        text = id.encode()
        if len(text) > 255:
            raise UserError(f"a message id may have 255 bytes: '{id[:40]}...' has {len(text)}")
        return b"".join(
            (
                _FRAME.pack(FRAME_HEADER, CHANNEL, known + len(text)), _FIXED, _SIZE.pack(size), flags, before,
                bytes((len(text),)), text, after, _END,
            )
        )  # fmt: skip

    return head


def _texts(column: Array | None, given: str | None, rows: int) -> list[str]:
    if given is not None:
        return [given] * rows
    return [""] * rows if column is None else [text or "" for text in column.to_pylist()]


def _bodies(column: Array) -> list[bytes]:
    """The bodies as they stand in the column's buffers; null: an empty one."""
    import pyarrow as pa

    kind = column.type
    if pa.types.is_large_binary(kind) or pa.types.is_large_string(kind):
        form, size = "<{}q", 8
    elif pa.types.is_binary(kind) or pa.types.is_string(kind):
        form, size = "<{}i", 4
    else:
        return [bytes(each) if each is not None else b"" for each in column.cast(pa.binary()).to_pylist()]
    _, offsets, data = column.buffers()
    if data is None or not len(column):
        return [b""] * len(column)
    places = struct.unpack_from(form.format(len(column) + 1), offsets, column.offset * size)
    content = memoryview(data)
    found = [bytes(content[start:end]) for start, end in pairwise(places)]
    if column.null_count:
        return [body if there else b"" for body, there in zip(found, column.is_valid().to_pylist(), strict=True)]
    return found
