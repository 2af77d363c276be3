"""The state of a broker at one place of the log: an outline of everything, and an index of the messages of its queues.

The outline is made at once, so that it is of that place; it names queues, wiring, consumers and what each holds. The
index follows in chunks, as fast as they are taken: of every message all but its body. What may change of an entry is
noted with the outline.
"""

from __future__ import annotations

import base64
import json
import math
import struct
from collections.abc import Iterator
from itertools import islice
from typing import TYPE_CHECKING, Any, NamedTuple

from coterie.broker import records
from coterie.broker.arguments import DELIVERIES_MAX
from coterie.broker.delivery import positions_in
from coterie.broker.message_codec import Routes
from coterie.broker.queue_copy import CopiedMessage, QueueCopy
from coterie.broker.ranges import Range
from coterie.broker.seen import Run
from coterie.broker.switchboard import PREDECLARED
from coterie.cluster.bodiless import Bodiless
from coterie.cluster.consumers import GETTER, Owner, Peer, Subscriber
from coterie.cluster.wire import RANGES
from coterie.group.members import Address
from coterie.runtime.base import Buffer

if TYPE_CHECKING:
    from coterie.broker.broker import Broker
    from coterie.broker.message import Message
    from coterie.broker.queue import Queue
    from coterie.broker.vhost import Vhost
    from coterie.cluster.applier import Applier
    from coterie.cluster.queue_ownership import Ownership

CHUNK = 500
"""Messages: what is made in one turn."""
_CHUNK = struct.Struct(">QIII")
"""A chunk has this head (the queue's number, how many entries, kinds of messages, and messages that were told before),
then all entries, all kinds, and the places where those others were told."""
_SEEN = 2**32 - 1
"""Instead of how many entries: message ids follow."""
_ENTRY = struct.Struct(">QIIdH?")
"""Position, size of the body, deliveries, seconds left, which kind of message, redelivered."""
_KIND = struct.Struct(">HIB?q")
"""Lengths of route and header, priority, persistent, ttl; then both."""
_TOLD = 0xFFFF
"""Instead of a kind: the message is also elsewhere, and was told there."""
_ELSEWHERE = struct.Struct(">QQ")
_BUILT_IN = frozenset(spec.name for spec in PREDECLARED)

Json = dict[str, Any]
Place = tuple[int, int]
"""The number of a queue, and a position."""


class Cut(NamedTuple):
    """A broker's state at one place."""

    outline: Json
    queues: list[tuple[int, QueueCopy]]
    seen: list[tuple[int, Iterator[tuple[bool, Run]]]]
    """Message ids that queues remember, by the number of the queue."""


# Cutting.


def cut(broker: Broker, applier: Applier, version: int) -> Cut:
    """`version`: of the events that the cluster speaks."""
    queues = [queue for vhost in broker.vhosts.values() for queue in vhost.queues.values()]
    outline: Json = {
        "vhosts": [_vhost(vhost, applier) for vhost in broker.vhosts.values()],
        "peers": [_peer(peer, version) for peer in applier.peers.values()],
        "records": broker.kept_records(),
    }
    copies = [(queue.incarnation, QueueCopy(queue)) for queue in queues if queue.home is None]
    seen = [
        (queue.incarnation, queue.window.runs()) for queue in queues if queue.window is not None and queue.home is None
    ]
    return Cut(outline, copies, seen)


def _vhost(vhost: Vhost, applier: Applier) -> Json:
    return {
        "name": vhost.name,
        "exchanges": [
            [spec.name, spec.kind, spec.durable, spec.auto_delete, spec.internal, records.pack(spec.arguments)]
            for spec in (exchange.spec for exchange in vhost.exchanges.values())
            if spec.name not in _BUILT_IN
        ],
        "queues": [_queue(queue, applier) for queue in vhost.queues.values()],
        "bindings": [records.binding_key("", binding) for binding in vhost.bindings()],
        "policies": [[name, records.policy_record(policy)] for name, policy in vhost.policies.items()],
        "operator": [[name, records.policy_record(policy)] for name, policy in vhost.operator_policies.items()],
        "limits": dict(vhost.limits),
    }


def _queue(queue: Queue, applier: Applier) -> Json:
    spec = queue.spec
    said: Json = {
        "name": queue.name,
        "number": queue.incarnation,
        "spec": [spec.durable, spec.auto_delete, spec.exclusive, records.pack(spec.arguments)],
        "owner": _owner(queue, applier),
        "home": queue.home,
    }
    if queue.home is not None:  # what is in it, and who consumes it, concerns nobody but its home
        return said
    return said | {
        "next": queue.next_position,
        "consumers": [_key(consumer) for consumer in queue.consumers],
        "turns": [_key(consumer) for consumer in queue.rotation.turns()],
        "active": [_key(consumer) for consumer in queue.consumers if consumer.active],
        "ownership": None if applier.owners is None else _ownership(applier.owners.of(queue)),
        "replica": None if queue.replica is None else queue.replica.record(queue),
        "leases": queue.leases.records(),
    }


def _ownership(found: Ownership) -> list[object]:
    owner = None if found.owner is None else str(found.owner.address)
    return [owner, [str(peer.address) for peer in found.circle], found.tenure]


def _owner(queue: Queue, applier: Applier) -> list[object] | None:
    if queue.owner is None:
        return None
    for peer in applier.peers.values():
        for number, owner in peer.owners.items():
            if owner is queue.owner:
                return [str(peer.address), number]
    return None


def _key(consumer: object) -> list[object]:
    assert isinstance(consumer, Subscriber)
    return [str(consumer.peer.address), consumer.number]


def _peer(peer: Peer, version: int) -> Json:
    gone = {
        number: _subscriber(found.holder)
        for by_holder in peer.held.values()
        for number, found in by_holder.items()
        if isinstance(found.holder, Subscriber) and number not in peer.subscribers
    }
    return {
        "address": str(peer.address),
        "events": peer.events,
        "pools": [[pool.number, pool.limit, pool.held] for pool in peer.pools.values()],
        "subscribers": [_subscriber(subscriber) for subscriber in peer.subscribers.values()],
        "cancelled": list(gone.values()),
        **_held(peer, version),
        "unready": sorted(peer.unready),
    }


def _held(peer: Peer, version: int) -> Json:
    """By queue and holder. To brokers that do not know ranges, position by position."""
    all_held = [
        (queue, number, held.positions)
        for queue, by_holder in sorted(peer.held.items())
        for number, held in sorted(by_holder.items())
    ]
    if version >= RANGES:
        return {"shares": [[queue, number, [*positions.ranges()]] for queue, number, positions in all_held]}
    return {
        "held": [
            [queue, position, number, number == GETTER]
            for queue, number, positions in all_held
            for position in positions_in(positions.ranges())
        ]
    }


def shares_of(said: Json) -> Iterator[tuple[int, int, list[Range]]]:
    """What a peer holds, as the outline says: queue, the number of the holder, ranges."""
    for queue, number, ranges in said.get("shares", ()):
        yield queue, number, [(first, stop) for first, stop in ranges]
    for queue, position, number, is_getter in said.get("held", ()):
        yield queue, GETTER if is_getter else number, [(position, position + 1)]


def _subscriber(subscriber: Subscriber) -> Json:
    return {
        "number": subscriber.number, "tag": subscriber.tag, "queue": subscriber.queue.incarnation,
        "flags": [subscriber.no_ack, subscriber.exclusive], "priority": subscriber.priority,
        "args": records.pack(subscriber.arguments), "limit": subscriber.limit, "held": subscriber.held,
        "pool": 0 if subscriber.pool is None else subscriber.pool.number, "details": subscriber.details,
    }  # fmt: skip


def outline(broker: Broker, applier: Applier) -> Json:
    """Wiring, policies and records alone, as every broker at this place has them: in no order that depends on who made
    them when."""
    vhosts = []
    for vhost in broker.vhosts.values():
        said = _vhost(vhost, applier)
        said["queues"] = sorted(
            [queue["name"], queue["number"], queue["spec"], queue["owner"], queue["home"]] for queue in said["queues"]
        )
        for part in ("exchanges", "bindings", "policies", "operator"):
            said[part] = sorted(said[part], key=str)
        vhosts.append(said)
    return {
        "vhosts": sorted(vhosts, key=lambda said: str(said["name"])),
        "records": sorted(broker.kept_records(), key=str),
    }


# The index on its way.


def chunks(found: Cut, now: float) -> Iterator[bytes]:
    """`now`: the time at the cut, for what is left of each message's time. A message that is in several queues is told
    once, and then only where it was told."""
    told: dict[Message, Place] = {}
    for number, copy in found.queues:
        for first in range(0, copy.count, CHUNK):
            yield _chunk(number, copy.rows(first, CHUNK), told, now)
    for number, runs in found.seen:
        while some := [*islice(runs, CHUNK)]:
            yield _CHUNK.pack(number, _SEEN, 0, 0) + _told_ids(some)


def _told_ids(runs: list[tuple[bool, Run]]) -> bytes:
    return json.dumps(
        [[persistent, run.number, run.wall, base64.b64encode(run.ids).decode()] for persistent, run in runs]
    ).encode()


def read_ids(data: memoryview, queues: dict[int, Queue]) -> bool:
    """A chunk of message ids goes where they belong; False: it is no such chunk."""
    number, count, _, _ = _CHUNK.unpack_from(data)
    if count != _SEEN:
        return False
    window = queues[number].window
    if window is not None:
        told = json.loads(bytes(data[_CHUNK.size :]))
        window.restore([(persistent, Run(at, wall, base64.b64decode(ids))) for persistent, at, wall, ids in told])
    return True


def _chunk(number: int, rows: list[CopiedMessage], told: dict[Message, Place], now: float) -> bytes:
    table: list[bytes] = []
    described: list[Buffer] = []
    before: list[bytes] = []
    kinds: dict[tuple[bytes, bytes, int, bool, int], int] = {}
    for position, message, size, redelivered, deliveries, expires in rows:
        left = math.nan if expires is None else expires - now
        place = (number, position)
        elsewhere = told.setdefault(message, place)
        if elsewhere is not place:
            which: int | None = _TOLD
            before.append(_ELSEWHERE.pack(*elsewhere))
        else:
            ttl = -1 if message.ttl is None else message.ttl
            persistent = message.will_persist if isinstance(message, Bodiless) else message.persistent
            kind = (message.route, message.header, message.priority, persistent, ttl)
            which = kinds.get(kind)
            if which is None:
                which = kinds[kind] = len(kinds)
                described += (
                    _KIND.pack(len(message.route), len(message.header), message.priority, persistent, ttl),
                    message.route, message.header,
                )  # fmt: skip
        given = min(deliveries, DELIVERIES_MAX + 1)  # what is beyond any limit is alike
        table.append(_ENTRY.pack(position, size, given, left, which, redelivered))
    head = _CHUNK.pack(number, len(rows), len(kinds), len(before))
    return b"".join((head, *table, *described, *before))


Told = dict[Place, Bodiless]
"""By the place where it was told first."""


def read_chunk(
    data: memoryview, queues: dict[int, Queue], routes: Routes, told: Told, now: float
) -> tuple[int, list[CopiedMessage]]:
    number, count, kinds_count, before_count = _CHUNK.unpack_from(data)
    queue = queues[number]
    at = _CHUNK.size + count * _ENTRY.size
    table = data[_CHUNK.size : at]
    kinds: list[tuple[str, str, bytes, bytes, bool, int, int | None]] = []
    for _ in range(kinds_count):
        route_size, header_size, priority, persistent, ttl = _KIND.unpack_from(data, at)
        at += _KIND.size
        route = bytes(data[at : at + route_size])
        at += route_size
        header = bytes(data[at : at + header_size])
        at += header_size
        kinds.append((*routes.parts(route), route, header, persistent, priority, None if ttl < 0 else ttl))
    before = _ELSEWHERE.iter_unpack(data[at : at + before_count * _ELSEWHERE.size])
    rows: list[CopiedMessage] = []
    for position, size, deliveries, left, which, redelivered in _ENTRY.iter_unpack(table):
        if which == _TOLD:
            message = told[next(before)]
        else:
            exchange, key, route, header, persistent, priority, life = kinds[which]
            message = told[number, position] = Bodiless(exchange, key, route, header, size, persistent, priority, life)
        message.comes_to(queue, position)
        expires = None if math.isnan(left) else now + left
        rows.append(CopiedMessage(position, message, size, redelivered, deliveries, expires))
    return number, rows


def peer_of(applier: Applier, address: str) -> Peer:
    return applier.peer(Address.parse(address))


def owner_of(applier: Applier, said: list[Any] | None) -> object | None:
    if said is None:
        return None
    peer = peer_of(applier, said[0])
    return peer.owners.setdefault(said[1], Owner(peer, said[1]))
