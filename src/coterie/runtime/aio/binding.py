"""Binding sockets: which options they get first, and what a user is told when the system refuses."""

from __future__ import annotations

import errno
import socket
from collections.abc import Callable

from coterie.errors import UserError
from coterie.runtime.base import Endpoint

LAST_PORT = 65535


def bind(
    endpoint: Endpoint, kind: socket.SocketKind, prepare: Callable[[socket.socket, str], None] | None = None
) -> socket.socket:
    """A non-blocking socket bound to the endpoint; an empty host is every address of this machine.

    `prepare` is given the socket and the numeric host before it is bound.
    """
    if not 0 <= endpoint.port <= LAST_PORT:
        raise UserError(f"cannot bind {endpoint}: ports go from 0 to {LAST_PORT}")
    try:
        found = socket.getaddrinfo(endpoint.host or None, endpoint.port, type=kind, flags=socket.AI_PASSIVE)
        family, _, _, _, address = found[0]
        sock = socket.socket(family, kind)
    except (OSError, UnicodeError) as error:
        raise bind_error(endpoint, error) from None
    try:
        sock.setblocking(False)
        if family == socket.AF_INET6:  # so that one may listen on :: and 0.0.0.0, each for itself
            sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        if prepare is not None:
            prepare(sock, str(address[0]))
        sock.bind(address)
    except OSError as error:
        sock.close()
        raise bind_error(endpoint, error) from None
    return sock


def bind_error(endpoint: Endpoint, error: Exception) -> UserError:
    code = error.errno if isinstance(error, OSError) and not isinstance(error, socket.gaierror) else None
    where = endpoint.host or "any address"
    if code == errno.EADDRINUSE:
        return UserError(f"port {endpoint.port} on {where} is in use: stop whatever uses it, or choose another port")
    if code == errno.EACCES:
        return UserError(f"port {endpoint.port} on {where} is not for this user: choose one from 1024 on")
    if code == errno.EADDRNOTAVAIL:
        return UserError(f"cannot bind {endpoint}: {where} is not an address of this machine: choose one that is")
    return UserError(f"cannot bind {endpoint}: {error}: check the address")
