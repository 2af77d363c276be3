"""Datagram sockets: a unicast endpoint and, if asked for, a multicast group.

Everything is sent from the unicast socket, so that `source` is always an endpoint that can be answered. What the
socket's buffer has no room for is dropped and counted, never raised: whoever needs reliability has it above. A node
hears its own multicasts. Hosts are numeric: nothing is looked up while sending.
"""

from __future__ import annotations

import asyncio
import ipaddress
import socket
import sys
from collections.abc import Callable, Sequence

from coterie.addresses import is_loopback
from coterie.errors import UserError
from coterie.runtime.aio import failures
from coterie.runtime.aio.arena import Arena
from coterie.runtime.aio.binding import LAST_PORT, bind
from coterie.runtime.base import Buffer, DatagramHandler, Datagrams, Endpoint

BUFFER_SIZE = 4 << 20
"""Of the kernel, per socket: bursts wait there while the loop is busy. The kernel may grant less."""
READ_BATCH = 64
"""Datagrams read from one socket in one turn of the loop."""
LARGEST = 65535
KNOWN_ENDPOINTS = 1024
IP_MULTICAST_ALL = 49
"""Linux; not in the socket module of every Python that is supported."""


class AioDatagrams(Datagrams):
    """A bound socket, and one more for the group. Made by `AioNetwork.datagrams`."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        arena: Arena,
        endpoint: Endpoint,
        handler: DatagramHandler,
        multicast: Endpoint | None,
        ttl: int,
    ) -> None:
        self.dropped = 0
        """Datagrams that could not be sent: no room, too large, or no way there."""
        self.when_closed: Callable[[], object] = lambda: None
        self._loop = loop
        self._arena = arena
        self._handler = handler
        self._closed = False
        self._known: dict[Endpoint, None] = {}
        """Endpoints that were found to be numeric."""
        self._sock = bind(endpoint, socket.SOCK_DGRAM, _prepare)
        bound = self._sock.getsockname()
        self.endpoint = Endpoint(*bound[:2])
        self._sockets = [self._sock]
        if multicast is not None:
            try:
                _send_multicast(self._sock, bound[0], ttl)
                self._sockets.append(_join(multicast, self._sock.family, bound[0]))
            except UserError:
                self._sock.close()
                raise
            except OSError as error:
                self._sock.close()
                raise UserError(f"cannot send multicasts from {endpoint}: {error}: check the address") from None
        for sock in self._sockets:
            loop.add_reader(sock, self._readable, sock)

    def send(self, buffers: Sequence[Buffer], to: Endpoint) -> None:
        if self._closed:
            return
        if to not in self._known and not self._know(to):
            self.dropped += 1
            return
        try:
            self._sock.sendmsg(buffers, (), 0, to)
        except OSError:
            self.dropped += 1

    def _know(self, to: Endpoint) -> bool:
        """Whether it is an address and not a name, which the socket would look up and wait for."""
        try:
            ipaddress.ip_address(to.host.partition("%")[0])
        except ValueError:
            return False
        if not 0 < to.port <= LAST_PORT:
            return False
        if len(self._known) >= KNOWN_ENDPOINTS:
            self._known.clear()
        self._known[to] = None
        return True

    def close(self) -> None:
        if not self._closed:
            self._closed = True
            for sock in self._sockets:
                self._loop.remove_reader(sock)
                sock.close()
            self.when_closed()

    def _readable(self, sock: socket.socket) -> None:
        arena = self._arena
        for _ in range(READ_BATCH):
            try:
                size, address = sock.recvfrom_into(arena.room()[:LARGEST])
            except OSError:  # none left; or an answer to an earlier send, of which nothing can be told here
                return
            data = arena.take(size)
            source = Endpoint(address[0], address[1])
            if not failures.guarded(f"datagram from {source}", self._handler.datagram, data, source) or self._closed:
                return


def _prepare(sock: socket.socket, host: str) -> None:
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, BUFFER_SIZE)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, BUFFER_SIZE)
    if sys.platform == "linux" and sock.family == socket.AF_INET:
        # Otherwise a socket bound to 0.0.0.0 hears every group that anyone on this machine has joined.
        sock.setsockopt(socket.IPPROTO_IP, IP_MULTICAST_ALL, 0)


def _prepare_shared(sock: socket.socket, host: str) -> None:
    """For the group's port, which every node on this machine binds."""
    _prepare(sock, host)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    if hasattr(socket, "SO_REUSEPORT"):
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)


def _send_multicast(sock: socket.socket, host: str, ttl: int) -> None:
    """Multicasts leave through the interface of the bound address, and come back to other nodes on this machine."""
    if sock.family == socket.AF_INET6:
        sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_MULTICAST_IF, _interface(host))
        sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_MULTICAST_HOPS, ttl)
        sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_MULTICAST_LOOP, 1)
        return
    sock.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_IF, socket.inet_aton(host))
    sock.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_TTL, ttl)
    sock.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_LOOP, 1)


def _join(group: Endpoint, family: int, host: str) -> socket.socket:
    """A socket that receives what is sent to the group on the interface that has `host`."""
    try:
        address = ipaddress.ip_address(group.host)
    except ValueError:
        address = None
    if address is None or not address.is_multicast:
        raise UserError(f"{group.host} is not a multicast address: use one like 239.192.0.1")
    if (address.version == 6) != (family == socket.AF_INET6):
        raise UserError(
            f"the multicast group {group.host} and the address {host} differ in IP version: use one version"
        )
    sock = bind(group, socket.SOCK_DGRAM, _prepare_shared)
    try:
        if family == socket.AF_INET6:
            membership = address.packed + _interface(host).to_bytes(4, sys.byteorder)
            sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_JOIN_GROUP, membership)
        else:
            membership = address.packed + socket.inet_aton(host)
            sock.setsockopt(socket.IPPROTO_IP, socket.IP_ADD_MEMBERSHIP, membership)
    except OSError as error:
        sock.close()
        raise UserError(f"cannot join the multicast group {group} on {host}: {error}") from None
    return sock


def _interface(host: str) -> int:
    """The number of the interface of an IPv6 address, as far as it is told: loopback's, the scope's, or 0 for any."""
    _, _, scope = host.partition("%")
    if scope:
        return socket.if_nametoindex(scope)
    if is_loopback(host):
        return next((number for number, name in socket.if_nameindex() if name.startswith("lo")), 0)
    return 0
