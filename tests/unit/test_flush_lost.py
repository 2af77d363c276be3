"""An exclusive flush that does not last until it is stopped: its holder is told, whatever ended it.

Both protocols are asked. What one member says or leaves out is in `lone`, what a group makes of it in `Group`.
"""

from __future__ import annotations

import pytest
from flush_rig import (
    BLOCK_TIMEOUT,
    EXCLUSIVE_MAX,
    FIRST,
    HOLD_MAX,
    TIMEOUT,
    A,
    B,
    C,
    D,
    Group,
    Member,
    between,
    from_peer,
    lone,
)

from coterie.group.members import Address, ViewId
from coterie.group.protocols.flush import Flush
from coterie.group.protocols.flush2 import Flush2
from coterie.group.protocols.flush_base import Kind
from coterie.group.protocols.flush_common import Flushing
from coterie.group.protocols.flush_messages import (
    AbortFlush,
    Cut,
    FlushCompleted,
    FlushOk,
    LeftFlush,
    Reconciled,
    Sent,
    StartFlushFail,
    StartFlushOk,
    StopFlush,
    Why,
)

VIEW, SHARED, EXCLUSIVE = Kind.VIEW, Kind.SHARED, Kind.EXCLUSIVE
NEXT = ViewId(11, A)


@pytest.fixture(params=[Flush, Flush2], ids=lambda kind: kind.name)
def kind(request: pytest.FixtureRequest) -> type[Flushing]:
    chosen: type[Flushing] = request.param
    return chosen


# Those who come.


def test_in_a_merge_every_holder_is_told_that_its_flush_is_lost_and_everybody_is_released(kind: type[Flushing]) -> None:
    g = Group(kind, A, B, C, D)
    g.install(A, B)
    g.install(C, D)
    g.carry()
    assert g.flush(A, EXCLUSIVE).ok
    assert g.flush(C, EXCLUSIVE).ok
    g.install(A, B, C, D, merge=True)
    assert [g[m].losses for m in (A, C)] == [
        ["ended when c#1, d#1 came, whom it did not block,"],
        ["ended when a#1, b#1 came, whom it did not block,"],
    ]
    g.run(0.1)
    assert g.shut == []
    assert g.flush(B, EXCLUSIVE).ok
    assert g.shut == ["a", "b", "c", "d"]


def test_the_holder_knows_that_its_flush_is_lost_before_its_application_knows_the_view(kind: type[Flushing]) -> None:
    g = Group(kind, A, B, C)
    g.install(A, B)
    g.carry()
    told: list[str] = []
    a = g[A]
    a.roof.log.clear()
    a.flush.suspend(EXCLUSIVE, (A, B), a.outcomes.append, lambda why: told.extend(type(e).__name__ for e in a.roof.log))
    g.run(0.1)
    g.install(A, B, C, merge=True, at=(A,))
    assert told == ["Block"]
    assert [e.kind for e in a.trace("flush_lost", "flush_ended")] == ["flush_lost", "flush_ended"]


def test_a_partial_flush_is_not_lost_in_a_merge_that_brings_none_of_its_targets(kind: type[Flushing]) -> None:
    g = Group(kind, A, B, C, D)
    g.install(A, B, C)
    g.carry()
    assert g.flush(A, EXCLUSIVE, A, B).ok
    g.install(A, B, C, D, merge=True)
    g.run(0.1)
    assert g[A].losses == []
    assert g.shut == ["a", "b"]


def test_who_joins_is_blocked_by_an_exclusive_flush_and_the_holder_goes_on(kind: type[Flushing]) -> None:
    g = Group(kind, A, B, C)
    g.install(A, B)
    g.carry()
    g[C].forget_views()
    assert g.flush(B, EXCLUSIVE).ok
    g.install(A, B, C)
    g.carry()
    assert g[B].losses == []
    assert g[C].flush.holders() == {B: EXCLUSIVE}
    g[B].flush.resume(1)
    g.carry()
    assert g[C].flush.holders() == {}


def test_who_joins_takes_no_part_in_others_while_an_exclusive_flush_holds_of_which_it_was_told() -> None:
    s = lone(Flush2, C, A, B)
    s.forget_views()
    s.install((A, B, C), NEXT, {B: EXCLUSIVE})
    s.start(A, SHARED, number=4, targets=(A, C))
    assert s.sent(StartFlushFail) == [(A, StartFlushFail(4, 1))]


def test_a_holder_whose_flush_the_maker_of_a_view_does_not_know_is_told_when_somebody_joins(
    kind: type[Flushing],
) -> None:
    s = lone(kind, A, B)
    s.suspend(EXCLUSIVE, A, B)
    _answer(s, kind)
    assert s.outcome.ok
    s.install((B, A, C), ViewId(11, B))
    assert s.losses == ["ended when c#1 came, whom it did not block,"]


def test_a_holder_goes_on_when_members_leave_or_the_maker_of_a_view_names_it_to_those_who_join(
    kind: type[Flushing],
) -> None:
    s = lone(kind, A, B)
    s.suspend(EXCLUSIVE, A, B)
    _answer(s, kind)
    s.install((B, A, C), ViewId(11, B), {A: EXCLUSIVE})
    s.install((A, C), ViewId(12, A))
    assert s.losses == []
    s.flush.resume(1)
    assert {m for m in s.whom(StopFlush) if m == C} == {C}


def _answer(s: Member, kind: type[Flushing]) -> None:
    """B, the only other target, has stopped and is as far as we are."""
    if kind is Flush2:
        s.answer(B)
    else:
        s.hear(B, kind, FlushOk(A, 1, 1, 0))
        s.hear(B, kind, FlushCompleted(1, 1, (0, 0)))


# Those who go by themselves.


def test_a_member_that_suspects_the_holder_keeps_its_gate_shut_until_the_holder_knows(kind: type[Flushing]) -> None:
    s = lone(kind, B, A, C)
    s.start(A, EXCLUSIVE, number=7)
    s.cast("waits")
    s.suspect(A)
    assert s.flush.shut
    assert s.sent(LeftFlush) == [(A, LeftFlush(7, 1, Why.SUSPECT))]
    s.run(BLOCK_TIMEOUT)
    assert s.flush.shut
    s.stop(A, number=7)
    assert not s.flush.shut
    assert s.story("flush_left") == [("flush_left", "a#1", "7", "stop")]


def test_a_holder_that_one_member_suspects_is_told_and_then_everybody_is_released(kind: type[Flushing]) -> None:
    g = Group(kind, A, B, C)
    assert g.flush(B, EXCLUSIVE).ok
    for name in ("one", "two"):
        g[C].cast(name)
    g[C].suspect(B)
    assert g.shut == ["a", "b", "c"]
    assert [m.texts() for m in g] == [[]] * 3
    g.run(0.1)
    assert g[B].losses == ["was left by c#1, which takes this member for dead,"]
    assert g.shut == []
    assert [m.texts() for m in g] == [[b"one", b"two"]] * 3


def test_a_holder_that_cannot_be_told_is_waited_for_until_the_next_view(kind: type[Flushing]) -> None:
    g = Group(kind, A, B, C)
    g.flush(B, EXCLUSIVE)
    apart = between((B, C), (C, B))
    g[C].suspect(B)
    g.run(TIMEOUT, apart)
    assert g.shut == ["a", "b", "c"]
    g.install(A, C, at=(A, C))
    g.run(0.1, apart)
    assert g.shut == ["b"]
    assert g[B].losses == []  # whoever is in its view has not multicast


def test_a_holder_that_cannot_be_told_is_waited_for_no_longer_than_its_flush_may_last(kind: type[Flushing]) -> None:
    s = lone(kind, B, A, C)
    s.start(A, EXCLUSIVE)
    s.suspect(A)
    s.run(EXCLUSIVE_MAX + 0.1)
    assert not s.flush.shut
    told = s.told(LeftFlush)  # again and again: nobody acks
    assert list(dict.fromkeys(told)) == [LeftFlush(1, 1, Why.SUSPECT), LeftFlush(1, 1, Why.TIMEOUT)]


def test_a_holder_whose_death_is_proven_is_not_waited_for() -> None:
    s = lone(Flush2, B, A, C)
    s.start(A, EXCLUSIVE)
    s.suspect(A, proof=True)
    assert not s.flush.shut
    assert s.told(LeftFlush) == []


def test_a_holder_that_is_trusted_again_has_been_told_all_the_same(kind: type[Flushing]) -> None:
    g = Group(kind, A, B, C)
    g.flush(B, EXCLUSIVE)
    g[C].suspect(B)
    g[C].unsuspect(B)
    g.run(0.1)
    assert len(g[B].losses) == 1
    assert g.shut == []


def test_while_a_suspected_holder_may_still_hold_no_other_flush_begins(kind: type[Flushing]) -> None:
    s = lone(kind, B, A, C)
    s.start(A, EXCLUSIVE)
    s.suspect(A)
    s.start(C, EXCLUSIVE, number=4, targets=(B, C))
    assert s.sent(StartFlushFail) == [(C, StartFlushFail(4, 1))]
    s.start(C, SHARED, number=5, targets=(B, C))
    assert s.sent(StartFlushFail) == [(C, StartFlushFail(5, 1))]


def test_a_member_whose_time_is_up_tells_the_holder_before_it_sends_anything(kind: type[Flushing]) -> None:
    s = lone(kind, B, A, C)
    s.start(A, EXCLUSIVE)
    s.cast("waits")
    s.run(EXCLUSIVE_MAX)
    protocols = [p.proto for p in s.floor.out]
    assert not s.flush.shut
    assert s.told(LeftFlush) == [LeftFlush(1, 1, Why.TIMEOUT)]
    assert 0 in protocols  # the multicast
    last = max(at for at, proto in enumerate(protocols) if proto == kind.id)
    assert last < protocols.index(0)


def test_a_gate_that_opens_at_hold_max_is_told_to_whoever_holds_a_flush_there(kind: type[Flushing]) -> None:
    s = lone(kind, B, A, C, exclusive_max=10.0)
    s.start(C, VIEW)
    s.run(1.0)
    s.start(A, EXCLUSIVE, number=3)  # waits for the end of the other, and finds the gate shut
    s.stop(C)
    assert s.flush.shut
    s.run(HOLD_MAX - 1.0)
    assert not s.flush.shut
    assert s.sent(LeftFlush) == [(A, LeftFlush(3, 1, Why.TIMEOUT))]


def test_a_holder_that_is_told_of_a_gate_that_opened_has_lost_its_flush(kind: type[Flushing]) -> None:
    g = Group(kind, A, B, C)
    g.flush(A, EXCLUSIVE)
    g[C].flush.held_too_long()
    g.run(0.1)
    assert g[A].losses == ["was left by c#1, whose gate was shut for too long,"]
    assert g.shut == []
    assert [e.kind for e in g[A].trace("flush_held", "flush_lost", "flush_ended")] == [
        "flush_held", "flush_lost", "flush_ended",
    ]  # fmt: skip


def test_whoever_came_by_a_join_tells_the_holder_too_although_it_knows_no_number(kind: type[Flushing]) -> None:
    g = Group(kind, A, B, C)
    g.install(A, B)
    g.carry()
    g[C].forget_views()
    g.flush(B, EXCLUSIVE)
    g.install(A, B, C)
    g.carry()
    g[C].flush.held_too_long()
    g.run(0.1)
    assert g[B].losses == ["was left by c#1, whose gate was shut for too long,"]


def test_a_flush_that_a_member_leaves_before_it_holds_fails(kind: type[Flushing]) -> None:
    s = lone(kind)
    s.suspend(EXCLUSIVE)
    s.hear(B, kind, LeftFlush(1, 1, Why.TIMEOUT))
    assert s.outcome.reason == "b#1 left it, whose gate was shut for too long,"
    assert s.losses == []
    assert not s.flush.shut


def test_a_flush_that_was_left_in_an_earlier_round_is_not_lost(kind: type[Flushing]) -> None:
    s = lone(kind, A, B)
    s.suspend(EXCLUSIVE)
    _answer(s, kind)
    s.hear(B, kind, LeftFlush(1, 0, Why.TIMEOUT))
    s.hear(C, kind, LeftFlush(1, 1, Why.TIMEOUT))  # a stranger
    assert s.losses == []
    s.hear(B, kind, LeftFlush(1, 1, 9))
    assert s.flush.stats["malformed"] == 1
    assert s.losses == []


def test_whoever_leaves_a_flush_that_is_over_hears_so_once_more(kind: type[Flushing]) -> None:
    s = lone(kind)
    s.hear(B, kind, LeftFlush(8, 1, Why.SUSPECT))
    s.hear(B, kind, LeftFlush(0, 0, Why.SUSPECT))
    assert s.sent(StopFlush) == [(B, StopFlush(8, FIRST)), (B, StopFlush(0, FIRST))]


def test_when_the_gate_of_the_holder_itself_opens_others_are_released_and_what_waits_begins(
    kind: type[Flushing],
) -> None:
    g = Group(kind, A, B)
    g.flush(A, EXCLUSIVE)
    g[A].suspend(EXCLUSIVE)
    g[A].flush.held_too_long()
    g.run(0.1)
    assert g[A].losses == [f"ended when a gate had been shut for hold_max ({HOLD_MAX:g} s)"]
    assert g[A].outcomes[-1].number == 2
    assert g[A].outcomes[-1].ok
    assert g.shut == ["a", "b"]
    g[A].flush.resume(2)
    g.run(0.1)
    assert g.shut == []
    assert len(g[A].losses) == 1


# Those who are suspected.


def test_an_exclusive_flush_does_not_hold_before_a_suspected_member_has_answered_or_is_out_of_the_view(
    kind: type[Flushing],
) -> None:
    g = Group(kind, A, B, C)
    g[A].suspect(C)
    g[A].suspend(EXCLUSIVE)
    apart = between((A, C), (C, A))
    g.run(TIMEOUT / 2, apart)
    assert g[A].outcomes == []
    g[B].suspect(C)
    g.install(A, B, at=(A, B))
    g.run(0.1, apart)
    assert g[A].outcome.ok
    assert g[A].outcome.answered == (A, B)


def test_an_exclusive_flush_fails_if_a_suspected_member_stays_in_the_view_and_does_not_answer(
    kind: type[Flushing],
) -> None:
    g = Group(kind, A, B, C)
    g[A].suspend(EXCLUSIVE)
    g[A].suspect(C)
    g.run(TIMEOUT + 0.1, between((A, C), (C, A)))
    assert "no answer from" in g[A].outcome.reason
    g.run(TIMEOUT)
    assert g.shut == []


def test_a_flush_that_leaves_out_a_suspected_member_is_not_of_the_whole_view(kind: type[Flushing]) -> None:
    g = Group(kind, A, B, C)
    g[A].suspect(C)
    assert g.flush(A, EXCLUSIVE, A, B).ok
    (held,) = g[A].trace("flush_held")
    assert held.data["total"] is False


# What several leaders do to each other.


def test_seventy_leaders_hold_a_shared_flush_at_once() -> None:
    others = tuple(Address(f"m{number:02}", 1) for number in range(70))
    s = lone(Flush, A, *others)
    for leader in others:
        s.hear(leader, Flush, FlushOk(leader, 1, 1, 0))  # may come before START_FLUSH
    for leader in others:
        s.start(leader, SHARED)
    assert s.stack.held()["FLUSH.holds"] == 70
    assert {m for m in s.whom(FlushOk) if m is not None} == set(others)
    for leader in others:
        s.stop(leader)
    assert not s.flush.shut


def test_a_second_leader_that_begins_while_one_reconciles_does_not_keep_us_from_saying_that_we_are_there() -> None:
    s = lone(Flush2, A, B, C, D)
    s.hear(C, Flush2, Sent(FIRST, 9))
    s.start(B, targets=(A, B, C, D))
    s.hear(B, Flush2, Cut(1, 1, (0, 0, 2, 0), {C: C}, ()))
    s.start(D, targets=(A, B, C, D))
    s.up(from_peer(C, 1), from_peer(C, 2), from_peer(C, 3))
    assert s.delivered() == [1, 2]  # and nothing beyond the cut
    assert s.sent(Reconciled) == [(B, Reconciled(1, 1, (0, 0, 2, 0)))]


def test_a_second_leader_does_not_lead_past_the_cut_of_a_flush_that_holds() -> None:
    s = lone(Flush2, A, B, C, D)
    s.start(B)
    s.hear(B, Flush2, Cut(1, 1, (0, 0, 1, 0), {C: C}, ()))
    s.up(from_peer(C, 1))
    assert s.told(Reconciled) == [Reconciled(1, 1, (0, 0, 1, 0))]
    s.start(D)
    s.hear(C, Flush2, Sent(FIRST, 2))
    s.up(from_peer(C, 2))
    assert s.told(StartFlushOk)[-1].digest == (0, 0, 1, 0)
    assert s.delivered() == [1]


def test_a_flush_for_a_view_that_is_replaced_leaves_no_promise_behind(kind: type[Flushing]) -> None:
    s = lone(kind)
    s.start(B, VIEW, number=1)
    s.start(B, VIEW, number=2)
    assert (s.sequencer.promises, s.sequencer.releases) == (2, 0)
    s.hear(B, kind, AbortFlush(2, FIRST))
    assert s.sequencer.releases == 1


def test_a_promise_to_another_leader_stays_when_one_is_replaced(kind: type[Flushing]) -> None:
    s = lone(kind)
    s.start(C, VIEW, number=1)
    s.start(B, VIEW, number=1)
    s.start(B, VIEW, number=2)
    s.hear(B, kind, AbortFlush(2, FIRST))
    assert s.sequencer.releases == 0
    s.hear(C, kind, AbortFlush(1, FIRST))
    assert s.sequencer.releases == 1


# A leader whose own gate opens by itself.


@pytest.mark.parametrize("what", [VIEW, SHARED, EXCLUSIVE])
def test_a_flush_under_way_fails_when_the_gate_of_its_leader_opens_by_itself(kind: type[Flushing], what: Kind) -> None:
    s = lone(kind)
    s.suspend(what)
    s.flush.held_too_long()
    assert s.outcome.reason == "our own gate was shut for too long"
    assert not s.flush.shut
    assert set(s.whom(AbortFlush)) == {B, C}


def test_a_flush_for_a_view_that_held_when_its_leaders_gate_opened_is_not_said_to_have_led_to_none(
    kind: type[Flushing],
) -> None:
    s = lone(kind, A, B)
    s.suspend(VIEW)
    _answer(s, kind)
    assert s.outcome.ok
    s.flush.held_too_long()
    s.flush.resume(1)
    assert s.told(StopFlush) == s.told(AbortFlush) == []


def test_a_flush_for_a_view_that_came_although_its_leaders_gate_had_opened_is_over_for_all(
    kind: type[Flushing],
) -> None:
    s = lone(kind, A, B)
    s.suspend(VIEW)
    _answer(s, kind)
    s.flush.held_too_long()
    s.install((A, B), NEXT)
    s.flush.resume(1)
    assert s.sent(StopFlush) == [(B, StopFlush(1, NEXT))]
