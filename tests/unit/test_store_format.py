"""What stands in a record of the store: heads, contents, and what a merge leaves of them."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from store_rig import persistent

from coterie.broker.delivery import ranges_of
from coterie.broker.log_store.content import decode_content, prologue
from coterie.broker.log_store.head import Contents, Head, decode_head, remnant, sizes_of
from coterie.broker.storage import Damaged
from coterie.errors import WireError

TEXTS = st.text(max_size=8) | st.just("\udcff")
SIZES = st.lists(st.integers(0, 2**32 - 1), min_size=1, max_size=9)
HEADS = st.builds(
    Head,
    st.lists(st.tuples(st.tuples(TEXTS, TEXTS), st.none() | st.binary(max_size=9)), max_size=3),
    st.lists(st.tuples(st.integers(0, 2**60), st.integers(0, 2**60), TEXTS), max_size=3),
    st.none() | st.builds(lambda sizes: Contents(sizes_of(sizes)), SIZES),
)


@given(HEADS)
def test_a_head_comes_back_as_it_was(head: Head) -> None:
    assert decode_head(head.encode()) == head


@pytest.mark.fuzz
@given(HEADS, st.data())
def test_a_head_that_is_cut_off_or_altered_is_refused_or_something_else_but_never_another_error(
    head: Head, data: st.DataObject
) -> None:
    encoded = bytearray(head.encode())
    at = data.draw(st.integers(0, len(encoded) - 1))
    if data.draw(st.booleans()):
        del encoded[at:]
    else:
        encoded[at] = data.draw(st.integers(0, 255))
    try:
        decode_head(bytes(encoded))
    except WireError:
        pass


@given(st.lists(st.integers(0, 20), min_size=1, max_size=12), st.data())
def test_what_is_left_of_a_record_has_the_offsets_that_it_always_had(sizes: list[int], data: st.DataObject) -> None:
    bodies = [bytes([offset]) * size for offset, size in enumerate(sizes)]
    contents, whole, left = Contents(sizes_of(sizes)), b"".join(bodies), set(range(len(sizes)))
    for _ in range(3):
        left &= data.draw(st.sets(st.sampled_from(range(len(sizes)))))
        kept = remnant(contents, [(offset, offset + 1) for offset in left])
        if kept is None:
            assert not left
            return
        whole = b"".join([whole[start:end] for start, end in kept.ranges])
        found = decode_head(kept.head).contents
        assert found is not None
        contents = found
        starts = contents.starts()
        for offset in range(len(sizes)):
            at = contents.at(offset)
            assert (at is not None) == (offset in left)
            if at is not None:
                assert whole[starts[at] : starts[at + 1]] == bodies[offset]


@given(st.sets(st.integers(0, 60), min_size=1))
def test_ranges_hold_the_numbers_that_they_were_made_of_and_no_two_touch(numbers: set[int]) -> None:
    ranges = ranges_of(sorted(numbers))
    assert [number for first, stop in ranges for number in range(first, stop)] == sorted(numbers)
    assert all(before[1] < after[0] for before, after in pairwise(ranges))


@pytest.mark.parametrize("id", [None, (1, 2, 3)])
def test_a_message_comes_back_from_its_content_with_everything_that_follows_from_its_header(id: Any) -> None:
    message = persistent(b"body", key="a.b", priority=7, expiration="60000", headers={"x": 1})
    message.id = id
    content = prologue(message) + message.route + message.header + message.body
    found = decode_content(content)
    for name in ("exchange", "key", "route", "header", "body", "persistent", "priority", "ttl", "id"):
        assert getattr(found, name) == getattr(message, name), name


@pytest.mark.fuzz
@given(st.binary(max_size=80))
def test_garbage_is_no_message(garbage: bytes) -> None:
    try:
        decode_content(garbage)
    except Damaged:
        pass
