"""Lengths by positions against a dictionary."""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Iterator
from itertools import accumulate

import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from ranges_rig import altered

from coterie.broker.ranges import END, Lengths, MalformedRanges, PositionSet
from coterie.broker.ranges import lengths as module
from coterie.broker.ranges.lengths import LENGTH_MAX

numbers = st.one_of(st.integers(0, 3), st.integers(0, LENGTH_MAX))


@pytest.fixture(autouse=True, scope="module")
def small_tables() -> Iterator[None]:
    """Some tables, in spite of few messages; some that are taken apart."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "TABLE_MAX", 200)
        patch.setattr(module, "EVEN_MIN", 10)
        patch.setattr(module, "SPARSE_MAX", 5)
        yield


columns = st.one_of(
    st.tuples(st.lists(numbers, min_size=1, max_size=9), st.integers(1, 30)),
    st.tuples(st.lists(numbers, min_size=1, max_size=1), st.integers(1, 300)),
).map(lambda pair: pair[0] * pair[1])
appended = st.tuples(columns, st.sampled_from([0, 0, 0, 3]))
"""Lengths, and a gap before them."""


class Rows(RuleBasedStateMachine):
    @initialize(origin=st.sampled_from([0, 2**40]), rows=st.lists(appended, min_size=3, max_size=8))
    def begin(self, origin: int, rows: list[tuple[list[int], int]]) -> None:
        self.origin = self.next = origin
        self.real, self.model = Lengths(), dict[int, int]()
        self.live = PositionSet()
        self.kept: list[tuple[Lengths, dict[int, int], PositionSet, int]] = []
        self.append(rows)

    @rule(rows=st.lists(appended, min_size=1, max_size=3))
    def append(self, rows: list[tuple[list[int], int]]) -> None:
        for lengths, gap in rows:
            self.next += gap
            if len({*lengths}) == 1 and gap:
                self.real.append_even(self.next, len(lengths), lengths[0])
            else:
                self.real.append(self.next, array("I", lengths))
            self.model.update(enumerate(lengths, self.next))
            self.live.add(self.next, self.next + len(lengths))
            self.next += len(lengths)

    def _places(self) -> st.SearchStrategy[int]:
        borders = [border for each in self.real.borders() for border in each] or [self.origin]
        return st.one_of(st.sampled_from(borders), st.integers(self.origin, self.next))

    def _leave(self, first: int, stop: int) -> None:
        self.live.remove(first, stop)
        for position in range(max(first, self.origin), stop):
            self.model.pop(position, None)
        before = {*self.real.borders()}
        self.real.drop(first, stop, self.live)
        after = {*self.real.borders()}
        assert {each for each in before if each[0] >= stop or each[1] <= first} <= after
        for begin, end in after - before:
            assert self.live.count_in(begin, end)
        for begin, end in after & before:
            assert begin >= stop or end <= first or self.live.count_in(begin, end), "nothing live, and not dropped"

    @rule(rows=st.lists(appended, min_size=1, max_size=4), shared=st.booleans())
    def append_and_take_back(self, rows: list[tuple[list[int], int]], shared: bool) -> None:
        copy = self.real.copy() if shared else None
        before, position = self.real.encode(), self.next
        marks = []
        for lengths, gap in rows:
            marks.append((self.real.mark(), self.real.encode()))
            self.real.append(position + gap, array("I", lengths))
            position += gap + len(lengths)
        for mark, encoded in reversed(marks):
            self.real.rewind(mark)
            assert self.real.encode() == encoded
        assert self.real.encode() == before
        assert copy is None or copy.encode() == before
        assert self.real.sum_in(self.live) == sum(
            self.real.get(at) for at, end in self.live.ranges() for at in range(at, end)
        )

    @rule(data=st.data())
    def the_head_leaves(self, data: st.DataObject) -> None:
        self._leave(0, data.draw(self._places()))

    @rule(data=st.data())
    def some_leave(self, data: st.DataObject) -> None:
        first, stop = sorted((data.draw(self._places()), data.draw(self._places())))
        self._leave(first, stop)

    @rule(step=st.integers(2, 50))
    def most_leave(self, step: int) -> None:
        for position in range(self.origin, self.next, step):
            self._leave(position + 1, min(position + step, self.next))

    @rule(data=st.data(), limit=st.one_of(st.integers(0, 300), st.integers(0, 2**40)))
    def ask(self, data: st.DataObject, limit: int) -> None:
        first, stop = sorted((data.draw(self._places()), data.draw(self._places())))
        ranges = [*self.live.ranges(first, stop)]
        lengths = [self.model[position] for low, high in ranges for position in range(low, high)]
        assert self.real.sum_of(ranges) == sum(lengths)
        fitting = 0
        for length in lengths:
            limit -= length
            if limit < 0:
                break
            fitting += 1
        limit += sum(lengths[: fitting + 1])
        assert self.real.fitting(ranges, limit) == fitting
        for position in (first, stop):
            if position in self.model:
                assert self.real.get(position) == self.model[position]

    @rule()
    def keep(self) -> None:
        self.kept.append((self.real.copy(), self.model.copy(), self.live.copy(), self.next))

    @precondition(lambda self: self.kept)
    @rule()
    def go_back(self) -> None:
        self.real, self.model, self.live, self.next = self.kept.pop()

    @rule()
    def encode(self) -> None:
        data = self.real.encode()
        again = Lengths.decode(data)
        assert again == self.real
        assert again.encode() == data
        self.real = again

    @invariant()
    def equals_the_model(self) -> None:
        self._check(self.real, self.model, self.live)

    @invariant()
    def copies_stay(self) -> None:
        for real, model, live, _ in self.kept[-2:]:
            self._check(real, model, live)

    def _check(self, real: Lengths, model: dict[int, int], live: PositionSet) -> None:
        for first, stop in live.ranges():
            assert [real.get(position) for position in range(first, stop)] == [model[p] for p in range(first, stop)]
        if not live:
            assert real.pieces == 0


TestRows = Rows.TestCase
TestRows.settings = hypothesis_settings(max_examples=40, stateful_step_count=15)


@pytest.mark.parametrize("size", [1, 63, 64, 65, 127, 128, 129, 200, 201, 500])
def test_sums_over_any_range(size: int) -> None:
    lengths = [n * n % 101 for n in range(size)]
    real = Lengths()
    real.append(7, lengths)
    sums = [0, *accumulate(lengths)]
    for first in range(size + 1):
        for stop in range(first, size + 1, 1 if size < 100 else 7):
            assert real.sum(7 + first, 7 + stop) == sums[stop] - sums[first]
    for limit in range(0, sums[-1], 13):
        assert real.fitting([(7, 7 + size)], limit) == bisect_right(sums, limit) - 1
    assert real.sum(0, 7 + size + 100) == sums[-1]


def test_positions_without_a_length_have_none() -> None:
    real = Lengths()
    real.append_even(10, 3, 100)
    real.append(20, [1, 2])
    assert real.sum(0, END) == 303
    for position in (9, 13, 19, 22):
        with pytest.raises(KeyError):
            real.get(position)
    assert real.fitting([(0, 30)], 10**6) == 30


def test_one_length_takes_one_piece() -> None:
    real = Lengths()
    for first in range(0, 10**6, 50):
        real.append(first, [1024] * 50)
    assert real.pieces == 1
    assert real.sum(5, 10**6 - 5) == 1024 * (10**6 - 10)
    real.drop(0, 10**6 - 1, PositionSet([(10**6 - 1, 10**6)]))
    assert real.encode() == Lengths.decode(real.encode()).encode()
    assert real.sum(0, 10**6) == 1024


def test_copies_go_on_from_the_same_table() -> None:
    real = Lengths()
    real.append(0, [1, 2, 3])
    other = real.copy()
    real.append(3, [4, 5])
    other.append(3, [6, 7])
    assert [real.get(position) for position in range(5)] == [1, 2, 3, 4, 5]
    assert [other.get(position) for position in range(5)] == [1, 2, 3, 6, 7]


def test_a_table_with_hardly_anything_alive_is_taken_apart() -> None:
    real, live = Lengths(), PositionSet([(5, 7), (100, 101), (199, 200)])
    real.append(0, [n % 7 for n in range(200)])
    assert real.pieces == 1
    real.drop(7, 100, live)
    assert [real.get(n) for n in (5, 6, 100, 199)] == [5, 6, 2, 3]
    assert real.pieces == 3
    for gone in (0, 50, 150):
        with pytest.raises(KeyError):
            real.get(gone)


@pytest.mark.parametrize("lengths", [[-1], [LENGTH_MAX + 1], [1, -1], [1, LENGTH_MAX + 1]])
def test_what_is_no_length_is_a_mistake_and_changes_nothing(lengths: list[int]) -> None:
    real = Lengths()
    real.append(0, [5])
    for first in (0, 1):
        with pytest.raises(ValueError, match="no lengths"):
            real.append(first, lengths)
    with pytest.raises(ValueError, match="no lengths"):
        real.append(0, [4])
    with pytest.raises(ValueError, match="no range"):
        real.append_even(END, 1, 5)
    with pytest.raises(ValueError, match="no range"):
        real.append(END - 1, [5, 6])
    assert real.encode() == b"\x01\x00\x01\x00\x05"


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (b"", "end within"),
        (b"\x02\x00\x01\x00\x05", "too early"),
        (b"\x01\x00\x00\x00\x05", "is empty"),
        (b"\x01\x00\x01\x02\x05", "the most"),
        (b"\x01\x00\x01\x00\xff\xff\xff\xff\x7f", "the most"),
        (b"\x01\x00\x02\x01\x05\x00\x00\x00", "too early"),
        (b"\x01\x00\x81\x40\x01\x05\x00\x00\x00", "a table of 8193"),
        (b"\x01\x80\x80\x80\x80\x80\x80\x80\x80\x80\x01\x01\x00\x05", "beyond"),
        (b"\x01\x00\x01\x00\x05\x00", "too many"),
    ],
)
def test_what_no_lengths_encode_to_is_refused(data: bytes, why: str) -> None:
    with pytest.raises(MalformedRanges, match=why):
        Lengths.decode(data)


def test_the_last_positions() -> None:
    real = Lengths()
    real.append(END - 5, [1, 2, 3, 4, LENGTH_MAX])
    assert Lengths.decode(real.encode()) == real
    assert real.get(END - 1) == LENGTH_MAX
    assert real.sum(0, END) == 10 + LENGTH_MAX


@pytest.mark.fuzz
@given(st.lists(st.tuples(st.integers(0, 3), st.lists(numbers, min_size=1, max_size=20)), max_size=5), st.data())
def test_altered_bytes_are_other_lengths_or_refused(made: list[tuple[int, list[int]]], data: st.DataObject) -> None:
    real = Lengths()
    for gap, lengths in made:
        real.append(real.stop + gap, lengths)
    given_bytes = data.draw(altered(real.encode()))
    try:
        found = Lengths.decode(given_bytes)
    except MalformedRanges:
        return
    assert found.encode() == given_bytes
