"""What RabbitMQ's tools ask a node before they use it: its extensions and feature flags."""

from __future__ import annotations

from typing import Final

from aiohttp import web

from coterie.console.ask import Ask, Route, answer, bad, nothing

FLAGS: Final = {
    "empty_basic_get_metric": "Count AMQP `basic.get` on empty queues in stats",
    "implicit_default_bindings": "Default bindings are implicit, instead of being stored",
    "quorum_queue": "Queues of type `quorum` may be declared; every queue of a cluster is replicated",
    "user_limits": "Connection and channel limits for a user",
}
"""What RabbitMQ has flags for, and this broker does. It has none of its own: nodes agree on what they speak."""


async def extensions(ask: Ask) -> web.Response:
    """Of RabbitMQ's page, which this is not."""
    return answer([])


async def feature_flags(ask: Ask) -> web.Response:
    shapes = (
        {"name": name, "desc": what, "doc_url": "", "state": "enabled", "stability": "stable", "provided_by": "coterie"}
        for name, what in FLAGS.items()
    )
    return await ask.listed(list(shapes), lambda shape: shape["name"], lambda shape: dict(shape))


async def enable(ask: Ask) -> web.Response:
    ask.require()
    if ask.part("name") not in FLAGS:
        raise bad("unsupported")
    return nothing()


ROUTES: list[Route] = [
    ("GET", "/api/extensions", extensions),
    ("GET", "/api/feature-flags", feature_flags),
    ("PUT", "/api/feature-flags/{name}/enable", enable),
]
