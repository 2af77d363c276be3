"""Messages of an event as the frames that a client gets: basic.deliver or basic.get-ok, content header, body.

Bodies are slices of the event's buffer. What does not change from one message to the next is made once: for a row of
messages that differ in their bodies only, a delivery is four parts, two of them the same objects each time. The parts
are for one join, or one scatter write, of everything that a connection writes in a turn.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from typing import Final

from coterie.amqp.wire.codes import FRAME_BODY, FRAME_END, FRAME_HEADER, FRAME_METHOD, FRAME_OVERHEAD
from coterie.amqp.wire.methods import METHODS
from coterie.amqp.wire.properties import BASIC, PREFIX
from coterie.amqp.wire.tables import short
from coterie.broker.columns.event import PublishEvent
from coterie.broker.columns.layout import Range
from coterie.runtime.base import Buffer

KEPT_MAX: Final = 256
"""Beginnings that are kept for one consumer."""
_FRAME = struct.Struct(">BHI")
_TAG = struct.Struct(">Q")
_END: Final = bytes((FRAME_END,))
_AGAIN: Final = (b"\x00", b"\x01")
"""By whether it is redelivered."""
_DELIVER = METHODS["basic.deliver"].prefix
_GET_OK = METHODS["basic.get-ok"].prefix
_RETURN = METHODS["basic.return"].prefix


class ConsumerFrames:
    """Writes basic.deliver for one consumer. `frame_max` is what the client agreed to."""

    __slots__ = ("_begin", "_channel", "_heads", "_limit")

    def __init__(self, channel: int, frame_max: int, tag: str) -> None:
        self._channel = channel
        self._limit = frame_max - FRAME_OVERHEAD
        self._begin = _DELIVER + short(tag)
        self._heads: dict[bytes, bytes] = {}
        """By route: everything of a basic.deliver before its delivery tag."""

    def deliver(
        self,
        event: PublishEvent,
        first: int,
        stop: int,
        delivery_tag: int,
        redelivered: Sequence[Range],
        out: list[Buffer],
    ) -> int:
        """Messages `first` to `stop` with rising delivery tags; `redelivered`: ranges of offsets, rising. Gives the
        bytes of their bodies. Raises ValueError, before anything was written, if they are not all in the event."""
        bodies = event.bodies(first, stop)
        if not bodies:
            return 0
        columns = event.columns
        length = event.length
        in_one_frame = length is not None and 0 < length <= self._limit
        alike = columns.route_of is None and columns.block_of is None and not columns.own_blocks
        for begin, end, again in _split(first, stop, redelivered) if redelivered else ((first, stop, False),):
            tag = delivery_tag + begin - first
            some = bodies if end - begin == len(bodies) else bodies[begin - first : end - first]
            if alike and length is not None and in_one_frame:
                route = columns.routes.raws[0]
                tail = b"".join((_AGAIN[again], route, self._middle(event.block(0), length)))
                self._row(self._head(route), tag, tail, some, out)
            else:
                self._each(event, begin, end, tag, again, some, out)
        return event.bytes_of(first, stop)

    def _row(self, head: bytes, tag: int, tail: bytes, bodies: Sequence[Buffer], out: list[Buffer]) -> None:
        """Messages that differ in their bodies only; those have one length, and each fits into a frame."""
        count = len(bodies)
        if count == 1:
            out += (head, _TAG.pack(tag), tail, bodies[0], _END)
            return
        parts: list[Buffer] = [_END + head] * (4 * count)
        parts[0] = head
        parts[1::4] = map(_TAG.pack, range(tag, tag + count))
        parts[2::4] = [tail] * count
        parts[3::4] = bodies
        parts.append(_END)
        out += parts

    def _each(
        self,
        event: PublishEvent,
        first: int,
        stop: int,
        tag: int,
        again: bool,
        bodies: Sequence[Buffer],
        out: list[Buffer],
    ) -> None:
        channel, limit, pack_tag = self._channel, self._limit, _TAG.pack
        raws = event.columns.routes.raws
        heads: dict[int, tuple[bytes, bytes]] = {}
        """By route: what stands before the delivery tag, and behind it."""
        writers: dict[int, tuple[Callable[..., bytes], int, bytes]] = {}
        """By block: how to write everything between the method and the body."""
        for number, route, block, body in zip(
            range(tag, tag + stop - first),
            event.route_numbers(first, stop),
            event.block_numbers(first, stop),
            bodies,
            strict=True,
        ):
            head = heads.get(route)
            if head is None:
                raw = raws[route]
                head = heads[route] = self._head(raw), _AGAIN[again] + raw
            writer = writers.get(block)
            if writer is None:
                properties = event.block(block)
                writer = _middle_of(len(properties)).pack, PREFIX + len(properties), properties
                writers[block] = writer
            pack, header_size, properties = writer
            size = len(body)
            middle = pack(
                FRAME_END, FRAME_HEADER, channel, header_size, BASIC, 0, size, properties,
                FRAME_END, FRAME_BODY, channel, size,
            )  # fmt: skip
            if 0 < size <= limit:
                out += (head[0], pack_tag(number), head[1], middle, body, _END)
            else:
                out += (head[0], pack_tag(number), head[1], middle[: -_FRAME.size])
                write_body(channel, limit, body, out)

    def _middle(self, properties: bytes, size: int) -> bytes:
        """From the end of the method frame to the body."""
        channel = self._channel
        return _middle_of(len(properties)).pack(
            FRAME_END, FRAME_HEADER, channel, PREFIX + len(properties), BASIC, 0, size, properties,
            FRAME_END, FRAME_BODY, channel, size,
        )  # fmt: skip

    def _head(self, route: bytes) -> bytes:
        head = self._heads.get(route)
        if head is None:
            if len(self._heads) >= KEPT_MAX:  # routing keys that never come again
                self._heads.clear()
            size = len(self._begin) + _TAG.size + 1 + len(route)
            head = self._heads[route] = _FRAME.pack(FRAME_METHOD, self._channel, size) + self._begin
        return head


@lru_cache(KEPT_MAX)
def _middle_of(properties: int) -> struct.Struct:
    """The end of the method frame, a content header with so many bytes of properties, the beginning of a body frame."""
    return struct.Struct(f">BBHIHHQ{properties}sBBHI")


def get_ok(
    event: PublishEvent,
    offset: int,
    channel: int,
    frame_max: int,
    delivery_tag: int,
    redelivered: bool,
    left: int,
    out: list[Buffer],
) -> None:
    """`left`: messages that are still in the queue."""
    tag = _TAG.pack(delivery_tag) + _AGAIN[redelivered]
    method = b"".join((_GET_OK, tag, event.route(offset).raw, left.to_bytes(4, "big")))
    _message(event, offset, channel, frame_max, method, out)


def returned(
    event: PublishEvent, offset: int, channel: int, frame_max: int, code: int, text: str, out: list[Buffer]
) -> None:
    """basic.return of a message that went nowhere."""
    method = b"".join((_RETURN, code.to_bytes(2, "big"), short(text), event.route(offset).raw))
    _message(event, offset, channel, frame_max, method, out)


def _message(event: PublishEvent, offset: int, channel: int, frame_max: int, method: bytes, out: list[Buffer]) -> None:
    body, header = event.body(offset), event.header(offset)
    out += (_FRAME.pack(FRAME_METHOD, channel, len(method)), method, _END)
    out += (_FRAME.pack(FRAME_HEADER, channel, len(header)), header, _END)
    write_body(channel, frame_max - FRAME_OVERHEAD, body, out)


def write_body(channel: int, limit: int, body: Buffer, out: list[Buffer]) -> None:
    """As many frames as it takes."""
    view = memoryview(body)
    for at in range(0, len(view), limit):
        part = view[at : at + limit]
        out += (_FRAME.pack(FRAME_BODY, channel, len(part)), part, _END)


def _split(first: int, stop: int, redelivered: Sequence[Range]) -> Iterator[tuple[int, int, bool]]:
    """(first, stop, whether they were delivered before)."""
    for begin, end in redelivered:
        begin, end = max(begin, first), min(end, stop)
        if begin >= end:
            continue
        if first < begin:
            yield first, begin, False
        yield begin, end, True
        first = end
    if first < stop:
        yield first, stop, False
