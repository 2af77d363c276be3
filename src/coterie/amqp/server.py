"""The AMQP front door: listens, plain and with TLS, and keeps what the console shows of its connections.

Limits come first: so many open connections, so many that have not been opened yet, of all and of one address; when
these are too many, the oldest silent one of the address with most goes. When the broker is low on disk or
memory the connections that publish are held back, and let go when that is over.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from coterie.amqp.connection import NO_METHOD, Connection
from coterie.amqp.head_count import CHANNELS, CONNECTIONS, counted, of_user, of_vhost
from coterie.amqp.rates import HELD, Rates
from coterie.amqp.settings import AmqpSettings
from coterie.amqp.stopwatch import Stopwatch
from coterie.amqp.traffic import Traffic
from coterie.amqp.wire.codes import CONNECTION_FORCED, NOT_ALLOWED, PRECONDITION_FAILED
from coterie.auditlog.log import REFUSED
from coterie.broker.broker import Broker
from coterie.broker.head_count import USERS, USERS_CHANNELS, VHOSTS, Elsewhere, HeadCount
from coterie.broker.users import User, Users
from coterie.broker.vhost import Vhost
from coterie.crowd import Crowd
from coterie.errors import ProtocolError
from coterie.logs import Log
from coterie.runtime.base import (
    Endpoint,
    Listener,
    Runtime,
    StreamHandler,
    Timer,
    TlsConfig,
)

log = Log(__name__)

SHED_WITHIN: Final = 5.0
"""Seconds for which a connection is new: it may turn out that others have taken its place at the same moment."""
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
        self.elsewhere = Elsewhere()
        """Clients of other brokers, as far as limits count them."""
        self._handshakes: Crowd[Connection] = Crowd(self.settings.handshakes_max, self.settings.address_handshakes_max)
        self.rates = Rates(runtime)
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

    def listen(
        self, endpoint: Endpoint, tls: TlsConfig | None = None, admits: Callable[[str], bool] | None = None
    ) -> Listener:
        """Raises UserError if the address cannot be had. `admits`: whether a client may come from that host."""
        listener = self.runtime.net.listen(endpoint, lambda: self._accept(listener.endpoint), tls, admits)
        self.listeners.append(listener)
        log.info("listening for AMQP", at=listener.endpoint, tls=tls is not None)
        return listener

    def _accept(self, listener: Endpoint) -> StreamHandler:
        self.accepted += 1
        connection = self.connections[self.accepted] = Connection(self, self.accepted, listener)
        return connection

    def arrived(self, connection: Connection) -> bool:
        """It is connected, and is to be opened. False: there is no place for it, as all others wait for us."""
        host = connection.peer.host
        if self._handshakes.crowded(host):
            self.turned_away += 1
            oldest = self._handshakes.who_goes(host, lambda each: each.awaits_client)
            if oldest is None:
                return False
            self._handshakes.remove(oldest)
            oldest.cut()
        self._handshakes.add(connection, host)
        return True

    def set_aside(self, connection: Connection) -> None:
        """It waits for its turn, and takes no place of those who log in."""
        self._handshakes.remove(connection)

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
        if not user.may_enter(name):
            raise ProtocolError(NOT_ALLOWED, f"access to vhost '{name}' refused for user '{user.name}'")
        most, open = vhost.limits.get(CONNECTIONS), self._open.values()
        if most is not None and len(of_vhost(open, vhost)) + self.elsewhere.count(VHOSTS, name) >= most:
            raise ProtocolError(NOT_ALLOWED, _vhost_full(user, name, most))
        most = user.limits.get(CONNECTIONS)
        if most is not None and len(of_user(open, user)) + self.elsewhere.count(USERS, user.name) >= most:
            raise ProtocolError(NOT_ALLOWED, _user_full(user, most))
        return vhost

    def too_many_channels(self, user: User) -> bool:
        """Whether the user has as many as it may."""
        most = user.limits.get(CHANNELS)
        if most is None:
            return False
        here = sum(len(each.channels) for each in of_user(self._open.values(), user))
        return here + self.elsewhere.count(USERS_CHANNELS, user.name) >= most

    def head_count(self) -> HeadCount:
        since = self.runtime.now() - SHED_WITHIN
        for each in self._open.values():
            each.is_old = each.is_old or each.running_since < since
        return counted(self._open.values())

    def shed(self, before: Callable[[str, str], int]) -> None:
        """Others have let clients in at the same moment. `before`: how many those have that come first; what is too
        much with them, and is new, ends here. What has been open for longer stays, as when a limit is lowered."""
        open = self._open.values()
        for vhost in {each.vhost.name: each.vhost for each in open}.values():
            most = vhost.limits.get(CONNECTIONS)
            if most is not None:
                ours = of_vhost(open, vhost)
                self._end_newest(ours, len(ours) + before(VHOSTS, vhost.name) - most, vhost, most)
        for user in {each.user.name: each.user for each in open}.values():
            most = user.limits.get(CONNECTIONS)
            if most is not None:
                ours = of_user(open, user)
                self._end_newest(ours, len(ours) + before(USERS, user.name) - most, None, most)

    def _end_newest(self, ours: list[Connection], surplus: int, vhost: Vhost | None, most: int) -> None:
        for connection in sorted(ours, key=lambda each: -each.number)[: max(surplus, 0)]:
            if not connection.is_old:
                user = connection.user
                text = _user_full(user, most) if vhost is None else _vhost_full(user, vhost.name, most)
                connection.record_own("login.refused", REFUSED, text, of_vhost=connection.vhost.name)
                connection.fail(ProtocolError(NOT_ALLOWED, text))
                self.elsewhere.changed()

    def opened(self, connection: Connection) -> None:
        self._handshakes.remove(connection)
        self._open[connection.number] = connection
        self.connections_opened += 1
        self.elsewhere.changed()
        if self._looking is None:
            self._look_later()

    def ended(self, connection: Connection) -> None:
        self._handshakes.remove(connection)
        self.rates.waiting.pop(connection, None)
        if self._open.pop(connection.number, None) is not None:
            self.elsewhere.changed()
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

    def held_back(self) -> tuple[int, int]:
        """Connections that the rates of their users hold back now: that publish, and that wait to be opened."""
        return sum(HELD in each.throttle.reasons for each in self._open.values()), len(self.rates.waiting)

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


def _vhost_full(user: User, vhost: str, most: int) -> str:
    return f"access to vhost '{vhost}' refused for user '{user.name}': connection limit ({most}) is reached"


def _user_full(user: User, most: int) -> str:
    return f"connection refused for user '{user.name}': user connection limit ({most}) is reached"
