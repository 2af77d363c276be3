"""Who may begin when brokers meet and none is in step: whoever has all that was ever promised, and nobody else."""

from __future__ import annotations

from dataclasses import replace

import pytest

from coterie.cluster.membership import Beginning, Era, Progress, Status, Waiting, decide
from coterie.group.members import Address

A, B, C = (Address(name, 1) for name in "abc")
VOTERS = ("a", "b", "c")
SHARED: dict[str, str | int | float] = {"cluster.dispatch": "credit", "broker.queues_max": 100}
OTHERWISE = {**SHARED, "cluster.dispatch": "ownership"}


def status(epoch: int, index: int, live: bool = False, damaged: bool = False, updating: bool = False) -> Status:
    return Status(
        Progress(epoch, index), "x" if epoch else "", VOTERS, 3, live, damaged, updating, not epoch, shared=SHARED
    )


def test_with_a_majority_the_one_that_has_come_furthest_is_right() -> None:
    found = decide((A, B), {A: status(4, 10), B: status(5, 2)})
    assert isinstance(found, Beginning)
    assert (found.source, found.in_step, found.epoch) == (B, (B,), 6)


def test_without_a_majority_everybody_waits() -> None:
    assert isinstance(decide((A,), {A: status(4, 10)}), Waiting)


def test_a_broker_with_a_damaged_store_has_no_vote() -> None:
    found = decide((A, B), {A: status(4, 10), B: status(4, 10, damaged=True)})
    assert isinstance(found, Waiting)
    assert "a of the voters a, b, c" in found.why


def test_one_whose_update_was_cut_off_votes_for_whoever_has_what_it_was_to_get() -> None:
    found = decide((A, B), {A: status(4, 10), B: status(4, 10, updating=True)})
    assert isinstance(found, Beginning)
    assert (found.source, found.in_step) == (A, (A,))


def test_it_does_not_vote_for_one_that_has_less() -> None:
    assert isinstance(decide((A, B), {A: status(4, 9), B: status(4, 10, updating=True)}), Waiting)


def test_brokers_that_have_all_been_cut_off_begin_nothing_new() -> None:
    statuses = {member: status(4, 10, updating=True) for member in (A, B)} | {C: status(0, 0)}
    found = decide((A, B, C), statuses)
    assert isinstance(found, Waiting)
    assert "one is needed that has everything" in found.why


def test_brokers_of_different_clusters_do_not_begin_together() -> None:
    other = Status(Progress(9, 9), "y", ("b", "d"), 3, False)
    assert isinstance(decide((A, B), {A: status(4, 10), B: other}), Waiting)


def went_on(epoch: int, index: int, view: str, *members: str, voters: tuple[str, ...] = VOTERS) -> Status:
    return replace(status(epoch, index), voters=voters, era=Era(view, members))


def test_one_that_went_on_in_a_view_where_no_majority_was_is_wrong_however_far_it_came() -> None:
    """A and B each went on with C, which followed B; then B died."""
    found = decide((A, C), {A: went_on(5, 90, "4@a", "a", "c"), C: went_on(5, 20, "4@b", "b", "c")})
    assert isinstance(found, Beginning)
    assert (found.source, found.in_step, found.epoch) == (C, (C,), 6)


def test_if_nobody_was_followed_the_one_that_came_furthest_is_as_good_as_the_other() -> None:
    lagging = went_on(4, 5, "3@a", "a", "b", "c")
    statuses = {A: went_on(5, 90, "4@a", "a", "c"), B: went_on(5, 20, "4@b", "b", "c"), C: lagging}
    found = decide((A, B, C), statuses)
    assert isinstance(found, Beginning)
    assert found.source == A


def test_one_whose_update_was_cut_off_tells_with_whom_it_was() -> None:
    """A went on with C, and B with C; then C was updated by those who served in B's view."""
    statuses = {A: went_on(5, 90, "4@a", "a", "c"), B: went_on(5, 20, "4@b", "b", "c")}
    assert isinstance(decide((A, B), statuses), Waiting)
    statuses[C] = replace(went_on(5, 15, "4@b", "b", "c"), updating=True)
    found = decide((A, B, C), statuses)
    assert isinstance(found, Beginning)
    assert (found.source, found.in_step) == (B, (B,))


def test_who_was_followed_is_waited_for_if_only_the_absent_can_tell() -> None:
    d, voters = Address("d", 1), ("a", "b", "c", "d", "e")
    left, right = ("a", "b", "c"), ("c", "d", "e")
    statuses = {
        A: went_on(5, 9, "4@a", *left, voters=voters),
        B: went_on(5, 9, "4@a", *left, voters=voters),
        d: went_on(5, 7, "4@d", *right, voters=voters),
    }
    found = decide((A, B, d), statuses)
    assert isinstance(found, Waiting)
    assert "c, e must say with whom" in found.why
    followed = decide((A, B, C, d), {**statuses, C: went_on(5, 7, "4@d", *right, voters=voters)})
    assert isinstance(followed, Beginning)
    assert followed.source in (C, d)


def kept(index: int, crashed: bool | None, *marks: tuple[int, int], live: bool = False) -> Status:
    """`marks`: of the queues 1, 2, and so on."""
    return replace(status(4, index, live), crashed=crashed, marks=dict(enumerate(marks, start=1)))


def test_of_what_was_given_a_majority_knows_that_did_not_crash() -> None:
    found = decide((A, B, C), {A: kept(10, False, (5, 2)), B: kept(9, False), C: kept(8, True, (600, 4))})
    assert isinstance(found, Beginning)
    assert (found.source, found.given, found.marks) == (A, False, {1: (5, 2)})


def test_if_too_many_crashed_or_are_not_there_anything_may_have_been_given() -> None:
    """And what they gave has had positions."""
    found = decide((A, B), {A: kept(10, False, (5, 2)), B: kept(9, True, (600, 4))})
    assert isinstance(found, Beginning)
    assert (found.source, found.in_step, found.given, found.marks) == (A, (A,), True, {1: (600, 4)})
    found = decide((A, B), {A: kept(10, False, live=True), B: kept(9, True, (600, 4))})
    assert isinstance(found, Beginning)
    assert (found.source, found.given) == (A, True)
    found = decide((A, B), {A: kept(10, False), B: kept(9, False)})
    assert isinstance(found, Beginning)
    assert not found.given


def test_one_whose_update_was_cut_off_knew_nothing_that_was_given_and_the_others_do_not() -> None:
    statuses = {A: kept(10, False), B: replace(kept(10, False), updating=True)}
    found = decide((A, B), statuses)
    assert isinstance(found, Beginning)
    assert not found.given


def test_all_who_begin_ask_the_same_question_also_one_of_a_version_that_does_not_know_it() -> None:
    statuses = {
        A: replace(kept(10, False, (5, 2)), chain="00", content="x"),
        B: replace(kept(10, None, (6, 1)), chain="00", content="x"),
        C: kept(9, True, (600, 4)),
    }
    statuses[A] = replace(statuses[A], voters=("a", "b", "c", "d", "e"))
    statuses[B] = replace(statuses[B], voters=("a", "b", "c", "d", "e"))
    found = decide((A, B, C), statuses)
    assert isinstance(found, Beginning)
    assert (found.in_step, found.given, found.marks) == ((A, B), False, {1: (6, 2)})


def test_whether_a_broker_crashed_is_told_and_may_be_unknown() -> None:
    for crashed in (True, False, None):
        said = kept(1, crashed)
        assert Status.from_json(said.to_json()).crashed is crashed
    old = said.to_json()
    del old["crashed"]
    assert Status.from_json(old).crashed is None


D = Address("d", 1)


def test_a_broker_of_another_cluster_keeps_nobody_waiting() -> None:
    other = Status(Progress(9, 9), "y", ("d", "e", "f"), 3, False, empty=False)
    found = decide((D, A, B), {A: status(4, 10), B: status(4, 9), D: other})
    assert isinstance(found, Beginning)
    assert (found.source, found.in_step, found.voters) == (A, (A,), VOTERS)
    assert list(found.refused) == [D]
    assert "another cluster, y" in found.refused[D]


def test_one_that_is_set_up_otherwise_keeps_nobody_waiting_and_has_no_say() -> None:
    otherwise = replace(status(4, 12), shared=OTHERWISE)
    found = decide((C, A, B), {A: status(4, 10), B: status(4, 10), C: otherwise})
    assert isinstance(found, Beginning)
    assert (found.source, list(found.refused)) == (A, [C])
    assert "cluster.dispatch is ownership, and that of the cluster is credit" in found.refused[C]


def test_one_that_is_too_old_is_refused_at_a_restart_too() -> None:
    new = replace(status(4, 10), version=2, speaks=2)
    found = decide((A, B, C), {A: new, B: new, C: status(4, 10)})
    assert isinstance(found, Beginning)
    assert list(found.refused) == [C]
    assert "upgrade it" in found.refused[C]


def test_without_those_that_are_refused_there_must_be_a_majority_all_the_same() -> None:
    found = decide((A, B), {A: status(4, 10), B: replace(status(4, 10), shared=OTHERWISE)})
    assert isinstance(found, Waiting)
    assert "cluster.dispatch is not the same everywhere: credit, ownership" in found.why


LONE = Status(Progress(9, 9), "y", ("d",), 1, False, empty=False)


def test_of_two_whole_clusters_that_meet_the_larger_one_begins() -> None:
    found = decide((D, A, B), {A: status(4, 10), B: status(4, 10), D: LONE})
    assert isinstance(found, Beginning)
    assert (found.cluster, set(found.refused)) == ("x", {D})


def test_another_cluster_that_serves_already_keeps_nobody_waiting() -> None:
    found = decide((D, A, B), {A: status(4, 10), B: status(4, 10), D: replace(LONE, serving=True)})
    assert isinstance(found, Beginning)
    assert (found.cluster, set(found.refused)) == ("x", {D})


def test_nothing_begins_beside_others_of_the_same_cluster_that_serve() -> None:
    serving = replace(status(5, 20), serving=True)
    assert isinstance(decide((A, B, C, D), {A: serving, B: status(4, 9), C: status(4, 9), D: LONE}), Beginning)
    assert isinstance(decide((A, B, C), {A: serving, B: status(4, 9), C: status(4, 9)}), Waiting)
    assert isinstance(decide((A, B), {A: serving, B: status(0, 0)}), Waiting)


def test_a_new_cluster_begins_without_one_that_is_set_up_otherwise_if_there_are_enough() -> None:
    statuses = {member: status(0, 0) for member in (A, B, C)} | {D: replace(status(0, 0), shared=OTHERWISE)}
    found = decide((D, A, B, C), statuses)
    assert isinstance(found, Beginning)
    assert (found.voters, list(found.refused)) == (VOTERS, [D])


def test_if_nobody_can_say_which_setting_is_right_nothing_new_begins() -> None:
    one = replace(status(0, 0), size=1)
    found = decide((A, B), {A: one, B: replace(one, shared=OTHERWISE)})
    assert isinstance(found, Waiting)


def test_only_what_all_brokers_tell_is_compared_when_nobody_serves() -> None:
    """One of another version would not compare it: all of them must decide the same."""
    more = replace(status(4, 10), shared={**SHARED, "broker.queues_max": 5, "broker.new": 1})
    less = replace(status(4, 10), shared={"cluster.dispatch": "credit"})
    for members in ((A, B), (B, A)):
        found = decide(members, {A: more, B: status(4, 10)})
        assert isinstance(found, Waiting)
        assert found.why == "broker.queues_max is not the same everywhere: 100, 5"
        found = decide((*members, C), {A: more, B: status(4, 10), C: less})
        assert isinstance(found, Beginning)
        assert not found.refused


def told(**raw: object) -> Status:
    return Status.from_json({**status(4, 10).to_json(), **raw})


def test_a_status_tells_the_settings_and_one_of_an_older_version_its_dispatch_alone() -> None:
    assert told() == status(4, 10)
    raw = status(4, 10).to_json()
    del raw["shared"]
    assert Status.from_json(raw).shared == {"cluster.dispatch": "credit"}


@pytest.mark.parametrize(
    "shared",
    [
        [],
        "broker.queues_max",
        {"broker.queues_max": None},
        {"broker.queues_max": [1]},
        {"broker.queues_max": 2**64},
        {"broker.queues_max": float("nan")},
        {"broker.queues_max": "x" * 101},
        {"x" * 101: 1},
        {f"broker.{number}": 1 for number in range(101)},
    ],
)
def test_settings_that_no_broker_has_are_malformed(shared: object) -> None:
    with pytest.raises(AssertionError):
        told(shared=shared)
