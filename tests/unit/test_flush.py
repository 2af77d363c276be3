"""FLUSH as scripts of messages: the sentences of its design document in their order, then what is settled beyond it."""

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
    multicasts_to,
)

from coterie.group.events import Block, OtherView, ViewChange
from coterie.group.members import Address, View, ViewId
from coterie.group.packet import APP, MCAST, TRAIN, TRAIN_END, TRAIN_START, Packet
from coterie.group.protocols.flush import Flush
from coterie.group.protocols.flush_base import Kind, Outcome
from coterie.group.protocols.flush_messages import (
    AbortFlush,
    Cut,
    FlushCompleted,
    FlushOk,
    StartFlush,
    StartFlushFail,
    StopFlush,
    StopFlushOk,
)

VIEW, SHARED, EXCLUSIVE = Kind.VIEW, Kind.SHARED, Kind.EXCLUSIVE
NEXT = ViewId(11, A)
each_kind = pytest.mark.parametrize("kind", [SHARED, VIEW], ids=["state_transfer", "view"])


def group(*members: Address, **settings: object) -> Group:
    return Group(Flush, *(members or (A, B, C)), **settings)


def member(**settings: object) -> Member:
    """A, whose peers B and C are played by the test."""
    return lone(Flush, A, **settings)


def flush_ok(s: Member, *peers: Address, leader: Address, number: int = 1, round: int = 1, upto: int = 0) -> None:
    for peer in peers:
        s.hear(peer, Flush, FlushOk(leader, number, round, upto))


def completed(s: Member, *peers: Address, number: int = 1, round: int = 1, **digest: int) -> None:
    for peer in peers:
        s.hear(peer, Flush, FlushCompleted(number, round, tuple(digest.get(m.name, 0) for m in s.stack.view.members)))


def held(s: Member, kind: Kind = SHARED) -> int:
    """We have flushed the group."""
    number = s.suspend(kind)
    others = [m for m in s.stack.view.members if m != A]
    flush_ok(s, *others, leader=A, number=number)
    completed(s, *others, number=number)
    assert s.outcomes[-1].ok
    s.floor.out.clear()
    return number


# What it is for.


@each_kind
def test_when_a_flush_holds_all_messages_that_were_sent_are_delivered_and_nobody_can_send(kind: Kind) -> None:
    g = group()
    for m in g:
        m.cast(m.stack.local.name)
    g.carry(multicasts_to(C))
    g[C].cast("once more")
    outcome = g.flush(A, kind)
    assert outcome == Outcome(True, 1, (A, B, C), {A: 1, B: 1, C: 2})
    assert g.delivered() == [{A: 1, B: 1, C: 2}] * 3
    assert [m.send("late").seqno for m in g] == [0, 0, 0]


# SUSPEND, START_FLUSH, BLOCK, FLUSH_OK.


@each_kind
def test_suspend_sends_start_flush_to_everyone_including_ourselves(kind: Kind) -> None:
    s = member()
    s.suspend(kind)
    start = StartFlush(1, 1, FIRST, kind, ())
    assert s.sent(StartFlush) == [(B, start), (C, start)]
    assert s.blocks == 1


@each_kind
def test_start_flush_sends_block_up_to_the_application(kind: Kind) -> None:
    s = member()
    s.start(B, kind)
    assert s.blocks == 1


@each_kind
def test_start_flush_is_answered_with_flush_ok_to_everybody(kind: Kind) -> None:
    s = member()
    s.cast()
    s.start(B, kind, number=4, round=2)
    assert s.sent(FlushOk) == [(B, FlushOk(B, 4, 2, 1)), (C, FlushOk(B, 4, 2, 1))]


def test_before_a_view_every_surviving_member_of_the_former_one_is_flushed() -> None:
    g = group(A, B, C, D)
    g.kill(D)
    outcome = g.flush(A, VIEW, A, B, C)
    assert outcome.answered == (A, B, C)


# FLUSH_OK at each member, FLUSH_COMPLETED, SUSPEND_OK.


def test_flush_oks_are_recorded_one_for_each_member_and_with_all_flush_completed_goes_to_the_requester() -> None:
    s = member()
    s.start(B)
    flush_ok(s, B, B, leader=B)
    assert s.told(FlushCompleted) == []
    flush_ok(s, C, leader=B)
    assert s.sent(FlushCompleted) == [(B, FlushCompleted(1, 1, (0, 0, 0)))]


def test_a_flush_ok_counts_when_everything_that_was_multicast_before_it_has_been_received() -> None:
    s = member()
    s.start(B)
    flush_ok(s, B, leader=B)
    flush_ok(s, C, leader=B, upto=2)
    s.up(from_peer(C, 1))
    assert s.told(FlushCompleted) == []
    s.up(from_peer(C, 2))
    assert s.told(FlushCompleted) == [FlushCompleted(1, 1, (0, 0, 2))]


def test_a_flush_ok_that_comes_before_start_flush_is_recorded() -> None:
    s = member()
    flush_ok(s, C, leader=B)
    flush_ok(s, B, leader=B)
    s.start(B)
    assert s.whom(FlushCompleted) == [B]


def test_flush_oks_of_an_earlier_round_do_not_count() -> None:
    s = member()
    s.start(B)
    flush_ok(s, B, C, leader=B, round=0)
    assert s.told(FlushCompleted) == []
    s.start(B, round=2)
    flush_ok(s, B, leader=B, round=2)
    flush_ok(s, C, leader=B, round=1)
    assert s.told(FlushCompleted) == []
    flush_ok(s, C, leader=B, round=2)
    assert [m.round for m in s.told(FlushCompleted)] == [2]


def test_after_flush_completed_from_all_members_suspend_is_answered_with_ok() -> None:
    s = member()
    s.suspend(SHARED)
    flush_ok(s, B, C, leader=A)
    completed(s, B)
    assert s.outcomes == []
    completed(s, C)
    assert s.outcome == Outcome(True, 1, (A, B, C), {A: 0, B: 0, C: 0})


def test_flush_completed_is_nothing_to_whoever_did_not_ask_for_a_flush() -> None:
    s = member()
    completed(s, B, C)
    assert s.outcomes == []


# RESUME and STOP_FLUSH after a state transfer.


def test_resume_sends_stop_flush_to_everybody() -> None:
    s = member()
    number = held(s)
    s.flush.resume(number)
    assert s.sent(StopFlush) == [(B, StopFlush(number, FIRST)), (C, StopFlush(number, FIRST))]


def test_on_stop_flush_whoever_is_not_the_requester_unblocks_and_says_stop_flush_ok() -> None:
    s = member()
    s.start(B, number=3)
    s.stop(B, 3)
    assert not s.flush.shut
    assert s.unblocks == 1
    assert s.sent(StopFlushOk) == [(B, StopFlushOk(B, 3, FIRST))]


def test_the_requester_unblocks_on_stop_flush_ok() -> None:
    s = member()
    number = held(s)
    s.flush.resume(number)
    assert s.flush.shut
    s.hear(B, Flush, StopFlushOk(A, number, FIRST))
    assert s.flush.shut
    s.hear(C, Flush, StopFlushOk(A, number, FIRST))
    assert not s.flush.shut
    assert s.unblocks == 1


def test_the_requester_does_not_wait_for_the_stop_flush_ok_of_who_is_suspected_or_gone_or_silent() -> None:
    s = member()
    s.flush.resume(held(s))
    s.hear(B, Flush, StopFlushOk(A, 1, FIRST))
    s.suspect(C)
    assert not s.flush.shut
    s.unsuspect(C)
    s.flush.resume(held(s))
    s.hear(B, Flush, StopFlushOk(A, 2, FIRST))
    s.install((A, B), NEXT)
    assert not s.flush.shut
    s.flush.resume(held(s))
    s.run(TIMEOUT + 0.01)
    assert not s.flush.shut


def test_whoever_is_out_of_a_flush_already_says_stop_flush_ok_all_the_same() -> None:
    s = member()
    s.stop(B, 7)
    assert s.sent(StopFlushOk) == [(B, StopFlushOk(B, 7, FIRST))]


def test_while_the_requester_waits_for_stop_flush_ok_others_can_flush() -> None:
    s = member()
    s.flush.resume(held(s, EXCLUSIVE))
    s.start(B, EXCLUSIVE)
    assert s.told(StartFlushFail) == []
    assert s.whom(FlushOk) == [B, C]
    s.hear(B, Flush, StopFlushOk(A, 1, FIRST))
    s.hear(C, Flush, StopFlushOk(A, 1, FIRST))
    assert s.flush.shut
    assert s.story("flush_joined", "flush_left") == [
        ("flush_joined", "a#1", "1", "exclusive"),
        ("flush_left", "a#1", "1", "stop"),
        ("flush_joined", "b#1", "1", "exclusive"),
    ]


# STOP_FLUSH after a view.


def test_on_stop_flush_every_member_of_the_former_view_unblocks_the_requester_too() -> None:
    g = group()
    g.flush(A, VIEW)
    g.install(A, B, C)
    g[A].flush.resume(1)
    assert g.shut == ["b", "c"]
    g.carry()
    assert g.shut == []
    assert [m.unblocks for m in g] == [1, 1, 1]


def test_stop_flush_ok_goes_to_those_who_came_with_the_view() -> None:
    s = member()
    s.start(B, VIEW)
    s.install((A, B, C, D), NEXT)
    s.stop(B)
    assert s.sent(StopFlushOk) == [(D, StopFlushOk(B, 1, NEXT))]


def joiner() -> Member:
    s = Member(Flush, D)
    s.forget_views()
    s.flush.shut = True
    return s


def test_who_came_with_the_view_is_blocked_and_unblocks_on_stop_flush_ok() -> None:
    s = joiner()
    s.install((A, B, C, D), NEXT)
    assert s.flush.shut
    assert s.send("waits").seqno == 0
    kinds = [type(event) for event in s.roof.log]
    assert kinds.index(ViewChange) < kinds.index(Block)
    s.hear(B, Flush, StopFlushOk(A, 1, NEXT))
    assert not s.flush.shut
    assert (s.blocks, s.unblocks) == (1, 1)


def test_a_stop_flush_ok_of_an_earlier_view_does_not_unblock_who_came() -> None:
    s = joiner()
    s.install((A, B, C, D), NEXT)
    s.hear(B, Flush, StopFlushOk(A, 1, FIRST))
    assert s.flush.shut


def test_a_stop_flush_ok_that_comes_before_the_view_is_remembered() -> None:
    s = joiner()
    s.hear(B, Flush, StopFlushOk(A, 1, NEXT))
    s.install((A, B, C, D), NEXT)
    assert not s.flush.shut


def test_who_begins_a_group_waits_for_nobody() -> None:
    s = joiner()
    s.install((D,), NEXT)
    assert not s.flush.shut
    assert s.blocks == 0


def test_who_came_and_hears_no_stop_flush_ok_is_let_go_by_the_next_flush_or_view_or_in_the_end() -> None:
    for way in ("flush", "view", "time"):
        s = joiner()
        s.install((A, B, C, D), NEXT)
        if way == "flush":
            s.start(A, VIEW, number=9)
            s.stop(A, 9)
        elif way == "view":
            s.install((A, C, D), ViewId(12, A))
        else:
            s.run(HOLD_MAX + 0.01)
        assert not s.flush.shut


def test_the_gates_of_who_was_there_and_who_came_all_open() -> None:
    g = group()
    g.members[D] = joiner()
    g.flush(A, VIEW)
    g.install(A, B, C, D)
    assert g.shut == ["a", "b", "c", "d"]
    g[A].flush.resume(1)
    g.carry()
    assert g.shut == []


def test_who_came_with_the_view_that_its_requester_left_with_is_let_go_by_those_who_installed_it() -> None:
    g = group()
    g.members[D] = joiner()
    g.flush(A, VIEW)
    g.install(B, C, D, id=NEXT)
    g.die(A)  # it has made the view without itself, and is gone
    assert g.shut == ["d"]
    g.carry()
    assert g.shut == []
    assert g[D].rules("stop_ok_joiner") == 1


def test_only_the_view_that_came_of_its_flush_says_that_a_requester_is_done() -> None:
    s = lone(Flush, B, A, C)
    s.start(A, VIEW)
    s.start(C, VIEW)
    s.floor.out.clear()
    s.install((C, B, D), ViewId(11, C))  # C takes A for dead
    assert s.sent(StopFlushOk) == []
    assert s.flush.shut
    s.hear(C, Flush, StopFlush(1, s.stack.view.id))
    assert s.sent(StopFlushOk) == [(D, StopFlushOk(C, 1, s.stack.view.id))]


def test_a_requester_that_leaves_names_the_view_that_came_of_its_flush() -> None:
    s = member()
    number = held(s, VIEW)
    s.flush.resume(number, View(NEXT, (B,)))
    assert s.sent(StopFlush) == [(B, StopFlush(number, NEXT))]  # B may not be in it yet
    assert s.sent(AbortFlush) == [(C, AbortFlush(number, FIRST))]  # C leaves too


# Crashes.


def test_nothing_is_expected_of_a_suspect_in_the_vector() -> None:
    s = member()
    s.start(B)
    flush_ok(s, B, leader=B)
    s.suspect(C)
    assert s.whom(FlushCompleted) == [B]


def test_what_a_suspect_said_it_had_multicast_is_not_waited_for() -> None:
    s = member()
    s.start(B)
    flush_ok(s, B, leader=B)
    flush_ok(s, C, leader=B, upto=5)
    assert s.told(FlushCompleted) == []
    s.suspect(C)
    assert s.told(FlushCompleted) == [FlushCompleted(1, 1, (0, 0, 0))]


def test_a_participant_that_crashes_is_excluded_from_the_flush() -> None:
    g = group(A, B, C, D)
    g.suspend(A, SHARED)
    g.carry(between((A, D), (B, D), (C, D)))
    assert g[A].outcomes == []
    g.kill(D)
    g.run(0.05)
    assert g[A].outcome == Outcome(True, 1, (A, B, C), {A: 0, B: 0, C: 0, D: 0})


def test_a_requester_that_suspects_a_participant_names_to_all_who_is_left() -> None:
    s = member()
    s.suspend(VIEW)
    s.told(StartFlush)
    s.suspect(C)
    assert s.sent(StartFlush) == [(B, StartFlush(1, 2, FIRST, VIEW, (A, B)))]
    flush_ok(s, B, leader=A, round=2)
    completed(s, B, round=2)
    assert s.outcome.answered == (A, B)


def test_if_the_requester_crashes_the_next_member_in_the_view_runs_the_flush_from_scratch() -> None:
    g = group(A, B, C, D)
    g.flush(B, SHARED)
    g.kill(B)
    assert g.shut == ["a", "c", "d"]  # nobody has opened
    g.carry()
    g.run(0.05)
    assert g.shut == []
    assert g[C].rules("requester_crashed") == 1
    assert [g[m].rules("requester_crashed") for m in (A, D)] == [0, 0]
    assert g[C].story("flush_started", "flush_held", "flush_ended") == [
        ("flush_started", "1", "shared"),
        ("flush_held", "1", "shared"),
        ("flush_ended", "1", "shared"),
    ]
    assert [m.blocks for m in g] == [1, 1, 1]


def test_if_the_next_member_crashes_too_the_one_after_it_does() -> None:
    g = group(A, B, C, D)
    g.flush(B, SHARED)
    g.die(C)
    for m in g:
        m.suspect(B)
    g.die(B)
    g.carry()
    assert g.shut == ["a", "d"]
    for m in g:
        m.suspect(C)
    g.run(0.05)
    assert g.shut == []
    assert g[D].rules("requester_crashed") == 1


def test_the_last_member_of_the_view_is_succeeded_by_the_first() -> None:
    g = group()
    g.flush(C, SHARED)
    g.kill(C)
    g.carry()
    g.run(0.05)
    assert g[A].rules("requester_crashed") == 1
    assert g.shut == []


def test_if_the_requester_of_a_view_crashes_the_gate_waits_for_the_flush_of_who_makes_the_next_view() -> None:
    g = group()
    g.flush(A, VIEW)
    g.kill(A)
    g.carry()
    assert g.shut == ["b", "c"]
    g.flush(B, VIEW, B, C)
    g.install(B, C)
    g[B].flush.resume(1)
    g.carry()
    assert g.shut == []


def test_what_a_crashed_requester_had_flushed_is_over_when_the_view_without_it_comes() -> None:
    s = member()
    s.start(B, SHARED)
    s.suspect(B)
    assert s.flush.shut
    s.install((A, C), NEXT)
    assert not s.flush.shut


# Why FLUSH_OK goes to everybody.


def test_the_flush_ok_of_a_member_is_the_last_that_counts_before_it_stopped() -> None:
    g = group()
    g[B].roof.blocks_at_once = False
    g.suspend(A, SHARED)
    g.carry()
    g[B].cast("the last one")
    g.carry(multicasts_to(C))
    g[B].block_done()
    g.run(0.1)
    assert g[A].outcome.cut[B] == 1
    assert [m.texts() for m in g] == [[b"the last one"]] * 3


def test_unicasts_come_before_the_flush_ok_that_follows_them() -> None:
    g = group()
    g[B].send("before", C)
    g.carry(between((B, C)))
    g.suspend(A, SHARED)
    g.carry(between((B, C)))
    assert g[A].outcomes == []
    g.run(0.5)
    assert g[C].texts() == [b"before"]
    assert g[A].outcome.ok


# The four phases of the design change.


def test_in_the_first_phase_block_is_called_and_messages_still_go_out() -> None:
    s = member()
    s.roof.blocks_at_once = False
    s.start(B)
    assert s.told(FlushOk) == []
    assert s.send("out of block()").seqno == 1
    assert not s.flush.shut


def test_in_the_second_phase_flush_ok_goes_out_when_block_has_returned() -> None:
    s = member()
    s.roof.blocks_at_once = False
    s.start(B)
    s.cast()
    s.block_done()
    assert [m.upto for m in s.told(FlushOk)] == [1, 1]


def test_multicasts_wait_from_flush_ok_on_and_deliveries_go_on_until_all_flush_oks_are_there() -> None:
    s = member()
    s.start(B)
    assert s.send("late").seqno == 0
    s.up(from_peer(C, 1))
    assert s.delivered() == [1]
    flush_ok(s, B, leader=B)
    flush_ok(s, C, leader=B, upto=1)
    s.up(from_peer(C, 2))
    assert s.delivered() == []


def test_in_the_third_phase_flush_completed_goes_to_the_initiator() -> None:
    s = member()
    s.start(B)
    flush_ok(s, B, C, leader=B)
    assert s.whom(FlushCompleted) == [B]


def test_in_the_fourth_phase_stop_flush_goes_out() -> None:
    g = group()
    g.flush(C, SHARED)
    g[C].flush.resume(1)
    g.carry()
    assert g.shut == []


def test_two_phase_commit_completes_inside_block() -> None:
    g = group()  # C begins a state transfer while A and B have transactions that are prepared
    for coordinator in (A, B):
        g[coordinator].roof.blocks_at_once = False
    g.suspend(C, SHARED)
    g.carry()
    assert g.shut == ["c"]  # A and B are in their block()
    for coordinator in (A, B):
        g[coordinator].cast(f"commit of {coordinator.name}")
    g.carry()
    for m in g:
        assert sorted(m.texts()) == [b"commit of a", b"commit of b"]
        for coordinator in (A, B):
            m.send("ack", coordinator)
    g.carry()
    for coordinator in (A, B):
        assert g[coordinator].texts().count(b"ack") == 3  # of all, C among them, whose gate is shut
        g[coordinator].block_done()
    g.run(0.05)
    assert g[C].outcome == Outcome(True, 1, (A, B, C), {A: 1, B: 1, C: 0})
    assert g.shut == ["a", "b", "c"]


def test_a_message_between_flush_ok_and_the_last_flush_ok_waits() -> None:
    s = member()
    s.start(B)
    between_them = s.send("what about this one?")
    assert between_them.seqno == 0
    flush_ok(s, B, C, leader=B)
    assert between_them.seqno == 0
    s.stop(B)
    assert between_them.seqno == 1


# Settled beyond the document.


def test_digests_that_differ_are_reconciled() -> None:
    s = member()
    s.suspend(VIEW, A, B)
    flush_ok(s, B, leader=A)
    completed(s, B, c=1)  # B has something of C, which takes no part
    cut = Cut(1, 1, (0, 0, 1), {C: B}, ())
    assert s.sent(Cut) == [(B, cut)]
    s.up(from_peer(C, 1))
    assert s.delivered() == [1]


def test_a_dead_senders_last_bundle_that_one_survivor_has_gets_to_all_of_them() -> None:
    g = group(A, B, C, D)
    g[D].cast("only b gets this")
    g.carry(lambda source, target, packet: target != B)
    g.kill(D)
    outcome = g.flush(A, VIEW, A, B, C)
    assert outcome.cut[D] == 1
    assert [m.texts() for m in g] == [[b"only b gets this"]] * 3


def test_who_does_not_say_flush_ok_in_time_is_left_out_of_a_view_and_nobody_else() -> None:
    g = group()
    g.suspend(A, VIEW)
    g.run(TIMEOUT + 0.1, between((A, C)))
    assert g[A].outcome.answered == (A, B)


def test_who_does_not_complete_in_time_is_left_out_of_a_view() -> None:
    s = member()
    s.suspend(VIEW)
    flush_ok(s, B, C, leader=A)
    completed(s, B)
    s.told(StartFlush)
    s.run(TIMEOUT + 0.01)
    assert [m.targets for m in s.told(StartFlush)] == [(A, B)]


def test_who_does_not_answer_in_time_makes_another_flush_fail() -> None:
    g = group()
    g.suspend(A, SHARED)
    g.run(TIMEOUT + 0.1, between((A, C)))
    assert not g[A].outcome.ok
    g.run(0.5)
    assert g.shut == []


@pytest.mark.parametrize(("first", "second"), [(EXCLUSIVE, EXCLUSIVE), (SHARED, EXCLUSIVE), (EXCLUSIVE, SHARED)])
def test_flushes_that_exclude_each_other_fail_and_are_rolled_back(first: Kind, second: Kind) -> None:
    g = group()
    assert g.flush(A, first).ok
    assert not g.flush(B, second).ok
    assert all(tuple(m.flush.holders()) == (A,) for m in g)
    g[A].flush.resume(1)
    g.carry()
    assert g.shut == []
    assert g.flush(B, second).ok


def test_abort_flush_rolls_back() -> None:
    s = member()
    s.start(B, EXCLUSIVE)
    s.hear(B, Flush, AbortFlush(1, FIRST))
    assert not s.flush.shut


def test_shared_flushes_are_released_by_the_last_one() -> None:
    g = group()
    g.flush(A, SHARED)
    g.flush(B, SHARED)
    g[A].flush.resume(1)
    g.carry()
    assert g.shut == ["a", "b", "c"]
    g[B].flush.resume(1)
    g.carry()
    assert g.shut == []


def test_on_the_same_member_the_second_flush_waits_for_the_first() -> None:
    g = group()
    g.flush(A, EXCLUSIVE)
    g.suspend(A, EXCLUSIVE)
    g.carry()
    assert len(g[A].outcomes) == 1
    g[A].flush.resume(1)
    g.carry()
    assert g[A].outcomes[-1].ok
    g[A].flush.resume(2)
    g.carry()
    assert g.shut == []


def test_flushes_for_views_go_first() -> None:
    g = group()
    g[C].roof.blocks_at_once = False
    g.suspend(B, SHARED)
    g.carry()
    g.suspend(A, VIEW)
    g.carry()
    g[C].block_done()
    g.carry()
    assert g[A].outcome.ok
    assert g[B].outcomes == []
    assert g[B].rules("preempted") == 1
    g.suspend(C, SHARED)
    g.carry()
    assert g[C].rules("deferred") == 1
    g[A].flush.resume(1)
    g.carry()
    assert g[B].outcome.ok
    assert g[C].outcome.ok


def test_a_flush_that_waited_for_a_view_begins_in_it() -> None:
    g = group()
    g.flush(A, VIEW)
    g.suspend(B, SHARED)
    g.carry()
    g.install(A, B, C)
    g[A].flush.resume(1)
    g.carry()
    assert g[B].outcome.ok


def test_a_block_that_takes_too_long_is_not_waited_for() -> None:
    s = member()
    s.roof.blocks_at_once = False
    s.start(B)
    s.run(BLOCK_TIMEOUT + 0.01)
    assert s.whom(FlushOk) == [B, C]


def test_an_exclusive_flush_is_released_by_every_member_after_its_longest_time() -> None:
    g = group()
    g.flush(A, EXCLUSIVE)
    g.run(EXCLUSIVE_MAX + 0.1, between((A, B), (A, C)))
    assert "b" not in g.shut
    assert "c" not in g.shut
    assert g[B].story("flush_left") == [("flush_left", "a#1", "1", "timeout")]


def test_a_gate_opens_by_itself_after_its_longest_time() -> None:
    s = member()
    s.start(B, VIEW)
    s.run(HOLD_MAX + 0.01)
    assert not s.flush.shut


def test_start_flush_of_a_view_that_is_not_installed_here_yet_is_kept_until_it_is() -> None:
    s = member()
    flush_ok(s, B, leader=B)
    s.start(B, VIEW, view=NEXT, targets=(A, B))
    assert s.told(FlushOk) == []
    s.install((A, B), NEXT)
    assert s.whom(FlushCompleted) == [B]


def test_start_flush_of_a_view_that_is_over_here_is_ignored_and_membership_told() -> None:
    s = member()
    s.start(B, VIEW, view=ViewId(9, B))
    assert s.told(FlushOk) == []
    assert s.below.told == [OtherView(B, ViewId(9, B), B, ours=True)]


def test_what_is_answered_to_a_flush_for_a_view_is_a_promise_until_no_view_came_of_it() -> None:
    for end in (AbortFlush(1, FIRST), StopFlush(1, FIRST)):
        s = member()
        s.start(B, VIEW)
        assert (s.sequencer.promises, s.sequencer.releases) == (1, 0)
        s.hear(B, Flush, end)
        assert s.sequencer.releases == 1


def test_the_promise_holds_if_the_leader_is_in_another_view_and_other_flushes_make_none() -> None:
    s = member()
    s.start(B, VIEW)
    s.hear(B, Flush, StopFlush(1, NEXT))
    assert (s.sequencer.promises, s.sequencer.releases) == (1, 0)
    shared = member()
    shared.start(B)
    assert shared.sequencer.promises == 0


def test_stop_flush_before_the_view_that_came_of_it_opens_the_gate_in_that_view() -> None:
    s = member()
    s.start(B, VIEW)
    s.hear(B, Flush, StopFlush(1, NEXT))
    assert s.flush.shut
    assert s.stack.rules["flush.stop_before_view"] == 1
    s.install((A, B, C), NEXT)
    assert not s.flush.shut


def test_a_joiners_gate_stays_shut_while_somebody_holds_a_flush_in_the_view() -> None:
    s = joiner()
    s.install((A, B, C, D), NEXT, holders=(A,))
    s.hear(B, Flush, StopFlushOk(A, 1, NEXT))
    assert s.flush.shut
    s.stop(A, 4)
    assert not s.flush.shut


def test_a_begun_train_is_finished_and_the_sequencer_stopped_before_flush_ok() -> None:
    s = lone(Flush, A, window=10)
    parts = [Packet(bytes(20), None, APP, MCAST, TRAIN | flags) for flags in (TRAIN_START, 0, TRAIN_END)]
    for part in parts:
        s.roof.pass_down(part)
    s.start(B)
    assert [m.upto for m in s.told(FlushOk)] == [3, 3]
    assert s.sequencer.calls == ["pause"]


def test_no_more_vectors_are_kept_than_a_limit() -> None:
    s = member()
    s.start(B)
    for number in range(2, 300):
        flush_ok(s, C, leader=B, number=number)
    assert len(s.flush._vectors) == 65  # type: ignore[attr-defined]
    flush_ok(s, B, C, leader=B)
    assert s.whom(FlushCompleted) == [B]


def test_a_view_of_one_member_is_flushed_and_released_at_once() -> None:
    s = member()
    s.install((A,), NEXT)
    for kind in (VIEW, SHARED, EXCLUSIVE):
        s.flush.resume(s.suspend(kind))
        assert s.outcomes[-1].ok
        assert not s.flush.shut


def test_a_malformed_message_is_counted_and_survived() -> None:
    s = member()
    packet = Packet(b"\x02garbage", A, Flush.id)
    packet.sender = B
    s.up(packet)
    assert s.flush.stats["malformed"] == 1
