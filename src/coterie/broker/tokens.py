"""What users need of whoever checks tokens (`coterie.oauth`, an extra): whose a token is, or why it is no good."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final, Protocol

if TYPE_CHECKING:
    from coterie.broker.users import User

TELL_AGAIN: Final = 1.0
"""Seconds."""
TOLD_MAX: Final = 1000


class BadToken(Exception):
    """Why, for the log; a client is told nothing but that its login failed. `counts`: as a wrong login of its address;
    not so if the issuer does not answer, or is not asked again yet, which no client can help."""

    def __init__(self, why: str, counts: bool = True) -> None:
        super().__init__(why)
        self.counts = counts


class Refusals:
    """What the log has been told of logins that are no good: of one host, each reason once in a while."""

    def __init__(self) -> None:
        self._told: dict[tuple[str, str], float] = {}

    def is_new(self, host: str, why: str, now: float) -> bool:
        last = self._told.get((host, why))
        if last is not None and now - last < TELL_AGAIN:
            return False
        self._told.pop((host, why), None)
        self._told[host, why] = now
        while len(self._told) > TOLD_MAX:
            del self._told[next(iter(self._told))]
        return True


class Tokens(Protocol):
    """Checks tokens."""

    token_max: int
    shown: dict[str, str]
    """What a page may know before anybody has logged in."""

    def check(self, token: bytes, done: Callable[[User | BadToken], None]) -> None: ...


def looks_like_token(secret: bytes) -> bool:
    """Three parts with dots between, of which the first is a JSON object in base64."""
    return secret.startswith(b"eyJ") and secret.count(b".") == 2
