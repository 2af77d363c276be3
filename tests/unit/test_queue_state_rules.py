"""Rules of the queue state that need more than one queue, or a clock: small scripts of events."""

from __future__ import annotations

import re
from functools import partial
from pathlib import Path

import pytest
from queue_state_model import Item
from queue_state_rig import Brokers, arrival, positions_in

from coterie.broker.state import (
    QueueConfig,
    QueueLimits,
    QueueState,
    Step,
    consuming,
    encode,
    publish,
    queue_changes,
    settling,
)
from coterie.broker.state.consuming import Prefetch
from coterie.broker.state.expiring import LEAST, next_due, reach
from coterie.broker.state.holding import NewHolder
from coterie.broker.state.operations import OPERATIONS
from coterie.broker.state.vocabulary import HolderKind, Overflow

SECOND = 1_000_000
DOCS = Path(__file__).parents[2] / "docs" / "queue-state.md"


class Two(Brokers):
    """Two queues, and a channel of broker 1 that consumes both with one limit."""

    def __init__(self, shared: int) -> None:
        super().__init__(64)
        for number in (1, 2):
            self.event(partial(queue_changes.create, number=number, config=QueueConfig(), limits=QueueLimits()))
            self.subscribe(number, NewHolder(HolderKind.CONSUMER, 1, number), Prefetch(100, (1, 5), shared))

    def subscribe(self, number: int, new: NewHolder, prefetch: Prefetch) -> None:
        self.event(lambda step: consuming.subscribe(step, self.of(number), new, prefetch))

    def of(self, number: int) -> QueueState:
        return self.state.queues[number]

    def publish(self, number: int, count: int) -> None:
        self.event(lambda step: publish(step, self.of(number), arrival([Item(1) for _ in range(count)])))

    def held(self, number: int) -> list[int]:
        return positions_in(self.of(number).holders[1].held) if 1 in self.of(number).holders else []


def test_the_consumers_of_a_channel_share_its_limit_over_their_queues() -> None:
    two = Two(shared=3)
    two.publish(1, 2)
    two.publish(2, 5)
    assert (two.held(1), two.held(2)) == ([1, 2], [1])
    two.event(lambda step: settling.accept(step, two.of(1), 1, [(1, 3)]))
    assert (two.held(1), two.held(2)) == ([], [1, 2, 3])


def test_what_a_deleted_queue_held_of_a_channels_limit_goes_to_its_other_queues() -> None:
    two = Two(shared=3)
    two.publish(1, 3)
    two.publish(2, 5)
    assert two.held(2) == []
    two.event(lambda step: queue_changes.delete(step, two.of(1)), fail_after=2)
    assert two.held(2) == [1, 2, 3]
    assert two.state.pools[1, 5].users == 1


def test_a_cancelled_consumer_still_takes_up_the_limit_of_its_channel_until_it_settles() -> None:
    two = Two(shared=3)
    two.publish(1, 3)
    two.event(lambda step: consuming.cancel(step, two.of(1), 1))
    two.publish(2, 2)
    assert two.held(2) == []
    two.event(lambda step: settling.release(step, two.of(1), 1, [(1, 4)], True))
    assert two.held(2) == [1, 2]
    assert not two.of(1).holders
    two.event(lambda step: consuming.lose(step, 1))
    assert two.state.pools == {}


def test_the_time_of_the_log_never_falls_and_only_its_keeper_moves_it_far() -> None:
    brokers = Brokers()
    brokers.create()
    times: list[int] = []
    for told, keeps in ((5 * SECOND, True), (0, True), (2**62, False), (6 * SECOND, True), (9 * SECOND, True)):
        step = Step(brokers.state)
        times.append(reach(step, told, keeps))
        step.effects()
    assert times == [5 * SECOND, 5 * SECOND + LEAST, 6 * SECOND + LEAST, 6 * SECOND + 2 * LEAST, 9 * SECOND]


def test_a_message_without_time_goes_to_a_consumer_that_has_room_this_moment_or_to_nobody() -> None:
    brokers = Brokers()
    brokers.create(limits=QueueLimits(dead=True))
    queue = brokers.queue
    brokers.event(lambda step: publish(step, queue, arrival([Item(1, ttl=0)])))
    new = NewHolder(HolderKind.CONSUMER, 1, 1)
    brokers.now += 10
    brokers.event(lambda step: consuming.subscribe(step, queue, new, Prefetch(9)))
    assert queue.dying_count == 1
    brokers.now += 10
    brokers.event(lambda step: publish(step, queue, arrival([Item(1, ttl=0)])))
    assert positions_in(queue.holders[1].held) == [2]
    assert next_due(queue) is None


@pytest.mark.parametrize(("after", "there"), [(999, True), (1000, False)])
def test_a_message_is_over_at_its_time_and_not_before(after: int, there: bool) -> None:
    brokers = Brokers()
    brokers.create()
    brokers.now += 10
    brokers.event(lambda step: publish(step, brokers.queue, arrival([Item(1, ttl=1)])))
    brokers.now += after
    got = brokers.event(lambda step: consuming.get(step, brokers.queue, 1, 1, True))
    assert (got is not None) == there


def test_of_a_single_active_consumers_heirs_the_first_of_the_highest_priority_is_next() -> None:
    brokers = Brokers()
    brokers.create(QueueConfig(single_active=True))
    queue = brokers.queue
    for number, priority in enumerate((0, 0, 1, 1), 1):
        new = NewHolder(HolderKind.CONSUMER, 1, number, priority=priority)
        brokers.event(partial(consuming.subscribe, queue=queue, new=new, prefetch=Prefetch(9)))
    active = []
    for _ in range(4):
        (holder,) = [each for each in queue.consumers() if each.active]
        active.append(holder.number)
        brokers.event(partial(consuming.cancel, queue=queue, holder=holder.id))
    assert active == [1, 3, 4, 2]


def test_a_shorter_time_for_a_queue_counts_for_what_is_in_it_and_a_longer_one_later_does_not() -> None:
    brokers = Brokers()
    brokers.create(limits=QueueLimits(ttl=100))
    queue = brokers.queue
    begin = brokers.now
    brokers.event(lambda step: publish(step, queue, arrival([Item(1), Item(1, ttl=3)])))
    arrived = brokers.state.time
    brokers.now = arrived + 1000
    brokers.event(lambda step: queue_changes.set_limits(step, queue, QueueLimits(ttl=10)))
    brokers.now += 1000
    brokers.event(lambda step: queue_changes.set_limits(step, queue, QueueLimits(ttl=200)), fail_after=2)
    brokers.event(lambda step: publish(step, queue, arrival([Item(1)])))
    assert begin <= arrived
    later = brokers.state.time
    assert [queue.expiry(at) for at in (1, 2, 3)] == [arrived + 11_000, arrived + 3000, later + 200_000]


def test_what_a_full_queue_refuses_dies_at_once_if_it_is_to_be_sent_on() -> None:
    brokers = Brokers()
    brokers.create(limits=QueueLimits(max_length=1, overflow=Overflow.REJECT_DEAD, dead=True))
    outcome = brokers.event(lambda step: publish(step, brokers.queue, arrival([Item(1), Item(2), Item(3)])))
    assert outcome.refused == [(1, 3)]
    assert (brokers.queue.ready.count, brokers.queue.dying_count, brokers.queue.dying_bytes) == (1, 2, 5)


def test_a_part_of_a_step_can_be_taken_back_alone() -> None:
    brokers = Brokers()
    brokers.create()
    queue = brokers.queue
    step = Step(brokers.state)
    publish(step, queue, arrival([Item(1), Item(1)]))
    mark, before = step.mark(), encode(brokers.state)
    consuming.subscribe(step, queue, NewHolder(HolderKind.CONSUMER, 1, 1), Prefetch(9))
    step.undo(mark)
    assert encode(brokers.state) == before
    assert step.given() == []
    assert queue.ready.count == 2


def test_a_step_that_is_over_changes_nothing_any_more() -> None:
    brokers = Brokers()
    brokers.create()
    step = Step(brokers.state)
    effects = step.effects()
    assert step.effects() == effects
    with pytest.raises(AssertionError):
        step.undo()


def test_the_page_lists_every_operation_with_its_code() -> None:
    listed = re.findall(r"^\| (\d+) \| ([a-z ]+) \|", DOCS.read_text(), re.MULTILINE)
    assert {int(code): name for code, name in listed} == {code: each.name for code, each in OPERATIONS.items()}
