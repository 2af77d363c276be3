"""What one channel publishes, from its frames to the event: read just enough to route it, gathered by the builder.

A publish's method frame is looked up whole, as bytes, among those already read; so are its properties, without the body
size before them: publishers send the same ones over and over. Body and properties stay raw. Only messages with further
routing keys in their headers (CC, BCC), and exchanges that route by headers, are looked at one by one.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final, Generic, NamedTuple, Protocol, TypeVar

from coterie.amqp.wire.codes import NOT_IMPLEMENTED, PRECONDITION_FAILED, UNEXPECTED_FRAME
from coterie.amqp.wire.methods import METHODS
from coterie.amqp.wire.properties import BASIC, PREFIX, decode, encode, scan
from coterie.broker import validation
from coterie.broker.columns.builder import Append, Block, EventBuilder, make_block
from coterie.broker.columns.event import HEADER_PREFIX
from coterie.broker.columns.routes import Route
from coterie.broker.message import HAS_HEADERS, parse_ttl
from coterie.broker.router import COPIES, hidden_copies
from coterie.broker.specs import REPLY_TO
from coterie.errors import ProtocolError

KNOWN_MAX: Final = 256
"""Method frames, and property blocks, that a channel remembers."""
KNOWN_SIZE_MAX: Final = 256
"""Longer ones are probably of one message only."""
_PUBLISH = METHODS["basic.publish"]
_HEAD = struct.Struct(">HHQ")
_NO_HEADERS: Final[Mapping[str, object]] = {}
Who = TypeVar("Who")


class Wiring(Protocol):
    """Where messages go, in one vhost."""

    version: int
    """Another one whenever a route may have become another."""

    def find(
        self, exchange: str, keys: Sequence[str], headers: Callable[[], Mapping[str, object]]
    ) -> tuple[tuple[int, ...], bool]:
        """The queues' incarnations, and whether they hang on exchange and keys alone."""


@dataclass(slots=True, eq=False)
class Target:
    """What the method frame of a publish says."""

    exchange: str
    key: str
    raw: bytes
    """Both, as basic.deliver and basic.return carry them."""
    mandatory: bool
    route: Route | None = None
    """Where it leads, once that is known and hangs on exchange and key alone."""


class Kept(NamedTuple):
    """What the properties of a message say."""

    block: Block
    """As queues get them: the name of a direct reply's consumer is put in, BCC taken out."""
    returned: Block
    """As the publisher gets them back: with BCC."""
    copies: tuple[str, ...]
    """Further routing keys."""
    headers: Mapping[str, object] | None
    """Decoded already; None: they were not."""


class Nowhere(NamedTuple):
    """A message that no queue gets."""

    route: Route
    block: Block
    body: bytes
    before: int
    """How many messages the event had when it came."""


class Content:
    """A message whose frames have not all come."""

    __slots__ = ("header", "left", "method", "parts")

    def __init__(self, method: bytes) -> None:
        self.method = method
        self.header: bytes | None = None
        self.parts: list[bytes] = []
        self.left = 0


class Intake(Generic[Who]):
    """Of one channel. What a client can get wrong raises ProtocolError, and nothing of that message is kept."""

    def __init__(
        self,
        builder: EventBuilder[Who],
        who: Who,
        wiring: Wiring,
        message_max: int,
        user: str,
        check: Callable[[str, str], None],
    ) -> None:
        self._builder = builder
        self._who = who
        self._wiring = wiring
        self._version = wiring.version
        self._message_max = message_max
        self._user = user
        self._check = check
        """Raises ProtocolError if nothing may be published to that exchange, with that key."""
        self._targets: dict[bytes, Target] = {}
        """By method frame; of this version of the wiring."""
        self._kept: dict[bytes, Kept] = {}
        self._reply_to: str | None = None
        self.nowhere: list[Nowhere] = []
        """Since somebody last cleared it; it is for whoever has called `publish`."""
        self.content: Content | None = None
        """The message that is being received in pieces."""

    def replies_to(self, name: str | None) -> None:
        """What REPLY_TO stands for from now on."""
        self._reply_to = name
        self._kept.clear()

    # Frames.

    def method(self, payload: bytes) -> None:
        self.content = Content(payload)

    def header(self, payload: bytes) -> bool:
        """True if the message is complete with it."""
        content = self.content
        if content is None or content.header is not None:
            raise ProtocolError(UNEXPECTED_FRAME, "a content header that no publish announced")
        if len(payload) < PREFIX + 2:
            raise _too_early()
        class_id, _, size = _HEAD.unpack_from(payload)
        if class_id != BASIC or size > self._message_max:
            raise self._refused(class_id, size, 0)
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

    def publish(self, method: bytes, header: bytes, body: bytes) -> Append | None:
        """A whole message. The answer takes the bodies of those directly after it that have the same method and header;
        None: they are to come here too."""
        if self._wiring.version != self._version:
            self._version = self._wiring.version
            self._targets.clear()
        target = self._targets.get(method)
        if target is None:
            target = self._learn_target(method)
        self._check(target.exchange, target.key)
        if len(header) < PREFIX + 2:
            raise _too_early()
        class_id, _, size = _HEAD.unpack_from(header)
        if size != len(body) or size > self._message_max or class_id != BASIC:
            raise self._refused(class_id, size, len(body))
        kept = self._kept.get(header[PREFIX:])
        if kept is None:
            kept = self._learn(header[PREFIX:])
        route = target.route
        if route is None or kept.copies:
            route = self._route(target, kept)
        if not route.queues:
            self.nowhere.append(Nowhere(route, kept.returned, body, self._builder.count))
            return None
        return self._builder.add(route, kept.block, self._who, body)

    def clear(self) -> None:
        """The channel is over."""
        self.nowhere.clear()
        self.content = None

    # What is seen for the first time.

    def _refused(self, class_id: int, size: int, body: int) -> ProtocolError:
        if class_id != BASIC:
            return ProtocolError(UNEXPECTED_FRAME, f"expected a content header of class {BASIC}, got one of {class_id}")
        if size > self._message_max:
            text = f"message size {size} is larger than configured max size {self._message_max}"
            return ProtocolError(PRECONDITION_FAILED, text)
        return ProtocolError(UNEXPECTED_FRAME, f"a body of {body} bytes, where its header says {size}")

    def _learn_target(self, method: bytes) -> Target:
        call = _PUBLISH.decode(method)
        if call.flag("immediate"):
            raise ProtocolError(NOT_IMPLEMENTED, "immediate=true")
        target = Target(call.text("exchange"), call.text("routing_key"), method[6:-1], call.flag("mandatory"))
        if len(self._targets) >= KNOWN_MAX:  # keys that never come again
            self._targets.clear()
        self._targets[method] = target
        return target

    def _route(self, target: Target, kept: Kept) -> Route:
        keys = (target.key, *kept.copies)
        queues, fixed = self._wiring.find(target.exchange, keys, lambda: _headers(kept))
        route = Route(target.raw, target.mandatory, queues)
        if fixed and not kept.copies:
            target.route = route
        return route

    def _learn(self, raw: bytes) -> Kept:
        header = _header_of(raw)
        persistent, priority, expiration, reply_to, user_id = scan(header)
        if user_id is not None and user_id != self._user:
            raise ProtocolError(
                PRECONDITION_FAILED,
                f"user_id property set to '{user_id}' but authenticated user was '{self._user}'",
            )
        ttl = parse_ttl(expiration)
        headers: Mapping[str, object] | None = None
        copies: tuple[str, ...] = ()
        hidden = False
        if raw[0] & HAS_HEADERS and COPIES in raw:
            properties = decode(header)
            headers = properties.headers or {}
            validation.refuse(validation.copies(headers), "message")
            copies, hidden = _copies(headers), hidden_copies(properties)
        sent = raw
        if reply_to == REPLY_TO:
            if self._reply_to is None:
                raise ProtocolError(PRECONDITION_FAILED, "fast reply consumer does not exist")
            sent = encode(replace(decode(header), reply_to=self._reply_to), 0)[PREFIX:]
        returned = block = make_block(sent, persistent, priority, ttl)
        if hidden:
            properties = decode(_header_of(sent))
            visible = {name: value for name, value in (properties.headers or {}).items() if name != "BCC"}
            block = block._replace(raw=encode(replace(properties, headers=visible), 0)[PREFIX:])
        kept = Kept(block, returned, copies, headers)
        if len(raw) <= KNOWN_SIZE_MAX:
            if len(self._kept) >= KNOWN_MAX:
                self._kept.clear()
            self._kept[raw] = kept
        return kept


def _too_early() -> ProtocolError:
    return ProtocolError(UNEXPECTED_FRAME, "a content header that ends too early")


def _header_of(raw: bytes) -> bytes:
    return HEADER_PREFIX + bytes(8) + raw


def _copies(headers: Mapping[str, object]) -> tuple[str, ...]:
    found: list[str] = []
    for name in validation.COPIES:
        value = headers.get(name)
        if isinstance(value, Sequence) and not isinstance(value, str | bytes):
            found += [key for key in value if isinstance(key, str)]
    return tuple(found)


def _headers(kept: Kept) -> Mapping[str, object]:
    if kept.headers is not None:
        return kept.headers
    try:
        return decode(_header_of(kept.block.raw)).headers or _NO_HEADERS
    except ProtocolError:
        return _NO_HEADERS
