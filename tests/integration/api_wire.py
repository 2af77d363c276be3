"""A client of HTTP that sends whatever it is told to, right or wrong, and wants an answer to it."""

from __future__ import annotations

import http.client
import socket
from dataclasses import dataclass, field
from urllib.parse import urlencode

PATIENCE = 30.0
Headers = list[tuple[str, bytes]]


@dataclass(slots=True)
class Request:
    """As it goes out. `path` is the template that it was made of."""

    method: str
    path: str
    target: str
    headers: Headers = field(default_factory=list)
    body: bytes | None = None
    chunked: bool = False
    clean: bool = True
    """It surely is a request of that path: nothing strange stands in it."""
    query: list[tuple[str, str]] = field(default_factory=list)

    def encoded(self) -> bytes:
        target = self.target + (f"?{urlencode(self.query)}" if self.query else "")
        lines = [f"{self.method} {target} HTTP/1.1".encode("latin-1", "replace")]
        lines += [name.encode() + b": " + value for name, value in self.headers]
        body = self.body or b""
        if self.chunked:
            lines.append(b"Transfer-Encoding: chunked")
            body = b"".join(
                b"%x\r\n%s\r\n" % (len(part), part) for part in (body[:7], body[7:]) if part
            ) + b"0\r\n\r\n"  # fmt: skip
        elif self.body is not None:
            lines.append(b"Content-Length: %d" % len(body))
        return b"\r\n".join(lines) + b"\r\n\r\n" + body


@dataclass(slots=True)
class Reply:
    status: int
    media: str
    body: bytes
    headers: dict[str, str]


class NoAnswer(AssertionError):
    """The connection ended, and nothing had been said."""


class Wire:
    """One connection, as long as it lasts; then another one."""

    def __init__(self, at: str) -> None:
        host, _, port = at.rpartition(":")
        self._at = (host, int(port))
        self._socket: socket.socket | None = None

    def ask(self, request: Request) -> Reply:
        fresh = self._socket is None
        try:
            return self._ask(request)
        except (OSError, http.client.HTTPException) as error:
            self.close()
            if not fresh and isinstance(error, http.client.RemoteDisconnected | ConnectionError):
                return self._again(request)  # a connection that was kept may end at any time between two requests
            raise NoAnswer(f"{type(error).__name__}: {error}") from None

    def _again(self, request: Request) -> Reply:
        try:
            return self._ask(request)
        except (OSError, http.client.HTTPException) as error:
            self.close()
            raise NoAnswer(f"{type(error).__name__}: {error}") from None

    def _ask(self, request: Request) -> Reply:
        if self._socket is None:
            self._socket = socket.create_connection(self._at, timeout=PATIENCE)
            self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._socket.sendall(request.encoded())
        with http.client.HTTPResponse(self._socket, method=request.method) as response:
            response.begin()
            body = response.read()
            reply = Reply(response.status, response.getheader("Content-Type", ""), body, dict(response.getheaders()))
            if response.will_close:
                self.close()
        return reply

    def close(self) -> None:
        if self._socket is not None:
            self._socket.close()
            self._socket = None
