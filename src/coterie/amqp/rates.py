"""How fast a user may publish and connect: limits of the user, in messages, bytes and connections a second.

All connections of a user to this broker share one bucket for each limit, which holds what may be spent in a second.
Whoever has spent more is not read until the debt is paid, and who opens a connection waits for its turn: nobody is
disconnected, and the client's own socket holds it back.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from coterie.amqp.wire.codes import NOT_ALLOWED
from coterie.broker.users import User
from coterie.errors import ProtocolError
from coterie.runtime.base import Runtime

if TYPE_CHECKING:
    from coterie.amqp.connection import Connection

MESSAGES: Final = "max-publish-rate"
BYTES: Final = "max-publish-bytes-rate"
CONNECTIONS: Final = "max-connection-rate"
RATES: Final = (MESSAGES, BYTES, CONNECTIONS)
RATE_MAX: Final = 1 << 53
HELD: Final = "rate"
"""Why a connection is not read."""
LOOK_AGAIN: Final = 0.5
"""Seconds after which a connection that waits is looked at again: its user's limits may have changed."""
WAITING_MAX: Final = 1000
"""Connections of a user that wait for their turn; one more is refused."""
BUCKETS_MAX: Final = 10_000
"""Buckets that are kept before those that are full, and so are as if they were new, are dropped."""


class Bucket:
    """What may be spent now; less than nothing is a debt."""

    __slots__ = ("_at", "_level")

    def __init__(self, rate: int, now: float) -> None:
        self._level = float(rate)
        self._at = now

    def spend(self, amount: int, rate: int, now: float) -> None:
        self._level = self.level(rate, now) - amount
        self._at = now

    def level(self, rate: int, now: float) -> float:
        return min(float(rate), self._level + (now - self._at) * rate)


class Rates:
    """Of all users that are connected to one broker."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._buckets: dict[tuple[str, str], Bucket] = {}
        self.waiting: dict[Connection, None] = {}
        """Connections that wait to be opened."""

    def published(self, connection: Connection, messages: int, size: int) -> None:
        """A connection has published so much."""
        user = connection.user
        self._spend(user, MESSAGES, messages)
        self._spend(user, BYTES, size)
        if HELD not in connection.throttle.reasons and self._debt(user):
            connection.throttle.pause(HELD)
            self._runtime.call_later(min(LOOK_AGAIN, self._debt(user)), self._look, connection)

    def _look(self, connection: Connection) -> None:
        if connection.over:
            return
        debt = self._debt(connection.user)
        if debt:
            self._runtime.call_later(min(LOOK_AGAIN, debt), self._look, connection)
        else:
            connection.throttle.resume(HELD)

    def _debt(self, user: User) -> float:
        """Seconds until the user may publish again."""
        return max(self._wait(user, MESSAGES), self._wait(user, BYTES))

    def connect(self, connection: Connection, then: Callable[[], None]) -> None:
        """Open a connection when it is its turn. Raises ProtocolError 530 if too many of its user wait."""
        user = connection.user
        if not rate_of(user, CONNECTIONS):
            then()
            return
        if sum(each.user.name == user.name for each in self.waiting) >= WAITING_MAX:
            raise ProtocolError(NOT_ALLOWED, f"too many connections of user '{user.name}' wait for {CONNECTIONS}")
        self._spend(user, CONNECTIONS, 1)
        wait = self._wait(user, CONNECTIONS)
        if not wait:
            then()
            return
        self.waiting[connection] = None
        connection.throttle.pause(HELD)
        connection.take_time()
        self._turn(connection, self._runtime.now() + wait, then)

    def _turn(self, connection: Connection, due: float, then: Callable[[], None]) -> None:
        if connection.over:
            self.waiting.pop(connection, None)
            return
        left = due - self._runtime.now()
        if left > 0 and rate_of(connection.user, CONNECTIONS):
            self._runtime.call_later(min(LOOK_AGAIN, left), self._turn, connection, due, then)
            return
        self.waiting.pop(connection, None)
        try:
            then()
        except ProtocolError as error:
            connection.fail(error)
        else:
            connection.throttle.resume(HELD)

    def _spend(self, user: User, limit: str, amount: int) -> None:
        rate, now = rate_of(user, limit), self._runtime.now()
        if not rate:
            return
        bucket = self._buckets.get((user.name, limit))
        if bucket is None:
            if len(self._buckets) >= BUCKETS_MAX:
                self._sweep(now)
            bucket = self._buckets[user.name, limit] = Bucket(rate, now)
        bucket.spend(amount, rate, now)

    def _wait(self, user: User, limit: str) -> float:
        """Seconds until the debt is paid."""
        rate = rate_of(user, limit)
        bucket = self._buckets.get((user.name, limit)) if rate else None
        if bucket is None:
            return 0.0
        return max(0.0, -bucket.level(rate, self._runtime.now()) / rate)

    def _sweep(self, now: float) -> None:
        """By a rate of one a second: those that are not used for long are full."""
        for key in [key for key, bucket in self._buckets.items() if bucket.level(1, now) >= 1]:
            del self._buckets[key]


def rate_of(user: User, limit: str) -> int:
    """0: there is none."""
    return max(0, min(user.limits.get(limit, 0), RATE_MAX))
