"""Sets of positions against Python's own sets."""

from __future__ import annotations

import random
from bisect import bisect_left
from collections.abc import Sequence
from itertools import product

import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from ranges_rig import BLOCK, ORIGINS, SPAN, altered, any_spans, places, ranges_of

from coterie.broker.ranges import END, MalformedRanges, PositionSet

patterns = st.tuples(any_spans, st.integers(2, 40))
"""Every so manieth of a span."""


def check(real: PositionSet, model: set[int], origin: int) -> None:
    ranges = [(origin + first, origin + stop) for first, stop in ranges_of(model)]
    assert list(real.ranges()) == ranges
    assert real.count == len(model)
    assert bool(real) == bool(model)
    assert real.first() == (origin + min(model) if model else None)
    assert real.last() == (origin + max(model) if model else None)
    assert real.count == sum(count for _, _, count in real.row())


@st.composite
def some_sets(draw: st.DrawFn, origin: int = 0) -> tuple[PositionSet, set[int]]:
    """Of whole blocks, pieces of them, few and many ranges; and as a plain set."""
    real, model = PositionSet(), set[int]()
    for first, stop in draw(st.lists(any_spans, max_size=6)):
        real.add(origin + first, origin + stop)
        model |= {*range(first, stop)}
    for (first, stop), step in draw(st.lists(patterns, max_size=3)):
        for place in range(first, min(stop, first + 200 * step), step):
            real.remove(origin + place, origin + place + 1)
            model.discard(place)
    return real, model


class Sets(RuleBasedStateMachine):
    """One set that changes, another one to do arithmetic with, and copies that must stay as they were."""

    @initialize(origin=st.sampled_from(ORIGINS), data=st.data())
    def begin(self, origin: int, data: st.DataObject) -> None:
        self.origin = origin
        self.real, self.model = data.draw(some_sets(origin))
        self.other, self.other_model = data.draw(some_sets(origin))
        self.kept: list[tuple[PositionSet, set[int]]] = []

    @rule(span=any_spans)
    def add(self, span: tuple[int, int]) -> None:
        new = set(range(*span)) - self.model
        assert self.real.add(self.origin + span[0], self.origin + span[1]) == len(new)
        self.model |= new

    @rule(span=any_spans)
    def remove(self, span: tuple[int, int]) -> None:
        gone = set(range(*span)) & self.model
        assert self.real.remove(self.origin + span[0], self.origin + span[1]) == len(gone)
        self.model -= gone

    @rule(pattern=patterns, adding=st.booleans())
    def change_every_so_manieth(self, pattern: tuple[tuple[int, int], int], adding: bool) -> None:
        (first, stop), step = pattern
        some = range(first, min(stop, first + 150 * step), step)
        for place in some:
            (self.real.add if adding else self.real.remove)(self.origin + place, self.origin + place + 1)
        self.model = self.model | set(some) if adding else self.model - set(some)

    @rule(count=st.one_of(st.integers(0, 200), st.integers(0, SPAN)))
    def take_first(self, count: int) -> None:
        taken = set(sorted(self.model)[:count])
        expected = [(self.origin + first, self.origin + stop) for first, stop in ranges_of(taken)]
        assert self.real.first_ranges(count) == expected
        assert self.real.take_first(count) == expected
        self.model -= taken

    @rule()
    def swap(self) -> None:
        self.real, self.other = self.other, self.real
        self.model, self.other_model = self.other_model, self.model

    @rule()
    def add_all(self) -> None:
        new = self.other_model - self.model
        assert self.real.add_all(self.other) == len(new)
        self.model |= new

    @rule()
    def remove_all(self) -> None:
        gone = self.other_model & self.model
        assert self.real.remove_all(self.other) == len(gone)
        self.model -= gone

    @rule()
    def arithmetic(self) -> None:
        check(self.real.union(self.other), self.model | self.other_model, self.origin)
        check(self.real.intersection(self.other), self.model & self.other_model, self.origin)
        check(self.real.difference(self.other), self.model - self.other_model, self.origin)
        assert self.real.isdisjoint(self.other) == self.model.isdisjoint(self.other_model)
        assert (self.real == self.other) == (self.model == self.other_model)

    @rule()
    def keep(self) -> None:
        self.kept.append((self.real.copy(), self.model.copy()))

    @precondition(lambda self: self.kept)
    @rule()
    def go_back(self) -> None:
        self.real, self.model = self.kept.pop()

    @rule(span=any_spans, place=places)
    def ask(self, span: tuple[int, int], place: int) -> None:
        first, stop = self.origin + span[0], self.origin + span[1]
        inside = {each for each in self.model if span[0] <= each < span[1]}
        assert self.real.count_in(first, stop) == len(inside)
        assert list(self.real.ranges(first, stop)) == [
            (self.origin + low, self.origin + high) for low, high in ranges_of(inside)
        ]
        check(self.real.within(first, stop), inside, self.origin)
        above = [each for each in self.model if each >= place]
        assert self.real.next_from(self.origin + place) == (self.origin + min(above) if above else None)
        assert (self.origin + place in self.real) == (place in self.model)
        assert self.real.rank(self.origin + place) == len(self.model) - len(above)
        if place < len(self.model):
            assert self.real.select(place) == self.origin + sorted(self.model)[place]
        else:
            with pytest.raises(IndexError):
                self.real.select(place)

    @rule()
    def encode(self) -> None:
        data = self.real.encode()
        again = PositionSet.decode(data)
        assert again == self.real
        assert again.encode() == data
        plain = PositionSet((self.origin + first, self.origin + stop) for first, stop in ranges_of(self.model))
        assert plain == self.real
        assert plain.encode() == data, "equal sets have equal bytes, however they came to be"
        self.real = again

    @invariant()
    def equals_the_model(self) -> None:
        check(self.real, self.model, self.origin)

    @invariant()
    def copies_stay(self) -> None:
        for real, model in self.kept[-2:]:
            check(real, model, self.origin)

    def teardown(self) -> None:
        for real, model in getattr(self, "kept", []):
            check(real, model, self.origin)


TestSets = Sets.TestCase
TestSets.settings = hypothesis_settings(max_examples=30, stateful_step_count=15)


@hypothesis_settings(max_examples=50)
@given(st.data(), st.sampled_from(ORIGINS))
def test_questions(data: st.DataObject, origin: int) -> None:
    real, model = data.draw(some_sets(origin))
    row = sorted(model)
    check(real, model, origin)
    for first, stop in data.draw(st.lists(any_spans, min_size=10, max_size=10)):
        low, high = bisect_left(row, first), bisect_left(row, stop)
        begin, end = origin + first, origin + stop
        assert real.count_in(begin, end) == high - low
        assert real.rank(begin) == low
        assert real.next_from(begin) == (origin + row[low] if low < len(row) else None)
        inside = [(origin + a, origin + b) for a, b in ranges_of(row[low:high])]
        assert [*real.ranges(begin, end)] == inside
        assert [*real.within(begin, end).ranges()] == inside
        assert real.first_ranges(low) == [(origin + a, origin + b) for a, b in ranges_of(row[:low])]
        assert (begin in real) == (first in model)
        if low < len(row):
            assert real.select(low) == origin + row[low]


@hypothesis_settings(max_examples=50)
@given(st.data(), st.sampled_from(ORIGINS))
def test_arithmetic(data: st.DataObject, origin: int) -> None:
    one, first = data.draw(some_sets(origin))
    other, second = data.draw(some_sets(origin))
    check(one.union(other), first | second, origin)
    check(one.intersection(other), first & second, origin)
    check(one.difference(other), first - second, origin)
    check(one, first, origin)
    check(other, second, origin)
    assert one.isdisjoint(other) == first.isdisjoint(second)
    assert (one == other) == (first == second)
    assert one.union(other).difference(other) == one.difference(other)


@pytest.mark.fuzz
@given(some_sets(), st.data())
def test_altered_bytes_are_another_set_or_refused(made: tuple[PositionSet, set[int]], data: st.DataObject) -> None:
    given_bytes = data.draw(altered(made[0].encode()))
    try:
        found = PositionSet.decode(given_bytes)
    except MalformedRanges:
        return
    assert found.encode() == given_bytes, "there is one encoding of a set"
    assert PositionSet(found.ranges()) == found


@pytest.mark.fuzz
@given(st.binary(max_size=60))
def test_garbage_is_a_set_or_refused(garbage: bytes) -> None:
    try:
        found = PositionSet.decode(garbage)
    except MalformedRanges:
        return
    assert found.encode() == garbage


FULL_BLOCK = b"\x00\x00\x01"


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (b"", "end within a number"),
        (b"\x01", "too early"),
        (b"\x80\x00", "longer than it must be"),
        (b"\xff" * 12, "more than 64 bits"),
        (b"\x00\x00", "bytes too many"),
        (b"\x01\x00\x00\x00", "empty"),
        (b"\x02" + FULL_BLOCK + FULL_BLOCK, "two are not one"),
        (b"\x01\x00\x01\x00\x00\x00\x10", "it is full"),
        (b"\x01\x00\x01\x05\x00\x05\x00", "do not rise"),
        (b"\x01\x00\x02\x00\x00\x05\x00\x05\x00\x06\x00", "do not rise"),
        (b"\x01\x00\x01\x00\x00\x01\x10", "do not rise"),
        (b"\x01\x00\x80\x01" + b"\x00" * 512, "so few ranges"),
        (b"\x01\x00\x80\x01" + b"\x55" * 511, "too early"),
        (b"\x01\x00\x81\x01" + b"\x55" * 512, "the most"),
        (b"\x01\xff\xff\xff\xff\xff\xff\xff\x0f\x01\x00\x00\x01\x00", "the most|beyond"),
        (b"\x01\x80\x80\x80\x80\x80\x80\x80\x04\x01\x00\x00\x01\x00", "beyond"),
        (b"\x01\x00\x00\x81\x80\x80\x80\x80\x80\x80\x04", "the most"),
    ],
)
def test_what_no_set_encodes_to_is_refused(data: bytes, why: str) -> None:
    with pytest.raises(MalformedRanges, match=why):
        PositionSet.decode(data)


def test_the_largest_set_and_the_last_position() -> None:
    everything = PositionSet([(0, END)])
    assert everything.count == END
    assert PositionSet.decode(everything.encode()) == everything
    assert END - 1 in everything
    assert END not in everything
    assert -1 not in everything
    assert everything.remove(END - 1, END) == 1
    assert everything.last() == END - 2
    assert everything.take_first(10**18) == [(0, 10**18)]
    with pytest.raises(IndexError):
        everything.select(everything.count)


def test_bytes_beyond_the_limit_are_not_looked_at() -> None:
    data = PositionSet([(0, 5)]).encode()
    assert PositionSet.decode(data, limit=len(data)).count == 5
    with pytest.raises(MalformedRanges, match="at most"):
        PositionSet.decode(data, limit=len(data) - 1)


@pytest.mark.parametrize(("first", "stop"), [(-1, 5), (5, 4), (0, END + 1)])
def test_what_is_no_range_is_a_mistake(first: int, stop: int) -> None:
    for call in (PositionSet().add, PositionSet().remove, PositionSet().count_in):
        with pytest.raises(ValueError, match="no range of positions"):
            call(first, stop)


def test_long_stretches_take_no_room() -> None:
    positions = PositionSet([(100, 10**7)])
    assert positions.pieces <= 3
    assert len(positions.encode()) < 30


def test_a_set_and_itself() -> None:
    positions = PositionSet([(5, 3 * BLOCK), (4 * BLOCK, 4 * BLOCK + 1)])
    assert positions.add_all(positions) == 0
    assert positions.intersection(positions) == positions
    assert positions.remove_all(positions) == 2 * BLOCK + BLOCK - 5 + 1
    assert positions == PositionSet()
    positions.add(1, 2)
    positions.clear()
    assert not positions


def of_blocks(states: Sequence[int]) -> PositionSet:
    """Blocks that are empty (0), full (1), or have one position."""
    found = PositionSet()
    for block, state in enumerate(states):
        found.add(block * BLOCK, block * BLOCK + (0, BLOCK, 1)[state])
    return found


@pytest.mark.parametrize("states", [*product((0, 1, 2), repeat=4)])
def test_whole_blocks_next_to_any_others(states: tuple[int, ...]) -> None:
    made = of_blocks(states)
    for first in range(4):
        for stop in range(first + 1, 5):
            for state, change in ((0, PositionSet.remove), (1, PositionSet.add)):
                found = made.copy()
                change(found, first * BLOCK, stop * BLOCK)
                assert found == of_blocks([*states[:first], *[state] * (stop - first), *states[stop:]])
    assert made == of_blocks(states)


def test_random_removals_drain_a_set_and_leave_nothing_behind() -> None:
    dice = random.Random(1)
    order = list(range(3 * BLOCK))
    dice.shuffle(order)
    positions = PositionSet([(0, 3 * BLOCK)])
    for place in order[:-5]:
        assert positions.remove(place, place + 1) == 1
    assert list(positions.ranges()) == ranges_of(order[-5:])
    assert all(isinstance(part, bytes) for _, part, _ in positions.row()), "few positions are ranges again"
    for place in order[:-5]:
        assert positions.add(place, place + 1) == 1
    for place in order[-5:]:
        positions.remove(place, place + 1)
    assert all(isinstance(part, bytes) for _, part, _ in positions.row()), "and so are few holes"
    for place in order[-5:]:
        assert positions.add(place, place + 1) == 1
    assert positions.pieces == 1
