"""The properties of a message, as they stand in its content header: class, weight, body size, flags, then the values.

On the hot path a header stays raw bytes; `scan` walks over it once, so that whoever decodes it later meets no surprise,
and picks out the few properties that the broker acts on. The answer is remembered, because publishers send the same
properties over and over.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from dataclasses import dataclass, fields
from datetime import datetime
from functools import lru_cache
from typing import Final, NamedTuple

from coterie.amqp.wire.codes import SYNTAX_ERROR
from coterie.amqp.wire.tables import Table, decode_table, encode_table, moment, read_short, short, skip_table
from coterie.errors import ProtocolError
from coterie.runtime.base import Buffer

BASIC: Final = 60
PERSISTENT: Final = 2
PREFIX: Final = 12
"""Bytes of a header before the property flags: class id, weight, body size."""
_CACHED_SIZE = 128
"""Properties longer than this are probably different for each message."""

_HEAD = struct.Struct(">HHQH")
_U16 = struct.Struct(">H")
_U64 = struct.Struct(">Q")


@dataclass(slots=True)
class Properties:
    """In the order in which they are written; each has one bit of the flags, from the highest down."""

    content_type: str | None = None
    content_encoding: str | None = None
    headers: Table | None = None
    delivery_mode: int | None = None
    priority: int | None = None
    correlation_id: str | None = None
    reply_to: str | None = None
    expiration: str | None = None
    message_id: str | None = None
    timestamp: datetime | int | None = None
    type: str | None = None
    user_id: str | None = None
    app_id: str | None = None
    cluster_id: str | None = None


class Peek(NamedTuple):
    """What decides how a message is kept."""

    persistent: bool
    priority: int
    expiration: str | None


class Scan(NamedTuple):
    """What the broker acts on when a message comes in."""

    persistent: bool
    priority: int
    expiration: str | None
    reply_to: str | None
    user_id: str | None


_NAMES: Final = tuple(field.name for field in fields(Properties))
_OCTETS: Final = frozenset({"delivery_mode", "priority"})
_MESSAGE_ID: Final = 1 << (15 - _NAMES.index("message_id"))
_NO_PROPERTY: Final = (1 << (16 - len(_NAMES))) - 1


def encode(properties: Properties, body_size: int) -> bytes:
    """The payload of a content header frame."""
    flags, out = 0, []
    for index, name in enumerate(_NAMES):
        value = getattr(properties, name)
        if value is None:
            continue
        flags |= 1 << (15 - index)
        if name == "headers":
            out.append(encode_table(value))
        elif name in _OCTETS:
            out.append(bytes((value,)))
        elif name == "timestamp":
            out.append(_U64.pack(int(value.timestamp()) if isinstance(value, datetime) else value))
        else:
            out.append(short(value))
    return b"".join((_HEAD.pack(BASIC, 0, body_size, flags), *out))


def decode(header: Buffer) -> Properties:
    """Raises ProtocolError 502 if it is no header of a message."""
    properties = Properties()
    try:
        at = PREFIX + 2
        for name in _present(_U16.unpack_from(header, PREFIX)[0]):
            value: object
            if name == "headers":
                value, at = decode_table(header, at)
            elif name in _OCTETS:
                value, at = header[at], at + 1
            elif name == "timestamp":
                value, at = moment(_U64.unpack_from(header, at)[0]), at + 8
            else:
                value, at = read_short(header, at)
            setattr(properties, name, value)
    except (struct.error, IndexError):
        raise _too_early() from None
    if at != len(header):
        raise _something_behind()
    return properties


def peek(header: bytes) -> Peek:
    """The properties that matter to queues. Raises ProtocolError 502 like `decode`."""
    persistent, priority, expiration, _, _ = scan(header)
    return Peek(persistent, priority, expiration)


def scan(header: bytes) -> Scan:
    """The properties that matter on the way in. Raises ProtocolError 502 exactly where `decode` would."""
    raw = header[PREFIX:]
    return _scan(raw) if len(raw) <= _CACHED_SIZE else _scan.__wrapped__(raw)


def message_id(header: bytes) -> bytes | None:
    """That property of a sound header, as it stands there."""
    if not header[PREFIX + 1] & _MESSAGE_ID:
        return None
    at = PREFIX + 2
    for name in _present(_U16.unpack_from(header, PREFIX)[0]):
        if name == "message_id":
            break
        if name == "headers":
            at = skip_table(header, at)
        else:
            at += 1 if name in _OCTETS else 1 + header[at]
    return header[at + 1 : at + 1 + header[at]]


def split(raw: bytes) -> dict[str, bytes]:
    """What follows the prefix of a header, property by property, as it stands there. Raises ProtocolError 502."""
    _scan.__wrapped__(raw)
    found: dict[str, bytes] = {}
    at = 2
    for name in _present(raw[0] << 8 | raw[1]):
        begin = at
        if name == "headers":
            at = skip_table(raw, at)
        elif name in _OCTETS:
            at += 1
        elif name == "timestamp":
            at += 8
        else:
            at += 1 + raw[at]
        found[name] = raw[begin:at]
    return found


def join(found: Mapping[str, bytes]) -> bytes:
    """What `split` was given."""
    flags = sum(1 << (15 - index) for index, name in enumerate(_NAMES) if name in found)
    return b"".join((_U16.pack(flags), *(found[name] for name in _NAMES if name in found)))


@lru_cache(8192)
def _scan(raw: bytes) -> Scan:
    if len(raw) < 2:
        raise _too_early()
    at = 2
    delivery_mode = priority = 0
    expiration = reply_to = user_id = None
    try:
        for name in _present(raw[0] << 8 | raw[1]):
            if name == "headers":
                at = skip_table(raw, at)
            elif name == "delivery_mode":
                delivery_mode, at = raw[at], at + 1
            elif name == "priority":
                priority, at = raw[at], at + 1
            elif name == "timestamp":
                at += 8
            elif name == "expiration":
                expiration, at = read_short(raw, at)
            elif name == "reply_to":
                reply_to, at = read_short(raw, at)
            elif name == "user_id":
                user_id, at = read_short(raw, at)
            else:
                at += 1 + raw[at]
    except IndexError:
        raise _too_early() from None
    if at != len(raw):
        raise _too_early() if at > len(raw) else _something_behind()
    return Scan(delivery_mode == PERSISTENT, priority, expiration, reply_to, user_id)


@lru_cache(256)
def _present(flags: int) -> tuple[str, ...]:
    """The properties that there are, in their order. Raises ProtocolError if there is no such property."""
    if flags & _NO_PROPERTY:
        raise ProtocolError(SYNTAX_ERROR, "a content header with properties that there are not")
    return tuple(name for index, name in enumerate(_NAMES) if flags & 1 << (15 - index))


def _too_early() -> ProtocolError:
    return ProtocolError(SYNTAX_ERROR, "a content header that ends too early")


def _something_behind() -> ProtocolError:
    return ProtocolError(SYNTAX_ERROR, "a content header with something behind it")
