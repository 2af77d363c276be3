"""FLUSH2 as scripts of messages: what is settled beyond its design document."""

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
from coterie.group.events import Block, OtherView, Unblock, ViewChange
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
from coterie.group.protocols.unicast3 import Unicast3

VIEW, SHARED, EXCLUSIVE = Kind.VIEW, Kind.SHARED, Kind.EXCLUSIVE
NEXT = ViewId(11, A)


def group(*members: Address, **settings: object) -> Group:
    return Group(Flush2, *(members or (A, B, C)), **settings)


def member(**settings: object) -> Member:
    """A, whose peers B and C are played by the test."""
    return lone(Flush2, A, **settings)


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

    def acks(source: Address, target: Address, packet: Packet) -> bool:
        return packet.proto == Unicast3.id

    for source in (A, B, C):
        for dest in (A, B, C):
            g[source].send("before", dest)
    g.carry(acks)
    assert all(m.unicast3.sent_digest() for m in g)
    g.suspend(A, SHARED)
    g.carry(acks)
    assert g[A].outcome.ok
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
    s.hear(B, Flush2, Cut(1, 1, (0, 0, 0), {}, ((0, 0), (0, 0), (5, 3))))
    assert s.told(Reconciled) == []
    s.suspect(C)
    assert s.told(Reconciled) == [Reconciled(1, 1, (0, 0, 0))]


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
    assert answered.received == ((0, 0), (0, 0), (5, 1))
    s.hear(B, Flush2, Cut(1, 1, (0, 0, 0), {}, ((0, 0), (0, 0), (5, 3))))
    s.up(unit(C, 5, 2))
    assert s.told(Reconciled) == []
    s.up(unit(C, 5, 3))
    assert len(s.told(Reconciled)) == 1


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
    s.hear(B, Flush2, Cut(1, 1, (0, 0, 1), {C: B}, ()))
    s.up(from_peer(C, 1))
    assert s.delivered() == []
    assert s.told(Reconciled) == []


def test_of_two_flushes_for_views_the_later_one_leads_to_the_cut() -> None:
    s = member()
    s.start(B, VIEW)
    s.hear(B, Flush2, Cut(1, 1, (0, 0, 1), {C: B}, ()))
    s.start(C, VIEW)
    s.up(from_peer(C, 1))
    assert s.delivered() == []
    s.hear(C, Flush2, Cut(1, 1, (0, 0, 1), {C: C}, ()))
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
    s.answer(B, b=1)
    s.answer(C)
    s.up(from_peer(B, 1))
    s.hear(B, Flush2, Reconciled(1, 1, (0, 1, 0)))
    s.run(TIMEOUT + 0.01)
    assert s.outcomes == []
    s.answer(B, round=2, b=1)
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
    s.stop(B)
    assert not s.flush.shut


def test_if_the_leader_of_a_view_change_is_trusted_again_a_successor_does_not_end_its_flush() -> None:
    s = member()
    s.start(B, VIEW)
    s.suspect(B)
    s.unsuspect(B)
    s.start(C, VIEW)
    s.stop(C)
    assert s.flush.shut
    s.suspect(B)
    s.start(C, VIEW, number=2)
    s.stop(C, 2)
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
    assert s.sent(StartFlushOk) == [(B, StartFlushOk(1, 1, (0, 0), (), ()))]


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


def test_start_flush_of_a_former_life_of_a_member_is_not_kept() -> None:
    s = member()
    s.install((A, B, Address("c", 2)), NEXT)
    s.start(C, VIEW, view=ViewId(99, C))
    assert s.stack.held()["FLUSH2.kept"] == 0


def test_what_is_answered_to_a_flush_for_a_view_is_a_promise_until_no_view_came_of_it() -> None:
    for end in (AbortFlush(1, FIRST), StopFlush(1, FIRST)):
        s = member()
        s.start(B, VIEW)
        assert (s.sequencer.promises, s.sequencer.releases) == (1, 0)
        s.hear(B, Flush2, end)
        assert s.sequencer.releases == 1


def test_the_promise_holds_if_the_leader_is_in_another_view_and_other_flushes_make_none() -> None:
    s = member()
    s.start(B, VIEW)
    s.hear(B, Flush2, StopFlush(1, NEXT))
    assert (s.sequencer.promises, s.sequencer.releases) == (1, 0)
    shared = member()
    shared.start(B)
    assert shared.sequencer.promises == 0


def test_stop_flush_before_the_view_that_came_of_it_opens_the_gate_in_that_view() -> None:
    s = member()
    s.start(B, VIEW)
    s.hear(B, Flush2, StopFlush(1, NEXT))
    assert s.flush.shut
    assert s.stack.rules["flush2.stop_before_view"] == 1
    s.install((A, B, C), NEXT)
    assert not s.flush.shut


def test_no_more_is_kept_for_views_to_come_than_a_limit() -> None:
    s = member()
    for number in range(1, 200):
        s.start(B, VIEW, number=number, view=ViewId(99, B))
    assert s.stack.held()["FLUSH2.kept"] == 64


def test_no_more_ends_of_flushes_are_remembered_for_views_to_come_than_a_limit() -> None:
    s = member()
    for number in range(200):
        s.hear(Address(f"m{number}", 1), Flush2, StopFlush(1, ViewId(99, B)))
    assert len(s.flush.holding._over) == 64
    assert Address("m0", 1) not in s.flush.holding._over
    s.view(A, B)  # the view that they spoke of can still come
    assert len(s.flush.holding._over) == 64


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


def test_a_view_that_comes_while_block_runs_leaves_nothing_to_answer() -> None:
    s = member()
    s.roof.blocks_at_once = False
    s.start(B)
    s.install((A, B, C, D), NEXT)
    s.block_done()
    assert s.flush.shut
    assert s.told(StartFlushOk) == []
    s.start(B, round=2)  # its leader starts over
    assert [m.round for m in s.told(StartFlushOk)] == [2]


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
    assert answered.digest == (3, 0, 0)


def test_the_sequencer_stops_before_the_answer_and_goes_on_when_the_gate_opens() -> None:
    s = member()
    s.roof.blocks_at_once = False
    s.start(B)
    assert s.sequencer.calls == []
    s.block_done()
    assert s.sequencer.calls == ["pause"]
    s.stop(B)
    assert s.sequencer.calls == ["pause", "go_on"]


def test_what_waited_goes_out_in_order_when_the_gate_opens() -> None:
    s = member()
    s.start(B)
    packets = [s.send(str(n)) for n in range(3)]
    s.stop(B)
    assert [p.seqno for p in packets] == [1, 2, 3]


def test_without_flow_control_multicasts_wait_at_the_gate_itself() -> None:
    s = member()
    s.start(B)
    packets = [Packet(b"x", None, APP, MCAST) for _ in range(3)]
    for packet in packets:
        s.flow.pass_down(packet)
    assert [p.seqno for p in packets] == [0, 0, 0]
    assert s.stack.held()["FLUSH2.multicasts"] == 3
    s.stop(B)
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
    assert tuple(s.flush.holders()) == (C,)


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
    s.answer(B)
    assert not s.flush.shut
    s.run(EXCLUSIVE_MAX + 0.01)
    assert s.whom(StopFlush) == [B]
    assert s.stack.held()["FLUSH2.leading"] == 0


def test_whoever_holds_a_flush_is_told_once_that_its_longest_time_is_over_and_not_when_it_releases_it_itself() -> None:
    s = member()
    lost: list[str] = []
    first = s.flush.suspend(EXCLUSIVE, (B,), s.outcomes.append, lost.append)
    s.answer(B)
    s.flush.resume(first)
    second = s.flush.suspend(EXCLUSIVE, (B,), s.outcomes.append, lost.append)
    s.answer(B, number=second)
    s.run(EXCLUSIVE_MAX - 0.01)
    assert lost == []
    s.run(0.02)
    assert lost == [f"was released after exclusive_max ({EXCLUSIVE_MAX:g} s)"]
    s.flush.resume(second)
    assert len(lost) == 1


def test_whoever_holds_a_flush_is_told_if_its_own_gate_opens_by_itself() -> None:
    s = member()
    s.start(B, VIEW)
    s.run(HOLD_MAX - 1)
    lost: list[str] = []
    s.flush.suspend(EXCLUSIVE, (A, B, C), s.outcomes.append, lost.append)
    s.stop(B)  # the gate stays shut, for the flush that waited
    s.answer(B, C)
    s.run(0.9)
    assert (s.outcome.ok, s.flush.shut, lost) == (True, True, [])
    s.run(0.2)
    assert not s.flush.shut
    assert lost == [f"ended when a gate had been shut for hold_max ({HOLD_MAX:g} s)"]
    s.run(EXCLUSIVE_MAX)
    assert len(lost) == 1


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
    s.stop(B)
    assert s.flush.shut
    assert [e.kind for e in s.trace("block", "unblock", "send") if e.data.get("to", "all") == "all"] == [
        "block", "unblock", "send", "block",
    ]  # fmt: skip
    assert s.nakack.delivered()[A] == 1


def test_block_and_unblock_are_traced_once_for_each_time_the_gate_is_shut() -> None:
    s = member()
    s.start(B)
    s.start(C)
    s.stop(B)
    s.stop(C)
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
    s.hear(B, Flush2, Cut(1, 1, (0, 0, 0), {}, ()))
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
    s.stop(B, 5)
    assert not s.flush.shut
    assert s.unblocks == 1


def test_who_holds_a_flush_tells_those_who_came_when_it_is_over() -> None:
    s = member()
    number = s.suspend(SHARED)
    s.answer(B, C)
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
    s.answer(B, C)
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
    assert tuple(s.flush.holders()) == (B,)
    s.stop(B, 5)
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


def test_digests_that_do_not_fit_the_view_are_counted_and_ignored() -> None:
    s = member()
    s.suspend(SHARED)
    s.hear(B, Flush2, StartFlushOk(1, 1, (0, 0), (), ()))
    s.hear(B, Flush2, StartFlushOk(1, 1, (0, 0, 0), ((1, 1),), ()))
    s.answer(C)
    assert s.outcomes == []
    s.start(B)
    s.hear(B, Flush2, Cut(1, 1, (1,), {}, ()))
    s.hear(B, Flush2, Cut(1, 1, (0, 0, 0), {}, ((1, 1),)))
    assert s.flush.stats["malformed"] == 4
    assert s.told(Reconciled) == []


def test_messages_of_flushes_that_nobody_knows_are_ignored() -> None:
    s = member()
    for message in (
        StartFlushOk(9, 1, (), (), ()), StartFlushFail(9, 1), AbortFlush(9, FIRST), StopFlush(9, FIRST),
        Cut(9, 1, (), {}, ()), Reconciled(9, 1, ()),
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
