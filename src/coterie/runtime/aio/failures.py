"""Where unexpected exceptions end: in the log, with their traceback, under the logger "coterie". Nothing is lost."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from typing import Any

log = logging.getLogger("coterie.runtime")


def report(where: str, error: BaseException) -> None:
    """Log an exception that nobody else will see."""
    log.error("%s: %s: %s", where, type(error).__name__, error, exc_info=error)


def guarded(where: str, call: Callable[..., object], *args: object) -> bool:
    """Call, and report what it raises; False if it did."""
    try:
        call(*args)
    except Exception as error:
        report(where, error)
        return False
    return True


def watch(loop: asyncio.AbstractEventLoop) -> None:
    """Log what callbacks raise and what failed tasks leave unretrieved, unless the application has its own handler."""
    if loop.get_exception_handler() is None:
        loop.set_exception_handler(_unhandled)


async def end(where: str, tasks: Sequence[asyncio.Task[Any]]) -> None:
    """Cancel tasks and wait for them; what they raise instead of ending quietly is reported."""
    for task in tasks:
        task.cancel()
    for outcome in await asyncio.gather(*tasks, return_exceptions=True):
        if isinstance(outcome, Exception):
            report(where, outcome)


def _unhandled(_: asyncio.AbstractEventLoop, context: dict[str, object]) -> None:
    error = context.get("exception")
    message = str(context.get("message", "unhandled exception"))
    if isinstance(error, BaseException):
        report(message, error)
    else:
        log.error("%s", message)
