"""The sockets of a real node: listening, dialling, datagrams, names.

What cannot be bound raises UserError at once, with the address and what to do. Handlers are never called before the
call that names them has returned.
"""

from __future__ import annotations

import asyncio
import errno
import socket
import ssl
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

from coterie.addresses import is_loopback
from coterie.errors import UserError
from coterie.runtime.aio import failures
from coterie.runtime.aio.arena import Arena
from coterie.runtime.aio.binding import LAST_PORT, bind, bind_error
from coterie.runtime.aio.datagrams import AioDatagrams
from coterie.runtime.aio.streams import AioStream, reason_of
from coterie.runtime.aio.tls import Tls
from coterie.runtime.base import (
    CloseReason,
    DatagramHandler,
    Endpoint,
    KeyTls,
    Listener,
    Network,
    StreamHandler,
    StreamTls,
    TlsConfig,
)

BACKLOG = 512
ACCEPT_BATCH = 64
"""Connections accepted in one turn of the loop, so that a flood of them does not hold up the others."""
ACCEPT_PAUSE = 1.0
"""Seconds without accepting after the system refused (no file descriptors left, for one)."""
LOOPBACK_RECEIVE_BUFFER = 1 << 20
"""Within one machine. Of 128 KiB, 256 KiB, 1 MiB and 4 MiB it took the least CPU (0.41, 0.43, 0.38 and 0.42 s per GB
received, medians of five on two busy cores, ranges overlap), and it bounds what waits in the kernel. Between machines,
and for the send buffer, the kernel tunes itself."""

KEEP_ALIVE = (("TCP_KEEPIDLE", 60), ("TCP_KEEPINTVL", 15), ("TCP_KEEPCNT", 4))
"""Seconds of silence before the kernel asks, seconds between two questions, questions without an answer."""


class AioNetwork(Network):
    """`close` ends everything that was opened through it."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._arena = Arena()
        self.tls = Tls()
        self._streams: dict[AioStream, None] = {}
        self._tasks: dict[asyncio.Task[None], None] = {}
        self._listeners: dict[AioListener, None] = {}
        self._datagrams: dict[AioDatagrams, None] = {}
        self._closed = False

    def listen(
        self,
        endpoint: Endpoint,
        accept: Callable[[], StreamHandler],
        tls: StreamTls | None = None,
        admits: Callable[[str], bool] | None = None,
    ) -> Listener:
        self._check_open()
        if tls is not None:
            self.tls.context(tls, server=True)

        def accepted(sock: socket.socket, peer: Endpoint) -> None:
            if admits is not None and not admits(peer.host):
                sock.close()
            else:
                self._adopt(sock, peer, accept, tls)

        listener = AioListener(self._loop, listening_socket(endpoint), accepted)
        self._listeners[listener] = None
        listener.when_closed = lambda: self._listeners.pop(listener, None)
        return listener

    def connect(self, endpoint: Endpoint, handler: StreamHandler, timeout: float, tls: StreamTls | None = None) -> None:
        self._check_open()
        if tls is not None:
            self.tls.context(tls, server=False)
        self._start(self._dial(endpoint, handler, timeout, tls))

    def datagrams(
        self, endpoint: Endpoint, handler: DatagramHandler, multicast: Endpoint | None = None, ttl: int = 0
    ) -> AioDatagrams:
        self._check_open()
        datagrams = AioDatagrams(self._loop, self._arena, endpoint, handler, multicast, ttl)
        self._datagrams[datagrams] = None
        datagrams.when_closed = lambda: self._datagrams.pop(datagrams, None)
        return datagrams

    def resolve(self, host: str, done: Callable[[Sequence[str]], None]) -> None:
        self._check_open()
        self._start(self._resolve(host, done))

    async def close(self) -> None:
        """Close listeners and datagram sockets, abort streams and dials; done when every handler had its `closed`."""
        self._closed = True
        for listener in list(self._listeners):
            listener.close()
        for datagrams in list(self._datagrams):
            datagrams.close()
        await asyncio.sleep(0)  # a task that is cancelled before its first step would not tell its handler
        await failures.end("a socket", list(self._tasks))
        for stream in list(self._streams):
            stream.abort()
        while self._streams:
            await asyncio.sleep(0)

    def _check_open(self) -> None:
        if self._closed:
            raise UserError("the node is stopping: its sockets are closed")

    def _start(self, coroutine: Coroutine[Any, Any, None]) -> None:
        task = self._loop.create_task(coroutine)
        self._tasks[task] = None
        task.add_done_callback(lambda _: self._tasks.pop(task, None))

    async def _resolve(self, host: str, done: Callable[[Sequence[str]], None]) -> None:
        try:
            found = await self._loop.getaddrinfo(host, None, type=socket.SOCK_STREAM)
        except (OSError, UnicodeError):
            found = []
        failures.guarded(f"resolving {host}", done, sorted({str(address[0]) for *_, address in found}))

    async def _dial(self, endpoint: Endpoint, handler: StreamHandler, timeout: float, tls: StreamTls | None) -> None:
        stream = AioStream(self._loop, self._arena, handler, endpoint, self._streams)
        deadline = self._loop.time() + timeout
        try:
            async with asyncio.timeout_at(deadline):
                sock = await self._reach(endpoint)
        except (Exception, asyncio.CancelledError) as error:
            _give_up(stream, error)
            return
        if tls is None:
            await self._attach(stream, sock)
        else:
            context = self.tls.context(tls, server=False)
            # Here create_connection does no harm (see _attach): the stream is connected only after the handshake.
            hostname = tls.hostname if isinstance(tls, TlsConfig) else ""
            secured = self._loop.create_connection(lambda: stream, sock=sock, ssl=context, server_hostname=hostname)
            await self._secure(stream, sock, secured, deadline, tls)

    async def _secure(
        self,
        stream: AioStream,
        sock: socket.socket,
        secured: Coroutine[Any, Any, object],
        deadline: float,
        tls: StreamTls,
    ) -> None:
        """Hand a connected socket to asyncio, with the TLS handshake done by then."""
        try:
            async with asyncio.timeout_at(deadline):
                await secured
        except (Exception, asyncio.CancelledError) as error:
            if isinstance(error, ssl.SSLError):
                self.tls.refused(stream.peer, error, tls)
            elif isinstance(tls, KeyTls) and isinstance(error, ConnectionError) and stream.accepted:
                self.tls.hung_up(stream.peer)
            _give_up(stream, error)
            sock.close()

    async def _welcome(self, stream: AioStream, sock: socket.socket, tls: StreamTls) -> None:
        """The handshake of an accepted stream. There may be so many at one time, and each takes only so long."""
        task = asyncio.current_task()
        assert task is not None
        self.tls.begin(tls, task, stream.peer.host)
        try:
            context = self.tls.context(tls, server=True)
            secured = self._loop.connect_accepted_socket(lambda: stream, sock, ssl=context)
            await self._secure(stream, sock, secured, self._loop.time() + tls.timeout, tls)
        finally:
            self.tls.end(tls, task)

    async def _attach(self, stream: AioStream, sock: socket.socket) -> None:
        """Hand a connected socket to asyncio."""
        try:
            # For a dialled socket too: uvloop's create_connection leaves the descriptor to two owners, and closes it
            # twice, if the handler ends the stream as soon as it is connected.
            await self._loop.connect_accepted_socket(lambda: stream, sock)
        except (Exception, asyncio.CancelledError) as error:
            _give_up(stream, error)
            sock.close()

    async def _reach(self, endpoint: Endpoint) -> socket.socket:
        """A connected socket: to the first address of that name which answers."""
        last = OSError(errno.EADDRNOTAVAIL, "no such address")
        if not 0 < endpoint.port <= LAST_PORT:
            raise last
        for family, _, _, _, address in await self._loop.getaddrinfo(*endpoint, type=socket.SOCK_STREAM):
            sock = socket.socket(family, socket.SOCK_STREAM)
            try:
                sock.setblocking(False)
                _tune(sock, str(address[0]))
                await self._loop.sock_connect(sock, address)
                if sock.getsockname() == sock.getpeername():
                    # Nobody listens, and the kernel chose that very port for this side: TCP then connects to itself.
                    raise ConnectionRefusedError(errno.ECONNREFUSED, "connected to itself")
            except OSError as error:
                sock.close()
                last = error
            except BaseException:
                sock.close()
                raise
            else:
                return sock
        raise last

    def _adopt(
        self, sock: socket.socket, peer: Endpoint, accept: Callable[[], StreamHandler], tls: StreamTls | None
    ) -> None:
        try:
            handler = accept()
        except Exception as error:
            failures.report(f"accepting {peer}", error)
            sock.close()
            return
        _tune(sock, peer.host)
        stream = AioStream(self._loop, self._arena, handler, peer, self._streams, accepted=True)
        self._start(self._attach(stream, sock) if tls is None else self._welcome(stream, sock, tls))


def _give_up(stream: AioStream, error: BaseException) -> None:
    """Tell the handler; log what neither a peer nor a wrong address can cause."""
    cancelled = isinstance(error, asyncio.CancelledError)
    stream.fail(CloseReason.LOCAL if cancelled else reason_of(error))
    if not cancelled and not isinstance(error, OSError | UnicodeError):
        failures.report(f"connecting with {stream.peer}", error)


def listening_socket(endpoint: Endpoint) -> socket.socket:
    """Raises UserError if it cannot be had."""
    sock = bind(endpoint, socket.SOCK_STREAM, _prepare)
    try:
        sock.listen(BACKLOG)
    except OSError as error:  # some systems find out only now that another socket listens there
        sock.close()
        raise bind_error(endpoint, error) from None
    return sock


class AioListener(Listener):
    """Accepts by itself rather than through asyncio's server, so that `close` frees the port at once."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        sock: socket.socket,
        accepted: Callable[[socket.socket, Endpoint], None],
    ) -> None:
        self.endpoint = Endpoint(*sock.getsockname()[:2])
        self.when_closed: Callable[[], object] = lambda: None
        self._loop = loop
        self._sock = sock
        self._accepted = accepted
        self._pause: asyncio.TimerHandle | None = None
        loop.add_reader(sock, self._ready)

    def close(self) -> None:
        if self._sock.fileno() >= 0:
            if self._pause is not None:
                self._pause.cancel()
            else:
                self._loop.remove_reader(self._sock)
            self._sock.close()
            self.when_closed()

    def _ready(self) -> None:
        for _ in range(ACCEPT_BATCH):
            try:
                sock, address = self._sock.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:
                if self._sock.fileno() >= 0:
                    failures.report(f"accepting on {self.endpoint}, trying again in {ACCEPT_PAUSE:g} s", error)
                    self._loop.remove_reader(self._sock)
                    self._pause = self._loop.call_later(ACCEPT_PAUSE, self._resume)
                return
            sock.setblocking(False)
            self._accepted(sock, Endpoint(*address[:2]))
            if self._sock.fileno() < 0:
                return

    def _resume(self) -> None:
        self._pause = None
        self._loop.add_reader(self._sock, self._ready)


def keep_alive(sock: socket.socket) -> None:
    """The kernel asks a silent peer whether it is there, and ends the connection of one that is gone for good."""
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for name, value in KEEP_ALIVE:
            option = getattr(socket, name, None)
            if option is not None:
                sock.setsockopt(socket.IPPROTO_TCP, option, value)
    except OSError:  # already reset by the peer: reading will tell
        pass


def _tune(sock: socket.socket, host: str) -> None:
    keep_alive(sock)
    try:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if is_loopback(host):
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, LOOPBACK_RECEIVE_BUFFER)
    except OSError:  # already reset by the peer: reading will tell
        pass


def _prepare(sock: socket.socket, host: str) -> None:
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    _tune(sock, host)
