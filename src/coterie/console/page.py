"""The page at /: how the node is, with links to the API. It needs nothing from anywhere else."""

from __future__ import annotations

import html

from aiohttp import web

from coterie import __version__
from coterie.console.ask import Ask

LINKS = (
    "overview", "nodes", "connections", "channels", "consumers", "exchanges", "queues", "bindings", "vhosts", "users",
    "permissions", "policies", "definitions", "health/checks/alarms",
)  # fmt: skip
STYLE = (
    "body{font:16px system-ui,sans-serif;margin:3rem auto;max-width:48rem;padding:0 1rem;color:#222;background:#fff}"
    "td{padding:.15rem 1.5rem .15rem 0}td:first-child{color:#555}a{color:#0b57a4}li{margin:.2rem 0}"
    "@media(prefers-color-scheme:dark){body{color:#ddd;background:#161616}td:first-child{color:#aaa}a{color:#8ab8ff}}"
)


async def show(ask: Ask) -> web.Response:
    context, vhosts = ask.context, ask.visible()
    queues = [queue for vhost in vhosts for queue in vhost.queues.values()]
    connections = ask.connections()
    rows = [
        ("alarms", context.broker.blocked or "none"),
        ("connections", len(connections)),
        ("channels", sum(len(each.channels) for each in connections)),
        ("queues", len(queues)),
        ("consumers", sum(len(queue.consumers) for queue in queues)),
        ("messages ready", sum(queue.ready for queue in queues)),
        ("messages held by consumers", sum(queue.unacked for queue in queues)),
    ]
    cells = "".join(f"<tr><td>{name}</td><td>{html.escape(str(value))}</td></tr>" for name, value in rows)
    links = "".join(f'<li><a href="/api/{name}">/api/{name}</a></li>' for name in LINKS)
    text = (
        f'<!doctype html><html lang="en"><meta charset="utf-8"><title>Coterie</title><style>{STYLE}</style>'
        f"<h1>Coterie {__version__}</h1><p>Node <b>{html.escape(context.name)}</b>, "
        f"logged in as <b>{html.escape(ask.user.name)}</b>.</p><table>{cells}</table>"
        f'<h2>API</h2><ul>{links}<li><a href="/metrics">/metrics</a></li></ul></html>'
    )
    return web.Response(text=text, content_type="text/html")
