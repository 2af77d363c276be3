"""Queues, exchanges, bindings, connections and the rest as JSON shows them: RabbitMQ's names for the same things."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from decimal import Decimal
from typing import Final
from urllib.parse import quote, quote_plus

from coterie import patterns
from coterie.amqp.channel import Channel
from coterie.amqp.connection import Connection
from coterie.amqp.subscription import Subscription
from coterie.amqp.wire.tables import encode_table
from coterie.broker.arguments import QUEUE_TYPE
from coterie.broker.consumer import Consumer
from coterie.broker.exchange import Exchange
from coterie.broker.policy import Policy
from coterie.broker.queue import Queue
from coterie.broker.specs import Binding
from coterie.broker.users import User
from coterie.broker.vhost import Vhost
from coterie.cluster.consumers import Peer, Subscriber
from coterie.cluster.local_queues import name_of_home
from coterie.cluster.member import Member
from coterie.cluster.status import replicas
from coterie.console.context import Context, queue_key, read_connection, read_queue, read_traffic
from coterie.console.listing import Shape
from coterie.console.rates import Reading

DEFAULT_EXCHANGE: Final = "amq.default"
"""What the nameless exchange is called in paths."""
COUNTED: Final = ("publish", "deliver", "deliver_no_ack", "get", "get_no_ack", "redeliver", "ack")
"""RabbitMQ's names of what `read_counters` reads."""
OPERATOR_POLICY: Final = "operator_policy"
VHOST_LIMITS: Final = "vhost-limits"
"""Components that parameters belong to."""
LIMITS_NAME: Final = "limits"
"""A vhost has one parameter with its limits, and it is called so."""
CARRIED: Final = ("publish", "confirm", "return_unroutable", "get_empty", *COUNTED[1:])
"""And of what `read_traffic` reads."""


def plain(value: object) -> object:
    """A table's value as JSON can show it. What it cannot is shown as text; `records.pack` is what keeps it."""
    if isinstance(value, Mapping):
        return {str(name): plain(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    if isinstance(value, bytes):
        return value.decode("utf-8", "backslashreplace")
    if isinstance(value, datetime):
        return int(value.timestamp())
    if isinstance(value, Decimal):
        return float(value)
    if isinstance(value, float) and (value != value or abs(value) == float("inf")):
        return str(value)
    return value


def stats(names: tuple[str, ...], reading: Reading, rates: tuple[float, ...]) -> Shape:
    shape: Shape = {}
    for name, count, rate in zip(names, reading, rates, strict=True):
        shape[name] = count
        shape[f"{name}_details"] = {"rate": rate}
    return shape


def counted(reading: Reading, rates: tuple[float, ...], names: tuple[str, ...] = COUNTED) -> Shape:
    """`message_stats`, with the sum of everything that was given to somebody. `names`: of what was read."""
    shape = stats(names, reading, rates)
    given = slice(names.index("deliver"), names.index("redeliver"))
    shape["deliver_get"] = sum(reading[given])
    shape["deliver_get_details"] = {"rate": round(sum(rates[given]), 2)}
    return shape


# Wiring.


def queue_shape(context: Context, queue: Queue) -> Shape:
    spec, reading = queue.spec, read_queue(queue)
    owner = queue.owner
    unacked = queue.unacked
    return {
        "name": queue.name, "vhost": queue.vhost.name, "node": context.name, "state": "running",
        "type": str(spec.arguments.get(QUEUE_TYPE, "classic")), "kind": queue.kind,
        "durable": spec.durable, "auto_delete": spec.auto_delete, "exclusive": spec.exclusive,
        "arguments": plain(spec.arguments), "policy": queue.policy, "operator_policy": queue.operator_policy,
        "messages": queue.ready + unacked, "messages_ready": queue.ready, "messages_unacknowledged": unacked,
        "messages_leased": queue.leases.count,
        "message_bytes": queue.bytes, "message_bytes_ready": queue.ready_bytes,
        "message_bytes_unacknowledged": queue.bytes - queue.ready_bytes,
        "message_bytes_ram": queue.pager.resident, "messages_paged_out": queue.pager.paged,
        "consumers": len(queue.consumers), "incarnation": queue.incarnation, "next_position": queue.next_position,
        "replicated": spec.replicated and queue.home is None, "home": name_of_home(queue) or None,
        **_where(context, queue), "owner_connection": owner.name if isinstance(owner, Connection) else None,
        "message_stats": counted(reading, context.samples.rates(context.runtime.now(), queue_key(queue), reading)),
    }  # fmt: skip


def queue_keys(context: Context) -> dict[str, Callable[[Queue], float]]:
    """What queues are sorted by most often, read without describing each of them."""

    def rate(*at: int) -> Callable[[Queue], float]:
        now, samples = context.runtime.now(), context.samples

        def read(queue: Queue) -> float:
            rates = samples.rates(now, queue_key(queue), read_queue(queue))
            return sum(rates[each] for each in at)

        return read

    return {
        "messages": lambda queue: queue.count, "messages_ready": lambda queue: queue.ready,
        "messages_unacknowledged": lambda queue: queue.unacked, "message_bytes": lambda queue: queue.bytes,
        "consumers": lambda queue: len(queue.consumers),
        "replicas": lambda queue: 1 if context.member is None else _replicas(context.member, queue),
        "message_stats.publish_details.rate": rate(0),
        "message_stats.deliver_get_details.rate": rate(1, 2, 3, 4), "message_stats.ack_details.rate": rate(6),
    }  # fmt: skip


def _replicas(member: Member, queue: Queue) -> int:
    return replicas(member.replica, member.applier, queue)


def _where(context: Context, queue: Queue) -> Shape:
    """Who gives out its messages, and on how many of the brokers they all are."""
    member, home = context.member, name_of_home(queue) or None
    if member is None:
        return {"owner": context.name, "replicas": 1, "replicas_wanted": 1}
    owners = member.applier.owners
    owner = None if owners is None or home is not None else owners.of(queue).owner
    return {
        "owner": home or (None if owner is None else owner.address.name), "replicas": _replicas(member, queue),
        "replicas_wanted": 1 if home is not None else max(len(member.replica.voters), len(member.replica.members)),
    }  # fmt: skip


def queue_detail(context: Context, queue: Queue) -> Shape:
    """With what is worth showing of a single one."""
    limits = queue.limits
    return queue_shape(context, queue) | {
        "consumer_details": [consumer_shape(consumer) for consumer in queue.consumers],
        "lease_details": [lease.shape(pieces=False) for lease in queue.leases],
        "counters": queue.counters.as_dict(),
        "message_ids": None if queue.window is None else len(queue.window),
        "effective_limits": {
            name: value
            for name, value in (
                ("message-ttl", limits.ttl), ("expires", limits.expires), ("max-length", limits.max_length),
                ("max-length-bytes", limits.max_bytes), ("overflow", limits.overflow),
                ("dead-letter-exchange", limits.dead_exchange), ("dead-letter-routing-key", limits.dead_key),
                ("delivery-limit", limits.delivery_limit),
                ("deduplicate-length", limits.deduplicate_length), ("deduplicate-ttl", limits.deduplicate_ttl),
            )
            if value is not None
        },
    }  # fmt: skip


def exchange_shape(vhost: Vhost, exchange: Exchange | None) -> Shape:
    """None: the default exchange."""
    if exchange is None:
        return {
            "name": "", "vhost": vhost.name, "type": "direct", "durable": True, "auto_delete": False,
            "internal": False, "arguments": {}, "policy": None, "replicated": True,
        }  # fmt: skip
    spec = exchange.spec
    return {
        "name": spec.name, "vhost": vhost.name, "type": spec.kind, "durable": spec.durable,
        "auto_delete": spec.auto_delete, "internal": spec.internal, "arguments": plain(spec.arguments),
        "policy": exchange.policy, "replicated": spec.replicated,
    }  # fmt: skip


def binding_shape(vhost: Vhost, binding: Binding) -> Shape:
    return {
        "source": binding.source, "vhost": vhost.name, "destination": binding.destination,
        "destination_type": binding.kind, "routing_key": binding.key, "arguments": plain(binding.arguments),
        "properties_key": properties_key(binding),
    }  # fmt: skip


def properties_key(binding: Binding) -> str:
    """What tells bindings between the same two apart, as RabbitMQ writes it: the routing key, percent-encoded, and of
    arguments a digest. Nothing but that stands behind a `~`. For a path it is quoted again, or not: both are found."""
    key = encoded_key(binding.key)
    if not binding.arguments:
        return key or "~"
    table = {name: binding.arguments[name] for name in sorted(binding.arguments)}
    digest = hashlib.sha256(encode_table(table)).digest()[:12]  # type: ignore[arg-type]
    return f"{key}~{base64.urlsafe_b64encode(digest).decode()}"


def encoded_key(key: str) -> str:
    return quote_plus(key.encode("utf-8", "surrogateescape")).replace("~", "%7E")


def default_bindings(vhost: Vhost) -> list[Binding]:
    """Every queue is bound to the default exchange by its name."""
    return [Binding("", "queue", name, name) for name in vhost.queues]


def quoted(*parts: str) -> str:
    return "/".join(quote(part, safe="") for part in parts)


# Clients.


def connection_shape(context: Context, connection: Connection) -> Shape:
    reading = read_connection(connection)
    rates = context.samples.rates(context.runtime.now(), connection.number, reading)
    properties = plain(connection.client_properties)
    assert isinstance(properties, dict)
    host, _, port = connection.name.rpartition(" -> ")[2].rpartition(":")
    return {
        "name": connection.name, "number": connection.number, "node": context.name, "type": "network",
        "protocol": "AMQP 0-9-1", "user": connection.user.name, "vhost": connection.vhost.name,
        "state": connection.shown_state, "held_back_by": list(connection.throttle.reasons),
        "peer_host": connection.peer.host, "peer_port": connection.peer.port,
        "host": host.strip("[]"), "port": int(port) if port.isdigit() else None,
        "peer_certificate": connection.certificate,
        "channels": len(connection.channels), "channel_max": connection.channel_max,
        "frame_max": connection.frame_max, "timeout": connection.heartbeat,
        "connected_at": int(connection.opened_at * 1000), "client_properties": properties,
        "user_provided_name": properties.get("connection_name"),
        "recv_oct": reading[0], "recv_oct_details": {"rate": rates[0]},
        "send_oct": reading[1], "send_oct_details": {"rate": rates[1]},
        "send_pend": connection.outbox.waiting, "message_stats": counted(reading[2:], rates[2:], CARRIED),
    }  # fmt: skip


def channel_shape(context: Context, channel: Channel) -> Shape:
    connection, reading = channel.connection, read_traffic(channel.traffic)
    rates = context.samples.rates(context.runtime.now(), (connection.number, channel.number), reading)
    return {
        "name": channel.name, "number": channel.number, "node": context.name,
        "user": connection.user.name, "vhost": connection.vhost.name, "state": connection.shown_state,
        "connection_details": {
            "name": connection.name, "peer_host": connection.peer.host, "peer_port": connection.peer.port,
        },
        "consumer_count": len(channel.consumers), "messages_unacknowledged": channel.deliveries.count,
        "prefetch_count": channel.prefetch, "global_prefetch_count": channel.prefetch_all,
        "confirm": channel.confirms is not None, "messages_unconfirmed": channel.unconfirmed,
        "transactional": channel.transaction is not None, "messages_uncommitted": channel.uncommitted,
        "message_stats": counted(reading, rates, CARRIED),
    }  # fmt: skip


def consumer_shape(consumer: Consumer) -> Shape:
    queue, sink = consumer.queue, consumer.sink
    single = queue.spec.single_active
    shape: Shape = {
        "queue": {"name": queue.name, "vhost": queue.vhost.name}, "consumer_tag": consumer.tag,
        "ack_required": not consumer.no_ack, "exclusive": consumer.exclusive, "priority": consumer.priority,
        "active": consumer.active,
        "activity_status": "single_active" if single and consumer.active else "waiting" if single else "up",
        "arguments": plain(consumer.arguments),
        "prefetch_count": consumer.prefetch if isinstance(consumer, Subscription) else 0,
    }  # fmt: skip
    details = consumer.details if isinstance(consumer, Subscriber) else sink.details()
    if isinstance(sink, Peer):
        shape["node"] = sink.address.name
        details = {"node": sink.address.name} | details
    return shape | {"channel_details": details}


# Users, vhosts, policies.


def user_shape(user: User) -> Shape:
    """Without its password's hash, which only definitions carry."""
    return {
        "name": user.name,
        "tags": list(user.tags),
        "has_password": user.password is not None,
        "limits": user.limits,
        "allow": user.allow.texts(),
    }


def permission_shapes(user: User) -> list[Shape]:
    return [
        {"user": user.name, "vhost": vhost, "configure": p.configure, "write": p.write, "read": p.read}
        for vhost, p in user.permissions.items()
    ]


def topic_shapes(user: User) -> list[Shape]:
    return [
        {"user": user.name, "vhost": vhost, "exchange": exchange, "write": topics.write, "read": topics.read}
        for vhost, found in user.topics.items()
        for exchange, topics in found.items()
    ]


def vhost_shape(context: Context, vhost: Vhost, connections: Sequence[Connection]) -> Shape:
    """With the connections to it."""
    queues = vhost.queues.values()
    ready, total = sum(queue.ready for queue in queues), sum(queue.count for queue in queues)
    return {
        "name": vhost.name, "cluster_state": {context.name: "running"}, "limits": dict(vhost.limits),
        "messages": total, "messages_ready": ready, "messages_unacknowledged": total - ready,
        "queues": len(queues), "exchanges": len(vhost.exchanges) + 1, "bindings": vhost.binding_count,
        "connections": len(connections), "recv_oct": sum(each.received_bytes for each in connections),
        "send_oct": sum(each.sent_bytes for each in connections),
    }  # fmt: skip


def policy_shape(vhost: Vhost, policy: Policy) -> Shape:
    return {
        "vhost": vhost.name, "name": policy.name, "pattern": policy.pattern, "apply-to": policy.apply_to,
        "definition": dict(policy.definition), "priority": policy.priority,
    }  # fmt: skip


def with_problems(shape: Shape, *keys: str) -> Shape:
    """A stored pattern that an older version took, and that fits nothing now, says so. Definitions do not: they must
    be as others can read them."""
    found = {key: problem for key in keys if (problem := patterns.problem(str(shape[key])))}
    return shape | {"problems": found} if found else shape


def parameter_shapes(vhost: Vhost) -> list[Shape]:
    """What is set of a vhost beside policies, as definitions have it."""
    name, shapes = vhost.name, list[Shape]()
    for each in vhost.operator_policies.values():
        shape = policy_shape(vhost, each)
        value = {key: shape[key] for key in ("pattern", "definition", "priority", "apply-to")}
        shapes.append({"vhost": name, "component": OPERATOR_POLICY, "name": each.name, "value": value})
    if vhost.limits:
        value = dict(vhost.limits)
        shapes.append({"vhost": name, "component": VHOST_LIMITS, "name": LIMITS_NAME, "value": value})
    return shapes
