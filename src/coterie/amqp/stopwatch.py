"""How long confirms take, of one batch of publishes now and then: timing all of them would cost each.

The console puts a stopwatch into the server a few times a second; the next batch that is to be confirmed takes it
along.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from coterie.durations import Durations
from coterie.runtime.base import Runtime

if TYPE_CHECKING:
    from coterie.amqp.server import Server


class Stopwatch:
    """For one batch: from when it was read until it is safe, and its confirm is written."""

    __slots__ = ("_durations", "_runtime")

    def __init__(self, runtime: Runtime, durations: Durations) -> None:
        self._runtime = runtime
        self._durations = durations

    def timed(self, server: Server, done: Callable[[], None]) -> Callable[[], None]:
        """What to call instead of `done`."""
        server.stopwatch = None
        began = self._runtime.now()

        def over() -> None:
            done()
            self._durations.add(self._runtime.now() - began)

        return over
