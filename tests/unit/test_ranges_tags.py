"""What a channel holds, by ranges of delivery tags, against a dictionary that does the same plainly."""

from __future__ import annotations

import pytest
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from ranges_rig import ranges_of

from coterie.broker.ranges import Held, Range, TagRanges, UnknownTag

Flat = list[tuple[int, int, int]]
"""Tag, key, position."""


def flat(found: list[Held]) -> Flat:
    return [(held.tag + n, held.key, held.first + n) for held in found for n in range(held.size)]


class Channel(RuleBasedStateMachine):
    """Deliveries of several queues, in any order of positions; settled in every way, in and out of transactions."""

    def __init__(self) -> None:
        super().__init__()
        self.real = TagRanges()
        self.model: dict[int, tuple[int, int]] = {}
        self.next_tag = 1
        self.delivered: dict[int, float] = {}
        self.now = 0.0
        self.withdrawn: list[Range] = []
        self.withdrawn_model: Flat = []

    @initialize(batches=st.lists(st.tuples(st.integers(0, 2), st.integers(1, 9)), min_size=3, max_size=12))
    def begin(self, batches: list[tuple[int, int]]) -> None:
        for key, count in batches:
            self.deliver(key, [(10 * key, 10 * key + count)], 0.5)

    @rule(
        key=st.integers(0, 2),
        ranges=st.lists(st.tuples(st.integers(0, 100), st.integers(0, 9)), min_size=1, max_size=4),
        wait=st.sampled_from([0.0, 0.5]),
    )
    def deliver(self, key: int, ranges: list[tuple[int, int]], wait: float) -> None:
        self.now += wait
        first = self.real.deliver(key, [(first, first + count) for first, count in ranges], self.now)
        assert first == self.next_tag
        for begin, count in ranges:
            for position in range(begin, begin + count):
                self.model[self.next_tag] = key, position
                self.delivered[self.next_tag] = self.now
                self.next_tag += 1

    @rule(count=st.integers(1, 5))
    def deliver_without_acknowledgement(self, count: int) -> None:
        self.real.skip(count)
        self.next_tag += count

    @rule(data=st.data(), multiple=st.booleans(), transaction=st.booleans())
    def settle(self, data: st.DataObject, multiple: bool, transaction: bool) -> None:
        live = sorted(self.model)
        tag = data.draw(st.one_of(st.integers(0, self.next_tag + 3), st.sampled_from([2**63, 2**64 - 1])))
        if live and tag % 2:
            tag = live[tag % len(live)]
        if tag not in self.model and not (multiple and tag == 0):
            with pytest.raises(UnknownTag, match=f"unknown delivery tag {tag}"):
                (self.real.withdraw if transaction else self.real.take)(tag, multiple)
            return
        expected = [each for each in live if (each <= tag or tag == 0)] if multiple else [tag]
        settled = [(each, *self.model.pop(each)) for each in expected]
        if transaction:
            taken = self.real.withdraw(tag, multiple)
            assert taken == ranges_of(expected)
            self.withdrawn += taken
            self.withdrawn_model += settled
        else:
            assert flat(self.real.take(tag, multiple)) == settled

    @rule(count=st.integers(1, 10))
    def settle_one_after_the_other(self, count: int) -> None:
        for tag in sorted(self.model)[:count]:
            assert flat(self.real.take(tag, False)) == [(tag, *self.model.pop(tag))]

    @rule()
    def commit(self) -> None:
        assert flat(self.real.settle(self.withdrawn)) == self.withdrawn_model
        self.withdrawn, self.withdrawn_model = [], []

    @rule()
    def roll_back(self) -> None:
        self.real.restore(self.withdrawn)
        self.model.update({tag: (key, position) for tag, key, position in self.withdrawn_model})
        self.withdrawn, self.withdrawn_model = [], []

    @rule()
    def take_all(self) -> None:
        assert flat(self.real.take_all()) == [(tag, *self.model[tag]) for tag in sorted(self.model)]
        self.model.clear()

    @invariant()
    def equals_the_model(self) -> None:
        assert self.real.next_tag == self.next_tag
        assert self.real.unsettled == len(self.model)
        assert self.real.count == len(self.model) + len(self.withdrawn_model)
        assert flat([*self.real]) == [(tag, *self.model[tag]) for tag in sorted(self.model)]
        assert self.real.oldest == (self.delivered[min(self.model)] if self.model else None)


TestChannel = Channel.TestCase
TestChannel.settings = hypothesis_settings(max_examples=50, stateful_step_count=30)


def test_one_that_is_never_settled_keeps_nothing_else() -> None:
    real = TagRanges()
    real.deliver(0, [(0, 1)], 0.0)
    for n in range(1, 2000):
        tag = real.deliver(0, [(n, n + 1)], float(n))
        assert [*real.take(tag, False)] == [Held(tag, 0, n, n + 1)]
        assert real.oldest == 0.0
    assert real.kept < 100
    real.take(1, False)
    assert real.oldest is None


def test_a_million_deliveries_in_a_row_are_one_run() -> None:
    real = TagRanges()
    for first in range(0, 10**6, 1000):
        real.deliver(7, [(first, first + 1000)], 0.0)
    assert real.kept <= 2
    assert real.take(10**6, True) == [Held(1, 7, 0, 10**6)]
    assert real.count == 0


@pytest.mark.parametrize("order", [(1, 2), (2, 1)])
def test_nothing_is_kept_of_what_is_settled_in_whatever_order(order: tuple[int, int]) -> None:
    real = TagRanges()
    for n in range(500):
        real.deliver(n % 2, [(2 * n, 2 * n + 2)], float(n))
    for start in order:
        for tag in range(1000 + start - 2, 0, -2):
            real.take(tag, False)
    assert real.count == 0
    assert real.kept <= 65, "no run, and few moments"


def test_nothing_is_kept_of_what_is_settled_many_at_a_time() -> None:
    real = TagRanges()
    for n in range(500):
        real.deliver(n % 2, [(2 * n, 2 * n + 2)], 0.0)
    withdrawn = real.withdraw(400, True)
    assert real.kept == 501
    real.settle(withdrawn)
    assert real.kept == 301
    real.take(900, True)
    assert real.kept == 51
