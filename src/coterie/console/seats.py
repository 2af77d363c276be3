"""Requests that are being answered: of those who have not logged in few, and few from one address; of one user not all.

A request takes a seat of the unknown when it comes, and changes it for one of its user once it has logged in. Without
a seat it is refused at once: 429 if the one who asks has too many, 503 if all users together have. When all seats of
the unknown are taken, the oldest of the address with most is given up, so that no few addresses keep the others out.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

from coterie.console.refusals import Refused
from coterie.console.settings import ConsoleSettings
from coterie.crowd import Crowd


@dataclass(slots=True, eq=False)
class Seat:
    give_up: Callable[[], None]
    """Ends the connection of the request."""
    user: str | None = None
    """None: nobody has logged in yet."""


class Seats:
    """Of one console."""

    def __init__(self, settings: ConsoleSettings) -> None:
        self._settings = settings
        self._unknown: Crowd[Seat] = Crowd(settings.unknown_requests_max, settings.address_unknown_requests_max)
        self.given_up = 0
        """Requests without a login whose seat others needed, since the start."""
        self._users: Counter[str] = Counter()

    def take(self, host: str, give_up: Callable[[], None]) -> Seat:
        """Raises Refused."""
        unknown = self._unknown
        if unknown.of(host) >= unknown.most_of_one:
            raise Refused(429, "too_many_requests", "too many requests without a login from there are being answered")
        oldest = unknown.who_goes(host) if unknown.crowded(host) else None
        if oldest is not None:
            self.given_up += 1
            unknown.remove(oldest)
            oldest.give_up()
        seat = Seat(give_up)
        unknown.add(seat, host)
        return seat

    def logged_in(self, seat: Seat, user: str) -> None:
        """Raises Refused."""
        settings = self._settings
        if self._users[user] >= settings.user_requests_max:
            raise Refused(
                429, "too_many_requests", f"too many requests of '{user}' are being answered (user_requests_max)"
            )
        if self._users.total() >= settings.requests_max:
            raise Refused(503, "too_many_requests", "too many requests are being answered (requests_max)")
        self.leave(seat)
        seat.user = user
        self._users[user] += 1

    def leave(self, seat: Seat) -> None:
        """It may have been given up already."""
        if seat.user is None:
            self._unknown.remove(seat)
            return
        self._users[seat.user] -= 1
        if not self._users[seat.user]:
            del self._users[seat.user]
