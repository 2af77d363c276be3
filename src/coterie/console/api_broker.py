"""The node as a whole: overview, nodes, who is asking, definitions."""

from __future__ import annotations

import platform

from aiohttp import web

from coterie import __version__
from coterie.broker.specs import EXCHANGE_KINDS
from coterie.broker.users import MONITORING
from coterie.console import audited, definitions
from coterie.console.ask import Ask, Route, answer, not_found
from coterie.console.context import OVERALL, read_counters
from coterie.console.listing import Shape
from coterie.console.shapes import COUNTED, counted, stats
from coterie.errors import CoterieError


async def overview(ask: Ask) -> web.Response:
    """Of everything to those who may look at everything; to others of their vhosts."""
    context, whole = ask.context, ask.has(MONITORING)
    vhosts = list(context.broker.vhosts.values()) if whole else ask.visible()
    queues = [queue for vhost in vhosts for queue in vhost.queues.values()]
    connections = ask.connections()
    ready = sum(queue.ready for queue in queues)
    total = sum(queue.count for queue in queues)
    shape: Shape = {
        "product_name": "Coterie", "product_version": __version__, "management_version": __version__,
        "node": context.name, "cluster_name": context.name, "rates_mode": "basic",
        "exchange_types": [{"name": kind, "enabled": True} for kind in EXCHANGE_KINDS],
        "object_totals": {
            "connections": len(connections), "channels": sum(len(each.channels) for each in connections),
            "exchanges": sum(len(vhost.exchanges) + 1 for vhost in vhosts), "queues": len(queues),
            "consumers": sum(len(queue.consumers) for queue in queues),
        },
        "queue_totals": {
            "messages": total, "messages_ready": ready, "messages_unacknowledged": total - ready,
            "message_bytes": sum(queue.bytes for queue in queues),
        },
        "message_stats": await (_overall(ask) if whole else _of_vhosts(ask)),
    }  # fmt: skip
    if whole:
        shape["listeners"] = _listeners(ask)
        shape["contexts"] = [{"node": context.name} | each for each in _contexts(ask)]
        shape["alarms"] = context.broker.shown_alarms
        shape["churn"] = {"connections_accepted": context.amqp.accepted, "turned_away": context.amqp.turned_away}
        publishing, opening = context.amqp.held_back()
        shape["held_back"] = {"publishing": publishing, "opening": opening}
    return answer(shape)


async def _overall(ask: Ask) -> Shape:
    context = ask.context
    reading = await context.overall()
    rates = context.samples.rates(context.runtime.now(), OVERALL, reading)
    queues, mine = len(COUNTED), reading[-1]
    published, confirmed, returned, empty = reading[queues : queues + 4]
    shape = counted(reading[:queues], rates[:queues])
    speed = rates[queues:]
    shape |= stats(
        ("publish", "confirm", "return_unroutable", "get_empty"),
        (published + mine, confirmed, returned, empty),
        (round(speed[0] + speed[-1], 2), speed[1], speed[2], speed[3]),
    )
    return shape


async def _of_vhosts(ask: Ask) -> Shape:
    """Counts of what went into queues and out of them; rates are kept for all vhosts together and for queues."""
    return dict(zip(COUNTED, read_counters(await ask.context.totals(ask.visible())), strict=True))


def _listeners(ask: Ask) -> list[Shape]:
    node = ask.context.name
    return [
        {"node": node, "protocol": "amqp", "ip_address": each.endpoint.host, "port": each.endpoint.port}
        for each in ask.context.amqp.listeners
    ]


def _contexts(ask: Ask) -> list[Shape]:
    """Where this API is, in RabbitMQ's words: some tools take a node's name from there."""
    return [
        {"description": "Coterie's HTTP API", "path": "/", "ip": at.host, "port": str(at.port)}
        for at in ask.context.listens
    ]


async def nodes(ask: Ask) -> web.Response:
    ask.require(MONITORING)
    return answer([await _node(ask)])


def _this_node(ask: Ask) -> None:
    """Each node knows itself alone."""
    ask.require(MONITORING)
    if ask.part("name") != ask.context.name:
        raise not_found(f"no node '{ask.part('name')}'")


async def one_node(ask: Ask) -> web.Response:
    _this_node(ask)
    return answer(await _node(ask))


async def memory(ask: Ask) -> web.Response:
    """By RabbitMQ's names where there is such a part; the total is what the operating system says."""
    _this_node(ask)
    context = ask.context
    used, connections = (await context.look()).memory or 0, context.connections()
    parts: Shape = {
        "binary": context.broker.resident, "queue_procs": context.broker.counted_memory - context.broker.resident,
        "connection_readers": sum(each.partial for each in connections),
        "connection_writers": sum(each.outbox.waiting for each in connections),
    }  # fmt: skip
    return answer({"memory": parts | {"strategy": "rss", "total": {"rss": used, "allocated": used, "erlang": used}}})


async def _node(ask: Ask) -> Shape:
    context = ask.context
    process, broker = await context.look(), context.broker
    return {
        "name": context.name, "type": "disc" if context.store.durable else "ram", "running": True,
        "uptime": int((context.runtime.wall() - context.started) * 1000),
        "mem_used": process.memory, "mem_alarm": broker.alarms.get("memory", False),
        "mem_limit": broker.settings.memory_high, "message_bytes_ram": broker.resident,
        "mem_counted": broker.counted_memory, "mem_process_limit": broker.process_limit,
        "disk_free": process.disk_free, "disk_free_alarm": broker.alarms.get("disk", False),
        "fd_used": process.descriptors, "fd_total": process.descriptors_max,
        "sockets_used": len(context.amqp.connections), "python_version": platform.python_version(),
        "event_loop_lag": round(context.lag.last, 6), "data": None if context.data is None else str(context.data),
        "applications": [{"name": "coterie", "version": __version__}], "listeners": _listeners(ask),
        "contexts": _contexts(ask),
    }  # fmt: skip


async def whoami(ask: Ask) -> web.Response:
    return answer({"name": ask.user.name, "tags": list(ask.user.tags)})


async def cluster_name(ask: Ask) -> web.Response:
    return answer({"name": ask.context.name})


# Definitions.


async def export(ask: Ask) -> web.Response:
    ask.require()
    vhost = ask.vhost() if "vhost" in ask.request.match_info else None
    return answer(definitions.export(ask.context, vhost))


async def load(ask: Ask) -> web.Response:
    ask.require()
    vhost = ask.vhost() if "vhost" in ask.request.match_info else None
    plan = definitions.check(ask.context, await ask.body(long=True), None if vhost is None else vhost.name)
    try:
        done = await plan.apply(ask.context)
    except CoterieError as error:
        audited.imported(ask, plan, str(error))
        raise
    audited.imported(ask, plan)
    return answer({"done": done, "notes": plan.notes})


ROUTES: list[Route] = [
    ("GET", "/api/overview", overview),
    ("GET", "/api/nodes", nodes),
    ("GET", "/api/nodes/{name}", one_node),
    ("GET", "/api/nodes/{name}/memory", memory),
    ("GET", "/api/whoami", whoami),
    ("GET", "/api/cluster-name", cluster_name),
    ("GET", "/api/definitions", export),
    ("POST", "/api/definitions", load),
    ("GET", "/api/definitions/{vhost}", export),
    ("POST", "/api/definitions/{vhost}", load),
]
