"""What the tests of publish events share: messages of any kind, events of them, and a plain model of both."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

from hypothesis import strategies as st

from coterie.amqp.wire.properties import PREFIX, Properties, encode
from coterie.broker.columns import (
    EXPIRES,
    PERSISTENT,
    Block,
    EventBuilder,
    KnownRoutes,
    PublishEvent,
    Route,
    make_block,
)
from coterie.broker.message import Message, route_bytes
from coterie.broker.ranges import Range


class Sent(NamedTuple):
    route: Route
    block: Block
    body: bytes


def a_route(key: str = "key", *queues: int, exchange: str = "exchange", mandatory: bool = False) -> Route:
    return Route(route_bytes(exchange, key), mandatory, queues or (1,))


def a_block(**properties: Any) -> Block:
    found = Properties(**properties)
    expiry = None if found.expiration is None else int(found.expiration)
    return make_block(encode(found, 0)[PREFIX:], found.delivery_mode == 2, found.priority or 0, expiry)


routes = st.sampled_from(
    [
        a_route(),
        a_route("key", 1, 2),
        a_route("another", 2, exchange="", mandatory=True),
        a_route("", 3, 1, 2**63 - 1, exchange="x" * 255),
        a_route("k" * 255, 2),
    ]
)
blocks = st.one_of(
    st.sampled_from([a_block(), a_block(delivery_mode=2), a_block(delivery_mode=2, priority=255, expiration="0")]),
    st.builds(
        a_block,
        delivery_mode=st.sampled_from([None, 1, 2]),
        priority=st.one_of(st.none(), st.integers(0, 255)),
        expiration=st.one_of(st.none(), st.integers(0, 2**32 - 1).map(str)),
        message_id=st.text(max_size=20),
    ),
)
bodies = st.one_of(st.just(b""), st.just(b"eight..."), st.binary(max_size=40))
messages = st.lists(st.builds(Sent, routes, blocks, bodies), min_size=1, max_size=12)
alike = st.builds(lambda sent, count: [sent] * count, st.builds(Sent, routes, blocks, bodies), st.integers(1, 12))
any_messages = st.one_of(messages, alike)


def build(sent: Iterable[Sent]) -> PublishEvent:
    builder: EventBuilder[str] = EventBuilder()
    for route, block, body in sent:
        builder.add(route, block, "somebody", body)
    event, _ = builder.take()
    assert event is not None
    return event


def encoded(event: PublishEvent) -> bytes:
    return b"".join(event.buffers())


def read(data: bytes | memoryview) -> PublishEvent:
    return PublishEvent.read(data, KnownRoutes())


def by_queue(sent: Sequence[Sent], live: Iterable[int] | None = None) -> dict[int, list[int]]:
    """The offsets that each queue gets, one by one."""
    found: dict[int, list[int]] = {}
    for at in range(len(sent)) if live is None else live:
        for queue in sent[at].route.queues:
            found.setdefault(queue, []).append(at)
    return found


def flat(ranges: Iterable[Range]) -> list[int]:
    return [at for first, stop in ranges for at in range(first, stop)]


def looks_like(event: PublishEvent, sent: Sequence[Sent], live: Sequence[int] | None = None) -> None:
    """Asserts that everything one can ask of the event is as in the list of messages."""
    offsets = [*range(len(sent))] if live is None else [*live]
    assert event.count == len(offsets)
    assert flat(event.ranges) == offsets
    assert {queue: flat(ranges) for queue, ranges in event.by_queue().items()} == by_queue(sent, offsets)
    for ranges in event.by_queue().values():
        assert live is not None or all(one[1] < two[0] for one, two in pairwise(ranges))
    for at in offsets:
        route, block, body = sent[at]
        assert event.route(at) == route
        assert event.properties(at) == block.raw
        assert bytes(event.body(at)) == body
        assert event.header(at) == b"\x00\x3c\x00\x00" + len(body).to_bytes(8, "big") + block.raw
    for first, stop in event.ranges:
        part = sent[first:stop]
        assert [*event.lengths(first, stop)] == [len(each.body) for each in part]
        assert event.bytes_of(first, stop) == sum(len(each.body) for each in part)
        assert [bytes(body) for body in event.bodies(first, stop)] == [each.body for each in part]
        blocks = [each.block for each in part]
        assert spread(event.flags(first, stop), len(part)) == [block.flags for block in blocks]
        assert spread(event.priorities(first, stop), len(part)) == [block.priority for block in blocks]
        assert spread(event.expiries(first, stop), len(part)) == [block.expiry for block in blocks]
    flags = [sent[at].block.flags for at in offsets]
    assert event.all_persistent == all(flag & PERSISTENT for flag in flags)
    assert event.any_persistent == any(flag & PERSISTENT for flag in flags)
    assert event.any_expires == any(flag & EXPIRES for flag in flags)
    assert event.columns.body_bytes == sum(len(sent[at].body) for at in offsets)
    assert event.length is None or {len(sent[at].body) for at in offsets} == {event.length}


def spread(column: int | Sequence[int], count: int) -> list[int]:
    return [column] * count if isinstance(column, int) else [*column]


def ask_everything(event: PublishEvent) -> int:
    """Of an event that somebody may have altered: nothing raises. Gives the bytes that were seen."""
    seen = 0
    event.by_queue()
    for first, stop in event.ranges:
        for ask in asked(event):
            ask(first, stop)
        assert sum(event.lengths(first, stop)) == event.bytes_of(first, stop)
        if event.columns.outside is None:
            seen += sum(map(len, event.bodies(first, stop)))
        for at in range(first, min(stop, first + 20)):
            event.route(at)
            assert len(event.properties(at)) >= 2
            event.header(at)
            if event.columns.outside is not None:
                assert len(event.digest(at)) == 32
    assert seen == (event.columns.body_bytes if event.columns.outside is None else 0)
    return seen


def asked(event: PublishEvent) -> list[Callable[[int, int], object]]:
    return [event.flags, event.priorities, event.expiries, event.route_numbers, event.block_numbers, event.body_range]


def as_message(sent: Sent) -> Message:
    """As today's code has it."""
    route, block, body = sent
    exchange, key = names(route.raw)
    header = b"\x00\x3c\x00\x00" + len(body).to_bytes(8, "big") + block.raw
    ttl = block.expiry if block.flags & EXPIRES else None
    return Message(exchange, key, route.raw, header, body, bool(block.flags & PERSISTENT), block.priority, ttl)


def names(raw: bytes) -> tuple[str, str]:
    middle = 1 + raw[0]
    return raw[1:middle].decode(), raw[middle + 1 :].decode()
