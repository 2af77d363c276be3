"""FRAG, as scripts of messages: what docs/protocols/fragment.md says, one test for each thing."""

from __future__ import annotations

import pytest
from harness import A, B, C, Net, Script, multicast, unit
from hypothesis import given
from hypothesis import strategies as st

from coterie.group import bundle
from coterie.group.events import StreamEnded, StreamOpened
from coterie.group.members import Address
from coterie.group.packet import APP, MCAST, TRAIN, TRAIN_END, TRAIN_START, UCAST, Packet
from coterie.group.protocols.flow import Flow, FlowSettings, Taken
from coterie.group.protocols.fragment import Fragment, FragmentSettings
from coterie.group.protocols.nakack import Nakack, NakackSettings
from coterie.group.protocols.unicast3 import Unicast3

SIZE = 100


def script(local: Address = A, **settings: int) -> Script:
    s = Script(
        Nakack(), Unicast3(), Flow(FlowSettings(window=1000)),
        Fragment(FragmentSettings(**{"size": SIZE} | settings)), local=local,
    )  # fmt: skip
    for other in (A, B, C):
        if other != local:
            s.stack.find(Nakack).open(other, 1)
    s.floor.out.clear()
    return s


def send(s: Script, body: bytes, dest: Address | None = None) -> None:
    s.roof.pass_down(Packet(body, dest, APP, MCAST if dest is None else UCAST))


def train(sender: Address, first: int, body: bytes, conn: int = 0, size: int = SIZE) -> list[Packet]:
    """A train as it comes from the network, its parts numbered from `first` on."""
    parts = []
    for at in range(0, len(body), size):
        flags = TRAIN | (0 if at else TRAIN_START) | (TRAIN_END if at + size >= len(body) else 0)
        part = Packet(body[at : at + size], A if conn else None, APP, UCAST if conn else MCAST, flags)
        part.sender, part.seqno, part.conn = sender, first + at // size, conn
        if conn and part.seqno == 1:
            part.flags |= 1
        parts.append(part)
    return parts


def bodies(s: Script) -> list[bytes]:
    return [bytes(p.body) for p in s.arrived()]


TEXT = bytes(range(250))


# Cutting.


def test_a_bundle_that_fits_is_left_alone() -> None:
    s = script()
    send(s, bytes(SIZE))
    (packet,) = s.packets()
    assert (len(packet.body), packet.flags & TRAIN) == (SIZE, 0)
    assert "frag.train" not in s.stack.rules


def test_a_larger_bundle_goes_out_as_a_train_of_numbered_parts() -> None:
    s = script()
    send(s, TEXT)
    parts = s.packets()
    assert [len(p.body) for p in parts] == [100, 100, 50]
    assert [p.seqno for p in parts] == [1, 2, 3]
    assert [p.flags & (TRAIN | TRAIN_START | TRAIN_END) for p in parts] == [
        TRAIN | TRAIN_START, TRAIN, TRAIN | TRAIN_END
    ]  # fmt: skip
    assert b"".join(p.body for p in parts) == TEXT
    assert s.stack.rules["frag.train"] == 1


def test_a_bundle_that_fills_its_parts_exactly_has_no_empty_last_part() -> None:
    s = script()
    send(s, bytes(2 * SIZE))
    assert [(len(p.body), bool(p.flags & TRAIN_END)) for p in s.packets()] == [(SIZE, False), (SIZE, True)]


def test_a_train_to_one_member_goes_to_that_member_on_one_connection() -> None:
    s = script()
    send(s, TEXT, B)
    parts = s.packets()
    assert {(p.dest, p.conn) for p in parts} == {(B, parts[0].conn)}
    assert [p.seqno for p in parts] == [1, 2, 3]


def test_other_protocols_messages_are_never_cut() -> None:
    s = script()
    s.roof.pass_down(Packet(bytes(5 * SIZE), None, 99, MCAST))
    assert [len(p.body) for p in s.packets()] == [5 * SIZE]


def test_each_part_of_a_train_is_paid_for_so_a_large_message_does_not_overshoot_the_window() -> None:
    s = script()
    send(s, bytes(5000))
    assert [p.seqno for p in s.packets()] == list(range(1, 11))  # a window of 1000 bytes
    assert s.stack.held()["FLOW.waiting"] == 40


# Putting together.


@pytest.mark.parametrize("conn", [0, 7])
def test_a_train_is_delivered_whole_with_its_last_part(conn: int) -> None:
    s = script()
    first, second, last = train(B, 1, TEXT, conn)
    s.up(first, second)
    assert s.arrived() == []
    assert s.stack.held()["FRAG.trains"] == 1
    s.up(last)
    (whole,) = s.arrived()
    assert bytes(whole.body) == TEXT
    assert (whole.sender, whole.seqno, whole.conn, whole.carrier) == (B, 3, conn, UCAST if conn else MCAST)
    assert [p.seqno for p in whole.parts] == [1, 2, 3]
    assert s.stack.held()["FRAG.trains"] == 0
    assert s.stack.rules["frag.joined"] == 1


def test_a_train_keeps_its_place_among_the_other_bundles_of_its_stream() -> None:
    s = script()
    s.up(multicast(B, 1, b"before"), *train(B, 2, TEXT), multicast(B, 5, b"after"))
    assert bodies(s) == [bundle.join([b"before"]), TEXT, bundle.join([b"after"])]


def test_trains_of_different_streams_may_be_under_way_at_once() -> None:
    s = script()
    one, other, third = train(B, 1, TEXT), train(C, 1, TEXT[::-1]), train(B, 1, TEXT * 2, conn=7)
    for packets in zip(one, other, third, strict=False):
        s.up(*packets)
    s.up(*third[3:])
    assert bodies(s) == [TEXT, TEXT[::-1], TEXT * 2]


def test_the_parts_of_a_train_count_as_taken_when_they_come_and_the_last_with_the_message() -> None:
    s = script()
    parts = train(B, 1, bytes(range(250)) * 2)  # five parts; credit is reported for every 250 bytes
    s.up(*parts[:4])
    assert s.sent(Taken) == [(B, Taken(0, 3))]
    s.up(parts[4])
    (whole,) = s.arrived()
    assert s.sent(Taken) == []
    s.stack.find(Flow).taken(whole)
    s.up(multicast(B, 6, bytes(60)))
    for packet in s.arrived():
        s.stack.find(Flow).taken(packet)
    assert s.sent(Taken) == [(B, Taken(0, 6))]


def test_a_message_of_many_windows_arrives() -> None:
    group = Net(*(script(local) for local in (A, B, C)))
    a = group.members[A]
    send(a, TEXT * 40)
    send(a, TEXT * 20, B)
    got: dict[Address, list[bytes]] = {A: [], B: [], C: []}
    for _ in range(60):
        group.run(0.02)
        for local, member in group.members.items():
            for packet in member.arrived():
                got[local].append(bytes(packet.body))
                member.stack.find(Flow).taken(packet)
    assert got[A] == got[C] == [TEXT * 40]
    assert sorted(got[B], key=len) == [TEXT * 20, TEXT * 40]


# Trains that cannot be completed.


def test_a_train_is_dropped_when_its_stream_opens_anew_elsewhere() -> None:
    s = script()
    s.up(*train(B, 1, TEXT)[:2])
    s.event(StreamOpened(B, 9))
    assert s.stack.held()["FRAG.trains"] == 0
    assert s.stack.rules["frag.dropped"] == s.stack.find(Fragment).stats["dropped"] == 1
    s.stack.find(Nakack).open(B, 9)
    s.up(*train(B, 9, TEXT[::-1]))
    assert bodies(s) == [TEXT[::-1]]


def test_a_multicast_stream_that_opens_anew_does_not_hurt_a_train_on_a_connection() -> None:
    s = script()
    parts = train(B, 1, TEXT, conn=7)
    s.up(*parts[:2])
    s.event(StreamOpened(B, 9))
    s.up(parts[2])
    assert bodies(s) == [TEXT]


@pytest.mark.parametrize(("carrier", "conn"), [(MCAST, 0), (UCAST, 7)])
def test_a_train_is_dropped_when_its_stream_ends(carrier: int, conn: int) -> None:
    s = script()
    s.up(*train(B, 1, TEXT, conn)[:2])
    s.event(StreamEnded(B, carrier, conn + 1))
    s.event(StreamEnded(C, carrier, conn))
    assert s.stack.find(Fragment).stats.get("dropped", 0) == 0
    s.event(StreamEnded(B, carrier, conn))
    assert s.stack.find(Fragment).stats["dropped"] == 1


def test_a_train_of_a_departed_member_holds_nothing_back_and_is_completed_if_the_rest_comes() -> None:
    s = script()
    parts = train(B, 1, TEXT)
    s.up(*parts[:2])
    s.view(A, C)
    assert s.stack.held()["FRAG.trains"] == 0
    s.up(parts[2])
    assert bodies(s) == [TEXT]


def test_a_train_whose_stream_has_ended_is_dropped() -> None:
    s = script()
    s.up(*train(B, 1, TEXT)[:2])
    s.view(A, Address("b", 2), C)  # the others may still have the rest of it
    assert "dropped" not in s.stack.find(Fragment).stats
    s.run(NakackSettings().keep_departed + 1)
    assert s.stack.find(Fragment).stats["dropped"] == 1


def test_a_train_whose_start_we_were_not_sent_is_not_delivered() -> None:
    s = script()
    s.stack.find(Nakack).open(B, 2)
    _, *rest = train(B, 1, TEXT)
    s.up(*rest, multicast(B, 4, b"next"))
    assert bodies(s) == [bundle.join([b"next"])]
    assert s.stack.held()["FRAG.trains"] == 0
    assert s.stack.find(Fragment).stats["without_start"] == 2


def test_a_train_that_broke_off_is_not_mixed_with_the_next_one() -> None:
    s = script()
    broken = train(B, 1, TEXT)[:2]
    s.up(*broken, *train(B, 3, TEXT[::-1]))
    assert bodies(s) == [TEXT[::-1]]


def test_parts_of_a_train_that_is_not_delivered_are_credited_all_the_same() -> None:
    s = script()
    s.stack.find(Nakack).open(B, 2)
    _, *rest = train(B, 1, TEXT * 2)
    s.up(*rest)
    assert s.sent(Taken)[-1] == (B, Taken(0, 4))


def test_a_train_that_grows_too_large_is_dropped_whole_and_the_stream_goes_on() -> None:
    s = script(message_max=1024)
    s.up(*train(B, 1, bytes(3000)), multicast(B, 31, b"next"))
    assert bodies(s) == [bundle.join([b"next"])]
    assert s.stack.find(Fragment).stats["too_large"] == 1
    assert s.stack.rules["frag.dropped"] == 1
    assert s.stack.held()["FRAG.trains"] == 0


@pytest.mark.parametrize("size", [100, 1024, 1025, 1028, 1030, 1031])
def test_the_largest_message_that_may_be_sent_is_taken_whatever_the_size_of_parts(size: int) -> None:
    body = bundle.join([bytes(1024)])
    s = script(message_max=1024)
    s.up(*train(B, 1, body, size=size))
    assert bodies(s) == [body]


def test_units_that_are_no_trains_pass() -> None:
    s = script()
    one = unit(B, 7, 1, first=True)
    s.up(one)
    assert s.arrived() == [one]


# At random.


@given(st.lists(st.tuples(st.booleans(), st.binary(max_size=700)), max_size=12), st.integers(16, 300))
def test_whatever_is_sent_arrives_whole_and_in_order(messages: list[tuple[bool, bytes]], size: int) -> None:
    s = script(size=size)
    flow = s.stack.find(Flow)
    got: dict[int, list[bytes]] = {MCAST: [], UCAST: []}
    for to_self, body in messages:
        send(s, body, A if to_self else None)
    for _ in range(1000):
        s.hear(B, Flow, Taken(0, 2**40))
        s.hear(C, Flow, Taken(0, 2**40))
        units, s.floor.out = [p for p in s.floor.out if p.carrier == UCAST], []
        s.up(*units)
        for packet in s.arrived():
            got[packet.carrier].append(bytes(packet.body))
            flow.taken(packet)
        if not units and not any(s.stack.held()[name] for name in ("FLOW.waiting", "FRAG.trains")):
            break
    assert got[UCAST] == [body for to_self, body in messages if to_self]
    assert got[MCAST] == [body for to_self, body in messages if not to_self]
