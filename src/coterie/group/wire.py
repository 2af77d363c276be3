"""The one codec for protocol messages: a dataclass is its own wire form, field by field.

    @dataclass(frozen=True, slots=True)
    class Ack:
        conn: int
        upto: int

    CODEC = Codec({1: Ack})

Fields may be int (0 to 2**64-1), bool, float, str, bytes, tuples, dicts, `X | None`, NamedTuples and dataclasses of
those. Decoding trusts nothing: what is truncated, too long or not in the table raises WireError, and nothing is
allocated that the input does not pay for. (Bundles of application data do not come this way: see bundle.py.)
"""

from __future__ import annotations

import struct
import types
import typing
from collections.abc import Callable, Sequence
from dataclasses import fields, is_dataclass
from functools import lru_cache
from operator import attrgetter
from typing import Any

from coterie.errors import WireError
from coterie.group.members import Address
from coterie.runtime.base import Buffer

Encode = Callable[[Any, list[bytes]], None]
Decode = Callable[[memoryview, int], tuple[Any, int]]

_U64 = struct.Struct("<Q")
_U32 = struct.Struct("<I")
_F64 = struct.Struct("<d")
_NUMBERS = {int: "Q", float: "d", bool: "B"}


class Codec:
    """The messages of one protocol, each with its number on the wire. Numbers are never used again for another."""

    def __init__(self, messages: dict[int, type]) -> None:
        self._encoders: dict[type, tuple[bytes, Encode]] = {}
        self._decoders: dict[int, Decode] = {}
        self.messages = tuple(messages.values())
        for tag, kind in messages.items():
            encode, decode = _compile(kind)
            self._encoders[kind] = bytes((tag,)), encode
            self._decoders[tag] = decode

    def encode(self, message: object) -> bytes:
        tag, encode = self._encoders[type(message)]
        out = [tag]
        encode(message, out)
        return b"".join(out)

    def decode(self, body: Buffer) -> Any:
        view = memoryview(body)
        decode = self._decoders.get(view[0]) if len(view) else None
        if decode is None:
            raise WireError("a message that this protocol does not know")
        try:
            message, end = decode(view, 1)
        except (struct.error, UnicodeDecodeError, ValueError, IndexError):
            raise WireError("a message that ends too early or makes no sense") from None
        if end != len(view):
            raise WireError("a message with something behind it")
        return message


def _compile(kind: Any) -> tuple[Encode, Decode]:
    if kind in _SCALARS:
        return _SCALARS[kind]
    origin, args = typing.get_origin(kind), typing.get_args(kind)
    if origin is tuple and len(args) == 2 and args[1] is Ellipsis:
        return _many(*_compile(args[0]), tuple)
    if origin is tuple:
        return _record(_as_they_are, args, _themselves)
    if origin is dict:
        pair = _record(_as_they_are, args, _themselves)
        encode, decode = _many(*pair, dict)
        return (lambda value, out: encode(tuple(value.items()), out)), decode
    if origin in (typing.Union, types.UnionType) and len(args) == 2 and args[1] is type(None):
        return _optional(*_compile(args[0]))
    if isinstance(kind, type) and (is_dataclass(kind) or hasattr(kind, "_fields")):
        hints = typing.get_type_hints(kind)
        names = [f.name for f in fields(kind)] if is_dataclass(kind) else list(kind._fields)

        if len(names) > 1:
            return _record(kind, [hints[name] for name in names], attrgetter(*names))
        return _record(kind, [hints[name] for name in names], lambda value: [getattr(value, name) for name in names])
    raise TypeError(f"no wire form for {kind!r}")


def _as_they_are(*values: object) -> tuple[object, ...]:
    return values


def _themselves(value: Sequence[object]) -> Sequence[object]:
    return value


def _record(
    make: Callable[..., Any], kinds: Sequence[Any], values_of: Callable[[Any], Sequence[Any]]
) -> tuple[Encode, Decode]:
    if kinds and all(kind in _NUMBERS for kind in kinds):
        return _numbers(make, kinds, values_of)
    parts = [_compile(kind) for kind in kinds]
    encoders = [encode for encode, _ in parts]
    decoders = [decode for _, decode in parts]

    def encode_record(value: Any, out: list[bytes]) -> None:
        for encode, part in zip(encoders, values_of(value), strict=True):
            encode(part, out)

    def decode_record(view: memoryview, at: int) -> tuple[Any, int]:
        values = []
        for decode in decoders:
            value, at = decode(view, at)
            values.append(value)
        return make(*values), at

    return encode_record, decode_record


def _numbers(
    make: Callable[..., Any], kinds: Sequence[Any], values_of: Callable[[Any], Sequence[Any]]
) -> tuple[Encode, Decode]:
    """A record of nothing but numbers and flags, as most messages about every bundle are: in one step."""
    form = struct.Struct("<" + "".join(_NUMBERS[kind] for kind in kinds))
    pack, unpack_from, size = form.pack, form.unpack_from, form.size
    flags = [at for at, kind in enumerate(kinds) if kind is bool]

    def encode_numbers(value: Any, out: list[bytes]) -> None:
        values = values_of(value)
        if flags:
            values = [bool(each) if at in flags else each for at, each in enumerate(values)]
        out.append(pack(*values))

    def decode_numbers(view: memoryview, at: int) -> tuple[Any, int]:
        values: Sequence[Any] = unpack_from(view, at)
        if flags:
            values = [_as_flag(each) if at in flags else each for at, each in enumerate(values)]
        return make(*values), at + size

    return encode_numbers, decode_numbers


def _many(encode: Encode, decode: Decode, make: Callable[[list[Any]], Any]) -> tuple[Encode, Decode]:
    def encode_many(values: Any, out: list[bytes]) -> None:
        out.append(_U32.pack(len(values)))
        for value in values:
            encode(value, out)

    def decode_many(view: memoryview, at: int) -> tuple[Any, int]:
        (size,) = _U32.unpack_from(view, at)
        at += 4
        if size > len(view) - at:  # every entry has at least a byte
            raise WireError("a count that the message cannot hold")
        values = []
        for _ in range(size):
            value, at = decode(view, at)
            values.append(value)
        return make(values), at

    return encode_many, decode_many


def _optional(encode: Encode, decode: Decode) -> tuple[Encode, Decode]:
    def encode_optional(value: Any, out: list[bytes]) -> None:
        if value is None:
            out.append(b"\0")
        else:
            out.append(b"\1")
            encode(value, out)

    def decode_optional(view: memoryview, at: int) -> tuple[Any, int]:
        return decode(view, at + 1) if _flag(view, at) else (None, at + 1)

    return encode_optional, decode_optional


def _flag(view: memoryview, at: int) -> bool:
    return _as_flag(view[at])


def _as_flag(value: int) -> bool:
    if value > 1:
        raise WireError("a flag that is neither 0 nor 1")
    return bool(value)


def _decode_bytes(view: memoryview, at: int) -> tuple[bytes, int]:
    (size,) = _U32.unpack_from(view, at)
    end = at + 4 + size
    if end > len(view):
        raise WireError("a text or byte string that the message cannot hold")
    return bytes(view[at + 4 : end]), end


def _encode_bytes(value: Buffer, out: list[bytes]) -> None:
    out.append(_U32.pack(len(value)))
    out.append(bytes(value))


def _decode_str(view: memoryview, at: int) -> tuple[str, int]:
    raw, end = _decode_bytes(view, at)
    return raw.decode(), end


# Digests are full of addresses, and always the same ones: each is encoded and decoded once.

_CACHED = 4096
_CACHED_SIZE = 300


@lru_cache(_CACHED)
def _address_bytes(address: Address) -> bytes:
    name = address.name.encode()
    return _U32.pack(len(name)) + name + _U64.pack(address.incarnation)


@lru_cache(_CACHED)
def _address_of(raw: bytes) -> Address:
    return Address(raw[4:-8].decode(), _U64.unpack_from(raw, len(raw) - 8)[0])


def _decode_address(view: memoryview, at: int) -> tuple[Address, int]:
    size = 12 + _U32.unpack_from(view, at)[0]
    if at + size > len(view):
        raise WireError("a name that the message cannot hold")
    make = _address_of if size <= _CACHED_SIZE else _address_of.__wrapped__
    return make(bytes(view[at : at + size])), at + size


_SCALARS: dict[Any, tuple[Encode, Decode]] = {
    Address: (lambda value, out: out.append(_address_bytes(value)), _decode_address),
    int: (lambda value, out: out.append(_U64.pack(value)), lambda view, at: (_U64.unpack_from(view, at)[0], at + 8)),
    float: (lambda value, out: out.append(_F64.pack(value)), lambda view, at: (_F64.unpack_from(view, at)[0], at + 8)),
    bool: (lambda value, out: out.append(b"\1" if value else b"\0"), lambda view, at: (_flag(view, at), at + 1)),
    bytes: (_encode_bytes, _decode_bytes),
    str: (lambda value, out: _encode_bytes(value.encode(), out), _decode_str),
}
