"""Where a link leads to: an AMQP address, with one or several hosts, and by which user.

Passwords are in the environment or in files. On a command line everybody on the machine could read one, so there it is
refused before anything else is looked at.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final
from urllib.parse import quote, unquote

from coterie.errors import UserError
from coterie.runtime.base import Endpoint

PORTS: Final = {"amqp": 5672, "amqps": 5671}
FORM: Final = "amqps://user@host:port/vhost"


@dataclass(frozen=True, slots=True)
class Destination:
    """A broker, or the brokers of a cluster."""

    hosts: tuple[Endpoint, ...]
    vhost: str = "/"
    user: str | None = None
    """None: whoever the certificate of this side names; without one, guest."""
    password: str = field(default="", repr=False)
    secure: bool = False
    """TLS."""

    @property
    def name(self) -> str:
        """Without secrets: for people."""
        where = ",".join(map(str, self.hosts))
        return where if self.vhost == "/" else f"{where}/{self.vhost}"


def parse_destinations(text: str) -> list[Destination]:
    """Raises UserError that tells no password."""
    found = [_parse(each) for each in text.split()]
    names = [each.name for each in found]
    for name in names:
        if names.count(name) > 1:
            raise UserError(f"replication.to: {name} is there twice")
    return found


def has_password(text: str) -> bool:
    """Whether any address in it carries one."""
    return any(_Address(each).password is not None for each in text.split())


def with_password(text: str, password: str) -> str:
    """The same addresses, and the password in each that has a user and none. Raises UserError if none has."""
    given = [_Address(each) for each in text.split()]
    if not any(each.user is not None and each.password is None for each in given):
        raise UserError(
            "replication.password_file: no address of replication.to has a user without a password: leave one of both "
            f"out; {FORM} is due"
        )
    return " ".join(each.with_password(password) for each in given)


class _Address:
    """The parts of one, as they were written."""

    def __init__(self, text: str) -> None:
        self.scheme, self._separator, rest = text.partition("://")
        authority, self._slash, self.path = rest.partition("/")
        login, at, self.where = authority.rpartition("@")
        user, colon, password = login.partition(":")
        self.user = user if at else None
        self.password = password if at and colon else None

    @property
    def is_one(self) -> bool:
        return bool(self._separator) and self.scheme in PORTS

    def with_password(self, password: str) -> str:
        known = quote(password, safe="") if self.password is None else self.password
        login = "" if self.user is None else f"{self.user}:{known}@"
        return f"{self.scheme}{self._separator}{login}{self.where}{self._slash}{self.path}"


def _parse(text: str) -> Destination:
    address = _Address(text)
    if not address.is_one:
        raise UserError(f"replication.to: an address that begins with '{address.scheme[:10]}': {FORM} is due")
    hosts = tuple(_endpoint(host, PORTS[address.scheme]) for host in address.where.split(","))
    if address.user is not None and address.password is None:
        raise UserError(
            f"replication.to: no password for the user '{unquote(address.user)}': put it into a file that only the "
            "node can read, and name that as replication.password_file"
        )
    return Destination(
        hosts,
        unquote(address.path) or "/",
        None if address.user is None else unquote(address.user),
        unquote(address.password or ""),
        address.scheme == "amqps",
    )


def _endpoint(text: str, port_due: int) -> Endpoint:
    host, port = text, str(port_due)
    if text.startswith("["):
        host, _, tail = text[1:].partition("]")
        port = tail[1:] or port
    elif ":" in text:
        host, _, port = text.rpartition(":")
    if not host or not port.isdigit() or not 0 < int(port) < 65536:
        raise UserError(f"replication.to: '{text}' is no host:port")
    return Endpoint(host, int(port))
