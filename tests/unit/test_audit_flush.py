"""Flushes and the view handler (G11 to G13): pauses and slow clocks excuse, nothing else does."""

from __future__ import annotations

import pytest
from tracescript import events

from coterie.audit import check, properties


def verdict(text: str) -> list[str]:
    return [f"{v.property}: {v.text}" for v in check(events(text), properties())]


WAITS = {"G12": ("block limit=2", "unblock"), "G13": ("suspend reason=views timeout=2", "resume reason=resumer")}


@pytest.fixture(params=WAITS)
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def judged(name: str, text: str) -> list[str]:
    """`begin` and `over` stand for the events of the property that is asked."""
    begin, over = WAITS[name]
    return [v.partition(":")[0] for v in verdict(text.replace("begin", begin).replace("over", over))]


def test_a_node_that_does_it_in_time_is_fine(name: str) -> None:
    assert judged(name, "A begin t=1.0\n A receive from=B n=1 t=2.0\n A over t=3.0") == []


def test_a_node_that_shows_life_after_its_time_and_does_it_much_later_is_late(name: str) -> None:
    assert judged(name, "A begin t=1.0\n A receive from=B n=1 t=4.0\n A over t=5.0") == [name]


def test_a_node_that_shows_life_again_and_again_and_never_does_it_is_late(name: str) -> None:
    assert judged(name, "A begin t=1.0\n A receive from=B n=1 t=4.0\n A receive from=B n=2 t=5.0") == [name]


def test_a_node_that_does_it_as_soon_as_it_shows_life_was_paused(name: str) -> None:
    assert judged(name, "A begin t=1.0\n A receive from=B n=1 t=60.0\n A over t=60.1") == []


def test_a_node_of_which_only_one_sign_of_life_is_known_may_be_about_to_do_it(name: str) -> None:
    assert judged(name, "A begin t=1.0\n A receive from=B n=1 t=60.0") == []


def test_a_node_that_shows_no_life_may_be_paused_still(name: str) -> None:
    assert judged(name, "A begin t=1.0\n B receive from=A n=1 t=60.0\n A crash t=70.0") == []


@pytest.mark.parametrize("where", ["first", "last"])
def test_a_simulated_node_with_a_slow_clock_has_more_time(name: str, where: str) -> None:
    fault, late = "world fault fault=clock nodes=A values=rate:0.5\n", "A receive from=B n=1 t=4.0\n A over t=5.0\n"
    assert (
        judged(name, f"{fault} A begin t=1.0\n {late}" if where == "first" else f"A begin t=1.0\n {late} {fault}") == []
    )
    slower = "A receive from=B n=1 t=6.0\n A over t=7.0\n"
    assert judged(name, f"{fault} A begin t=1.0\n {slower}") == [name]
    assert judged(name, f"{fault.replace('nodes=A', 'nodes=B')} A begin t=1.0\n {late}") == [name]


def test_what_begins_and_ends_again_and_again_counts_each_time(name: str) -> None:
    text = "".join(f"A begin t={t}.0\n A receive from=B n=1 t={t}.9\n A over t={t}.95\n" for t in range(1, 9))
    assert judged(name, text) == []


def test_at_the_end_only_live_members_are_asked(name: str) -> None:
    free = "A view view=1@A members=A agreed\n B begin\n"
    assert judged(name, free + "world end live=A") == []
    assert judged(name, free + "A begin\n world end live=A") == [name, "G20"]
    assert judged(name, free + "A begin\n A over\n world end live=A") == []


def test_a_flush_that_is_joined_while_the_gate_is_shut_gives_it_its_own_time() -> None:
    text = "A block limit=2 t=1.0\n A flush_joined leader=B number=2 mode=view t=2.5\n"
    assert verdict(text + "A receive from=B n=1 t=3.6\n A unblock t=4.4") == []
    assert len(verdict(text + "A receive from=B n=1 t=5.1\n A unblock t=5.7")) == 1


def test_too_long_is_too_long_even_if_another_flush_comes_afterwards() -> None:
    text = "A block limit=2 t=1.0\n A receive from=B n=1 t=3.6\n A receive from=B n=2 t=4.2\n"
    assert len(verdict(text + "A flush_joined leader=B number=2 mode=view\n A unblock")) == 1


def test_another_round_of_a_flush_replaces_the_one_before() -> None:
    text = """
        C flush_joined leader=A number=1 mode=exclusive
        C flush_joined leader=A number=2 mode=exclusive
        C flush_left leader=A number=2 reason=stop
        C flush_joined leader=B number=1 mode=exclusive
    """
    assert verdict(text) == []


def test_a_flush_that_another_member_left_is_not_left_by_this_one() -> None:
    text = """
        C flush_joined leader=A number=1 mode=exclusive
        D flush_left leader=A number=1 reason=stop
        C flush_left leader=A number=7 reason=stop
        C flush_joined leader=B number=1 mode=shared
    """
    assert [v.partition(":")[0] for v in verdict(text)] == ["G12"]


@pytest.mark.parametrize("one", ["view", "shared", "exclusive"])
@pytest.mark.parametrize("other", ["view", "shared", "exclusive"])
def test_which_flushes_of_different_leaders_may_hold_together(one: str, other: str) -> None:
    text = f"C flush_joined leader=A number=1 mode={one}\n C flush_joined leader=B number=1 mode={other}"
    apart = "exclusive" in (one, other) and "view" not in (one, other)
    assert len(verdict(text)) == apart


def test_a_target_whose_events_may_be_missing_is_not_blamed_for_a_flush_that_it_never_joined() -> None:
    text = "A flush_held number=1 mode=view targets=B\n"
    assert len(verdict(text)) == 1
    assert len(verdict(text + "B start\n B crash")) == 1
    assert verdict(text + "B start\n B truncated") == []
    assert verdict("real\n" + text + "B start\n B crash") == []


def test_another_incarnation_s_gate_is_another_gate() -> None:
    text = "A view members=A\n A block limit=9\n A crash\n A#2 start\n A#2 view members=A#2\n A#2 send n=1 to=all"
    assert verdict(text) == []


# What an exclusive flush promises its holder.

HELD = """
    A view view=1@A members=A,B,C agreed
    B view view=1@A members=A,B,C agreed
    C view view=1@A members=A,B,C agreed
    A flush_joined leader=A number=1 mode=exclusive
    B flush_joined leader=A number=1 mode=exclusive
    C flush_joined leader=A number=1 mode=exclusive
    A flush_held number=1 mode=exclusive targets=A,B,C total=true
"""
MERGE = "subgroups=1@A:A,B,C;1@D:D"
MERGED = f"""
    D view view=1@D members=D agreed
    A view view=2@A members=A,B,C,D before=1@A {MERGE}
    D view view=2@A members=A,B,C,D before=1@D {MERGE}
"""
OVER = "A flush_left leader=A number=1 reason=stop\n A flush_ended number=1\n"


def found(text: str) -> list[str]:
    return [v for v in verdict(text) if v.startswith("G12")]


def test_who_comes_with_a_merge_and_multicasts_inside_an_exclusive_flush_is_found() -> None:
    (violation,) = found(HELD + MERGED + "D send n=1 to=all\n" + OVER)
    assert "D#1 sent number 1 to all in 2@A#1, into which A#1 carried its exclusive flush 1" in violation


@pytest.mark.parametrize(
    "excuse",
    [
        "A flush_lost number=1",
        "D flush_joined leader=A number=0 mode=exclusive\n D flush_left leader=A number=0 reason=stop",
        "D flush_left leader=A number=1 reason=stop",
        "A crash",
    ],
)
def test_who_comes_is_blameless_if_the_holder_is_told_or_it_is_blocked_or_knows_that_it_is_over(excuse: str) -> None:
    over = "" if excuse == "A crash" else OVER
    assert found(HELD + MERGED + excuse + "\n D send n=1 to=all\n" + over) == []


def test_who_comes_with_a_view_of_which_the_holder_learns_after_its_flush_is_over_is_blameless() -> None:
    assert found(HELD + OVER + MERGED + "D send n=1 to=all") == []


def test_two_exclusive_flushes_that_are_carried_into_one_view_are_found_though_nobody_multicasts() -> None:
    other = """
        D view view=1@D members=D agreed
        D flush_joined leader=D number=1 mode=exclusive
        D flush_held number=1 mode=exclusive targets=D total=true
    """
    late = "D flush_left leader=D number=1 reason=stop\n D flush_ended number=1\n"
    merged = MERGED.replace("D view view=1@D members=D agreed\n", "")
    (violation,) = found(HELD + other + merged + OVER + late)
    assert "D#1 carried its exclusive flush 1 into 2@A#1, and so did A#1 its own" in violation
    assert found(HELD + other + merged + "D flush_lost number=1\n" + OVER + late) == []


def test_who_takes_the_holder_for_dead_and_multicasts_in_its_view_is_found() -> None:
    left = "C flush_left leader=A number=1 reason=suspect\n C send n=1 to=all\n"
    (violation,) = found(HELD + left + OVER)
    assert "C#1 left the exclusive flush 1 of A#1 by itself (suspect) and sent number 1 to all" in violation
    assert found(HELD + left + "A flush_lost number=1\n" + OVER) == []
    assert found(HELD + left + OVER + "A crash") == []
    elsewhere = "C flush_left leader=A number=1 reason=view view=2@C\n C view view=2@C members=C agreed\n"
    assert found(HELD + elsewhere + "C send n=1 to=all\n" + OVER) == []


def test_whose_time_is_up_is_found_if_the_holder_hears_from_it_and_is_not_told() -> None:
    left = "C flush_left leader=A number=1 reason=timeout\n C send n=1 to=all\n C send n=5 to=A conn=7\n"
    assert found(HELD + left + OVER) == []  # what it said is on its way
    assert found(HELD + left + "A deliver from=C n=4 conn=7\n" + OVER) == []
    assert found(HELD + left + OVER + "A deliver from=C n=5 conn=7") == []
    assert len(found(HELD + left + "A deliver from=C n=5 conn=7\n" + OVER)) == 1
    assert len(found(HELD + left + "A deliver from=C n=1 conn=8\n" + OVER)) == 1
    assert found(HELD + left + "A deliver from=C n=5 conn=7\n A flush_lost number=1\n" + OVER) == []


def test_a_member_of_the_view_that_never_joined_an_exclusive_flush_of_the_whole_view_is_found() -> None:
    text = HELD.replace("targets=A,B,C", "targets=A,B").replace("C flush_joined leader=A number=1 mode=exclusive", "")
    (violation,) = found(text + OVER)
    assert "which C#1 never joined" in violation
    assert found(text + OVER + "C crash") == []
    assert found(text.replace("total=true", "total=false") + OVER) == []
