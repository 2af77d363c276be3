"""The AMQP client of a link: one connection, one channel in confirm mode, and questions that are answered.

It publishes to one exchange, waits while too much is under way, and tells of each publish whether it was confirmed. A
question carries a reply_to and gets the message that comes back (direct reply-to). Whatever ends the connection ends
everybody's waiting, with an `Unreachable` that says why.
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final, TypeVar

from coterie.amqp.wire.codes import (
    ACCESS_REFUSED,
    COMMAND_INVALID,
    CONNECTION_FORCED,
    FRAME_BODY,
    FRAME_END,
    FRAME_HEADER,
    FRAME_HEARTBEAT,
    FRAME_METHOD,
    FRAME_OVERHEAD,
    NOT_ALLOWED,
    PRECONDITION_FAILED,
    PROTOCOL_HEADER,
)
from coterie.amqp.wire.methods import METHODS, decode
from coterie.amqp.wire.properties import Properties, encode
from coterie.amqp.wire.properties import decode as decode_properties
from coterie.amqp.wire.tables import Table, Value
from coterie.broker.following.steps import EXCHANGE, Answer
from coterie.broker.specs import REPLICATION, REPLY_TO
from coterie.broker.users import REPLICATOR
from coterie.errors import CoterieError, ProtocolError
from coterie.runtime.base import Buffer, CloseReason, Endpoint, Future, Runtime, Stream, StreamHandler, Timer, TlsConfig
from coterie.site_replication.address import Destination
from coterie.site_replication.settings import ReplicationSettings

T = TypeVar("T")
Arguments = dict[str, Value]
CHANNEL: Final = 1
FRAME_MAX: Final = 128 << 10
_HEARTBEAT: Final = bytes((FRAME_HEARTBEAT, 0, 0, 0, 0, 0, 0, FRAME_END))
_PROPERTIES: Final[Table] = {
    "product": "Coterie",
    "information": "a replication link",
    "capabilities": {
        "authentication_failure_close": True,
        "publisher_confirms": True,
        "basic.nack": True,
        "connection.blocked": True,
    },
}
_HINTS: Final = {
    ACCESS_REFUSED: "check user and password of replication.to, and what the user may there: it needs the tag "
    f"{REPLICATOR}, and configure and write for the exchange {EXCHANGE}",
    NOT_ALLOWED: "check the vhost of replication.to, and whether the user has permissions there",
}
_NO_SUCH_TYPE: Final = "queues can be replicated to Coterie brokers that know the exchange type x-replication only"

_TRUST: Final = (
    "replication.tls_ca must have signed the other side's certificate, which must be for the host that replication.to "
    "names; and its listen.tls_ca that of replication.tls_cert, if it asks for one"
)


def hint_for(code: int, text: str) -> str:
    """What to do about that answer; nothing: it speaks for itself. RabbitMQ says 503 of an unknown exchange type, and
    406 since 3.13.3."""
    if code in (COMMAND_INVALID, PRECONDITION_FAILED) and "unknown exchange type" in text:
        return _NO_SUCH_TYPE
    return _HINTS.get(code, "")


class Unreachable(CoterieError):
    """The other side is not there, or lets nobody in; the text says what to do."""


class Client(StreamHandler):
    """One connection, from its beginning to its end."""

    def __init__(self, runtime: Runtime, destination: Destination, settings: ReplicationSettings) -> None:
        self._runtime = runtime
        self._destination = destination
        self._settings = settings
        self._stream: Stream | None = None
        self._unread = bytearray()
        self._waits: dict[Future[Any], None] = {}
        self._expected: deque[tuple[str, Callable[[Arguments], None]]] = deque()
        """Methods that answer ours, in the order in which they are due."""
        self._answers: dict[str, Callable[[Answer], None]] = {}
        """By the correlation id of the question."""
        self._questions = 0
        self._published = 0
        self._unconfirmed: deque[tuple[Callable[[bool], None], int]] = deque()
        """Of each publish: what to call with whether it was taken, and its size."""
        self._unconfirmed_bytes = 0
        self._progress = runtime.now()
        """When the other side confirmed something last, or had nothing to confirm."""
        self._room: Callable[[None], None] | None = None
        self._properties: Properties | None = None
        self._body = bytearray()
        self._left = 0
        self._frame_max = FRAME_MAX
        self._beat: Timer | None = None
        self._heard = runtime.now()
        self._opened = False
        self.blocked = ""
        """Why the other side takes nothing just now."""
        self.over: Unreachable | None = None
        self.ended: Callable[[], None] = lambda: None
        """Called once, when it is over."""

    # Waiting.

    async def wait(self, begin: Callable[[Callable[[T], None]], None]) -> T:
        """For whatever `begin` begins, which calls with the result; or for the end of this connection."""
        if self.over is not None:
            raise self.over
        future: Future[Any] = self._runtime.future()
        self._waits[future] = None

        def done(result: T) -> None:
            if not future.done():
                future.set_result(result)

        try:
            begin(done)
            return await future  # type: ignore[no-any-return]
        finally:
            self._waits.pop(future, None)

    def fail(self, why: str) -> None:
        """It is over, for everybody who waits."""
        if self.over is not None:
            return
        self.over = Unreachable(why)
        if self._beat is not None:
            self._beat.cancel()
        if self._stream is not None:
            self._stream.abort()
        for future in list(self._waits):
            if not future.done():
                future.set_exception(self.over)
        self.ended()

    # The beginning.

    async def open(self, host: Endpoint) -> None:
        """Connected, logged in, with the exchange declared. Raises Unreachable."""
        settings, destination = self._settings, self._destination
        late = self._runtime.call_later(
            settings.connect_timeout, self.fail, f"{host}: no answer within {settings.connect_timeout:g} s"
        )
        try:
            addresses: Sequence[str] = await self.wait(partial(self._runtime.net.resolve, host.host))
            if not addresses:
                raise Unreachable(f"{host}: there is no such host")
            tls = settings.tls(host.host) if destination.secure else None
            await self.wait(partial(self._connect, Endpoint(addresses[0], host.port), tls))
            mechanism, response = "PLAIN", f"\0{destination.user}\0{destination.password}".encode()
            if destination.user is None:
                mechanism, response = ("EXTERNAL", b"") if settings.tls_cert else ("PLAIN", b"\0guest\0guest")
            tune = await self.call(
                "connection.start-ok", "connection.tune", channel=0, client_properties=_PROPERTIES,
                mechanism=mechanism, response=response, locale="en_US",
            )  # fmt: skip
            self._frame_max = min(int(str(tune["frame_max"])) or FRAME_MAX, FRAME_MAX)
            beat = min(int(str(tune["heartbeat"])) or settings.heartbeat, settings.heartbeat)
            self._send("connection.tune-ok", 0, channel_max=1, frame_max=self._frame_max, heartbeat=beat)
            await self.call("connection.open", "connection.open-ok", channel=0, virtual_host=destination.vhost)
            self._heard = self._runtime.now()
            self._beats(beat)
            await self.call("channel.open", "channel.open-ok")
            await self.call(
                "exchange.declare", "exchange.declare-ok", exchange=EXCHANGE, type=REPLICATION, durable=True
            )
            await self.call("confirm.select", "confirm.select-ok")
            await self.call("basic.consume", "basic.consume-ok", queue=REPLY_TO, no_ack=True)
            self._opened = True
        finally:
            late.cancel()

    def _connect(self, endpoint: Endpoint, tls: TlsConfig | None, done: Callable[[Arguments], None]) -> None:
        self._expected.append(("connection.start", done))
        self._runtime.net.connect(endpoint, self, self._settings.connect_timeout, tls)

    def _beats(self, seconds: int) -> None:
        now, patience = self._runtime.now(), self._settings.connect_timeout
        if now - self._heard > 2 * seconds:
            self.fail(f"no sign of life for {2 * seconds} s")
        elif self._unconfirmed and now - self._progress > patience and len(self._destination.hosts) > 1:
            self.fail(f"nothing was confirmed for {patience:g} s ({self.blocked or 'no reason was given'})")
        elif self.over is None and self._stream is not None:
            self._stream.write((_HEARTBEAT,))
            self._beat = self._runtime.call_later(seconds / 2, self._beats, seconds)

    def close(self) -> None:
        """In good order, as far as that needs no answer."""
        if self._stream is not None and self.over is None:
            self._send("connection.close", 0, reply_code=200, reply_text="the link ends")
            stream, self._stream = self._stream, None
            stream.close()
        self.fail("closed by this side")

    # Calls, questions and publishes.

    def _send(self, name: str, channel: int = CHANNEL, **arguments: Value) -> None:
        if self._stream is not None:
            self._stream.write((METHODS[name].frame(channel, **arguments),))

    async def call(self, name: str, answer: str, channel: int = CHANNEL, **arguments: Value) -> Arguments:
        """A method and the arguments of the one that answers it."""

        def begin(done: Callable[[Arguments], None]) -> None:
            self._expected.append((answer, done))
            self._send(name, channel, **arguments)

        return await self.wait(begin)

    async def ask(self, step: bytes) -> Answer:
        """A step that is answered."""
        self._questions += 1
        name = str(self._questions)
        await self.room()

        def begin(done: Callable[[Answer], None]) -> None:
            self._answers[name] = done
            self._publish(step, Properties(reply_to=REPLY_TO, correlation_id=name), lambda taken: None)

        try:
            return await self.wait(begin)
        finally:
            self._answers.pop(name, None)

    async def room(self) -> None:
        """Until so little is under way that more may be sent."""
        while not self._has_room:
            await self.wait(self._when_room)

    @property
    def _has_room(self) -> bool:
        window, size = self._settings.window, self._settings.batch_bytes
        return len(self._unconfirmed) < window and self._unconfirmed_bytes <= window * size

    def _when_room(self, done: Callable[[None], None]) -> None:
        self._room = done

    def publish(self, step: bytes, done: Callable[[bool], None]) -> None:
        """`done` with whether it was taken; never, if the connection ends before."""
        self._publish(step, Properties(delivery_mode=2), done)

    def _publish(self, step: bytes, properties: Properties, done: Callable[[bool], None]) -> None:
        if self._stream is None:
            return
        if not self._unconfirmed:
            self._progress = self._runtime.now()
        self._unconfirmed.append((done, len(step)))
        self._unconfirmed_bytes += len(step)
        self._published += 1
        parts: list[Buffer] = [METHODS["basic.publish"].frame(CHANNEL, exchange=EXCHANGE)]
        parts += _frame(FRAME_HEADER, encode(properties, len(step)))
        most = self._frame_max - FRAME_OVERHEAD
        body = memoryview(step)
        for at in range(0, len(step), most):
            parts += _frame(FRAME_BODY, body[at : at + most])
        self._stream.write(parts)

    # What comes.

    def connected(self, stream: Stream) -> None:
        if self.over is not None:
            stream.abort()
            return
        self._stream = stream
        stream.write((PROTOCOL_HEADER,))

    def closed(self, reason: CloseReason) -> None:
        self._stream = None
        if reason is CloseReason.UNTRUSTED:
            self.fail(f"{reason.value}: {_TRUST}")
        elif self._opened:
            self.fail(reason.value)
        else:
            self.fail(f"{reason.value}: is a broker up there, as replication.to says?")

    def received(self, data: Buffer) -> None:
        self._heard = self._runtime.now()
        unread = self._unread
        unread += data
        at = 0
        while len(unread) - at >= FRAME_OVERHEAD and self.over is None:
            size = int.from_bytes(unread[at + 3 : at + 7], "big")
            if len(unread) - at < size + FRAME_OVERHEAD:
                break
            payload = bytes(unread[at + 7 : at + 7 + size])
            try:
                self._frame(unread[at], payload)
            except (ProtocolError, ValueError, KeyError, IndexError) as error:
                self.fail(f"what it answers is no AMQP 0-9-1: {error}")
            at += size + FRAME_OVERHEAD
        del unread[:at]

    def _frame(self, kind: int, payload: bytes) -> None:
        if kind == FRAME_METHOD:
            call = decode(payload)
            self._method(call.method.name, call.arguments)
        elif kind == FRAME_HEADER:
            self._left, self._properties = int.from_bytes(payload[4:12], "big"), decode_properties(payload)
            self._body.clear()
            self._complete()
        elif kind == FRAME_BODY:
            self._body += payload
            self._left -= len(payload)
            self._complete()

    def _complete(self) -> None:
        if self._left or self._properties is None:
            return
        done = self._answers.get(self._properties.correlation_id or "")
        self._properties = None
        if done is not None:
            done(json.loads(bytes(self._body)))

    def _method(self, name: str, arguments: Arguments) -> None:
        if name in ("basic.ack", "basic.nack"):
            self._settled(int(str(arguments["delivery_tag"])), bool(arguments["multiple"]), name == "basic.ack")
        elif name in ("connection.close", "channel.close"):
            self._told_to_go(int(str(arguments["reply_code"])), str(arguments["reply_text"]))
        elif name == "connection.blocked":
            self.blocked = str(arguments["reason"]) or "blocked"
        elif name == "connection.unblocked":
            self.blocked = ""
        elif self._expected and self._expected[0][0] == name:
            self._expected.popleft()[1](arguments)

    def _told_to_go(self, code: int, text: str) -> None:
        hint = "" if code == CONNECTION_FORCED else hint_for(code, text)
        self.fail(f"the other side says: {text.rstrip('.')}: {hint}" if hint else f"the other side says: {text}")

    def _settled(self, tag: int, multiple: bool, taken: bool) -> None:
        first = self._published - len(self._unconfirmed) + 1
        if not first <= tag <= self._published or not (multiple or tag == first):
            raise ValueError(f"a confirm of publish {tag}: {first} is the next")
        for _ in range(first, tag + 1):
            done, size = self._unconfirmed.popleft()
            self._unconfirmed_bytes -= size
            done(taken)
        self._progress = self._runtime.now()
        room = self._room
        if room is not None and self._has_room:
            self._room = None
            room(None)


def _frame(kind: int, payload: Buffer) -> tuple[Buffer, Buffer, Buffer]:
    return bytes((kind, 0, CHANNEL)) + len(payload).to_bytes(4, "big"), payload, bytes((FRAME_END,))
