"""/metrics: what RabbitMQ's exporter tells, by its names where the meaning is the same; our own begin with coterie_.

Totals never fall: what deleted queues and closed connections have counted stays in them. `/metrics` has a number of
series that does not depend on what clients do; `/metrics/per-object` has some for each queue, connection and channel.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import Final

from coterie import __version__
from coterie.amqp.channel import Channel
from coterie.amqp.connection import Connection
from coterie.broker.leases import Lease
from coterie.broker.log_store import LogStore
from coterie.broker.queue import Queue
from coterie.cluster.member import Member
from coterie.cluster.status import CATCHING_UP, IN_STEP, JOINING, LOST
from coterie.console.context import Context, sliced
from coterie.console.exposition import Exposition, Kind, Labels, Number, labelled
from coterie.console.metrics_totals import limits, objects, went_through
from coterie.site_replication.link import LinkStatus

CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"

QUEUE_GAUGES: Final[Sequence[tuple[str, str, Callable[[Queue], int]]]] = (
    ("messages_ready", "Messages ready to be delivered to consumers", lambda queue: queue.ready),
    ("messages_unacked", "Messages delivered to consumers but not yet acknowledged", lambda queue: queue.unacked),
    ("messages", "Sum of ready and unacknowledged messages", lambda queue: queue.count),
    ("messages_ready_bytes", "Size in bytes of ready messages", lambda queue: queue.ready_bytes),
    ("messages_unacked_bytes", "Size in bytes of all unacknowledged messages", lambda q: q.bytes - q.ready_bytes),
    ("messages_bytes", "Size in bytes of ready and unacknowledged messages", lambda queue: queue.bytes),
    ("messages_ram_bytes", "Size in bytes of messages in memory", lambda queue: queue.pager.resident),
    ("messages_paged_out", "Messages that are on disk only", lambda queue: queue.pager.paged),
    ("messages_leased", "Messages that named leases hold", lambda queue: queue.leases.count),
    ("consumers", "Consumers on a queue", lambda queue: len(queue.consumers)),
)
OWN_GAUGES: Final = frozenset({"messages_paged_out", "messages_leased"})
"""Of these, RabbitMQ has none."""
QUEUE_COUNTERS: Final = (
    ("rabbitmq_queue_messages_published_total", "Messages that came into a queue", "enqueued"),
    ("rabbitmq_queue_messages_delivered_ack_total", "Delivered to consumers that acknowledge", "delivered"),
    ("rabbitmq_queue_messages_delivered_total", "Delivered to consumers that do not acknowledge", "delivered_no_ack"),
    ("rabbitmq_queue_messages_redelivered_total", "Delivered again", "redelivered"),
    ("rabbitmq_queue_messages_acked_total", "Acknowledged", "accepted"),
    ("rabbitmq_queue_get_ack_total", "Got with basic.get, to be acknowledged", "got"),
    ("rabbitmq_queue_get_total", "Got with basic.get, without acknowledgement", "got_no_ack"),
    ("coterie_queue_messages_rejected_total", "Rejected for good", "rejected"),
    ("coterie_queue_messages_expired_total", "Whose time was over", "expired"),
    ("coterie_queue_messages_evicted_total", "Dropped because the queue was too long", "evicted"),
    ("coterie_queue_messages_refused_total", "Not taken because the queue was full", "refused"),
    ("coterie_queue_messages_duplicate_total", "Dropped because their message id was seen before", "duplicates"),
    ("coterie_queue_messages_dead_lettered_total", "Sent to the dead-letter exchange", "dead_lettered"),
    ("coterie_queue_messages_unwritable_total", "Dead letters that could not be written", "unwritable"),
)
"""Per queue: the metric, what it is, and the queue's counter."""
TRAFFIC: Final = (
    ("rabbitmq_channel_messages_published_total", "Published on a channel", "published"),
    ("rabbitmq_channel_messages_confirmed_total", "Confirmed on a channel", "confirmed"),
    ("rabbitmq_channel_messages_unroutable_returned_total", "Returned as unroutable", "returned"),
    ("rabbitmq_channel_messages_unroutable_dropped_total", "Dropped as unroutable", "dropped"),
    ("rabbitmq_channel_get_empty_total", "basic.get that found nothing", "get_empty"),
    ("rabbitmq_channel_messages_acked_total", "Acknowledged on a channel", "acked"),
    ("rabbitmq_channel_messages_delivered_ack_total", "Delivered to consumers that acknowledge", "delivered"),
    ("rabbitmq_channel_messages_delivered_total", "Delivered to consumers that do not acknowledge", "delivered_no_ack"),
    ("rabbitmq_channel_messages_redelivered_total", "Delivered again", "redelivered"),
    ("rabbitmq_channel_get_ack_total", "Got with basic.get, to be acknowledged", "got"),
    ("rabbitmq_channel_get_total", "Got with basic.get, without acknowledgement", "got_no_ack"),
)
CHANNEL_GAUGES: Final[Sequence[tuple[str, str, Callable[[Channel], int]]]] = (
    ("consumers", "Consumers on a channel", lambda channel: len(channel.consumers)),
    ("messages_unacked", "Delivered and not acknowledged yet", lambda channel: channel.deliveries.count),
    ("messages_unconfirmed", "Published and not confirmed yet", lambda channel: channel.unconfirmed),
    ("messages_uncommitted", "Published in a transaction that goes on", lambda channel: channel.uncommitted),
)


LINK_METRICS: Final[Sequence[tuple[str, Kind, str, Callable[[LinkStatus], int]]]] = (
    (
        "running",
        "gauge",
        "is 1 while this node runs the link and it is connected",
        lambda each: int(each.state == "running"),
    ),
    ("down", "gauge", "is 1 while this node should run the link and cannot", lambda each: int(each.state == "waiting")),
    ("messages_behind", "gauge", "Messages that the other side may not have", lambda each: each.behind),
    ("messages_sent_total", "counter", "Messages that this node has sent", lambda each: each.messages),
    ("removals_sent_total", "counter", "Ranges of positions that it has told as gone", lambda each: each.removals),
)


async def collect(context: Context, per_object: bool) -> str:
    """The whole text."""
    out = Exposition()
    process = await context.look()
    broker = context.broker
    out.family(
        "rabbitmq_build_info", "gauge", "Version info",
        [({"rabbitmq_version": __version__, "product_name": "Coterie", "product_version": __version__}, 1)],
    )  # fmt: skip
    # Dashboards choose a cluster by this, so its nodes must say the same.
    cluster = context.name if context.member is None else context.member.status().cluster or context.name
    out.family(
        "rabbitmq_identity_info", "gauge", "Node & cluster identity info",
        [({"rabbitmq_node": context.name, "rabbitmq_cluster": cluster, "rabbitmq_cluster_permanent_id": cluster}, 1)],
    )  # fmt: skip
    out.one("rabbitmq_process_open_fds", "gauge", "Open file descriptors", process.descriptors)
    out.one("rabbitmq_process_max_fds", "gauge", "Open file descriptors limit", process.descriptors_max)
    out.one("rabbitmq_process_resident_memory_bytes", "gauge", "Memory used in bytes", process.memory)
    out.one("rabbitmq_disk_space_available_bytes", "gauge", "Disk space available in bytes", process.disk_free)
    for alarm, name, what in (
        ("memory", "rabbitmq_alarms_memory_used_watermark", "is 1 while too many messages are in memory"),
        ("disk", "rabbitmq_alarms_free_disk_space_watermark", "is 1 while the disk is full or too slow"),
    ):
        out.one(name, "gauge", what, int(broker.alarms.get(alarm, False)))
    limits(context, process, out)
    objects(context, out)
    totals = await context.totals()
    went_through(context, totals, out)
    _own(context, out)
    if per_object:
        await _each(context, out)
    else:
        sums = [0] * len(QUEUE_GAUGES)
        async for queue in sliced(context.queues()):
            for at, (_, _, read) in enumerate(QUEUE_GAUGES):
                sums[at] += read(queue)
        for (name, help, _), value in zip(QUEUE_GAUGES, sums, strict=True):
            out.one(_queue_metric(name), "gauge", help, value)
        for metric, help, counter in QUEUE_COUNTERS:
            out.one(metric, "counter", help, getattr(totals, counter))
        traffic = context.amqp.traffic
        for metric, help, name in TRAFFIC:
            out.one(metric, "counter", help, getattr(traffic, name))
        channels = context.channels()
        for name, help, of_channel in CHANNEL_GAUGES:
            out.one(f"rabbitmq_channel_{name}", "gauge", help, sum(map(of_channel, channels)))
    return out.text()


def _own(context: Context, out: Exposition) -> None:
    uptime = context.runtime.wall() - context.started
    out.one("coterie_uptime_seconds", "gauge", "Time since the console started", max(0.0, uptime))
    out.one("coterie_message_bytes_ram", "gauge", "Bodies held in memory", context.broker.resident)
    out.durations("coterie_event_loop_lag_seconds", "How late the event loop was", context.lag)
    links = [] if context.links is None else [link.status() for link in context.links.links]
    for name, kind, help, read in LINK_METRICS:
        out.family(f"coterie_replication_{name}", kind, help, (({"to": link.to}, read(link)) for link in links))
    if context.member is not None:
        _cluster(context.member, out)
    store = context.store
    if isinstance(store, LogStore):
        writer = store.writer
        out.durations("coterie_store_sync_seconds", "How long syncs of the log took", writer.sync_times)
        out.one("coterie_store_appends_total", "counter", "Appends to the log", writer.appends)
        out.one("coterie_store_unsynced_bytes", "gauge", "Bytes told to the store and not synced yet", writer.unsynced)
        segments = list(store.current.log.segments.list)
        out.one("coterie_store_segments", "gauge", "Segments of the log", len(segments))
        out.one("coterie_store_bytes", "gauge", "Size of the log on disk", sum(each.size for each in segments))


def _cluster(member: Member, out: Exposition) -> None:
    """As this node sees it. Whoever is not in step itself does not know who is."""
    status = member.status()
    states = Counter(member.state for member in status.members)
    for name, help, value in (
        ("serves", "is 1 while clients may come in: this node is in step, or catches up, and a majority is there",
         int(member.replica.serves and not status.why)),
        ("voters", "Members whose majority decides", len(status.voters)),
        ("voters_lost", "Voters that are not in the view", sum(m.voter and m.state == LOST for m in status.members)),
        ("members", "Members of this node's view", sum(m.incarnation is not None for m in status.members)),
        ("members_in_step", "Members that have what the log says", states[IN_STEP]),
        ("members_behind", "Members that join, or catch up", states[JOINING] + states[CATCHING_UP]),
        ("log_index", "Events of the log that this node has applied", status.index),
        ("void_events", "Events of the log that no node could carry out, as far as this one has followed it",
         status.voids),
        ("shared_index", "The last event up to which a majority of the voters has made the same of the log",
         status.shared),
        ("divergences", "Members found to have made another state of the log, since this node was started",
         status.divergences),
        ("kept_stores", "Stores of this node that were not right, and are kept for a look", len(status.kept_stores)),
    ):  # fmt: skip
        out.one(f"coterie_cluster_{name}", "gauge", help, value)
    alarms = [({"member": member.name, "alarm": each}, 1) for member in status.members for each in member.alarms]
    out.family("coterie_cluster_alarm", "gauge", "is 1 for each alarm of a member: publishers wait everywhere", alarms)
    out.one("rabbitmq_raft_term_total", "counter", "Epoch of the cluster's log", status.epoch)
    for name, help, index in (
        ("commit", "Events of the cluster's log that are decided, as far as this node knows", status.index),
        ("last_applied", "Events of the log that this node has applied", status.index),
        ("last_written", "Events of the log that this node has on disk", status.disk),
    ):
        out.one(f"rabbitmq_raft_log_{name}_index", "gauge", help, index)


def _queue_metric(name: str) -> str:
    return f"{'coterie' if name in OWN_GAUGES else 'rabbitmq'}_queue_{name}"


LEASE_GAUGES: Final[Sequence[tuple[str, str, Callable[[Lease], Number]]]] = (
    ("lag", "Messages that the reader of a lease has not retired: those that it holds, and those that are ready",
     lambda lease: lease.lag),
    ("messages", "Messages that a lease holds", lambda lease: lease.count),
    ("idle_seconds", "Time since a lease was used, as far as this node knows", lambda lease: int(lease.idle)),
)  # fmt: skip


async def _each(context: Context, out: Exposition) -> None:
    queues = [
        (queue, labelled({"vhost": queue.vhost.name, "queue": queue.name})) async for queue in sliced(context.queues())
    ]
    for name, help, read in QUEUE_GAUGES:
        out.family(_queue_metric(name), "gauge", help, ((labels, read(queue)) for queue, labels in queues))
        await asyncio.sleep(0)
    for metric, help, counter in QUEUE_COUNTERS:
        samples = ((labels, getattr(queue.counters, counter)) for queue, labels in queues)
        out.family(metric, "counter", help, samples)
        await asyncio.sleep(0)
    leases = [
        (lease, labelled({"vhost": queue.vhost.name, "queue": queue.name, "lease": lease.name}))
        async for queue in sliced(context.queues())
        for lease in queue.leases
    ]
    for name, help, measure in LEASE_GAUGES:
        out.family(f"coterie_lease_{name}", "gauge", help, ((labels, measure(lease)) for lease, labels in leases))
    _of_connections(context.connections(), out)
    _of_channels(context.channels(), out)


def _of_connections(connections: list[Connection], out: Exposition) -> None:
    def each(read: Callable[[Connection], Number]) -> Iterable[tuple[Labels, Number]]:
        return (({"connection": c.name, "vhost": c.vhost.name, "user": c.user.name}, read(c)) for c in connections)

    received = each(lambda connection: connection.received_bytes)
    out.family("rabbitmq_connection_incoming_bytes_total", "counter", "Bytes received on a connection", received)
    sent = each(lambda connection: connection.sent_bytes)
    out.family("rabbitmq_connection_outgoing_bytes_total", "counter", "Bytes sent on a connection", sent)
    channels = each(lambda connection: len(connection.channels))
    out.family("rabbitmq_connection_channels", "gauge", "Channels on a connection", channels)


def _of_channels(channels: list[Channel], out: Exposition) -> None:
    def each(read: Callable[[Channel], Number]) -> Iterable[tuple[Labels, Number]]:
        return (({"channel": channel.name}, read(channel)) for channel in channels)

    for name, help, read in CHANNEL_GAUGES:
        out.family(f"rabbitmq_channel_{name}", "gauge", help, each(read))
    prefetch = each(lambda channel: channel.prefetch_all)
    out.family("rabbitmq_channel_prefetch", "gauge", "Limit of all consumers on a channel together", prefetch)
    for metric, help, field in TRAFFIC:
        samples = [(labels, getattr(channel.traffic, field)) for channel, labels in _labelled(channels)]
        out.family(metric, "counter", help, samples)


def _labelled(channels: list[Channel]) -> Iterable[tuple[Channel, Labels]]:
    return ((channel, {"channel": channel.name}) for channel in channels)
