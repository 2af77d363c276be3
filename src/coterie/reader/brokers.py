"""Whom to ask, and as whom: from arguments, else from the variables that the command line knows too.

COTERIE_URL names consoles, several with commas between; COTERIE_PASSWORD is the password of the user who is in it;
COTERIE_CA is a file with the authority of https addresses. An argument wins over its variable. No text and no `repr`
has a password in it.
"""

from __future__ import annotations

import os
import ssl
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final, TypedDict
from urllib.parse import unquote, urlsplit

from coterie.errors import UserError
from coterie.streams.client import Client

HERE: Final = "http://127.0.0.1:15672"
URL: Final = "COTERIE_URL"
PASSWORD: Final = "COTERIE_PASSWORD"
CA: Final = "COTERIE_CA"
DEFAULT_USER: Final = "guest"
Nodes = str | Sequence[str] | None


class Login(TypedDict, total=False):
    """What every call of this package takes beside its own arguments."""

    user: str
    password: str
    password_file: str | os.PathLike[str]
    """Read when it is needed; the end of its line does not count."""
    vhost: str
    ca_file: str
    """Of the authority that signs the nodes' certificates; without it, those of the system."""
    cert_file: str
    key_file: str
    """Of our own certificate, where nodes ask for one."""
    context: ssl.SSLContext
    """Instead of these three."""
    timeout: float
    """Seconds without a byte after which another node is asked."""
    patience: float
    """Seconds without any progress after which nobody is asked any more."""


@dataclass(frozen=True)
class Brokers:
    """Of one cluster."""

    urls: tuple[str, ...]
    """Without user and password."""
    user: str
    password: str = field(repr=False)
    vhost: str = "/"
    ca_file: str | None = None
    cert_file: str | None = None
    key_file: str | None = None
    context: ssl.SSLContext | None = field(default=None, repr=False)
    timeout: float = 30.0
    patience: float = 60.0

    def client(self) -> Client:
        """To be closed by whoever asks for it. Raises UserError."""
        return Client(
            self.urls, self.user, self.password, self.vhost, ca_file=self.ca_file, cert_file=self.cert_file,
            key_file=self.key_file, context=self.context, timeout=self.timeout, patience=self.patience,
        )  # fmt: skip

    def hasty(self, patience: float) -> Brokers:
        """The same, asked for so many seconds at most."""
        return replace(self, patience=min(patience, self.patience), timeout=min(patience, self.timeout))


def brokers(nodes: Nodes, login: Login, environment: Mapping[str, str] = os.environ) -> Brokers:
    """Raises UserError."""
    unknown = sorted({*login} - {*Login.__annotations__})
    if unknown:
        raise UserError(f"there is no argument '{unknown[0]}'; there are: {', '.join(Login.__annotations__)}")
    timeout, patience = login.get("timeout", 30.0), login.get("patience", 60.0)
    if not (timeout > 0 and patience > 0):
        raise UserError("timeout and patience: seconds are due, more than 0")
    urls, user, password = _addresses(nodes, environment)
    if "user" in login and login["user"] != user:
        user, password = login["user"], None
    password = _password(login, password, environment)
    if user is None:
        user = DEFAULT_USER
    if password is None:
        if user != DEFAULT_USER:
            raise UserError(f"no password for '{user}': give password or password_file, or set {PASSWORD}")
        password = DEFAULT_USER
    secure = any(url.startswith("https://") for url in urls)
    return Brokers(
        urls, user, password, login.get("vhost", "/"),
        login.get("ca_file") or (environment.get(CA) or None if secure else None),
        login.get("cert_file"), login.get("key_file"), login.get("context"),
        timeout, patience,
    )  # fmt: skip


def _addresses(nodes: Nodes, environment: Mapping[str, str]) -> tuple[tuple[str, ...], str | None, str | None]:
    """With the user and the password that the first one has which has any."""
    given = environment.get(URL) or HERE if nodes is None else nodes
    texts = given.split(",") if isinstance(given, str) else [*given]
    urls: list[str] = []
    user: str | None = None
    password: str | None = None
    for text in filter(None, (each.strip() for each in texts)):
        whole = text if "://" in text else f"http://{text}"
        scheme, _, rest = whole.partition("://")
        who, at, where = rest.rpartition("@")
        urls.append(f"{scheme}://{where}")
        if at and user is None:
            found = urlsplit(f"//{who}@host")
            user = unquote(found.username or "")
            password = None if found.password is None else unquote(found.password)
    if not urls:
        raise UserError(f"nodes: the address of a node's console is due, as {HERE}")
    return tuple(urls), user, password


def _password(login: Login, of_url: str | None, environment: Mapping[str, str]) -> str | None:
    if "password_file" in login:
        if "password" in login:
            raise UserError("password and password_file: give one of them")
        try:
            return Path(login["password_file"]).read_text().rstrip("\r\n")
        except (OSError, UnicodeDecodeError) as error:
            why = getattr(error, "strerror", None) or "not UTF-8 text"
            raise UserError(f"password_file: {login['password_file']}: cannot be read: {why}") from None
    if "password" in login:
        return login["password"]
    return of_url if of_url is not None else environment.get(PASSWORD)
