"""Heartbeats: after half the agreed time without a word a frame is sent; after twice of it without one, the peer is
gone.

Any traffic counts, as with RabbitMQ. While this side does not read (an alarm, back-pressure) the peer's silence means
nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from coterie.amqp.wire.codes import FRAME_HEARTBEAT
from coterie.runtime.base import Runtime, Timer

HEARTBEAT: Final = bytes((FRAME_HEARTBEAT, 0, 0, 0, 0, 0, 0, 0xCE))
SILENT_MAX: Final = 4
"""Half intervals."""


class Heartbeat:
    """Of one connection, from its opening to its end."""

    def __init__(self, runtime: Runtime, seconds: int, tick: Callable[[], bool], dead: Callable[[], None]) -> None:
        self._runtime = runtime
        self._half = seconds / 2
        self._tick = tick
        """Sends a frame if need be; True: the peer was heard since the last time, or could not be."""
        self._dead = dead
        self._silent = 0
        self._timer: Timer | None = runtime.call_later(self._half, self._beat) if seconds else None

    def _beat(self) -> None:
        self._timer = self._runtime.call_later(self._half, self._beat)
        self._silent = 0 if self._tick() else self._silent + 1
        if self._silent >= SILENT_MAX:
            self.stop()
            self._dead()

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
