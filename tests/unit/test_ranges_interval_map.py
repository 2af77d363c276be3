"""Numbers by intervals against a dictionary."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from ranges_rig import altered

from coterie.broker.ranges import END, IntervalMap, MalformedRanges, PositionSet
from coterie.broker.ranges.interval_map import VALUE_MAX

SPAN = 300
SHIFT = 4096 - 150
"""So that two blocks meet in the middle."""
places = st.integers(0, SPAN)
spans = st.tuples(places, places).map(lambda pair: (min(pair), max(pair)))
values = st.one_of(st.integers(0, 6), st.sampled_from([2**16, VALUE_MAX - 1, VALUE_MAX]))
deltas = st.one_of(st.integers(-3, 3), st.sampled_from([-(2**40), -VALUE_MAX, VALUE_MAX - 1, 2**40]))


def whole(span: tuple[int, int]) -> tuple[int, int]:
    return SHIFT + span[0], SHIFT + span[1]


def items_of(model: dict[int, int], first: int = 0, stop: int = SPAN) -> list[tuple[int, int, int]]:
    found: list[tuple[int, int, int]] = []
    for place in range(first, stop):
        value = model.get(place, 0)
        if value and found and found[-1][1:] == (SHIFT + place, value):
            found[-1] = found[-1][0], SHIFT + place + 1, value
        elif value:
            found.append((SHIFT + place, SHIFT + place + 1, value))
    return found


class Maps(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.real, self.model = IntervalMap(), dict[int, int]()
        self.kept: list[tuple[IntervalMap, dict[int, int]]] = []

    @rule(span=spans, value=values)
    def set(self, span: tuple[int, int], value: int) -> None:
        self.real.set(*whole(span), value)
        self.model.update(dict.fromkeys(range(*span), value))

    @rule(span=spans, delta=deltas)
    def add(self, span: tuple[int, int], delta: int) -> None:
        self.real.add(*whole(span), delta)
        self._added(range(*span), delta)

    @rule(span=spans, step=st.integers(2, 7), delta=deltas)
    def add_to_some(self, span: tuple[int, int], step: int, delta: int) -> None:
        some = range(*span, step)
        self.real.add_all(PositionSet((SHIFT + place, SHIFT + place + 1) for place in some), delta)
        self._added(some, delta)

    def _added(self, places: range, delta: int) -> None:
        for place in places:
            self.model[place] = min(max(self.model.get(place, 0) + delta, 0), VALUE_MAX)

    @rule(span=spans, whole_set=st.booleans())
    def clear(self, span: tuple[int, int], whole_set: bool) -> None:
        if whole_set:
            self.real.clear_all(PositionSet([whole(span)]))
        else:
            self.real.clear(*whole(span))
        self.model.update(dict.fromkeys(range(*span), 0))

    @rule()
    def keep(self) -> None:
        self.kept.append((self.real.copy(), self.model.copy()))

    @precondition(lambda self: self.kept)
    @rule()
    def go_back(self) -> None:
        self.real, self.model = self.kept.pop()

    @rule(span=spans, limit=st.one_of(values, st.just(-1)))
    def ask(self, span: tuple[int, int], limit: int) -> None:
        assert [*self.real.items(*whole(span))] == items_of(self.model, *span)
        above = self.real.above(PositionSet([whole(span)]), limit)
        expected = [place for place in range(*span) if self.model.get(place, 0) > limit]
        assert above == PositionSet((SHIFT + place, SHIFT + place + 1) for place in expected)
        assert self.real.get(SHIFT + span[0]) == self.model.get(span[0], 0)

    @rule()
    def encode(self) -> None:
        data = self.real.encode()
        plain = IntervalMap()
        for first, stop, value in items_of(self.model):
            plain.set(first, stop, value)
        assert plain == self.real
        assert plain.encode() == data
        self.real = IntervalMap.decode(data)
        assert self.real == plain

    @invariant()
    def equals_the_model(self) -> None:
        assert [*self.real.items()] == items_of(self.model)
        live = [place for place, value in self.model.items() if value]
        assert self.real.positions().count == len(live)
        assert bool(self.real) == bool(live)

    @invariant()
    def copies_stay(self) -> None:
        for real, model in self.kept[-2:]:
            assert [*real.items()] == items_of(model)


TestMaps = Maps.TestCase
TestMaps.settings = hypothesis_settings(max_examples=30, stateful_step_count=25)


@pytest.mark.parametrize("seed", range(5))
def test_counting_up_and_down_as_queues_do(seed: int) -> None:
    """Mostly by one, many times over, and what leaves is cleared."""
    dice = random.Random(seed)
    numbers, model = IntervalMap(), dict[int, int]()
    if seed == 4:
        numbers.set(*whole((0, SPAN)), VALUE_MAX - 3)
        model = dict.fromkeys(range(SPAN), VALUE_MAX - 3)
    for _ in range(200):
        first = dice.randrange(SPAN)
        stop = min(first + dice.choice([1, 2, 50]), SPAN)
        delta = dice.choice([1, 1, 1, 1, -1, 2, 0])
        if delta:
            numbers.add(*whole((first, stop)), delta)
            model.update({n: min(max(model.get(n, 0) + delta, 0), VALUE_MAX) for n in range(first, stop)})
        else:
            numbers.clear(*whole((first, stop)))
            model.update(dict.fromkeys(range(first, stop), 0))
        assert [*numbers.items()] == items_of(model)
    numbers.add(SHIFT, SHIFT, 1)
    assert IntervalMap.decode(numbers.encode()) == numbers


@pytest.mark.fuzz
@given(st.lists(st.tuples(spans, values), max_size=6), st.data())
def test_altered_bytes_are_another_map_or_refused(made: list[tuple[tuple[int, int], int]], data: st.DataObject) -> None:
    numbers = IntervalMap()
    for span, value in made:
        numbers.set(*whole(span), value)
    given_bytes = data.draw(altered(numbers.encode()))
    try:
        found = IntervalMap.decode(given_bytes)
    except MalformedRanges:
        return
    assert found.encode() == given_bytes


def test_a_highest_digit_that_is_nowhere_and_too_many_digits_are_refused() -> None:
    with pytest.raises(MalformedRanges, match="nowhere"):
        IntervalMap.decode(b"\x01\x00")
    with pytest.raises(MalformedRanges, match="32"):
        IntervalMap.decode(b"\x21" + b"\x00" * 33)


def test_numbers_that_are_too_large_and_ranges_that_are_none_change_nothing() -> None:
    numbers = IntervalMap()
    for value in (-1, VALUE_MAX + 1):
        with pytest.raises(ValueError, match="a number from 0"):
            numbers.set(0, 5, value)
    with pytest.raises(ValueError, match="no range"):
        numbers.add(5, 4, 1)
    assert not numbers
    numbers.set(0, END, 3)
    assert [*numbers.items()] == [(0, END, 3)]
    assert numbers.get(END - 1) == 3
