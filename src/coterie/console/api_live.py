"""What the page and `coterie top` ask again and again: how the node is, and what one looks at, in one answer.

    GET /api/live                     how the node is
    GET /api/live/queues?page=1       the same, as "live", and what /api/queues?page=1 answers, as "shown"

It costs what the list costs: totals, rates and latencies are those of the last sample.
"""

from __future__ import annotations

import json
from collections.abc import Sequence

from aiohttp import web

from coterie import __version__
from coterie.broker.users import MONITORING
from coterie.console.api_cluster import cluster_shape
from coterie.console.ask import Ask, Handler, Route, answer, bad
from coterie.console.history import COLUMNS, Totals
from coterie.console.listing import Shape

SHOWN = (
    "/api/queues", "/api/queues/{vhost}", "/api/queues/{vhost}/{name}", "/api/exchanges", "/api/bindings",
    "/api/connections", "/api/connections/{name}", "/api/channels", "/api/users", "/api/permissions", "/api/policies",
    "/api/operator-policies", "/api/vhosts", "/api/log",
)  # fmt: skip
"""What may stand beside it."""
_LATER = "since"
"""The parameter that says which moment was seen last."""


def live_shape(ask: Ask) -> Shape:
    context, whole = ask.context, ask.has(MONITORING)
    shape: Shape = {
        "node": context.name, "version": __version__, "now": context.runtime.wall(),
        "user": ask.user.name, "tags": list(ask.user.tags), "interval": context.settings.sample_interval,
        "uptime": int((context.runtime.wall() - context.started) * 1000),
        "closed": context.amqp.unavailable(), "blocked": context.broker.blocked or None,
        "alarms": context.broker.shown_alarms,
        "totals": totals_shape(context.history.totals if whole else _visible(ask)),
    }  # fmt: skip
    if whole:
        process = context.process
        shape["cluster"] = cluster_shape(context)
        shape["history"] = {"columns": list(COLUMNS), "rows": context.history.after(_since(ask))}
        shape["process"] = {
            "memory": process.memory, "descriptors": process.descriptors, "descriptors_max": process.descriptors_max,
            "disk_free": process.disk_free, "durable": context.store.durable, "resident": context.broker.resident,
            "memory_high": context.broker.settings.memory_high,
        }  # fmt: skip
        shape["last_line"] = context.logbook.last
        if context.links is not None:
            links = [link.status() for link in context.links.links]
            shape["links"] = [
                {"to": each.to, "vhost": each.vhost, "state": each.state, "why": each.why, "behind": each.behind}
                for each in links
            ]
    return shape


def totals_shape(totals: Totals) -> Shape:
    return {name: getattr(totals, name) for name in Totals.__slots__}


def _visible(ask: Ask) -> Totals:
    """Of one's own vhosts and connections, counted now."""
    vhosts, connections = ask.visible(), ask.connections()
    queues = [queue for vhost in vhosts for queue in vhost.queues.values()]
    return Totals(
        len(queues), sum(len(vhost.exchanges) + 1 for vhost in vhosts), sum(len(each.consumers) for each in queues),
        len(connections), sum(len(each.channels) for each in connections), sum(each.ready for each in queues),
        sum(each.unacked for each in queues), sum(each.bytes for each in queues),
    )  # fmt: skip


def _since(ask: Ask) -> int:
    text = ask.request.query.get(_LATER, "0")
    if not (text.isascii() and text.isdigit() and len(text) < 16):
        raise bad(f"'{_LATER}' must be a whole number")
    return int(text)


async def live(ask: Ask) -> web.Response:
    return answer(live_shape(ask))


def beside(handler: Handler) -> Handler:
    async def both(ask: Ask) -> web.StreamResponse:
        found = await handler(ask)
        assert isinstance(found, web.Response)
        # The list is text already, and may be long: it is not read to be written again.
        text = f'{{"live": {json.dumps(live_shape(ask))}, "shown": {found.text}}}'
        return web.Response(text=text, content_type="application/json")

    return both


def routes(others: Sequence[Route]) -> list[Route]:
    found = [(path, handler) for method, path, handler in others if method == "GET" and path in SHOWN]
    return [
        ("GET", "/api/live", live),
        *(("GET", f"/api/live{path.removeprefix('/api')}", beside(handler)) for path, handler in found),
    ]
