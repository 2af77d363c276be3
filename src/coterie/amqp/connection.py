"""A client's connection: its stream, its channels, and how it ends.

    header -> starting -> tuning -> opening -> running -> closing -> closed

Frames go to their channels; at the end of each read the channels that gathered something carry it out, and what is
written in a turn goes out in one piece. An error closes its channel, or the connection if it is of that kind, with
RabbitMQ's codes and the numbers of the method; nothing else is touched. However it ends, what it held goes back and
its exclusive queues go, once.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from coterie.amqp import access
from coterie.amqp.access import Permission, Resource
from coterie.amqp.channel import PUBLISH, Channel
from coterie.amqp.credential import Credential
from coterie.amqp.handshake import FRAME_MAX, Handshake
from coterie.amqp.head_count import CHANNELS
from coterie.amqp.heartbeat import HEARTBEAT, Heartbeat
from coterie.amqp.outbox import Outbox
from coterie.amqp.throttle import Throttle
from coterie.amqp.traffic import Traffic
from coterie.amqp.wire.codes import (
    ACCESS_REFUSED,
    CHANNEL_ERROR,
    CONNECTION_ERRORS,
    CONNECTION_FORCED,
    NAMES,
    NOT_ALLOWED,
    PROTOCOL_HEADER,
    UNEXPECTED_FRAME,
)
from coterie.amqp.wire.framing import FrameHandler, FrameReader, Repeat
from coterie.amqp.wire.methods import METHODS, Call
from coterie.amqp.wire.methods import decode as decode_method
from coterie.amqp.wire.tables import Table, Value
from coterie.auditlog.log import AMQP, DONE, REFUSED
from coterie.broker.memory import FEW
from coterie.broker.users import User
from coterie.errors import ProtocolError
from coterie.logs import Log
from coterie.runtime.base import Buffer, CloseReason, Endpoint, Stream, StreamHandler, Timer

if TYPE_CHECKING:
    from coterie.amqp.server import Server
    from coterie.broker.vhost import Vhost

log = Log(__name__)

NO_METHOD: Final = bytes(4)
TURN_COMMANDS: Final = 256
"""Commands of one connection that are carried out before it is the turn of others."""
NAME_SHOWN: Final = 255
"""Characters of the name that a client gives itself."""
_CLOSE: Final = METHODS["connection.close"]
_CLOSE_OK: Final = METHODS["connection.close-ok"]
_OPEN_CHANNEL: Final = METHODS["channel.open"]
CHANGE_PREFETCH: Final = frozenset({"py-amqp"})
"""Clients (kombu, Celery) that take a broker by any name but RabbitMQ for one where basic.qos without `global` is also
about consumers that are there, as in the specification, and so change the prefetch of a worker that runs. Each of
their consumers has what was said last; one that says it once, before it consumes, sees no difference."""


class Connection(StreamHandler, FrameHandler):
    """One of a server's connections, from the moment it is accepted."""

    vhost: Vhost
    user: User
    outbox: Outbox
    throttle: Throttle
    peer: Endpoint

    def __init__(self, server: Server, number: int, listener: Endpoint) -> None:
        self.server = server
        self.number = number
        self.runtime = server.runtime
        self.settings = server.settings
        self.users = server.users
        self.name = f"? -> {listener}"
        self.state = "header"
        self.client_properties: Table = {}
        self.certificate: str | None = None
        """The name in the certificate that the client showed, if that is trusted."""
        self.opened_at = 0.0
        """By the wall clock."""
        self.running_since = 0.0
        """By the clock that never goes back."""
        self.is_old = False
        """Open for long: other brokers were told that it stays, whoever else comes (`broker.head_count`)."""
        self.frame_max = FRAME_MAX
        self.channel_max = server.settings.channel_max
        self.heartbeat = 0
        self.channels: dict[int, Channel] = {}
        self.dirty: dict[Channel, None] = {}
        """Have gathered something that is to be carried out at the end of this read."""
        self.received_bytes = 0
        self.partial = 0
        """Bytes of messages that have not come completely."""
        self.changes_prefetch = False
        self.unacknowledged = False
        """One of its channels has, or had, consumers without acknowledgements."""
        self.token = server.runtime.entropy(8).hex()
        """Makes its consumer tags its own."""
        self._listener = listener
        self._stream: Stream | None = None
        self._reader = FrameReader(self, FRAME_MAX + server.users.token_max)
        self._handshake: Handshake | None = Handshake(self)
        self._capabilities: Table = {}
        self._traffic = Traffic()
        """Of channels that are over."""
        self.moment = 0
        """Grows with each read and each command: what was found to be so earlier may be so no more."""
        self._commands = self._work = 0
        """In this read."""
        self._heard = False
        self._beats: Heartbeat | None = None
        self._credential = Credential(self)
        self._patience: Timer | None = None
        """For the client to open, or to answer a close."""
        self._to_be_let_go = False
        """The client has closed it, and waits for the answer."""

    # The stream.

    def connected(self, stream: Stream) -> None:
        if self.over:  # the server stopped meanwhile
            stream.abort()
            return
        self._stream = stream
        self.peer = stream.peer
        self.name = f"{stream.peer} -> {self._listener}"
        if not self.server.arrived(self):
            self.state = "closed"
            stream.abort()
            return
        self.certificate = certified_name(stream.subject, self.settings.certificate_name)
        self.outbox = Outbox(self.runtime, stream, self.settings.write_high, self._relieved)
        window = self.settings.publish_window
        self.throttle = Throttle(self.runtime, stream, self._reader, window, self._catch_up)
        self._be_patient(self.settings.handshake_timeout)

    def received(self, data: Buffer) -> None:
        self._heard = True
        self.received_bytes += len(data)
        if self.state == "header":
            assert self._handshake is not None
            rest = self._handshake.header(bytes(data))
            if rest is None:
                return
            self.state, data = "starting", rest
        self._read(data)

    def _read(self, data: Buffer) -> None:
        reader = self._reader
        self.begin_turn()
        try:
            reader.feed(data)
        except ProtocolError as error:
            # There is no telling where the next frame begins, so not even a close-ok can be waited for.
            self.fail(error)
            self.hang_up()
        self.flush()
        if reader.tired and not self.over:
            self.throttle.pause("turn")
            self.runtime.call_soon(self.throttle.resume, "turn")

    def _catch_up(self) -> None:
        self._read(b"")

    def begin_turn(self) -> None:
        self._commands = self._work = 0
        self.moment += 1

    def worked(self) -> None:
        """One more command: after so many in one read it is the turn of others."""
        self._commands += 1
        self.moment += 1
        if self._commands >= TURN_COMMANDS:
            self._reader.tired = True

    def spend(self, work: int) -> None:
        """It has the broker make so many copies, or steps on the way to queues: the same."""
        self._work += work
        if self.tired:
            self._reader.tired = True

    @property
    def tired(self) -> bool:
        return self._work >= self.settings.turn_work

    def drained(self) -> None:
        self.outbox.drained()

    def closed(self, reason: CloseReason) -> None:
        if self.state == "running":
            log.info("client is gone without a word", client=self.shown_name, why=reason.value)
        self._release()
        self._be_patient(None)
        self.state = "closed"
        self._reader.stopped = True
        self._stream = None
        self.server.ended(self)

    def flush(self) -> None:
        """Carry out what the channels have gathered."""
        while self.dirty:
            dirty, self.dirty = self.dirty, {}
            for channel in dirty:
                if not channel.closing:
                    self.guarded(channel, PUBLISH, channel.flush)

    # Frames.

    def method(self, channel: int, payload: bytes) -> None:
        found = self.channels.get(channel)
        if found is not None:
            try:
                found.method(payload)
            except ProtocolError as error:
                self.failed(found, error, payload[:4])
        elif channel == 0:
            try:
                self._control(decode_method(payload))
            except ProtocolError as error:
                self.fail(error, payload[:4])
        elif self._runs(payload[:4]):
            self._open_channel(channel, payload)

    def header(self, channel: int, payload: bytes) -> None:
        found = self.channels.get(channel)
        if found is not None:
            self.guarded(found, PUBLISH, found.header, payload)
        elif self._runs(NO_METHOD):
            self.fail(ProtocolError(UNEXPECTED_FRAME, f"expected a method on channel {channel}, got a content header"))

    def body(self, channel: int, payload: bytes) -> None:
        found = self.channels.get(channel)
        if found is not None:
            self.guarded(found, PUBLISH, found.body, payload)
        elif self._runs(NO_METHOD):
            self.fail(ProtocolError(UNEXPECTED_FRAME, f"expected a method on channel {channel}, got a content body"))

    def publish(self, channel: int, method: bytes, header: bytes, body: bytes) -> Repeat | None:
        found = self.channels.get(channel)
        if found is None:
            self.method(channel, method)
            return None
        try:
            return found.publish(method, header, body)
        except ProtocolError as error:
            self.failed(found, error, PUBLISH)
            return None

    def _runs(self, ids: bytes) -> bool:
        """Whether there may be frames of channels; those after the end are ignored, those before it are wrong."""
        if self.state not in ("running", "closing", "closed"):
            text = f"frames of channels must wait until the connection is open, it is {self.state}"
            self.fail(ProtocolError(UNEXPECTED_FRAME, text), ids)
        return self.state == "running"

    def _open_channel(self, number: int, payload: bytes) -> None:
        if payload[:4] != _OPEN_CHANNEL.prefix:
            self.fail(ProtocolError(CHANNEL_ERROR, f"expected 'channel.open' on channel {number}"), payload[:4])
        elif len(self.channels) >= self.channel_max:
            text = f"number of channels opened ({len(self.channels)}) has reached the negotiated channel_max"
            self.fail(ProtocolError(NOT_ALLOWED, f"{text} ({self.channel_max})"), payload[:4])
        elif self.server.broker.memory_watch.exhausted and len(self.channels) >= FEW:
            text = f"a connection may have {FEW} channels while memory runs out"
            self.fail(ProtocolError(NOT_ALLOWED, text), payload[:4])
        elif self.server.too_many_channels(self.user):
            text = f"number of channels opened for user '{self.user.name}' has reached the maximum allowed user limit"
            self.fail(ProtocolError(NOT_ALLOWED, f"{text} of {self.user.limits['max-channels']}"), payload[:4])
        else:
            channel = self.channels[number] = Channel(number, self)
            self.server.channels_opened += 1
            if CHANNELS in self.user.limits:
                self.server.elsewhere.changed()
            channel.send("channel.open-ok")

    def forget(self, channel: Channel) -> None:
        """It is over, and the client knows."""
        if self.channels.pop(channel.number, None) is not None:
            self._traffic.add(channel.traffic)
            if CHANNELS in self.user.limits:
                self.server.elsewhere.changed()

    # The connection's own methods.

    def _control(self, call: Call) -> None:
        if call.method is _CLOSE:
            self._on_close(call)
        elif self.state in ("closing", "closed"):
            if call.method is _CLOSE_OK:
                self.hang_up()
        elif self._handshake is not None:
            self._handshake.method(call)
        elif call.method.name == "connection.update-secret":
            self._credential.update(call)
        else:
            raise ProtocolError(CHANNEL_ERROR, f"unexpected method {call.method.name} in connection state {self.state}")

    def _on_close(self, call: Call) -> None:
        crossed = self.over
        self.flush()
        self._release()
        if crossed:
            self.send("connection.close-ok")
            self.hang_up()
            return
        self.state = "closed"
        self._reader.stopped = True
        self.throttle.end()
        self._to_be_let_go = True
        if self.unacknowledged:  # as for a channel; but it is let go, also if the cluster has no majority
            self._be_patient(self.settings.close_timeout, self._say_closed)
            self.vhost.cluster.in_turn(self._say_closed)
        else:
            self._say_closed()

    def _say_closed(self) -> None:
        """The client ends the stream when it has read the answer: some take an end before that for a broken one."""
        if self._stream is not None and self._to_be_let_go:
            self._to_be_let_go = False
            self.send("connection.close-ok")
            self.outbox.flush()
            self._be_patient(self.settings.close_timeout, self.hang_up)

    def meet(self, properties: Table) -> None:
        """The client says who it is, and what it understands."""
        self.client_properties = properties
        capabilities = properties.get("capabilities")
        self._capabilities = capabilities if isinstance(capabilities, dict) else {}
        self.changes_prefetch = str(properties.get("product")) in CHANGE_PREFETCH
        self.state = "tuning"

    def tune(self, frame_max: int, channel_max: int, heartbeat: int) -> None:
        self.frame_max = self._reader.frame_max = frame_max
        self.channel_max = channel_max
        self.heartbeat = heartbeat
        self._beats = Heartbeat(self.runtime, heartbeat, self._tick, self._dead)
        self.state = "opening"

    def open(self, vhost: Vhost) -> None:
        self.vhost = vhost
        self._handshake = None
        self.state = "running"
        self.opened_at, self.running_since = self.runtime.wall(), self.runtime.now()
        self._be_patient(None)
        self.server.opened(self)
        log.info("client connected", client=self.shown_name, user=self.user.name, vhost=vhost.name)
        self._credential.watch()

    # Publishing, and what holds it back.

    def publishing(self) -> None:
        """It publishes: while an alarm is on, nothing more is read of it."""
        reason = self.server.broker.blocked
        if reason and "alarm" not in self.throttle.reasons:
            self.throttle.pause("alarm")
            if self.can("connection.blocked"):
                self.send("connection.blocked", reason=_brief(reason))

    def take_time(self) -> None:
        """It is not the client who makes its opening last."""
        self._be_patient(None)
        self.server.set_aside(self)

    def alarm_over(self) -> None:
        if "alarm" in self.throttle.reasons:
            if self.can("connection.blocked"):
                self.send("connection.unblocked")
            self.throttle.resume("alarm")

    def _relieved(self) -> None:
        """The client takes more again."""
        for channel in list(self.channels.values()):
            channel.wake()

    # Heartbeats.

    def _tick(self) -> bool:
        if not self.outbox.said and self._stream is not None:
            self.outbox.write(HEARTBEAT)
            self.outbox.flush()
        self.outbox.said = False
        heard, self._heard = self._heard, False
        return heard or bool(self.throttle.reasons)

    def _dead(self) -> None:
        log.warning("client is silent", client=self.shown_name, heartbeat=self.heartbeat)
        if self._stream is not None:
            self._stream.abort()

    # Writing.

    def send(self, name: str, **arguments: Value) -> None:
        """A method on channel 0."""
        self.outbox.write(METHODS[name].frame(0, **arguments))

    def can(self, capability: str) -> bool:
        """Whether the client says that it understands something."""
        return self._capabilities.get(capability) is True

    def permit(self, what: Permission, kind: Resource, name: str) -> None:
        """Raises ProtocolError 403."""
        access.check(self.user, self.vhost.name, what, kind, name)

    def permit_topic(self, what: Permission, exchange: str, key: str) -> None:
        """The same, for a routing key of a topic exchange."""
        access.check_topic(self.user, self.vhost, what, exchange, key)

    # Errors and the end.

    def guarded(self, channel: Channel, ids: bytes, call: Callable[..., object], *args: object) -> None:
        """Do it; what goes wrong is the channel's, or the connection's, to bear. `ids`: class and method."""
        try:
            call(*args)
        except ProtocolError as error:
            self.failed(channel, error, ids)

    def record(self, action: str, user: str, result: str = DONE, why: str = "", **told: object) -> None:
        """For the audit log."""
        self.server.broker.audit.record(action, user, self.peer.host, AMQP, result, why, **told)

    def record_own(self, action: str, result: str = DONE, why: str = "", **told: object) -> None:
        """The same, once it is known whose connection it is."""
        self.record(action, self.user.name, result, why, token=self.user.token, **told)

    def failed(self, channel: Channel, error: ProtocolError, ids: bytes) -> None:
        if error.reply_code == ACCESS_REFUSED:
            self.record_own("access.refused", REFUSED, str(error), of_vhost=self.vhost.name)
        if error.reply_code in CONNECTION_ERRORS:
            self.fail(error, ids)
            return
        log.warning(
            "channel closed", client=self.shown_name, channel=channel.number, code=error.reply_code, why=str(error)
        )
        channel.close()
        channel.send("channel.close", **_reasons(error, ids))

    def fail(self, error: ProtocolError, ids: bytes = NO_METHOD) -> None:
        """Close it for a reason."""
        if self.over:
            return
        log.warning("connection closed", client=self.shown_name, code=error.reply_code, why=str(error))
        self._release()
        self.send("connection.close", **_reasons(error, ids))
        self.state = "closing"
        self._be_patient(self.settings.close_timeout)
        self.outbox.flush()
        self.throttle.end()

    def close(self, reason: str) -> None:
        """An operator wants it to end."""
        if self.state == "running":
            self.fail(ProtocolError(CONNECTION_FORCED, reason))
        elif self.state != "closing":
            self._say_closed()
            self.hang_up()

    def turn_away(self, why: str) -> None:
        """Tell somebody who speaks another protocol which one is spoken here."""
        log.info("client turned away", client=self.shown_name, why=why)
        self.outbox.write(PROTOCOL_HEADER)
        self.hang_up()

    def hang_up(self) -> None:
        """Send what there is, then close the stream."""
        self._release()
        self.state = "closed"
        self._reader.stopped = True
        if self._stream is not None:
            self.outbox.flush()
            self._stream.close()

    def cut(self) -> None:
        """End it now, and drop what was to be sent."""
        if self._stream is not None:
            self._stream.abort()

    @property
    def awaits_client(self) -> bool:
        """While it is being opened: it is the client's turn to say something."""
        return not self.throttle.reasons

    @property
    def over(self) -> bool:
        return self.state in ("closing", "closed")

    def _release(self) -> None:
        """What the client had is no longer its."""
        if self.over:
            return
        self._be_patient(None)
        self._credential.stop()
        if self._beats is not None:
            self._beats.stop()
        for channel in list(self.channels.values()):
            channel.close()
            self.forget(channel)
        if self.state == "running":
            self.vhost.close_owner(self)
        if self._stream is not None:
            self.outbox.stop()

    def _be_patient(self, seconds: float | None, then: Callable[[], None] | None = None) -> None:
        if self._patience is not None:
            self._patience.cancel()
        self._patience = None if seconds is None else self.runtime.call_later(seconds, then or self._too_slow)

    def _too_slow(self) -> None:
        log.info("client takes too long", client=self.shown_name, state=self.state)
        self._patience = None
        if self._stream is not None:
            self._stream.abort()

    # For the console.

    @property
    def shown_state(self) -> str:
        """As RabbitMQ's tools name it."""
        if self.state == "running":
            held = self.throttle.reasons.keys() - {"turn"}
            return "blocked" if "alarm" in held else "flow" if held else "running"
        return self.state

    @property
    def shown_name(self) -> str:
        """For the log: with the name that the client has given itself, as in RabbitMQ's."""
        given = self.client_properties.get("connection_name")
        return f"{self.name} - {given[:NAME_SHOWN]}" if isinstance(given, str) and given else self.name

    @property
    def sent_bytes(self) -> int:
        return self.outbox.sent if self.state != "header" else 0

    @property
    def traffic(self) -> Traffic:
        """Of all its channels, also those that are over."""
        total = Traffic()
        total.add(self._traffic)
        for channel in self.channels.values():
            total.add(channel.traffic)
        return total


def certified_name(subject: tuple[tuple[str, str], ...], form: str) -> str | None:
    """The user's name in a certificate's subject."""
    if not subject:
        return None
    if form == "distinguished_name":
        return ",".join(f"{name}={value}" for name, value in subject)
    return next((value for name, value in subject if name == "commonName"), None)


def _brief(reason: str) -> str:
    """As much of it as a short string holds: names of brokers may be long, and many."""
    return reason.encode("utf-8", "surrogateescape")[:255].decode("utf-8", "ignore")


def _reasons(error: ProtocolError, ids: bytes) -> dict[str, Value]:
    """What channel.close and connection.close say."""
    text = f"{NAMES.get(error.reply_code, 'INTERNAL_ERROR')} - {error}".encode("utf-8", "surrogateescape")
    return {
        "reply_code": error.reply_code,
        "reply_text": text[:255].decode("utf-8", "ignore"),
        "class_id": int.from_bytes(ids[:2], "big"),
        "method_id": int.from_bytes(ids[2:], "big"),
    }
