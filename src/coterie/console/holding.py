"""Answers for readers of streams: only from a broker that may serve, and of what a majority holds."""

from __future__ import annotations

import asyncio

from coterie.console.ask import Refused
from coterie.console.context import Context


def unavailable(why: str) -> Refused:
    return Refused(503, "unavailable", f"{why}: ask again, or another node")


def check_serves(context: Context) -> None:
    why = context.broker.cluster.may_serve()
    if why:
        raise unavailable(f"this broker does not serve now: {why}")


async def held(context: Context) -> None:
    """Until a majority holds what has been applied here."""
    future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    context.broker.cluster.when_held(lambda: None if future.done() else future.set_result(None))
    try:
        await asyncio.wait_for(future, context.settings.stream_patience)
    except TimeoutError:
        raise unavailable("no majority holds yet what this broker has") from None
