"""Queue events as bytes: what one broker did, told to all.

An event is one message of the group: version, kind, the sender's clock and count, then what the kind needs. A publish
carries route and header once for all messages that share them; bodies follow each other behind a table of their sizes.
Queues are named by their incarnation, which no other queue of the cluster has or had; messages in a queue by their
position.
"""

from __future__ import annotations

import json
import struct
from enum import IntEnum
from typing import TYPE_CHECKING, NamedTuple

from coterie.broker.message import Message
from coterie.broker.message_codec import (
    Malformed,
    Routes,
    decode_messages,
    encode_messages,
    read_json,
    read_numbers,
    write_numbers,
)
from coterie.runtime.base import Buffer

if TYPE_CHECKING:
    from coterie.broker.publish import Routed

VERSION = 4
"""The newest version of events that this code speaks."""
OLDEST = 1
"""And the oldest: a cluster can be upgraded from there, one broker after the other."""


LEASES = 2
"""The version from which on there are leases."""
LOG_TIME = 3
"""The version from which on messages expire by the time of the log (log_time.py)."""
STEPPING_BACK = 3
"""The version from which on a broker may step back (replica.py)."""
EFFECTS = 4
"""The version from which on chains cover what was made of events, and reports name them (chain.py, divergence.py)."""
WIDE = 3
"""The version from which on the numbers of consumers have 64 bits: each `basic.get` counted them up."""
RANGES = 4
"""The version from which on what is settled is told by ranges and holders (settling.py)."""


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
    CHAIN = 28
    """What the chain of a broker was at some place, as it is not the same everywhere; since version 4."""
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
_QUEUE = struct.Struct(">Q")
_COUNT = struct.Struct(">I")
_GET = struct.Struct(">QQ?")
_CREDIT = struct.Struct(">QQQQQ")
_NARROW_CREDIT = struct.Struct(">IIIII")
"""Before version 3."""
NARROW_MAX = 2**32 - 1
_SHARE = struct.Struct(">QQ")
ANY_BYTES = "surrogateescape"
"""Names are what clients say they are, UTF-8 or not."""


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


def encode_json(value: object) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()


def decode_json(data: Buffer) -> dict[str, object]:
    try:
        value = read_json(bytes(data))
    except ValueError as error:
        raise Malformed(f"no JSON: {error}") from None
    if not isinstance(value, dict):
        raise Malformed("not a JSON object")
    return value


# Messages.


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
        + write_numbers("I", [table[message] for message in messages])
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
        numbers = read_numbers("I", data[at : at + 4 * count])
        at += 4 * count
        found.append((queue, [distinct[number] for number in numbers]))
    return found


# Getting, sharing, steps of links.


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


def encode_transaction(settling: dict[str, object], routed: Routed, out: list[Buffer]) -> None:
    """`settling`: see settling.py."""
    said = encode_json(settling)
    out += (_COUNT.pack(len(said)), said)
    encode_fanout(routed, out)


def decode_transaction(
    data: memoryview, at: int, routes: Routes
) -> tuple[dict[str, object], list[tuple[int, list[Message]]]]:
    (size,) = _COUNT.unpack_from(data, at)
    at += _COUNT.size
    return decode_json(data[at : at + size]), decode_fanout(data, at + size, routes)
