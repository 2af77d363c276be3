"""Which key checks a token: the issuer's keys, fetched when they are needed, kept for a while.

A key that is new is found when the first token names it; one that is withdrawn is gone after `keys_refresh` seconds.
Whatever tokens name, the issuer is asked once at a time, and not again within `keys_pause` seconds. While it does not
answer, the keys that are known are used until they are `keys_keep` seconds old, and only the first token waits for it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from coterie.logs import Log
from coterie.oauth.keys import Key
from coterie.oauth.settings import OauthSettings
from coterie.runtime.base import Runtime

log = Log(__name__)

WAITING_MAX: Final = 1000
"""Tokens that may wait for keys; one more is refused."""
NO_SUCH_KEY: Final = "the issuer has no such key"
ASKED_LATELY: Final = "the issuer had no such key a moment ago"
Found = Callable[[Key | None, str], None]
"""The key; or none, and why."""


class KeyRing:
    """Of one broker."""

    def __init__(self, runtime: Runtime, settings: OauthSettings, fetch: Callable[[], list[Key]]) -> None:
        self._runtime = runtime
        self._settings = settings
        self._fetch = fetch
        self._keys: Sequence[Key] = ()
        self._fetched: float | None = None
        """When the keys were; None: never."""
        self._tried: float | None = None
        self._fetching = False
        self._answers = True
        """The issuer did, when it was asked last."""
        self._waiting: list[tuple[str | None, str, Found]] = []

    def warm(self) -> None:
        """Fetch now, so that the first login need not wait, and a wrong setting shows in the log at once."""
        if not self._fetching:
            self._start()

    def find(self, kid: str | None, algorithm: str, done: Found) -> None:
        """The key of that name that is for that algorithm."""
        now = self._runtime.now()
        fresh = self._fetched is not None and now - self._fetched < self._settings.keys_refresh
        key = self._pick(kid, algorithm)
        if key is not None and (fresh or (self.known and not self._answers)):
            if not fresh and self._may_ask(now):
                self._start()
            done(key, "")
        elif len(self._waiting) >= WAITING_MAX:
            done(None, "too many tokens wait for the issuer's keys")
        elif self._fetching:
            self._waiting.append((kid, algorithm, done))
        elif self._may_ask(now):
            self._waiting.append((kid, algorithm, done))
            self._start()
        else:
            self._settle(kid, algorithm, done, ASKED_LATELY)

    def _may_ask(self, now: float) -> bool:
        return not self._fetching and (self._tried is None or now - self._tried >= self._settings.keys_pause)

    @property
    def known(self) -> bool:
        """Whether there are keys that may be used."""
        return self._fetched is not None and self._runtime.now() - self._fetched < self._settings.keys_keep

    def _start(self) -> None:
        self._fetching = True
        self._tried = self._runtime.now()
        self._runtime.offload(self._fetch, self._ended)

    def _ended(self, result: list[Key] | Exception) -> None:
        self._fetching = False
        self._tried = self._runtime.now()
        self._answers = not isinstance(result, Exception)
        if isinstance(result, Exception):
            log.warning("the issuer's keys cannot be had", why=str(result) or type(result).__name__)
        else:
            if [key.kid for key in result] != [key.kid for key in self._keys]:
                log.info("the issuer has these keys", keys=", ".join(key.kid[:64] or "?" for key in result))
            self._keys = tuple(result)
            self._fetched = self._runtime.now()
        waiting, self._waiting = self._waiting, []
        for kid, algorithm, done in waiting:
            self._settle(kid, algorithm, done)

    def _settle(self, kid: str | None, algorithm: str, done: Found, otherwise: str = NO_SUCH_KEY) -> None:
        """With the keys that there are."""
        if not self.known:
            done(None, "the issuer's keys cannot be had")
            return
        key = self._pick(kid, algorithm)
        done(key, "" if key is not None else otherwise)

    def _pick(self, kid: str | None, algorithm: str) -> Key | None:
        """A token that names none must leave no choice."""
        found = [key for key in self._keys if algorithm in key.algorithms and kid in (None, key.kid)]
        return found[0] if len(found) == 1 or (found and kid is not None) else None
