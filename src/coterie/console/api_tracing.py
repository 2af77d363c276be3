"""Trace events as messages: whether this node publishes its own, and the switch for that."""

from __future__ import annotations

from aiohttp import web

from coterie.broker.own_exchange import VHOST
from coterie.broker.trace_exchange import EXCHANGE
from coterie.broker.users import MONITORING
from coterie.console.ask import Ask, Refused, Route, answer, bad
from coterie.console.listing import Shape


def _told(ask: Ask) -> Shape:
    events, name = ask.context.events, ask.context.name
    if events is None:
        return {"node": name, "tracing": False, "publishing": False}
    return {
        "node": name, "tracing": True, "publishing": events.on, "vhost": VHOST, "exchange": EXCHANGE,
        "published": events.published, "dropped": events.dropped, "held_bytes": events.held,
    }  # fmt: skip


async def show(ask: Ask) -> web.Response:
    ask.require(MONITORING)
    return answer(_told(ask))


async def switch(ask: Ask) -> web.Response:
    ask.require()
    wanted = (await ask.body()).get("publishing")
    if not isinstance(wanted, bool):
        raise bad("publishing: true or false is due")
    events = ask.context.events
    if events is None:
        raise Refused(409, "conflict", "this node does not trace: start it with node.trace_publish = later, or now")
    events.on = wanted
    return answer(_told(ask))


ROUTES: list[Route] = [("GET", "/api/tracing", show), ("PUT", "/api/tracing", switch)]
