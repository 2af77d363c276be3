"""Queue events as bytes: what one broker did, told to all.

An event is one message of the group: version, kind, the sender's clock and count, then what the kind needs. A publish
carries route and header once for all messages that share them; bodies follow each other behind a table of their sizes.
Queues are named by their incarnation, which no other queue of the cluster has or had; messages in a queue by their
position.
"""

from __future__ import annotations

import json
import struct
from array import array
from collections.abc import Iterable, Sequence
from enum import IntEnum
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from coterie.amqp.tables import NESTING_MAX, read_short
from coterie.broker import validation
from coterie.broker.message import Message
from coterie.errors import PeerError
from coterie.runtime.base import Buffer

if TYPE_CHECKING:
    from coterie.broker.entry import Entry
    from coterie.broker.publish import Routed

VERSION = 3
"""The newest version of events that this code speaks."""
OLDEST = 1
"""And the oldest: a cluster can be upgraded from there, one broker after the other."""


LEASES = 2
"""The version from which on there are leases."""
LOG_TIME = 3
"""The version from which on messages expire by the time of the log (log_time.py)."""
STEPPING_BACK = 3
"""The version from which on a broker may step back (replica.py)."""
WIDE = 3
"""The version from which on the numbers of consumers have 64 bits: `basic.get` counts them up too."""


class Kind(IntEnum):
    """What an event tells."""

    PUBLISH = 1
    """Messages for one queue."""
    FANOUT = 2
    """Messages for several."""
    ACCEPT = 3
    RELEASE = 4
    REJECT = 5
    CONSUME = 6
    CANCEL = 7
    CREDIT = 8
    GET = 9
    EXPIRE = 10
    WIRING = 11
    TRANSACTION = 12
    ADMINISTRATION = 13
    SHARE = 14
    """The owner of a queue lets others have it."""
    REPLICATE = 15
    """A step of another cluster's link."""
    HOME = 16
    """What the home of a queue has decided, that others cannot know."""
    LEASE = 17
    """A step of a named lease; since version 2."""
    STATUS = 20
    """Of one that is not in step: it wants to be updated, or to begin with others."""
    READY = 21
    """One that was updated knows of every message, and serves: but for queues of which it has not got them all."""
    FILLED = 24
    """It has got all messages of some more queues."""
    WHOLE = 25
    """It has got everything, and is in step."""
    HERE = 26
    """Nothing: when a majority holds it, a majority is in the view in which it was sent."""
    BACK = 27
    """A broker whose disk lags behind leaves those in step; since version 3."""
    VOTER = 23
    """A name is a voter from now on."""
    FORGET = 22
    """A name is no voter any more."""


_KINDS = {int(kind): kind for kind in Kind}
_HEAD = struct.Struct(">BBdQ")
HEAD = _HEAD.size
WALL_MAX = 2.0**37
"""Seconds since 1970: letters tell the time as a date."""
_ON_DISK = 0x80
"""In the byte of the kind."""
_GROUP = struct.Struct(">HIBBqI")
"""Lengths of route and header, persistent, priority, time to live in ms (-1: none), how many."""
_QUEUE = struct.Struct(">Q")
_COUNT = struct.Struct(">I")
_RELEASE = struct.Struct(">Q?")
_GET = struct.Struct(">QQ?")
_CREDIT = struct.Struct(">QQQQQ")
_NARROW_CREDIT = struct.Struct(">IIIII")
"""Before version 3."""
NARROW_MAX = 2**32 - 1
_SHARE = struct.Struct(">QQ")
ANY_BYTES = "surrogateescape"
"""Names are what clients say they are, UTF-8 or not."""
_LITTLE = array("I", [1]).tobytes()[0] == 1


class Malformed(PeerError):
    """Bytes that are no event."""


class TooNew(Exception):
    """An event of a version that this broker does not understand: it cannot follow the log any more."""


class Head(NamedTuple):
    kind: Kind
    wall: float
    number: int
    """Of the sender's events, from 1; 0: it is none of those that must come in a row."""
    on_disk: bool
    """The sender waits until it is on disk."""
    version: int = OLDEST


def head(kind: Kind, wall: float, number: int, on_disk: bool = False, version: int = OLDEST) -> bytes:
    return _HEAD.pack(version, kind | _ON_DISK if on_disk else kind, wall, number)


DEPTH_MAX: Final = 2 * NESTING_MAX + 16
"""Of a JSON value within others: a table takes two levels for each of its own."""


def read_head(data: memoryview, spoken: int | None = None) -> Head:
    """`spoken`: the version that the cluster speaks, if that is known; nobody has a right to a newer one. Raises
    TooNew only for one that is spoken."""
    try:
        version, kind, wall, number = _HEAD.unpack_from(data)
        if spoken is not None and version > spoken:
            raise Malformed(f"an event of version {version}, while the cluster speaks {spoken}")
        if version > VERSION:
            raise TooNew(f"an event of version {version}: this broker understands {OLDEST} to {VERSION}: upgrade it")
        if version < OLDEST:
            raise Malformed(f"an event of version {version}: this broker understands {OLDEST} to {VERSION}")
        if not 0 <= wall < WALL_MAX:
            raise Malformed(f"an event of the time {wall}")
        return Head(_KINDS[kind & ~_ON_DISK], wall, number, kind >= _ON_DISK, version)
    except (struct.error, KeyError) as error:
        raise Malformed(f"no event: {error}") from None


def number_of(data: memoryview) -> int:
    """Of an event whose head was read before."""
    return int(_HEAD.unpack_from(data)[3])


# Numbers and texts.


def _numbers(kind: str, values: Iterable[int]) -> bytes:
    numbers = array(kind, values)
    if _LITTLE:
        numbers.byteswap()
    return numbers.tobytes()


def _read_numbers(kind: str, data: memoryview) -> array[int]:
    numbers = array(kind)
    numbers.frombytes(data)
    if _LITTLE:
        numbers.byteswap()
    return numbers


def positions_of(entries: Sequence[Entry]) -> bytes:
    return _numbers("Q", [entry.position for entry in entries])


def read_positions(data: memoryview) -> list[int]:
    return _read_numbers("Q", data).tolist()


def encode_json(value: object) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()


def read_json(text: bytes) -> Any:
    """Of somebody who may have put anything into it. Raises ValueError or Malformed."""
    if text.count(b"[") + text.count(b"{") > DEPTH_MAX and validation.depth_of(text) > DEPTH_MAX:
        raise Malformed(f"JSON may be nested {DEPTH_MAX} deep")
    return json.loads(text.decode())


def decode_json(data: Buffer) -> dict[str, object]:
    try:
        value = read_json(bytes(data))
    except ValueError as error:
        raise Malformed(f"no JSON: {error}") from None
    if not isinstance(value, dict):
        raise Malformed("not a JSON object")
    return value


# Messages.


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
        out += (route, header, _numbers("I", map(len, bodies)))
        out += bodies
        start = stop


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


def decode_messages(data: memoryview, at: int, end: int, routes: Routes) -> list[Message]:
    messages: list[Message] = []
    while at < end:
        route_size, header_size, persistent, priority, ttl, count = _GROUP.unpack_from(data, at)
        at += _GROUP.size
        route = bytes(data[at : at + route_size])
        at += route_size
        header = bytes(data[at : at + header_size])
        at += header_size
        sizes = _read_numbers("I", data[at : at + 4 * count])
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


def encode_publish(routed: Routed, out: list[Buffer]) -> Kind:
    """For one queue, as most are: its number and the messages."""
    if len(routed) != 1:
        encode_fanout(routed, out)
        return Kind.FANOUT
    ((queue, messages),) = routed.items()
    out.append(_QUEUE.pack(queue.incarnation))
    encode_messages(messages, out)
    return Kind.PUBLISH


def encode_fanout(routed: Routed, out: list[Buffer]) -> None:
    """For any number of queues: who gets which, then each message once."""
    table: dict[Message, int] = {}
    for messages in routed.values():
        for message in messages:
            table.setdefault(message, len(table))
    lists = b"".join(
        _QUEUE.pack(queue.incarnation)
        + _COUNT.pack(len(messages))
        + _numbers("I", [table[message] for message in messages])
        for queue, messages in routed.items()
    )
    out += (_COUNT.pack(len(lists)), lists)
    encode_messages([*table], out)


def read_queue(data: memoryview, at: int) -> tuple[int, int]:
    """For which queue a publish is, and where its messages begin."""
    (queue,) = _QUEUE.unpack_from(data, at)
    return queue, at + _QUEUE.size


def decode_fanout(data: memoryview, at: int, routes: Routes) -> list[tuple[int, list[Message]]]:
    (size,) = _COUNT.unpack_from(data, at)
    at += _COUNT.size
    stop = at + size
    distinct = decode_messages(data, stop, len(data), routes)
    found: list[tuple[int, list[Message]]] = []
    while at < stop:
        (queue,) = _QUEUE.unpack_from(data, at)
        (count,) = _COUNT.unpack_from(data, at + _QUEUE.size)
        at += _QUEUE.size + _COUNT.size
        numbers = _read_numbers("I", data[at : at + 4 * count])
        at += 4 * count
        found.append((queue, [distinct[number] for number in numbers]))
    return found


# What becomes of messages.


def settle(queue: int, entries: Sequence[Entry]) -> bytes:
    return _QUEUE.pack(queue) + positions_of(entries)


def read_settle(data: memoryview, at: int) -> tuple[int, list[int]]:
    (queue,) = _QUEUE.unpack_from(data, at)
    return queue, read_positions(data[at + _QUEUE.size :])


def release(queue: int, entries: Sequence[Entry], redelivered: bool) -> bytes:
    return _RELEASE.pack(queue, redelivered) + positions_of(entries)


def read_release(data: memoryview, at: int) -> tuple[int, bool, list[int]]:
    queue, redelivered = _RELEASE.unpack_from(data, at)
    return queue, redelivered, read_positions(data[at + _RELEASE.size :])


def get(queue: int, number: int, no_ack: bool) -> bytes:
    return _GET.pack(queue, number, no_ack)


def read_get(data: memoryview, at: int) -> tuple[int, int, bool]:
    found: tuple[int, int, bool] = _GET.unpack_from(data, at)
    return found


def share(queue: int, tenure: int) -> bytes:
    return _SHARE.pack(queue, tenure)


def read_share(data: memoryview, at: int) -> tuple[int, int]:
    found: tuple[int, int] = _SHARE.unpack_from(data, at)
    return found


def step(vhost: str, data: bytes) -> tuple[bytes, bytes, bytes]:
    """Of another cluster's link, for a vhost."""
    name = vhost.encode(errors=ANY_BYTES)
    return _COUNT.pack(len(name)), name, data


def read_step(data: memoryview, at: int) -> tuple[str, memoryview]:
    (size,) = _COUNT.unpack_from(data, at)
    at += _COUNT.size
    return bytes(data[at : at + size]).decode(errors=ANY_BYTES), data[at + size :]


class Credit(NamedTuple):
    """What a consumer may hold, and with the others of its channel; and how much left without acknowledgement."""

    consumer: int
    limit: int
    pool: int
    pool_limit: int
    sent: int


def credit(what: Credit, version: int = VERSION) -> bytes:
    return (_CREDIT if version >= WIDE else _NARROW_CREDIT).pack(*what)


def read_credit(data: memoryview, at: int) -> Credit:
    """The length tells which of the two it is."""
    return Credit(*(_CREDIT if len(data) - at >= _CREDIT.size else _NARROW_CREDIT).unpack_from(data, at))


# Transactions.

Settling = dict[int, list[int]]
"""Positions by queue."""


def encode_transaction(answers: Sequence[Settling], routed: Routed, out: list[Buffer]) -> None:
    settling = encode_json({"answers": [[*each.items()] for each in answers]})
    out += (_COUNT.pack(len(settling)), settling)
    encode_fanout(routed, out)


def decode_transaction(
    data: memoryview, at: int, routes: Routes
) -> tuple[list[Settling], list[tuple[int, list[Message]]]]:
    (size,) = _COUNT.unpack_from(data, at)
    at += _COUNT.size
    answers = decode_json(data[at : at + size])["answers"]
    if not isinstance(answers, list) or len(answers) != 3:
        raise Malformed("a transaction has three kinds of answers")
    settling = [dict(each) for each in answers]
    for each in settling:
        for queue, positions in each.items():
            if type(queue) is not int or not all(type(position) is int for position in positions):
                raise Malformed("a transaction settles what is no position of a queue")
    return settling, decode_fanout(data, at + size, routes)
