"""What a connection writes: gathered during one turn of the loop, then one join and one write for all of it.

What a slow client does not take waits in the stream; above a limit the connection is *congested*, and nothing is
delivered to it until half of that has gone. Answers and confirms are still written: they are bounded by what the
client asked for.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from coterie.runtime.base import Runtime, Stream, Timer

CHUNK: Final = 256 << 10
"""So much is written at once, even if the turn goes on: that is when congestion is noticed."""
LARGE: Final = 16 << 10
"""Parts that are larger than this, on average, are not joined: copying them costs more than it saves."""
LOOK_AGAIN: Final = 0.05
"""Seconds between two looks at a congested stream, whose own marks may be others than ours."""


class Outbox:
    """`parts` may be appended to by whoever then calls `wrote`."""

    __slots__ = (
        "_high", "_look", "_pending", "_relieved", "_runtime", "_scheduled", "_stream", "congested", "parts", "said",
        "sent"
    )  # fmt: skip

    def __init__(self, runtime: Runtime, stream: Stream, high: int, relieved: Callable[[], None]) -> None:
        self._runtime = runtime
        self._stream = stream
        self._high = high
        self._relieved = relieved
        """Told when a congested client takes more again."""
        self._pending = 0
        self._scheduled = False
        self._look: Timer | None = None
        self.parts: list[bytes] = []
        self.sent = 0
        """Bytes written so far."""
        self.said = False
        """Something was written since somebody last looked."""
        self.congested = False

    @property
    def waiting(self) -> int:
        """Bytes that the client has not taken."""
        return self._pending + self._stream.buffered

    def write(self, frame: bytes) -> None:
        self.parts.append(frame)
        self.wrote(len(frame))

    def wrote(self, size: int) -> None:
        """So many bytes, about, were put into `parts`."""
        self._pending += size
        if not self._scheduled:
            self._scheduled = True
            self._runtime.call_soon(self._turn_over)
        if self._pending > CHUNK:
            self.flush()

    def _turn_over(self) -> None:
        self._scheduled = False
        self.flush()

    def flush(self) -> None:
        if not self.parts:
            return
        parts, self.parts = self.parts, []
        if self._pending < LARGE * len(parts):
            parts = [b"".join(parts)]
        self.sent += sum(map(len, parts))
        self._pending = 0
        self.said = True
        self._stream.write(parts)
        if self._stream.buffered > self._high and not self.congested:
            self.congested = True
            self._look = self._runtime.call_later(LOOK_AGAIN, self._look_again)

    def drained(self) -> None:
        """The stream says that it has room."""
        if self.congested and self._stream.buffered <= self._high // 2:
            self.congested = False
            self.stop()
            self._relieved()

    def _look_again(self) -> None:
        self._look = self._runtime.call_later(LOOK_AGAIN, self._look_again)
        self.drained()

    def stop(self) -> None:
        """No more looking."""
        if self._look is not None:
            self._look.cancel()
            self._look = None
