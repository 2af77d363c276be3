"""Checks a token, and tells whose it is: the signature, who issued it, for whom, until when, and what it allows.

The algorithm must be one of the settings' and of the key's; the token alone decides nothing. Times are by this node's
clock, with the settings' leeway. No token, and no part of one, is ever logged.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import jwt

from coterie.broker import validation
from coterie.broker.tokens import BadToken
from coterie.broker.users import User
from coterie.oauth.fetching import fetch_keys
from coterie.oauth.keyring import NO_SUCH_KEY, KeyRing
from coterie.oauth.keys import Key
from coterie.oauth.scopes import granted, scopes_of
from coterie.oauth.settings import OauthSettings
from coterie.oauth.token_user import TokenUser
from coterie.runtime.base import Runtime

KID_MAX: Final = 1024
_TROUBLE: Final = (jwt.PyJWTError, ValueError, TypeError, OverflowError, RecursionError)
_OPTIONS: Final[Any] = {"verify_exp": False, "verify_nbf": False, "verify_iat": False, "require": ["exp", "iss", "aud"]}
"""Times are looked at here, by the runtime's clock."""


class TokenLogins:
    """Of one broker."""

    def __init__(self, runtime: Runtime, settings: OauthSettings, fetch: Callable[[], list[Key]] | None = None) -> None:
        self._runtime = runtime
        self._settings = settings
        self._ring = KeyRing(runtime, settings, fetch or (lambda: fetch_keys(settings)))
        self.token_max = settings.token_max
        self.shown = {"issuer": settings.issuer, "resource_server_id": settings.resource_server_id}
        """What the page may know."""

    def start(self) -> None:
        self._ring.warm()

    def check(self, token: bytes, done: Callable[[User | BadToken], None]) -> None:
        """Whose it is, or why it is no good."""
        try:
            kid, algorithm = self._header(token)
        except BadToken as bad:
            done(bad)
            return

        def found(key: Key | None, why: str) -> None:
            if key is None:
                done(BadToken(why, counts=why == NO_SUCH_KEY))  # otherwise it may be good, for all that is known
                return
            try:
                result: User | BadToken = self._verified(token, key, algorithm)
            except BadToken as bad:
                result = bad
            done(result)

        self._ring.find(kid, algorithm, found)

    def _header(self, token: bytes) -> tuple[str | None, str]:
        """The name of the key, and the algorithm. Raises BadToken."""
        if len(token) > self.token_max:
            raise BadToken(f"it has more than {self.token_max} bytes (oauth.token_max)")
        try:
            header = jwt.get_unverified_header(token)
        except _TROUBLE:
            raise BadToken("it is no token") from None
        kid, algorithm = header.get("kid"), header.get("alg")
        if not isinstance(algorithm, str) or algorithm not in self._settings.algorithms:
            raise BadToken("its algorithm is none of oauth.algorithms")
        if "crit" in header or header.get("b64", True) is not True:
            raise BadToken("its header asks for what is not understood here")
        if kid is not None and not (isinstance(kid, str) and len(kid) <= KID_MAX):
            raise BadToken("it names its key by something that is no name")
        return kid, algorithm

    def _verified(self, token: bytes, key: Key, algorithm: str) -> TokenUser:
        settings = self._settings
        audience = settings.audience or settings.resource_server_id
        try:
            claims = jwt.decode(
                token, key.public, algorithms=[algorithm], audience=audience, issuer=settings.issuer, options=_OPTIONS
            )
        except jwt.InvalidSignatureError:
            raise BadToken("its signature is wrong") from None
        except jwt.InvalidAudienceError:
            raise BadToken("it is for another audience") from None
        except jwt.InvalidIssuerError:
            raise BadToken("it is of another issuer") from None
        except _TROUBLE as error:
            raise BadToken(f"it cannot be used ({type(error).__name__})") from None
        now, leeway = self._runtime.wall(), settings.leeway
        expires = _moment(claims, "exp") + leeway
        if expires <= now:
            raise BadToken("it has expired")
        if "nbf" in claims and _moment(claims, "nbf") - leeway > now:
            raise BadToken("it is not valid yet")
        name = next((claims[claim] for claim in settings.username_claims if isinstance(claims.get(claim), str)), None)
        if name is None or validation.name(name):
            raise BadToken("it names no user (oauth.username_claims)")
        scopes = scopes_of(claims, settings.additional_scopes_key, settings.resource_server_id)
        try:
            grants = granted(scopes, settings.prefix)
        except ValueError as error:
            raise BadToken(str(error)) from None
        return TokenUser(name, None, grants.tags, expires=expires, grants=grants)


def _moment(claims: dict[str, Any], name: str) -> float:
    value = claims[name]
    if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) < 1e12:
        raise BadToken(f"its '{name}' is no time")
    return float(value)
