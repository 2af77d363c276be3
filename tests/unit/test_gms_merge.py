"""GMS: views that have fallen apart become one again; and what becomes of merges that fail.

The group is {a, b, c, d}, mostly parted into {a, b} and {c, d}: a leads the merge, c is the coordinator that is asked.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
from group_rig import QUICK, Bundle, Group, everybody_gets, in_order, make

from coterie.group.members import Address, MergeView, View
from coterie.group.protocols.flush_messages import StartFlush, StartFlushOk, StopFlush
from coterie.group.protocols.gms.messages import (
    Ack,
    CancelMerge,
    InstallMerge,
    JoinReq,
    MergeAccepted,
    MergeReq,
    MergeRsp,
    NewView,
    Part,
)

__all__ = ["make"]

Make = Callable[..., Group]
Die = Callable[[], object]
MERGE_TIMEOUT = float(str(QUICK["GMS"]["merge_timeout"]))
RESUMER = float(str(QUICK["GMS"]["resumer_timeout"]))


def parted(make: Make, *sides: str, later: str = "", **settings: object) -> Group:
    """Members that were in one view and are in one for each side now; who comes first in a side coordinates it."""
    group = make(" ".join((*sides, later)), **settings)
    group.grow(" ".join(sides))
    group.part(*sides)
    group.until(lambda: all(group.together(side.split()) for side in sides))
    group.run(0.5)
    group.forget()
    return group


def handler(group: Group, name: str) -> list[tuple[str, str, float]]:
    """When a member's view handler was suspended and resumed, and why."""
    kinds = ("suspend", "resume")
    return [(e.kind, str(e.data["reason"]), e.t) for e in group.traced if e.node == name and e.kind in kinds]


def longest_suspension(group: Group, name: str, since: float) -> float:
    times = [t for _, _, t in handler(group, name) if t >= since]
    return max((end - start for start, end in zip(times[::2], times[1::2], strict=True)), default=0.0)


def blocked(group: Group, names: str) -> None:
    """Nobody is blocked, and everybody was unblocked once for each time."""
    for name in names.split():
        told = group[name].app.blocked
        assert told == ["block", "unblock"] * (len(told) // 2)


# A merge.


def test_a_merge_makes_one_view_whose_subgroups_are_the_views_before_it(make: Make) -> None:
    group = parted(make, "a b", "c d")
    before = [group["a"].view, group["c"].view]
    group.heal()
    view = group.settle("a b c d")
    assert isinstance(view, MergeView)
    assert [view.coordinator, view.id.creator] == [group["a"].local] * 2
    assert view.members == before[0].members + before[1].members
    assert [(part.id, part.members) for part in view.subgroups] == [(part.id, part.members) for part in before]
    assert [group[name].views[-1] for name in "abcd"] == [view] * 4
    assert view.id.counter > max(part.id.counter for part in before)
    assert group["a"].rule("gms.merged") == 1
    everybody_gets(group, "a b c d")


def test_each_coordinator_flushes_its_own_part_and_installs_the_view_in_it(make: Make) -> None:
    group = parted(make, "a b", "c d")
    group.heal()
    group.settle("a b c d")
    in_order(
        group.story(MergeReq, StartFlush, StartFlushOk, MergeRsp, NewView, InstallMerge, Ack, StopFlush),
        ["a>c MergeReq"],
        ["c>d StartFlush"],
        ["d>c StartFlushOk"],
        ["c>a MergeRsp"],
        ["a>b StartFlush"],
        ["b>a StartFlushOk"],
        ["a>b NewView", "b>a Ack", "a>c InstallMerge", "c>d NewView", "d>c Ack", "c>d StopFlush", "c>a Ack"],
        ["a>b StopFlush"],
    )
    assert group["c"].rule("gms.merge_req.accepted") == 1
    assert group["c"].rule("gms.resume.merge_view") == 1
    assert group["a"].rule("gms.resume.merge_done") == 1


@pytest.mark.parametrize("parts", ["a b|c d", "a b|c"])
def test_a_coordinator_that_gets_the_view_in_two_ways_at_once_is_resumed(make: Make, parts: str) -> None:
    group = parted(make, *parts.split("|"))
    a, c = group["a"], group["c"]

    def forward() -> None:
        """Behind INSTALL-MERGE, and before anything has followed from that."""
        assert a.gms.installed is not None
        process = group.nodes["c"].process
        assert process is not None
        group.world.soon(process.owner, c.gms._handle, a.local, NewView(0, a.gms.installed))

    group.heal()
    group.when(InstallMerge, source="a", to="c", do=forward)
    group.settle(parts.replace("|", " "))
    assert c.gms.handler.suspended is None
    assert c.rule("gms.resume.resumer") == 0
    everybody_gets(group, parts.replace("|", " "))


@pytest.mark.parametrize("sides", [("a", "b", "c", "d"), ("d c", "b", "a"), ("a d", "b e", "c f"), ("c", "b a")])
def test_whatever_the_parts_they_end_in_one_view(make: Make, sides: tuple[str, ...]) -> None:
    group = parted(make, *sides)
    group.heal()
    everybody = " ".join(sorted(" ".join(sides).split()))
    group.settle(everybody)
    everybody_gets(group, everybody)
    blocked(group, everybody)


def test_a_member_that_was_excluded_in_error_comes_back_by_a_merge(make: Make) -> None:
    group = parted(make, "a b c", "d")
    assert group["a"].names == "a b c"
    assert group["d"].names == "d"
    group.heal()
    view = group.settle("a b c d")
    assert isinstance(view, MergeView)
    assert [len(part.members) for part in view.subgroups] == [3, 1]


def test_what_was_sent_while_they_were_apart_is_delivered_in_its_own_part_only(make: Make) -> None:
    group = parted(make, "a b", "c d")
    apart = [group["a"].view, group["c"].view]
    group["a"].send("here")
    group["c"].send("there")
    group.run(0.2)
    group.heal()
    view = group.settle("a b c d")
    assert group["b"].got_in(apart[0]) == [("a", "here")]
    assert group["d"].got_in(apart[1]) == [("c", "there")]
    assert [group[name].got_in(view) for name in "abcd"] == [[]] * 4


def test_members_of_a_part_have_delivered_the_same_in_it_although_they_never_stop_sending(make: Make) -> None:
    group = parted(make, "a b", "c d")
    apart = {"ab": group["a"].view, "cd": group["c"].view}
    for n in range(600):
        for name in "abcd":
            group.world.after(n * 0.002, group.world.nature, group[name].send, f"{name}{n}")
    group.lose(Bundle, source="c", to="d", times=20)
    group.run(0.2)
    group.heal()
    group.until(lambda: group.together(list("abcd")))
    group.run(2.0)
    group.settle("a b c d")
    for names, view in apart.items():
        one, other = (group[name] for name in names)
        assert len(one.got_in(view)) > 50
        assert sorted(one.got_in(view)) == sorted(other.got_in(view))
    for name in "abcd":
        assert [text for sender, text in group[name].got if sender == name] == [f"{name}{n}" for n in range(600)]


@pytest.mark.parametrize("lost", [MergeReq, MergeRsp, InstallMerge, NewView, Ack])
def test_a_merge_succeeds_although_what_it_says_gets_lost(make: Make, lost: type) -> None:
    group = parted(make, "a b", "c d")
    group.heal()
    trap = group.lose(lost, times=3)
    group.settle("a b c d")
    assert trap.seen == 3
    assert group["a"].rule("gms.resume.merge_failed") == 0
    assert len([view for view in group["a"].views if isinstance(view, MergeView)]) == 1


def test_a_leader_waits_for_a_part_whose_flush_takes_long(make: Make) -> None:
    group = parted(make, "a b", "c d", GMS={"merge_timeout": 0.1})
    group.heal()
    group.delay(StartFlushOk, by=0.3, source="d", to="c", times=1)
    view = group.settle("a b c d")
    assert isinstance(view, MergeView)
    assert "c>a MergeAccepted" in group.story(MergeAccepted)
    assert group["a"].rule("gms.resume.merge_failed") == 0


def test_an_offer_that_is_repeated_while_others_are_waited_for_is_not_called_off(make: Make) -> None:
    group = parted(make, "a b", "c d", "e f")
    group.heal()
    group.delay(StartFlushOk, by=0.3, source="f", to="e", times=1)
    view = group.settle("a b c d e f")
    assert [str(heard) for heard in group.heard if isinstance(heard.message, MergeRsp)].count("c>a MergeRsp") > 1
    assert isinstance(view, MergeView)
    assert len(view.subgroups) == 3
    assert group["a"].rule("gms.merge_cancelled") == 0


def test_an_offer_that_comes_twice_in_one_turn_is_not_called_off(make: Make) -> None:
    group = parted(make, "a b", "c d")
    a, c = group["a"], group["c"]
    group.heal()
    group.lose(MergeRsp, source="c")
    group.until(lambda: group.story(MergeRsp))
    offer = next(heard.message for heard in group.heard if isinstance(heard.message, MergeRsp))

    def twice() -> None:
        for _ in range(2):
            a.gms._handle(c.local, offer)

    a.call(twice)
    group.heal()
    assert isinstance(group.settle("a b c d"), MergeView)
    assert a.rule("gms.merge_cancelled") == 0


def test_a_leader_does_not_wait_long_for_a_coordinator_that_says_nothing(make: Make) -> None:
    group = parted(make, "a b", "c d")
    group.heal()
    group.lose(MergeReq, to="c")
    began = group.world.time
    group.until(lambda: group["a"].rule("gms.resume.merge_failed"))
    assert longest_suspension(group, "a", began) == pytest.approx(MERGE_TIMEOUT)
    group.heal()
    group.settle("a b c d")


# Merges and everything else.


def test_a_join_during_a_merge_is_discarded_and_asked_again(make: Make) -> None:
    group = parted(make, "a b", "c d", later="e", GMS={"join_retry": 0.03})
    group.heal()
    group.delay(MergeRsp, by=0.1, times=1)
    group.until(lambda: group["c"].rule("gms.merge_req.accepted"))
    group.boot("e")
    group.settle("a b c d e")
    assert sum(group[name].rule("gms.views.discarded") for name in "ac") >= 1


def test_a_merge_that_finds_the_other_coordinator_at_work_is_rejected_and_tried_again(make: Make) -> None:
    group = parted(make, "a b", "c d e")
    group.lose(Ack, source="d", to="c", times=6)  # c makes a view, and waits for the ack
    group.crash("e")
    group.until(lambda: group["c"].gms.handler.suspended)
    c, a = group["c"], group["a"]
    group.heal()
    group.lose(Ack, source="d", to="c", times=6)
    a.call(a.gms._coordinator.found, (c.local,))
    group.settle("a b c d")
    assert c.rule("gms.merge_req.rejected") >= 1
    assert a.rule("gms.resume.merge_failed") >= 1
    everybody_gets(group, "a b c d")


def test_a_merge_that_is_found_while_a_view_is_made_is_discarded(make: Make) -> None:
    group = parted(make, "a b e", "c d")
    group.lose(Ack, source="b", to="a", times=8)
    group.crash("e")
    group.until(lambda: group["a"].gms.handler.suspended)
    a = group["a"]
    a.call(a.gms._coordinator.found, (group["c"].local,))
    group.run(0.01)
    assert a.rule("gms.merge.discarded") == 1
    assert group.story(MergeReq) == []
    group.heal()
    group.settle("a b c d")


def test_a_member_that_is_no_coordinator_or_is_in_our_view_is_not_merged_with(make: Make) -> None:
    group = make("a b c")
    view = group.grow("a b c")
    group.forget()
    group["a"].call(group["a"].gms.send, MergeReq(99), group["b"].local)
    group["b"].call(group["b"].gms.send, MergeReq(99), group["a"].local)
    group.run(0.5)
    answers = [heard.message for heard in group.heard if isinstance(heard.message, MergeRsp)]
    assert answers == [MergeRsp(99, None)] * 2
    assert [group[name].view for name in "abc"] == [view] * 3


def test_a_part_that_falls_apart_while_it_is_merged_comes_without_those_whom_it_lost(make: Make) -> None:
    group = parted(make, "a b", "c d")
    group.heal()
    group.when(StartFlush, source="c", to="d", do=lambda: group.crash("d"), lose=True)
    group.settle("a b c")
    everybody_gets(group, "a b c")


def test_the_network_may_break_again_in_the_middle_of_a_merge(make: Make) -> None:
    group = parted(make, "a b", "c d")
    group.heal()
    group.when(InstallMerge, to="c", do=lambda: group.part("a c", "b d"), lose=True)
    group.until(lambda: group.story(InstallMerge))
    group.run(3.0)
    group.heal()
    group.settle("a b c d")
    everybody_gets(group, "a b c d")
    blocked(group, "a b c d")


# The leader of a merge is gone.


def when_it_has_asked(group: Group, die: Die) -> None:
    group.when(MergeReq, source="a", to="c", do=die)


def when_it_is_answered(group: Group, die: Die) -> None:
    group.when(MergeRsp, source="c", to="a", do=die, lose=True)


def when_its_own_part_is_flushed(group: Group, die: Die) -> None:
    group.when(StartFlushOk, source="b", to="a", do=die, lose=True)


def when_it_alone_has_the_view(group: Group, die: Die) -> None:
    group.lose(NewView, InstallMerge, source="a", to="b c")
    group.when(NewView, InstallMerge, source="a", do=die, lose=True)
    group._traps.reverse()


def when_only_its_own_part_has_the_view(group: Group, die: Die) -> None:
    group.lose(InstallMerge, source="a", to="c")
    group.when(Ack, source="b", to="a", do=die)


def when_only_the_other_coordinator_has_the_view(group: Group, die: Die) -> None:
    group.lose(NewView, source="a", to="b")
    group.when(InstallMerge, source="a", to="c", do=die)


def when_the_other_part_has_the_view(group: Group, die: Die) -> None:
    group.lose(NewView, source="a", to="b")
    group.when(Ack, source="c", to="a", do=die)


LEADER_STEPS = [
    when_it_has_asked,
    when_it_is_answered,
    when_its_own_part_is_flushed,
    when_it_alone_has_the_view,
    when_only_its_own_part_has_the_view,
    when_only_the_other_coordinator_has_the_view,
    when_the_other_part_has_the_view,
]


@pytest.mark.parametrize("step", LEADER_STEPS, ids=lambda step: step.__name__)
@pytest.mark.parametrize("silent", [False, True], ids=["noticed", "silent"])
def test_wherever_the_leader_of_a_merge_dies_the_others_come_to_one_view(
    make: Make, step: Callable[[Group, Die], None], silent: bool
) -> None:
    group = parted(make, "a b", "c d")
    before: list[View] = [group["b"].view, group["d"].view]
    group["a"].send("left")
    group["c"].send("right")
    group.run(0.1)
    died: list[float] = []

    def die() -> None:
        group.crash("a", silent)
        died.append(group.world.time)

    group.heal()
    step(group, die)
    group.until(lambda: died, limit=5.0)
    group.run(0.02)
    group.heal()
    group.settle("b c d", limit=RESUMER + 4.0)
    assert group["b"].got_in(before[0]) == [("a", "left")]
    assert group["c"].got_in(before[1]) == group["d"].got_in(before[1]) == [("c", "right")]
    everybody_gets(group, "b c d")
    blocked(group, "b c d")


def test_a_leader_that_is_known_to_be_dead_is_not_waited_for(make: Make) -> None:
    group = parted(make, "a b", "c d")
    group.heal()
    recorded: list[Address | None] = []

    def die() -> None:
        recorded.append(group["c"].gms.handler.merge_leader)
        group.crash("a")

    group.when(MergeRsp, source="c", to="a", do=die, lose=True)
    group.until(lambda: recorded)
    assert recorded == [group["a"].local]
    group.until(lambda: group["c"].gms.handler.suspended is None, limit=0.2)
    assert group["c"].rule("gms.resume.leader_gone") == 1
    assert group["c"].gms.handler.merge_leader is None
    group.settle("b c d")


def test_a_leader_that_is_never_heard_of_again_is_waited_for_until_the_resumer_comes(make: Make) -> None:
    group = parted(make, "a b", "c d")
    began = group.world.time
    group.heal()
    group.when(MergeRsp, source="c", to="a", do=lambda: group.part("a b", "c d"), lose=True)
    group.until(lambda: group["c"].rule("gms.resume.resumer"), limit=RESUMER + 2.0)
    assert longest_suspension(group, "c", began) == pytest.approx(RESUMER)
    group.until(lambda: not group.held("cd"))  # and nobody is blocked for longer than that
    everybody_gets(group, "c d")
    group.heal()
    group.settle("a b c d")


def test_once_it_has_decided_the_leader_is_not_needed_any_more(make: Make) -> None:
    group = parted(make, "a b", "c d")
    group.heal()
    group.delay(NewView, by=0.2, source="c", to="d")
    group.when(InstallMerge, source="a", to="c", do=lambda: group.crash("a"))
    group.until(lambda: any(isinstance(view, MergeView) for view in group["d"].views))
    merged = next(view for view in group["d"].views if isinstance(view, MergeView))
    group.until(lambda: group["c"].rule("gms.resume.merge_view"), limit=1.0)
    assert group["c"].rule("gms.resume.leader_gone") == 0
    assert merged in group["c"].views
    group.heal()
    group.settle("b c d")


# A merge that fails otherwise.


def test_an_offer_that_comes_too_late_is_turned_down_and_its_part_is_not_blocked_for_long(make: Make) -> None:
    group = parted(make, "a b", "c d")
    began = group.world.time
    group.heal()
    trap = group.lose(MergeRsp, source="c", to="a")
    group.until(lambda: group["a"].rule("gms.resume.merge_failed"))
    trap.times = 0  # what c offers now comes too late
    group.until(lambda: any(reason == "cancelled" for _, reason, _ in handler(group, "c")), limit=0.5)
    group.settle("a b c d")
    assert group["a"].rule("gms.merge_cancelled") >= 1
    assert longest_suspension(group, "c", began) < 1.0


def test_a_merge_that_is_called_off_is_over_although_that_gets_lost_at_first(make: Make) -> None:
    group = parted(make, "a b", "c d")
    began = group.world.time
    group.heal()
    late = group.lose(MergeRsp, source="c", to="a")
    lost = group.lose(CancelMerge, times=3)
    group.until(lambda: group["a"].rule("gms.resume.merge_failed"))
    late.times = 0
    group.settle("a b c d")
    assert lost.seen == 3
    assert longest_suspension(group, "c", began) < RESUMER - 0.5


def test_a_part_with_a_member_that_we_have_as_well_is_not_merged(make: Make) -> None:
    """What somebody knows is out of date: a member has moved from one part to the other, or was started again."""
    group = parted(make, "a b", "c d")
    a, c, b = group["a"], group["c"], group["b"].local
    views = [a.view, c.view]
    group.heal()
    group.lose(MergeRsp, source="c")
    group.until(lambda: group.story(MergeReq))
    number = next(heard.message.round for heard in group.heard if isinstance(heard.message, MergeReq))
    members = (*c.view.members, Address(b.name, b.incarnation + 1))
    a.call(a.gms._handle, c.local, MergeRsp(number, Part(c.view.id, members, dict.fromkeys(members, 0))))
    group.until(lambda: "a>c CancelMerge" in group.story(CancelMerge))
    group.run(0.01)
    assert [a.view, c.view] == views
    assert a.rule("gms.resume.merge_failed") == 1
    group.heal()
    group.settle("a b c d")


def test_the_coordinator_that_was_asked_may_die(make: Make) -> None:
    for kind in (MergeReq, InstallMerge):
        group = parted(make, "a b", "c d")
        group.heal()
        group.when(kind, source="a", to="c", do=lambda group=group: group.crash("c"), lose=True)  # type: ignore[misc]
        group.until(lambda group=group: not group["c"].running)  # type: ignore[misc]
        group.settle("a b d")
        everybody_gets(group, "a b d")


def test_all_that_are_alone_may_find_each_other_at_once(make: Make) -> None:
    names = "a b c d e f"
    group = parted(make, *names.split())
    group.heal()
    for name in names.split():  # all of them, in the same instant
        others = tuple(sorted(m.local for m in group.members.values() if m.local != group[name].local))
        group[name].call(group[name].gms._coordinator.found, others)
    group.settle(names)
    everybody_gets(group, names)


def test_a_part_that_comes_into_reach_during_a_merge_is_merged_after_it(make: Make) -> None:
    group = parted(make, "a b", "c d", "e")
    group._parted = [pair for pair in group._parted if "e" not in pair]
    for pair in list(group._parted):
        group.fabric.link(*pair).unblock()
    group._parted = [(x, y) for x in "abcd" for y in "e"] + [(y, x) for x in "abcd" for y in "e"]
    group.when(InstallMerge, to="c", do=group.heal)
    view = group.settle("a b c d e")
    assert isinstance(view, MergeView)
    merges = [v for v in group["a"].views if isinstance(v, MergeView)]
    assert [len(v.members) for v in merges] == [4, 5]


def test_a_request_that_is_repeated_while_its_part_is_flushed_starts_nothing_new(make: Make) -> None:
    group = parted(make, "a b", "c d")
    group.heal()
    group.delay(StartFlushOk, by=0.2, source="d", to="c", times=1)
    group.settle("a b c d")
    assert len([heard for heard in group.heard if str(heard) == "a>c MergeReq"]) > 1
    assert group["c"].rule("gms.merge_req.accepted") == 1


def test_a_join_request_reaches_the_leader_of_the_merged_view(make: Make) -> None:
    group = parted(make, "a b", "c d")
    group.heal()
    group.settle("a b c d")
    group.forget()
    group.crash("d")
    group.boot("d")
    group.settle("a b c d")
    assert "d>a JoinReq" in group.story(JoinReq)
