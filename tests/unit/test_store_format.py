"""The bytes of the store: what is written can be read again, and what was not written is recognised."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from store_rig import persistent

from coterie.broker.store.content import decode_content, prologue
from coterie.broker.store.files import SegmentName, parse_name
from coterie.broker.store.format import (
    HEADER_SIZE,
    PREFIX_SIZE,
    Damaged,
    Foreign,
    Header,
    decode_header,
    decode_prefix,
    encode_prefix,
    mark_of,
)
from coterie.broker.store.operations import Atomic, Dequeue, Enqueue, Name, Save, encode_one, operations, ranges_of

HEADER = Header(3, 7, 9, 100, 6, 5000, b"s" * 16, rewritten=True)
U32, U63 = st.integers(0, 2**32 - 1), st.integers(1, 2**62)
TEXT = st.text(max_size=50)


def test_a_header_comes_back_as_it_was() -> None:
    assert decode_header(HEADER.encode()) == HEADER
    assert len(HEADER.encode()) == HEADER_SIZE


@pytest.mark.parametrize("at", range(HEADER_SIZE))
def test_a_header_with_any_altered_byte_is_damaged(at: int) -> None:
    data = bytearray(HEADER.encode())
    data[at] ^= 0x10
    with pytest.raises(Damaged):
        decode_header(data)


def test_a_header_of_a_later_version_is_not_taken_for_damage() -> None:
    import coterie.broker.store.format as form

    known, form.VERSION = form.VERSION, 99  # type: ignore[misc]
    try:
        later = HEADER.encode()
    finally:
        form.VERSION = known  # type: ignore[misc]
    with pytest.raises(Foreign, match="version 99"):
        decode_header(later)


@pytest.mark.parametrize("at", range(PREFIX_SIZE))
def test_a_prefix_with_any_altered_byte_is_none(at: int) -> None:
    data = bytearray(encode_prefix(b"8 bytes.", b"head", 100))
    assert decode_prefix(data, 0, b"8 bytes.") is not None
    data[at] ^= 1
    assert decode_prefix(data, 0, b"8 bytes.") is None


def test_every_segment_of_every_store_has_a_mark_of_its_own() -> None:
    marks = {mark_of(secret, name) for secret in (b"a" * 16, b"b" * 16) for name in ("x", "y")}
    assert len(marks) == 4


@st.composite
def enqueues(draw: st.DrawFn) -> Enqueue:
    count = draw(st.integers(1, 5))
    numbers = sorted(draw(st.sets(U63, min_size=count, max_size=count)))

    def some(kind: st.SearchStrategy[Any]) -> list[Any]:
        return draw(st.lists(kind, min_size=count, max_size=count))

    refers = draw(st.booleans())
    marks: Any = st.one_of(st.none(), st.integers(0, 255), TEXT)
    return Enqueue(
        draw(U32),
        numbers,
        sorted(draw(st.sets(U63, min_size=count, max_size=count))),
        some(U32),
        [] if refers else some(U32),
        [] if refers else some(U32),
        some(U63) if refers else [],
        some(U63) if draw(st.booleans()) else None,
        some(marks) if draw(st.booleans()) else None,
    )


def plain(op: object) -> object:
    """Arrays and ranges as lists."""
    if isinstance(op, Enqueue):
        return [value if value is None or isinstance(value, int) else list(value) for value in fields_of(op)]
    return op if not isinstance(op, Atomic) else Atomic


def fields_of(op: Enqueue) -> list[Any]:
    return [getattr(op, name) for name in Enqueue.__dataclass_fields__]


@given(
    st.lists(
        st.one_of(
            enqueues(),
            st.builds(Dequeue, st.lists(st.tuples(U63, st.integers(0, 99)).map(lambda p: (p[0], p[0] + p[1])))),
            st.builds(Save, TEXT, TEXT, st.one_of(st.none(), st.binary(max_size=50))),
            st.builds(Name, U32, TEXT, TEXT, U63),
        ),
        max_size=5,
    )
)
def test_operations_come_back_as_they_were(ops: list[Any]) -> None:
    head = b"".join(op.encode() for op in ops)
    assert [plain(op) for op in operations(head)] == [plain(op) for op in ops]


@given(enqueues(), st.data())
def test_a_head_that_is_cut_off_or_altered_is_damaged_or_something_else_but_never_an_error(
    op: Enqueue, data: st.DataObject
) -> None:
    head = bytearray(op.encode())
    at = data.draw(st.integers(0, len(head) - 1))
    with pytest.raises(Damaged):
        list(operations(head[: max(at, 1)]))
    head[at] ^= data.draw(st.integers(1, 255))
    try:
        list(operations(head))
    except Damaged:
        pass


def test_one_message_is_encoded_as_many_are() -> None:
    op = Enqueue(7, [5], [9], [100], [140], [12345], ())
    assert encode_one(7, 5, 9, 100, 140, 12345) == op.encode()


def test_picking_all_of_an_enqueue_changes_nothing_and_picking_some_keeps_their_order() -> None:
    op = Enqueue(1, range(5, 9), range(1, 5), [1, 2, 3, 4], [9, 8, 7, 6], [0] * 4, (), None, [None, "b", None, "d"])
    assert op.pick(range(4)) is op
    picked = op.pick([1, 3])
    assert plain(picked) == [1, [6, 8], [2, 4], [2, 4], [8, 6], [0, 0], [], None, ["b", "d"]]


@given(st.sets(st.integers(1, 60), min_size=1))
def test_ranges_hold_the_numbers_that_they_were_made_of_and_no_two_touch(numbers: set[int]) -> None:
    ranges = ranges_of(sorted(numbers))
    assert [n for first, last in ranges for n in range(first, last + 1)] == sorted(numbers)
    assert all(first > last + 1 for (_, last), (first, _) in pairwise(ranges))


@pytest.mark.parametrize("id", [None, (1, 2, 3)])
def test_a_message_comes_back_from_its_content_with_everything_that_follows_from_its_header(id: Any) -> None:
    message = persistent(b"body" * 10, key="schlüssel.\udcff", priority=7, expiration="1500", headers={"x": 1})
    message.id = id
    found = decode_content(b"".join((prologue(message), message.route, message.header, message.body)))
    for name in ("exchange", "key", "route", "header", "body", "persistent", "priority", "ttl", "id"):
        assert getattr(found, name) == getattr(message, name)
    assert found.properties().headers == {"x": 1}


@given(st.binary(max_size=100))
def test_garbage_is_no_message(garbage: bytes) -> None:
    try:
        decode_content(garbage)
    except Damaged:
        pass


def test_names_of_segments_sort_by_their_ids_and_anything_else_is_no_name() -> None:
    name = SegmentName(7, 12, 3)
    assert parse_name(str(name)) == name
    assert sorted([str(SegmentName(10, 10, 0)), str(name)]) == [str(name), str(SegmentName(10, 10, 0))]
    for other in ("7-12.3.log", f"{name}.tmp", "reserve", "", "0000000007-0000000012.log"):
        assert parse_name(other) is None
