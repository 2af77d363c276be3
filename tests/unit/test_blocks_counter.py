"""SharedCounter on whole stacks in the simulator. What all replicated blocks have in common: test_blocks_dict.py."""

from __future__ import annotations

import pytest
from blocks_rig import Group

from coterie.blocks import Hub, NoMajority, SharedCounter


def number(hub: Hub) -> SharedCounter:
    return SharedCounter(hub, "number")


def test_no_two_additions_get_the_same_number_and_none_is_left_out() -> None:
    group = Group(3)
    counters = group.make(number)
    group.connect()
    tasks = [group.start(n % 3, counters[n % 3].add()) for n in range(60)]
    group.until(lambda: all(task.done() for task in tasks))
    assert sorted(task.result() for task in tasks) == list(range(1, 61))
    group.run(0.1)
    assert [counter.value for counter in counters] == [60, 60, 60]


def test_one_members_additions_are_made_in_the_order_in_which_it_asked_for_them() -> None:
    group = Group(2)
    counters = group.make(number)
    group.connect()
    tasks = [group.start(1, counters[1].add()) for _ in range(20)]
    group.until(lambda: all(task.done() for task in tasks))
    assert [task.result() for task in tasks] == list(range(1, 21))


def test_numbers_may_be_negative_and_of_any_size() -> None:
    group = Group(2)
    a, b = group.make(number)
    group.connect()
    assert group.ask(0, a.add(-3)) == -3
    assert group.ask(1, b.add(1 << 100)) == (1 << 100) - 3
    assert group.ask(0, a.add(-(1 << 100))) == -3
    assert group.ask(0, a.add(131)) == 128
    assert group.ask(0, a.add(0)) == 128


def test_a_joiner_goes_on_where_the_group_is() -> None:
    group = Group(2)
    (a,) = group.make(number, 0)
    group.connect()
    group.ask(0, a.add(41))
    (b,) = group.make(number, 1)
    group.connect(1)
    assert b.value == 41
    assert group.ask(1, b.add()) == 42


def test_after_a_partition_the_number_of_the_largest_part_counts() -> None:
    group = Group(3)
    a, b, c = group.make(number)
    group.connect()
    group.split([0, 1], [2])
    group.ask(0, a.add(5))
    group.ask(2, c.add(100))
    group.heal()
    assert (a.value, b.value, c.value) == (5, 5, 5)
    assert group.ask(2, c.add()) == 6


def test_with_a_majority_no_number_is_given_twice_by_a_partition() -> None:
    group = Group(3, majority_of=3)
    counters = group.make(number)
    group.connect()
    drawn = [group.ask(n, counters[n].add()) for n in range(3)]
    group.split([0, 1], [2])
    drawn += [group.ask(n, counters[n].add()) for n in range(2)]
    with pytest.raises(NoMajority):
        group.ask(2, counters[2].add())
    group.heal()
    drawn += [group.ask(n, counters[n].add()) for n in range(3)]
    assert drawn == list(range(1, 9))
