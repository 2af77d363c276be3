"""Who comes in over HTTP: sockets, deadlines, and how many there may be of those who have not logged in.

    accepted -> (TLS) -> head -> request -> idle -> head ...

Promises: a connection that says nothing, half a request, or reads nothing ends within a deadline; the connections of
one address that have not logged in are bounded, and when all places are taken the oldest of the address with most goes
(`Crowd`), so that one address keeps nobody else out. Whoever logs in is counted apart.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Callable
from contextlib import suppress
from typing import cast

from aiohttp import web

from coterie.console.settings import ConsoleSettings
from coterie.crowd import Crowd
from coterie.runtime.aio import failures
from coterie.runtime.aio.binding import bind, bind_error
from coterie.runtime.aio.sockets import BACKLOG, AioListener, keep_alive
from coterie.runtime.base import Endpoint


class Guest(asyncio.Protocol):
    """One connection: what aiohttp does with it, and by when."""

    def __init__(self, door: Door, host: str) -> None:
        self.host = host
        self.known = False
        """Somebody has logged in by it."""
        self.task: asyncio.Task[None] | None = None
        """The handshake."""
        self._door = door
        self._inner: asyncio.Protocol | None = None
        self._transport: asyncio.Transport | None = None
        self._requests = 0
        self._head = False
        """The next request has begun to come."""
        self._deadline: asyncio.TimerHandle | None = None
        self._stalled: asyncio.TimerHandle | None = None

    @property
    def busy(self) -> bool:
        return self._requests > 0

    # What asyncio calls.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._inner = self._door.welcome(self)
        self._within(self._door.settings.head_timeout)
        self._inner.connection_made(transport)

    def data_received(self, data: bytes) -> None:
        if not self._requests and not self._head:
            self._head = True
            self._within(self._door.settings.head_timeout)
        assert self._inner is not None
        self._inner.data_received(data)

    def eof_received(self) -> bool | None:
        return None if self._inner is None else self._inner.eof_received()

    def pause_writing(self) -> None:
        if not self.known and self._transport is not None:
            self._stalled = self._later(self._door.settings.head_timeout, self.end)
        if self._inner is not None:
            self._inner.pause_writing()

    def resume_writing(self) -> None:
        self._stalled = _cancelled(self._stalled)
        if self._inner is not None:
            self._inner.resume_writing()

    def connection_lost(self, error: Exception | None) -> None:
        self._deadline, self._stalled = _cancelled(self._deadline), _cancelled(self._stalled)
        self._transport = None
        self._door.left(self, self._inner)
        if self._inner is not None:
            self._inner.connection_lost(error)

    # What the console says of its requests.

    def began(self) -> None:
        self._requests += 1
        self._head = False
        self._deadline = _cancelled(self._deadline)

    def ended(self) -> None:
        self._requests -= 1
        if not self._requests and self._transport is not None:
            settings = self._door.settings
            self._within(settings.idle_timeout if self.known else settings.head_timeout)

    def end(self) -> None:
        if self._transport is not None:
            self._transport.abort()
        elif self.task is not None:
            self.task.cancel()

    def _within(self, seconds: float) -> None:
        _cancelled(self._deadline)
        self._deadline = self._later(seconds, self._late)

    def _late(self) -> None:
        transport = self._transport
        if self.known and not self._head and transport is not None and transport.get_write_buffer_size():
            self._within(self._door.settings.idle_timeout)  # a long answer to a slow reader
        else:
            self.end()

    def _later(self, seconds: float, call: Callable[[], None]) -> asyncio.TimerHandle:
        return asyncio.get_running_loop().call_later(seconds, call)


def _cancelled(timer: asyncio.TimerHandle | None) -> asyncio.TimerHandle | None:
    """None, to take its place."""
    if timer is not None:
        timer.cancel()
    return None


class Door:
    """All listeners of a console, and all connections to it."""

    def __init__(self, settings: ConsoleSettings) -> None:
        self.settings = settings
        self.turned_away = 0
        """Connections that found no place, or had to make room for others, since the start."""
        self._unknown: Crowd[Guest] = Crowd(settings.connections_max, settings.address_connections_max)
        self._known: Crowd[Guest] = Crowd(settings.connections_max, settings.connections_max)
        self._guests: dict[asyncio.Protocol, Guest] = {}
        self._listeners: list[AioListener] = []
        self._server: Callable[[], asyncio.Protocol] | None = None

    def listen(
        self,
        at: Endpoint,
        server: Callable[[], asyncio.Protocol],
        tls: Callable[[], ssl.SSLContext] | None,
        admits: Callable[[str], bool] = lambda host: True,
    ) -> Endpoint:
        """Raises UserError. `tls`: the context of a connection that comes now; `admits`: whether one may come from that
        host; if not, it is closed before a byte is read."""
        self._server = server
        sock = bind(at, socket.SOCK_STREAM, _prepare)
        try:
            sock.listen(BACKLOG)
        except OSError as error:
            sock.close()
            raise bind_error(at, error) from None

        def accepted(sock: socket.socket, peer: Endpoint) -> None:
            if admits(peer.host):
                self._accept(sock, peer.host, tls)
            else:
                sock.close()

        loop = asyncio.get_running_loop()
        listener = AioListener(loop, sock, accepted)
        self._listeners.append(listener)
        return listener.endpoint

    def close(self) -> None:
        """Nobody new; and those who have not shown who they are go."""
        for listener in self._listeners:
            listener.close()
        for guest in [*self._unknown]:
            if not guest.busy:
                guest.end()

    def _accept(self, sock: socket.socket, host: str, tls: Callable[[], ssl.SSLContext] | None) -> None:
        if not self._has_room(host):
            self.turned_away += 1
            sock.close()
            return
        keep_alive(sock)
        guest = Guest(self, host)
        self._unknown.add(guest, host)
        guest.task = asyncio.get_running_loop().create_task(self._attach(guest, sock, tls))
        guest.task.add_done_callback(lambda task: self._attached(guest, sock, task))

    def _has_room(self, host: str) -> bool:
        """Somebody may have to go for it."""
        if len(self._unknown) + len(self._known) < self.settings.connections_max and not self._unknown.crowded(host):
            return True
        unknown, idle = self._unknown.who_goes(host), self._known.who_goes(host, lambda guest: not guest.busy)
        of_unknown = self._unknown.crowded(host) or self._unknown.largest >= self._known.largest
        goes = unknown or idle if of_unknown else idle or unknown
        if goes is None:
            return False
        self.turned_away += 1
        self._forget(goes)
        goes.end()
        return True

    async def _attach(self, guest: Guest, sock: socket.socket, tls: Callable[[], ssl.SSLContext] | None) -> None:
        context = None if tls is None else tls()
        async with asyncio.timeout(self.settings.head_timeout):
            await asyncio.get_running_loop().connect_accepted_socket(lambda: guest, sock, ssl=context)

    def _attached(self, guest: Guest, sock: socket.socket, task: asyncio.Task[None]) -> None:
        """Or not: a guest that had to make room may not have taken a step yet."""
        guest.task = None
        error = asyncio.CancelledError() if task.cancelled() else task.exception()
        if error is None:
            return
        if not isinstance(error, OSError | asyncio.CancelledError):
            failures.report(f"connecting with {guest.host}", error)
        self._forget(guest)
        with suppress(OSError):
            sock.close()

    # What guests and the console say.

    def welcome(self, guest: Guest) -> asyncio.Protocol:
        assert self._server is not None
        inner = self._server()
        self._guests[inner] = guest
        return inner

    def guest(self, request: web.Request) -> Guest | None:
        return self._guests.get(request.protocol)

    def logged_in(self, guest: Guest) -> None:
        if not guest.known and guest in self._unknown:
            guest.known = True
            self._unknown.remove(guest)
            self._known.add(guest, guest.host)

    def left(self, guest: Guest, inner: asyncio.Protocol | None) -> None:
        self._forget(guest)
        if inner is not None:
            self._guests.pop(inner, None)

    def _forget(self, guest: Guest) -> None:
        self._unknown.remove(guest)
        self._known.remove(guest)


def _prepare(sock: socket.socket, host: str) -> None:
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
