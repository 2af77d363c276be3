"""Bytes to frames. A publish that came whole, as nearly all do, is handed on in one call; a row of them that differ in
nothing but their bodies costs one comparison each.

Promises: nothing is handed on that is not a well-formed frame within the negotiated size; what is not raises
ProtocolError 501 and nothing after it is looked at. Whatever the pieces in which bytes arrive, what is handed on is the
same, but for whole publishes, which may come as three frames instead.
"""

from __future__ import annotations

import struct
from abc import ABC, abstractmethod
from collections.abc import Callable

from coterie.amqp.wire.codes import (
    FRAME_BODY,
    FRAME_END,
    FRAME_ERROR,
    FRAME_HEADER,
    FRAME_HEARTBEAT,
    FRAME_METHOD,
    FRAME_OVERHEAD,
    UNEXPECTED_FRAME,
)
from coterie.amqp.wire.methods import METHODS
from coterie.errors import ProtocolError
from coterie.runtime.base import Buffer

TURN = 256 << 10
"""Bytes that are worked through before it is the turn of others."""
HEADER_MIN = 14
"""A content header without properties."""
LEAD_MAX = 1024
"""A longer beginning of a publish (method and header) is not compared with the next one's."""
_FRAME = struct.Struct(">BHI")
_HEADER = struct.Struct(">BHIHHQ")
"""A frame's beginning together with that of a content header: class id, weight, body size."""
_PUBLISH = METHODS["basic.publish"].prefix

Repeat = Callable[[bytes], None]
"""Takes the body of a publish that has the same method and header as the one before."""


class FrameHandler(ABC):
    """What is done with frames, in the order in which they came."""

    @abstractmethod
    def method(self, channel: int, payload: bytes) -> None: ...

    @abstractmethod
    def header(self, channel: int, payload: bytes) -> None: ...

    @abstractmethod
    def body(self, channel: int, payload: bytes) -> None: ...

    @abstractmethod
    def publish(self, channel: int, method: bytes, header: bytes, body: bytes) -> Repeat | None:
        """The three of them at once; the answer is for those that follow directly, if it may be used for them."""


class FrameReader:
    """One connection's bytes, from the first frame on."""

    __slots__ = ("_handler", "_need", "_rest", "frame_max", "held", "stopped", "tired")

    def __init__(self, handler: FrameHandler, frame_max: int) -> None:
        self._handler = handler
        self._rest = bytearray()
        self._need = 0
        """So much must be there before it is worth looking: the end of a frame that has begun."""
        self.frame_max = frame_max
        self.held = False
        """Whatever follows waits here until `release`."""
        self.tired = False
        """Enough for this turn: what follows waits until `feed` is called again."""
        self.stopped = False
        """The connection is over: what follows is not read."""

    def release(self) -> None:
        """Nothing holds it back; `feed` goes on with what waited."""
        self.held = False
        self._need = 0

    def feed(self, data: Buffer) -> None:
        rest = self._rest
        if self.stopped:
            return
        if rest or self.held:
            rest += data
            if len(rest) < self._need or self.held:
                return
            buffer = bytes(rest)
            rest.clear()
        else:
            buffer = bytes(data)
        at = 0
        try:
            at = self._frames(buffer)
        except ProtocolError:
            self.stopped = True
            raise
        if at < len(buffer) and not self.stopped:
            rest += memoryview(buffer)[at:]

    def _frames(self, buffer: bytes) -> int:
        """Hand on what is complete; where the rest begins."""
        end, at = len(buffer), 0
        handler, unpack = self._handler, _FRAME.unpack_from
        self.tired = False
        self._need = 0
        while end - at >= 7 and not (self.held or self.stopped):
            if at >= TURN or self.tired:
                self.tired = True
                return at
            kind, channel, size = unpack(buffer, at)
            start = at + 7
            stop = start + size
            if size > self.frame_max:  # a little too much is forgiven: many clients get the overhead wrong
                raise self._too_large(size)
            if stop >= end:
                self._need = stop + 1 - at
                return at
            if buffer[stop] != FRAME_END:
                raise ProtocolError(FRAME_ERROR, "a frame does not end where it says")
            if kind == FRAME_METHOD:
                method = buffer[start:stop]
                if method[:4] == _PUBLISH:
                    at = self._publish(buffer, at, stop + 1, channel, method)
                    continue
                handler.method(channel, method)
            elif kind == FRAME_BODY:
                handler.body(channel, buffer[start:stop])
            elif kind == FRAME_HEADER:
                handler.header(channel, buffer[start:stop])
            elif kind != FRAME_HEARTBEAT or size:
                raise ProtocolError(FRAME_ERROR, f"there are no frames of type {kind} with {size} octets")
            elif channel:
                raise ProtocolError(UNEXPECTED_FRAME, f"a heartbeat on channel {channel}: they belong on 0")
            at = stop + 1
        return at

    def _publish(self, buffer: bytes, begin: int, at: int, channel: int, method: bytes) -> int:
        """A publish whose method frame ends before `at`: all of it if it is here, and where the next frame begins."""
        handler = self._handler
        end = len(buffer)
        if end - at >= _HEADER.size:
            kind, same, size, _, _, body_size = _HEADER.unpack_from(buffer, at)
            limit = self.frame_max
            if kind == FRAME_HEADER and same == channel and HEADER_MIN <= size <= limit and body_size <= limit:
                head_end: int = at + 7 + size
                body_at = head_end + 8
                body_end: int = body_at + body_size
                if body_size == 0:
                    if head_end < end and buffer[head_end] == FRAME_END:
                        handler.publish(channel, method, buffer[at + 7 : head_end], b"")
                        return head_end + 1
                elif body_end < end and buffer[head_end] == FRAME_END == buffer[body_end]:
                    kind, same, size = _FRAME.unpack_from(buffer, head_end + 1)
                    if kind == FRAME_BODY and same == channel and size == body_size:
                        body = buffer[body_at:body_end]
                        repeat = handler.publish(channel, method, buffer[at + 7 : head_end], body)
                        if repeat is None or body_at - begin > LEAD_MAX:
                            return body_end + 1
                        return _repeats(buffer, body_end + 1, buffer[begin:body_at], body_size, repeat)
        handler.method(channel, method)
        return at

    def _too_large(self, size: int) -> ProtocolError:
        limit = f"{self.frame_max:,} bytes were agreed on"
        return ProtocolError(FRAME_ERROR, f"a frame of {size + FRAME_OVERHEAD:,} bytes, but {limit}")


def _repeats(buffer: bytes, at: int, lead: bytes, size: int, repeat: Repeat) -> int:
    """Publishes that begin exactly like the last one, and so have bodies of its size."""
    skip = len(lead)
    last = min(len(buffer) - size - skip - 1, TURN)
    begins = buffer.startswith
    while at <= last and begins(lead, at):
        start = at + skip
        stop = start + size
        if buffer[stop] != FRAME_END:
            break
        repeat(buffer[start:stop])
        at = stop + 1
    return at
