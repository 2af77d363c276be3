"""What a node has, what went through it, and how much more it would take: by the names of RabbitMQ's exporter, which
its dashboards for Grafana are made of, where the meaning is the same.
"""

from __future__ import annotations

from typing import Final

from coterie.broker.counters import Counters
from coterie.broker.log_store import LogStore
from coterie.console.context import Context, Process
from coterie.console.exposition import Exposition

PROTOCOL: Final = {"protocol": "amqp091"}


def limits(context: Context, process: Process, out: Exposition) -> None:
    """What there is of memory, disk and sockets until publishers are blocked, or nobody comes in any more."""
    high, memory = context.broker.settings.memory_high, process.memory
    # Publishers are blocked by messages in memory, or by the process. Dashboards take what the process uses from this.
    most = None
    if memory is not None and high:
        most = min(memory + max(0, high - context.broker.counted_memory), context.broker.process_limit)
    out.one("rabbitmq_resident_memory_limit_bytes", "gauge", "Memory in bytes that blocks publishers", most)
    reserve = context.store.settings.reserve_bytes if isinstance(context.store, LogStore) else None
    out.one("rabbitmq_disk_space_available_limit_bytes", "gauge", "Free disk space low watermark in bytes", reserve)
    sockets, descriptors = context.amqp.settings.connections_max, process.descriptors_max
    most = sockets if descriptors is None else min(sockets, descriptors)
    out.one("rabbitmq_process_max_tcp_sockets", "gauge", "Open TCP sockets limit", most)
    out.one("rabbitmq_process_open_tcp_sockets", "gauge", "Open TCP sockets", len(context.amqp.connections))


def objects(context: Context, out: Exposition) -> None:
    connections, queues = context.connections(), context.queues()
    consumers = sum(len(queue.consumers) for queue in queues)
    own = context.channels()
    channels = len(own)
    for name, help, value in (
        ("publishers", "Channels that have published", sum(channel.traffic.published > 0 for channel in own)),
        ("consumers", "Consumers of this node's clients", sum(len(channel.consumers) for channel in own)),
    ):
        out.family(f"rabbitmq_global_{name}", "gauge", help, [(PROTOCOL, value)])
    amqp, churn = context.amqp, context.broker.churn
    for name, help, value in (
        ("connections_opened", "Connections opened", amqp.connections_opened),
        ("connections_closed", "Connections closed", amqp.connections_opened - len(connections)),
        ("channels_opened", "Channels opened", amqp.channels_opened),
        ("channels_closed", "Channels closed", amqp.channels_opened - channels),
        ("queues_declared", "Queues declared, also those that were there", churn.declared),
        ("queues_created", "Queues created", churn.created),
        ("queues_deleted", "Queues deleted", churn.deleted),
    ):
        out.one(f"rabbitmq_{name}_total", "counter", help, value)
    out.one("rabbitmq_connections", "gauge", "Connections currently open", len(connections))
    out.one("rabbitmq_channels", "gauge", "Channels currently open", channels)
    out.one("rabbitmq_queues", "gauge", "Queues available", len(queues))
    out.one("rabbitmq_consumers", "gauge", "Consumers currently connected", consumers)
    exchanges = sum(len(vhost.exchanges) + 1 for vhost in context.broker.vhosts.values())
    out.one("coterie_exchanges", "gauge", "Exchanges", exchanges)
    out.one("coterie_bindings", "gauge", "Bindings", sum(v.binding_count for v in context.broker.vhosts.values()))
    out.one("coterie_vhosts", "gauge", "Virtual hosts", len(context.broker.vhosts))


def went_through(context: Context, queues: Counters, out: Exposition) -> None:
    """`queues`: what all queues have counted, also those that are gone."""
    traffic = context.amqp.traffic
    delivered = queues.delivered + queues.delivered_no_ack + queues.got + queues.got_no_ack
    for name, help, value in (
        ("received", "Messages received from publishers", traffic.published + context.published),
        ("received_confirm", "Messages received from publishers that want confirms", traffic.to_confirm),
        ("confirmed", "Messages confirmed to publishers", traffic.confirmed),
        ("routed", "Messages that came into queues", queues.enqueued),
        ("unroutable_returned", "Mandatory messages returned as unroutable", traffic.returned),
        ("unroutable_dropped", "Messages dropped as unroutable", traffic.dropped),
        ("get_empty", "Times basic.get found no message", traffic.get_empty),
        ("delivered", "Messages delivered to consumers", delivered),
        ("delivered_consume_manual_ack", "Delivered with basic.consume, to be acknowledged", queues.delivered),
        ("delivered_consume_auto_ack", "Delivered with basic.consume, not acknowledged", queues.delivered_no_ack),
        ("delivered_get_manual_ack", "Delivered with basic.get, to be acknowledged", queues.got),
        ("delivered_get_auto_ack", "Delivered with basic.get, not acknowledged", queues.got_no_ack),
        ("redelivered", "Messages delivered again", queues.redelivered),
        ("acknowledged", "Messages acknowledged by consumers", queues.accepted),
    ):
        out.family(f"rabbitmq_global_messages_{name}_total", "counter", help, [(PROTOCOL, value)])
    for name, help, value in (
        ("messages_refused", "Publishes that a full queue did not take", queues.refused),
        ("messages_duplicate", "Publishes whose message id a queue had seen before", queues.duplicates),
        ("messages_dead_lettered", "Messages sent to dead-letter exchanges", queues.dead_lettered),
        ("messages_unwritable", "Dead letters that could not be written, and were dropped", queues.unwritable),
        ("messages_rejected", "Messages rejected for good", queues.rejected),
        ("messages_expired", "Messages whose time was over", queues.expired),
        ("messages_evicted", "Messages dropped because a queue was too long", queues.evicted),
        ("messages_replaced", "Messages replaced by a newer value", queues.replaced),
        ("messages_exhausted", "Messages given back more often than allowed", queues.exhausted),
        ("messages_purged", "Messages purged", queues.purged),
        ("messages_lost", "Messages that the disk did not give back", queues.lost),
        ("audit_lines_lost", "Lines of the audit log that the disk did not take", context.broker.audit.lost),
        ("connections_accepted", "Connections since the start", context.amqp.accepted),
        ("connections_turned_away", "Connections that were too many", context.amqp.turned_away),
    ):
        out.one(f"coterie_{name}_total", "counter", help, value)
