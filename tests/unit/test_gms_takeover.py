"""GMS: the coordinator dies in the middle of a view change, at each of its steps.

The group is {a, b, c}; a coordinates, d joins, and c has missed some of the last words of a. Wherever a dies, the
others come to one view without it, have delivered the same of the view before it, let d in, and are not blocked.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
from group_rig import Bundle, Group, everybody_gets, make

from coterie.group.members import View
from coterie.group.protocols.flush_messages import Cut, Reconciled, StartFlush, StartFlushOk, StopFlush
from coterie.group.protocols.gms.messages import Ack, JoinReq, JoinRsp, NewView
from coterie.group.protocols.merge import Info

__all__ = ["make"]

Make = Callable[..., Group]
Die = Callable[[], object]
DETECTED = 0.5 + 2 * 0.1 + 4 / 3 * 0.15
"""Seconds after which a silent crash is suspected, under the settings of the rig."""


def before_the_flush(group: Group, die: Die) -> None:
    group.when(StartFlush, source="a", do=die, lose=True)
    group.lose(StartFlush, source="a")


def when_one_has_been_asked_to_flush(group: Group, die: Die) -> None:
    group.when(StartFlush, source="a", to="b", do=die)
    group.lose(StartFlush, source="a", to="c")


def when_the_other_one_has_been_asked_to_flush(group: Group, die: Die) -> None:
    group.when(StartFlush, source="a", to="c", do=die)
    group.lose(StartFlush, source="a", to="b")


def when_all_have_answered(group: Group, die: Die) -> None:
    group.when(Cut, source="a", do=die, lose=True)
    group.lose(Cut, source="a")


def when_one_has_answered(group: Group, die: Die) -> None:
    group.when(StartFlushOk, to="a", do=die, lose=True)


def when_one_knows_the_cut(group: Group, die: Die) -> None:
    group.when(Cut, source="a", to="c", do=die)
    group.lose(Cut, source="a", to="b")


def when_all_are_at_the_cut(group: Group, die: Die) -> None:
    group.when(Reconciled, source="c", to="a", do=die, lose=True)


def when_it_alone_has_installed_the_view(group: Group, die: Die) -> None:
    group.when(NewView, source="a", do=die, lose=True)
    group.lose(NewView, source="a")


def when_the_next_in_line_has_installed_it(group: Group, die: Die) -> None:
    group.when(NewView, source="a", to="b", do=die)
    group.lose(NewView, source="a", to="c")


def when_one_that_is_not_next_in_line_has_installed_it(group: Group, die: Die) -> None:
    group.when(NewView, source="a", to="c", do=die)
    group.lose(NewView, source="a", to="b")


def when_one_has_acked_it(group: Group, die: Die) -> None:
    group.when(Ack, source="b", to="a", do=die)


def before_the_joiner_is_told(group: Group, die: Die) -> None:
    group.when(JoinRsp, source="a", to="d", do=die, lose=True)
    group.lose(JoinRsp, source="a")


def when_the_joiner_has_been_told(group: Group, die: Die) -> None:
    group.when(JoinRsp, source="a", to="d", do=die)


def before_the_flush_is_released(group: Group, die: Die) -> None:
    group.when(StopFlush, source="a", do=die, lose=True)
    group.lose(StopFlush, source="a")


def when_one_has_been_released(group: Group, die: Die) -> None:
    group.when(StopFlush, source="a", to="c", do=die)
    group.lose(StopFlush, source="a", to="b")


STEPS = [
    before_the_flush,
    when_one_has_been_asked_to_flush,
    when_the_other_one_has_been_asked_to_flush,
    when_one_has_answered,
    when_all_have_answered,
    when_one_knows_the_cut,
    when_all_are_at_the_cut,
    when_it_alone_has_installed_the_view,
    when_the_next_in_line_has_installed_it,
    when_one_that_is_not_next_in_line_has_installed_it,
    when_one_has_acked_it,
    before_the_joiner_is_told,
    when_the_joiner_has_been_told,
    before_the_flush_is_released,
    when_one_has_been_released,
]
Step = Callable[[Group, Die], None]
each_step = pytest.mark.parametrize("step", STEPS, ids=lambda step: step.__name__)
each_death = pytest.mark.parametrize("silent", [False, True], ids=["noticed", "silent"])


def ready(make: Make) -> tuple[Group, View]:
    """{a, b, c} in a view, and d, which waits to be let in and will not ask by itself."""
    group = make("a b c d")
    view = group.grow("a b c")
    group.lose(Info, to="d")
    d = group.boot("d", state=False)
    group.until(lambda: len(d.channel._transport.peers()) == 3)
    return group, view


def begin(group: Group) -> None:
    """a says its last words, of which c misses some, and lets d in."""
    a = group["a"]
    group.lose(Bundle, source="a", to="c", times=2)
    a.send("last")
    group.run(0.002)
    a.send("words")
    group.run(0.002)
    a.call(a.gms._handle, group["d"].local, JoinReq(False))


@each_death
@each_step
def test_wherever_the_coordinator_dies_the_others_come_to_one_view_and_have_delivered_the_same(
    make: Make, step: Step, silent: bool
) -> None:
    group, view = ready(make)
    died: list[float] = []

    def die() -> None:
        group.crash("a", silent)
        died.append(group.world.time)

    step(group, die)
    begin(group)
    group.until(lambda: died, limit=2.0)
    group.run(0.01)
    group.heal()
    group.settle("b c d", limit=(DETECTED if silent else 0) + 3.0)
    words = group["b"].got_in(view)
    assert words == [("a", "last"), ("a", "words")]
    assert group["c"].got_in(view) == words
    everybody_gets(group, "b c d")
    for name in "bcd":
        blocked = group[name].app.blocked
        assert blocked == ["block", "unblock"] * (len(blocked) // 2)


@each_step
def test_wherever_the_coordinator_dies_the_gates_stay_shut_until_the_next_view(make: Make, step: Step) -> None:
    """Somebody may have installed the view already: what is multicast in the old one would keep others out of it."""
    group, view = ready(make)
    died: list[float] = []

    def die() -> None:
        group.crash("a")
        died.append(group.world.time)

    step(group, die)
    begin(group)
    group.until(lambda: died, limit=2.0)
    shut = [name for name in "bc" if group[name].gms.flush.shut]
    for name in "bc":
        group[name].send("impatient")
    group.settle("b c d")
    group.run(0.2)
    for name in shut:
        assert (name, "impatient") not in group[name].got_in(view)
    assert ("b", "impatient") in group["c"].got
    assert ("c", "impatient") in group["b"].got


@each_death
def test_the_view_that_one_has_got_of_a_dead_coordinator_is_forwarded_to_those_who_missed_it(
    make: Make, silent: bool
) -> None:
    group, _ = ready(make)
    died: list[float] = []

    def die() -> None:
        group.crash("a", silent)
        died.append(group.world.time)

    when_one_that_is_not_next_in_line_has_installed_it(group, die)
    begin(group)
    group.until(lambda: died)
    made = group["c"].view
    group.heal()
    group.settle("b c d")
    assert made in group["b"].views
    assert group["c"].rule("gms.forwarded") >= 1


def test_a_joiner_whose_coordinator_died_before_it_told_it_is_told_by_the_next_one(make: Make) -> None:
    group, _ = ready(make)
    before_the_joiner_is_told(group, lambda: group.crash("a"))
    begin(group)
    group.until(lambda: not group["a"].running)
    made = group["b"].view
    assert group["d"].local in made
    group.heal()
    group.settle("b c d")
    assert len(group["d"].views) >= 1


def test_the_successor_may_die_as_well(make: Make) -> None:
    group = make("a b c d e")
    view = group.grow("a b c d e")
    group.lose(Bundle, source="a", to="c d", times=2)
    group["a"].send("last words")
    group.when(NewView, source="b", to="d", do=lambda: group.crash("b"))
    group.lose(NewView, source="b", to="c e")
    group.run(0.003)
    group.crash("a")
    group.until(lambda: not group["b"].running, limit=2.0)
    group.heal()
    group.settle("c d e")
    assert [group[name].got_in(view) for name in "cde"] == [[("a", "last words")]] * 3
    everybody_gets(group, "c d e")


def test_two_that_both_think_that_they_lead_do_not_tear_the_group_apart_for_good(make: Make) -> None:
    """b does not hear a any more and takes over; c hears both."""
    group = make("a b c")
    group.grow("a b c")
    group.part("a", "b")
    group.run(2.0)
    group.heal()
    group.settle("a b c")
    everybody_gets(group, "a b c")
