"""The AMQP front door: listens, plain and with TLS, and keeps what the console shows of its connections.

Limits come first: so many open connections, so many that have not been opened yet. When the broker is low on disk or
memory the connections that publish are held back, and let go when that is over.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from coterie.amqp.codes import CONNECTION_FORCED, NOT_ALLOWED, PRECONDITION_FAILED
from coterie.amqp.connection import NO_METHOD, Connection
from coterie.amqp.settings import AmqpSettings
from coterie.amqp.stopwatch import Stopwatch
from coterie.amqp.traffic import Traffic
from coterie.broker.broker import Broker
from coterie.broker.users import User, Users
from coterie.broker.vhost import Vhost
from coterie.errors import ProtocolError
from coterie.log import Log
from coterie.runtime.base import (
    Buffer,
    CloseReason,
    Endpoint,
    Listener,
    Runtime,
    Stream,
    StreamHandler,
    Timer,
    TlsConfig,
)

log = Log(__name__)

LOOK_AFTER: Final = 60.0
"""Seconds, at most, between two looks at who keeps deliveries for too long."""


class Server:
    """Serves one broker. `listen` as often as there are addresses."""

    def __init__(self, runtime: Runtime, broker: Broker, users: Users, settings: AmqpSettings | None = None) -> None:
        self.runtime = runtime
        self.broker = broker
        self.users = users
        self.settings = settings or AmqpSettings()
        self.connections: dict[int, Connection] = {}
        """By number, the oldest first, also those that are being opened."""
        self.listeners: list[Listener] = []
        self.accepted = 0
        """Connections since the start."""
        self.turned_away = 0
        self.connections_opened = self.channels_opened = 0
        """Since the start."""
        self._open: dict[int, Connection] = {}
        self._traffic = Traffic()
        """Of connections that are over."""
        self.stopwatch: Stopwatch | None = None
        """Waits for the next batch that is to be confirmed; None, as it is most of the time: nobody wants to know."""
        self._stopped: Callable[[], None] | None = None
        self._stopping = False
        self._looking: Timer | None = None
        self.unavailable: Callable[[], str] = lambda: ""
        """Why nobody may come in now; nothing if they may."""
        broker.watch_alarms(self._alarm)
        broker.deleting_vhost.append(self._vhost_ends)
        users.removed.append(self._user_goes)

    def listen(self, endpoint: Endpoint, tls: TlsConfig | None = None) -> Listener:
        """Raises UserError if the address cannot be had."""
        listener = self.runtime.net.listen(endpoint, lambda: self._accept(listener.endpoint), tls)
        self.listeners.append(listener)
        log.info("listening for AMQP", at=listener.endpoint, tls=tls is not None)
        return listener

    def _accept(self, listener: Endpoint) -> StreamHandler:
        self.accepted += 1
        if len(self.connections) - len(self._open) >= self.settings.handshakes_max:
            self.turned_away += 1
            return TurnedAway()
        connection = self.connections[self.accepted] = Connection(self, self.accepted, listener)
        return connection

    def refusal(self) -> ProtocolError | None:
        """Error 320, if clients should try another broker."""
        why = self.unavailable()
        return ProtocolError(CONNECTION_FORCED, f"this broker does not serve now: {why}") if why else None

    def admit(self, user: User, name: str) -> Vhost:
        """The vhost that a client wants to go to. Raises ProtocolError 530, or 320 if it should try another broker."""
        refusal = self.refusal()
        if refusal is not None:
            raise refusal
        limit = self.settings.connections_max
        if len(self._open) >= limit:
            raise ProtocolError(NOT_ALLOWED, f"connection refused: node connection limit ({limit}) is reached")
        vhost = self.broker.vhost(name)
        refused = f"access to vhost '{name}' refused for user '{user.name}'"
        if not user.may_enter(name):
            raise ProtocolError(NOT_ALLOWED, refused)
        most = vhost.limits.get("max-connections")
        if most is not None and sum(each.vhost is vhost for each in self._open.values()) >= most:
            raise ProtocolError(NOT_ALLOWED, f"{refused}: connection limit ({most}) is reached")
        most = user.limits.get("max-connections")
        if most is not None and len(self._of(user)) >= most:
            text = f"connection refused for user '{user.name}': user connection limit ({most}) is reached"
            raise ProtocolError(NOT_ALLOWED, text)
        return vhost

    def too_many_channels(self, user: User) -> bool:
        """Whether the user has as many as it may."""
        most = user.limits.get("max-channels")
        return most is not None and sum(len(each.channels) for each in self._of(user)) >= most

    def _of(self, user: User) -> list[Connection]:
        return [each for each in self._open.values() if each.user.name == user.name]

    def opened(self, connection: Connection) -> None:
        self._open[connection.number] = connection
        self.connections_opened += 1
        if self._looking is None:
            self._look_later()

    def ended(self, connection: Connection) -> None:
        self._open.pop(connection.number, None)
        if self.connections.pop(connection.number, None) is not None:
            self._traffic.add(connection.traffic)
        self._look_if_stopped()

    def _look_later(self) -> None:
        """Somebody has to look now and then who keeps deliveries for too long; nobody if there are no clients."""
        timeout = self.settings.consumer_timeout
        self._looking = None
        if timeout and self._open:
            self._looking = self.runtime.call_later(min(LOOK_AFTER, timeout / 4), self._look_who_keeps)

    def _look_who_keeps(self) -> None:
        timeout = self.settings.consumer_timeout
        since = self.runtime.now() - timeout
        for connection in list(self._open.values()):
            for channel in [each for each in connection.channels.values() if each.overdue(since)]:
                text = f"delivery acknowledgement on channel {channel.number} timed out. Timeout value used: "
                error = ProtocolError(PRECONDITION_FAILED, f"{text}{timeout * 1000:.0f} ms (consumer_timeout)")
                connection.failed(channel, error, NO_METHOD)
        self._look_later()

    @property
    def traffic(self) -> Traffic:
        """Of all connections, also those that are over."""
        total = Traffic()
        total.add(self._traffic)
        for connection in self.connections.values():
            total.add(connection.traffic)
        return total

    def trace_rest(self) -> None:
        """For the trace: what each channel's client holds, and what every queue has."""
        traced = self.broker.traced
        if traced is not None:
            for connection in self._open.values():
                for channel in connection.channels.values():
                    traced.unsettled(channel, channel.held())
            traced.inventory(self.broker.vhosts.values())

    def _alarm(self, reason: str) -> None:
        if not reason:
            for connection in list(self._open.values()):
                connection.alarm_over()

    def _vhost_ends(self, vhost: Vhost) -> None:
        self.broker.journal.after(self._leave_vhost, vhost)

    def _leave_vhost(self, vhost: Vhost) -> None:
        for connection in list(self._open.values()):
            if connection.vhost is vhost:
                connection.close(f"vhost '{vhost.name}' is deleted")

    def _user_goes(self, name: str) -> None:
        for connection in list(self._open.values()):
            if connection.user.name == name:
                connection.close(f"user '{name}' is deleted")

    def close_all(self, reason: str) -> None:
        """Every client is to come again, here or elsewhere."""
        for connection in list(self.connections.values()):
            connection.close(reason)

    def hold_back(self) -> None:
        """Take no new clients, and read nothing more from those that are here."""
        for listener in self.listeners:
            listener.close()
        self.listeners.clear()
        for connection in list(self._open.values()):
            connection.throttle.pause("drain")

    def stop(self, done: Callable[[], None], reason: str = "broker forced connection closure: it is stopping") -> None:
        """Listen no more, close every connection, then `done`. Of two calls the second one is told."""
        self._stopped = done
        if self._stopping:
            self._look_if_stopped()
            return
        self._stopping = True
        if self._looking is not None:
            self._looking.cancel()
        for listener in self.listeners:
            listener.close()
        self.listeners.clear()
        self.broker.unwatch_alarms(self._alarm)
        self.broker.deleting_vhost.remove(self._vhost_ends)
        self.users.removed.remove(self._user_goes)
        self.close_all(reason)
        self._look_if_stopped()

    def _look_if_stopped(self) -> None:
        if self._stopped is not None and not self.connections:
            done, self._stopped = self._stopped, None
            self.runtime.call_soon(done)


class TurnedAway(StreamHandler):
    """A connection too many."""

    def connected(self, stream: Stream) -> None:
        stream.abort()

    def received(self, data: Buffer) -> None:
        pass

    def closed(self, reason: CloseReason) -> None:
        pass
