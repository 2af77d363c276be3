"""Traces: events are written and read back the same, and what is no event is refused with its place."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coterie.audit.files import parse
from coterie.group.members import Address, View, ViewId
from coterie.trace import KINDS, SCHEMA_VERSION, Event, Tracer

NUMBERS = st.integers(-(2**63), 2**64)
TIMES = st.floats(allow_nan=False, allow_infinity=False)
JSON = st.recursive(
    st.none() | st.booleans() | NUMBERS | TIMES | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)
EVENTS = st.builds(
    Event,
    run=st.text(),
    node=st.text(),
    inc=NUMBERS,
    n=NUMBERS,
    t=TIMES,
    kind=st.sampled_from(sorted(KINDS)),
    wall=st.none() | TIMES,
    view=st.none() | st.text(),
    pos=st.none() | NUMBERS,
    sender=st.none() | st.text(),
    first=st.none() | NUMBERS,
    last=st.none() | NUMBERS,
    count=st.none() | NUMBERS,
    sum=st.none() | NUMBERS,
    queue=st.none() | st.text(),
    data=st.dictionaries(st.text(), JSON, max_size=3),
)


@given(EVENTS)
def test_an_event_is_read_back_from_its_line(event: Event) -> None:
    line = event.to_json()
    assert "\n" not in line
    assert Event.from_json(line) == event


def test_a_line_has_its_keys_in_a_fixed_order_and_nothing_that_does_not_apply() -> None:
    event = Event("r", "a", 1, 0, 0.25, "deliver", sender="b#1", first=4, last=4, data={"app": True})
    assert event.to_json() == (
        '{"v":1,"run":"r","node":"a","inc":1,"n":0,"t":0.25,"kind":"deliver",'
        '"sender":"b#1","first":4,"last":4,"data":{"app":true}}'
    )


def line_with(**changes: object) -> str:
    line = {"v": SCHEMA_VERSION, "run": "r", "node": "a", "inc": 1, "n": 0, "t": 0.0, "kind": "send"} | changes
    return json.dumps({name: value for name, value in line.items() if value is not ...})


@pytest.mark.parametrize(
    ("line", "complaint"),
    [
        ("", "Expecting value"),
        ("[]", "not a JSON object"),
        ("{", "Expecting property name"),
        (line_with(v=...), "schema version 1"),
        (line_with(v=2), "schema version 1"),
        (line_with(v="1"), "schema version 1"),
        (line_with(colour="red"), "unknown keys: colour"),
        (line_with(run=...), "run: None"),
        (line_with(n="0"), "n: '0'"),
        (line_with(t="now"), "t: 'now'"),
        (line_with(sender=7), "sender: 7"),
        (line_with(data=[]), "data: not an object"),
    ],
)
def test_a_line_that_is_no_event_of_this_version_is_refused(line: str, complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        Event.from_json(line)


@pytest.mark.fuzz
@given(st.text(max_size=60) | JSON.map(json.dumps))
def test_garbage_is_a_value_error_and_nothing_else(line: str) -> None:
    try:
        Event.from_json(line)
    except (ValueError, TypeError):
        pass


def test_a_tracer_numbers_its_events_and_stamps_them_with_the_time_they_happened() -> None:
    seen: list[Event] = []
    times = iter([1.0, 2.5])
    tracer = Tracer("r", "a", 3, seen.append, clock=lambda: next(times))
    tracer.emit("send", first=1, last=1, to="all")
    tracer.emit("view", view=ViewId(1, Address("a", 3)), sender=Address("b", 1), members=["a#3"])
    assert [(e.run, e.node, e.inc, e.n, e.t, e.kind) for e in seen] == [
        ("r", "a", 3, 0, 1.0, "send"),
        ("r", "a", 3, 1, 2.5, "view"),
    ]
    assert seen[0].data == {"to": "all"}
    assert (seen[1].view, seen[1].sender) == ("1@a#3", "b#1")


def test_a_tracer_without_a_sink_is_off_and_reads_no_clock() -> None:
    def clock() -> float:
        raise AssertionError("nobody asked for a trace")

    tracer = Tracer(clock=clock)
    assert not tracer.on
    tracer.emit("send")


def test_every_kind_that_a_view_or_address_goes_into_writes_it_as_text() -> None:
    seen: list[Event] = []
    Tracer(sink=seen.append).emit("view", view=View(ViewId(1, Address("a", 1)), (Address("a", 1),)).id)
    assert Event.from_json(seen[0].to_json()) == seen[0]


def test_a_name_that_is_no_text_is_written_all_the_same() -> None:
    event = Event("r", "n", 1, 1, 0.0, "queue", queue="bad-\udcff", data={"channel": "ä\udc80"})
    again = parse(event.to_json().encode().decode())  # which every reader takes
    assert (again.queue, again.data) == ("bad-\\udcff", {"channel": "ä\\udc80"})
    assert "ä" in Event("r", "n", 1, 1, 0.0, "queue", queue="ä").to_json()
