"""Views and what happens in them (G1 to G7, and G14, G20 in agreed views): who is asked, and who is not."""

from __future__ import annotations

import pytest
from tracescript import events

from coterie.audit import check, properties


def verdict(text: str, causal: bool = True) -> list[str]:
    return [f"{v.property}: {v.text}" for v in check(events(text), properties(causal))]


def test_views_that_nobody_agreed_on_may_have_the_same_id_and_different_members() -> None:
    assert verdict("A view view=1@A members=A,B\n B view view=1@A members=B") == []


def test_ids_are_compared_as_numbers() -> None:
    assert verdict("A view view=9@A members=A agreed\n A view view=10@A members=A before=9@A") == []
    assert len(verdict("A view view=10@A members=A agreed\n A view view=9@A members=A before=10@A")) == 1
    assert len(verdict("A view view=9@A members=A agreed\n A view view=9@A members=A before=9@A")) == 1


def test_another_incarnation_begins_with_its_own_ids() -> None:
    assert verdict("A view view=5@A members=A agreed\n A crash\n A#2 view view=1@A#2 members=A#2 agreed") == []


OWN = """
    A start
    A view view=1@A members=A agreed start=A:1
    A send n=1 to=all
"""


@pytest.mark.parametrize("end", ["A crash", "A stop", "A truncated", ""])
def test_a_member_that_dies_or_whose_run_does_not_end_need_not_deliver_its_own_multicasts(end: str) -> None:
    assert verdict(OWN + end) == []


def test_a_member_that_lives_at_the_end_delivers_its_own_multicasts() -> None:
    assert verdict(OWN + "A deliver from=A n=1\n world end live=A") == []
    assert "G4: A#1 lives at the end and never delivered its own number 1" in verdict(OWN + "world end live=A")


def test_what_a_protocol_multicasts_and_what_is_sent_to_one_is_no_business_of_self_delivery() -> None:
    text = "A view members=A,B\n A send n=1 to=all app=false\n A send n=1 to=B conn=3\n A view members=A,B"
    assert verdict(text) == []


def test_without_agreement_a_multicast_may_be_delivered_after_the_next_view() -> None:
    assert verdict("A view members=A\n A send n=1 to=all\n A view members=A\n A deliver from=A n=1") == []


CROSSED = """
    A view view=1@A members=A,B agreed start=A:1
    B view view=1@A members=A,B agreed start=A:1
    A send n=1 to=all
    A deliver from=A n=1
    A view view=2@A members=A before=1@A start=A:2
    B view view=2@B members=B before=1@A
"""


def test_a_delivery_that_a_merged_trace_has_before_its_send_is_compared_with_it_all_the_same() -> None:
    trace = events(CROSSED + "B deliver from=A n=1 view=2@B")
    first = [event for event in trace if event.node == "B"]
    merged = [*first, *(event for event in trace if event.node == "A")]
    found = [str(v) for v in check(merged, properties()) if v.property == "G5"]
    assert found == ["G5: B#1 delivered A#1's number 1 in 2@B#1, but it was sent in 1@A#1 [A#1:1 B#1:2]"]


@pytest.mark.parametrize("how", ["conn=4", "app=false"])
def test_unicasts_and_what_protocols_send_are_not_tied_to_views(how: str) -> None:
    sent = f"A send n=1 to={'B' if 'conn' in how else 'all'} {how}"
    lines = CROSSED.replace("A send n=1 to=all", sent).replace("A deliver from=A n=1", "")
    assert verdict(f"A start\n B start\n{lines} B deliver from=A n=1 {how}") == []


TOGETHER = """
    A view view=1@A members=A,B,C agreed start=A:1,B:1,C:1
    B view view=1@A members=A,B,C agreed start=A:1,B:1,C:1
    C view view=1@A members=A,B,C agreed start=A:1,B:1,C:1
    C send n=1 to=all
    C deliver from=C n=1
    A deliver from=C n=1
"""


def test_of_two_that_go_together_only_what_their_applications_got_by_multicast_is_compared() -> None:
    text = (
        TOGETHER
        + """
        B deliver from=C n=1
        C send n=2 to=all app=false
        A deliver from=C n=2 app=false
        C send n=1 to=A conn=7
        A deliver from=C n=1 conn=7
        C send n=2 to=A conn=7
        A deliver from=C n=2 conn=7
        A view view=2@A members=A,B before=1@A
        B view view=2@A members=A,B before=1@A
    """
    )
    assert verdict(text) == []


def test_who_crashes_before_the_next_view_is_compared_with_nobody() -> None:
    assert verdict(TOGETHER + "B crash\n A view view=2@A members=A,C before=1@A start=C:2") == []


def test_who_goes_to_another_view_is_compared_with_nobody() -> None:
    assert verdict(TOGETHER + "A view view=2@A members=A before=1@A\n B view view=2@B members=B before=1@A") == []


def test_who_comes_to_the_same_view_from_another_one_is_compared_with_nobody() -> None:
    text = (
        TOGETHER
        + """
        B view view=2@B members=B before=1@A
        A view view=3@A members=A,B before=1@A subgroups=1@A:A;2@B:B
        B view view=3@A members=A,B before=2@B subgroups=1@A:A;2@B:B
    """
    )
    assert verdict(text) == []


def test_who_went_together_but_delivered_less_is_found_even_if_it_dies_afterwards() -> None:
    text = TOGETHER + "A view view=2@A members=A,B before=1@A\n B view view=2@A members=A,B before=1@A\n B truncated"
    assert [v.partition(":")[0] for v in verdict(text)] == ["G6"]


def test_a_joiner_of_a_merge_is_in_no_subgroup() -> None:
    text = """
        A view view=1@A members=A agreed
        A view view=2@A members=A,B,C before=1@A subgroups=1@A:A;1@B:B
        B view view=2@A members=A,B,C before=1@B subgroups=1@A:A;1@B:B
        C view view=2@A members=A,B,C agreed subgroups=1@A:A;1@B:B
    """
    assert verdict(text) == []


def test_retention_in_agreed_views_without_causal_order_compares_with_what_was_called_stable() -> None:
    text = """
        A view view=1@A members=A,B agreed start=A:1 welcomed=B:1
        B view view=1@A members=A,B agreed start=A:1 welcomed=A:1
        A send n=1 to=all
        A deliver from=A n=1
        B receive from=A n=1
        B discard from=A n=1 reason=stable
    """
    declared = "A stable n=1\n"
    assert verdict(text, causal=False) == ["G14: B#1 discarded A#1's bundles up to 1, which it never called stable"]
    assert verdict(text + declared, causal=False) == []
    later = "B view view=2@A members=A,B before=1@A start=A:2\n B discard from=A n=1 reason=stable"
    assert verdict(text.replace("B discard from=A n=1 reason=stable", later), causal=False) == []


def test_a_joiner_that_has_not_installed_the_view_yet_still_misses_what_is_sent_in_it() -> None:
    text = """
        A view view=1@A members=A,B agreed start=A:1,B:1 welcomed=B:1
        A send n=1 to=all
        A deliver from=A n=1
        A stable n=1
        A discard from=A n=1 reason=stable
    """
    assert verdict(text) == [
        "G14: A#1 discarded A#1's bundles up to 1, but B#1, in the view, still has not opened the stream"
    ]


def test_retention_asks_nobody_about_a_departed_sender_of_an_earlier_agreed_view() -> None:
    text = """
        A view view=1@A members=A,B,C agreed start=C:1
        B view view=1@A members=A,B,C agreed start=C:1
        C view view=1@A members=A,B,C agreed start=C:1
        C send n=1 to=all
        C crash
        A receive from=C n=1
        A view view=2@A members=A,B before=1@A
        A discard from=C n=1 reason=departed
    """
    assert verdict(text) == []


def test_in_agreed_views_what_was_sent_in_an_earlier_one_is_not_owed_at_the_end() -> None:
    text = """
        A view view=1@A members=A agreed start=A:1
        A send n=1 to=all
        A deliver from=A n=1
        A view view=2@A members=A,B before=1@A start=A:2,B:1 welcomed=B:2
        B view view=2@A members=A,B agreed start=A:2,B:1 welcomed=A:1
        world end live=A,B
    """
    assert verdict(text) == []
