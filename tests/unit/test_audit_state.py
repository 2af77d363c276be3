"""State transfer (G16): what is compared, and what promises nothing."""

from __future__ import annotations

import pytest
from tracescript import events

from coterie.audit import check, properties


def verdict(text: str) -> list[str]:
    return [f"{v.property}: {v.text}" for v in check(events(text), properties())]


CUT = """
    A start
    B start
    A view view=1@A members=A,B agreed start=A:1
    B view view=1@A members=A,B agreed start=A:1
    A state_cut id=1 role=provider digest=A:0
    B state_cut id=1 role=requester digest=A:0
"""


def test_a_transfer_that_failed_promises_nothing() -> None:
    broken = CUT.replace("requester digest=A:0", "requester digest=A:9") + "A state_sent id=1 count=1 sum=1\n"
    broken += "B state_set id=1 count=2 sum=2\n"
    assert len(verdict(broken)) == 2
    assert verdict(broken + "B state_failed id=1 reason=gone") == []


def test_a_provider_whose_events_may_be_missing_may_have_sent_what_was_set() -> None:
    unsent = CUT + "B state_set id=1 count=1 sum=1\n"
    assert verdict(unsent) == ["G16: B#1 has the state 1, which nobody has sent"]
    assert verdict(unsent + "A truncated") == []
    assert verdict("real\n" + unsent + "A crash") == []


def test_a_provider_of_which_there_is_no_trace_at_all_may_exist() -> None:
    unsent = "B start\n B state_set id=1 count=1 sum=1\n"
    assert len(verdict(unsent)) == 1
    assert verdict("real\n" + unsent) == []


@pytest.mark.parametrize("together", [True, False])
def test_what_follows_the_cut_is_compared_if_both_go_together_to_the_next_view(together: bool) -> None:
    text = CUT + "A send n=1 to=all\n A deliver from=A n=1\n A view view=2@A members=A,B before=1@A start=A:2\n"
    text += "B view view=2@A members=A,B before=1@A start=A:2" if together else "B view view=2@B members=B before=1@A"
    assert [v.partition(":")[0] for v in verdict(text)] == (["G6", "G16"] if together else [])


def test_after_the_cut_only_multicasts_of_the_application_are_compared() -> None:
    text = (
        CUT
        + """
        A send n=1 to=all app=false
        A deliver from=A n=1 app=false
        A send n=1 to=B conn=4
        B deliver from=A n=1 conn=4
        A view view=2@A members=A,B before=1@A start=A:2
        B view view=2@A members=A,B before=1@A start=A:2
    """
    )
    assert verdict(text) == []


def test_without_total_order_the_sequence_after_the_cut_may_differ() -> None:
    text = """
        A view view=1@A members=A,B agreed start=A:1,B:1
        B view view=1@A members=A,B agreed start=A:1,B:1
        A state_cut id=1 role=provider digest=A:0
        B state_cut id=1 role=requester digest=A:0
        A send n=1 to=all
        B send n=1 to=all
        A deliver from=A n=1
        A deliver from=B n=1
        B deliver from=B n=1
        B deliver from=A n=1
        A view view=2@A members=A,B before=1@A start=A:2,B:2
        B view view=2@A members=A,B before=1@A start=A:2,B:2
    """
    assert verdict(text) == []
