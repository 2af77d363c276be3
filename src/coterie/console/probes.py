"""What an orchestrator asks before it sends clients to a node, or restarts it: two paths that need no user.

They tell no more than a client learns that tries to connect.
"""

from __future__ import annotations

from aiohttp import web

from coterie.console.ask import answer
from coterie.console.context import Context


def why_not_ready(context: Context) -> str:
    """Why AMQP clients cannot come in now; nothing: they can. An alarm is no reason: consumers go on, and end it."""
    if not context.amqp.listeners:
        return "the node does not listen for AMQP: it is stopping, or was drained"
    return context.amqp.unavailable()


def live(context: Context) -> web.Response:
    """Whoever answers lives."""
    return answer({"status": "ok"})


def ready(context: Context) -> web.Response:
    why = why_not_ready(context)
    return answer({"status": "failed", "reason": why}, 503) if why else answer({"status": "ok"})


PROBES = (("/health/live", live), ("/health/ready", ready))
