"""What the API answers with, object by object. Each says every property that there is: the test that asks a real node
fails if an answer has one more, or lacks one."""

from __future__ import annotations

from dataclasses import fields
from typing import Final

from coterie.amqp.wire.properties import Properties
from coterie.broker.counters import Counters
from coterie.broker.specs import EXCHANGE_KINDS
from coterie.console.api_messages import NUMBERS
from coterie.console.history import Totals
from coterie.console.openapi.schema import (
    ANY,
    COUNT,
    FLAG,
    NUMBER,
    TABLE,
    TEXT,
    WHOLE,
    Schema,
    answered,
    keyed,
    list_of,
    nullable,
    one_of,
    optional,
    ref,
)
from coterie.console.shapes import CARRIED, COUNTED
from coterie.logs import LEVELS

_RATE: Final = answered(rate=NUMBER)
_MAYBE_TEXT: Final = nullable(TEXT)
_MAYBE_COUNT: Final = nullable(COUNT)


def _stats(*names: str) -> Schema:
    return keyed({key: value for name in names for key, value in ((name, COUNT), (f"{name}_details", _RATE))})


_QUEUE_STATS: Final = (*COUNTED, "deliver_get")
_OVERALL_STATS: Final = (*_QUEUE_STATS, "confirm", "return_unroutable", "get_empty")
_LISTENER: Final = answered(node=TEXT, protocol=TEXT, ip_address=TEXT, port=COUNT)
_PAGE: Final = {"description": TEXT, "path": TEXT, "ip": TEXT, "port": TEXT}
_PROBLEMS: Final = optional({"type": "object", "additionalProperties": TEXT})
"""Of patterns that an older version took, and that fit nothing now."""
_LIMITS: Final[Schema] = {"type": "object", "additionalProperties": COUNT}

NODE_SCHEMAS: Final[dict[str, Schema]] = {
    "Error": answered(error=TEXT, reason=TEXT) | {"description": "From 400 on, but for a check that failed."},
    "Columns": {"type": "object", "description": "An object of the list, with what `columns` has left of it."},
    "Overview": answered(
        product_name=TEXT, product_version=TEXT, management_version=TEXT, node=TEXT, cluster_name=TEXT,
        rates_mode=TEXT, exchange_types=list_of(answered(name=one_of(EXCHANGE_KINDS), enabled=FLAG)),
        object_totals=answered(connections=COUNT, channels=COUNT, exchanges=COUNT, queues=COUNT, consumers=COUNT),
        queue_totals=answered(
            messages=COUNT, messages_ready=COUNT, messages_unacknowledged=COUNT, message_bytes=COUNT
        ),
        message_stats={"anyOf": [_stats(*_OVERALL_STATS), keyed(dict.fromkeys(COUNTED, COUNT))]},
        listeners=optional(list_of(_LISTENER)), contexts=optional(list_of(answered(node=TEXT, **_PAGE))),
        alarms=optional(list_of(TEXT)),
        churn=optional(answered(connections_accepted=COUNT, turned_away=COUNT)),
        held_back=optional(answered(publishing=COUNT, opening=COUNT)),
    ),
    "Node": answered(
        name=TEXT, type=one_of(("disc", "ram")), running=FLAG, uptime=COUNT, mem_used=_MAYBE_COUNT, mem_alarm=FLAG,
        mem_limit=COUNT, mem_counted=COUNT, mem_process_limit=COUNT,
        message_bytes_ram=COUNT, disk_free=_MAYBE_COUNT, disk_free_alarm=FLAG, fd_used=_MAYBE_COUNT,
        fd_total=_MAYBE_COUNT, sockets_used=COUNT, python_version=TEXT, event_loop_lag=NUMBER, data=_MAYBE_TEXT,
        applications=list_of(answered(name=TEXT, version=TEXT)), listeners=list_of(_LISTENER),
        contexts=list_of(answered(**_PAGE)),
    ),
    "Security": answered(
        node=TEXT, safe=FLAG, findings=list_of(answered(check=TEXT, severity=TEXT, text=TEXT, mend=TEXT))
    ),
    "Backup": answered(
        id=TEXT, node=TEXT, cluster=_MAYBE_TEXT, at=TEXT, version=TEXT, last=COUNT,
        files=list_of(answered(name=TEXT, size=COUNT)),
    ),
    "Memory": answered(
        memory=answered(
            binary=COUNT, queue_procs=COUNT, connection_readers=COUNT, connection_writers=COUNT, strategy=TEXT,
            total=answered(rss=COUNT, allocated=COUNT, erlang=COUNT),
        )
    ),
    "Cluster": answered(
        clustered=FLAG, cluster=_MAYBE_TEXT, node=TEXT, incarnation=nullable(WHOLE), state=TEXT, why=TEXT,
        waits_for=TEXT, epoch=_MAYBE_COUNT, index=_MAYBE_COUNT, disk_index=_MAYBE_COUNT, void_events=_MAYBE_COUNT,
        shared_index=_MAYBE_COUNT, divergences=_MAYBE_COUNT, kept_stores=list_of(TEXT),
        view=_MAYBE_TEXT, coordinator=_MAYBE_TEXT, dispatch=TEXT, voters=list_of(TEXT), majority=_MAYBE_COUNT,
        members=list_of(
            answered(
                name=TEXT, incarnation=nullable(WHOLE), address=_MAYBE_TEXT, state=TEXT, voter=FLAG, oldest=FLAG,
                disk_index=_MAYBE_COUNT, this=FLAG, silence=nullable(NUMBER), alarms=list_of(TEXT),
            )
        ),
    ),
    "Holders": answered(
        vhost=TEXT, name=TEXT, dispatch=TEXT, owner=_MAYBE_TEXT, messages_ready=COUNT,
        members=list_of(answered(name=TEXT, consumers=COUNT, held=COUNT)),
    ),
    "Link": answered(
        to=TEXT, vhost=TEXT, state=TEXT, why=TEXT, since=NUMBER, behind=COUNT, messages=COUNT, removals=COUNT,
        queues=list_of(answered(queue=TEXT, state=TEXT, sent=COUNT, confirmed=COUNT, behind=COUNT)),
    ),
    "Follower": answered(
        vhost=TEXT, queue=TEXT, state=one_of(("promoted", "following")), source=TEXT, source_vhost=TEXT,
        source_incarnation=WHOLE, mark=COUNT, messages=COUNT,
    ),
    "Live": answered(
        node=TEXT, version=TEXT, now=NUMBER, user=TEXT, tags=list_of(TEXT), interval=NUMBER, uptime=COUNT, closed=TEXT,
        blocked=_MAYBE_TEXT, alarms=list_of(TEXT), totals=keyed(dict.fromkeys(Totals.__slots__, COUNT)),
        cluster=optional(ref("Cluster")),
        history=optional(answered(columns=list_of(TEXT), rows=list_of(list_of(nullable(NUMBER))))),
        process=optional(answered(
            memory=_MAYBE_COUNT, descriptors=_MAYBE_COUNT, descriptors_max=_MAYBE_COUNT, disk_free=_MAYBE_COUNT,
            durable=FLAG, resident=COUNT, memory_high=COUNT,
        )),
        last_line=optional(COUNT),
        links=optional(list_of(answered(to=TEXT, vhost=TEXT, state=TEXT, why=TEXT, behind=COUNT))),
    ),
    "Log": answered(
        items=list_of(answered(
            number=COUNT, time=NUMBER, level=one_of((*LEVELS, "critical")), logger=TEXT, event=TEXT,
            facts={"type": "object", "additionalProperties": TEXT},
        )),
        last=COUNT,
    ),
    "Tracing": answered(
        node=TEXT, tracing=FLAG, publishing=FLAG, vhost=optional(TEXT), exchange=optional(TEXT),
        published=optional(COUNT), dropped=optional(COUNT), held_bytes=optional(COUNT),
    ),
    "FeatureFlag": answered(name=TEXT, desc=TEXT, doc_url=TEXT, state=TEXT, stability=TEXT, provided_by=TEXT),
    "Session": answered(name=TEXT, tags=list_of(TEXT), node=TEXT, token=_MAYBE_TEXT),
    "Healthy": {
        "type": "object", "properties": {"status": {"const": "ok"}}, "required": ["status"],
        "description": "The check is fine; some tell more.",
    },
    "Failed": {
        "type": "object", "properties": {"status": {"const": "failed"}, "reason": TEXT},
        "required": ["status", "reason"], "description": "The check failed; some tell more.",
    },
    "Imported": answered(done={"type": "object", "additionalProperties": COUNT}, notes=list_of(TEXT)),
}  # fmt: skip

_QUEUE: Final[dict[str, Schema]] = {
    "name": TEXT, "vhost": TEXT, "node": TEXT, "state": TEXT, "type": TEXT, "kind": TEXT, "durable": FLAG,
    "auto_delete": FLAG, "exclusive": FLAG, "arguments": TABLE, "policy": _MAYBE_TEXT, "operator_policy": _MAYBE_TEXT,
    "messages": COUNT, "messages_ready": COUNT, "messages_unacknowledged": COUNT, "messages_leased": COUNT,
    "message_bytes": COUNT, "message_bytes_ready": COUNT, "message_bytes_unacknowledged": COUNT,
    "message_bytes_ram": COUNT, "messages_paged_out": COUNT, "consumers": COUNT, "incarnation": WHOLE,
    "next_position": COUNT, "replicated": FLAG, "home": _MAYBE_TEXT, "owner": _MAYBE_TEXT, "replicas": COUNT,
    "replicas_wanted": COUNT, "owner_connection": _MAYBE_TEXT, "message_stats": _stats(*_QUEUE_STATS),
}  # fmt: skip
_CHANNEL: Final[dict[str, Schema]] = {
    "name": TEXT, "number": COUNT, "node": TEXT, "user": TEXT, "vhost": TEXT, "state": TEXT,
    "connection_details": answered(name=TEXT, peer_host=TEXT, peer_port=COUNT), "consumer_count": COUNT,
    "messages_unacknowledged": COUNT, "prefetch_count": COUNT, "global_prefetch_count": COUNT, "confirm": FLAG,
    "messages_unconfirmed": COUNT, "transactional": FLAG, "messages_uncommitted": COUNT,
    "message_stats": _stats(*CARRIED, "deliver_get"),
}  # fmt: skip
_CONSUMERS: Final = {"consumer_details": list_of(ref("Consumer"))}
_PROPERTIES: Final = keyed({
    field.name: optional(TABLE if field.name == "headers" else WHOLE if field.name in NUMBERS else TEXT)
    for field in fields(Properties)
})  # fmt: skip
_MESSAGE: Final[dict[str, Schema]] = {
    "payload_bytes": COUNT, "redelivered": FLAG, "exchange": TEXT, "routing_key": TEXT, "position": COUNT,
    "payload": TEXT, "payload_encoding": one_of(("string", "base64")), "properties": optional(_PROPERTIES),
    "properties_error": optional(TEXT),
}  # fmt: skip
_LEASE: Final[dict[str, Schema]] = {
    "vhost": TEXT, "queue": TEXT, "incarnation": WHOLE, "name": TEXT, "id": WHOLE, "user": TEXT, "session": TEXT,
    "since": WHOLE, "first": COUNT, "next": COUNT, "count": COUNT, "bytes": COUNT, "first_position": _MAYBE_COUNT,
    "last_position": _MAYBE_COUNT, "lag": COUNT, "idle": COUNT, "expires_after": NUMBER,
}  # fmt: skip
_PIECES: Final[dict[str, Schema]] = {"pieces": list_of({"type": "array"}), "at": TEXT}
_TAIL: Final[dict[str, Schema]] = {
    "vhost": TEXT, "name": TEXT, "incarnation": WHOLE, "first": COUNT, "next": COUNT, "ready": COUNT,
    "ready_bytes": COUNT, "messages": COUNT, "bytes": COUNT, "leased": COUNT,
}  # fmt: skip
_POLICY: Final[dict[str, Schema]] = {
    "vhost": TEXT, "name": TEXT, "pattern": TEXT, "apply-to": TEXT, "definition": TABLE, "priority": WHOLE,
    "problems": _PROBLEMS,
}  # fmt: skip

OBJECT_SCHEMAS: Final[dict[str, Schema]] = {
    "Queue": keyed(_QUEUE),
    "QueueDetail": keyed(_QUEUE | _CONSUMERS | {
        "lease_details": list_of(ref("Lease")),
        "counters": keyed({field.name: COUNT for field in fields(Counters)}), "message_ids": _MAYBE_COUNT,
        "effective_limits": TABLE,
        "may": answered(configure=FLAG, write=FLAG, read=FLAG, publish=FLAG, open=FLAG),
    }),
    "Exchange": answered(
        name=TEXT, vhost=TEXT, type=one_of(EXCHANGE_KINDS), durable=FLAG, auto_delete=FLAG, internal=FLAG,
        arguments=TABLE, policy=_MAYBE_TEXT, replicated=FLAG,
    ),
    "Binding": answered(
        source=TEXT, vhost=TEXT, destination=TEXT, destination_type=one_of(("queue", "exchange")), routing_key=TEXT,
        arguments=TABLE, properties_key=TEXT,
    ),
    "Connection": answered(
        name=TEXT, number=COUNT, node=TEXT, type=TEXT, protocol=TEXT, user=TEXT, vhost=TEXT, state=TEXT,
        held_back_by=list_of(TEXT), peer_host=TEXT, peer_port=COUNT, host=TEXT, port=_MAYBE_COUNT,
        peer_certificate=_MAYBE_TEXT, channels=COUNT, channel_max=COUNT, frame_max=COUNT, timeout=COUNT,
        connected_at=COUNT, client_properties=TABLE, user_provided_name=ANY, recv_oct=COUNT, recv_oct_details=_RATE,
        send_oct=COUNT, send_oct_details=_RATE, send_pend=COUNT, message_stats=_stats(*CARRIED, "deliver_get"),
    ),
    "Channel": keyed(_CHANNEL),
    "ChannelDetail": keyed(_CHANNEL | _CONSUMERS),
    "Consumer": answered(
        queue=answered(name=TEXT, vhost=TEXT), consumer_tag=TEXT, ack_required=FLAG, exclusive=FLAG, priority=WHOLE,
        active=FLAG, activity_status=TEXT, arguments=TABLE, prefetch_count=COUNT, node=optional(TEXT),
        channel_details=TABLE,
    ),
    "Got": keyed(_MESSAGE | {"message_count": COUNT}),
    "Browsed": answered(
        items=list_of(keyed(_MESSAGE | {"state": TEXT})), next_first=_MAYBE_COUNT, next_position=COUNT
    ),
    "Lease": keyed(_LEASE),
    "LeaseDetail": keyed(_LEASE | _PIECES | {"fits": optional(COUNT)}),
    "LeaseStep": keyed(_LEASE | _PIECES | {"acquired": COUNT, "more": FLAG}),
    "Readers": answered(
        at=TEXT, node=TEXT, nodes=list_of(answered(name=TEXT, url=_MAYBE_TEXT, this=FLAG))
    ),
    "Tails": answered(at=TEXT, queues=list_of(keyed(_TAIL))),
    "Tail": keyed(_TAIL | {"at": TEXT}),
    "User": answered(name=TEXT, tags=list_of(TEXT), has_password=FLAG, limits=_LIMITS, allow=list_of(TEXT)),
    "Permission": answered(user=TEXT, vhost=TEXT, configure=TEXT, write=TEXT, read=TEXT, problems=_PROBLEMS),
    "TopicPermission": answered(user=TEXT, vhost=TEXT, exchange=TEXT, write=TEXT, read=TEXT, problems=_PROBLEMS),
    "Vhost": answered(
        name=TEXT, cluster_state={"type": "object", "additionalProperties": TEXT}, limits=_LIMITS, messages=COUNT,
        messages_ready=COUNT, messages_unacknowledged=COUNT, queues=COUNT, exchanges=COUNT, bindings=COUNT,
        connections=COUNT, recv_oct=COUNT, send_oct=COUNT,
    ),
    "VhostLimits": answered(vhost=TEXT, value=_LIMITS),
    "UserLimits": answered(user=TEXT, value=_LIMITS),
    "Policy": keyed(_POLICY),
    "Parameter": answered(vhost=TEXT, component=TEXT, name=TEXT, value=TABLE),
    "GlobalParameter": answered(name=TEXT, value=ANY),
}  # fmt: skip
