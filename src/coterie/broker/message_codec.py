"""Messages as bytes between brokers: in the events of a cluster, and in the steps of a link from another one.

Neighbours that share route and header are one group: these once, then a table of sizes, then the bodies.
"""

from __future__ import annotations

import json
import struct
from array import array
from collections.abc import Iterable, Sequence
from typing import Any, Final

from coterie.amqp.wire.tables import NESTING_MAX, read_short
from coterie.broker import validation
from coterie.broker.message import Message
from coterie.errors import PeerError
from coterie.runtime.base import Buffer

_GROUP = struct.Struct(">HIBBqI")
"""Lengths of route and header, persistent, priority, time to live in ms (-1: none), how many."""
_LITTLE = array("I", [1]).tobytes()[0] == 1
DEPTH_MAX: Final = 2 * NESTING_MAX + 16
"""Of a JSON value within others: a table takes two levels for each of its own."""


class Malformed(PeerError):
    """Bytes that are no event."""


def read_json(text: bytes) -> Any:
    """Of somebody who may have put anything into it. Raises ValueError or Malformed."""
    if text.count(b"[") + text.count(b"{") > DEPTH_MAX and validation.depth_of(text) > DEPTH_MAX:
        raise Malformed(f"JSON may be nested {DEPTH_MAX} deep")
    return json.loads(text.decode())


# Numbers.


def write_numbers(kind: str, values: Iterable[int]) -> bytes:
    numbers = array(kind, values)
    if _LITTLE:
        numbers.byteswap()
    return numbers.tobytes()


def read_numbers(kind: str, data: memoryview) -> array[int]:
    numbers = array(kind)
    numbers.frombytes(data)
    if _LITTLE:
        numbers.byteswap()
    return numbers


def read_positions(data: memoryview) -> list[int]:
    return read_numbers("Q", data).tolist()


# Messages.


class Routes:
    """Exchange and routing key of routes that were seen before."""

    def __init__(self, most: int = 1024) -> None:
        self._known: dict[bytes, tuple[str, str]] = {}
        self._most = most

    def parts(self, route: bytes) -> tuple[str, str]:
        found = self._known.get(route)
        if found is None:
            exchange, at = read_short(route, 0)
            key, _ = read_short(route, at)
            if len(self._known) >= self._most:
                self._known.clear()
            found = self._known[route] = exchange, key
        return found


def encode_messages(messages: Sequence[Message], out: list[Buffer]) -> None:
    """In their order; neighbours with the same route and header are one group."""
    start, count = 0, len(messages)
    while start < count:
        first = messages[start]
        route, header = first.route, first.header
        stop = start + 1
        while stop < count:
            other = messages[stop]
            if (other.header is not header and other.header != header) or (
                other.route is not route and other.route != route
            ):
                break
            stop += 1
        bodies = [message.body for message in messages[start:stop]]
        ttl = -1 if first.ttl is None else first.ttl
        out.append(_GROUP.pack(len(route), len(header), first.persistent, first.priority, ttl, len(bodies)))
        out += (route, header, write_numbers("I", map(len, bodies)))
        out += bodies
        start = stop


def decode_messages(data: memoryview, at: int, end: int, routes: Routes) -> list[Message]:
    messages: list[Message] = []
    while at < end:
        route_size, header_size, persistent, priority, ttl, count = _GROUP.unpack_from(data, at)
        at += _GROUP.size
        route = bytes(data[at : at + route_size])
        at += route_size
        header = bytes(data[at : at + header_size])
        at += header_size
        sizes = read_numbers("I", data[at : at + 4 * count])
        at += 4 * count
        exchange, key = routes.parts(route)
        life = None if ttl < 0 else ttl
        for size in sizes:
            body = bytes(data[at : at + size])
            messages.append(Message(exchange, key, route, header, body, bool(persistent), priority, life))
            at += size
    if at != end:
        raise Malformed("messages that end too early")
    return messages
