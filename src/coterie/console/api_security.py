"""What is unsafe about this node, for administrators: `coterie doctor` asks."""

from __future__ import annotations

from aiohttp import web

from coterie.console.ask import Ask, Route, answer


async def show(ask: Ask) -> web.Response:
    ask.require()
    report = ask.context.security_report
    assert report is not None
    return answer({"node": ask.context.name, **await report()})


ROUTES: list[Route] = [("GET", "/api/security", show)]
