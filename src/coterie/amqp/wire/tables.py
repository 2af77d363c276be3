"""Field tables: the one part of AMQP 0-9-1 that carries its types with it.

The type letters are those that RabbitMQ and its clients use, which are not quite those of the specification: `s` is a
16-bit integer, `l` a 64-bit one, `b` a signed byte, `x` bytes, `V` nothing. Decoding trusts nothing: what is truncated,
nested too deeply or not a type raises ProtocolError 502, and nothing is allocated that the input does not pay for.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from decimal import Decimal

from coterie.amqp.wire.codes import SYNTAX_ERROR
from coterie.errors import ProtocolError
from coterie.runtime.base import Buffer


class RawText(bytes):
    """A text that is no UTF-8. Its type stays with it, so that what was read can be written again unaltered."""

    __slots__ = ()


class FarMoment(int):
    """A timestamp beyond the year 9999: somebody counts milliseconds."""

    __slots__ = ()


Value = None | bool | int | float | str | bytes | Decimal | datetime | Sequence["Value"] | Mapping[str, "Value"]
"""What a table can hold."""
Table = dict[str, Value]

NESTING_MAX = 32

_U16, _U32, _I32, _U64, _I64 = (struct.Struct(f">{code}") for code in "HIiQq")
_I8, _I16, _U8, _F32, _F64 = (struct.Struct(f">{code}") for code in "bhBfd")


def encode_table(table: Mapping[str, Value]) -> bytes:
    """With its length in front. Raises ProtocolError for what no table can hold."""
    out: list[bytes] = []
    for key, value in table.items():
        out.append(short(key))
        _encode(value, out)
    body = b"".join(out)
    return _U32.pack(len(body)) + body


def decode_table(data: Buffer, at: int) -> tuple[Table, int]:
    """The table at that place, and the place behind it."""
    return _table(data, at, 0)


def skip_table(data: Buffer, at: int, depth: int = 0) -> int:
    """The place behind the table at that place. Raises ProtocolError exactly where `decode_table` would."""
    end = _end(data, at, depth)
    at += 4
    try:
        while at < end:
            at += 1 + data[at]
            step = _STEPS.get(data[at])
            at = at + step if step is not None else _skip(data, at, depth)
    except IndexError:
        raise _truncated() from None
    if at != end:
        raise _truncated()
    return end


def without(data: Buffer, key: str) -> bytes:
    """The encoded table, which is sound, but for that key: what stays is as it was, byte for byte."""
    end, at = _end(data, 0, 0), 4
    kept: list[bytes] = []
    while at < end:
        name, value = read_short(data, at)
        stop = _skip(data, value, 0)
        if name != key:
            kept.append(bytes(data[at:stop]))
        at = stop
    body = b"".join(kept)
    return _U32.pack(len(body)) + body


def _skip(data: Buffer, at: int, depth: int) -> int:
    """Past the value at that place."""
    letter = data[at]
    step = _STEPS.get(letter)
    if step is not None:
        return at + step
    if letter in (_STRING, _BYTES):
        return at + 5 + int.from_bytes(data[at + 1 : at + 5], "big")
    if letter == _TABLE:
        return skip_table(data, at + 1, depth + 1)
    if letter != _ARRAY:
        raise _unknown(letter)
    end = _end(data, at + 1, depth + 1)
    at += 5
    while at < end:
        at = _skip(data, at, depth + 1)
    if at != end:
        raise _truncated()
    return end


def short(text: str) -> bytes:
    """A short string: at most 255 bytes."""
    raw = text.encode("utf-8", "surrogateescape")
    if len(raw) > 255:
        raise ProtocolError(SYNTAX_ERROR, f"a name may have 255 bytes, this one has {len(raw)}: {text[:40]!r}...")
    return bytes((len(raw),)) + raw


def read_short(data: Buffer, at: int) -> tuple[str, int]:
    """The short string at that place, and the place behind it. Raises IndexError if it is not all there."""
    end = at + 1 + data[at]
    if end > len(data):
        raise IndexError
    return bytes(data[at + 1 : end]).decode("utf-8", "surrogateescape"), end


def long(value: bytes | str) -> bytes:
    raw = value.encode("utf-8", "surrogateescape") if isinstance(value, str) else value
    return _U32.pack(len(raw)) + raw


def read_long(data: Buffer, at: int) -> tuple[bytes, int]:
    """As `read_short`, of a long string."""
    (size,) = _U32.unpack_from(data, at)
    end = at + 4 + size
    if end > len(data):
        raise IndexError
    return bytes(data[at + 4 : end]), end


def _encode(value: Value, out: list[bytes]) -> None:
    if isinstance(value, bool):
        out.append(b"t\1" if value else b"t\0")
    elif isinstance(value, FarMoment):
        out.append(b"T" + _U64.pack(value))
    elif isinstance(value, int):
        out.append(_encode_int(value))
    elif isinstance(value, str):
        out.append(b"S" + long(value))
    elif isinstance(value, bytes | bytearray | memoryview):
        out.append((b"S" if isinstance(value, RawText) else b"x") + long(bytes(value)))
    elif value is None:
        out.append(b"V")
    elif isinstance(value, float):
        out.append(b"d" + _F64.pack(value))
    elif isinstance(value, Mapping):
        out.append(b"F" + encode_table(value))
    elif isinstance(value, datetime):
        out.append(b"T" + _U64.pack(max(0, int(value.timestamp()))))
    elif isinstance(value, Decimal):
        out.append(_encode_decimal(value))
    else:
        inner: list[bytes] = []
        for item in value:
            _encode(item, inner)
        body = b"".join(inner)
        out.append(b"A" + _U32.pack(len(body)) + body)


def _encode_int(value: int) -> bytes:
    if -(1 << 31) <= value < 1 << 31:
        return b"I" + _I32.pack(value)
    if -(1 << 63) <= value < 1 << 63:
        return b"l" + _I64.pack(value)
    raise ProtocolError(SYNTAX_ERROR, f"{value} does not fit into 64 bits")


def _encode_decimal(value: Decimal) -> bytes:
    sign, digits, exponent = value.as_tuple()
    number = int("".join(map(str, digits)) or "0") * (-1 if sign else 1)
    if not isinstance(exponent, int) or not -255 <= exponent <= 0 or not -(1 << 31) <= number < 1 << 31:
        raise ProtocolError(SYNTAX_ERROR, f"{value} is not a decimal that a table can hold")
    return b"D" + _U8.pack(-exponent) + _I32.pack(number)


def _table(data: Buffer, at: int, depth: int) -> tuple[Table, int]:
    end = _end(data, at, depth)
    at += 4
    table: Table = {}
    try:
        while at < end:
            key, at = read_short(data, at)
            table[key], at = _value(data, at, depth)
    except (struct.error, IndexError, OverflowError, ValueError):
        raise _truncated() from None
    if at != end:
        raise _truncated()
    return table, end


def _array(data: Buffer, at: int, depth: int) -> tuple[list[Value], int]:
    end = _end(data, at, depth)
    at += 4
    values: list[Value] = []
    while at < end:
        value, at = _value(data, at, depth)
        values.append(value)
    if at != end:
        raise _truncated()
    return values, end


def _end(data: Buffer, at: int, depth: int) -> int:
    if depth > NESTING_MAX:
        raise ProtocolError(SYNTAX_ERROR, f"a table may be nested {NESTING_MAX} deep")
    try:
        (size,) = _U32.unpack_from(data, at)
    except struct.error:
        raise _truncated() from None
    if at + 4 + size > len(data):
        raise _truncated()
    return int(at + 4 + size)


def _value(data: Buffer, at: int, depth: int) -> tuple[Value, int]:
    letter, at = data[at], at + 1
    fixed = _FIXED.get(letter)
    if fixed is not None:
        form, make = fixed
        return make(form.unpack_from(data, at)[0]), at + form.size
    if letter == _STRING:
        raw, at = read_long(data, at)
        try:
            return raw.decode(), at
        except UnicodeDecodeError:
            return RawText(raw), at
    if letter == _BYTES:
        return read_long(data, at)
    if letter == _TABLE:
        return _table(data, at, depth + 1)
    if letter == _ARRAY:
        return _array(data, at, depth + 1)
    if letter == _VOID:
        return None, at
    if letter == _DECIMAL:
        return Decimal(_I32.unpack_from(data, at + 1)[0]).scaleb(-data[at]), at + 5
    raise _unknown(letter)


def _unknown(letter: int) -> ProtocolError:
    return ProtocolError(SYNTAX_ERROR, f"a table with a field of the unknown type {chr(letter)!r}")


def _truncated() -> ProtocolError:
    return ProtocolError(SYNTAX_ERROR, "a table or text that is longer or shorter than it says")


def moment(seconds: int) -> datetime | FarMoment:
    """A timestamp as people write it."""
    try:
        return datetime.fromtimestamp(seconds, UTC)
    except (OverflowError, OSError, ValueError):
        return FarMoment(seconds)


_STRING, _BYTES, _TABLE, _ARRAY, _VOID, _DECIMAL = b"SxFAVD"
_same: Callable[[Value], Value] = lambda value: value  # noqa: E731
_FIXED: dict[int, tuple[struct.Struct, Callable[..., Value]]] = {
    ord("t"): (_U8, bool),
    ord("b"): (_I8, _same),
    ord("B"): (_U8, _same),
    ord("s"): (_I16, _same),
    ord("u"): (_U16, _same),
    ord("I"): (_I32, _same),
    ord("i"): (_U32, _same),
    ord("l"): (_I64, _same),
    ord("L"): (_I64, _same),
    ord("f"): (_F32, _same),
    ord("d"): (_F64, _same),
    ord("T"): (_U64, moment),
}
_STEPS = {letter: 1 + form.size for letter, (form, _) in _FIXED.items()} | {_VOID: 1, _DECIMAL: 6}
"""How far it is from the letter of a value of fixed size to what follows it."""
