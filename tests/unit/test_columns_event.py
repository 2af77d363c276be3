"""Publish events: what was gathered is what is read, from whatever bytes; and nothing else can be read from them."""

from __future__ import annotations

import struct
import tracemalloc
from itertools import pairwise
from typing import Any

import pytest
from columns_rig import (
    Sent,
    a_block,
    a_route,
    any_messages,
    ask_everything,
    build,
    encoded,
    flat,
    looks_like,
    read,
)
from hypothesis import given, settings
from hypothesis import strategies as st
from ranges_rig import altered, ranges_of

from coterie.broker.columns import EventBuilder, KnownRoutes, MalformedEvent, PublishEvent, Share, layout
from coterie.broker.columns.builder import SLACK, assemble, large_event
from coterie.broker.columns.head import Outside, kept_ranges, write_head
from coterie.broker.columns.layout import COUNT_MAX, FIXED
from coterie.broker.columns.remnant import cut
from coterie.broker.columns.routes import KNOWN_MAX, Route, make_table, read_routes, write_routes
from coterie.broker.ranges import Lengths, Runs
from coterie.runtime.base import Buffer

MIXED = [
    Sent(a_route(), a_block(delivery_mode=2), b"one"),
    Sent(a_route(), a_block(delivery_mode=2), b"second"),
    Sent(a_route("other", 1, 2, mandatory=True), a_block(priority=9, expiration="60000"), b""),
    Sent(a_route("other", 1, 2, mandatory=True), a_block(delivery_mode=2), b"four"),
]
EACH = [Sent(a_route(), a_block(message_id=str(number)), b"x" * number) for number in range(5)]
EVENTS = [build(MIXED[:1]), build(MIXED), build(EACH), build([MIXED[0]] * 6)]
known = KnownRoutes()


# What is gathered is what is read.


@given(any_messages)
def test_an_event_is_read_as_it_was_gathered(sent: list[Sent]) -> None:
    event = build(sent)
    looks_like(event, sent)
    data = encoded(event)
    assert len(data) == event.size
    looks_like(read(data), sent)
    contents = b"".join(event.content_buffers())
    looks_like(PublishEvent.of_record(event.head, contents, KnownRoutes()), sent)


@given(any_messages, st.data())
def test_any_range_of_an_event_can_be_read(sent: list[Sent], data: st.DataObject) -> None:
    first = data.draw(st.integers(0, len(sent)))
    stop = data.draw(st.integers(first, len(sent)))
    for event in (build(sent), read(encoded(build(sent)))):
        part = sent[first:stop]
        assert [bytes(body) for body in event.bodies(first, stop)] == [each.body for each in part]
        assert [*event.lengths(first, stop)] == [len(each.body) for each in part]
        table = event.columns.routes
        assert [table[number] for number in event.route_numbers(first, stop)] == [each.route for each in part]
        assert [event.block(number) for number in event.block_numbers(first, stop)] == [each.block.raw for each in part]


def test_an_event_of_many_tables_is_read_as_it_was_gathered() -> None:
    """Indices of two bytes, and of four."""
    for count in (300, 70_000):
        sent = [Sent(a_route(f"k{n}", n), a_block(message_id=str(n)), b"%d" % n) for n in range(1, count + 1)]
        event = read(encoded(build(sent)))
        for at in (0, 1, 255, 256, 299, count // 2, count - 1):
            assert (event.route(at), event.properties(at), bytes(event.body(at))) == (
                sent[at].route, sent[at].block.raw, sent[at].body,
            )  # fmt: skip
        assert event.by_queue() == {n: [(n - 1, n)] for n in range(1, count + 1)}


def test_what_is_the_same_for_all_takes_no_column() -> None:
    one, fifty = build(MIXED[:1]), build([MIXED[0]] * 50)
    assert len(fifty.head) == len(one.head)
    assert fifty.columns.content_bytes == one.columns.content_bytes + 49 * 3


def test_a_message_for_several_queues_is_there_once() -> None:
    event = build([Sent(a_route("all", 1, 2, 3), a_block(), b"the body")])
    assert encoded(event).count(b"the body") == 1
    assert event.by_queue() == {1: [(0, 1)], 2: [(0, 1)], 3: [(0, 1)]}


def test_routing_keys_that_lead_to_the_same_queues_are_one_range() -> None:
    event = read(encoded(build([Sent(a_route(f"key{n}", 4, 5), a_block(), b"") for n in range(100)])))
    assert event.by_queue() == {4: [(0, 100)], 5: [(0, 100)]}


def test_bodies_are_neither_copied_nor_joined() -> None:
    bodies = [bytes((number,)) * 1000 for number in range(5)]
    event = build([Sent(a_route(), a_block(), body) for body in bodies])
    assert [id(buffer) for buffer in event.buffers()[2:]] == [id(body) for body in bodies]
    data = encoded(event)
    body = read(data).body(2)
    assert isinstance(body, memoryview)
    assert body.obj is data


def test_of_a_head_alone_the_columns_can_be_asked() -> None:
    event = PublishEvent.of_head(build(MIXED).head, KnownRoutes())
    assert event.by_queue() == {1: [(0, 4)], 2: [(2, 4)]}
    assert [*event.lengths(0, 4)] == [3, 6, 0, 4]
    for ask in (event.body, event.header, event.properties, event.digest):
        with pytest.raises(ValueError, match=r"not here|no digests"):
            ask(0)


@given(st.lists(any_messages, min_size=1, max_size=4))
def test_positions_of_a_queue_lead_back_to_its_messages(events: list[list[Sent]]) -> None:
    """As a follower does it: runs and lengths by ranges, whatever is in the event."""
    contents = [read(encoded(build(sent))) for sent in events]
    queues: dict[int, tuple[Runs, Lengths]] = {}
    plain: dict[int, list[bytes]] = {}
    for ref, event in enumerate(contents):
        for queue, ranges in event.by_queue().items():
            runs, lengths = queues.setdefault(queue, (Runs(), Lengths()))
            for first, stop in ranges:
                position = lengths.stop
                runs.append(position, stop - first, ref, first)
                lengths.append(position, event.lengths(first, stop))
        for sent in events[ref]:
            for queue in sent.route.queues:
                plain.setdefault(queue, []).append(sent.body)
    assert queues.keys() == plain.keys()
    for queue, (runs, lengths) in queues.items():
        bodies = [
            bytes(body) for first, stop, ref, at in runs for body in contents[ref].bodies(at, at + stop - first)
        ]  # fmt: skip
        assert bodies == plain[queue]
        assert [lengths.get(position) for position in range(len(bodies))] == [len(body) for body in bodies]


# The builder.


def test_the_builder_tells_whose_messages_they_are() -> None:
    builder: EventBuilder[str] = EventBuilder()
    block = a_block()
    builder.add(a_route(), block, "a", b"1")(b"2")
    builder.add(a_route(), block, "b", b"3")
    builder.add(a_route("k"), block, "b", b"4")
    builder.add(a_route("k"), block, "a", b"5")
    assert (builder.count, builder.size) == (5, 5)
    event, shares = builder.take()
    assert shares == [Share("a", 0, 2), Share("b", 2, 4), Share("a", 4, 5)]
    assert event is not None
    assert [bytes(body) for body in event.bodies(0, 5)] == [b"1", b"2", b"3", b"4", b"5"]
    assert builder.take() == (None, [])
    builder.add(a_route(), block, "a", b"6")
    event, shares = builder.take()
    assert event is not None
    assert (event.count, shares) == (1, [Share("a", 0, 1)])


def test_the_builder_is_full_by_bytes_and_by_messages() -> None:
    builder: EventBuilder[str] = EventBuilder(full_bytes=100)
    builder.add(a_route(), a_block(), "a", b"." * 99)
    assert not builder.full
    builder.add(a_route("other"), a_block(), "a", b".")
    assert builder.full
    builder.take()
    assert not builder.full
    append = builder.add(a_route(), a_block(), "a", b"")
    for _ in range(COUNT_MAX - SLACK):
        append(b"")
    assert builder.full
    with pytest.raises(ValueError, match="full"):
        builder.add(a_route(), a_block(), "a", b"")
    event, _ = builder.take()
    assert event is not None
    assert read(encoded(event)).count == COUNT_MAX - SLACK + 1


def test_sections_of_routes_are_remembered_up_to_a_limit() -> None:
    builder: EventBuilder[str] = EventBuilder()
    known = KnownRoutes()
    for number in range(3 * KNOWN_MAX):
        builder.add(a_route(f"key{number}"), a_block(), "a", b"")
        event, _ = builder.take()
        assert event is not None
        assert PublishEvent.read(encoded(event), known).route(0) == a_route(f"key{number}")
    assert len(builder._sections) <= KNOWN_MAX
    assert len(known._known) <= KNOWN_MAX


# What it keeps in memory.


def test_a_small_part_of_a_large_buffer_is_copied_to_be_alone() -> None:
    data = encoded(build(MIXED))
    buffer = b"." * 10_000 + data
    event = read(memoryview(buffer)[10_000:])
    assert event.memory >= len(buffer)
    alone = event.alone()
    looks_like(alone, MIXED)
    assert len(data) <= alone.memory < 4_000
    assert read(data).alone().contents is not None
    whole = read(data)
    assert whole.alone() is whole


KINDS = [
    [Sent(a_route(), a_block(), b"x")],
    [Sent(a_route(), a_block(delivery_mode=2), b"." * 1000)] * 50,
    [Sent(a_route(), a_block(message_id=f"{n:036d}"), b"." * n) for n in range(200)],
    [Sent(a_route(f"key{n}", n), a_block(), b"." * 20) for n in range(1, 300)],
]


@pytest.mark.parametrize("sent", KINDS, ids=["one", "alike", "ids", "routes"])
def test_the_memory_of_an_event_is_what_it_takes(sent: list[Sent]) -> None:
    data = encoded(build(sent))
    tracemalloc.start()
    events = [PublishEvent.read(bytes(bytearray(data)), KnownRoutes()) for _ in range(20)]
    for event in events:
        ask_everything(event)
    taken = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    counted = sum(event.memory for event in events)
    assert 0.8 * taken <= counted <= 1.25 * taken + 20 * 2_000


def test_the_memory_of_an_event_does_not_change_when_it_is_read() -> None:
    for event in (build(EACH * 100), read(encoded(build(EACH * 100)))):
        before = event.memory
        assert before > event.size + 8 * event.count
        ask_everything(event)
        assert event.memory == before


# Remnants.


@given(any_messages, st.data())
def test_a_remnant_has_the_live_messages_under_their_offsets(sent: list[Sent], data: st.DataObject) -> None:
    live = data.draw(st.sets(st.integers(0, len(sent) - 1)))
    event = build(sent)
    contents = b"".join(event.content_buffers())
    remnant = cut(PublishEvent.of_head(event.head, known), ranges_of(live))
    if not live:
        assert remnant is None
        return
    assert remnant is not None
    assert all(one[1] < two[0] for one, two in pairwise(remnant.ranges))
    rest = b"".join(contents[start:end] for start, end in remnant.ranges)
    left = PublishEvent.of_record(remnant.head, rest, known)
    looks_like(left, sent, sorted(live))
    for dead in {*range(-1, len(sent) + 1)} - live:
        assert dead not in left
        with pytest.raises(ValueError, match="not in what is left"):
            left.body(dead)
    again = data.draw(st.sets(st.integers(0, len(sent) - 1)))
    second = cut(left, ranges_of(again))
    if second is None:
        assert not live & again
    else:
        last = b"".join(rest[start:end] for start, end in second.ranges)
        looks_like(PublishEvent.of_record(second.head, last, known), sent, sorted(live & again))


def test_a_range_across_what_is_gone_is_refused() -> None:
    remnant = cut(build(MIXED), [(0, 1), (3, 4)])
    assert remnant is not None
    left = PublishEvent.of_head(remnant.head, known)
    for first, stop in ((0, 4), (0, 2), (2, 4), (4, 5)):
        with pytest.raises(ValueError, match="not in what is left"):
            left.lengths(first, stop)


# Bodies outside the event.


def outside_event() -> PublishEvent:
    digests = [bytes((number,)) * 32 for number in (1, 2)]
    table = make_table([a_route()])
    outside = Outside((7, 2**63 - 1), ("a", "broker b"))
    return assemble(table, write_routes(table), None, [a_block()], None, 5_000_000, digests, outside)


def test_of_bodies_outside_the_event_digests_and_holders_are_there() -> None:
    event = outside_event()
    for found in (event, read(encoded(event))):
        assert [found.digest(at) for at in (0, 1)] == [b"\1" * 32, b"\2" * 32]
        assert found.bytes_of(0, 2) == 10_000_000
        assert found.columns.outside is not None
        assert ([*found.columns.outside.numbers], found.columns.outside.holders) == ([7, 2**63 - 1], ("a", "broker b"))
        with pytest.raises(ValueError, match="not here"):
            found.bodies(0, 1)
    remnant = cut(event, [(1, 2)])
    assert remnant is not None
    contents = b"".join(event.content_buffers())
    rest = b"".join(contents[start:end] for start, end in remnant.ranges)
    left = PublishEvent.of_record(remnant.head, rest, known)
    assert left.digest(1) == b"\2" * 32
    assert left.offer_numbers(left.ranges) == [2**63 - 1]


def test_a_large_body_takes_its_place_in_the_frames_of_its_message() -> None:
    body = b"." * 5_000
    event = large_event(a_route(), a_block(), b"d" * 32, len(body), 1, ["a"])
    filled = read(encoded(event)).filled(0, body)
    assert (filled.header(0), filled.body(0), filled.route(0)) == (event.header(0), body, a_route())
    with pytest.raises(ValueError, match="4999 bytes"):
        event.filled(0, body[:-1])


# Bytes that anybody may have written.


def read_altered(data: Buffer) -> None:
    try:
        event = read(bytes(data))
    except MalformedEvent:
        return
    assert ask_everything(event) <= len(data)


@pytest.mark.fuzz
@settings(max_examples=300)
@given(st.sampled_from(EVENTS).flatmap(lambda event: altered(encoded(event))))
def test_fuzz_altered_bytes_are_an_event_or_malformed(data: bytes) -> None:
    read_altered(data)


@pytest.mark.fuzz
@given(st.sampled_from(EVENTS), st.lists(st.tuples(st.integers(0, 400), st.integers(0, 255)), max_size=8))
def test_fuzz_many_altered_bytes_are_an_event_or_malformed(event: PublishEvent, changes: list[tuple[int, int]]) -> None:
    data = bytearray(encoded(event))
    for at, value in changes:
        data[at % len(data)] = value
    read_altered(data)


@pytest.mark.fuzz
@given(st.binary(max_size=200))
def test_fuzz_any_bytes_are_an_event_or_malformed(data: bytes) -> None:
    read_altered(data)
    read_altered(encoded(EVENTS[0])[:1] + data)


def test_no_flipped_bit_raises_anything_else() -> None:
    remnant = cut(build(MIXED), [(0, 1), (3, 4)])
    assert remnant is not None
    heads = [(bytes(event.head), event.columns.content_bytes) for event in EVENTS]
    heads.append((bytes(outside_event().head), outside_event().columns.content_bytes))
    heads.append((remnant.head, PublishEvent.of_head(remnant.head, known).columns.content_bytes))
    for head, size in heads:
        for bit in range(8 * len(head)):
            data = bytearray(head)
            data[bit // 8] ^= 1 << bit % 8
            try:
                event = PublishEvent.of_record(data, bytes(size), KnownRoutes())
            except MalformedEvent:
                continue
            ask_everything(event)


def test_every_truncated_event_is_malformed() -> None:
    for event in [*EVENTS, outside_event()]:
        data = encoded(event)
        for size in range(len(data)):
            with pytest.raises(MalformedEvent):
                read(data[:size])
        with pytest.raises(MalformedEvent):
            read(data + b"\0")
        with pytest.raises(MalformedEvent):
            PublishEvent.of_head(bytes(event.head) + b"\0", known)


@pytest.mark.parametrize("value", [0, 2, 255, 2**16, 2**31, 2**32 - 1])
@pytest.mark.parametrize("at", range(4, FIXED.size, 4))
def test_extreme_numbers_in_the_fixed_part_are_survived(at: int, value: int) -> None:
    for event in EVENTS:
        data = bytearray(encoded(event))
        data[at : at + 4] = struct.pack("<I", value)
        read_altered(data)


def test_a_few_bytes_cannot_claim_any_number_of_messages() -> None:
    event = build([Sent(a_route(), a_block(), b"")] * 3)
    for count in (COUNT_MAX + 1, 2**32 - 1):
        columns = event.columns._replace(messages=count)
        head = write_head(columns, write_routes(columns.routes))
        with pytest.raises(MalformedEvent, match="messages"):
            PublishEvent.of_record(head, event.parts[0], known)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"route_of": [0, 1, 2, 0]}, "number 2 in a column"),
        ({"block_of": [0, 9, 0, 0]}, "number 9 in a column"),
        ({"route_of": None}, "no column that tells which"),
        ({"block_of": None}, "no column that tells which"),
        ({"own_blocks": True}, "no column that tells which"),
        ({"lengths": [3, 6, 0, 5]}, "lengths of 14 bytes"),
        ({"lengths": 2**32 - 1}, "lengths of"),
        ({"body_bytes": 2**64 - 1}, "lengths of 13 bytes"),
        ({"flags": 4}, "unknown flags"),
        ({"flags": [1, 128]}, "unknown flags"),
        ({"sizes": [1, 100]}, "property blocks of"),
        ({"sizes": 0}, "property blocks of"),
        ({"block_bytes": 1}, "property blocks of"),
        ({"outside": Outside([1, 2, 3, 4], ())}, "contents of"),
        ({"outside": Outside([1, 2, 3, 2**63], ())}, "beyond 2\\^63"),
        ({"outside": Outside([1], ())}, "too early"),
        ({"messages": 5}, "number 3 in a column"),
    ],
)
def test_columns_that_do_not_fit_together_are_malformed(change: dict[str, Any], says: str) -> None:
    event = build(MIXED)
    columns = event.columns._replace(**change)
    head = write_head(columns, write_routes(columns.routes))
    with pytest.raises(MalformedEvent, match=says):
        PublishEvent.of_record(head, b"".join(event.content_buffers()), known)


@pytest.mark.parametrize("least", [0, 1])
def test_a_block_without_property_flags_is_malformed(least: int) -> None:
    event = build(MIXED)
    total = event.columns.block_bytes
    columns = event.columns._replace(sizes=[least, total - least])
    with pytest.raises(MalformedEvent, match="property blocks"):
        PublishEvent.of_head(write_head(columns, write_routes(columns.routes)), known)


@pytest.mark.parametrize("kept", [[(0, 2), (2, 4)], [(2, 4), (0, 2)], [(0, 5)], [(0, 0), (1, 5)], [(0, 3), (2, 3)]])
def test_ranges_that_do_not_rise_or_add_up_are_malformed(kept: list[tuple[int, int]]) -> None:
    event = build(MIXED)
    head = write_head(event.columns._replace(kept=kept_ranges(kept)), write_routes(event.columns.routes))
    with pytest.raises(MalformedEvent, match="does not rise"):
        PublishEvent.of_head(head, known)


def test_offsets_beyond_two_to_the_32_cannot_be_kept() -> None:
    event = build(MIXED)
    kept = kept_ranges([(2**32 - 5, 2**32 - 1)])
    head = write_head(event.columns._replace(kept=kept), write_routes(event.columns.routes))
    with pytest.raises(MalformedEvent, match="does not rise"):
        PublishEvent.of_head(head, known)


# Routes.


@pytest.mark.parametrize(
    "wrong",
    [
        Route(b"", False, (1,)),
        Route(b"\x01", False, (1,)),
        Route(b"\x00", False, (1,)),
        Route(b"\x01a\x02b", False, (1,)),
        Route(b"\x01a\x01bc", False, (1,)),
        Route(b"\xff", False, (1,)),
        Route(b"\x00\x00", False, (1, 1)),
        Route(b"\x00\x00", False, (2**63,)),
    ],
)
def test_routes_that_no_client_can_have_are_malformed(wrong: Route) -> None:
    section = write_routes(make_table([wrong]))
    with pytest.raises(MalformedEvent):
        read_routes(section, 1)


def test_every_altered_section_of_routes_is_read_or_malformed() -> None:
    table = make_table([a_route("a", 1, 2), a_route("b", 3, mandatory=True), a_route("c", 1, 2)])
    section = write_routes(table)
    assert [read_routes(section, 3)[at] for at in range(3)] == [table[at] for at in range(3)]
    for at in range(len(section)):
        for value in (0, 1, 2, 3, 127, 128, 255):
            data = bytearray(section)
            data[at] = value
            try:
                found = read_routes(bytes(data), 3)
            except MalformedEvent:
                continue
            assert [found[number].queues for number in range(3)]
    for size in range(len(section)):
        with pytest.raises(MalformedEvent):
            read_routes(section[:size], 3)


def test_a_section_that_is_known_must_have_as_many_routes_as_announced() -> None:
    book = KnownRoutes()
    event = build([MIXED[0]] * 4)
    PublishEvent.of_head(event.head, book)
    head = bytearray(event.head)
    struct.pack_into("<I", head, 8, 2)
    with pytest.raises(MalformedEvent, match="announced"):
        PublishEvent.of_head(head, book)
    assert head[0] == layout.VERSION


def test_ranges_are_told_in_order() -> None:
    sent = [Sent(a_route("a", 1), a_block(), b""), Sent(a_route("b", 2), a_block(), b"")] * 3
    assert {queue: flat(ranges) for queue, ranges in read(encoded(build(sent))).by_queue().items()} == {
        1: [0, 2, 4],
        2: [1, 3, 5],
    }
