"""Runs of positions against a list of messages."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from ranges_rig import altered

from coterie.broker.ranges import END, MalformedRanges, PositionSet, Run, Runs
from coterie.broker.ranges import runs as module

Model = dict[int, tuple[int, int]]
"""From positions to events and the place in them."""


@pytest.fixture(autouse=True, scope="module")
def small_chunks() -> Iterator[None]:
    """Some chunks, in spite of few runs."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "CHUNK", 4)
        yield


appended = st.tuples(st.integers(1, 9), st.sampled_from([0, 0, 0, 2]), st.sampled_from(["same", "next", "skip"]))
"""A count, a gap before it, and which event."""


class Rows(RuleBasedStateMachine):
    @initialize(origin=st.sampled_from([0, 2**40]), rows=st.lists(appended, min_size=5, max_size=30))
    def begin(self, origin: int, rows: list[tuple[int, int, str]]) -> None:
        self.origin = self.next = origin
        self.real = Runs()
        self.model: Model = {}
        self.live = PositionSet()
        self.event = (0, 0)
        self.kept: list[tuple[Runs, Model, PositionSet, int]] = []
        self.append(rows)

    @rule(rows=st.lists(appended, min_size=1, max_size=8))
    def append(self, rows: list[tuple[int, int, str]]) -> None:
        for count, gap, event in rows:
            ref, offset = self.event
            if event == "next":
                ref, offset = ref + 1, 0
            elif event == "skip":
                offset += 1
            self.next += gap
            self.real.append(self.next, count, ref, offset)
            self.model.update({self.next + n: (ref, offset + n) for n in range(count)})
            self.live.add(self.next, self.next + count)
            self.next += count
            self.event = ref, offset + count

    @rule(rows=st.lists(appended, min_size=1, max_size=8), shared=st.booleans())
    def append_and_take_back(self, rows: list[tuple[int, int, str]], shared: bool) -> None:
        copy = self.real.copy() if shared else None
        before, bytes_before = [*self.real], self.real.encode()
        position, (ref, offset) = self.next, self.event
        for count, gap, event in rows:
            ref, offset = (ref + 1, 0) if event == "next" else (ref, offset + (event == "skip"))
            self.real.append(position + gap, count, ref, offset)
            position, offset = position + gap + count, offset + count
        for count, _, _ in reversed(rows):
            self.real.unappend(count)
        assert [*self.real] == before
        assert self.real.encode() == bytes_before
        assert copy is None or copy.encode() == bytes_before

    def _places(self) -> st.SearchStrategy[int]:
        borders = [border for run in self.real for border in (run.first, run.stop)] or [self.origin]
        return st.one_of(st.sampled_from(borders), st.integers(self.origin, self.next))

    def _leave(self, first: int, stop: int) -> None:
        self.live.remove(first, stop)
        before = [*self.real]
        dropped = self.real.drop(first, stop, self.live)
        dead = [run for run in before if run.first < stop and run.stop > first]
        dead = [run for run in dead if not self.live.count_in(run.first, run.stop)]
        assert dropped.tolist() == [run.ref for run in dead]
        assert [*self.real] == [run for run in before if run not in dead]
        for run in dead:
            for position in range(run.first, run.stop):
                del self.model[position]

    @rule(data=st.data())
    def the_head_leaves(self, data: st.DataObject) -> None:
        self._leave(0, data.draw(self._places()))

    @rule(data=st.data())
    def some_leave(self, data: st.DataObject) -> None:
        first, stop = sorted((data.draw(self._places()), data.draw(self._places())))
        self._leave(first, stop)

    @rule(data=st.data())
    def single_ones_leave(self, data: st.DataObject) -> None:
        for position in data.draw(st.lists(self._places(), min_size=5, max_size=20)):
            self._leave(position, position + 1)

    @rule(data=st.data())
    def ask(self, data: st.DataObject) -> None:
        first, stop = sorted((data.draw(self._places()), data.draw(self._places())))
        assert all(run.first < run.stop for run in self.real.within(first, stop))
        found = {
            run.first + n: (run.ref, run.offset + n)
            for run in self.real.within(first, stop)
            for n in range(run.stop - run.first)
        }
        assert found == {place: where for place, where in self.model.items() if first <= place < stop}
        run = self.real.find(first)
        assert (run is None) == (first not in self.model)
        if run is not None:
            assert run.first <= first < run.stop
            assert (run.ref, run.offset + first - run.first) == self.model[first]

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
        again = Runs.decode(data)
        assert again == self.real
        assert again.encode() == data
        assert (again.count, again.runs) == (self.real.count, self.real.runs)
        self.real = again

    @invariant()
    def equals_the_model(self) -> None:
        self._check(self.real, self.model)

    @invariant()
    def copies_stay(self) -> None:
        for real, model, _, _ in self.kept[-2:]:
            self._check(real, model)

    def _check(self, real: Runs, model: Model) -> None:
        rows = [*real]
        assert {r.first + n: (r.ref, r.offset + n) for r in rows for n in range(r.stop - r.first)} == model
        assert real.count == len(model)
        assert real.runs == len(rows)
        assert real.stop == (max(model) + 1 if model else 0)


TestRows = Rows.TestCase
TestRows.settings = hypothesis_settings(max_examples=50, stateful_step_count=20)


def test_a_run_that_goes_on_becomes_longer() -> None:
    runs = Runs()
    runs.append(10, 5, 7, 0)
    runs.append(15, 5, 7, 5)
    assert [*runs] == [Run(10, 20, 7, 0)]
    runs.append(20, 1, 7, 11)
    runs.append(21, 1, 8, 12)
    runs.append(23, 1, 8, 13)
    assert runs.runs == 4


def test_what_leaves_from_within_a_gap_on_is_dropped() -> None:
    runs = Runs()
    for event in range(3):
        runs.append(10 * event, 5, event, 0)
    assert runs.drop(7, 15, PositionSet([(0, 5), (20, 25)])).tolist() == [1]
    assert runs.drop(17, 25, PositionSet([(0, 5)])).tolist() == [2]
    assert [*runs] == [Run(0, 5, 0, 0)]


def test_a_consumed_head_is_dropped_at_once() -> None:
    runs = Runs()
    for event in range(10_000):
        runs.append(50 * event, 50, event, 0)
    live = PositionSet([(499_975, 500_000)])
    assert len(runs.drop(0, 499_975, live)) == 9_999
    assert [*runs] == [Run(499_950, 500_000, 9_999, 0)]


@pytest.mark.parametrize(
    "run",
    [(9, 1, 0, 0), (10, 0, 0, 0), (10, 2**32, 0, 0), (10, 1, END, 0), (10, 1, 0, END), (END, 1, 0, 0), (10, 1, -1, 0)],
)
def test_what_is_no_run_is_a_mistake_and_changes_nothing(run: tuple[int, int, int, int]) -> None:
    runs = Runs()
    runs.append(0, 10, 1, 0)
    with pytest.raises(ValueError, match="no r"):
        runs.append(*run)
    assert [*runs] == [Run(0, 10, 1, 0)]
    assert runs.count == 10


def rows(*runs: tuple[int, int, int, int]) -> bytes:
    columns = [*zip(*runs, strict=True)]
    sizes = 8, 4, 8, 8
    return bytes([len(runs)]) + b"".join(
        value.to_bytes(size, "little") for column, size in zip(columns, sizes, strict=True) for value in column
    )


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (b"", "end within"),
        (b"\x01" + b"\x00" * 27, "too early for 1"),
        (b"\x00\x00", "too many"),
        (rows((0, 0, 1, 0)), "no messages"),
        (rows((0, 5, 1, 0), (4, 1, 2, 0)), "do not rise"),
        (rows((END - 1, 2, 1, 0)), "beyond"),
        (rows((0, 1, END, 0)), "beyond"),
        (rows((0, 2, 0, END - 1)), "beyond"),
        (rows((0, 5, 1, 0), (5, 1, 1, 5)), "not one"),
    ],
)
def test_what_no_runs_encode_to_is_refused(data: bytes, why: str) -> None:
    with pytest.raises(MalformedRanges, match=why):
        Runs.decode(data)


def test_the_last_positions() -> None:
    runs = Runs()
    runs.append(END - 5, 5, END - 1, END - 5)
    assert Runs.decode(runs.encode()) == runs
    assert runs.find(END - 1) == Run(END - 5, END, END - 1, END - 5)


@pytest.mark.fuzz
@given(st.lists(st.tuples(st.integers(0, 3), st.integers(1, 9), st.integers(0, 3), st.integers(0, 5))), st.data())
def test_altered_bytes_are_other_runs_or_refused(made: list[tuple[int, int, int, int]], data: st.DataObject) -> None:
    runs = Runs()
    for gap, count, ref, offset in made:
        runs.append(runs.stop + gap, count, ref, offset)
    given_bytes = data.draw(altered(runs.encode()))
    try:
        found = Runs.decode(given_bytes)
    except MalformedRanges:
        return
    assert found.encode() == given_bytes
    again = Runs()
    for run in found:
        again.append(run.first, run.stop - run.first, run.ref, run.offset)
    assert again == found
