"""Where a link leads to: an AMQP address, with one or several hosts."""

from __future__ import annotations

from dataclasses import dataclass, field
from urllib.parse import unquote

from coterie.errors import UserError
from coterie.runtime.base import Endpoint

PORT = 5672
FORM = "amqp://user:password@host:port/vhost"


@dataclass(frozen=True, slots=True)
class Destination:
    """A broker, or the brokers of a cluster."""

    hosts: tuple[Endpoint, ...]
    vhost: str = "/"
    user: str = "guest"
    password: str = field(default="guest", repr=False)

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


def _parse(text: str) -> Destination:
    scheme, separator, rest = text.partition("://")
    if not separator or scheme != "amqp":
        why = "TLS is not spoken between brokers of a link yet" if scheme == "amqps" else f"{FORM} is due"
        raise UserError(f"replication.to: an address that begins with '{scheme[:10]}': {why}")
    authority, slash, path = rest.partition("/")
    login, at, where = authority.rpartition("@")
    user, colon, password = login.partition(":")
    hosts = tuple(_endpoint(host) for host in where.split(","))
    return Destination(
        hosts,
        unquote(path) if slash and path else "/",
        unquote(user) if at else "guest",
        unquote(password) if colon else ("" if at else "guest"),
    )


def _endpoint(text: str) -> Endpoint:
    host, port = text, str(PORT)
    if text.startswith("["):
        host, _, tail = text[1:].partition("]")
        port = tail[1:] or port
    elif ":" in text:
        host, _, port = text.rpartition(":")
    if not host or not port.isdigit() or not 0 < int(port) < 65536:
        raise UserError(f"replication.to: '{text}' is no host:port")
    return Endpoint(host, int(port))
