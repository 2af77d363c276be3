"""FLUSH2 as scripts of messages: the sentences of its design document in their order."""

from __future__ import annotations

import pytest
from flush_rig import (
    FIRST,
    A,
    B,
    C,
    D,
    Group,
    Member,
    from_peer,
    lone,
    multicasts_to,
)

from coterie.group.events import Writable
from coterie.group.members import Address, ViewId
from coterie.group.packet import MCAST, Packet
from coterie.group.protocols.flush2 import Flush2
from coterie.group.protocols.flush_base import Kind, Outcome
from coterie.group.protocols.flush_messages import (
    AbortFlush,
    Cut,
    Reconciled,
    StartFlush,
    StartFlushFail,
    StartFlushOk,
    StopFlush,
)
from coterie.group.protocols.nakack import Ask

VIEW, SHARED, EXCLUSIVE = Kind.VIEW, Kind.SHARED, Kind.EXCLUSIVE
NEXT = ViewId(11, A)


def group(*members: Address, **settings: object) -> Group:
    return Group(Flush2, *(members or (A, B, C)), **settings)


def member(**settings: object) -> Member:
    """A, whose peers B and C are played by the test."""
    return lone(Flush2, A, **settings)


# Prerequisites.


@pytest.mark.parametrize("kind", [VIEW, SHARED])
def test_a_flush_is_started_and_stopped_by_the_same_member_both_for_joins_and_state_transfer(kind: Kind) -> None:
    s = member()
    s.start(B, kind)
    s.stop(C)
    assert s.flush.shut
    s.stop(B)
    assert not s.flush.shut


def test_for_state_transfers_different_members_can_start_a_flush_at_the_same_time() -> None:
    g = group()
    g.suspend(A, SHARED)
    g.suspend(B, SHARED)
    g.carry()
    assert g[A].outcome.ok
    assert g[B].outcome.ok
    assert g.shut == ["a", "b", "c"]


# Structures.


def test_flush_leaders_has_no_duplicates() -> None:
    s = member()
    s.start(B)
    s.start(B, round=2)
    assert tuple(s.flush.holders()) == (B,)
    s.stop(B)
    assert tuple(s.flush.holders()) == ()
    assert not s.flush.shut


def test_unicasts_are_passed_at_all_times() -> None:
    s = member()
    s.start(B)
    assert s.send("multicast").seqno == 0
    assert s.send("unicast", B).seqno != 0
    assert s.flow.ready(B)


# On SUSPEND.


def test_suspend_sends_start_flush_to_everybody_and_takes_part_itself() -> None:
    s = member()
    number = s.suspend(SHARED)
    assert s.sent(StartFlush) == [
        (B, StartFlush(number, 1, FIRST, SHARED, ())),
        (C, StartFlush(number, 1, FIRST, SHARED, ())),
    ]
    assert tuple(s.flush.holders()) == (A,)
    assert s.blocks == 1
    assert s.flush.shut


def test_suspend_while_another_flush_is_active_adds_this_leader_and_sends_start_flush() -> None:
    s = member()
    s.start(B)
    s.suspend(SHARED)
    assert tuple(s.flush.holders()) == (B, A)
    assert s.whom(StartFlush) == [B, C]


def test_suspend_of_a_leader_that_is_present_already_sends_no_start_flush() -> None:
    s = member()
    first = s.suspend(SHARED)
    s.told(StartFlush)
    second = s.suspend(SHARED)
    assert s.told(StartFlush) == []
    s.answer(B, C)
    assert [(o.ok, o.number) for o in s.outcomes] == [(True, first), (True, second)]
    third = s.suspend(SHARED)
    assert s.outcomes[-1] == Outcome(True, third, (A, B, C), {A: 0, B: 0, C: 0})
    for number in (first, second):
        s.flush.resume(number)
        assert s.flush.shut  # whoever else asked for it still holds it
    s.flush.resume(third)
    assert not s.flush.shut


def test_suspend_returns_when_nobody_is_left_in_the_start_flush_set() -> None:
    s = member()
    number = s.suspend(SHARED)
    s.answer(B)
    assert s.outcomes == []
    s.answer(C)
    assert s.outcome == Outcome(True, number, (A, B, C), {A: 0, B: 0, C: 0})


def test_if_all_digests_are_the_same_suspend_returns_and_nothing_else_is_sent() -> None:
    s = member()
    s.up(from_peer(B, 1))
    s.suspend(SHARED)
    s.answer(B, C, b=1)
    assert s.outcome.cut == {A: 0, B: 1, C: 0}
    assert s.told(Cut) == []


def test_if_digests_differ_the_reconciliation_phase_runs() -> None:
    s = member()
    s.suspend(SHARED)
    s.answer(B, b=1)
    s.answer(C, b=0)
    assert s.outcomes == []
    cut = Cut(1, 1, (0, 1, 0), {B: B}, ())
    assert s.sent(Cut) == [(B, cut), (C, cut)]
    assert s.rules("reconcile") == 1


def test_what_somebody_misses_is_had_from_its_sender_if_that_takes_part() -> None:
    s = member()
    s.up(from_peer(B, 1))
    s.suspend(SHARED)
    s.answer(C, b=0)
    s.answer(B, b=1)
    assert [m.holders for m in s.told(Cut)] == [{B: B}, {B: B}]


def test_an_idle_group_needs_one_message_to_each_member_and_one_back() -> None:
    g = group(A, B, C, D)
    seen = []

    def look(source: Address, target: Address, packet: Packet) -> bool:
        if packet.proto == Flush2.id:
            seen.append(source)
        return False

    g.suspend(A, SHARED)
    g.carry(look)
    assert g[A].outcome.ok
    assert sorted(seen) == [A, A, A, B, C, D]


def test_a_view_of_one_member_is_flushed_at_once() -> None:
    s = member()
    s.install((A,), NEXT)
    s.suspend(VIEW)
    assert s.outcome == Outcome(True, 1, (A,), {A: 0})
    s.flush.resume(1)
    assert not s.flush.shut
    assert s.floor.out == []


# On START-FLUSH.


def test_start_flush_adds_its_sender_to_the_leaders() -> None:
    s = member()
    s.start(B)
    assert tuple(s.flush.holders()) == (B,)
    s.start(C)
    assert tuple(s.flush.holders()) == (B, C)


def test_start_flush_calls_block() -> None:
    s = member()
    s.start(B)
    assert s.blocks == 1


def test_a_second_leader_does_not_make_block_be_called_again() -> None:
    s = member()
    s.start(B)
    s.start(C)
    assert s.blocks == 1
    assert s.whom(StartFlushOk) == [B, C]


def test_from_start_flush_on_multicasts_are_blocked() -> None:
    s = member()
    assert s.send("before").seqno == 1
    s.start(B)
    assert not s.flow.ready(None)
    late = s.send("after")
    assert late.seqno == 0
    s.stop(B)
    assert late.seqno == 2


def test_start_flush_is_answered_with_the_digest_to_whoever_sent_it() -> None:
    s = member()
    s.cast()
    s.up(from_peer(C, 1), from_peer(C, 2))
    s.start(B, number=7, round=3)
    assert s.sent(StartFlushOk) == [(B, StartFlushOk(7, 3, (1, 0, 2), (), ()))]


def test_what_block_multicasts_goes_out_before_the_gate_shuts() -> None:
    s = member()
    s.roof.blocks_at_once = False
    s.start(B)
    out_of_block = s.send("out of block()")
    assert out_of_block.seqno == 1
    assert s.told(StartFlushOk) == []
    s.block_done()
    (answer,) = s.told(StartFlushOk)
    assert answer.digest == (1, 0, 0)  # and we have delivered it ourselves
    assert s.send("afterwards").seqno == 0


def test_after_the_answer_nothing_is_delivered() -> None:
    s = member()
    s.start(B)
    s.up(from_peer(C, 1))
    assert s.delivered() == []
    s.stop(B)
    assert s.delivered() == [1]


# On START-FLUSH-OK.


def test_start_flush_ok_adds_its_digest_to_the_others() -> None:
    s = member()
    s.suspend(VIEW)
    s.answer(B, b=2)
    s.answer(C, c=3)
    (_, cut), _ = s.sent(Cut)
    assert cut.cut == (0, 2, 3)


def test_start_flush_ok_removes_its_sender_from_the_start_flush_set_once() -> None:
    s = member()
    s.suspend(SHARED)
    s.answer(B)
    s.answer(B, b=9)  # doubled, or of somebody confused
    assert s.outcomes == []
    s.answer(C)
    assert s.outcome.cut[B] == 0


def test_start_flush_ok_of_an_earlier_round_another_flush_or_a_stranger_is_ignored() -> None:
    s = member()
    s.suspend(SHARED)
    s.answer(B)
    s.answer(C, round=2)
    s.answer(C, number=2)
    s.answer(D)
    assert s.outcomes == []


# On RESUME.


def test_resume_sends_stop_flush_to_everybody_and_waits_for_nobody() -> None:
    s = member()
    number = s.suspend(SHARED)
    s.answer(B, C)
    s.flush.resume(number)
    assert s.sent(StopFlush) == [(B, StopFlush(number, FIRST)), (C, StopFlush(number, FIRST))]
    assert not s.flush.shut
    assert s.story("flush_started", "flush_held", "flush_ended") == [
        ("flush_started", "1", "shared"),
        ("flush_held", "1", "shared"),
        ("flush_ended", "1", "shared"),
    ]


def test_resume_of_a_flush_that_is_over_does_nothing() -> None:
    s = member()
    number = s.suspend(SHARED)
    s.answer(B, C)
    s.flush.resume(number)
    s.told(StopFlush)
    s.flush.resume(number)
    s.flush.resume(99)
    assert s.told(StopFlush) == []


def test_resume_gives_up_a_flush_that_is_under_way() -> None:
    s = member()
    number = s.suspend(SHARED)
    s.flush.resume(number)
    assert s.whom(AbortFlush) == [B, C]
    assert not s.flush.shut
    assert not s.outcome.ok
    s.answer(B, C)
    assert len(s.outcomes) == 1


# On STOP-FLUSH.


def test_stop_flush_removes_its_sender_from_the_leaders() -> None:
    s = member()
    s.start(B)
    s.start(C)
    s.stop(B)
    assert tuple(s.flush.holders()) == (C,)
    assert s.flush.shut
    assert s.rules("stop_not_last") == 1


def test_stop_flush_of_the_last_leader_unblocks() -> None:
    s = member()
    s.start(B)
    s.start(C)
    s.stop(C)
    s.up(from_peer(B, 1))
    s.stop(B)
    assert not s.flush.shut
    assert s.unblocks == 1
    assert s.delivered() == [1]
    assert s.events(Writable)
    assert s.rules("stop") == 1


def test_stop_flush_of_a_flush_that_is_unknown_or_over_is_ignored() -> None:
    s = member()
    s.stop(B, 7)
    s.start(B, number=8)
    s.stop(B, 7)
    assert s.flush.shut
    assert s.unblocks == 0


# On SUSPECT.


def test_a_suspect_is_removed_from_the_start_flush_set() -> None:
    s = member()
    s.suspend(SHARED)
    s.answer(B)
    s.suspect(C)
    assert s.rules("suspect_expected") == 1
    assert s.whom(Cut) == [B]  # and the flush goes on; what C may still have sent is asked about
    s.hear(B, Flush2, Reconciled(1, 1, (0, 0, 0)))
    assert s.outcome == Outcome(True, 1, (A, B), {A: 0, B: 0, C: 0})


def test_what_a_suspect_has_answered_does_not_count_any_more() -> None:
    s = member()
    s.suspend(VIEW)
    s.answer(C, b=7)  # nobody else may be able to give that
    s.suspect(C)
    s.answer(B)
    assert [m.cut for m in s.told(Cut)] == [(0, 0, 0)]


def test_if_only_a_suspect_was_expected_the_waiting_ends() -> None:
    s = lone(Flush2, A, B)
    s.suspend(VIEW)
    s.suspect(B)
    assert s.outcome.answered == (A,)


def test_a_suspect_may_be_suspected_in_error_and_is_told_when_the_flush_is_over() -> None:
    s = member()
    number = s.suspend(SHARED)
    s.answer(B, C)
    s.suspect(C)
    s.flush.resume(number)
    assert s.whom(StopFlush) == [B, C]


def test_who_is_proven_dead_is_removed_from_the_stop_flush_set() -> None:
    s = member()
    number = s.suspend(SHARED)
    s.answer(B, C)
    s.suspect(C, proof=True)
    s.flush.resume(number)
    assert s.whom(StopFlush) == [B]


def test_who_is_proven_dead_and_out_of_the_view_is_not_told_either() -> None:
    s = member()
    number = s.suspend(VIEW)
    s.answer(B, C)
    s.suspect(C, proof=True)
    s.install((A, B), NEXT)
    s.flush.resume(number)
    assert s.whom(StopFlush) == [B]


def test_a_suspect_that_comes_back_in_a_later_view_takes_part_again() -> None:
    s = member()
    number = s.suspend(SHARED)
    s.answer(B, C)
    s.suspect(C)
    s.install((A, B), NEXT)
    s.flush.resume(number)
    s.install((A, B, C), ViewId(12, A))
    s.told(StartFlush)
    s.suspend(SHARED)
    assert s.whom(StartFlush) == [B, C]


def test_a_suspected_leader_is_removed_and_if_no_other_is_left_we_unblock() -> None:
    s = member()
    s.start(B)
    s.start(C)
    s.suspect(B)
    assert s.flush.shut
    assert tuple(s.flush.holders()) == (C,)
    s.suspect(C)
    assert not s.flush.shut
    assert s.unblocks == 1
    assert s.story("flush_left") == [("flush_left", "b#1", "1", "suspect"), ("flush_left", "c#1", "1", "suspect")]


def test_suspects_of_no_flush_change_nothing() -> None:
    s = member()
    s.suspect(C)
    s.start(B)
    assert s.flush.shut
    s.suspect(C)
    assert s.flush.shut


# On a view change.


def test_a_view_change_removes_who_is_not_part_of_it_from_the_start_flush_set() -> None:
    s = member()
    s.suspend(SHARED)
    s.answer(B)
    s.told(StartFlush)
    s.install((A, B), NEXT)
    assert s.sent(StartFlush) == [(B, StartFlush(1, 2, NEXT, SHARED, ()))]  # the round starts over in the view
    s.hear(B, Flush2, StartFlushOk(1, 2, (0, 0), (), ()))
    assert s.outcome.answered == (A, B)


def test_a_view_change_that_leaves_nobody_to_wait_for_ends_the_waiting() -> None:
    s = member()
    s.suspend(SHARED)
    s.install((A,), NEXT)
    assert s.outcome == Outcome(True, 1, (A,), {A: 0})


def test_a_view_change_removes_leaders_that_are_not_part_of_it_and_if_no_other_is_left_we_unblock() -> None:
    s = member()
    s.start(B)
    s.start(C)
    s.install((A, C), NEXT)
    assert s.flush.shut
    s.install((A,), ViewId(12, A))
    assert not s.flush.shut
    assert s.unblocks == 1
    assert s.story("flush_left") == [("flush_left", "b#1", "1", "view"), ("flush_left", "c#1", "1", "view")]


def test_a_flush_that_holds_goes_on_over_a_view_change() -> None:
    s = member()
    s.start(B)
    s.install((A, B, C, D), NEXT)
    assert s.flush.shut
    assert tuple(s.flush.holders()) == (B,)


def test_a_flush_for_a_view_that_is_under_way_ends_when_another_view_comes() -> None:
    s = member()
    s.suspend(VIEW)
    s.install((A, B, C, D), ViewId(11, B))
    assert not s.outcome.ok
    assert s.whom(AbortFlush) == [B, C]
    assert not s.flush.shut


def test_the_view_that_a_flush_was_for_does_not_end_it() -> None:
    s = member()
    number = s.suspend(VIEW)
    s.answer(B, C)
    s.install((A, B, C, D), NEXT)
    assert s.flush.shut
    s.flush.resume(number)
    assert not s.flush.shut


# Reconciliation.


def test_what_is_in_the_cut_and_not_in_our_digest_is_asked_for_from_who_has_it() -> None:
    s = member()
    s.start(B, VIEW)
    s.hear(B, Flush2, Cut(1, 1, (0, 0, 2), {C: B}, ()))
    s.run(0.001)
    assert s.sent(Ask) == [(B, Ask(C, ((1, 2),)))]
    assert s.told(Reconciled) == []


def test_we_wait_until_our_digest_is_the_cut_and_then_say_so() -> None:
    s = member()
    s.start(B, VIEW)
    s.hear(B, Flush2, Cut(1, 1, (0, 0, 2), {C: B}, ()))
    s.up(from_peer(C, 1))
    assert s.told(Reconciled) == []
    s.up(from_peer(C, 3), from_peer(C, 2))
    assert s.delivered() == [1, 2]  # not beyond it
    assert s.sent(Reconciled) == [(B, Reconciled(1, 1, (0, 0, 2)))]


def test_reconciliation_ends_with_the_same_digest_everywhere() -> None:
    g = group(A, B, C, D)
    g[B].cast("lost on the way to C")
    g.carry(multicasts_to(C))
    g[C].cast("lost on the way to D")
    g.carry(multicasts_to(D))
    assert g.flush(A, VIEW).ok
    assert g.delivered() == [{A: 0, B: 1, C: 1, D: 0}] * 4
    assert g[A].outcome.cut == {A: 0, B: 1, C: 1, D: 0}


def test_a_dead_senders_last_bundle_that_one_survivor_has_gets_to_all_of_them() -> None:
    g = group(A, B, C, D)
    g[D].cast("only b gets this")
    g.carry(lambda source, target, packet: target != B)
    g.kill(D)
    outcome = g.flush(A, VIEW, A, B, C)
    assert outcome.answered == (A, B, C)
    assert outcome.cut[D] == 1
    assert [m.texts() for m in g] == [[b"only b gets this"]] * 3


def test_who_does_not_come_to_the_cut_makes_the_flush_start_over() -> None:
    s = member()
    s.suspend(VIEW)
    s.answer(B, b=1)
    s.answer(C)
    s.up(from_peer(B, 1))
    s.told(StartFlush)
    s.hear(B, Flush2, Reconciled(1, 1, (0, 1, 0)))
    s.hear(C, Flush2, Reconciled(1, 1, (0, 1, 4)))
    assert [m.round for m in s.told(StartFlush)] == [2, 2]
    assert s.outcomes == []
    s.answer(B, C, round=2, b=1)
    assert s.outcome.ok


def test_a_suspect_during_reconciliation_makes_the_flush_start_over_without_it() -> None:
    g = group(A, B, C, D)
    g[D].cast("only c gets this")
    g.carry(lambda source, target, packet: target != C)
    g.kill(D)
    g.suspend(A, VIEW, A, B, C)
    g.carry(lambda source, target, packet: source == C and packet.carrier == MCAST)  # the cut is out; C has to give
    assert g[A].outcomes == []
    g.kill(C)
    g.run(0.05)
    assert g[A].outcome.answered == (A, B)
    assert g[A].outcome.cut[D] == 0  # what only C had is nobody's
    assert g[A].rules("new_round") == 1


# Concurrent flushes.


def test_of_concurrent_flushes_to_overlapping_sets_at_most_one_succeeds_and_the_others_fail() -> None:
    g = group(A, B, C, D)
    g.suspend(A, EXCLUSIVE, A, B, C)
    g.suspend(D, EXCLUSIVE, B, C, D)
    g.carry()
    assert [g[A].outcome.ok, g[D].outcome.ok].count(True) <= 1
    holds = g[A].outcome.ok or g[D].outcome.ok
    assert bool(g.shut) == holds


def test_a_failed_flush_is_taken_back_on_all_members_on_which_it_was_set() -> None:
    g = group()
    assert g.flush(C, EXCLUSIVE, C).ok
    outcome = g.flush(A, EXCLUSIVE)
    assert not outcome.ok
    assert g.shut == ["c"]
    assert g[B].story("flush_left") == [("flush_left", "a#1", "1", "abort")]
    assert g[A].story("flush_failed") == [("flush_failed", "1", "exclusive", outcome.reason)]
    assert "c#1" in outcome.reason


def test_a_start_flush_goes_to_all_members_in_the_target_set_and_to_no_other() -> None:
    s = member()
    s.suspend(EXCLUSIVE, A, C)
    assert s.whom(StartFlush) == [C]


def test_a_member_on_which_the_flag_can_be_set_sends_ok() -> None:
    s = member()
    s.start(B, EXCLUSIVE)
    assert s.whom(StartFlushOk) == [B]


@pytest.mark.parametrize(("first", "second"), [(EXCLUSIVE, EXCLUSIVE), (SHARED, EXCLUSIVE), (EXCLUSIVE, SHARED)])
def test_otherwise_it_sends_fail(first: Kind, second: Kind) -> None:
    s = member()
    s.start(B, first, number=1)
    s.told(StartFlushOk)
    s.start(C, second, number=4, round=2)
    assert s.sent(StartFlushFail) == [(C, StartFlushFail(4, 2))]
    assert s.told(StartFlushOk) == []
    assert tuple(s.flush.holders()) == (B,)
    assert s.story("flush_joined") == [("flush_joined", "b#1", "1", first.name.lower())]


def test_with_ok_from_all_members_the_flush_succeeds() -> None:
    s = member()
    s.suspend(EXCLUSIVE)
    s.answer(B, C)
    assert s.outcome.ok


def test_one_fail_sends_abort_flush_to_all_members_that_took_part_and_the_flush_fails() -> None:
    s = member()
    s.suspend(EXCLUSIVE)
    s.answer(B)
    s.hear(C, Flush2, StartFlushFail(1, 1))
    assert s.sent(AbortFlush) == [(B, AbortFlush(1, FIRST)), (C, AbortFlush(1, FIRST))]
    assert not s.outcome.ok
    assert not s.flush.shut  # ours, too


def test_abort_flush_takes_the_flag_back() -> None:
    s = member()
    s.start(B, EXCLUSIVE)
    s.hear(B, Flush2, AbortFlush(1, FIRST))
    assert not s.flush.shut
    s.start(C, EXCLUSIVE)
    assert s.whom(StartFlushOk) == [B, C]


def test_an_abort_while_block_still_runs_unblocks_and_its_late_answer_means_nothing() -> None:
    s = member()
    s.roof.blocks_at_once = False
    s.start(B, EXCLUSIVE)
    s.hear(B, Flush2, AbortFlush(1, FIRST))
    assert (s.blocks, s.unblocks) == (1, 1)
    s.block_done()
    assert not s.flush.shut
    assert s.trace("block", "unblock") == []
    assert s.send("goes").seqno == 1


# Concurrent total flushes.


def test_on_the_same_member_the_first_one_runs_and_the_second_waits_until_it_is_stopped() -> None:
    s = member()
    first = s.suspend(EXCLUSIVE)
    second = s.suspend(EXCLUSIVE)
    third = s.suspend(EXCLUSIVE)
    s.answer(B, C)
    assert [o.number for o in s.outcomes] == [first]
    assert len(s.told(StartFlush)) == 2
    s.flush.resume(first)
    assert [m.number for m in s.told(StartFlush)] == [second, second]
    s.answer(B, C, number=second)
    s.flush.resume(third)  # it does not want it any more
    s.flush.resume(second)
    assert [(o.number, o.ok) for o in s.outcomes] == [(first, True), (second, True), (third, False)]
    assert s.told(StartFlush) == []
    assert not s.flush.shut


def test_a_shared_flush_waits_for_an_exclusive_one_of_the_same_member() -> None:
    s = member()
    first = s.suspend(EXCLUSIVE)
    s.answer(B, C)
    second = s.suspend(SHARED)
    assert len(s.outcomes) == 1
    s.flush.resume(first)
    s.answer(B, C, number=second)
    assert s.outcomes[-1].ok


def test_the_next_one_also_runs_when_the_first_fails() -> None:
    s = member()
    s.suspend(EXCLUSIVE)
    second = s.suspend(EXCLUSIVE)
    s.hear(B, Flush2, StartFlushFail(1, 1))
    s.answer(B, C, number=second)
    assert [o.ok for o in s.outcomes] == [False, True]


def test_no_more_flushes_wait_than_the_limit() -> None:
    s = member(waiting_max=1)
    for _ in range(3):
        s.suspend(EXCLUSIVE)
    (refused,) = s.outcomes
    assert (refused.ok, refused.number) == (False, 3)


def test_on_different_members_either_one_fails_or_both() -> None:
    for order in ((A, B), (B, A)):
        g = group()
        g.suspend(order[0], EXCLUSIVE)
        g.suspend(order[1], EXCLUSIVE)
        g.carry()
        results = [g[A].outcome.ok, g[B].outcome.ok]
        assert results.count(True) <= 1
        winners = [name for name, won in zip("ab", results, strict=True) if won]
        assert all(tuple(member.flush.holders()) == tuple(Address(w, 1) for w in winners) for member in g)
        assert bool(g.shut) == bool(winners)


def test_whoever_is_first_everywhere_wins() -> None:
    g = group()
    assert g.flush(A, EXCLUSIVE).ok
    assert not g.flush(B, EXCLUSIVE).ok
    g[A].flush.resume(1)
    g.carry()
    assert g.flush(B, EXCLUSIVE).ok
    assert g[B].outcomes[-1].ok


def test_when_start_flush_is_received_the_flag_is_set_and_another_flush_fails() -> None:
    s = member()
    s.roof.blocks_at_once = False
    s.start(B, EXCLUSIVE)  # not even answered yet
    s.start(C, EXCLUSIVE)
    assert s.whom(StartFlushFail) == [C]


def test_two_shared_flushes_are_released_by_the_last_one() -> None:
    g = group()
    g.suspend(A, SHARED)
    g.suspend(B, SHARED)
    g.carry()
    g[A].flush.resume(1)
    g.carry()
    assert g.shut == ["a", "b", "c"]
    g[B].flush.resume(1)
    g.carry()
    assert g.shut == []
    assert [member.unblocks for member in g] == [1, 1, 1]


# Concurrent partial flushes.


def test_overlapping_partial_flushes_are_not_allowed_either() -> None:
    g = group(A, B, C, D)
    assert g.flush(A, EXCLUSIVE, A, B).ok
    assert not g.flush(C, EXCLUSIVE, B, C).ok
    assert g.shut == ["a", "b"]


def test_partial_flushes_that_do_not_overlap_hold_at_the_same_time() -> None:
    g = group(A, B, C, D)
    assert g.flush(A, EXCLUSIVE, A, B).ok
    assert g.flush(C, EXCLUSIVE, C, D).ok
    assert g.shut == ["a", "b", "c", "d"]


def test_a_partial_flush_shuts_no_other_gate() -> None:
    g = group()
    assert g.flush(A, EXCLUSIVE, B).ok
    assert g.shut == ["b"]
    assert g[C].send("goes").seqno == 1
