"""A message: what was published, as raw as it came.

Header and body stay the bytes that the client sent, through routing, queues, the store and delivery; they are decoded
only for whoever asks (`properties`: headers exchanges, dead letters, the console). A message never changes once it
was published and may be in many queues at once.
"""

from __future__ import annotations

from coterie.amqp.wire.codes import PRECONDITION_FAILED
from coterie.amqp.wire.properties import Properties, decode, encode, peek
from coterie.amqp.wire.tables import short
from coterie.errors import ProtocolError

HAS_HEADERS = 0x20
"""In the first byte of the property flags: there is a headers table."""
TTL_MAX = 2**32 - 1
"""Milliseconds, as in RabbitMQ: seven weeks."""
_FLAGS = 12
"""Where the property flags begin in a content header: after class id, weight and body size."""


class Message:
    """One published message. Whoever publishes makes it by position: this is the hot path."""

    __slots__ = (
        "_properties", "body", "exchange", "header", "id", "key", "persistent", "priority", "route", "stored", "ttl"
    )  # fmt: skip

    def __init__(
        self,
        exchange: str,
        key: str,
        route: bytes,
        header: bytes,
        body: bytes,
        persistent: bool,
        priority: int,
        ttl: int | None,
    ) -> None:
        self.exchange = exchange
        self.key = key
        self.route = route
        """Exchange and routing key as basic.deliver carries them: two short strings."""
        self.header = header
        """The content header frame's payload: class id, weight, body size, property flags, properties."""
        self.body = body
        self.persistent = persistent
        self.priority = priority
        self.ttl = ttl
        """Milliseconds, of the property `expiration`."""
        self.id: tuple[int, int, int] | None = None
        """Node, incarnation, sequence: the cluster's; None alone."""
        self.stored = 0
        """The store's own: where it has the content, so that a message in many queues is written once; 0: nowhere."""
        self._properties: Properties | None = None

    def properties(self) -> Properties:
        """The decoded properties; not to be changed."""
        if self._properties is None:
            self._properties = decode(self.header)
        return self._properties

    def letter(self, letter: Message) -> Message:
        """A letter was made of it, with its body: the letter that is to be sent."""
        return letter

    @property
    def has_headers(self) -> bool:
        """Whether there is a headers table, without decoding it."""
        return bool(self.header[_FLAGS] & HAS_HEADERS)


def route_bytes(exchange: str, key: str) -> bytes:
    """Exchange and routing key as two short strings."""
    return short(exchange) + short(key)


def parse_ttl(expiration: str | None) -> int | None:
    """The property `expiration` in milliseconds. Raises ProtocolError 406 if it is no such thing."""
    if expiration is None:
        return None
    if expiration.isascii() and expiration.isdigit() and len(expiration) < 20:
        ttl = int(expiration)
        if ttl <= TTL_MAX:
            return ttl
    raise ProtocolError(
        PRECONDITION_FAILED, f"invalid expiration '{expiration[:40]}': milliseconds are due, from 0 to {TTL_MAX}"
    )


def make_message(exchange: str, key: str, body: bytes, properties: Properties | None = None) -> Message:
    """A message that no client sent in this form: a dead letter, one from the console, one of a test."""
    header = encode(properties or Properties(), len(body))
    persistent, priority, expiration = peek(header)
    ttl = parse_ttl(expiration)
    return Message(exchange, key, route_bytes(exchange, key), header, body, persistent, priority, ttl)
