"""The settings of logins with tokens: whose tokens are good, what they are about, and how long keys are kept."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final
from urllib.parse import urlsplit

from coterie.addresses import is_this_machine
from coterie.errors import UserError
from coterie.settings import setting

ALGORITHMS: Final = (
    "RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA",
)  # fmt: skip
"""All with a private and a public key. With a shared one (HS256) whoever can check a token can also make one."""


@dataclass(frozen=True, slots=True)
class OauthSettings:
    """Logins with tokens of an OAuth 2 issuer; off unless `issuer` is set. Needs the extra `secure`."""

    issuer: str = setting("", "URL of the issuer, exactly as its tokens say it in `iss`; empty: no tokens")
    resource_server_id: str = setting("", "what tokens call this broker: the prefix of its scopes, and the audience")
    audience: str = setting("", "what `aud` of a token must hold; empty: resource_server_id")
    scope_prefix: str | None = setting(
        None, "what scopes of this broker begin with; unset: resource_server_id and a dot"
    )
    additional_scopes_key: str = setting(
        "", "claims that hold more scopes, with dots for nested ones and spaces between several, as in RabbitMQ"
    )
    username_claims: tuple[str, ...] = setting(
        ("sub", "client_id"), "claims that may name the user; the first that is there does"
    )
    algorithms: tuple[str, ...] = setting(("RS256", "ES256"), "signatures that are accepted", choices=ALGORITHMS)
    jwks_url: str = setting("", "where the issuer's keys are; empty: its /.well-known/openid-configuration tells")
    ca: str = setting("", "file with the authority that signed the issuer's certificate; empty: those of the system")
    timeout: float = setting(5.0, "time that the issuer has to answer", unit="s", minimum=0.1)
    leeway: float = setting(10.0, "how far the clocks of issuer and broker may be apart", unit="s", minimum=0)
    keys_refresh: float = setting(300.0, "age at which keys are fetched again before use", unit="s", minimum=1)
    keys_keep: float = setting(
        3600.0, "age up to which keys are used if the issuer does not answer", unit="s", minimum=1
    )
    keys_pause: float = setting(5.0, "least time between two fetches, whatever tokens name", unit="s", minimum=0.1)
    token_max: int = setting(16_384, "largest token that is looked at", unit="bytes", minimum=512)

    def on(self) -> bool:
        """Whether tokens are accepted at all. Raises UserError for what contradicts itself or has no effect."""
        if not self.issuer:
            if self != OauthSettings():
                raise UserError("[oauth] has no effect without oauth.issuer: set it, or leave the section out")
            return False
        if not self.resource_server_id:
            raise UserError("oauth.issuer needs oauth.resource_server_id: what tokens call this broker")
        if not self.algorithms or not self.username_claims:
            raise UserError("oauth.algorithms and oauth.username_claims must name at least one each")
        if self.keys_keep < self.keys_refresh:
            raise UserError("oauth.keys_keep must be at least oauth.keys_refresh")
        check_url(self.issuer, "oauth.issuer")
        if self.jwks_url:
            check_url(self.jwks_url, "oauth.jwks_url")
        return True

    @property
    def prefix(self) -> str:
        return f"{self.resource_server_id}." if self.scope_prefix is None else self.scope_prefix


def check_url(text: str, name: str) -> None:
    """Who can change the keys on their way here can make tokens: so HTTPS, but for an issuer on this host. Raises
    UserError."""
    try:
        url = urlsplit(text)
        host, _ = url.hostname or "", url.port
    except ValueError:
        raise UserError(f"{name}: '{text[:200]}' is no URL") from None
    plain = not any(letter.isspace() or not letter.isprintable() for letter in text) and text.isascii()
    if not plain or not host or url.scheme not in ("http", "https") or url.username is not None or url.fragment:
        raise UserError(f"{name}: '{text[:200]}' is no URL of the form https://host/path")
    if url.scheme == "http" and not is_this_machine(host):
        raise UserError(f"{name}: '{text[:200]}' must be an https URL: only an issuer on this host may do without")
