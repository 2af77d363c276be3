"""Rows of messages by columns: the frames in which a broker gives them, and the way back.

A batch is one description in JSON and one run of buffers in Arrow's layouts, so that neither side looks at rows one by
one more than it must: the writer joins bytes that are there, the reader makes arrays of the buffers as they came.
Routes and property headers are dictionaries, as neighbours mostly share them. docs/streams.md has every byte.
"""

from __future__ import annotations

import json
import struct
import sys
from array import array
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import TYPE_CHECKING, Any, Final, Literal

from coterie.amqp.wire.properties import PREFIX, Properties, decode
from coterie.amqp.wire.tables import read_short
from coterie.errors import PeerError, ProtocolError

if TYPE_CHECKING:
    from coterie.broker.message import Message
    from coterie.broker.rows import Row

CONTENT_TYPE: Final = "application/vnd.coterie.columns"
MAGIC: Final = b"CQS1"
BATCH: Final = b"B"
END: Final = b"E"
FAILED: Final = b"X"
HEAD: Final = struct.Struct("<4sc3xI4xQ")
"""Magic, kind, length of the description, length of the buffers."""
ALIGNMENT: Final = 64
DESCRIPTION_MAX: Final = 1 << 20
BUFFERS_MAX: Final = 1 << 31
"""Bytes: what says that it is longer is no frame."""
_BIG: Final = sys.byteorder == "big"
_NO_PROPERTIES: Final = Properties()

Rows = Sequence["Row"]
"""By rising offsets, or positions."""


class NoFrame(PeerError):
    """Bytes that are no frame."""


# Writing.


def _numbers(kind: str, values: Sequence[int] | Iterator[int]) -> bytes:
    numbers = array(kind, values)
    if _BIG:
        numbers.byteswap()
    return numbers.tobytes()


def _bits(flags: Sequence[bool]) -> bytes:
    size = (len(flags) + 7) // 8
    if True not in flags:
        return bytes(size)
    return int("".join("1" if flag else "0" for flag in reversed(flags)), 2).to_bytes(size, "little")


def _column(name: str, values: Sequence[bytes]) -> list[tuple[str, list[bytes], int]]:
    """Of byte strings: offsets and data."""
    ends = [*accumulate(map(len, values), initial=0)]
    offsets = _numbers("i", ends)
    return [(f"{name}.offsets", [offsets], len(offsets)), (f"{name}.data", [*values], ends[-1])]


def _codes(values: Sequence[bytes], numbers: dict[bytes, int]) -> bytes:
    """The number of each; mostly, all are the same."""
    if len(numbers) == 1:
        return bytes(4 * len(values))
    return _numbers("i", [*map(numbers.__getitem__, values)])


def _routes(messages: Sequence[Message]) -> list[tuple[str, list[bytes], int]]:
    values = [message.route for message in messages]
    known = {route: number for number, route in enumerate(dict.fromkeys(values))}
    exchanges, keys = zip(*map(_route, known), strict=True) if known else ((), ())
    return [
        _fixed("route", _codes(values, known)), *_column("route.exchange", exchanges), *_column("route.key", keys)
    ]  # fmt: skip


def _headers(messages: Sequence[Message]) -> list[tuple[str, list[bytes], int]]:
    """Each distinct one once, without the part that has the size of the body."""
    values = [message.header for message in messages]
    known: dict[bytes, int] = {}
    numbers = {whole: known.setdefault(whole[PREFIX:], len(known)) for whole in dict.fromkeys(values)}
    return [_fixed("header", _codes(values, numbers)), *_column("header", [*known])]


def encode_rows(rows: Rows, offsets: Sequence[int] | None = None) -> bytes:
    """One batch; `offsets`: those of a lease."""
    messages = [row.message for row in rows]
    columns = [_fixed("position", _numbers("q", [row.position for row in rows]))]
    if offsets is not None:
        columns.append(_fixed("offset", _numbers("q", offsets)))
    columns.append(_fixed("redelivered", _bits([row.redelivered for row in rows])))
    columns += _column("body", [message.body for message in messages])
    columns += _routes(messages)
    columns += _headers(messages)
    described: list[list[object]] = []
    parts: list[bytes] = []
    at = 0
    for name, found, size in columns:
        described.append([name, at, size])
        parts += found
        padding = -size % ALIGNMENT
        if padding:
            parts.append(bytes(padding))
        at += size + padding
    return b"".join((*_begin(BATCH, {"rows": len(rows), "buffers": described}, at), *parts))


def _fixed(name: str, data: bytes) -> tuple[str, list[bytes], int]:
    return name, [data], len(data)


def _route(route: bytes) -> tuple[bytes, bytes]:
    exchange, at = read_short(route, 0)
    key, _ = read_short(route, at)
    return utf8(exchange).encode(), utf8(key).encode()


def utf8(text: str) -> str:
    """A short string of AMQP, with U+FFFD for what is no UTF-8 in it."""
    return text if text.isascii() else text.encode(errors="surrogateescape").decode(errors="replace")


def encode_end(rows: int, size: int) -> bytes:
    return b"".join(_begin(END, {"rows": rows, "bytes": size}, 0))


def encode_error(error: str, reason: str) -> bytes:
    return b"".join(_begin(FAILED, {"error": error, "reason": reason}, 0))


def _begin(kind: bytes, description: object, size: int) -> tuple[bytes, bytes]:
    text = json.dumps(description, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return HEAD.pack(MAGIC, kind, len(text), size), text


# Reading.


@dataclass(frozen=True, slots=True)
class Batch:
    """Rows, as they came. The buffers are views of one run of bytes, which lives as long as any of them."""

    rows: int
    buffers: dict[str, memoryview]

    @property
    def position(self) -> Sequence[int]:
        return _read_numbers("q", self.buffers["position"])

    @property
    def offset(self) -> Sequence[int]:
        """Of a lease; nothing: it was a browse."""
        return _read_numbers("q", self.buffers["offset"]) if "offset" in self.buffers else ()

    @property
    def redelivered(self) -> list[bool]:
        bits = self.buffers["redelivered"]
        return [bool(bits[row >> 3] >> (row & 7) & 1) for row in range(self.rows)]

    def bodies(self) -> list[bytes]:
        return self._strings("body")

    def exchanges(self) -> list[str]:
        return [text.decode() for text in self._by_code("route", "route.exchange")]

    def routing_keys(self) -> list[str]:
        return [text.decode() for text in self._by_code("route", "route.key")]

    def properties(self) -> list[Properties]:
        """Each distinct header is decoded once: rows that share one share the object."""
        known = [properties(header) for header in self._strings("header")]
        return [known[code] for code in _read_numbers("i", self.buffers["header"])]

    @property
    def size(self) -> int:
        """Bytes of bodies."""
        return len(self.buffers["body.data"])

    def _by_code(self, codes: str, name: str) -> list[bytes]:
        known = self._strings(name)
        return [known[code] for code in _read_numbers("i", self.buffers[codes])]

    def _strings(self, name: str) -> list[bytes]:
        offsets, data = _read_numbers("i", self.buffers[f"{name}.offsets"]), self.buffers[f"{name}.data"]
        return [bytes(data[offsets[at] : offsets[at + 1]]) for at in range(len(offsets) - 1)]


def properties(header: bytes) -> Properties:
    """What a property header says; one that makes no sense says nothing."""
    try:
        return decode(bytes(PREFIX) + header)
    except (ProtocolError, ValueError):
        return _NO_PROPERTIES


def _read_numbers(kind: Literal["i", "q"], data: memoryview) -> Sequence[int]:
    if not _BIG:
        return data.cast(kind)
    numbers = array(kind)
    numbers.frombytes(data)
    numbers.byteswap()
    return numbers


Frame = tuple[bytes, dict[str, Any], memoryview]
"""Kind, description, buffers."""


def read_frame(read: Callable[[int], memoryview]) -> Frame:
    """`read` gives so many bytes, or raises. Raises NoFrame."""
    magic, kind, described, size = HEAD.unpack(read(HEAD.size))
    if magic != MAGIC or kind not in (BATCH, END, FAILED) or described > DESCRIPTION_MAX or size > BUFFERS_MAX:
        raise NoFrame("the answer is none of a Coterie node, or of a newer one")
    try:
        description = json.loads(bytes(read(described)))
    except ValueError as error:
        raise NoFrame(f"a frame without a description: {error}") from None
    if not isinstance(description, dict):
        raise NoFrame("a frame whose description is no object")
    return kind, description, read(size) if size else memoryview(b"")


def batch_of(description: dict[str, Any], data: memoryview) -> Batch:
    """Raises NoFrame."""
    try:
        buffers = {str(name): data[int(at) : int(at) + int(size)] for name, at, size in description["buffers"]}
        sizes = [int(size) for _, _, size in description["buffers"]]
        batch = Batch(int(description["rows"]), buffers)
        if [len(buffer) for buffer in buffers.values()] != sizes or len(buffers["position"]) != 8 * batch.rows:
            raise NoFrame("a batch that is too short")
    except (KeyError, TypeError, ValueError) as error:
        raise NoFrame(f"no batch: {error!r}") from None
    return batch
