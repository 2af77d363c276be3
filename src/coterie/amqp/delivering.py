"""How messages become frames. A delivery is a few cached byte strings around the raw header and body of the message.

Everything that does not change from one delivery to the next is kept: what stands before the delivery tag, by route;
what stands between route and body, by header. One join, elsewhere, serves a whole batch.
"""

from __future__ import annotations

import struct
from itertools import count
from typing import Final

from coterie.amqp.wire.codes import FRAME_BODY, FRAME_HEADER, FRAME_METHOD, FRAME_OVERHEAD
from coterie.amqp.wire.methods import METHODS
from coterie.amqp.wire.tables import short
from coterie.broker.delivery import Delivery
from coterie.broker.message import Message

KEPT_MAX: Final = 256
"""Byte strings that are kept of one kind."""
KEPT_HEADER_MAX: Final = 256
"""A longer header is probably of one message only."""
_FRAME = struct.Struct(">BHI")
_TAG = struct.Struct(">QB")
_NEXT = struct.Struct(">BBHI")
"""The end of one frame and the beginning of the next."""
_DELIVER = METHODS["basic.deliver"].prefix
_GET_OK = METHODS["basic.get-ok"].prefix
_RETURN = METHODS["basic.return"].prefix

Heads = dict[bytes, bytes]
"""Of one consumer, by route: everything of a basic.deliver before its delivery tag."""


class Frames:
    """Writes messages to one channel. `frame_max` is what the client agreed to."""

    __slots__ = ("_channel", "_frame_max", "_middles")

    def __init__(self, channel: int, frame_max: int) -> None:
        self._channel = channel
        self._frame_max = frame_max
        self._middles: dict[bytes, bytes] = {}
        """By header: everything between a route and a body that fits into one frame."""

    def deliver(self, tag: str, heads: Heads, first: int, delivery: Delivery, out: list[bytes]) -> int:
        """basic.deliver for each message, with rising delivery tags from `first`; gives the bytes, roughly."""
        middles, pack = self._middles, _TAG.pack
        limit = self._frame_max - FRAME_OVERHEAD
        size = 0
        for number, message, redelivered in zip(count(first), delivery.messages, delivery.flags(), strict=False):
            route, header, body = message.route, message.header, message.body
            size += len(body)
            head = heads.get(route)
            if head is None:
                head = self._head(tag, heads, route)
            middle = middles.get(header)
            if middle is None:
                if not 0 < len(body) <= limit:
                    out += (head, pack(number, redelivered), route, b"\xce")
                    self._content(message, out)
                    continue
                middle = self._middle(header, len(body))
            out += (head, pack(number, redelivered), route, middle, body, b"\xce")
        return size + 80 * delivery.count

    def reply(self, tag: str, number: int, message: Message, out: list[bytes]) -> None:
        """basic.deliver of what was in no queue."""
        self._method(b"".join((_DELIVER, short(tag), _TAG.pack(number, False), message.route)), out)
        self._content(message, out)

    def get_ok(self, number: int, delivery: Delivery, left: int, out: list[bytes]) -> None:
        (message,) = delivery.messages
        head = _TAG.pack(number, bool(delivery.flagged))
        self._method(b"".join((_GET_OK, head, message.route, left.to_bytes(4, "big"))), out)
        self._content(message, out)

    def returned(self, message: Message, code: int, text: str, out: list[bytes]) -> None:
        self._method(b"".join((_RETURN, code.to_bytes(2, "big"), short(text), message.route)), out)
        self._content(message, out)

    def _head(self, tag: str, heads: Heads, route: bytes) -> bytes:
        name = short(tag)
        size = len(_DELIVER) + len(name) + _TAG.size + len(route)
        if len(heads) >= KEPT_MAX:  # routing keys that never come again
            heads.clear()
        head = heads[route] = _FRAME.pack(FRAME_METHOD, self._channel, size) + _DELIVER + name
        return head

    def _middle(self, header: bytes, size: int) -> bytes:
        channel = self._channel
        begin = _NEXT.pack(0xCE, FRAME_HEADER, channel, len(header))
        middle = begin + header + _NEXT.pack(0xCE, FRAME_BODY, channel, size)
        if len(header) <= KEPT_HEADER_MAX:
            if len(self._middles) >= KEPT_MAX:
                self._middles.clear()
            self._middles[header] = middle
        return middle

    def _method(self, payload: bytes, out: list[bytes]) -> None:
        out += (_FRAME.pack(FRAME_METHOD, self._channel, len(payload)), payload, b"\xce")

    def _content(self, message: Message, out: list[bytes]) -> None:
        """The header, and as many body frames as it takes."""
        out += (_FRAME.pack(FRAME_HEADER, self._channel, len(message.header)), message.header, b"\xce")
        step = self._frame_max - FRAME_OVERHEAD
        body = message.body
        for at in range(0, len(body), step):
            part = body[at : at + step]
            out += (_FRAME.pack(FRAME_BODY, self._channel, len(part)), part, b"\xce")
