"""Total order (G9, G10): what may differ, and what may not."""

from __future__ import annotations

import re

import pytest
from tracescript import events

from coterie.audit import check, properties


def verdict(text: str, causal: bool = True) -> list[str]:
    return [f"{v.property}: {v.text}" for v in check(events(text), properties(causal))]


THREE = """
    A view view=1@A members=A,B,C agreed start=A:1,B:1,C:1
    B view view=1@A members=A,B,C agreed start=A:1,B:1,C:1
    C view view=1@A members=A,B,C agreed start=A:1,B:1,C:1
    A send n=1 to=all
    B send n=1 to=all
"""
APART = (
    THREE
    + """
    A ordered from=A n=1 pos=1
    A deliver from=A n=1 pos=1
    B ordered from=B n=1 pos=1
    B deliver from=B n=1 pos=1
    C ordered from=B n=1 pos=1
    C deliver from=B n=1 pos=1
"""
)


def test_a_member_that_was_cut_off_may_have_delivered_another_tail() -> None:
    text = (
        APART
        + """
        B view view=2@B members=B,C before=1@A start=B:2,C:1
        C view view=2@B members=B,C before=1@A start=B:2,C:1
        A view view=3@A members=A,B,C before=1@A start=A:2,B:2,C:1 subgroups=1@A:A;2@B:B,C
        B view view=3@A members=A,B,C before=2@B start=A:2,B:2,C:1 subgroups=1@A:A;2@B:B,C
        C view view=3@A members=A,B,C before=2@B start=A:2,B:2,C:1 subgroups=1@A:A;2@B:B,C
    """
    )
    assert verdict(text) == []


def test_not_even_of_what_the_others_were_told_is_held_if_its_own_subgroup_is_no_majority() -> None:
    """A comes to a view of all three, but from 1@A it comes alone: what B and C hold, it need not have."""
    text = (
        APART
        + """
        B held pos=1 by=majority members=B,C
        B view view=2@B members=B,C before=1@A start=B:2,C:1
        C view view=2@B members=B,C before=1@A start=B:2,C:1
        A view view=3@A members=A,B,C before=1@A start=A:2,B:2,C:1 subgroups=1@A:A;2@B:B,C
        B view view=3@A members=A,B,C before=2@B start=A:2,B:2,C:1 subgroups=1@A:A;2@B:B,C
        C view view=3@A members=A,B,C before=2@B start=A:2,B:2,C:1 subgroups=1@A:A;2@B:B,C
    """
    )
    assert verdict(text) == []


MERGED = """
    A view view=1@A members=A,B,C agreed start=A:1,B:1,C:1
    B view view=1@A members=A,B,C agreed start=A:1,B:1,C:1
    C view view=1@A members=A,B,C agreed start=A:1,B:1,C:1
    D view view=1@D members=D agreed start=D:1
    A send n=1 to=all
    A ordered from=A n=1 pos=1
    B ordered from=A n=1 pos=1
    A deliver from=A n=1 pos=1
    B deliver from=A n=1 pos=1
    A held pos=1 by=majority members=A,B
    C view view=3@D members=D,A,B,C before=1@A start=D:1,A:2,B:1,C:1 subgroups=1@D:D;1@A:A,B,C
    D view view=3@D members=D,A,B,C before=1@D start=D:1,A:2,B:1,C:1 subgroups=1@D:D;1@A:A,B,C
"""


def test_a_member_that_takes_a_merge_with_a_majority_has_what_that_was_told_is_held() -> None:
    (found,) = verdict(MERGED)
    assert "C#1 went from 1@A#1 to 3@D#1 without position 1, but A#1 was told that 1 is held" in found


def test_half_of_the_members_are_no_majority_that_carries_what_is_held_on() -> None:
    """B goes on alone, from a view of two: it may have ordered something else than A, which was told."""
    text = """
        A view view=1@A members=A,B agreed start=A:1,B:1
        B view view=1@A members=A,B agreed start=A:1,B:1
        A send n=1 to=all
        B send n=1 to=all
        A ordered from=A n=1 pos=1
        B ordered from=B n=1 pos=1
        B deliver from=B n=1 pos=1
        A held pos=1 by=all members=A,B
        B view view={id} members={members} before=1@A
    """
    assert verdict(text.format(id="2@B", members="B")) == []
    assert [v.partition(":")[0] for v in verdict(text.format(id="2@A", members="A,B"))] == ["G9"]


def test_members_that_were_told_of_different_positions_agree_up_to_the_lower_one() -> None:
    text = (
        THREE
        + """
        A ordered from=A n=1 pos=1
        A ordered from=B n=1 pos=2
        B ordered from=A n=1 pos=1
        B ordered from=C n=1 pos=2
        C ordered from=A n=1 pos=1
        C ordered from=B n=1 pos=2
        A held pos=2 by=majority members=A,C
        B held pos={upto} by=majority members=A,B
    """
    )
    assert verdict(text.format(upto=1)) == []
    assert verdict(text.format(upto=2)) == [
        "G9: the order of 1@A#1 is held up to 2, but at position 2 A#1 has B#1's number 1 and B#1 has C#1's number 1"
    ]


def test_another_number_of_the_same_sender_at_one_position_is_another_bundle() -> None:
    text = (
        THREE
        + """
        A send n=2 to=all
        A ordered from=A n=1 pos=1
        B ordered from=A n=2 pos=1
        A held pos=1 by=majority members=A,B
        B held pos=1 by=majority members=A,B
    """
    )
    assert verdict(text) == [
        "G9: the order of 1@A#1 is held up to 1, but at position 1 A#1 has A#1's number 1 and B#1 has A#1's number 2"
    ]


TRAIN = """
    A view view=1@A members=A,B agreed start=A:1,B:1
    B view view=1@A members=A,B agreed start=A:1,B:1
    A send n=1 to=all
    A send n=2 to=all
    B send n=1 to=all
    A deliver from=B n=1 pos=2
    A deliver from=A n=1 pos=1
    A deliver from=A n=2 pos=3
    B deliver from=B n=1 pos=2
    B deliver from=A n=1 pos=1
    B deliver from=A n=2 pos=3
    A view view=2@A members=A,B before=1@A start=A:3,B:2
    B view view=2@A members=A,B before=1@A start=A:3,B:2
"""


def test_the_parts_of_a_long_message_are_delivered_with_its_last_one_whatever_their_positions() -> None:
    assert verdict(TRAIN) == []


@pytest.mark.parametrize("known", [True, False])
def test_a_position_is_filled_if_its_bundle_is_known_even_if_it_is_never_delivered(known: bool) -> None:
    """The sender died before the message was whole: its parts have their places."""
    text = """
        A view view=1@A members=A,B agreed start=A:1,B:1
        B view view=1@A members=A,B agreed start=A:1,B:1
        B send n=1 to=all
        A send n=1 to=all
        B crash
    """
    text += "A ordered from=B n=1 pos=1\n" if known else ""
    text += "A deliver from=A n=1 pos=2"
    assert [v.partition(":")[0] for v in verdict(text)] == ([] if known else ["G9"])


def test_without_positions_there_is_no_order_to_judge() -> None:
    lines = TRAIN.splitlines()
    lines[9], lines[10] = lines[10], lines[9]
    text = "\n".join(lines)
    assert [v.partition(":")[0] for v in verdict(text)] == ["G9"]
    assert verdict(re.sub(r" pos=\d", "", text)) == []


TOLD = """
    A start
    B start
    A view view=1@A members=A,B agreed start=A:1
    B view view=1@A members=A,B agreed start=A:1
    A send n=1 to=all
    A ordered from=A n=1 pos=1
    A held pos=1 by=all members=A,B
"""


def test_without_causal_order_a_holder_may_have_its_place_later_in_the_file() -> None:
    late = TOLD + "B ordered from=A n=1 pos=1"
    assert verdict(late, causal=False) == []
    assert verdict(late, causal=True) == ["G10: A#1 was told that B#1 holds 1@A#1 up to 1, but it has nothing at 1"]


def test_without_causal_order_the_furthest_that_anyone_was_told_counts() -> None:
    text = TOLD + "B ordered from=A n=1 pos=1\n A ordered from=A n=2 pos=2\n A held pos=2 by=majority members=A,B\n"
    for again in ("", "A held pos=1 by=all members=A,B"):
        assert verdict(text + again, causal=False) == [
            "G10: A#1 was told that B#1 holds 1@A#1 up to 2, but it has nothing at 2"
        ]


@pytest.mark.parametrize("causal", [True, False])
def test_a_holder_whose_events_may_be_missing_is_not_blamed(causal: bool) -> None:
    assert len(verdict(TOLD, causal)) == 1
    assert verdict(TOLD + "B truncated", causal) == []
    assert verdict("real\n" + TOLD + "B crash", causal=False) == []
    assert len(verdict(TOLD + "B crash", causal)) == 1
