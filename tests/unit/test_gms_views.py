"""GMS: which views a member accepts, and what becomes of members that are behind, ahead or elsewhere.

Views are offered to members by hand here, as a coordinator that dies, or errs, might leave them behind.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
from group_rig import Group, Member, everybody_gets, make

from coterie.group.events import OtherView
from coterie.group.members import Address, MergeView, ViewId
from coterie.group.packet import RAW, Packet
from coterie.group.protocols.flush_messages import StartFlush
from coterie.group.protocols.gms.joiner import HEARD_MAX
from coterie.group.protocols.gms.messages import (
    COUNTER_MAX,
    Ack,
    CancelMerge,
    Installation,
    InstallMerge,
    JoinRsp,
    LeaveRsp,
    MergeRsp,
    NewView,
    Part,
    Redirect,
)
from coterie.group.protocols.merge import Info

__all__ = ["make"]

Make = Callable[..., Group]


# What a member does not accept.


def installation(member: Member, **changes: object) -> Installation:
    """The next view of the group that `member` is in, with the members that it has."""
    view = member.view
    part = Part(view.id, view.members, member.gms.nakack.delivered())
    install = {"id": ViewId(view.id.counter + 1, view.coordinator), "members": view.members, "parts": (part,)}
    return Installation(**(install | changes))  # type: ignore[arg-type]


def offer(group: Group, name: str, install: Installation) -> bool:
    """A member is sent a view, by whomever. Returns whether it installs it."""
    member = group[name]
    member.call(member.gms._handle, group["a"].local, NewView(0, install))
    group.run(0)
    return member.view.id == install.id


def quiet(make: Make) -> Group:
    group = make("a b c")
    group.grow("a b c")
    group["a"].send("one")
    group["b"].send("two")
    group.run(0.1)
    group.forget()
    return group


def test_a_view_whose_cut_is_exactly_what_was_delivered_is_installed(make: Make) -> None:
    group = quiet(make)
    install = installation(group["c"])
    assert all(offer(group, name, install) for name in "abc")
    everybody_gets(group, "a b c")


@pytest.mark.parametrize("more", [1, -1])
def test_a_view_whose_cut_is_more_or_less_than_what_was_delivered_is_refused(make: Make, more: int) -> None:
    group = quiet(make)
    good = installation(group["c"])
    cut = good.parts[0].cut | {group["a"].local: good.parts[0].cut[group["a"].local] + more}
    bad = installation(group["c"], parts=(Part(group["c"].view.id, group["c"].view.members, cut),))
    before = group["c"].view
    assert not offer(group, "c", bad)
    assert group["c"].view == before
    assert group["c"].rule("gms.refused") == 1
    group.settle("a b c")


def test_a_view_that_does_not_follow_ours_is_refused(make: Make) -> None:
    group = quiet(make)
    c = group["c"]
    other = ViewId(c.view.id.counter, group["b"].local)
    part = Part(other, c.view.members, c.gms.nakack.delivered())
    assert not offer(group, "c", installation(c, parts=(part,)))
    assert not offer(group, "c", installation(c, parts=()))
    assert c.rule("gms.refused") == 2
    group.settle("a b c")


def test_a_view_whose_part_we_do_not_belong_to_is_refused(make: Make) -> None:
    group = quiet(make)
    c = group["c"]
    part = Part(c.view.id, c.view.members[:2], c.gms.nakack.delivered())
    assert not offer(group, "c", installation(c, parts=(part,)))
    assert c.rule("gms.refused") == 1
    group.settle("a b c")


def test_a_view_without_us_is_never_installed(make: Make) -> None:
    group = quiet(make)
    c = group["c"]
    assert not offer(group, "c", installation(c, members=c.view.members[:2]))
    group.settle("a b c")


def test_a_view_that_can_be_none_is_never_installed(make: Make) -> None:
    group = quiet(make)
    c = group["c"]
    late = ViewId(COUNTER_MAX + 1, c.view.coordinator)
    assert not offer(group, "c", installation(c, id=late))
    assert not offer(group, "c", installation(c, members=(*c.view.members, c.local)))
    group.settle("a b c")


@pytest.mark.parametrize("counter", [COUNTER_MAX + 1, 2**63, 2**64 - 1])
def test_who_speaks_of_a_view_that_nobody_can_have_come_to_is_not_believed(make: Make, counter: int) -> None:
    group = quiet(make)
    a, b = group["a"], group["b"]
    a.call(a.gms._other_view, OtherView(b.local, ViewId(counter, b.local), b.local, ours=False))
    group.run(0.1)
    assert a.stats("GMS")["malformed"] == 1
    group.crash("c")
    view = group.settle("a b")  # with a number that can be said
    assert view.id.counter < 100


def test_who_waits_to_join_listens_to_a_bounded_number_of_others(make: Make) -> None:
    group = make("a")
    a = group.boot("a")
    strangers = [Address(f"stranger{number}", 1) for number in range(2 * HEARD_MAX)]
    for peer in strangers:
        a.gms._joiner.hear(OtherView(peer, ViewId(3, peer), peer, ours=False))
    assert len(a.gms._joiner._heard) == HEARD_MAX
    group.settle("a")
    assert not a.gms._joiner._heard  # none of them is connected


def test_ids_only_rise(make: Make) -> None:
    group = quiet(make)
    c = group["c"]
    for counter in (c.view.id.counter, c.view.id.counter - 1):
        old = ViewId(counter, Address("A", 1))
        assert old < c.view.id
        assert not offer(group, "c", installation(c, id=old))
    group.settle("a b c")


def test_a_view_that_came_twice_is_acked_twice_and_installed_once(make: Make) -> None:
    group = quiet(make)
    install = installation(group["c"])
    assert offer(group, "c", install)
    views = len(group["c"].views)
    group.run(0.01)
    group.forget()
    assert offer(group, "c", install)
    assert len(group["c"].views) == views
    group.run(0.05)
    assert all(offer(group, name, install) for name in "ab")
    assert [heard.message for heard in group.heard if str(heard) == "c>a Ack"] == [Ack(0, True)]


def test_a_process_without_a_view_does_not_take_one_in_which_it_would_be_an_old_member(make: Make) -> None:
    group = make("a b")
    group.boot("a")
    group.settle("a")
    group.lose(Info, to="b")
    b = group.boot("b")
    group.run(0.02)
    a = group["a"].view
    members = (*a.members, b.local)
    old = Installation(ViewId(9, a.coordinator), members, (Part(a.id, members, dict.fromkeys(members, 0)),))
    b.call(b.gms._handle, a.coordinator, JoinRsp(0, old))
    group.run(0.01)
    assert b.names == ""
    group.heal()
    group.settle("a b")


# Members that are behind, ahead, or elsewhere.


def test_a_member_that_is_behind_is_sent_the_view_that_it_missed(make: Make) -> None:
    group = make("a b c")
    group.grow("a b c")
    install = installation(group["c"])
    for name in "ab":
        assert offer(group, name, install)
    assert group["c"].view.id < install.id  # and whoever made it never sent it to c
    group.until(lambda: group["c"].view.id == install.id, limit=2.0)
    assert sum(group[name].rule("gms.forwarded") for name in "ab") >= 1
    everybody_gets(group, "a b c")


def test_a_member_that_is_behind_and_refuses_the_view_counts_as_gone_and_comes_back_by_a_merge(make: Make) -> None:
    group = make("a b c")
    group.grow("a b c")
    install = installation(group["c"])
    group["c"].send("one more")  # what no cut has
    group.run(0)
    for name in "ab":
        assert offer(group, name, install)
    view = group.settle("a b c")
    assert group["c"].rule("gms.refused") >= 1
    assert group["a"].rule("gms.departed") >= 1
    assert isinstance(view, MergeView)
    everybody_gets(group, "a b c")


def test_a_member_that_was_behind_once_is_not_held_to_account_for_it_later(make: Make) -> None:
    group = make("a b c", MERGE={"interval": 0.1})
    group.grow("a b c")
    one = installation(group["c"])
    for name in "ac":
        assert offer(group, name, one)
    group.until(lambda: group["b"].view.id == one.id)  # a had to forward it
    group.run(3.0)  # much longer than anybody may be behind
    group.forget()
    two = installation(group["b"])
    assert offer(group, "b", two)  # now b is ahead, for a moment
    group.until(lambda: group["a"].view.id == group["c"].view.id == two.id)
    group.run(1.0)
    assert [group[name].rule("gms.departed") for name in "abc"] == [0, 0, 0]
    assert [group[name].view.id for name in "abc"] == [two.id] * 3


def test_a_member_that_stays_behind_counts_as_gone(make: Make) -> None:
    group = make("a b c")
    group.grow("a b c")
    install = installation(group["c"])
    group.lose(NewView, to="c")
    for name in "ab":
        assert offer(group, name, install)
    group.until(lambda: group["a"].names == "a b", limit=3.0)
    group.heal()
    group.settle("a b c")


def test_a_member_that_is_in_a_view_without_us_counts_as_gone(make: Make) -> None:
    """One-way silence: a and b do not hear c and go on without it; c hears them, and learns it from what they say."""
    group = make("a b c")
    group.grow("a b c")
    group.block("c", "a b")
    group.until(lambda: group["a"].names == group["b"].names == "a b")
    group.until(lambda: group["c"].names == "c")
    group.heal()
    group.settle("a b c")
    everybody_gets(group, "a b c")


def test_nothing_is_forgotten_that_a_member_of_the_old_view_may_still_miss(make: Make) -> None:
    """What is stable in the next view is not, for that, stable in the one that somebody is still in."""
    group = make("a b c")
    view = group.grow("a b c")
    group.block("a", "c")
    group["a"].send("missed by c")
    group.until(lambda: len(group["b"].got) == 1)
    b = group["b"]
    cut = b.gms.nakack.delivered()
    assert cut[group["a"].local] == 1
    two = installation(b, members=view.members[:2], parts=(Part(view.id, view.members[:2], cut),))
    group.lose(NewView, Info, StartFlush)  # b never hears of it
    assert offer(group, "a", two)
    group.run(0.3)
    assert [e for e in group.traced if e.kind == "discard" and e.node == "b" and e.sender == "a#1"] == []


# What peers do wrong.


def test_malformed_messages_are_counted_and_change_nothing(make: Make) -> None:
    group = make("a b")
    view = group.grow("a b")
    a, b = group["a"], group["b"]
    good = b.gms.codec.encode(NewView(3, installation(b)))
    bodies = [b"", b"\xff", b"\x06", good[:-3], good[:10], good + b"x"]
    for body in bodies:
        b.call(b.gms.pass_down, Packet(body, a.local, b.gms.id, RAW))
    group.run(0.1)
    assert a.stats("GMS")["malformed"] == len(bodies)
    assert a.view == view
    everybody_gets(group, "a b")


def test_messages_that_answer_nothing_change_nothing(make: Make) -> None:
    group = make("a b c")
    view = group.grow("a b c")
    part = Part(view.id, (), {})
    install = Installation(ViewId(99, group["b"].local), (group["b"].local,), (part,))
    messages = [
        Ack(77, True), Ack(77, False), MergeRsp(77, None), MergeRsp(77, part), CancelMerge(77), LeaveRsp(77),
        InstallMerge(1, 77, install), Redirect(group["b"].local), JoinRsp(77, install), NewView(77, install),
    ]  # fmt: skip
    for message in messages:
        group["b"].call(group["b"].gms.send, message, group["a"].local)
    group.run(1.0)
    assert [group[name].view for name in "abc"] == [view] * 3
    everybody_gets(group, "a b c")


def test_an_answer_of_the_wrong_kind_is_no_answer(make: Make) -> None:
    group = make("a b c")
    group.part("a", "b c")
    for name in "abc":
        group.boot(name)
    group.until(lambda: group["a"].names == "a" and group.together(["b", "c"]))
    a, b = group["a"], group["b"]
    group.heal()
    group.lose(MergeRsp, times=5)
    for number in range(160):  # to whatever a asks
        group.world.after(number * 0.005, group.world.nature, b.call, b.gms.send, Ack(number % 8, True), a.local)
    group.settle("a b c")
