"""Ranges of positions in the order of delivery, and deliveries that are cut and thinned out."""

from __future__ import annotations

from itertools import pairwise
from typing import cast

from hypothesis import given
from hypothesis import strategies as st

from coterie.broker.delivery import Delivery, count_of, merged, positions_in, ranges_of, split
from coterie.broker.message import Message, make_message
from coterie.broker.queue import Queue

QUEUE = cast(Queue, "q")
some_positions = st.lists(st.integers(0, 30), unique=True)
Row = tuple[int, Message, bool]


def delivery(positions: list[int], flagged: set[int]) -> Delivery:
    messages = [make_message("", "q", b"%d" % position) for position in positions]
    again = [position for position in positions if position in flagged]
    return Delivery(QUEUE, "holder", ranges_of(positions), messages, ranges_of(again))


def rows(positions: list[int], flagged: set[int]) -> list[tuple[int, bytes, bool]]:
    return [(position, b"%d" % position, position in flagged) for position in positions]


def seen(found: Delivery | None) -> list[tuple[int, bytes, bool]]:
    return [] if found is None else [(position, message.body, flag) for position, message, flag in found.rows()]


@given(some_positions)
def test_ranges_are_the_positions_in_their_order(positions: list[int]) -> None:
    ranges = ranges_of(positions)
    assert [*positions_in(ranges)] == positions
    assert count_of(ranges) == len(positions)
    assert all(one[1] != other[0] for one, other in pairwise(ranges)), "as few as can be"
    assert [*positions_in(merged(ranges))] == sorted(positions)


@given(some_positions, st.integers(0, 40))
def test_a_cut_loses_nothing(positions: list[int], count: int) -> None:
    first, rest = split(ranges_of(positions), count)
    assert [*positions_in(first)] == positions[:count]
    assert [*positions_in(rest)] == positions[count:]


@given(some_positions.filter(bool), st.sets(st.integers(0, 30)), st.data())
def test_what_is_cut_off_takes_its_messages_and_flags_along(
    positions: list[int], flagged: set[int], data: st.DataObject
) -> None:
    rest = delivery(positions, flagged)
    assert rest.count == len(positions)
    assert rest.size == sum(len(str(position)) for position in positions)
    count = data.draw(st.integers(1, len(positions)))
    first = rest.cut(count)
    assert seen(first) == rows(positions[:count], flagged)
    assert seen(rest) == rows(positions[count:], flagged)


@given(some_positions.filter(bool), st.sets(st.integers(0, 30)), st.sets(st.integers(0, 30)))
def test_what_is_left_without_some_keeps_its_order(positions: list[int], flagged: set[int], gone: set[int]) -> None:
    left = delivery(positions, flagged).without(gone)
    assert seen(left) == rows([position for position in positions if position not in gone], flagged)
    assert (left is None) == gone.issuperset(positions)
