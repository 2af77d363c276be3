"""SharedDict and what all replicated blocks have in common, on whole stacks in the simulator: docs/blocks.md."""

from __future__ import annotations

from functools import partial

import pytest
from blocks_rig import Group

from coterie.blocks import Hub, NoMajority, SharedCounter, SharedDict
from coterie.errors import UserError
from coterie.group.channel import ChannelClosed


def stock(hub: Hub) -> SharedDict:
    return SharedDict(hub, "stock")


def group_of(size: int, majority_of: int = 0, seed: int = 1) -> tuple[Group, list[SharedDict]]:
    """Members that are connected, and their dictionaries."""
    group = Group(size, majority_of=majority_of, seed=seed)
    dicts = group.make(stock)
    group.connect()
    return group, dicts


def test_what_one_member_sets_is_there_when_set_returns_and_soon_at_the_others() -> None:
    group, (a, b, c) = group_of(3)
    group.ask(0, a.set("apples", b"3"))
    assert a["apples"] == b"3"
    group.run(0.1)
    assert a.snapshot() == b.snapshot() == c.snapshot() == {"apples": b"3"}


def test_reading_looks_like_a_dict() -> None:
    group, (a,) = group_of(1)
    group.ask(0, a.set("apples", b"3"))
    group.ask(0, a.set("pears", b"4"))
    assert (len(a), list(a), "pears" in a, "plums" in a) == (2, ["apples", "pears"], True, False)
    assert a.get("plums") is None
    with pytest.raises(KeyError):
        a["plums"]
    copy = a.snapshot()
    copy["plums"] = b"5"
    assert "plums" not in a


def test_concurrent_updates_of_one_key_are_applied_in_the_same_order_everywhere() -> None:
    group, dicts = group_of(3)
    for n in range(20):
        for i, d in enumerate(dicts):
            group.start(i, d.set("key", b"%d of %d" % (n, i)))
    group.run(1)
    assert dicts[0].snapshot() == dicts[1].snapshot() == dicts[2].snapshot()


def test_of_several_that_compare_and_set_the_same_value_one_succeeds() -> None:
    group, dicts = group_of(3)
    group.ask(0, dicts[0].set("owner", b"nobody"))
    group.run(0.1)
    tasks = [group.start(i, d.compare_and_set("owner", b"nobody", b"%d" % i)) for i, d in enumerate(dicts)]
    group.until(lambda: all(task.done() for task in tasks))
    assert sorted(task.result() for task in tasks) == [False, False, True]
    group.run(0.1)
    assert len({d["owner"] for d in dicts}) == 1


def test_compare_and_set_with_none_means_that_there_is_no_such_key() -> None:
    group, (a,) = group_of(1)
    assert group.ask(0, a.compare_and_set("apples", None, b"1"))
    assert not group.ask(0, a.compare_and_set("apples", None, b"2"))
    assert group.ask(0, a.compare_and_set("apples", b"1", None))
    assert "apples" not in a


def test_deleting_tells_whether_there_was_something() -> None:
    group, (a, b) = group_of(2)
    group.ask(0, a.set("apples", b"3"))
    assert group.ask(1, b.delete("apples"))
    assert not group.ask(1, b.delete("apples"))
    group.run(0.1)
    assert "apples" not in a


def test_a_joiner_has_everything_when_it_has_connected_and_what_comes_later_too() -> None:
    group = Group(2)
    (a,) = group.make(stock, 0)
    group.connect()
    for n in range(50):
        group.ask(0, a.set(f"key {n}", bytes(1000)))
    tasks = [group.start(0, a.set("last", b"%d" % n)) for n in range(50)]
    (b,) = group.make(stock, 1)
    group.ask(1, group.hubs[1].connect())
    assert len(b) >= 50
    group.until(lambda: all(task.done() for task in tasks))
    group.run(0.1)
    assert b.snapshot() == a.snapshot()
    assert b["last"] == b"49"


def test_a_joiner_may_ask_for_updates_while_it_is_still_being_given_the_state() -> None:
    group = Group(3)
    a, b = group.make(stock, 0, 1)
    group.connect()
    group.ask(0, a.set("big", bytes(2_000_000)))
    (c,) = group.make(stock, 2)
    group.start(2, group.hubs[2].connect())
    group.until(lambda: len(group.hubs[0].channel.view.members) == 3)
    update = group.start(2, c.set("small", b"1"))
    group.until(update.done)
    assert update.result() is None
    assert len(c["big"]) == 2_000_000
    group.run(0.1)
    assert b["small"] == b"1"


def test_two_blocks_on_one_hub_come_with_one_state_and_do_not_mix() -> None:
    group = Group(2)
    (a,) = group.make(stock, 0)
    (number,) = group.make(lambda hub: SharedCounter(hub, "number"), 0)
    group.connect()
    group.ask(0, a.set("number", b"x"))
    group.ask(0, number.add(7))
    (b,) = group.make(stock, 1)
    (other,) = group.make(lambda hub: SharedCounter(hub, "number"), 1)
    group.connect(1)
    assert (b.snapshot(), other.value) == ({"number": b"x"}, 7)


def test_whoever_watches_is_told_each_change_and_after_a_state_what_is_different() -> None:
    seen: list[tuple[str, bytes | None]] = []
    group = Group(2)
    (a,) = group.make(stock, 0)
    group.connect()
    group.ask(0, a.set("apples", b"3"))
    (b,) = group.make(lambda hub: SharedDict(hub, "stock", lambda key, value: seen.append((key, value))), 1)
    group.connect(1)
    group.ask(0, a.set("apples", b"3"))  # which changes nothing
    group.ask(1, b.set("pears", b"4"))
    group.ask(1, b.delete("apples"))
    assert seen == [("apples", b"3"), ("pears", b"4"), ("apples", None)]


def test_a_watcher_that_fails_does_not_keep_updates_from_being_applied() -> None:
    def fails(key: str, value: bytes | None) -> None:
        raise RuntimeError("no")

    group = Group(2)
    (a,) = group.make(stock, 0)
    (b,) = group.make(lambda hub: SharedDict(hub, "stock", fails), 1)
    group.connect()
    group.ask(1, b.set("apples", b"3"))
    group.ask(1, b.set("pears", b"4"))
    group.run(0.1)
    assert a.snapshot() == b.snapshot() == {"apples": b"3", "pears": b"4"}


# Crashes and partitions.


def test_updates_go_on_when_the_coordinator_crashes_and_what_was_asked_for_is_applied_once() -> None:
    group = Group(3)
    counters = group.make(lambda hub: SharedCounter(hub, "number"))
    group.connect()
    tasks = [group.start(n % 2 + 1, counters[n % 2 + 1].add(1)) for n in range(20)]
    group.crash(0)
    group.until(lambda: all(task.done() for task in tasks))
    assert sorted(task.result() for task in tasks) == list(range(1, 21))
    group.until(lambda: group.together(1, 2))
    assert counters[1].value == counters[2].value == 20


def test_an_update_that_had_to_be_said_twice_is_applied_once() -> None:
    group = Group(3, majority_of=3)
    counters = group.make(lambda hub: SharedCounter(hub, "number"))
    group.connect()
    group.crash(2)
    replicated = [group.replicated(n) for n in (0, 1)]
    while not group.together(0, 1):
        group.world.run(group.world.time + 0.0002)
    tasks = []
    while not all(r is not None and r.copies.open for r in replicated):  # what is under way then is said again
        tasks += [group.start(n, counters[n].add(1)) for n in (0, 1)]
        group.world.run(group.world.time + 0.0002)
    assert len(tasks) > 10
    group.until(lambda: all(task.done() for task in tasks))
    assert sorted(task.result() for task in tasks) == list(range(1, len(tasks) + 1))
    group.run(0.1)
    assert counters[0].value == counters[1].value == len(tasks)


def test_after_a_partition_all_have_the_dictionary_of_the_largest_part() -> None:
    group, (a, b, c) = group_of(3)
    group.ask(0, a.set("before", b"1"))
    group.split([0], [1, 2])
    group.ask(0, a.set("minority", b"1"))
    group.ask(0, a.delete("before"))
    group.ask(1, b.set("majority", b"1"))
    group.heal()
    assert a.snapshot() == b.snapshot() == c.snapshot() == {"before": b"1", "majority": b"1"}


def test_of_equal_parts_the_dictionary_of_the_lowest_coordinator_counts() -> None:
    group, (a, b, c, d) = group_of(4)
    group.split([0, 1], [2, 3])
    group.ask(2, c.set("high", b"1"))
    group.ask(1, b.set("low", b"1"))
    group.heal()
    assert [d.snapshot() for d in (a, b, c, d)] == [{"low": b"1"}] * 4


def test_a_member_whose_copy_does_not_count_gets_its_results_from_the_one_that_does() -> None:
    group = Group(3)
    counters = group.make(lambda hub: SharedCounter(hub, "number"))
    group.connect()
    group.split([0], [1, 2])
    group.ask(0, counters[0].add(1000))
    group.ask(1, counters[1].add(10))
    group.mend()
    results = []
    while not group.together(0, 1, 2):  # all through the merge
        results.append(group.ask(0, counters[0].add(1)))
    results.append(group.ask(0, counters[0].add(1)))
    merged = [result for result in results if result < 1000]
    assert len(merged) > 1
    assert merged == list(range(11, 11 + len(merged)))
    assert results[: -len(merged)] == list(range(1001, 1001 + len(results) - len(merged)))


def test_if_the_largest_part_is_lost_right_after_the_merge_the_next_best_copy_counts() -> None:
    group, (a, b, _) = group_of(3)
    group.split([0], [1, 2])
    group.ask(0, a.set("minority", b"1"))
    group.ask(1, b.set("majority", b"1"))
    group.mend()
    group.until(lambda: len(group.hubs[0].channel.view.members) == 3)
    group.crash(1, silent=True)
    group.crash(2, silent=True)
    group.until(lambda: group.together(0))
    assert a.snapshot() in ({"minority": b"1"}, {"majority": b"1"})
    group.ask(0, a.set("after", b"1"))


def test_a_restarted_member_gets_the_state_again() -> None:
    group, (a, b) = group_of(2)
    group.ask(1, b.set("apples", b"3"))
    group.run(0.1)
    group.crash(1)
    group.ask(0, a.set("pears", b"4"))
    (b,) = group.make(stock, 1)
    group.connect(1)
    assert b.snapshot() == {"apples": b"3", "pears": b"4"}


def test_the_state_survives_as_long_as_somebody_who_has_it_is_there() -> None:
    group = Group(4)
    (first,) = group.make(stock, 0)
    group.connect()
    group.ask(0, first.set("apples", b"3"))
    for n in range(1, 4):
        (latest,) = group.make(stock, n)
        group.connect(n)
        group.crash(n - 1)
        group.until(partial(group.together, n))
        assert latest.snapshot() == {"apples": b"3"}


# With a majority.


def test_without_a_majority_updates_are_refused_and_nothing_is_lost_by_a_partition() -> None:
    group, (a, b, c) = group_of(3, majority_of=3)
    group.ask(0, a.set("apples", b"3"))
    group.split([0], [1, 2])
    with pytest.raises(NoMajority, match="nothing was changed"):
        group.ask(0, a.set("apples", b"0"))
    group.ask(1, b.set("apples", b"4"))
    group.heal()
    assert a.snapshot() == b.snapshot() == c.snapshot() == {"apples": b"4"}
    group.ask(0, a.set("apples", b"5"))


def test_an_update_of_a_member_that_is_cut_off_is_not_reported_as_done() -> None:
    group, (a, b, _) = group_of(3, majority_of=3)
    group.cut([0], [1, 2])
    update = group.start(0, a.set("apples", b"3"))
    group.until(lambda: group.together(0) and group.together(1, 2))
    group.until(update.done)
    with pytest.raises(NoMajority, match="may not be in force"):
        update.result()
    assert "apples" not in b
    group.heal()
    assert "apples" not in a


def test_a_minority_answers_again_as_soon_as_there_is_a_majority() -> None:
    group = Group(3, majority_of=3)
    (a,) = group.make(stock, 0)
    group.connect()
    with pytest.raises(NoMajority):
        group.ask(0, a.set("apples", b"3"))
    group.make(stock, 1)
    group.connect(1)
    group.ask(0, a.set("apples", b"3"))


def test_what_was_answered_in_the_last_majority_wins_over_a_larger_part_that_was_not_there() -> None:
    group, dicts = group_of(5, majority_of=5)
    group.split([0, 1], [2, 3, 4])
    group.ask(2, dicts[2].set("apples", b"3"))
    group.mend()
    group.split([0, 1], [2], [3], [4])
    group.mend()
    group.cut([0, 1, 2], [3], [4])
    group.until(lambda: group.together(0, 1, 2))
    group.ask(0, dicts[0].set("pears", b"4"))
    assert dicts[0].snapshot() == {"apples": b"3", "pears": b"4"}


# Wrong use, and the end.


def test_replicated_blocks_want_a_stack_with_total_order() -> None:
    group = Group(1, "virtual-synchrony")
    with pytest.raises(UserError, match="total-order"):
        group.make(stock)


def test_a_majority_wants_a_total_order_that_tells_who_has_what() -> None:
    group = Group(1, majority_of=3, settings={"TOTAL": {"held": "majority"}})
    with pytest.raises(UserError, match='held = "all"'):
        group.make(stock)


def test_two_blocks_of_one_name_are_refused() -> None:
    group = Group(1)
    hub = group.hub(0)
    stock(hub)
    with pytest.raises(UserError, match="'stock' already"):
        SharedCounter(hub, "stock")


def test_a_block_that_is_made_after_connecting_is_refused() -> None:
    group, _ = group_of(1)
    with pytest.raises(UserError, match="before the hub connects"):
        SharedDict(group.hubs[0], "late")


def test_whoever_waits_when_the_hub_is_closed_is_told_and_nothing_is_left() -> None:
    group, (a, _) = group_of(2, majority_of=2)
    group.cut([0], [1])
    update = group.start(0, a.set("apples", b"3"))
    closed = group.start(0, group.hubs[0].close())
    group.until(lambda: closed.done() and update.done())
    with pytest.raises((ChannelClosed, NoMajority), match="may not be in force"):
        update.result()
    with pytest.raises(ChannelClosed):
        group.ask(0, a.set("apples", b"3"))
    replicated = group.replicated(0)
    assert replicated is not None
    assert not replicated._asked


def test_results_are_not_kept_once_they_were_told() -> None:
    group, dicts = group_of(2)
    for n in range(100):
        group.ask(n % 2, dicts[n % 2].set("apples", b"%d" % n))
    for n in range(2):
        replicated = group.replicated(n)
        assert replicated is not None
        assert not replicated._asked
        assert max(len(results.by_id) for results in replicated._results.values()) <= 2
