"""The content of a message in the log: a byte that tells the form, the cluster's id if there is one, then route,
header and body as they are. Everything else about the message follows from its header.
"""

from __future__ import annotations

import struct
from functools import lru_cache
from typing import Final

from coterie.amqp.wire.properties import peek
from coterie.amqp.wire.tables import read_short
from coterie.broker.message import Message, parse_ttl
from coterie.broker.storage import Damaged
from coterie.errors import ProtocolError

PLAIN: Final = b"\0"
_WITH_ID = 1
_ID = struct.Struct("<BQQQ")
_BODY_SIZE = struct.Struct(">Q")
_BODY_SIZE_AT = 4


def prologue(message: Message) -> bytes:
    """What stands before the route."""
    return PLAIN if message.id is None else _ID.pack(_WITH_ID, *message.id)


def decode_content(content: bytes) -> Message:
    """The message, with its bytes as slices. Raises Damaged if these bytes are no content."""
    try:
        form = content[0]
        at = 1 if form == 0 else _ID.size
        exchange_end = at + 1 + content[at]
        route_end = exchange_end + 1 + content[exchange_end]
        exchange, key = _names(content[at:route_end])
        (body_size,) = _BODY_SIZE.unpack_from(content, route_end + _BODY_SIZE_AT)
        header_end = len(content) - body_size
        if form > _WITH_ID or header_end < route_end:
            raise Damaged("a message's content makes no sense")
        header = content[route_end:header_end]
        persistent, priority, expiration = peek(header)
        ttl = parse_ttl(expiration)
    except (IndexError, struct.error, ProtocolError):
        raise Damaged("a message's content makes no sense") from None
    message = Message(exchange, key, content[at:route_end], header, content[header_end:], persistent, priority, ttl)
    if form == _WITH_ID:
        _, node, incarnation, sequence = _ID.unpack_from(content)
        message.id = node, incarnation, sequence
    return message


@lru_cache(4096)
def _names(route: bytes) -> tuple[str, str]:
    """Exchange and routing key: many messages share them."""
    exchange, end = read_short(route, 0)
    return exchange, read_short(route, end)[0]
