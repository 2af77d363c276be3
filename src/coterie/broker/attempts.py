"""Wrong logins, and what they cost: of one user from one address, of one address, of one user.

Promises: whoever guesses one user's password from one address is refused unheard after so many guesses. Who guesses
many users' from one address, or one user's from many, is not locked out, for others may sit behind that address, and
nobody may lock a user out from elsewhere: each such login waits first. Where a user has logged in well a while ago its
logins do not wait for what others do to it. All tables are bounded, and names are kept as digests.
"""

from __future__ import annotations

import hashlib
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from coterie.crowd import Crowd, address_of

if TYPE_CHECKING:
    from coterie.broker.users import UserSettings
    from coterie.runtime.base import Runtime

KEPT_MAX: Final = 10_000
"""Of each table: pairs, addresses, users whose wrong logins are remembered."""
WAITING_MAX: Final = 256
WAITING_OF_ONE: Final = 16
"""Logins that wait, of all and of one address; with one more, the oldest of the address with most is refused."""

Key = tuple[bytes, str]


class Recent:
    """When something went wrong lately, by key."""

    def __init__(self, runtime: Runtime, window: float, most: int) -> None:
        self._runtime = runtime
        self._window = window
        self._most = most
        self._times: dict[object, deque[float]] = {}

    def __len__(self) -> int:
        return len(self._times)

    def note(self, key: object) -> None:
        times = self._times.pop(key, None) or deque(maxlen=self._most)
        times.append(self._runtime.now())
        self._times[key] = times
        while len(self._times) > KEPT_MAX:
            del self._times[next(iter(self._times))]

    def forget(self, key: object) -> None:
        self._times.pop(key, None)

    def full(self, key: object) -> bool:
        times = self._times.get(key)
        if times is None:
            return False
        since = self._runtime.now() - self._window
        while times and times[0] <= since:
            times.popleft()
        if not times:
            del self._times[key]
        return len(times) >= self._most


@dataclass(slots=True, eq=False)
class Waiting:
    """A login that is not looked at yet."""

    refuse: Callable[[], None]


class Attempts:
    """Of one broker."""

    def __init__(self, runtime: Runtime, settings: UserSettings) -> None:
        self._runtime = runtime
        self._delay = settings.login_delay
        window = settings.login_window
        self.pairs = Recent(runtime, window, settings.login_failures_max)
        self.addresses = Recent(runtime, window, settings.address_failures_max)
        self.users = Recent(runtime, window, settings.user_failures_max)
        self._good: dict[Key, None] = {}
        """Where who has logged in, the latest last."""
        self._waiting: Crowd[Waiting] = Crowd(WAITING_MAX, WAITING_OF_ONE)

    def admit(self, name: str, host: str, go_on: Callable[[], None], refuse: Callable[[], None]) -> None:
        """Look at a login now, after a while, or not at all."""
        user, address = _digest(name), address_of(host)
        if self.pairs.full((user, address)):
            refuse()
        elif self.addresses.full(address) or (self.users.full(user) and (user, address) not in self._good):
            self._wait(host, go_on, refuse)
        else:
            go_on()

    def _wait(self, host: str, go_on: Callable[[], None], refuse: Callable[[], None]) -> None:
        if self._waiting.crowded(host):
            oldest = self._waiting.who_goes(host)
            if oldest is not None:
                self._waiting.remove(oldest)
                oldest.refuse()
        waiting = Waiting(refuse)
        self._waiting.add(waiting, host)

        def over() -> None:
            if waiting in self._waiting:
                self._waiting.remove(waiting)
                go_on()

        self._runtime.call_later(self._delay, over)

    def failed(self, name: str | None, host: str) -> None:
        """None: nobody could tell whose login it was meant to be."""
        address = address_of(host)
        self.addresses.note(address)
        if name is not None:
            user = _digest(name)
            self.pairs.note((user, address))
            self.users.note(user)

    def succeeded(self, name: str, host: str) -> None:
        key = _digest(name), address_of(host)
        self.pairs.forget(key)
        self._good.pop(key, None)
        self._good[key] = None
        while len(self._good) > KEPT_MAX:
            del self._good[next(iter(self._good))]


def _digest(name: str) -> bytes:
    return hashlib.sha256(name.encode("utf-8", "surrogatepass")).digest()[:16]
