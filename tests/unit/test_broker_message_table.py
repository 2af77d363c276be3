"""What a queue has, as ranges: helpers, and that a step which fails leaves nothing."""

from __future__ import annotations

import random
from typing import Any

import pytest
from broker_rig import Rig, message
from hypothesis import given
from hypothesis import strategies as st
from queue_view import seen

from coterie.broker.delivery import positions_in
from coterie.broker.journal import Journal
from coterie.broker.message_table import MessageTable, bits_of, time_of, within
from coterie.broker.observer import Reason
from coterie.broker.queue_copy import CopiedMessage, QueueInstallation
from coterie.broker.ranges import PositionSet, Range
from coterie.broker.state.queue_state import QueueConfig
from coterie.broker.state.vocabulary import Kind

spans = st.lists(st.tuples(st.integers(0, 60), st.integers(0, 20)).map(lambda each: (each[0], sum(each))), max_size=6)


@given(spans, st.sets(st.integers(0, 80)))
def test_what_is_in_a_set_is_found_in_the_order_of_the_ranges_and_once(ranges: list[Range], there: set[int]) -> None:
    positions = PositionSet([(at, at + 1) for at in sorted(there)])
    wanted = dict.fromkeys(at for at in positions_in(ranges) if at in there)
    assert [*positions_in(within(ranges, positions))] == [*wanted]


@given(st.floats(0, 1e12), st.floats(0, 1e12))
def test_times_are_kept_exactly_and_in_their_order(one: float, other: float) -> None:
    assert time_of(bits_of(one)) == one
    assert (bits_of(one) < bits_of(other)) == (one < other)


def image(table: MessageTable) -> list[Any]:
    state = table.state
    return [
        state.next_position, [*state.live.ranges()], [*state.ready.ranges()], state.ready_bytes, state.held_bytes,
        [*table.flagged.ranges()], [*state.deliveries.items()], [*state.priorities.items()], [*state.loose.ranges()],
        {priority: [*lane.ranges()] for priority, lane in state.lanes.items()},
        [*state.expiries(1, 200)], dict(state.last_values.newest), dict(state.last_values.keys),
        sorted((str(holder), [*held.ranges()]) for holder, held in table.holders()),
        [state.lengths.get(at) for at in positions_in(state.live.ranges())],
        sorted((at, found.body) for at, found in table.contents if at in state.live),
    ]  # fmt: skip


class Some:
    """Steps of all sorts on one table."""

    def __init__(self, kind: Kind, seed: int) -> None:
        self.rng = random.Random(seed)
        self.journal = Journal()
        self.table = MessageTable(1, QueueConfig(kind, max_priority=3), self.journal)
        self.kind = kind
        self.gone: list[list[Range]] = []

    def change(self) -> None:
        rng, table, state = self.rng, self.table, self.table.state
        holder = rng.choice(("a", "b"))
        what = rng.randint(0, 7)
        ready = self.part(state.ready)
        held = self.part(table.held(holder) or PositionSet())
        if what <= 1:
            first = table.enqueue([message("x" * rng.choice((1, 1, 7))) for _ in range(rng.choice((1, 5)))])
            count = state.next_position - first
            if rng.random() < 0.3:
                table.stamp(first, [rng.choice((None, 1.5, 2.5)) for _ in range(count)])
            if self.kind is Kind.PRIORITY:
                table.prioritise(first, [rng.randint(0, 3) for _ in range(count)])
            if self.kind is Kind.LAST_VALUE:
                table.key([(at, bytes([rng.randint(0, 3)]) * 16) for at in range(first, first + count)])
        elif what == 2:
            table.leap(state.next_position + rng.randint(0, 3))
        elif what == 3 and ready:
            table.acquire(holder, ready)
            if rng.random() < 0.3:
                table.tie(ready)
        elif what == 4 and held:
            table.untie(held)
            table.release(holder, held, rng.random() < 0.5)
        elif what == 5 and held:
            if table.is_plain and rng.random() < 0.5:
                held = [(held[0][0], held[0][0] + 1)]
                assert table.leave_held(holder, held[0][0])
            else:
                table.leave(holder, held, Reason.ACCEPTED)
            self.journal.after(table.forget, held)
        elif what == 6 and ready:
            table.leave(None, ready, Reason.EXPIRED)
            self.journal.after(table.forget, ready)
        elif what == 7:
            rng.choice((table.flag, table.unflag))(ready)
            table.cap(rng.choice((1.0, 3.0)))

    def part(self, positions: PositionSet) -> list[Range]:
        rng = self.rng
        return [each for each in positions.ranges() if rng.random() < 0.7]


class Mistake(Exception):
    pass


@pytest.mark.parametrize("kind", Kind, ids=[kind.name.lower() for kind in Kind])
@given(seed=st.integers(0, 2**32))
def test_a_step_that_fails_leaves_everything_as_it_was(kind: Kind, seed: int) -> None:
    some = Some(kind, seed)
    for _ in range(20):
        before, fails = image(some.table), some.rng.random() < 0.5

        def step(fails: bool = fails) -> None:
            for _ in range(some.rng.randint(1, 4)):
                some.change()
            if fails:
                raise Mistake

        if fails:
            with pytest.raises(Mistake):
                some.journal.run(step)
            assert image(some.table) == before
        else:
            some.journal.run(step)


def test_a_holder_that_has_nothing_any_more_is_forgotten() -> None:
    table = MessageTable(1, QueueConfig(), Journal())
    table.enqueue([message("a"), message("b")])
    table.acquire("somebody", [(1, 3)])
    table.leave("somebody", [(1, 2)], Reason.ACCEPTED)
    assert table.held("somebody") is not None
    table.release("somebody", [(2, 3)], seen=True)
    assert (table.held("somebody"), table.state.holders) == (None, {})


def test_what_was_never_counted_is_taken_from_another_broker_all_the_same() -> None:
    """An older version counts nothing for what a lease had before a restart of all."""
    queue = Rig().declare()
    installation = QueueInstallation(queue)
    installation.add([CopiedMessage(at, message("x"), 1, False, at - 1, None) for at in (1, 2, 3)])
    installation.hold("somebody", [(1, 3)])
    installation.finish(9, [])
    assert [each.deliveries for each in seen(queue).values()] == [1, 1, 2]
    assert (queue.ready, queue.unacked, queue.next_position) == (1, 2, 9)
