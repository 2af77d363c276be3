"""What a connection was opened with: a token expires, and then the connection ends, unless a new one came in time.

connection.update-secret brings the new one: it must be of the same user, and all that the old one allowed and the new
one does not is over from the next command on. Passwords do not expire: whatever comes for one is taken, and changes
nothing, as in RabbitMQ.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from coterie.amqp.wire.codes import CONNECTION_FORCED, NOT_ALLOWED
from coterie.amqp.wire.methods import Call
from coterie.auditlog.log import REFUSED
from coterie.broker.users import User
from coterie.errors import ProtocolError
from coterie.logs import Log
from coterie.runtime.base import Timer

if TYPE_CHECKING:
    from coterie.amqp.connection import Connection

log = Log(__name__)

LOOK_MAX: Final = 300.0
"""Seconds between two looks at the wall clock, which may be set; a token may be good for years."""
WAITS: Final = "secret"
"""Why nothing more is read while a new token is checked."""


class Credential:
    """Of one connection that is open."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._timer: Timer | None = None

    def watch(self) -> None:
        """From now on, for the user that the connection has now."""
        self.stop()
        connection, expires = self._connection, self._connection.user.expires
        if expires is None or connection.over:
            return
        left = expires - connection.runtime.wall()
        if left > 0:
            self._timer = connection.runtime.call_later(min(left, LOOK_MAX), self.watch)
        else:
            text = f"the token of user '{connection.user.name}' has expired"
            connection.fail(ProtocolError(CONNECTION_FORCED, text))

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def update(self, call: Call) -> None:
        connection = self._connection
        log.info("client has a new secret", client=connection.shown_name, why=call.text("reason"))
        if connection.user.expires is None:
            connection.send("connection.update-secret-ok")
        else:
            connection.throttle.pause(WAITS)
            connection.users.login_token(call.raw("new_secret"), connection.peer, self._checked)

    def _checked(self, result: User | ProtocolError) -> None:
        connection = self._connection
        if connection.over:
            return
        if isinstance(result, ProtocolError):
            why = "the new secret was refused: the broker's log says why"
        elif result.name != connection.user.name:
            why = "a new secret must be of the same user"
        elif not result.may_enter(connection.vhost.name):
            why = f"access to vhost '{connection.vhost.name}' refused for user '{result.name}' by its new secret"
        else:
            connection.user = result  # with its tags and all: nothing of the old token counts any more
            connection.moment += 1
            connection.record_own("login.renewed", of_vhost=connection.vhost.name)
            self.watch()
            connection.send("connection.update-secret-ok")
            connection.outbox.flush()
            connection.throttle.resume(WAITS)
            return
        connection.record_own("login.refused", REFUSED, why, of_vhost=connection.vhost.name)
        connection.fail(ProtocolError(NOT_ALLOWED, why))
