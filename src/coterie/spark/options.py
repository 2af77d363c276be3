"""The options of `format("coterie")`, checked before anything runs: what is wrong, and what is meant.

Names are in Spark's camelCase, and case does not matter. Whoever logs in is a user and a password, which are options of
their own and never part of an address: addresses are told in plans, errors and logs, secrets are not.
"""

from __future__ import annotations

import re
import ssl
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from pathlib import Path
from typing import Final

from coterie.errors import UserError

SPARKS_OWN: Final = frozenset({"path", "checkpointlocation", "queryname", "outputmode"})
"""Spark hands these on; they are not for us."""
LOGIN: Final = ("servers", "user", "password", "passwordFile", "vhost", "tlsCa", "tlsCert", "tlsKey", "tlsHostname")
_TIME = re.compile(r"(\d+(?:\.\d+)?)\s*(ms|s|m|h)?")
_UNITS: Final = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, None: 1.0}


class Options:
    """What was given, by names in any case. `known`: every name that there is."""

    def __init__(self, given: Mapping[str, str], known: Iterable[str]) -> None:
        self._given = {name.lower(): value for name, value in given.items()}
        names = {name.lower(): name for name in known}
        for name in given:
            if name.lower() not in names and name.lower() not in SPARKS_OWN:
                near = get_close_matches(name.lower(), names, 1)
                hint = f"is '{names[near[0]]}' meant?" if near else f"there are: {', '.join(sorted(names.values()))}"
                raise UserError(f"there is no option '{name}': {hint}")

    def __contains__(self, name: str) -> bool:
        return name.lower() in self._given

    def text(self, name: str, default: str = "") -> str:
        return self._given.get(name.lower(), default)

    def word(self, name: str, default: str, words: Iterable[str]) -> str:
        value = self.text(name, default)
        if value not in words:
            raise UserError(f"option {name}: one of {', '.join(words)} is due, not '{value}'")
        return value

    def flag(self, name: str, default: bool) -> bool:
        value = self.text(name, str(default)).lower()
        if value not in ("true", "false"):
            raise UserError(f"option {name}: true or false is due, not '{value}'")
        return value == "true"

    def whole(self, name: str, default: int, least: int = 1) -> int:
        value = self.text(name, str(default)).strip()
        if not value.isdigit() or int(value) < least:
            raise UserError(f"option {name}: a whole number from {least} on is due, not '{value}'")
        return int(value)

    def seconds(self, name: str, default: str) -> float:
        value = self.text(name, default).strip()
        found = _TIME.fullmatch(value)
        if found is None:
            raise UserError(f"option {name}: a time is due, as 500ms, 30s or 5m, not '{value}'")
        return float(found[1]) * _UNITS[found[2]]


@dataclass(frozen=True)
class Login:
    """Who we are, and whom we believe."""

    user: str
    password: str = field(repr=False)
    password_file: str = ""
    """Read where it is needed: then the password itself is in no plan."""
    tls_ca: str = ""
    tls_cert: str = ""
    tls_key: str = ""
    tls_hostname: bool = True
    """A certificate must be of the host that is dialled."""

    def secret(self) -> str:
        """The password. Raises UserError."""
        if not self.password_file:
            return self.password
        try:
            return Path(self.password_file).read_text().rstrip("\r\n")
        except OSError as error:
            raise UserError(f"option passwordFile: {self.password_file}: cannot be read: {error.strerror}") from None

    def context(self) -> ssl.SSLContext:
        """For a connection with TLS. Raises UserError."""
        try:
            context = ssl.create_default_context(cafile=self.tls_ca or None)
        except (OSError, ValueError):
            raise UserError(f"option tlsCa: {self.tls_ca}: not a certificate in PEM form that can be read") from None
        context.check_hostname = self.tls_hostname
        if self.tls_cert or self.tls_key:
            try:
                context.load_cert_chain(self.tls_cert, self.tls_key or None, lambda: b"")
            except (OSError, ValueError):
                raise UserError(
                    f"options tlsCert and tlsKey: {self.tls_cert}, {self.tls_key}: not a certificate and its private "
                    "key, in PEM form and without a pass phrase, that can be read"
                ) from None
        return context


def login(options: Options) -> Login:
    if "password" in options and "passwordFile" in options:
        raise UserError("options password and passwordFile: give one of them")
    default = "" if "passwordFile" in options else "guest"
    return Login(
        options.text("user", "guest"), options.text("password", default), options.text("passwordFile"),
        options.text("tlsCa"), options.text("tlsCert"), options.text("tlsKey"), options.flag("tlsHostname", True),
    )  # fmt: skip


@dataclass(frozen=True)
class Server:
    """Where one broker listens."""

    scheme: str
    host: str
    port: int

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{self.scheme}://{host}:{self.port}"


def servers(options: Options, ports: Mapping[str, int]) -> tuple[Server, ...]:
    """`ports`: the schemes that there are, with their usual ports; the first one goes without saying."""
    schemes = [*ports]
    form = f"{schemes[0]}://HOST:PORT,..."
    found = []
    for text in filter(None, (each.strip() for each in options.text("servers").split(","))):
        if "@" in text:
            raise UserError(f"option servers: user and password are options of their own; here goes {form}")
        scheme, there, rest = text.partition("://")
        if not there:
            scheme, rest = schemes[0], text
        host, _, port = _split(rest.rstrip("/"))
        if scheme not in ports or not host or not (port or "1").isdigit() or not 0 < int(port or 1) < 65536:
            raise UserError(f"option servers: '{text}' is no address: {form} is due")
        found.append(Server(scheme, host, int(port) if port else ports[scheme]))
    if not found:
        raise UserError(f"option servers is missing: {form}")
    if len({server.scheme for server in found}) > 1:
        raise UserError(f"option servers: all with TLS, or none: {', '.join(map(str, found))}")
    return tuple(found)


def _split(text: str) -> tuple[str, str, str]:
    if text.startswith("["):
        host, _, rest = text[1:].partition("]")
        return host, ":", rest.removeprefix(":")
    return text.partition(":")
