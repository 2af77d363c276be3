"""One TCP connection: the protocol that asyncio calls and the stream that the handler writes to, in one object.

Reads land in the node's arena and are handed on uncopied; writes are gathered (writev). However it ends, the handler
gets exactly one `closed`, and nothing after it. A handler that raises is logged, and only its own stream is aborted.
"""

from __future__ import annotations

import asyncio
import errno
import ssl
from collections.abc import Callable, Sequence
from typing import cast

from coterie.runtime.aio import failures
from coterie.runtime.aio.arena import Arena
from coterie.runtime.aio.tls import subject_of
from coterie.runtime.base import Buffer, CloseReason, Endpoint, Stream, StreamHandler

HIGH_MARK = 1 << 20
"""Once this much is buffered, `drained` follows when it has fallen to the low mark."""
LOW_MARK = 256 << 10
GATHERED_MAX = 256 << 10
"""Bytes of one turn that are gathered before they are encrypted."""
LINGER = 5.0
"""Seconds that a closed stream may take to send what is buffered and to see the peer close; then it is aborted."""

_RESET = (errno.ECONNRESET, errno.EPIPE, errno.ECONNABORTED, errno.ENOTCONN, errno.ESHUTDOWN)


def reason_of(error: BaseException | None) -> CloseReason:
    """What an exception says about the other side."""
    if error is None:
        return CloseReason.EOF
    if isinstance(error, TimeoutError):  # also ETIMEDOUT
        return CloseReason.TIMEOUT
    if isinstance(error, ssl.SSLError):  # its numbers are not the system's
        return CloseReason.UNTRUSTED
    if isinstance(error, OSError):
        if error.errno == errno.ECONNREFUSED:
            return CloseReason.REFUSED
        if error.errno in _RESET or isinstance(error, ConnectionResetError):  # asyncio raises some without a number
            return CloseReason.RESET
    return CloseReason.ERROR


class AioStream(Stream, asyncio.BufferedProtocol):
    """`live` is the node's table of streams: this one is in it from its first byte to its last."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        arena: Arena,
        handler: StreamHandler,
        peer: Endpoint,
        live: dict[AioStream, None],
        accepted: bool = False,
    ) -> None:
        self.peer = peer
        self.accepted = accepted
        self._loop = loop
        self._arena = arena
        self._room: Callable[[], memoryview] = arena.room
        self._handler = handler
        self._live = live
        self._transport: asyncio.Transport | None = None
        self._ended = False
        """The handler had its `closed`."""
        self._reason: CloseReason | None = None
        """Set when this side decides to end it."""
        self._linger: asyncio.TimerHandle | None = None
        self._sealed = False
        """It is TLS."""
        self._gathered: list[Buffer] = []
        """What is written in this turn of the loop, if it is TLS: it is encrypted at once, as few large records."""
        self._gathered_size = 0

    # What the handler calls.

    @property
    def buffered(self) -> int:
        transport = self._transport
        return 0 if transport is None else self._gathered_size + transport.get_write_buffer_size()

    def write(self, buffers: Sequence[Buffer]) -> None:
        transport = self._transport
        if self._reason is None and transport is not None and not transport.is_closing():
            if not self._sealed:
                transport.writelines(buffers)  # which are gathered there
                return
            # Each buffer would be a TLS record of its own, or several: a copy is cheaper than those.
            if not self._gathered:
                self._loop.call_soon(self._seal)
            self._gathered.extend(buffers)
            self._gathered_size += sum(map(len, buffers))
            if self._gathered_size > GATHERED_MAX:
                self._seal()

    def _seal(self) -> None:
        """Hand on what was gathered."""
        if self._gathered:
            gathered, self._gathered, self._gathered_size = self._gathered, [], 0
            transport = self._transport
            if transport is not None and not transport.is_closing():
                transport.write(b"".join(gathered))

    def pause_reading(self) -> None:
        if self._reason is None and self._transport is not None and self._transport.is_reading():
            self._transport.pause_reading()

    def resume_reading(self) -> None:
        if self._reason is None and self._transport is not None and not self._transport.is_reading():
            self._transport.resume_reading()

    def close(self) -> None:
        transport = self._transport
        if self._reason is not None or transport is None:
            return
        self._seal()
        self._reason = CloseReason.LOCAL
        self._expire_later()
        if not transport.can_write_eof():
            transport.close()
            return
        # Closing a socket while bytes of the peer are unread sends a reset, and that may destroy what we sent last.
        # So: say that nothing follows, and read until the peer has closed too.
        try:
            transport.write_eof()
            if not transport.is_reading():
                transport.resume_reading()
        except (OSError, RuntimeError):  # it broke a moment ago, and asyncio has not told yet
            transport.abort()

    def abort(self) -> None:
        self._break(CloseReason.LOCAL)

    # What asyncio calls.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._transport.set_write_buffer_limits(HIGH_MARK, LOW_MARK)
        self.subject = subject_of(transport.get_extra_info("peercert"))
        self._sealed = transport.get_extra_info("ssl_object") is not None
        self._live[self] = None
        if self._reason is not None:  # the node was closed meanwhile
            self._transport.abort()
        elif not failures.guarded(f"stream with {self.peer}: connected", self._handler.connected, self):
            self._break(CloseReason.ERROR)

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._room()

    def buffer_updated(self, nbytes: int) -> None:
        if self._reason is None:  # otherwise nobody wants it, and the room is used again
            try:
                self._handler.received(self._arena.take(nbytes))
            except Exception as error:
                failures.report(f"stream with {self.peer}: received", error)
                self._break(CloseReason.ERROR)

    def eof_received(self) -> bool:
        # The handler is told at once: its peer is gone, even while bytes for it still wait here. (They are sent: it may
        # have closed only its half.)
        if self._reason is None:
            self._seal()
            self._reason = CloseReason.EOF
            self._end(CloseReason.EOF)
            self._expire_later()
        return False  # asyncio then sends what is buffered and closes

    def resume_writing(self) -> None:
        if self._reason is None and not failures.guarded(f"stream with {self.peer}: drained", self._handler.drained):
            self._break(CloseReason.ERROR)

    def connection_lost(self, error: Exception | None) -> None:
        if self._linger is not None:
            self._linger.cancel()
            self._linger = None
        self._live.pop(self, None)
        self._transport = None
        self._end(reason_of(error) if self._reason is None else self._reason)

    # Ending.

    def fail(self, reason: CloseReason) -> None:
        """It could not be connected; or whoever connects it was stopped: then asyncio may never say that it is lost."""
        self._break(reason)
        self._live.pop(self, None)
        self._end(reason)

    def _expire_later(self) -> None:
        if self._transport is not None:
            self._linger = self._loop.call_later(LINGER, self._transport.abort)

    def _break(self, reason: CloseReason) -> None:
        if self._reason is None:
            self._reason = reason
        if self._transport is not None:
            self._transport.abort()

    def _end(self, reason: CloseReason) -> None:
        if not self._ended:
            self._ended = True
            failures.guarded(f"stream with {self.peer}: closed", self._handler.closed, reason)
