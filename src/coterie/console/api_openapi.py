"""GET /api/openapi.json: this API, described for machines. It asks for a login, like every path below /api/: before
one, a node says nothing of itself, and sends nothing long to whoever asks again and again."""

from __future__ import annotations

import hashlib

from aiohttp import web

from coterie.console.ask import Ask, Route
from coterie.console.assets import names_tag
from coterie.console.openapi.document import as_text

PATH = "/api/openapi.json"


async def show(ask: Ask) -> web.Response:
    text = as_text(ask.context.sessions.cookie)
    tag = f'"{hashlib.sha256(text.encode()).hexdigest()[:20]}"'
    headers = {"ETag": tag, "Cache-Control": "no-cache"}
    if names_tag(ask.request, tag):
        return web.Response(status=304, headers=headers)
    return web.Response(text=text, headers=headers, content_type="application/json")


ROUTES: list[Route] = [("GET", PATH, show)]
