"""One AMQP connection of a publisher in a Spark task: a socket, a channel in confirm mode, nothing more.

It blocks, because a task has nothing else to do; but it reads confirms while it writes, as two sides that only write
wait for each other. What ends it is `Lost`, and another broker may do; or `Refused`, and none will.
"""

from __future__ import annotations

import select
import socket
import ssl
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from coterie.amqp.wire.codes import (
    ACCESS_REFUSED,
    CONNECTION_FORCED,
    FRAME_END,
    FRAME_HEARTBEAT,
    FRAME_METHOD,
    FRAME_OVERHEAD,
    NOT_ALLOWED,
    NOT_FOUND,
    PRECONDITION_FAILED,
    PROTOCOL_HEADER,
)
from coterie.amqp.wire.methods import METHODS, decode
from coterie.amqp.wire.tables import Value
from coterie.errors import CoterieError, ProtocolError, UserError

if TYPE_CHECKING:
    from coterie.spark.options import Login, Server

CHANNEL: Final = 1
FRAME_MAX: Final = 128 << 10
_READ: Final = 256 << 10
_METHOD_HEAD: Final = 4
_ACK: Final = METHODS["basic.ack"].prefix
_FATAL: Final = frozenset({ACCESS_REFUSED, NOT_ALLOWED, NOT_FOUND, PRECONDITION_FAILED})
"""What another broker of the same cluster would say too."""
_PROPERTIES: Final[dict[str, Value]] = {
    "product": "Coterie",
    "platform": "Spark",
    "capabilities": {
        "publisher_confirms": True, "basic.nack": True, "connection.blocked": True, "authentication_failure_close": True
    },
}  # fmt: skip


class Lost(CoterieError):
    """This connection is over; another one may do."""


class Refused(UserError):
    """The broker says no, and any other would."""


Confirmed = Callable[[int, bool, bool], None]
"""Called with the number, whether all before it are meant too, and whether they were taken."""


class Link:
    """Open when it is made. Raises Lost or Refused."""

    def __init__(self, server: Server, login: Login, vhost: str, timeout: float, confirmed: Confirmed) -> None:
        self._server = server
        self._confirmed = confirmed
        self._unread = b""
        self._waits_for: str | None = None
        self._answer: dict[str, Any] | None = None
        self.blocked = ""
        """Why the broker takes nothing just now."""
        self.frame_max = FRAME_MAX
        until = time.monotonic() + timeout
        self._socket = self._dial(server, login, timeout)
        self._poll = select.poll()
        try:
            self._shake_hands(login, vhost, until)
        except BaseException:
            self._socket.close()
            raise

    def _dial(self, server: Server, login: Login, timeout: float) -> socket.socket:
        plain: socket.socket | None = None
        try:
            plain = socket.create_connection((server.host, server.port), timeout)
            plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            plain.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            found = plain
            if server.scheme == "amqps":
                found = login.context().wrap_socket(plain, server_hostname=server.host)
            found.setblocking(False)
            return found
        except ssl.SSLCertVerificationError as error:
            _close(plain)
            raise Refused(f"{server}: its certificate is not trusted: {error.verify_message}: see tlsCa") from None
        except UserError:
            _close(plain)
            raise
        except OSError as error:
            _close(plain)
            raise Lost(f"{server}: {error.strerror or error}") from None

    def _shake_hands(self, login: Login, vhost: str, until: float) -> None:
        self._waits_for = "connection.start"
        self.exchange(PROTOCOL_HEADER, lambda: self._answer is not None, until)
        response = f"\0{login.user}\0{login.secret()}".encode()
        tune = self._call(
            "connection.start-ok", "connection.tune", until, 0, client_properties=_PROPERTIES, mechanism="PLAIN",
            response=response, locale="en_US",
        )  # fmt: skip
        self.frame_max = min(int(tune["frame_max"]) or FRAME_MAX, FRAME_MAX)
        # No heartbeats: between two batches of rows a task may compute for long. TCP has its own.
        agreed = METHODS["connection.tune-ok"].frame(0, channel_max=1, frame_max=self.frame_max, heartbeat=0)
        self.exchange(agreed, lambda: True, until)
        self._call("connection.open", "connection.open-ok", until, 0, virtual_host=vhost)
        self._call("channel.open", "channel.open-ok", until)
        self._call("confirm.select", "confirm.select-ok", until)

    def _call(self, name: str, answer: str, until: float, channel: int = CHANNEL, **given: Value) -> dict[str, Any]:
        self._waits_for, self._answer = answer, None
        self.exchange(METHODS[name].frame(channel, **given), lambda: self._answer is not None, until)
        assert self._answer is not None
        return self._answer

    def close(self) -> None:
        """In good order, as far as that needs no answer."""
        try:
            self._socket.setblocking(True)
            self._socket.settimeout(1.0)
            self._socket.sendall(METHODS["connection.close"].frame(0, reply_code=200, reply_text="done"))
        except OSError:
            pass
        _close(self._socket)

    def abandon(self) -> None:
        _close(self._socket)

    # Bytes.

    def exchange(self, data: bytes, enough: Callable[[], bool], until: float) -> None:
        """Send all of it, and take what comes until that is `enough`; if it is already, what has come by now."""
        left = memoryview(data)
        while True:
            wants = select.POLLIN
            try:
                while left:
                    left = left[self._socket.send(left) :]
            except (BlockingIOError, ssl.SSLWantWriteError):
                wants |= select.POLLOUT
            except ssl.SSLWantReadError:
                pass
            except OSError as error:
                self._read_last()
                raise Lost(f"{self._server}: {error.strerror or error}") from None
            self._read()
            if not left and enough():
                return
            rest = until - time.monotonic()
            if rest <= 0:
                why = f": {self.blocked}" if self.blocked else ""
                raise Lost(f"{self._server}: no answer in time{why}")
            self._poll.register(self._socket, wants)
            if not (isinstance(self._socket, ssl.SSLSocket) and self._socket.pending()):
                self._poll.poll(rest * 1000)

    def _read(self) -> None:
        """What has come."""
        try:
            while True:
                data = self._socket.recv(_READ)
                if not data:
                    raise Lost(f"{self._server}: it closed the connection")
                self._frames(self._unread + data)
                if len(data) < _READ:
                    return
        except (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError):
            return
        except OSError as error:
            raise Lost(f"{self._server}: {error.strerror or error}") from None

    def _read_last(self) -> None:
        """The other side is gone: perhaps it has said why. Raises what it has said."""
        try:
            self._read()
        except Lost:
            pass

    def _frames(self, buffer: bytes) -> None:
        at, end = 0, len(buffer)
        while end - at >= FRAME_OVERHEAD:
            size = int.from_bytes(buffer[at + 3 : at + 7], "big")
            stop = at + 7 + size
            if stop >= end:
                break
            kind = buffer[at]
            if buffer[stop] != FRAME_END or kind > FRAME_HEARTBEAT:
                raise Lost(f"{self._server}: what it answers is no AMQP 0-9-1")
            if kind == FRAME_METHOD:
                self._method(buffer[at + 7 : stop])
            at = stop + 1
        self._unread = buffer[at:]

    def _method(self, payload: bytes) -> None:
        if payload[:_METHOD_HEAD] == _ACK:
            self._confirmed(int.from_bytes(payload[4:12], "big"), bool(payload[12] & 1), True)
            return
        try:
            call = decode(payload)
        except ProtocolError as error:
            raise Lost(f"{self._server}: what it answers is no AMQP 0-9-1: {error}") from None
        name, arguments = call.method.name, call.arguments
        if name == "basic.nack":
            self._confirmed(int(str(arguments["delivery_tag"])), bool(arguments["multiple"]), False)
        elif name == "basic.return":
            exchange, key = (str(arguments[each]) for each in ("exchange", "routing_key"))
            raise Refused(
                f"no queue takes a message to exchange '{exchange}' with routing key '{key}': bind one, or set the "
                "option mandatory to false to have such messages dropped"
            )
        elif name in ("connection.close", "channel.close"):
            self._told_to_go(int(str(arguments["reply_code"])), str(arguments["reply_text"]))
        elif name == "connection.blocked":
            self.blocked = str(arguments["reason"]) or "publishers are blocked"
        elif name == "connection.unblocked":
            self.blocked = ""
        elif name == self._waits_for:
            self._waits_for, self._answer = None, arguments

    def _told_to_go(self, code: int, text: str) -> None:
        if code in _FATAL and code != CONNECTION_FORCED:
            hint = ": check the options user, password and vhost" if code in (ACCESS_REFUSED, NOT_ALLOWED) else ""
            raise Refused(f"{self._server}: {text.rstrip('.')}{hint}")
        raise Lost(f"{self._server}: {text}")


def _close(found: socket.socket | None) -> None:
    if found is not None:
        try:
            found.close()
        except OSError:
            pass
