"""A client that speaks raw frames over a real socket, so that a test decides about every byte.

client = Raw(url).open()                            # logged in, channel 1 open
client.call(1, "queue.declare", queue="q")          # the answer, as a Heard
client.publish(1, "", "q", b"body")
client.expect(1, "basic.deliver").body
client.channel_closed(1, 404, "basic.get")          # the next thing that comes is that error
"""

from __future__ import annotations

import select
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from urllib.parse import unquote, urlsplit

from coterie.amqp.wire.codes import FRAME_BODY, FRAME_HEADER, FRAME_METHOD, NAMES, PROTOCOL_HEADER
from coterie.amqp.wire.methods import METHODS, decode
from coterie.amqp.wire.properties import Properties, encode
from coterie.amqp.wire.properties import decode as decode_properties
from coterie.amqp.wire.tables import Table, Value

PATIENCE = 10.0
"""Seconds that a broker may take to answer."""
CAPABLE: Table = {
    "product": "conformance",
    "capabilities": {
        "authentication_failure_close": True, "basic.nack": True, "connection.blocked": True,
        "consumer_cancel_notify": True, "publisher_confirms": True, "exchange_exchange_bindings": True,
    },
}  # fmt: skip
EMPTY = Properties()


@dataclass
class Heard:
    """A method that the broker sent, with its content if it has one."""

    channel: int
    name: str
    arguments: dict[str, Value]
    properties: Properties = field(default_factory=Properties)
    header: bytes = b""
    body: bytes = b""

    def __getitem__(self, name: str) -> Value:
        return self.arguments[name]

    def number(self, name: str) -> int:
        value = self.arguments[name]
        assert isinstance(value, int)
        return value

    def text(self, name: str) -> str:
        value = self.arguments[name]
        assert isinstance(value, str)
        return value


def frame(kind: int, channel: int, payload: bytes) -> bytes:
    return bytes((kind,)) + channel.to_bytes(2, "big") + len(payload).to_bytes(4, "big") + payload + b"\xce"


def content(channel: int, body: bytes, properties: Properties = EMPTY, frame_max: int = 131_072) -> bytes:
    """A content header and as many body frames as it takes."""
    step = frame_max - 8
    parts = [frame(FRAME_BODY, channel, body[at : at + step]) for at in range(0, len(body), step)]
    return frame(FRAME_HEADER, channel, encode(properties, len(body))) + b"".join(parts)


class Raw:
    """One connection. Whatever is not as expected is an AssertionError."""

    def __init__(self, url: str, user: str | None = None, password: str | None = None) -> None:
        parts = urlsplit(url)
        self.url = url
        self.user = user or unquote(parts.username or "guest")
        self.password = password or unquote(parts.password or "guest")
        self.vhost = unquote(parts.path[1:]) if len(parts.path) > 1 else "/"
        self.frame_max = 131_072
        self._socket = socket.create_connection((parts.hostname or "127.0.0.1", parts.port or 5672), PATIENCE)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._unread = b""
        self.heartbeats = 0

    def close(self) -> None:
        self._socket.close()

    # Out.

    def raw(self, data: bytes) -> None:
        self._socket.sendall(data)

    def send(self, channel: int, name: str, **arguments: Value) -> None:
        self.raw(METHODS[name].frame(channel, **arguments))

    def call(self, channel: int, name: str, **arguments: Value) -> Heard:
        """Send, and read the next thing that comes, which must be the answer."""
        self.send(channel, name, **arguments)
        answers = (f"{name}-ok", "basic.get-empty") if name == "basic.get" else (f"{name}-ok",)
        heard = self.next()
        assert heard.channel == channel and heard.name in answers, heard  # noqa: PT018
        return heard

    def publish(
        self, channel: int, exchange: str, key: str, body: bytes = b"", properties: Properties = EMPTY, **flags: bool
    ) -> None:
        method = METHODS["basic.publish"].frame(channel, exchange=exchange, routing_key=key, **flags)
        self.raw(method + content(channel, body, properties, self.frame_max))

    # In.

    def take(self, size: int) -> bytes:
        """Exactly so many."""
        while len(self._unread) < size:
            data = self._socket.recv(65536)
            if not data:
                raise EOFError("the broker closed the connection without a word")
            self._unread += data
        data, self._unread = self._unread[:size], self._unread[size:]
        return data

    def dropped(self) -> None:
        """Whatever frames come, the end comes, and without a word."""
        try:
            while True:
                kind, _, _ = self.frame()
                assert kind == 8
        except (ConnectionResetError, EOFError):
            pass

    def ended(self) -> None:
        """Nothing more comes but the end."""
        assert self._unread == b""
        try:
            data = self._socket.recv(65536)
        except ConnectionResetError:
            return
        assert data == b"", f"expected the end, got {data!r}"

    def frame(self) -> tuple[int, int, bytes]:
        kind, *rest = self.take(7)
        channel, size = int.from_bytes(rest[:2], "big"), int.from_bytes(rest[2:], "big")
        payload = self.take(size + 1)
        assert payload[-1] == 0xCE
        return kind, channel, payload[:-1]

    def next(self) -> Heard:
        """The next method, with its content."""
        while True:
            kind, channel, payload = self.frame()
            if kind != 8:
                break
            assert (channel, payload) == (0, b"")
            self.heartbeats += 1
        assert kind == FRAME_METHOD, (kind, channel, payload)
        call = decode(payload)
        heard = Heard(channel, call.method.name, call.arguments)
        if heard.name in ("basic.deliver", "basic.get-ok", "basic.return"):
            self._read_content(heard)
        return heard

    def _read_content(self, heard: Heard) -> None:
        kind, channel, heard.header = self.frame()
        assert (kind, channel) == (FRAME_HEADER, heard.channel)
        heard.properties = decode_properties(heard.header)
        size = int.from_bytes(heard.header[4:12], "big")
        while len(heard.body) < size:
            kind, channel, payload = self.frame()
            assert (kind, channel) == (FRAME_BODY, heard.channel)
            assert len(payload) <= self.frame_max - 8
            heard.body += payload
        assert len(heard.body) == size

    def expect(self, channel: int, name: str) -> Heard:
        heard = self.next()
        assert (heard.channel, heard.name) == (channel, name), heard
        return heard

    def expect_many(self, channel: int, name: str, count: int) -> list[Heard]:
        return [self.expect(channel, name) for _ in range(count)]

    def silent(self, seconds: float) -> None:
        """Nothing comes for so long, not even the end."""
        ready, _, _ = select.select([self._socket], [], [], seconds)
        assert not self._unread
        assert not ready

    def nothing(self, channel: int = 1) -> None:
        """The broker has nothing to say but what it is asked: everything before has had its effect by then."""
        self.call(channel, "channel.flow", active=True)

    # Errors.

    def channel_closed(self, channel: int, code: int, method: str, text: str = "") -> Heard:
        """The channel was closed for that method; the client says that it knows."""
        heard = self.expect(channel, "channel.close")
        self._check(heard, code, method, text)
        self.send(channel, "channel.close-ok")
        return heard

    def connection_closed(self, code: int, method: str | None = "", text: str = "") -> Heard:
        """The connection was closed; the client says that it knows. None: for no method; "": for whatever."""
        heard = self.expect(0, "connection.close")
        self._check(heard, code, method, text)
        self.send(0, "connection.close-ok")
        self.ended()
        return heard

    def _check(self, heard: Heard, code: int, method: str | None, text: str) -> None:
        assert heard["reply_code"] == code, heard
        assert heard.text("reply_text").startswith(NAMES[code]), heard
        assert text in heard.text("reply_text"), heard
        if method != "":
            ids = (0, 0) if method is None else (METHODS[method].class_id, METHODS[method].method_id)
            assert (heard["class_id"], heard["method_id"]) == ids, heard

    # The usual beginning, step by step.

    def greet(self) -> Heard:
        self.raw(PROTOCOL_HEADER)
        return self.expect(0, "connection.start")

    def log_in(self, properties: Table = CAPABLE) -> Heard:
        response = f"\0{self.user}\0{self.password}".encode()
        self.send(
            0, "connection.start-ok", client_properties=properties, mechanism="PLAIN", response=response, locale="en_US"
        )
        return self.expect(0, "connection.tune")

    def tune(self, heartbeat: int = 0, frame_max: int = 131_072, channel_max: int = 2047) -> None:
        self.frame_max = frame_max
        self.send(0, "connection.tune-ok", channel_max=channel_max, frame_max=frame_max, heartbeat=heartbeat)

    def open(
        self,
        channels: int = 1,
        properties: Table = CAPABLE,
        heartbeat: int = 0,
        frame_max: int = 131_072,
        channel_max: int = 2047,
    ) -> Raw:
        self.greet()
        self.log_in(properties)
        self.tune(heartbeat, frame_max, channel_max)
        self.call(0, "connection.open", virtual_host=self.vhost)
        for channel in range(1, channels + 1):
            self.call(channel, "channel.open")
        return self

    def reopen(self, channel: int = 1) -> None:
        """After an error."""
        self.call(channel, "channel.open")

    # Shorthands.

    def queue(self, channel: int = 1, **arguments: Value) -> str:
        """A new queue that ends with this connection."""
        return self.call(channel, "queue.declare", exclusive=True, **arguments).text("queue")

    def fill(self, queue: str, *bodies: bytes, channel: int = 1) -> None:
        for body in bodies:
            self.publish(channel, "", queue, body)

    def consume(self, queue: str, tag: str = "", channel: int = 1, **arguments: Value) -> str:
        answer = self.call(channel, "basic.consume", queue=queue, consumer_tag=tag, **arguments)
        return answer.text("consumer_tag")

    def qos(self, count: int, *, everyone: bool = False, channel: int = 1) -> None:
        self.call(channel, "basic.qos", prefetch_count=count, **{"global": everyone})

    def get(self, queue: str, channel: int = 1, **arguments: Value) -> Heard:
        return self.call(channel, "basic.get", queue=queue, **arguments)

    def ready(self, queue: str, count: int, channel: int = 1) -> None:
        """So many messages are ready in a queue; brokers may take a moment to know."""
        until = time.monotonic() + PATIENCE
        while True:
            found = self.call(channel, "queue.declare", queue=queue, passive=True).number("message_count")
            if found == count:
                return
            assert time.monotonic() < until, f"{found} messages are ready, not {count}"


Connect = Callable[..., Raw]
"""Makes connections: `connect()`, `connect(user, password)`."""
