"""Why a connection is not read for a while: whatever is slow behind it reaches the client's socket, and so the client.

The reasons are its own: `login`; `secret` (a new token is checked); `turn` (it is others' turn); `alarm` (the broker is
low on something, and it publishes); `publishes` (too much of what it published is not safe yet); `channel N` (too much
waits behind a command of that channel); `rate` (its user has published, or connected, too fast); `drain` (the node is
being drained, and answers what was asked before it lets the client go).
"""

from __future__ import annotations

from collections.abc import Callable

from coterie.amqp.wire.framing import FrameReader
from coterie.runtime.base import Runtime, Stream


class Throttle:
    """Of one connection, once its stream is connected."""

    def __init__(
        self, runtime: Runtime, stream: Stream, reader: FrameReader, window: int, catch_up: Callable[[], None]
    ) -> None:
        self.reasons: dict[str, None] = {}
        self._runtime = runtime
        self._stream = stream
        self._reader = reader
        self._window = window
        self._catch_up = catch_up
        """Works through what had come already when it was paused."""
        self._unsafe = 0
        """Bodies that were published and are not safe yet."""
        self._over = False

    def pause(self, why: str) -> None:
        """Read nothing more until every reason is gone."""
        if not self._over:
            if not self.reasons:
                self._reader.held = True
                self._stream.pause_reading()
            self.reasons[why] = None

    def resume(self, why: str) -> None:
        if self.reasons.pop(why, "") is None and not self.reasons:
            self._reader.release()
            self._runtime.call_soon(self._go_on)

    def _go_on(self) -> None:
        """Nothing more is read before all is worked through that had come: else what waits here would grow with each
        turn, up to all that the client has under way."""
        if not self.reasons and not self._over:
            self._catch_up()
        if not self.reasons and not self._over:
            self._stream.resume_reading()

    def unsafe(self, size: int) -> None:
        """So many bytes are on their way to where they are safe."""
        self._unsafe += size
        if self._unsafe > self._window:
            self.pause("publishes")

    def safe(self, size: int) -> None:
        self._unsafe -= size
        if "publishes" in self.reasons and self._unsafe <= self._window // 2:
            self.resume("publishes")

    def end(self) -> None:
        """Whatever it was is of no interest any more: only a close-ok is awaited."""
        self._over = True
        self.reasons.clear()
        self._reader.release()
        self._stream.resume_reading()
