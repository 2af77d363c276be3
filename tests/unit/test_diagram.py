"""The diagram's model: what the page is given to draw, and what it is told was left out."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from pretend import Pretend
from tracescript import events

from coterie.audit import Violation
from coterie.sim import diagram
from coterie.sim.diagram import render
from coterie.trace import Event

FROM, TO, LEFT, ARRIVED, UNICAST, AGAIN, APP = range(7)


def model(trace: list[Event], violations: list[Violation] | None = None) -> dict[str, Any]:
    page_text = render(trace, "a run", violations)
    found = re.search(r'<script type="application/json" id="model">(.*?)</script>', page_text, re.DOTALL)
    assert found is not None
    page: dict[str, Any] = json.loads(found[1])
    return page


def kinds(page: dict[str, Any], arrow: list[int]) -> tuple[str, str | None]:
    """The kinds of the events at both ends."""
    return page["events"][arrow[LEFT]][4], None if arrow[ARRIVED] < 0 else page["events"][arrow[ARRIVED]][4]


def test_a_page_needs_nothing_from_outside() -> None:
    page = render(Pretend().events(), "a run")
    assert "default-src 'none'" in page
    assert not re.search(r'(src|href)\s*=\s*["\']', page)
    assert not re.search(r"@import|url\((?!#)", page)
    assert "fetch(" not in page


def test_nothing_in_a_trace_can_break_out_of_the_page() -> None:
    nasty = "</script><script>alert(1)</script>"
    trace = events("A start\n A send n=1 to=all")
    trace[0].data["stack"] = [nasty]
    trace[1].node = nasty
    page = render(trace, nasty)
    assert nasty not in page
    assert page.count("<script") == 2


def test_a_multicast_is_an_arrow_to_each_other_member_of_the_view() -> None:
    page = model(
        events("""
        A view members=A,B,C
        A send n=1 to=all
        A deliver from=A n=1
        B receive from=A n=1
        B deliver from=A n=1
        C receive from=A n=1
        C deliver from=A n=1
    """)
    )
    assert page["members"] == ["A", "B", "C"]
    assert [(a[FROM], a[TO], kinds(page, a)) for a in page["arrows"]] == [
        (0, 1, ("send", "receive")),
        (0, 2, ("send", "receive")),
    ]


def test_the_copy_that_was_sent_last_before_the_arrival_is_the_one_that_arrived() -> None:
    page = model(
        events("""
        A view members=A,B
        B start
        C start
        A send n=1 to=all
        A retransmit from=A n=1 to=B reason=asked
        C retransmit from=A n=1 to=B reason=asked
        B receive from=A n=1
        A retransmit from=A n=1 to=B reason=asked
    """)
    )
    arrows = [(a[FROM], *kinds(page, a), a[AGAIN]) for a in page["arrows"]]
    assert arrows == [
        (0, "send", None, 0),
        (0, "retransmit", None, 1),
        (2, "retransmit", "receive", 1),
        (0, "retransmit", None, 1),
    ]


def test_unicasts_and_bundles_of_protocols_can_be_told_apart() -> None:
    page = model(
        events("""
        A view members=A,B
        A send n=1 to=all app=false
        A send n=1 to=B conn=9
        B deliver from=A n=1 app=false
        B deliver from=A n=1 conn=9
    """)
    )
    assert [(a[UNICAST], a[APP]) for a in page["arrows"]] == [(0, 0), (1, 1)]
    assert all(a[ARRIVED] >= 0 for a in page["arrows"])


def test_views_of_the_same_members_have_the_same_colour_and_end_with_the_next_or_with_death() -> None:
    page = model(
        events("""
        A view view=1@A#1 members=A,B
        B view view=1@B#1 members=B,A
        B crash
        A view view=2@A#1 members=A
        A#1 stop
        B#2 start
    """)
    )
    assert [(v["id"], v["colour"], v["start"], v["end"]) for v in page["views"]] == [
        ("1@A#1", 0, 0.0, 0.03),
        ("1@B#1", 0, 0.01, 0.02),
        ("2@A#1", 1, 0.03, 0.04),
    ]
    assert [(life["inc"], life["how"]) for life in page["lives"]] == [(1, "stop"), (1, "crash"), (2, "")]


def test_faults_last_until_they_heal_and_say_whom_they_hurt() -> None:
    page = model(Pretend().events())
    faults = {fault["kind"]: fault for fault in page["faults"]}
    assert set(faults) == {"loss", "partition", "crash", "pause", "quiet"}
    assert (faults["partition"]["start"], faults["partition"]["end"]) == (0.6, 1.0)
    assert faults["partition"]["what"] == "C → A, C → B, C → D"
    assert faults["pause"]["rows"] == [1]
    assert faults["crash"]["start"] == faults["crash"]["end"]


def test_violations_are_found_and_point_at_their_events() -> None:
    page = model(events("A start\n B view members=A,B start=A:1\n B deliver from=A n=1"))
    (violation,) = page["violations"]
    assert violation["property"] == "G3"
    assert [page["events"][index][4] for index in violation["events"]] == ["deliver"]


def test_a_long_run_opens_with_a_range_in_which_messages_can_be_told_apart() -> None:
    page = model(Pretend(bundles=2000, seconds=20.0).events(), violations=[])
    in_sight = [a for a in page["arrows"] if page["first"] <= page["events"][a[LEFT]][0] <= page["last"]]
    assert 20 <= len(in_sight) <= 400
    first_fault = min(fault["start"] for fault in page["faults"])
    assert page["first"] <= first_fault <= page["last"]


def test_what_a_page_cannot_hold_is_left_out_and_said(monkeypatch: pytest.MonkeyPatch) -> None:
    trace = Pretend(bundles=400).events()
    monkeypatch.setattr(diagram, "EVENTS_MAX", 1000)
    page = model(trace)
    assert len(page["events"]) == 1000
    assert page["total"] == len(trace)
    acks, rest = page["leftOut"]
    assert "events of the kinds ack" in acks
    assert re.search(r"events before \S+ s or after \S+ s", rest)


def test_an_empty_trace_is_a_page_too() -> None:
    assert model([])["members"] == []
