"""GMS in whole groups: joins, leaves, crashes, and bundles of them.

Real channels on a simulated network (group_rig.py); each group's trace is judged by all properties when its test ends.
Which views a member accepts is in test_gms_views.py, merges are in test_gms_merge.py, crashes of coordinators in
test_gms_takeover.py, and the view handler's rules in test_view_handler.py.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
from group_rig import QUICK, STACK, Group, everybody_gets, in_order, make

from coterie.errors import UserError
from coterie.group.members import Address, MergeView
from coterie.group.protocols.flush_messages import StartFlush, StartFlushOk, StopFlush
from coterie.group.protocols.gms.messages import (
    Ack,
    JoinReq,
    JoinRsp,
    LeaveReq,
    LeaveRsp,
    NewView,
    Redirect,
)
from coterie.group.protocols.merge import Info

__all__ = ["make"]

Make = Callable[..., Group]
ALONE_AFTER = float(str(QUICK["GMS"]["alone_after"]))
ACK_TIMEOUT = float(str(QUICK["GMS"]["ack_timeout"]))
RESUMER = float(str(QUICK["GMS"]["resumer_timeout"]))


# The first view.


def test_a_process_that_finds_no_group_begins_one_after_a_while(make: Make) -> None:
    group = make("a")
    group.boot("a")
    group.run(ALONE_AFTER - 0.01)
    assert group["a"].names == ""
    group.settle("a")
    assert [str(view) for view in group["a"].views] == ["1@a#1 [a#1]"]
    assert group["a"].rule("gms.first") == 1


def test_of_several_that_start_together_one_begins_and_the_others_join_it(make: Make) -> None:
    group = make("d b e a c")
    for name in group.nodes:
        group.boot(name)
    group.settle("a b c d e")
    assert [name for name in "abcde" if group[name].rule("gms.first")] == ["a"]
    assert {group[name].views[0].members[0].name for name in "abcde"} == {"a"}
    everybody_gets(group, "a b c d e")


def test_whoever_begins_beside_another_comes_to_it_by_a_merge(make: Make) -> None:
    group = make("a b c")
    group.part("a", "b c")
    for name in "abc":
        group.boot(name)
    group.until(lambda: group["a"].names == "a" and group.together(["b", "c"]))
    group.heal()
    view = group.settle("a b c")
    assert isinstance(view, MergeView)
    everybody_gets(group, "a b c")


def test_those_who_hear_of_each_other_do_not_wait_for_one_that_never_begins(make: Make) -> None:
    group = make("a b", GMS={"alone_after": 0.2})
    for name in "ab":
        group.boot(name)
    group.until(lambda: group["b"].channel.stack.rules.get("merge.other_view"))
    group.crash("a", silent=True)  # b knows that a comes first
    group.settle("b", limit=2.0)


def test_nothing_is_sent_before_the_first_view(make: Make) -> None:
    group = make("a b")
    for name in "ab":
        group.boot(name)
    group.run(0.001)
    group["b"].send("early")
    group.settle("a b")
    group.run(0.1)
    assert group["b"].got == [("b", "early")]
    first = next(e for e in group.traced if e.node == "b" and e.kind == "view")
    sent = next(e for e in group.traced if e.node == "b" and e.kind == "send")
    assert sent.n > first.n


def test_a_stack_without_a_flush_is_refused_with_a_sentence(make: Make) -> None:
    stack = ("TCP", "STATIC", "MERGE", "FAILURE", "NAKACK", "UNICAST3", "STABLE", "GMS")
    group = make("a", stack=stack)
    group.boot("a")
    group.run(0.1)
    assert [type(error) for error in group["a"].failed] == [UserError]
    assert "add FLUSH2" in str(group["a"].failed[0])


def test_a_handler_that_would_be_resumed_before_a_flush_can_end_is_refused_with_a_sentence(make: Make) -> None:
    group = make("a", GMS={"resumer_timeout": 0.4})
    group.boot("a")
    group.run(0.1)
    assert [str(error).partition(":")[0] for error in group["a"].failed] == ["GMS"]
    assert "resumer_timeout must be longer" in str(group["a"].failed[0])


# Joins.


def test_a_join_flushes_the_old_members_then_installs_the_view_there_and_then_at_the_joiner(make: Make) -> None:
    """The pseudo code of the design, step by step: A coordinates {A, B, C}, D joins."""
    group = make("a b c d")
    group.grow("a b c")
    group.forget()
    group.boot("d")
    group.settle("a b c d")
    in_order(
        group.story(JoinReq, StartFlush, StartFlushOk, NewView, Ack, JoinRsp, StopFlush),
        ["d>a JoinReq"],
        ["a>b StartFlush", "b>a StartFlushOk", "a>c StartFlush", "c>a StartFlushOk"],  # and not d
        ["a>b NewView", "b>a Ack", "a>c NewView", "c>a Ack"],
        ["a>d JoinRsp", "d>a Ack"],
        ["a>b StopFlush", "a>c StopFlush"],
    )
    assert group["a"].names == "a b c d"
    assert group["d"].views == [group["a"].view]
    assert group["d"].rule("gms.join_asked") == 1
    assert group["a"].rule("gms.join") == 1


@pytest.mark.parametrize("missing", ["b", "c"])
def test_the_joiner_is_not_told_before_every_old_member_has_acked(make: Make, missing: str) -> None:
    group = make("a b c d")
    group.grow("a b c")
    group.lose(Ack, source=missing, to="a")
    group.boot("d")
    group.until(lambda: "d" in group["b"].names and "d" in group["c"].names)
    group.run(ACK_TIMEOUT / 2)
    assert group["d"].names == ""
    group.heal()
    group.settle("a b c d")
    assert group["a"].rule("gms.no_ack") == 0


def test_sending_goes_on_only_when_the_joiner_has_acked(make: Make) -> None:
    group = make("a b c")
    group.grow("a b")
    group.lose(Ack, source="c", to="a")
    group.boot("c")
    group.until(lambda: group["c"].names == "a b c")
    before = len(group["b"].got)
    group["b"].send("waits")
    group.run(ACK_TIMEOUT / 2)
    assert len(group["b"].got) == before
    group.heal()
    group.until(lambda: ("b", "waits") in group["c"].got, limit=0.2)


def test_whatever_is_lost_on_the_way_is_repeated(make: Make) -> None:
    group = make("a b c")
    group.grow("a b")
    traps = [group.lose(kind, times=3) for kind in (JoinReq, NewView, JoinRsp, Ack)]
    group.boot("c")
    group.settle("a b c")
    assert [trap.seen for trap in traps] == [3, 3, 3, 3]
    assert len(group["c"].views) == 1


def test_a_member_that_is_not_the_coordinator_names_it_to_a_joiner(make: Make) -> None:
    group = make("a b c")
    group.grow("a b")
    group.forget()
    group.lose(Info, to="c")  # it hears of nobody, and asks the first one that it meets
    c = group.boot("c")
    group.until(lambda: len(c.channel._transport.peers()) == 2)
    c.call(c.gms.send, JoinReq(False), group["b"].local)
    group.settle("a b c", limit=0.2)
    assert c.rule("gms.redirected") == 1
    assert group.story(JoinReq, Redirect) == ["c>b JoinReq", "b>c Redirect", "c>a JoinReq"]


def test_a_joiner_that_does_not_ack_counts_as_gone_and_may_come_later(make: Make) -> None:
    group = make("a b c")
    group.grow("a b")
    group.lose(JoinRsp, to="c")
    group.boot("c")
    group.until(lambda: group["b"].names == "a b c")
    group.until(lambda: group["b"].names == "a b", limit=2 * ACK_TIMEOUT)
    assert group["a"].rule("gms.no_ack") >= 1
    group.heal()
    group.settle("a b c")
    everybody_gets(group, "a b c")


def test_a_joiner_gets_what_is_sent_in_its_first_view_and_nothing_from_before(make: Make) -> None:
    group = make("a b c")
    group.grow("a b")
    group["a"].send("before")
    group["b"].send("before")
    group.run(0.05)
    c = group.boot("c")
    group.settle("a b c")
    group["a"].send("after")
    group["b"].send("after")
    group.run(0.1)
    assert sorted(c.got) == [("a", "after"), ("b", "after")]


def test_a_joiner_that_wants_the_state_gets_it_as_it_is_where_its_first_view_begins(make: Make) -> None:
    group = make("a b c")
    group.grow("a b")
    for n in range(100):  # they never stop sending
        group.world.after(n * 0.002, group.world.nature, group["a"].send, f"a{n}")
        group.world.after(n * 0.002, group.world.nature, group["b"].send, f"b{n}")
    group.run(0.05)
    group.forget()
    c = group.boot("c", state=True)
    group.settle("a b c")
    assert group["a"].rule("gms.join_state") == 1
    view = c.views[0]
    told = group["a"].app.told
    before = [entry[1] for entry in told[: told.index(view)] if isinstance(entry, tuple)]
    after = [entry for entry in told[told.index(view) :] if isinstance(entry, tuple)]
    assert before
    assert c.got[0] == ("state", " ".join(before))
    assert sorted(c.got[1:]) == sorted(after)
    assert len([e for e in group.traced if e.kind == "flush_started" and e.t > 0.05 and e.view == str(view.id)]) == 0


def test_a_join_with_state_needs_one_flush_only_whatever_else_the_handler_does(make: Make) -> None:
    """Nothing can be suspended between the join and the state: they are one request."""
    group = make("a b c d")
    group.grow("a b")
    group.forget()
    started, views = len(group.traced), len(group["a"].views)
    c = group.boot("c", state=True)
    group.boot("d")
    group.settle("a b c d")
    assert [entry for entry in c.got if entry[0] == "state"] == [("state", "")]
    assert c.failed == []
    flushes = [e for e in group.traced[started:] if e.kind == "flush_started"]
    assert {e.data["mode"] for e in flushes} == {"view"}
    assert len(flushes) == len(group["a"].views) - views


# Incarnations.


@pytest.mark.parametrize("silent", [False, True])
def test_a_new_incarnation_replaces_the_old_one_in_one_view(make: Make, silent: bool) -> None:
    group = make("a b c")
    group.grow("a b c")
    group.crash("b", silent)
    group.boot("b")
    group.settle("a b c")
    assert group["a"].view.members == (Address("a", 1), Address("c", 1), Address("b", 2))
    for view in group["a"].views:
        assert not {Address("b", 1), Address("b", 2)} <= set(view.members)
    everybody_gets(group, "a b c")


def test_the_old_incarnation_is_replaced_although_nobody_has_noticed_its_end(make: Make) -> None:
    group = make("a b c")
    group.grow("a b c")
    group.forget()
    old, new = group["b"].local, Address("b", 2)
    a = group["a"]
    a.call(a.gms._handle, new, JoinReq(False))  # b#2 asks; that b#1 is gone has not come through yet
    group.until(lambda: new in a.view)
    assert old not in a.view
    assert a.rule("gms.reincarnated") == 1
    group.crash("b")
    group.boot("b")
    group.settle("a b c")


def test_a_request_of_an_old_incarnation_that_was_long_on_its_way_is_ignored(make: Make) -> None:
    group = make("a b")
    group.grow("a b")
    group.crash("b")
    group.boot("b")
    view = group.settle("a b")
    a = group["a"]
    a.call(a.gms._handle, Address("b", 1), JoinReq(False))
    group.run(0.5)
    assert a.view == view


# Leaves.


def test_a_leaver_acks_the_view_without_it_does_not_install_it_and_is_told_that_it_may_go(make: Make) -> None:
    group = make("a b c")
    group.grow("a b c")
    group.forget()
    last = group["c"].view
    group["c"].send("farewell")
    group.leave("c")
    group.until(lambda: group["c"].closed)
    group.settle("a b")
    assert group["c"].views[-1] == last
    story = group.story(LeaveReq, NewView, Ack, LeaveRsp, StopFlush)
    wanted = ["c>a LeaveReq", "a>c NewView", "c>a Ack", "a>c LeaveRsp"]
    assert [line for line in story if line in wanted] == wanted
    assert story.index("b>a Ack") < story.index("a>c LeaveRsp") < story.index("a>b StopFlush")
    assert group["c"].rule("gms.leaver_acks") >= 1
    assert group["a"].rule("gms.leave") == 1
    for name in "abc":
        assert group[name].got_in(last) == [("c", "farewell")]


def test_a_leaver_is_gone_before_anybody_can_suspect_it(make: Make) -> None:
    group = make("a b c")
    group.grow("a b c")
    views = len(group["a"].views)
    group.forget()
    group.leave("c")
    group.settle("a b")
    group.run(2.0)
    assert group["a"].rule("gms.crash") == group["b"].rule("gms.crash") == 0
    assert len(group["a"].views) == views + 1


def test_the_coordinator_leaves_by_making_the_view_without_itself(make: Make) -> None:
    group = make("a b c")
    group.grow("a b c")
    last = group["a"].view
    group.leave("a")
    group.until(lambda: group["a"].closed)
    view = group.settle("b c", limit=0.5)
    assert view.id.creator.name == "a"
    assert view.coordinator == group["b"].local
    assert group["a"].views[-1] == last
    assert group["a"].rule("gms.leave_coordinator") == 1
    everybody_gets(group, "b c")


def test_a_member_that_is_alone_leaves_at_once(make: Make) -> None:
    group = make("a")
    group.grow("a")
    group.leave("a")
    assert group.until(lambda: group["a"].closed) < 0.05


def test_all_may_leave_at_the_same_time(make: Make) -> None:
    group = make("a b c d")
    group.grow("a b c d")
    for name in "abcd":
        group.leave(name)
    group.until(lambda: all(group[name].closed for name in "abcd"), limit=5.0)
    assert [member.stats("GMS").get("malformed", 0) for member in group.members.values()] == [0] * 4


@pytest.mark.parametrize("lost", [LeaveReq, LeaveRsp, NewView, Ack])
def test_a_leave_succeeds_although_what_it_says_gets_lost(make: Make, lost: type) -> None:
    group = make("a b c")
    group.grow("a b c")
    trap = group.lose(lost, times=2)
    group.leave("c")
    group.until(lambda: group["c"].closed, limit=1.5)
    group.settle("a b")
    assert trap.seen == 2


def test_a_leaver_whose_coordinator_dies_asks_the_next_one(make: Make) -> None:
    group = make("a b c")
    group.grow("a b c")
    group.when(LeaveReq, to="a", do=lambda: group.crash("a"), lose=True)
    group.leave("c")
    group.until(lambda: group["c"].closed, limit=1.5)
    group.settle("b")
    assert "c>b LeaveReq" in group.story(LeaveReq)
    assert "b>c LeaveRsp" in group.story(LeaveRsp)


def test_a_leaver_whose_leave_rsp_came_late_is_told_again_that_it_is_out(make: Make) -> None:
    group = make("a b c")
    group.grow("a b c")
    group.lose(LeaveRsp, to="c", times=50)
    group.leave("c")
    group.until(lambda: group["a"].names == "a b")
    group.run(0.5)
    group.heal()
    group.until(lambda: group["c"].closed, limit=0.5)


# The coordinator leaves in the view in which somebody joins.


FLUSHES = {name: tuple(name if layer == "FLUSH2" else layer for layer in STACK) for name in ("FLUSH", "FLUSH2")}


def almost_joined(group: Group) -> None:
    """d is there, and has asked nobody yet."""
    group.lose(Info, JoinReq, to="a b c d")
    d = group.boot("d")
    group.until(lambda: len(d.channel._transport.peers()) == 3)
    group.heal()
    group.forget()


def leave_and_join(group: Group) -> None:
    """a, which coordinates, wants to leave when d asks to be let in: one view answers both."""
    a = group["a"]
    a.call(a.gms._handle, group["d"].local, JoinReq(False))
    group.leave("a")


@pytest.mark.parametrize("flush", FLUSHES)
def test_a_coordinator_that_leaves_lets_a_joiner_in_with_the_same_view_and_it_may_send_at_once(
    make: Make, flush: str
) -> None:
    group = make("a b c d", stack=FLUSHES[flush])
    group.grow("a b c")
    almost_joined(group)
    leave_and_join(group)
    view = group.settle("b c d", limit=1.0)
    assert view.id.creator.name == "a"
    assert group.until(lambda: group["a"].closed) < 0.5
    everybody_gets(group, "b c d")
    assert group["d"].stats(flush).get("held_too_long", 0) == 0


@pytest.mark.parametrize("flush", FLUSHES)
def test_a_coordinator_that_leaves_goes_only_when_it_has_told_the_joiner(make: Make, flush: str) -> None:
    group = make("a b c d", stack=FLUSHES[flush], GMS={"join_retry": 0.02}, MERGE={"interval": 0.02})
    group.grow("a b c")
    almost_joined(group)
    trap = group.lose(JoinRsp, source="a", times=4)  # repeated every 0.05 s
    leave_and_join(group)
    group.until(lambda: group["a"].closed)
    assert trap.seen == 4
    assert group["d"].names == "b c d"
    assert "d>a Ack" in group.story(Ack)


# Crashes.


@pytest.mark.parametrize("silent", [False, True])
def test_a_member_that_crashed_is_left_out_and_the_others_ack_the_view(make: Make, silent: bool) -> None:
    group = make("a b c d")
    group.grow("a b c d")
    group.forget()
    group.crash("c", silent)
    group.settle("a b d")
    assert group["a"].rule("gms.crash") == 1
    assert group["a"].rule("gms.acked") >= 1
    assert sorted(group.story(NewView)) == ["a>b NewView", "a>d NewView"]
    everybody_gets(group, "a b d")


def test_members_that_crash_together_are_left_out_together(make: Make) -> None:
    group = make("a b c d e")
    group.grow("a b c d e")
    views = len(group["a"].views)
    for name in "bde":
        group.crash(name)
    group.settle("a c")
    assert len(group["a"].views) <= views + 2
    everybody_gets(group, "a c")


def test_the_survivors_have_delivered_the_same_of_a_member_that_crashed_while_it_sent(make: Make) -> None:
    group = make("a b c")
    view = group.grow("a b c")
    group.block("c", "b")  # b gets nothing of it
    for n in range(20):
        group["c"].send(f"last words {n}")
        group.run(0.001)
    group.until(lambda: len(group["a"].got) >= 10)
    group.crash("c")
    group.heal()
    group.settle("a b")
    words = group["a"].got_in(view)
    assert len(words) >= 10
    assert group["b"].got_in(view) == words
    assert group["b"].rule("nakack.advanced") == 1


def test_a_member_that_does_not_take_part_in_the_flush_is_left_out(make: Make) -> None:
    group = make("a b c d")
    group.grow("a b c d")
    group.lose(StartFlush, to="c")  # it is alive, and everything else reaches it
    group.crash("d")
    group.until(lambda: group["a"].rule("gms.silent"))
    group.until(lambda: group["b"].views[-1].members == (group["a"].local, group["b"].local))
    group.heal()
    group.settle("a b c")
    everybody_gets(group, "a b c")


def test_a_member_that_does_not_ack_counts_as_gone_and_comes_back(make: Make) -> None:
    group = make("a b c d")
    group.grow("a b c d")
    group.lose(NewView, to="c")
    group.lose(Info, to="c")
    group.crash("d")
    group.until(lambda: group["a"].names == "a b", limit=3.0)
    assert group["a"].rule("gms.no_ack") >= 1
    group.heal()
    group.settle("a b c")
    everybody_gets(group, "a b c")


def test_the_next_in_line_acts_when_the_coordinator_is_gone(make: Make) -> None:
    group = make("a b c")
    group.grow("a b c")
    group.crash("a")
    view = group.settle("b c")
    assert view.id.creator == view.coordinator == group["b"].local
    assert group["b"].rule("gms.took_over") == 1
    assert group["c"].rule("gms.took_over") == 0


def test_the_one_after_the_next_acts_when_both_are_gone(make: Make) -> None:
    group = make("a b c d")
    group.grow("a b c d")
    group.crash("a")
    group.crash("b", silent=True)
    group.settle("c d")
    assert group["c"].rule("gms.took_over") >= 1
    everybody_gets(group, "c d")


def test_the_last_one_is_alone_and_goes_on(make: Make) -> None:
    group = make("a b c")
    group.grow("a b c")
    group.crash("a")
    group.crash("b")
    group.settle("c")
    everybody_gets(group, "c")


def test_a_suspicion_that_is_taken_back_in_time_changes_nothing(make: Make) -> None:
    group = make("a b c", FAILURE={"heartbeat_timeout": 0.5, "verify_timeout": 1.0})
    view = group.grow("a b c")
    group.part("a b", "c")
    group.run(0.8)
    group.heal()
    group.run(3.0)
    assert [group[name].view for name in "abc"] == [view] * 3


# Bundles: V2 = M - S - L + J.


def test_a_join_a_leave_and_a_crash_that_come_together_make_one_view(make: Make) -> None:
    group = make("a b c d e f")
    view = group.grow("a b c d e")
    group.lose(LeaveReq, Info, to="a f")  # the requests come when we want it
    f = group.boot("f")
    group.until(lambda: len(f.channel._transport.peers()) == 5)
    group.forget()
    group.leave("b")
    group.crash("c")
    a = group["a"]
    a.call(a.gms._handle, group["b"].local, LeaveReq())
    a.call(a.gms._handle, f.local, JoinReq(False))
    group.settle("a d e f")
    assert a.views[-2] == view  # one view for all of it
    assert a.view.members == (*(m for m in view.members if m.name not in "bc"), f.local)
    assert f.views == [a.view]
    story = group.story(NewView, LeaveRsp, JoinRsp)
    assert sorted(story[:3]) == ["a>b NewView", "a>d NewView", "a>e NewView"]  # M - S, the leaver included
    assert story[3:] == ["a>b LeaveRsp", "a>f JoinRsp"]
    assert a.rule("gms.views.bundled") == 1
    group.until(lambda: group["b"].closed)
    everybody_gets(group, "a d e f")


def test_requests_that_come_while_a_view_is_being_made_are_discarded_and_asked_again(make: Make) -> None:
    group = make("a b c d")
    group.grow("a b")
    group.lose(Ack, source="b", to="a", times=6)
    group.boot("c")
    group.until(lambda: group["b"].names == "a b c")
    group.boot("d")
    group.settle("a b c d")
    assert group["a"].rule("gms.views.discarded") >= 1


def test_whoever_was_turned_away_is_told_as_soon_as_it_is_worth_to_ask_again(make: Make) -> None:
    group = make("a b c d e f", GMS={"join_retry": 5.0})
    group.grow("a b c")
    group.lose(Ack, source="b", to="a", times=6)
    group.crash("c")
    group.until(lambda: group["b"].names == "a b")
    group.boot("d")
    group.boot("e")
    group.until(lambda: group["a"].rule("gms.views.discarded") >= 2)
    views = len(group["a"].views)
    assert group.until(lambda: group.together(["a", "b", "d", "e"])) < 0.4
    assert group["a"].rule("gms.asked_again") == 2
    assert len(group["a"].views) == views + 1  # both in one view


def test_a_leaver_that_was_turned_away_is_told_to_ask_again(make: Make) -> None:
    group = make("a b c d", GMS={"join_retry": 5.0}, FAILURE={"heartbeat_timeout": 5.0})
    group.grow("a b c d")
    group.lose(Ack, source="b", to="a", times=6)
    group.crash("d")
    group.until(lambda: group["c"].names == "a b c")
    c, asked = group["c"], []
    c.call(lambda: asked.append(c.gms.leave()))
    assert group.until(lambda: asked and asked[0].done()) < 0.5
    assert group["a"].rule("gms.asked_again") == 1


# Other stacks.


STACKS = {
    "tcp, FLUSH2": STACK,
    "tcp, FLUSH": tuple("FLUSH" if name == "FLUSH2" else name for name in STACK),
    "udp, FLUSH2": ("UDP", *STACK[1:]),
    "tcp, TOTAL, FLUSH2": (*STACK[:8], "TOTAL", *STACK[8:]),
    "udp, TOTAL, FLUSH": ("UDP", *STACK[1:8], "TOTAL", "STATE", "FLUSH", "FLOW", "FRAG"),
    "tcp, no flow control, no state": (*STACK[:8], "FLUSH2"),
}


@pytest.mark.parametrize("stack", STACKS.values(), ids=STACKS.keys())
def test_joins_leaves_crashes_and_merges_work_in_every_stack(make: Make, stack: tuple[str, ...]) -> None:
    group = make("a b c d e", stack=stack)
    view = group.grow("a b c d e")
    for name in "abcde":
        group[name].send(f"{name} is here")
    group.run(0.005)
    group.crash("a")
    group.settle("b c d e")
    said = [sorted(group[name].got_in(view)) for name in "bcde"]
    assert len(said[0]) >= 4
    assert said == [said[0]] * 4
    group.boot("a")
    group.leave("c")
    group.settle("a b d e")
    everybody_gets(group, "a b d e")
    group.part("a b", "d e")
    group.until(lambda: group.together(["a", "b"]) and group.together(["d", "e"]))
    group.heal()
    view = group.settle("a b d e")
    assert isinstance(view, MergeView)
    everybody_gets(group, "a b d e")


# The end.


def test_a_member_that_is_closed_in_the_middle_of_a_view_change_does_nothing_more(make: Make) -> None:
    group = make("a b c d")
    group.grow("a b c")
    group.lose(Ack, to="a")
    group.boot("d")
    group.until(lambda: group["b"].names == "a b c d")
    a = group["a"]
    a.call(a.channel.stack.stop)
    group.run(0.001)
    noted = len([e for e in group.traced if e.node == "a"])
    group.run(RESUMER + 1)
    assert len([e for e in group.traced if e.node == "a"]) == noted
