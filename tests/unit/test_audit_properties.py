"""Each property finds what violates it and nothing else. The traces are in testdata/traces, to be read and extended."""

from __future__ import annotations

from pathlib import Path

import pytest
from tracescript import Script, events, load

from coterie.audit import Order, check, properties, split
from coterie.trace import KINDS, Event

SCRIPTS = load(Path(__file__).parent / "testdata" / "traces")


def verdict(trace: list[Event], causal: bool = True) -> list[str]:
    return [f"{v.property}: {v.text}" for v in check(trace, properties(causal))]


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.name)
def test_a_trace_has_exactly_the_violations_that_its_file_expects(script: Script) -> None:
    assert verdict(script.events) == script.expected


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.name)
def test_every_violation_names_events_of_the_trace_that_prove_it(script: Script) -> None:
    for violation in check(script.events, properties(causal=True)):
        assert 1 <= len(violation.events) <= 8
        assert all(event in script.events for event in violation.events)
        assert violation.run == script.name


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.name)
def test_the_parts_of_a_split_run_have_together_the_violations_of_the_whole(script: Script) -> None:
    for fold in properties(causal=True):
        whole = sorted(map(str, check(script.events, [fold])))
        parts = sorted(str(v) for part in split(script.events, fold) for v in check(part, [fold]))
        assert parts == whole


def test_each_property_has_a_trace_that_violates_it() -> None:
    named = {text.partition(":")[0] for script in SCRIPTS for text in script.expected}
    assert named == {fold.name for fold in properties()}


def test_the_properties_are_listed_in_the_order_of_their_numbers() -> None:
    group = [f"G{number}" for number in (*range(1, 17), 20)]
    broker = [f"B{number}" for number in range(1, 18)]
    assert [fold.name for fold in properties()] == [*group, *broker]


def test_a_property_reads_only_kinds_that_exist_each_once() -> None:
    for fold in properties():
        assert len(set(fold.kinds)) == len(fold.kinds)
        assert set(fold.kinds) <= set(KINDS)
        assert fold.sentence.endswith(".")
        assert fold.split_by.name


def test_a_property_that_needs_causal_order_says_so() -> None:
    assert [p.name for p in properties(causal=True) if p.order is Order.CAUSAL] == ["G10", "G14", "B17"]
    assert {p.order for p in properties(causal=False)} == {Order.PER_NODE}


RELIED_ON_C = """
    A view members=A,B,C welcomed=B:1,C:1
    B view members=A,B,C start=A:1
    C view members=A,B,C start=A:1
    A send n=1 to=all
    B receive from=A n=1
    A stable n=1
    A discard from=A n=1 reason=stable
"""


def test_retention_without_causal_order_accepts_receiving_that_the_merge_put_later() -> None:
    trace = events(RELIED_ON_C + "C receive from=A n=1")
    assert verdict(trace, causal=False) == []
    assert len(verdict(trace, causal=True)) == 1


def test_retention_without_causal_order_finds_what_was_never_received() -> None:
    assert verdict(events(RELIED_ON_C), causal=False) == [
        "G14: A#1 declared stable A#1's bundles up to 1, but C#1, in the view, still misses 1"
    ]


def test_retention_does_not_blame_a_node_whose_events_may_be_missing() -> None:
    assert verdict(events(RELIED_ON_C + "C truncated"), causal=False) == []


def test_retention_without_causal_order_finds_discards_beyond_what_was_declared_stable() -> None:
    trace = events(RELIED_ON_C + "C receive from=A n=1\n B discard from=A n=2 reason=stable")
    assert verdict(trace, causal=False) == ["G14: B#1 discarded A#1's bundles up to 2, which it never called stable"]


def test_a_connection_need_not_be_flushed_to_a_receiver_that_died_or_left() -> None:
    lost = """
        A start
        B start
        A view members=A,B
        A send n=1 to=B conn=1
        A conn side=send peer=B conn=1 state=CLOSED peer_left=false
    """
    assert len(verdict(events(lost))) == 1
    for end in ("crash", "stop", "truncated"):
        assert verdict(events(lost + f"B {end}")) == []


def test_a_run_without_an_end_is_not_asked_whether_it_settled() -> None:
    assert verdict(events("A view members=A,B welcomed=B:1\n A send n=1 to=all")) == []


def test_a_unicast_to_someone_who_left_the_view_is_owed_to_nobody() -> None:
    trace = events("""
        A view members=A,B welcomed=B:1
        B view members=A,B
        A send n=1 to=B conn=1
        A view members=A
        A view members=A,B welcomed=B:1
        world end live=A,B
    """)
    assert verdict(trace) == []


def test_a_broken_run_gives_a_bounded_number_of_violations_and_says_how_many_more() -> None:
    trace = events("B view members=A,B start=A:1\n" + "\n".join(f"B deliver from=A n={n}" for n in range(2, 200, 2)))
    found = verdict(trace)
    assert len(found) == 2 * 25  # G3 and G8
    assert found[24].endswith("(and 74 more violations like these)")


def test_the_runs_of_a_mixed_trace_are_judged_apart() -> None:
    first = events("A view members=A\n B view members=A,B start=A:1\n A send n=1 to=all\n B deliver from=A n=1")
    second = [Event("other", e.node, e.inc, e.n, e.t, e.kind, sender=e.sender, first=e.first, last=e.last, sum=e.sum,
                    count=e.count, data=e.data) for e in first]  # fmt: skip
    mixed = [event for pair in zip(first, second, strict=True) for event in pair]
    assert verdict(mixed) == []
    mixed.remove(second[2])
    assert [v.run for v in check(mixed, properties(causal=True))] == ["other"]
