"""The bytes of one state, from its provider's iterator to its requester's application.

Promises: chunks arrive once, in order, unaltered; a provider is at most a window of chunks ahead of what the
requester's application has consumed, and keeps only what has not arrived: so memory is bounded on both sides,
whatever the state's size. The state is made as it is asked for. What is lost is sent again; while chunks get lost the
window is smaller.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from coterie.group.members import Address
from coterie.group.packet import AGAIN, RAW, Packet
from coterie.group.protocol import Protocol
from coterie.group.protocols.state_messages import Ack, Chunk, End
from coterie.group.receiver import StateInterrupted
from coterie.runtime.base import Buffer, Future

WINDOW_LEAST = 2
PATIENCE_MAX = 20
"""In resend intervals: the longest pause between two attempts to send a last chunk again."""


@dataclass(frozen=True, slots=True)
class Pace:
    """The settings that a stream needs."""

    chunk_size: int
    window: int
    resend_interval: float


def pieces(chunks: Iterable[Buffer], size: int) -> Iterator[bytes]:
    """The same bytes in pieces of that size. What is not needed yet of a chunk is copied: it may be reused."""
    gathered: list[Buffer] = []
    have = 0
    for chunk in chunks:
        view = memoryview(chunk).cast("B")
        at = 0
        while have + len(view) - at >= size:
            end = at + size - have
            yield b"".join((*gathered, view[at:end]))
            gathered.clear()
            at, have = end, 0
        if at < len(view):
            gathered.append(bytes(view[at:]))
            have += len(view) - at
    if have:
        yield b"".join(gathered)


def size_of(chunks: Iterable[Buffer]) -> int | None:
    """How large the state is, if that can be told without making it."""
    return sum(memoryview(chunk).nbytes for chunk in chunks) if isinstance(chunks, list | tuple) else None


class Unacked:
    """A chunk that has not arrived, as far as its provider knows."""

    __slots__ = ("body", "sent_at")

    def __init__(self, body: bytes, sent_at: float) -> None:
        self.body = body
        self.sent_at = sent_at


class Outgoing:
    """One transfer at its provider."""

    def __init__(self, layer: Protocol, peer: Address, id: int, pace: Pace, over: Callable[[str], None]) -> None:
        self.peer = peer
        self.id = id
        self.count = 0
        """Bytes made so far."""
        self.sum = 0
        self.sent = 0
        """The number of the last chunk."""
        self.ended = False
        """All chunks have been made."""
        self.heard_at = layer.runtime.now()
        self._layer = layer
        self._pace = pace
        self._over = over
        """Told why it is over; an empty reason: all of it was consumed."""
        self._pieces: Iterator[bytes] | None = None
        self._total: int | None = None
        self._unacked: dict[int, Unacked] = {}
        self._taken: int | None = None
        """What the requester's application has consumed; None before it is ready."""
        self._limit = 0
        """The last chunk that the requester has room for."""
        self._window = pace.window
        self._moved_at = self.heard_at
        self._patience = pace.resend_interval

    def offer(self, state: Iterable[Buffer]) -> None:
        """The application's snapshot is here."""
        try:
            self._total = size_of(state)
            self._pieces = pieces(state, self._pace.chunk_size)
        except Exception as error:
            self._over(f"its application failed: {error!r}")
        else:
            self._fill()

    def acked(self, ack: Ack) -> None:
        now = self.heard_at = self._layer.runtime.now()
        if max(ack.received, *ack.ahead, 0) > self.sent or ack.taken > ack.received:
            self._layer.count("malformed")
            return
        arrived = [n for n in self._unacked if n <= ack.received or n in ack.ahead]
        for number in arrived:
            del self._unacked[number]
        if arrived:
            self._moved_at, self._patience = now, self._pace.resend_interval
        if self._taken is None or ack.taken >= self._taken:
            self._taken, self._limit = ack.taken, ack.limit
        if self.ended and self._taken >= self.sent:
            self._over("")
            return
        self._resend_overtaken(max(ack.ahead, default=0), now)
        self._fill()

    def _fill(self) -> None:
        """Make and send what the window has room for."""
        if self._taken is None:
            return
        most = min(self._taken + self._window, self._limit)
        while self._pieces is not None and not self.ended and self.sent < most:
            try:
                piece = next(self._pieces, None)
            except Exception as error:
                self._over(f"its application failed: {error!r}")
                return
            number = self.sent = self.sent + 1
            if piece is None:
                self.ended = True
                self._trace_sent()
                message: Chunk | End = End(self.id, number, self.count, self.sum)
            else:
                self.count += len(piece)
                self.sum = zlib.crc32(piece, self.sum)
                message = Chunk(self.id, number, self._total, piece)
            now = self._moved_at = self._layer.runtime.now()
            body = self._layer.codec.encode(message)
            self._unacked[number] = Unacked(body, now)
            self._send(body, 0)
        if self._pieces is not None and not self.ended:
            self._layer.rule("state.window")

    def _trace_sent(self) -> None:
        stack = self._layer.stack
        if stack.trace.on:
            stack.trace.emit(
                "state_sent", view=stack.view.id, id=f"{self.peer}/{self.id}", count=self.count, sum=self.sum
            )

    def _resend_overtaken(self, highest: int, now: float) -> None:
        lost = [n for n, chunk in self._unacked.items() if n < highest and self._is_due(chunk, now)]
        for number in lost:
            self._again(number, now)
        if lost:
            self._window = max(WINDOW_LEAST, self._window // 2)
        elif self._window < self._pace.window:
            self._window += 1

    def _is_due(self, chunk: Unacked, now: float) -> bool:
        return now - chunk.sent_at >= self._pace.resend_interval / 2

    def look(self, now: float) -> None:
        """From time to time: if nothing moves, the last chunk may be lost. When it arrives, holes before it show."""
        if self._unacked and now - self._moved_at >= self._patience:
            self._moved_at = now
            self._patience = min(self._patience * 2, self._pace.resend_interval * PATIENCE_MAX)
            self._again(max(self._unacked), now)
        elif self.ended and not self._unacked and now - self.heard_at >= 2 * self._pace.resend_interval:
            # All of it has arrived, and yet there is no sign of life: the requester's last word may be lost.
            self._send(self._layer.codec.encode(End(self.id, self.sent, self.count, self.sum)), AGAIN)

    def _again(self, number: int, now: float) -> None:
        self._layer.rule("state.resent")
        self._layer.count("resent")
        self._unacked[number].sent_at = now
        self._send(self._unacked[number].body, AGAIN)

    def _send(self, body: bytes, flags: int) -> None:
        self._layer.pass_down(Packet(body, self.peer, self._layer.id, RAW, flags))

    def close(self) -> None:
        """Free what the application keeps for the state."""
        self._pieces = None
        self._unacked.clear()


class Incoming:
    """One transfer at its requester: what `set_state` iterates over."""

    def __init__(self, layer: Protocol, peer: Address, id: int, pace: Pace, complete: Callable[[], None]) -> None:
        self.peer = peer
        self.id = id
        self.count = 0
        """Bytes handed to the application."""
        self.sum = 0
        self.total: int | None = None
        self.complete = False
        """The end was reached, and it is what the provider sent."""
        self.error: StateInterrupted | None = None
        self.moved_at = layer.runtime.now()
        """When something last arrived, or was consumed."""
        self._layer = layer
        self._pace = pace
        self._completed = complete
        """Called when the last of what the application left over has come."""
        self._waiting: dict[int, Chunk | End] = {}
        self._received = 0
        self._handed = 0
        """Chunks given to the application; the last of them may be in its hands."""
        self._taken = 0
        self._acked = 0
        self._leftover = False
        """The application wants no more of it."""
        self._waiter: Future[None] | None = None

    # From the provider.

    def arrived(self, message: Chunk | End) -> None:
        number = message.number
        if number <= self._received or number in self._waiting:
            self._layer.count("duplicates")
            self.ack()  # our last word may be lost
            return
        if number > self._taken + self._pace.window:
            self._layer.count("too_far_ahead")
            return
        if isinstance(message, Chunk) and message.total is not None:
            self.total = message.total
        self.moved_at = self._layer.runtime.now()
        self._waiting[number] = message
        while self._received + 1 in self._waiting:
            self._received += 1
        if self._leftover:
            self._throw_away()
        else:
            self._wake()

    def interrupt(self, why: str) -> None:
        """Nothing more will come."""
        if self.error is None and not self.complete:
            self.error = StateInterrupted(why)
            self._waiting.clear()
            self._wake()

    @property
    def waits(self) -> bool:
        """There is room for chunks, and none is here."""
        return self._received == self._handed and not self.complete

    def ack(self) -> None:
        self._acked = self._taken
        ahead = tuple(sorted(n for n in self._waiting if n > self._received))
        self._layer.send(Ack(self.id, self._taken, self._taken + self._pace.window, self._received, ahead), self.peer)

    # To the application.

    def __aiter__(self) -> Incoming:
        return self

    async def __anext__(self) -> bytes:
        self._consumed()
        while True:
            if self.error is not None:
                raise self.error
            if self.complete:
                raise StopAsyncIteration
            message = self._waiting.pop(self._handed + 1, None)
            if message is not None:
                data = self._take(message)
                if data is not None:
                    return data
                continue
            self._waiter = self._layer.runtime.future()
            await self._waiter

    def _take(self, message: Chunk | End) -> bytes | None:
        self._handed += 1
        if isinstance(message, Chunk):
            self.count += len(message.data)
            self.sum = zlib.crc32(message.data, self.sum)
            return message.data
        if (message.size, message.sum) != (self.count, self.sum):
            self._layer.count("altered")
            self.interrupt("what came is not what was sent")
        else:
            self.complete = True
            self.total = self.count
            self._taken = self._handed
            self.ack()
        return None

    def _consumed(self) -> None:
        """The application asks for more: it is done with what it had."""
        if self._taken != self._handed:
            self._taken = self._handed
            self.moved_at = self._layer.runtime.now()
            if self._taken - self._acked >= max(1, self._pace.window // 4):
                self.ack()

    def leave_over(self) -> None:
        """The application has returned before the end: the rest is only counted."""
        self._leftover = True
        self._consumed()
        self._throw_away()

    def _throw_away(self) -> None:
        while (message := self._waiting.pop(self._handed + 1, None)) is not None:
            self._take(message)
            self._consumed()
        if self.complete:
            self._completed()

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)
