"""The node as a whole: overview, nodes, who is asking, health checks, definitions."""

from __future__ import annotations

import asyncio
import platform
from collections.abc import Mapping, Sequence

from aiohttp import web

from coterie import __version__
from coterie.broker.specs import EXCHANGE_KINDS
from coterie.console import definitions
from coterie.console.ask import MONITORING, Ask, Refused, Route, answer, not_found
from coterie.console.context import OVERALL, Process, look_at_process, read_counters
from coterie.console.listing import Shape
from coterie.console.shapes import COUNTED, counted, stats


async def overview(ask: Ask) -> web.Response:
    """Of everything to those who may look at everything; to others of their vhosts."""
    context, whole = ask.context, ask.has(MONITORING)
    vhosts = list(context.broker.vhosts.values()) if whole else ask.visible()
    queues = [queue for vhost in vhosts for queue in vhost.queues.values()]
    connections = ask.connections()
    ready = sum(queue.ready for queue in queues)
    total = sum(len(queue.entries) for queue in queues)
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
        shape["alarms"] = context.broker.shown_alarms
        shape["churn"] = {"connections_accepted": context.amqp.accepted, "turned_away": context.amqp.turned_away}
    return answer(shape)


async def _overall(ask: Ask) -> Shape:
    context = ask.context
    reading = await context.overall()
    rates = context.samples.rates(context.runtime.now(), OVERALL, reading)
    queues, (published, confirmed, returned, _, _, empty, _), (mine,) = (
        len(COUNTED), reading[len(COUNTED) : -1], reading[-1:]
    )  # fmt: skip
    shape = counted(reading[:queues], rates[:queues])
    speed = rates[queues:]
    shape |= stats(
        ("publish", "confirm", "return_unroutable", "get_empty"),
        (published + mine, confirmed, returned, empty),
        (round(speed[0] + speed[-1], 2), speed[1], speed[2], speed[5]),
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


async def nodes(ask: Ask) -> web.Response:
    ask.require(MONITORING)
    return answer([await _node(ask)])


async def one_node(ask: Ask) -> web.Response:
    ask.require(MONITORING)
    if ask.part("name") != ask.context.name:
        raise not_found(f"no node '{ask.part('name')}'")
    return answer(await _node(ask))


async def _node(ask: Ask) -> Shape:
    context = ask.context
    process: Process = await asyncio.get_running_loop().run_in_executor(None, look_at_process, context.data)
    broker = context.broker
    return {
        "name": context.name, "type": "disc" if context.store.durable else "ram", "running": True,
        "uptime": int((context.runtime.wall() - context.started) * 1000),
        "mem_used": process.memory, "mem_alarm": broker.alarms.get("memory", False),
        "mem_limit": broker.settings.memory_high, "message_bytes_ram": broker.resident,
        "disk_free": process.disk_free, "disk_free_alarm": broker.alarms.get("disk", False),
        "fd_used": process.descriptors, "fd_total": process.descriptors_max,
        "sockets_used": len(context.amqp.connections), "python_version": platform.python_version(),
        "event_loop_lag": round(context.lag.last, 6), "data": None if context.data is None else str(context.data),
        "applications": [{"name": "coterie", "version": __version__}], "listeners": _listeners(ask),
    }  # fmt: skip


async def whoami(ask: Ask) -> web.Response:
    return answer({"name": ask.user.name, "tags": list(ask.user.tags)})


async def cluster_name(ask: Ask) -> web.Response:
    return answer({"name": ask.context.name})


# Health checks: 200 and {"status": "ok"}, or 503 with the reason.


async def alarms(ask: Ask) -> web.Response:
    """Of all brokers of the cluster: they count here, too."""
    broker = ask.context.broker
    found = {ask.context.name: broker.alarms_on, **broker.alarms_elsewhere}
    return _alarms(found, broker.blocked)


async def local_alarms(ask: Ask) -> web.Response:
    on = ask.context.broker.alarms_on
    return _alarms({ask.context.name: on}, f"low on {' and '.join(on)}")


def _alarms(found: Mapping[str, Sequence[str]], reason: str) -> web.Response:
    shapes = [{"node": node, "resource": name} for node, on in sorted(found.items()) for name in on]
    if not shapes:
        return answer({"status": "ok"})
    return answer({"status": "failed", "reason": reason, "alarms": shapes}, 503)


async def port_listener(ask: Ask) -> web.Response:
    text = ask.part("port")
    if not text.isdecimal() or not 0 < int(text) < 65536:
        raise Refused(400, "bad_request", f"'{text[:20]}' is no port")
    ports = [listener.endpoint.port for listener in ask.context.amqp.listeners]
    if int(text) in ports:
        return answer({"status": "ok", "port": int(text)})
    return answer({"status": "failed", "reason": "No active listener", "missing": int(text), "ports": ports}, 503)


async def protocol_listener(ask: Ask) -> web.Response:
    name = ask.part("protocol")
    if name in ("amqp", "amqp091", "amqp0-9-1") and ask.context.amqp.listeners:
        return answer({"status": "ok", "protocol": name})
    return answer({"status": "failed", "reason": "No active listener", "missing": name, "protocols": ["amqp"]}, 503)


async def virtual_hosts(ask: Ask) -> web.Response:
    """Those that are there run."""
    return answer({"status": "ok"})


# Definitions.


async def export(ask: Ask) -> web.Response:
    ask.require()
    vhost = ask.vhost() if "vhost" in ask.request.match_info else None
    return answer(definitions.export(ask.context, vhost))


async def load(ask: Ask) -> web.Response:
    ask.require()
    vhost = ask.vhost() if "vhost" in ask.request.match_info else None
    plan = definitions.check(ask.context, await ask.body(), None if vhost is None else vhost.name)
    done = await plan.apply(ask.context)
    return answer({"done": done, "notes": plan.notes})


CHECKS = "/api/health/checks"
ROUTES: list[Route] = [
    ("GET", "/api/overview", overview),
    ("GET", "/api/nodes", nodes),
    ("GET", "/api/nodes/{name}", one_node),
    ("GET", "/api/whoami", whoami),
    ("GET", "/api/cluster-name", cluster_name),
    ("GET", f"{CHECKS}/alarms", alarms),
    ("GET", f"{CHECKS}/local-alarms", local_alarms),
    ("GET", f"{CHECKS}/port-listener/{{port}}", port_listener),
    ("GET", f"{CHECKS}/protocol-listener/{{protocol}}", protocol_listener),
    ("GET", f"{CHECKS}/virtual-hosts", virtual_hosts),
    ("GET", "/api/definitions", export),
    ("POST", "/api/definitions", load),
    ("GET", "/api/definitions/{vhost}", export),
    ("POST", "/api/definitions/{vhost}", load),
]
