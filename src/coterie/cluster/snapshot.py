"""The state of a broker at one place of the log: an outline of everything, and the messages of its queues.

The outline is made at once, so that it is of that place; it names queues, wiring, consumers and what each holds. The
messages follow in chunks, as fast as they are taken; what may change of an entry is noted with the outline.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

from coterie.broker import records
from coterie.broker.entry import Entry
from coterie.broker.message import Message
from coterie.broker.switchboard import PREDECLARED
from coterie.cluster.consumers import Getter, Owner, Peer, Subscriber
from coterie.cluster.wire import Routes
from coterie.group.members import Address
from coterie.runtime.base import Buffer

if TYPE_CHECKING:
    from coterie.broker.broker import Broker
    from coterie.broker.queue import Queue
    from coterie.broker.vhost import Vhost
    from coterie.cluster.message_handler import MessageHandler
    from coterie.cluster.ownership import Ownership

CHUNK = 128 << 10
_CHUNK = struct.Struct(">QI")
_ENTRY = struct.Struct(">Q?IdHIIB?q")
"""Position, redelivered, deliveries, seconds left, lengths of route, header and body, priority, persistent, ttl."""
_BUILT_IN = frozenset(spec.name for spec in PREDECLARED)

Json = dict[str, Any]


class Noted(NamedTuple):
    """An entry, and what may change of it."""

    entry: Entry
    redelivered: bool
    deliveries: int


class Cut(NamedTuple):
    """A broker's state at one place."""

    outline: Json
    queues: list[tuple[int, list[Noted]]]


# Cutting.


def cut(broker: Broker, handler: MessageHandler) -> Cut:
    queues = [queue for vhost in broker.vhosts.values() for queue in vhost.queues.values()]
    outline: Json = {
        "vhosts": [_vhost(vhost, handler) for vhost in broker.vhosts.values()],
        "peers": [_peer(peer) for peer in handler.peers.values()],
        "records": broker.kept_records(),
    }
    noted = [
        (queue.incarnation, [Noted(entry, entry.redelivered, entry.deliveries) for entry in queue.entries.values()])
        for queue in queues
        if queue.home is None
    ]
    return Cut(outline, noted)


def _vhost(vhost: Vhost, handler: MessageHandler) -> Json:
    return {
        "name": vhost.name,
        "exchanges": [
            [spec.name, spec.kind, spec.durable, spec.auto_delete, spec.internal, records.pack(spec.arguments)]
            for spec in (exchange.spec for exchange in vhost.exchanges.values())
            if spec.name not in _BUILT_IN
        ],
        "queues": [_queue(queue, handler) for queue in vhost.queues.values()],
        "bindings": [records.binding_key("", binding) for binding in vhost.bindings()],
        "policies": [[name, records.policy_record(policy)] for name, policy in vhost.policies.items()],
        "operator": [[name, records.policy_record(policy)] for name, policy in vhost.operator_policies.items()],
        "limits": dict(vhost.limits),
    }


def _queue(queue: Queue, handler: MessageHandler) -> Json:
    spec = queue.spec
    said: Json = {
        "name": queue.name,
        "number": queue.incarnation,
        "spec": [spec.durable, spec.auto_delete, spec.exclusive, records.pack(spec.arguments)],
        "owner": _owner(queue, handler),
        "home": queue.home,
    }
    if queue.home is not None:  # what is in it, and who consumes it, concerns nobody but its home
        return said
    return said | {
        "next": queue.next_position,
        "consumers": [_key(consumer) for consumer in queue.consumers],
        "turns": [_key(consumer) for consumer in queue.rotation.turns()],
        "active": [_key(consumer) for consumer in queue.consumers if consumer.active],
        "ownership": None if handler.owners is None else _ownership(handler.owners.of(queue)),
    }


def _ownership(found: Ownership) -> list[object]:
    owner = None if found.owner is None else str(found.owner.address)
    return [owner, [str(peer.address) for peer in found.circle], found.tenure]


def _owner(queue: Queue, handler: MessageHandler) -> list[object] | None:
    if queue.owner is None:
        return None
    for peer in handler.peers.values():
        for number, owner in peer.owners.items():
            if owner is queue.owner:
                return [str(peer.address), number]
    return None


def _key(consumer: object) -> list[object]:
    assert isinstance(consumer, Subscriber)
    return [str(consumer.peer.address), consumer.number]


def _peer(peer: Peer) -> Json:
    held: list[object] = []
    for queue, by_position in peer.held.items():
        for position, holder in by_position.items():
            held.append([queue, position, holder.number, isinstance(holder, Getter)])
    gone = {
        holder.number: _subscriber(holder)
        for by_position in peer.held.values()
        for holder in by_position.values()
        if isinstance(holder, Subscriber) and holder.number not in peer.subscribers
    }
    return {
        "address": str(peer.address),
        "events": peer.events,
        "pools": [[pool.number, pool.limit, pool.held] for pool in peer.pools.values()],
        "subscribers": [_subscriber(subscriber) for subscriber in peer.subscribers.values()],
        "cancelled": list(gone.values()),
        "held": held,
    }


def _subscriber(subscriber: Subscriber) -> Json:
    return {
        "number": subscriber.number, "tag": subscriber.tag, "queue": subscriber.queue.incarnation,
        "flags": [subscriber.no_ack, subscriber.exclusive], "priority": subscriber.priority,
        "args": records.pack(subscriber.arguments), "limit": subscriber.limit, "held": subscriber.held,
        "pool": 0 if subscriber.pool is None else subscriber.pool.number,
    }  # fmt: skip


def outline(broker: Broker, handler: MessageHandler) -> Json:
    """Wiring, policies and records alone, as every broker at this place has them: in no order that depends on who made
    them when."""
    vhosts = []
    for vhost in broker.vhosts.values():
        said = _vhost(vhost, handler)
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


# Messages on their way.


def chunks(found: Cut, now: float) -> Iterator[bytes]:
    """`now`: the sender's clock, for what is left of each message's time."""
    for number, noted in found.queues:
        parts: list[Buffer] = []
        size = count = 0
        for entry, redelivered, deliveries in noted:
            message = entry.message
            assert message is not None, "a clustered broker keeps its messages in memory"
            left = math.nan if entry.expires is None else entry.expires - now
            route, header, body = message.route, message.header, message.body
            ttl = -1 if message.ttl is None else message.ttl
            parts += (
                _ENTRY.pack(
                    entry.position, redelivered, deliveries, left, len(route), len(header), len(body),
                    message.priority, message.persistent, ttl,
                ),
                route, header, body,
            )  # fmt: skip
            size += len(body) + len(header) + 64
            count += 1
            if size >= CHUNK:
                yield b"".join((_CHUNK.pack(number, count), *parts))
                parts, size, count = [], 0, 0
        if count:
            yield b"".join((_CHUNK.pack(number, count), *parts))


def read_chunk(data: memoryview, queues: dict[int, Queue], routes: Routes, now: float) -> tuple[int, list[Entry]]:
    number, count = _CHUNK.unpack_from(data)
    queue = queues[number]
    at = _CHUNK.size
    entries: list[Entry] = []
    for _ in range(count):
        position, redelivered, deliveries, left, route_size, header_size, body_size, priority, persistent, ttl = (
            _ENTRY.unpack_from(data, at)
        )
        at += _ENTRY.size
        route = bytes(data[at : at + route_size])
        at += route_size
        header = bytes(data[at : at + header_size])
        at += header_size
        body = bytes(data[at : at + body_size])
        at += body_size
        exchange, key = routes.parts(route)
        life = None if ttl < 0 else ttl
        entry = Entry(
            position, Message(exchange, key, route, header, body, persistent, priority, life), queue, body_size
        )
        entry.redelivered, entry.deliveries = redelivered, deliveries
        entry.expires = None if math.isnan(left) else now + left
        entries.append(entry)
    return number, entries


def peer_of(handler: MessageHandler, address: str) -> Peer:
    return handler.peer(Address.parse(address))


def owner_of(handler: MessageHandler, said: list[Any] | None) -> object | None:
    if said is None:
        return None
    peer = peer_of(handler, said[0])
    return peer.owners.setdefault(said[1], Owner(peer, said[1]))
