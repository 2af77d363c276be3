"""What is unsafe about this node, for administrators: `coterie doctor` asks."""

from __future__ import annotations

import asyncio

from aiohttp import web

from coterie.console.ask import Ask, Route, answer
from coterie.node.security_checks import UNSAFE, findings
from coterie.node.security_facts import with_guesses


async def show(ask: Ask) -> web.Response:
    ask.require()
    security = ask.context.security
    assert security is not None
    loop = asyncio.get_running_loop()
    facts = await security()
    # Hashing takes its time: users are noted now, and passwords tried off the loop.
    users = [*ask.context.users]
    found = findings(await loop.run_in_executor(None, with_guesses, facts, users))
    safe = all(each.severity != UNSAFE for each in found)
    return answer({"node": ask.context.name, "safe": safe, "findings": [each.to_json() for each in found]})


ROUTES: list[Route] = [("GET", "/api/security", show)]
