"""Frames from an event's buffer are, byte for byte, those that messages had before."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import pytest
from columns_rig import Sent, a_block, a_route, any_messages, as_message, build, encoded, read
from hypothesis import given
from hypothesis import strategies as st
from ranges_rig import ranges_of

from coterie.amqp.delivering import Frames
from coterie.broker.columns import KnownRoutes, PublishEvent
from coterie.broker.columns.frames import KEPT_MAX, ConsumerFrames, get_ok, returned
from coterie.broker.columns.remnant import cut
from coterie.broker.delivery import Delivery
from coterie.broker.queue import Queue
from coterie.runtime.base import Buffer

CHANNEL = 7


def today(sent: Sequence[Sent], first_tag: int, redelivered: set[int], first: int, frame_max: int, tag: str) -> bytes:
    ranges, flagged = [(first, first + len(sent))], ranges_of(redelivered)
    delivery = Delivery(cast(Queue, None), None, ranges, [as_message(each) for each in sent], flagged)
    out: list[bytes] = []
    Frames(CHANNEL, frame_max).deliver(tag, {}, first_tag, delivery, out)
    return b"".join(out)


def delivered(
    event: PublishEvent, first: int, stop: int, first_tag: int, redelivered: set[int], frame_max: int, tag: str
) -> bytes:
    out: list[Buffer] = []
    size = ConsumerFrames(CHANNEL, frame_max, tag).deliver(event, first, stop, first_tag, ranges_of(redelivered), out)
    assert size == event.bytes_of(first, stop)
    return b"".join(out)


@given(
    any_messages,
    st.data(),
    st.integers(1, 2**63),
    st.sampled_from([9, 16, 17, 131_072]),
    st.sampled_from(["", "t" * 255]),
)
def test_deliveries_are_byte_for_byte_the_same(
    sent: list[Sent], data: st.DataObject, first_tag: int, frame_max: int, tag: str
) -> None:
    first = data.draw(st.integers(0, len(sent)))
    stop = data.draw(st.integers(first, len(sent)))
    redelivered = data.draw(st.sets(st.integers(0, len(sent))))
    expected = today(sent[first:stop], first_tag, redelivered, first, frame_max, tag)
    for event in (build(sent), read(encoded(build(sent)))):
        assert delivered(event, first, stop, first_tag, redelivered, frame_max, tag) == expected


@given(any_messages, st.data())
def test_deliveries_of_a_remnant_are_the_same(sent: list[Sent], data: st.DataObject) -> None:
    live = data.draw(st.sets(st.integers(0, len(sent) - 1), min_size=1))
    event = build(sent)
    remnant = cut(event, ranges_of(live))
    assert remnant is not None
    contents = b"".join(event.content_buffers())
    rest = b"".join(contents[start:end] for start, end in remnant.ranges)
    left = PublishEvent.of_record(remnant.head, rest, KnownRoutes())
    for first, stop in ranges_of(live):
        assert delivered(left, first, stop, 5, {first}, 131_072, "c") == today(
            sent[first:stop], 5, {first}, first, 131_072, "c"
        )


@given(any_messages, st.sampled_from([9, 17, 131_072]), st.booleans(), st.integers(0, 2**32 - 1))
def test_what_is_got_and_returned_is_byte_for_byte_the_same(
    sent: list[Sent], frame_max: int, redelivered: bool, left: int
) -> None:
    event = read(encoded(build(sent)))
    frames = Frames(CHANNEL, frame_max)
    for at, each in enumerate(sent):
        there = [(at, at + 1)]
        delivery = Delivery(cast(Queue, None), None, there, [as_message(each)], there if redelivered else ())
        old: list[bytes] = []
        new: list[Buffer] = []
        frames.get_ok(9, delivery, left, old)
        frames.returned(as_message(each), 312, "NO_ROUTE", old)
        get_ok(event, at, CHANNEL, frame_max, 9, redelivered, left, new)
        returned(event, at, CHANNEL, frame_max, 312, "NO_ROUTE", new)
        assert b"".join(new) == b"".join(old)


def test_a_large_body_is_split_without_a_copy() -> None:
    data = encoded(build([Sent(a_route(), a_block(), b"." * 300_000)]))
    out: list[Buffer] = []
    ConsumerFrames(CHANNEL, 131_072, "c").deliver(read(data), 0, 1, 1, (), out)
    large = [part for part in out if len(part) > 1000]
    assert [len(part) for part in large] == [131_064, 131_064, 37_872]
    assert all(isinstance(part, memoryview) and part.obj is data for part in large)


def test_messages_that_are_not_there_write_nothing() -> None:
    event = build([Sent(a_route(), a_block(), b"body")] * 2)
    out: list[Buffer] = []
    for first, stop in ((0, 3), (-1, 1), (2, 1)):
        with pytest.raises(ValueError, match="messages"):
            ConsumerFrames(CHANNEL, 4096, "c").deliver(event, first, stop, 1, (), out)
    ConsumerFrames(CHANNEL, 4096, "c").deliver(event, 1, 1, 1, (), out)
    assert out == []


def test_routing_keys_that_never_come_again_do_not_pile_up() -> None:
    consumer = ConsumerFrames(CHANNEL, 4096, "c")
    for number in range(3 * KEPT_MAX):
        sent = [Sent(a_route(f"key{number}"), a_block(), b"body")]
        out: list[Buffer] = []
        consumer.deliver(build(sent), 0, 1, 1, (), out)
        assert b"".join(out) == today(sent, 1, set(), 0, 4096, "c")
    assert len(consumer._heads) <= KEPT_MAX
