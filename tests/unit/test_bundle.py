"""Bundles: messages go in, the same messages come out, and a broken table is noticed."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coterie.errors import WireError
from coterie.group.bundle import OFFSET_SIZE, count, join, split
from coterie.group.packet import TRAIN, Packet

MESSAGES = st.lists(st.binary(max_size=40), max_size=30)


@given(MESSAGES)
def test_what_is_joined_is_split_into_the_same(messages: list[bytes]) -> None:
    body = join(messages)
    assert list(map(bytes, split(body))) == messages
    assert count(Packet(body)) == len(messages)


def test_messages_may_be_any_kind_of_buffer() -> None:
    assert list(map(bytes, split(join([b"a", bytearray(b"bc"), memoryview(b"def")])))) == [b"a", b"bc", b"def"]


def test_messages_are_slices_of_the_body_and_not_copies() -> None:
    body = join([b"one", b"two"])
    assert all(message.obj is body for message in split(body))


def test_a_part_of_a_train_and_a_message_of_a_protocol_count_as_one() -> None:
    assert count(Packet(b"", flags=TRAIN)) == 1
    assert count(Packet(b"", proto=16)) == 1


def test_counting_the_messages_of_a_body_that_is_no_bundle_raises_nothing() -> None:
    assert [count(Packet(bytes(size))) for size in range(6)] == [0] * 6


def test_a_bundle_costs_four_bytes_and_four_for_each_message() -> None:
    assert len(join([b"x" * 10] * 7)) == 70 + 8 * OFFSET_SIZE


@given(messages=MESSAGES.filter(bool), data=st.data())
def test_a_body_cut_short_anywhere_is_refused(messages: list[bytes], data: st.DataObject) -> None:
    body = join(messages)
    with pytest.raises(WireError):
        split(body[: data.draw(st.integers(0, len(body) - 1))])


@pytest.mark.fuzz
@given(messages=MESSAGES, data=st.data())
def test_an_altered_table_is_refused_or_still_covers_no_more_than_the_body(
    messages: list[bytes], data: st.DataObject
) -> None:
    body = bytearray(join(messages))
    for _ in range(data.draw(st.integers(1, 4))):
        body[data.draw(st.integers(0, (len(messages) + 1) * OFFSET_SIZE - 1))] = data.draw(st.integers(0, 255))
    split_fits_or_is_refused(bytes(body))


@pytest.mark.fuzz
@given(st.binary(max_size=120))
def test_garbage_raises_nothing_but_a_wire_error(body: bytes) -> None:
    split_fits_or_is_refused(body)


def split_fits_or_is_refused(body: bytes) -> None:
    try:
        parts = split(body)
    except WireError:
        return
    assert sum(map(len, parts)) <= len(body)
    assert len(parts) == count(Packet(body))
    assert b"".join(parts) == body[len(body) - sum(map(len, parts)) :]


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"\4\0\0",
        struct.pack("<I", 0),
        struct.pack("<I", 3),
        struct.pack("<I", 0xFFFFFFFF),
        struct.pack("<I", 0xFFFFFFFC) + bytes(64),
        struct.pack("<III", 12, 20, 14) + b"ab",
        struct.pack("<III", 12, 13, 99) + b"ab",
        struct.pack("<III", 12, 13, 13) + b"ab",
    ],
    ids=["empty", "too short", "no table", "half an entry", "huge", "huge and even", "falling", "beyond", "leftover"],
)
def test_a_broken_table_is_refused(body: bytes) -> None:
    with pytest.raises(WireError):
        split(body)
