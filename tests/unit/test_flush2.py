"""FLUSH2 as scripts of messages: the sentences of its design document in their order, then what is settled besides."""

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
    E,
    Group,
    Member,
    between,
    from_peer,
    lone,
    multicasts_to,
    of_view,
)
from harness import unit

from coterie.errors import UserError
from coterie.group.events import Block, OtherView, Unblock, ViewChange, Writable
from coterie.group.members import Address, ViewId
from coterie.group.packet import APP, MCAST, TRAIN, TRAIN_END, TRAIN_START, Packet
from coterie.group.protocols.flush2 import Flush2
from coterie.group.protocols.flush_base import Kind, Outcome
from coterie.group.protocols.flush_messages import (
    AbortFlush,
    Cut,
    Reconciled,
    Sent,
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


def ok(number: int, round: int = 1, **digest: int) -> StartFlushOk:
    """START-FLUSH-OK of a member that has no unicasts under way."""
    counts = {address: digest.get(address.name, 0) for address in (A, B, C)}
    return StartFlushOk(number, round, counts, {}, {})


def answer(s: Member, *peers: Address, number: int = 1, round: int = 1, **digest: int) -> None:
    for peer in peers:
        s.hear(peer, Flush2, ok(number, round, **digest))


def stop(s: Member, leader: Address, number: int = 1) -> None:
    s.hear(leader, Flush2, StopFlush(number, s.stack.view.id))


# Prerequisites.


@pytest.mark.parametrize("kind", [VIEW, SHARED])
def test_a_flush_is_started_and_stopped_by_the_same_member_both_for_joins_and_state_transfer(kind: Kind) -> None:
    s = member()
    s.start(B, kind)
    stop(s, C)
    assert s.flush.shut
    stop(s, B)
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
    assert s.flush.holders() == (B,)
    stop(s, B)
    assert s.flush.holders() == ()
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
        (B, StartFlush(number, 1, FIRST, SHARED, (A, B, C))),
        (C, StartFlush(number, 1, FIRST, SHARED, (A, B, C))),
    ]
    assert s.flush.holders() == (A,)
    assert s.blocks == 1
    assert s.flush.shut


def test_suspend_while_another_flush_is_active_adds_this_leader_and_sends_start_flush() -> None:
    s = member()
    s.start(B)
    s.suspend(SHARED)
    assert s.flush.holders() == (B, A)
    assert s.whom(StartFlush) == [B, C]


def test_suspend_of_a_leader_that_is_present_already_sends_no_start_flush() -> None:
    s = member()
    first = s.suspend(SHARED)
    s.told(StartFlush)
    second = s.suspend(SHARED)
    assert s.told(StartFlush) == []
    answer(s, B, C)
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
    answer(s, B)
    assert s.outcomes == []
    answer(s, C)
    assert s.outcome == Outcome(True, number, (A, B, C), {A: 0, B: 0, C: 0})


def test_if_all_digests_are_the_same_suspend_returns_and_nothing_else_is_sent() -> None:
    s = member()
    s.up(from_peer(B, 1))
    s.suspend(SHARED)
    answer(s, B, C, b=1)
    assert s.outcome.cut == {A: 0, B: 1, C: 0}
    assert s.told(Cut) == []


def test_if_digests_differ_the_reconciliation_phase_runs() -> None:
    s = member()
    s.suspend(SHARED)
    answer(s, B, b=1)
    answer(s, C, b=0)
    assert s.outcomes == []
    cut = Cut(1, 1, {A: 0, B: 1, C: 0}, {B: B}, {})
    assert s.sent(Cut) == [(B, cut), (C, cut)]
    assert s.rules("reconcile") == 1


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
    assert s.flush.holders() == (B,)
    s.start(C)
    assert s.flush.holders() == (B, C)


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
    stop(s, B)
    assert late.seqno == 2


def test_start_flush_is_answered_with_the_digest_to_whoever_sent_it() -> None:
    s = member()
    s.cast()
    s.up(from_peer(C, 1), from_peer(C, 2))
    s.start(B, number=7, round=3)
    assert s.sent(StartFlushOk) == [(B, StartFlushOk(7, 3, {A: 1, B: 0, C: 2}, {}, {}))]


def test_what_block_multicasts_goes_out_before_the_gate_shuts() -> None:
    s = member()
    s.roof.blocks_at_once = False
    s.start(B)
    out_of_block = s.send("out of block()")
    assert out_of_block.seqno == 1
    assert s.told(StartFlushOk) == []
    s.block_done()
    (answer,) = s.told(StartFlushOk)
    assert answer.digest[A] == 1  # and we have delivered it ourselves
    assert s.send("afterwards").seqno == 0


def test_after_the_answer_nothing_is_delivered() -> None:
    s = member()
    s.start(B)
    s.up(from_peer(C, 1))
    assert s.delivered() == []
    stop(s, B)
    assert s.delivered() == [1]


# On START-FLUSH-OK.


def test_start_flush_ok_adds_its_digest_to_the_others() -> None:
    s = member()
    s.suspend(VIEW)
    answer(s, B, b=2)
    answer(s, C, c=3)
    (_, cut), _ = s.sent(Cut)
    assert cut.cut == {A: 0, B: 2, C: 3}


def test_start_flush_ok_removes_its_sender_from_the_start_flush_set_once() -> None:
    s = member()
    s.suspend(SHARED)
    answer(s, B)
    answer(s, B, b=9)  # doubled, or of somebody confused
    assert s.outcomes == []
    answer(s, C)
    assert s.outcome.cut[B] == 0


def test_start_flush_ok_of_an_earlier_round_another_flush_or_a_stranger_is_ignored() -> None:
    s = member()
    s.suspend(SHARED)
    answer(s, B)
    answer(s, C, round=2)
    answer(s, C, number=2)
    answer(s, D)
    assert s.outcomes == []


# On RESUME.


def test_resume_sends_stop_flush_to_everybody_and_waits_for_nobody() -> None:
    s = member()
    number = s.suspend(SHARED)
    answer(s, B, C)
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
    answer(s, B, C)
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
    answer(s, B, C)
    assert len(s.outcomes) == 1


# On STOP-FLUSH.


def test_stop_flush_removes_its_sender_from_the_leaders() -> None:
    s = member()
    s.start(B)
    s.start(C)
    stop(s, B)
    assert s.flush.holders() == (C,)
    assert s.flush.shut
    assert s.rules("stop_not_last") == 1


def test_stop_flush_of_the_last_leader_unblocks() -> None:
    s = member()
    s.start(B)
    s.start(C)
    stop(s, C)
    s.up(from_peer(B, 1))
    stop(s, B)
    assert not s.flush.shut
    assert s.unblocks == 1
    assert s.delivered() == [1]
    assert s.events(Writable)
    assert s.rules("stop") == 1


def test_stop_flush_of_a_flush_that_is_unknown_or_over_is_ignored() -> None:
    s = member()
    stop(s, B, 7)
    s.start(B, number=8)
    stop(s, B, 7)
    assert s.flush.shut
    assert s.unblocks == 0


# On SUSPECT.


def test_a_suspect_is_removed_from_the_start_flush_set() -> None:
    s = member()
    s.suspend(SHARED)
    answer(s, B)
    s.suspect(C)
    assert s.rules("suspect_expected") == 1
    assert s.whom(Cut) == [B]  # and the flush goes on; what C may still have sent is asked about
    s.hear(B, Flush2, Reconciled(1, 1, {A: 0, B: 0, C: 0}))
    assert s.outcome == Outcome(True, 1, (A, B), {A: 0, B: 0, C: 0})


def test_what_a_suspect_has_answered_does_not_count_any_more() -> None:
    s = member()
    s.suspend(VIEW)
    answer(s, C, b=7)  # nobody else may be able to give that
    s.suspect(C)
    answer(s, B)
    assert [m.cut for m in s.told(Cut)] == [{A: 0, B: 0, C: 0}]


def test_if_only_a_suspect_was_expected_the_waiting_ends() -> None:
    s = lone(Flush2, A, B)
    s.suspend(VIEW)
    s.suspect(B)
    assert s.outcome.answered == (A,)


def test_a_suspect_may_be_suspected_in_error_and_is_told_when_the_flush_is_over() -> None:
    s = member()
    number = s.suspend(SHARED)
    answer(s, B, C)
    s.suspect(C)
    s.flush.resume(number)
    assert s.whom(StopFlush) == [B, C]


def test_who_is_proven_dead_is_removed_from_the_stop_flush_set() -> None:
    s = member()
    number = s.suspend(SHARED)
    answer(s, B, C)
    s.suspect(C, proof=True)
    s.flush.resume(number)
    assert s.whom(StopFlush) == [B]


def test_a_suspected_leader_is_removed_and_if_no_other_is_left_we_unblock() -> None:
    s = member()
    s.start(B)
    s.start(C)
    s.suspect(B)
    assert s.flush.shut
    assert s.flush.holders() == (C,)
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
    answer(s, B)
    s.told(StartFlush)
    s.install((A, B), NEXT)
    assert s.sent(StartFlush) == [(B, StartFlush(1, 2, NEXT, SHARED, (A, B)))]  # the round starts over in the view
    s.hear(B, Flush2, StartFlushOk(1, 2, {A: 0, B: 0}, {}, {}))
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
    assert s.flush.holders() == (B,)


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
    answer(s, B, C)
    s.install((A, B, C, D), NEXT)
    assert s.flush.shut
    s.flush.resume(number)
    assert not s.flush.shut


# Reconciliation.


def test_what_is_in_the_cut_and_not_in_our_digest_is_asked_for_from_who_has_it() -> None:
    s = member()
    s.start(B, VIEW)
    s.hear(B, Flush2, Cut(1, 1, {A: 0, B: 0, C: 2}, {C: B}, {}))
    s.run(0.001)
    assert s.sent(Ask) == [(B, Ask(C, ((1, 2),)))]
    assert s.told(Reconciled) == []


def test_we_wait_until_our_digest_is_the_cut_and_then_say_so() -> None:
    s = member()
    s.start(B, VIEW)
    s.hear(B, Flush2, Cut(1, 1, {A: 0, B: 0, C: 2}, {C: B}, {}))
    s.up(from_peer(C, 1))
    assert s.told(Reconciled) == []
    s.up(from_peer(C, 3), from_peer(C, 2))
    assert s.delivered() == [1, 2]  # not beyond it
    assert s.sent(Reconciled) == [(B, Reconciled(1, 1, {A: 0, B: 0, C: 2}))]


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
    answer(s, B, b=1)
    answer(s, C)
    s.up(from_peer(B, 1))
    s.told(StartFlush)
    s.hear(B, Flush2, Reconciled(1, 1, {A: 0, B: 1, C: 0}))
    s.hear(C, Flush2, Reconciled(1, 1, {A: 0, B: 1, C: 4}))
    assert [m.round for m in s.told(StartFlush)] == [2, 2]
    assert s.outcomes == []
    answer(s, B, C, round=2, b=1)
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


# Unicasts: what the document leaves open.


def test_a_unicast_that_was_sent_before_the_flush_is_waited_for() -> None:
    g = group()
    g[B].send("before", C)
    g.carry(between((B, C)))
    g.suspend(A, SHARED)
    g.carry(between((B, C)))
    assert g[A].outcomes == []
    assert g[A].rules("unicasts") == 1
    g.run(0.5)
    assert g[C].texts() == [b"before"]
    assert g[A].outcome.ok


def test_unicasts_that_have_arrived_need_no_reconciliation_even_if_they_are_not_acked() -> None:
    g = group()
    for source in (A, B, C):
        for dest in (A, B, C):
            g[source].send("before", dest)
    g.carry()
    for _ in range(3):
        number = g.suspend(A, SHARED).outcomes
        g.carry()
        assert number[-1].ok
        g[A].flush.resume(number[-1].number)
        g.carry()
    assert g[A].rules("reconcile") == 0


def test_unicasts_of_who_is_suspected_are_not_waited_for() -> None:
    g = group(A, B, C, D)
    g[D].send("never arrives", C)
    g.carry(between((D, C)))
    g.suspend(A, SHARED)
    g.carry(between((D, C)))
    assert g[A].outcomes == []
    g.kill(D)
    g.run(0.05)
    assert g[A].outcome.answered == (A, B, C)


def test_we_stop_waiting_for_the_unicasts_of_a_suspect_before_its_leader_knows() -> None:
    s = member()
    s.start(B)
    s.hear(B, Flush2, Cut(1, 1, {A: 0, B: 0, C: 0}, {}, {C: (5, 3)}))
    assert s.told(Reconciled) == []
    s.suspect(C)
    assert s.told(Reconciled) == [Reconciled(1, 1, {A: 0, B: 0, C: 0})]


def test_waiting_for_unicasts_can_be_turned_off() -> None:
    g = group(unicasts=False)
    g[B].send("before", C)
    g.carry(between((B, C)))
    g.suspend(A, SHARED)
    g.carry(between((B, C)))
    assert g[A].outcome.ok


def test_a_unicast_is_waited_for_by_its_connection_and_number() -> None:
    s = member()
    s.up(unit(C, 5, 1, first=True))
    s.start(B)
    (answered,) = s.told(StartFlushOk)
    assert answered.received == {C: (5, 1)}
    s.hear(B, Flush2, Cut(1, 1, {A: 0, B: 0, C: 0}, {}, {C: (5, 3)}))
    s.up(unit(C, 5, 2))
    assert s.told(Reconciled) == []
    s.up(unit(C, 5, 3))
    assert len(s.told(Reconciled)) == 1


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
    assert s.flush.holders() == (B,)
    assert s.story("flush_joined") == [("flush_joined", "b#1", "1", first.name.lower())]


def test_with_ok_from_all_members_the_flush_succeeds() -> None:
    s = member()
    s.suspend(EXCLUSIVE)
    answer(s, B, C)
    assert s.outcome.ok


def test_one_fail_sends_abort_flush_to_all_members_that_took_part_and_the_flush_fails() -> None:
    s = member()
    s.suspend(EXCLUSIVE)
    answer(s, B)
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
    answer(s, B, C)
    assert [o.number for o in s.outcomes] == [first]
    assert len(s.told(StartFlush)) == 2
    s.flush.resume(first)
    assert [m.number for m in s.told(StartFlush)] == [second, second]
    answer(s, B, C, number=second)
    s.flush.resume(third)  # it does not want it any more
    s.flush.resume(second)
    assert [(o.number, o.ok) for o in s.outcomes] == [(first, True), (second, True), (third, False)]
    assert s.told(StartFlush) == []
    assert not s.flush.shut


def test_a_shared_flush_waits_for_an_exclusive_one_of_the_same_member() -> None:
    s = member()
    first = s.suspend(EXCLUSIVE)
    answer(s, B, C)
    second = s.suspend(SHARED)
    assert len(s.outcomes) == 1
    s.flush.resume(first)
    answer(s, B, C, number=second)
    assert s.outcomes[-1].ok


def test_the_next_one_also_runs_when_the_first_fails() -> None:
    s = member()
    s.suspend(EXCLUSIVE)
    second = s.suspend(EXCLUSIVE)
    s.hear(B, Flush2, StartFlushFail(1, 1))
    answer(s, B, C, number=second)
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
        assert all(member.flush.holders() == tuple(Address(w, 1) for w in winners) for member in g)
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


# Flushes for views.


@pytest.mark.parametrize("kind", [SHARED, EXCLUSIVE])
def test_a_flush_for_a_view_joins_whatever_holds(kind: Kind) -> None:
    g = group()
    assert g.flush(B, kind).ok
    outcome = g.flush(A, VIEW)
    assert outcome.ok
    assert outcome.answered == (A, B, C)
    g[A].flush.resume(outcome.number)
    g.carry()
    assert g.shut == ["a", "b", "c"]  # B still holds


def test_a_flush_that_begins_while_one_for_a_view_holds_waits_for_its_end() -> None:
    g = group()
    g.flush(A, VIEW)
    g.suspend(B, EXCLUSIVE)
    g.carry()
    assert g[B].outcomes == []
    assert g[B].rules("deferred") == 1
    g[A].flush.resume(1)
    g.carry()
    assert g[B].outcome.ok
    assert [member.unblocks for member in g] == [0, 0, 0]  # the gates never opened in between


def test_a_flush_that_waited_for_one_for_a_view_begins_in_that_view() -> None:
    g = group()
    g.flush(A, VIEW)
    g.suspend(B, SHARED)
    g.carry()
    g.install(A, B, C)
    g[A].flush.resume(1)
    g.carry()
    assert g[B].outcome.ok
    assert g.shut == ["a", "b", "c"]


def test_a_flush_for_a_view_breaks_off_what_is_under_way_and_that_starts_over_afterwards() -> None:
    g = group()
    g[C].roof.blocks_at_once = False
    g.suspend(B, SHARED)
    g.carry()
    assert g[B].outcomes == []
    g.suspend(A, VIEW)
    g.carry()
    assert g[B].rules("preempted") == 1
    g[C].block_done()
    g.carry()
    assert g[A].outcome.ok
    assert g[B].outcomes == []
    g[A].flush.resume(1)
    g.carry()
    assert g[B].outcome.ok


def test_while_a_flush_for_a_view_holds_nobody_is_led_to_another_cut() -> None:
    s = member()
    s.start(B, SHARED)
    s.start(C, VIEW)
    s.hear(B, Flush2, Cut(1, 1, {A: 0, B: 0, C: 1}, {C: B}, {}))
    s.up(from_peer(C, 1))
    assert s.delivered() == []
    assert s.told(Reconciled) == []


def test_of_two_flushes_for_views_the_later_one_leads_to_the_cut() -> None:
    s = member()
    s.start(B, VIEW)
    s.hear(B, Flush2, Cut(1, 1, {A: 0, B: 0, C: 1}, {C: B}, {}))
    s.start(C, VIEW)
    s.up(from_peer(C, 1))
    assert s.delivered() == []
    s.hear(C, Flush2, Cut(1, 1, {A: 0, B: 0, C: 1}, {C: C}, {}))
    assert s.delivered() == [1]
    assert s.whom(Reconciled) == [C]


def test_a_later_flush_for_a_view_of_the_same_leader_replaces_the_earlier() -> None:
    g = group(A, B, C, D)
    g.suspend(A, VIEW)
    g.suspend(A, VIEW, A, B, C)
    g.carry()
    first, second = g[A].outcomes
    assert (first.number, first.ok) == (1, False)
    assert (second.number, second.ok, second.answered) == (2, True, (A, B, C))
    assert g.shut == ["a", "b", "c"]  # D was told that the first one is over
    assert g[B].story("flush_joined", "flush_left") == [
        ("flush_joined", "a#1", "1", "view"),
        ("flush_left", "a#1", "1", "stop"),
        ("flush_joined", "a#1", "2", "view"),
    ]
    g[A].flush.resume(2)
    g.carry()
    assert g.shut == []


def test_a_later_flush_for_a_view_also_replaces_one_that_holds() -> None:
    g = group()
    g.flush(A, VIEW)
    g.flush(A, VIEW)
    g[A].flush.resume(2)
    g.carry()
    assert g.shut == []
    assert g[A].story("flush_ended") == [("flush_ended", "1", "view"), ("flush_ended", "2", "view")]


def test_who_does_not_answer_in_time_is_left_out_of_a_view() -> None:
    g = group()
    g.suspend(A, VIEW)
    g.run(TIMEOUT + 0.1, between((A, C)))
    assert g[A].outcome == Outcome(True, 1, (A, B), {A: 0, B: 0, C: 0})
    assert g[A].rules("left_out") == 1


def test_who_is_left_out_is_told_when_the_flush_is_over() -> None:
    g = group()
    g.suspend(A, VIEW)
    g.run(TIMEOUT + 0.1, between((C, A)))
    assert g.shut == ["a", "b", "c"]
    g[A].flush.resume(1)
    g.run(0.5)
    assert g.shut == []


def test_who_does_not_come_to_the_cut_in_time_is_left_out_of_a_view() -> None:
    s = member()
    s.suspend(VIEW)
    answer(s, B, b=1)
    answer(s, C)
    s.up(from_peer(B, 1))
    s.hear(B, Flush2, Reconciled(1, 1, {A: 0, B: 1, C: 0}))
    s.run(TIMEOUT + 0.01)
    assert s.outcomes == []
    answer(s, B, round=2, b=1)
    assert s.outcome.answered == (A, B)
    s.flush.resume(1)
    assert s.whom(StopFlush) == [B, C]  # its gate is shut all the same


@pytest.mark.parametrize("kind", [SHARED, EXCLUSIVE])
def test_who_does_not_answer_in_time_makes_another_flush_fail(kind: Kind) -> None:
    g = group()
    g.suspend(A, kind)
    g.run(TIMEOUT + 0.1, between((A, C)))
    assert not g[A].outcome.ok
    assert "c#1" in g[A].outcome.reason
    g.run(0.5)
    assert g.shut == []


def test_if_the_leader_of_a_view_change_dies_the_gate_stays_shut_until_its_successors_flush() -> None:
    g = group(A, B, C, D)
    g.flush(A, VIEW)
    g.kill(A)
    assert g.shut == ["b", "c", "d"]
    assert g[C].rules("orphaned") == 1
    g.flush(B, VIEW, B, C, D)
    g[B].flush.resume(1)
    g.carry()
    assert g.shut == []
    assert [member.blocks for member in g] == [1, 1, 1]


def test_if_the_leader_of_a_view_change_is_suspected_in_error_its_own_stop_flush_opens_the_gate() -> None:
    s = member()
    s.start(B, VIEW)
    s.suspect(B)
    assert s.flush.shut
    stop(s, B)
    assert not s.flush.shut


def test_if_the_leader_of_a_view_change_is_trusted_again_a_successor_does_not_end_its_flush() -> None:
    s = member()
    s.start(B, VIEW)
    s.suspect(B)
    s.unsuspect(B)
    s.start(C, VIEW)
    stop(s, C)
    assert s.flush.shut
    s.suspect(B)
    s.start(C, VIEW, number=2)
    stop(s, C, 2)
    assert not s.flush.shut


def test_if_the_leader_of_a_view_change_is_not_part_of_the_next_view_the_gate_opens() -> None:
    s = member()
    s.start(B, VIEW)
    s.suspect(B)
    s.install((A, C), NEXT)
    assert not s.flush.shut


def test_the_flush_of_a_view_whose_end_got_lost_does_not_outlive_another_view() -> None:
    s = member()
    s.start(B, VIEW)
    s.install((A, B, C), NEXT)
    assert s.flush.shut
    s.install((A, B), ViewId(12, A))
    assert not s.flush.shut


# Views that are not ours.


def test_start_flush_of_a_view_that_is_not_installed_here_yet_is_kept_until_it_is() -> None:
    s = member()
    s.start(B, VIEW, view=NEXT, targets=(A, B))
    assert s.told(StartFlushOk) == []
    assert not s.flush.shut
    s.install((A, B), NEXT)
    assert s.sent(StartFlushOk) == [(B, StartFlushOk(1, 1, {A: 0, B: 0}, {}, {}))]


def test_what_is_kept_and_over_before_its_view_comes_does_not_begin() -> None:
    s = member()
    s.start(B, VIEW, view=NEXT)
    s.hear(B, Flush2, StopFlush(1, NEXT))
    s.install((A, B), NEXT)
    assert not s.flush.shut


def test_start_flush_of_a_view_that_is_over_here_is_ignored_and_membership_told() -> None:
    s = member()
    old = ViewId(9, B)
    s.start(B, VIEW, view=old)
    assert s.told(StartFlushOk) == []
    assert s.below.told == [OtherView(B, old, B, ours=True)]
    assert not s.flush.shut


def test_no_more_is_kept_for_views_to_come_than_a_limit() -> None:
    s = member()
    for number in range(1, 200):
        s.start(B, VIEW, number=number, view=ViewId(99, B))
    assert s.stack.held()["FLUSH2.kept"] == 64


# The gate.


def test_a_block_that_takes_too_long_is_not_waited_for() -> None:
    s = member()
    s.roof.blocks_at_once = False
    s.start(B)
    s.run(BLOCK_TIMEOUT - 0.01)
    assert s.told(StartFlushOk) == []
    s.run(0.02)
    assert s.whom(StartFlushOk) == [B]
    assert s.flush.shut
    s.block_done()  # nobody cares
    assert s.trace("block")[0].data == {"limit": HOLD_MAX}
    assert len(s.trace("block")) == 1


def test_leaders_that_come_while_block_runs_are_answered_together() -> None:
    s = member()
    s.roof.blocks_at_once = False
    s.start(B)
    s.start(C)
    assert s.blocks == 1
    s.block_done()
    assert s.whom(StartFlushOk) == [B, C]


def test_a_begun_train_is_finished_before_the_gate_shuts_and_a_train_that_has_not_begun_waits() -> None:
    s = lone(Flush2, A, window=10)
    parts = [Packet(bytes(20), None, APP, MCAST, TRAIN | flags) for flags in (TRAIN_START, 0, TRAIN_END)]
    other = [Packet(bytes(20), None, APP, MCAST, TRAIN | flags) for flags in (TRAIN_START, TRAIN_END)]
    for part in (*parts, *other):
        s.roof.pass_down(part)
    assert [part.seqno for part in parts] == [1, 0, 0]  # no credit for more
    s.start(B)
    assert [part.seqno for part in parts] == [1, 2, 3]
    assert [part.seqno for part in other] == [0, 0]
    (answered,) = s.told(StartFlushOk)
    assert answered.digest[A] == 3


def test_the_sequencer_stops_before_the_answer_and_goes_on_when_the_gate_opens() -> None:
    s = member()
    s.roof.blocks_at_once = False
    s.start(B)
    assert s.sequencer.calls == []
    s.block_done()
    assert s.sequencer.calls == ["pause"]
    stop(s, B)
    assert s.sequencer.calls == ["pause", "go_on"]


def test_what_waited_goes_out_in_order_when_the_gate_opens() -> None:
    s = member()
    s.start(B)
    packets = [s.send(str(n)) for n in range(3)]
    stop(s, B)
    assert [p.seqno for p in packets] == [1, 2, 3]


def test_without_flow_control_multicasts_wait_at_the_gate_itself() -> None:
    s = member()
    s.start(B)
    packets = [Packet(b"x", None, APP, MCAST) for _ in range(3)]
    for packet in packets:
        s.flow.pass_down(packet)
    assert [p.seqno for p in packets] == [0, 0, 0]
    assert s.stack.held()["FLUSH2.multicasts"] == 3
    stop(s, B)
    assert [p.seqno for p in packets] == [1, 2, 3]
    assert s.stack.held()["FLUSH2.multicasts"] == 0


def test_multicasts_of_protocols_pass_the_gate() -> None:
    s = member()
    s.start(B)
    record = Packet(b"order", None, 99, MCAST)
    s.roof.pass_down(record)
    assert record.seqno == 1


def test_what_is_sent_before_the_first_view_waits_for_it() -> None:
    s = Member(Flush2, A)
    s.forget_views()
    s.flush.shut = True
    early = s.send("early")
    assert early.seqno == 0
    s.install((A, B), FIRST)
    assert early.seqno == 1
    assert (s.blocks, s.unblocks) == (0, 0)
    assert s.trace("block", "unblock") == []


def test_a_member_without_a_view_cannot_flush() -> None:
    s = Member(Flush2, A)
    s.forget_views()
    s.suspend(EXCLUSIVE)
    assert not s.outcome.ok


def test_a_gate_opens_by_itself_after_its_longest_time_whoever_holds_it() -> None:
    s = member()
    s.start(B, VIEW)
    s.start(C, VIEW)
    s.suspect(B)
    s.run(HOLD_MAX - 0.01)
    assert s.flush.shut
    s.run(0.02)
    assert not s.flush.shut
    assert s.flush.stats["held_too_long"] == 1
    assert s.story("flush_left") == [("flush_left", "b#1", "1", "timeout"), ("flush_left", "c#1", "1", "timeout")]


def test_what_waited_for_a_flush_for_a_view_that_never_ended_begins_when_the_gate_opened_by_itself() -> None:
    s = member()
    s.start(B, VIEW)
    s.start(C, SHARED)
    s.run(HOLD_MAX + 0.01)
    assert s.story("block", "unblock") == [("block",), ("unblock",), ("block",)]
    assert s.flush.holders() == (C,)


def test_an_exclusive_flush_is_released_by_every_member_after_its_longest_time() -> None:
    g = group()
    g.suspend(B, SHARED, C)
    g.suspend(A, EXCLUSIVE, A, B)
    g.carry()
    g.run(EXCLUSIVE_MAX - 0.1, between((A, B)))
    assert g.shut == ["a", "b", "c"]
    g.run(0.2, between((A, B)))  # not because the leader said so
    assert g.shut == ["c"]
    assert g[A].story("flush_ended") == [("flush_ended", "1", "exclusive")]
    assert g[B].story("flush_left") == [("flush_left", "a#1", "1", "timeout")]


def test_a_leader_that_is_no_target_itself_releases_after_the_longest_time() -> None:
    s = member()
    s.suspend(EXCLUSIVE, B)
    answer(s, B)
    assert not s.flush.shut
    s.run(EXCLUSIVE_MAX + 0.01)
    assert s.whom(StopFlush) == [B]
    assert s.stack.held()["FLUSH2.leading"] == 0


def test_a_flush_that_is_broken_off_again_and_again_fails_in_the_end() -> None:
    s = member()
    s.suspend(SHARED)
    s.start(B, VIEW)
    s.run(HOLD_MAX + 0.01)
    assert not s.outcome.ok


def test_the_application_may_start_a_flush_when_it_is_told_that_it_may_send() -> None:
    s = member()
    s.start(B)
    s.cast("waits")
    up_event = s.roof.up_event

    def flush_again(event: object) -> None:
        up_event(event)  # type: ignore[arg-type]
        if isinstance(event, Unblock) and not s.outcomes and not s.flush.leading.leads:
            s.suspend(EXCLUSIVE)

    s.roof.up_event = flush_again  # type: ignore[method-assign]
    stop(s, B)
    assert s.flush.shut
    assert [e.kind for e in s.trace("block", "unblock", "send") if e.data.get("to", "all") == "all"] == [
        "block", "unblock", "send", "block",
    ]  # fmt: skip
    assert s.nakack.delivered()[A] == 1


def test_block_and_unblock_are_traced_once_for_each_time_the_gate_is_shut() -> None:
    s = member()
    s.start(B)
    s.start(C)
    stop(s, B)
    stop(s, C)
    s.start(B, number=2)
    assert s.story("block", "unblock") == [("block",), ("unblock",), ("block",)]


# What a block() that is still running multicasts.


def test_what_a_running_block_multicasts_is_delivered_by_those_whose_gates_are_shut() -> None:
    g = group()
    g[B].roof.blocks_at_once = False
    g.suspend(A, SHARED)
    g.carry()
    assert g.shut == ["a", "c"]
    g[B].cast("prepare")
    g.run(0.05)
    assert [g[m].texts() for m in (A, B, C)] == [[b"prepare"]] * 3
    assert g[C].nakack.frozen
    g[C].send("ack", B)  # unicasts pass
    g.carry()
    assert g[B].texts() == [b"prepare", b"ack"]
    g[B].block_done()
    g.run(0.05)
    assert g[A].outcome.cut == {A: 0, B: 1, C: 0}


def test_what_was_on_its_way_when_block_began_is_delivered_as_well() -> None:
    g = group()
    g[B].cast("prepare")
    g[B].roof.blocks_at_once = False
    g.suspend(A, SHARED)
    lose = multicasts_to(C)
    for _ in range(4):  # everybody but B has answered when it comes
        g.carry(lose)
        for m in g:
            m.run(0)
    assert g[C].texts() == []
    g.run(0.2)
    assert g[C].texts() == [b"prepare"]


def test_what_a_running_block_has_multicast_may_be_known_before_start_flush_comes() -> None:
    s = member()
    s.hear(C, Flush2, Sent(FIRST, 1))
    s.start(B)
    s.up(from_peer(C, 1), from_peer(C, 2))
    assert s.delivered() == [1]
    assert s.flush.shut


def test_what_a_running_block_has_multicast_is_told_once_however_much_it_is() -> None:
    s = member()
    s.roof.blocks_at_once = False
    s.start(B)
    for _ in range(3):
        s.cast()
    s.run(0)
    assert s.sent(Sent) == [(B, Sent(FIRST, 3)), (C, Sent(FIRST, 3))]
    s.block_done()
    s.run(0)
    assert s.told(Sent) == []


def test_a_block_that_returns_at_once_costs_no_message() -> None:
    s = member()
    s.cast()
    s.start(B)
    s.run(0)
    assert s.told(Sent) == []


def test_who_dies_in_its_block_leaves_no_difference_behind() -> None:
    g = group(A, B, C, D)
    g[D].roof.blocks_at_once = False
    g.suspend(A, VIEW)
    g.carry()
    g[D].cast("prepare")
    g.run(0.05, lambda source, target, packet: source == D and target != B)  # only B hears of it
    g.kill(D)
    g.run(0.1)
    assert g[A].outcome.answered == (A, B, C)
    assert [m.nakack.delivered()[D] for m in g] == [g[A].outcome.cut[D]] * 3


def test_beyond_a_cut_nothing_is_delivered_whatever_a_member_says_it_has_sent() -> None:
    s = member()
    s.start(B, VIEW)
    s.hear(B, Flush2, Cut(1, 1, {A: 0, B: 0, C: 0}, {}, {}))
    s.hear(C, Flush2, Sent(FIRST, 1))
    s.up(from_peer(C, 1))
    assert s.delivered() == []


def test_what_who_takes_no_part_says_it_has_sent_is_not_delivered() -> None:
    s = member()
    s.start(B, VIEW, targets=(A, B))
    s.hear(C, Flush2, Sent(FIRST, 1))
    s.up(from_peer(C, 1))
    assert s.delivered() == []


# Joiners.


def joiner() -> Member:
    s = Member(Flush2, D)
    s.forget_views()
    s.flush.shut = True
    return s


def test_a_joiners_gate_is_shut_while_somebody_holds_a_flush_in_the_view() -> None:
    s = joiner()
    s.install((A, B, D), FIRST, holders=(B,))
    assert s.flush.shut
    assert s.blocks == 1
    kinds = [type(event) for event in s.roof.log]
    assert kinds.index(ViewChange) < kinds.index(Block)  # it knows the view before it is blocked
    assert s.send("waits").seqno == 0
    stop(s, B, 5)
    assert not s.flush.shut
    assert s.unblocks == 1


def test_who_holds_a_flush_tells_those_who_came_when_it_is_over() -> None:
    s = member()
    number = s.suspend(SHARED)
    answer(s, B, C)
    s.install((A, B, C, D), NEXT)
    s.flush.resume(number)
    assert s.whom(StopFlush) == [B, C, D]


def test_a_flush_that_ended_before_the_joiner_knew_its_view_does_not_block_it() -> None:
    s = joiner()
    s.hear(B, Flush2, StopFlush(5, FIRST))
    s.install((A, B, D), FIRST, holders=(B,))
    assert not s.flush.shut


def test_who_has_released_its_flush_while_a_view_was_on_its_way_tells_the_joiner_so() -> None:
    s = member()
    number = s.suspend(SHARED)
    answer(s, B, C)
    s.flush.resume(number)
    s.told(StopFlush)
    s.install((A, B, C, D), NEXT)
    assert s.sent(StopFlush) == [(D, StopFlush(0, NEXT))]
    s.install((A, B, C, D, E), ViewId(12, A))
    assert s.told(StopFlush) == []  # nobody can have said that we hold one


def test_a_round_under_way_starts_over_with_those_who_came() -> None:
    s = member()
    s.suspend(SHARED)
    s.told(StartFlush)
    s.install((A, B, C, D), NEXT)
    assert s.whom(StartFlush) == [B, C, D]


def test_a_partial_flush_stays_partial() -> None:
    s = member()
    s.suspend(SHARED, A, B)
    s.told(StartFlush)
    s.install((A, B, C, D), NEXT)
    assert s.whom(StartFlush) == [B]
    assert s.whom(StopFlush) == [D]  # which may have been told that we hold one


def test_start_flush_of_who_was_said_to_hold_one_takes_its_place() -> None:
    s = joiner()
    s.install((A, B, D), FIRST, holders=(B,))
    s.start(B, EXCLUSIVE, number=5)
    assert s.flush.holders() == (B,)
    stop(s, B, 5)
    assert not s.flush.shut


# What peers may do to us.


def test_a_malformed_message_is_counted_and_survived() -> None:
    s = member()
    packet = Packet(b"\x01garbage", A, Flush2.id)
    packet.sender = B
    s.up(packet)
    s.hear(B, Flush2, StartFlush(1, 1, FIRST, 77, (A, B)))
    s.hear(D, Flush2, StartFlush(1, 1, FIRST, VIEW, (A, B)))
    assert s.flush.stats["malformed"] == 3
    assert not s.flush.shut


def test_messages_of_flushes_that_nobody_knows_are_ignored() -> None:
    s = member()
    for message in (
        StartFlushOk(9, 1, {}, {}, {}), StartFlushFail(9, 1), AbortFlush(9, FIRST), StopFlush(9, FIRST),
        Cut(9, 1, {}, {}, {}), Reconciled(9, 1, {}),
    ):  # fmt: skip
        s.hear(B, Flush2, message)
    assert s.floor.out == []
    assert not s.flush.shut


def test_what_came_in_the_same_batch_as_start_flush_is_delivered_before_block() -> None:
    s = member()
    start = Packet(Flush2.codec.encode(StartFlush(1, 1, FIRST, VIEW, (A, B, C))), A, Flush2.id)
    start.sender = B
    s.up(start, of_view(from_peer(C, 1)))
    assert isinstance(s.roof.log[0], Packet)
    assert s.blocks == 1


def test_a_stopped_stack_ends_its_flushes_and_sets_no_timers_any_more() -> None:
    s = member()
    s.suspend(EXCLUSIVE)
    s.suspend(EXCLUSIVE)
    s.stack.stop()
    assert [o.ok for o in s.outcomes] == [False, False]
    s.floor.out.clear()
    s.run(100)
    assert s.told(StopFlush) == []


def test_times_that_cannot_work_are_refused() -> None:
    with pytest.raises(UserError, match="block_timeout"):
        Member(Flush2, A, block_timeout=2.0)
    with pytest.raises(UserError, match="hold_max"):
        Member(Flush2, A, hold_max=0.5)
