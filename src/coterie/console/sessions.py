"""Sessions of browsers: who has logged in on the page, and what proves that a request comes from there.

A session is known by 32 random bytes in a cookie that no script can read and no other site can make the browser send.
What changes something must bring the session's token besides, which only the page was told. A session belongs to the
address that it was begun from. It ends when its user logs out, is deleted or gets another password, when the token it
was begun with expires, when it was not used for a while, and when it is old. Only digests are kept: who reads this
memory still has no cookie.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from coterie.broker.passwords import Hash
from coterie.broker.users import User, Users
from coterie.console.settings import ConsoleSettings
from coterie.runtime.base import Runtime

TOKEN: Final = "X-CSRF-Token"
_BYTES: Final = 32


@dataclass(slots=True)
class Session:
    """One login."""

    user: str
    password: Hash | None
    """That it was begun with: with another one the session is over."""
    host: str
    token: str
    began: float
    used: float
    bearer: User | None = None
    """Whom the token describes that it was begun with; None: a user that is stored."""


class Sessions:
    """Of one node."""

    def __init__(self, runtime: Runtime, users: Users, settings: ConsoleSettings, node: str) -> None:
        self._runtime = runtime
        self._users = users
        self._settings = settings
        self._sessions: dict[bytes, Session] = {}
        """By the digest of the cookie, that which was used longest ago first."""
        # Browsers keep cookies by host, whatever the port: several nodes on one host must not log each other out.
        self.cookie: Final = f"coterie-{hashlib.sha256(node.encode()).hexdigest()[:12]}"

    def __len__(self) -> int:
        return len(self._sessions)

    def begin(self, user: User, host: str) -> tuple[str, Session]:
        """What the cookie is to say, and the session. If there are too many, the one goes that nobody used longest."""
        secret, token = self._runtime.entropy(_BYTES).hex(), self._runtime.entropy(_BYTES).hex()
        now = self._runtime.now()
        self._sweep(now)
        while len(self._sessions) >= self._settings.sessions_max:
            del self._sessions[next(iter(self._sessions))]
        bearer = user if user.expires is not None else None
        session = Session(user.name, user.password, host, token, now, now, bearer)
        self._sessions[_digest(secret)] = session
        return secret, session

    def find(self, cookies: Mapping[str, str], host: str) -> tuple[User, Session] | None:
        """Whose request it is; None: nobody's."""
        key = _digest(cookies.get(self.cookie, ""))
        session = self._sessions.get(key)
        if session is None or session.host != host:
            return None
        user, now = session.bearer or self._users.get(session.user), self._runtime.now()
        away = not self._users.may_come_from(session.user, host)
        if user is None or away or user.password != session.password or self._over(session, now):
            del self._sessions[key]
            return None
        session.used = now
        self._sessions[key] = self._sessions.pop(key)
        return user, session

    def end(self, cookies: Mapping[str, str]) -> None:
        self._sessions.pop(_digest(cookies.get(self.cookie, "")), None)

    def _over(self, session: Session, now: float) -> bool:
        settings, bearer = self._settings, session.bearer
        if bearer is not None and bearer.expires is not None and bearer.expires <= self._runtime.wall():
            return True
        return now - session.used >= settings.session_idle or now - session.began >= settings.session_max

    def _sweep(self, now: float) -> None:
        for key in [key for key, session in self._sessions.items() if self._over(session, now)]:
            del self._sessions[key]


def proves(session: Session, given: str) -> bool:
    """Whether a request that changes something comes from the page."""
    return hmac.compare_digest(session.token.encode(), given.encode("utf-8", "surrogateescape"))


def _digest(secret: str) -> bytes:
    return hashlib.sha256(secret.encode("utf-8", "surrogateescape")).digest()
