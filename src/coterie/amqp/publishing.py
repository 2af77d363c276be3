"""What a channel publishes: read just enough to route it, gathered for one batch, confirmed in one frame.

A publish's method frame is looked up whole, as bytes, among those already read, and so is its header: publishers send
the same ones over and over. Header and body stay raw. Whatever came in one read of the socket is one batch; when the
vhost says that it is safe, one cumulative basic.ack confirms it, and a basic.nack what a queue refused.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final, NamedTuple

from coterie.amqp.wire.codes import FRAME_METHOD, NOT_IMPLEMENTED, PRECONDITION_FAILED, UNEXPECTED_FRAME
from coterie.amqp.wire.framing import Repeat
from coterie.amqp.wire.methods import METHODS
from coterie.amqp.wire.properties import BASIC, PREFIX, decode, encode, scan
from coterie.broker import validation
from coterie.broker.message import HAS_HEADERS, Message, parse_ttl
from coterie.broker.publish import Publish
from coterie.broker.router import COPIES, copies_of
from coterie.broker.specs import REPLY_TO
from coterie.errors import ProtocolError

KNOWN_MAX: Final = 256
"""Method frames, and headers, that a channel remembers."""
KNOWN_SIZE_MAX: Final = 256
"""Longer ones are probably of one message only."""
CHEAP: Final = 16
"""A message that costs no more is not asked about if the ones before it were the same."""
_PUBLISH = METHODS["basic.publish"]
_SETTLED = struct.Struct(">BHIHHQBB")
_HEAD = struct.Struct(">HHQ")
_ACK, _NACK = 80, 120


@dataclass(frozen=True, slots=True)
class Route:
    """What the method frame of a publish says."""

    exchange: str
    key: str
    raw: bytes
    """Both, as basic.deliver and basic.return carry them."""
    mandatory: bool


class Kept(NamedTuple):
    """What the header of a message says, and the header to keep: one object for all messages that have the same."""

    header: bytes
    persistent: bool
    priority: int
    ttl: int | None
    copies: tuple[str, ...] = ()
    """Its further routing keys."""


class Taken(NamedTuple):
    """A batch."""

    publishes: list[Publish]
    size: int
    """Bytes of its bodies."""
    work: int
    """Copies for queues, and steps on the way to them (`Vhost.work`)."""


class Content:
    """A message whose frames have not all come."""

    __slots__ = ("header", "left", "method", "parts")

    def __init__(self, method: bytes) -> None:
        self.method = method
        self.header: bytes | None = None
        self.parts: list[bytes] = []
        self.left = 0


class Inbound:
    """Messages on their way in, of one channel."""

    __slots__ = ("_check", "_headers", "_message_max", "_reply_to", "_routes", "_series", "_user", "_work", "content")

    def __init__(
        self, message_max: int, user: str, check: Callable[[str, str], None], work: Callable[[Route, Kept], int]
    ) -> None:
        self._message_max = message_max
        self._user = user
        self._check = check
        """Raises ProtocolError if nothing may be published to that exchange, with that key."""
        self._work = work
        """What such a message costs; it is told of each that is not cheap."""
        self._routes: dict[bytes, Route] = {}
        self._headers: dict[bytes, Kept] = {}
        self._reply_to: str | None = None
        self._series: list[tuple[Route, Kept, int, list[bytes]]] = []
        """What came since the last batch: messages that differ in their bodies only are together, with what each of
        them costs."""
        self.content: Content | None = None
        """The message that is being received in pieces."""

    def __bool__(self) -> bool:
        """Whether there is anything for a batch."""
        return bool(self._series)

    def replies_to(self, name: str | None) -> None:
        """What REPLY_TO stands for from now on."""
        self._reply_to = name
        self._headers.clear()

    # Frames.

    def method(self, payload: bytes) -> None:
        self.content = Content(payload)

    def header(self, payload: bytes) -> bool:
        """True if the message is complete with it."""
        content = self.content
        if content is None or content.header is not None:
            raise ProtocolError(UNEXPECTED_FRAME, "a content header that no publish announced")
        if len(payload) < PREFIX + 2:
            raise ProtocolError(UNEXPECTED_FRAME, "a content header that ends too early")
        class_id, _, size = _HEAD.unpack_from(payload)
        if class_id != BASIC:
            raise ProtocolError(UNEXPECTED_FRAME, f"expected a content header of class {BASIC}, got one of {class_id}")
        if size > self._message_max:
            raise self._too_large(size)
        content.header, content.left = payload, size
        return size == 0 and self._complete(content)

    def body(self, payload: bytes) -> bool:
        content = self.content
        if content is None or content.header is None:
            raise ProtocolError(UNEXPECTED_FRAME, "a body that no content header announced")
        content.left -= len(payload)
        if content.left < 0:
            raise ProtocolError(UNEXPECTED_FRAME, f"a body that is {-content.left} bytes longer than its header says")
        content.parts.append(payload)
        return content.left == 0 and self._complete(content)

    def _complete(self, content: Content) -> bool:
        self.content = None
        assert content.header is not None
        self.publish(content.method, content.header, b"".join(content.parts))
        return True

    def publish(self, method: bytes, header: bytes, body: bytes) -> Repeat | None:
        """A whole message. Raises ProtocolError if it cannot be taken. The answer takes the bodies of those after it
        that have the same method and header; None: each of them costs so much that it is to be asked about."""
        route = self._routes.get(method)
        if route is None:
            route = self._learn_route(method)
        self._check(route.exchange, route.key)
        kept = self._headers.get(header)
        if kept is None:
            kept = self._learn_header(header)
        work = self._work(route, kept)
        bodies = [body]
        self._series.append((route, kept, work, bodies))
        return bodies.append if work <= CHEAP else None

    def take(self) -> Taken:
        """The batch."""
        series, self._series = self._series, []
        publishes: list[Publish] = []
        size = total = 0
        for route, (header, persistent, priority, ttl, _), work, bodies in series:
            exchange, key, raw, mandatory = route.exchange, route.key, route.raw, route.mandatory
            size += len(bodies) * len(bodies[0])
            total += len(bodies) * work
            publishes += [
                Publish(Message(exchange, key, raw, header, body, persistent, priority, ttl), mandatory)
                for body in bodies
            ]
        return Taken(publishes, size, total)

    def clear(self) -> None:
        """The channel is over."""
        self._series.clear()
        self.content = None

    # What is seen for the first time.

    def _learn_route(self, method: bytes) -> Route:
        call = _PUBLISH.decode(method)
        if call.flag("immediate"):
            raise ProtocolError(NOT_IMPLEMENTED, "immediate=true")
        route = Route(call.text("exchange"), call.text("routing_key"), method[6:-1], call.flag("mandatory"))
        if len(self._routes) >= KNOWN_MAX:  # keys that never come again
            self._routes.clear()
        self._routes[method] = route
        return route

    def _learn_header(self, header: bytes) -> Kept:
        class_id, _, size = _HEAD.unpack_from(header)
        if class_id != BASIC:
            raise ProtocolError(UNEXPECTED_FRAME, f"expected a content header of class {BASIC}, got one of {class_id}")
        if size > self._message_max:
            raise self._too_large(size)
        persistent, priority, expiration, reply_to, user_id = scan(header)
        if user_id is not None and user_id != self._user:
            raise ProtocolError(
                PRECONDITION_FAILED,
                f"user_id property set to '{user_id}' but authenticated user was '{self._user}'",
            )
        ttl = parse_ttl(expiration)
        copies: tuple[str, ...] = ()
        if header[PREFIX] & HAS_HEADERS and COPIES in header:
            headers = decode(header).headers or {}
            validation.refuse(validation.copies(headers), "message")
            copies = tuple(copies_of(headers))
        raw = header
        if reply_to == REPLY_TO:
            if self._reply_to is None:
                raise ProtocolError(PRECONDITION_FAILED, "fast reply consumer does not exist")
            raw = encode(replace(decode(header), reply_to=self._reply_to), size)
        kept = Kept(raw, persistent, priority, ttl, copies)
        if len(header) <= KNOWN_SIZE_MAX:
            if len(self._headers) >= KNOWN_MAX:
                self._headers.clear()
            self._headers[header] = kept
        return kept

    def _too_large(self, size: int) -> ProtocolError:
        text = f"message size {size} is larger than configured max size {self._message_max}"
        return ProtocolError(PRECONDITION_FAILED, text)


class Confirms:
    """Which publishes of a channel in confirm mode are settled, in the order in which they came in."""

    __slots__ = ("_channel", "confirmed", "published", "refused")

    def __init__(self, channel: int) -> None:
        self._channel = channel
        self.published = 0
        self.confirmed = 0
        self.refused = 0
        """Of those that are confirmed: how many with a basic.nack."""

    def settle(self, publishes: list[Publish], out: list[bytes]) -> int:
        """The next ones are safe, or refused: write that; gives the bytes."""
        before = len(out)
        first = self.confirmed + 1
        self.confirmed = last = self.confirmed + len(publishes)
        refused = [number for number, publish in enumerate(publishes, first) if publish.refused]
        if not refused:
            out.append(self._frame(_ACK, last, last > first))
            return _SETTLED.size
        # A cumulative ack would settle what it passes over, so before each refused one stands an ack, then its nack.
        self.refused += len(refused)
        done = first - 1
        for number in refused:
            if number - 1 > done:
                out.append(self._frame(_ACK, number - 1, True))
            out.append(self._frame(_NACK, number, False))
            done = number
        if last > done:
            out.append(self._frame(_ACK, last, True))
        return (len(out) - before) * _SETTLED.size

    def _frame(self, method: int, tag: int, multiple: bool) -> bytes:
        return _SETTLED.pack(FRAME_METHOD, self._channel, 13, BASIC, method, tag, multiple, 0xCE)
