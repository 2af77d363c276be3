"""TOTAL as scripts of messages: what docs/protocols/total.md says, one test for each thing."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterable

import pytest
from harness import A, B, C, Net, Script, multicast, unit
from hypothesis import given
from hypothesis import strategies as st

from coterie.audit import check
from coterie.audit.g6 import VirtualSynchrony
from coterie.audit.g9 import TotalOrder
from coterie.audit.g10 import Held as HeldByThose
from coterie.errors import UserError
from coterie.group.channel import Channel, Delivery, Receiver
from coterie.group.events import Held, OrderEnds, ViewChange, ViewEnding
from coterie.group.members import Address, View, ViewId
from coterie.group.packet import APP, MCAST, RAW, TRAIN, TRAIN_END, TRAIN_START, Packet
from coterie.group.presets import REGISTRY, preset
from coterie.group.protocol import Protocol
from coterie.group.protocols.fragment import Fragment
from coterie.group.protocols.nakack import Nakack, NakackSettings
from coterie.group.protocols.total import Record, Total, TotalSettings
from coterie.group.protocols.total_held import Report
from coterie.group.stack import Layer, build
from coterie.sim.clock import World
from coterie.sim.network import Fabric
from coterie.sim.node import Node
from coterie.trace import Event as TraceEvent

D, E = Address("d", 1), Address("e", 1)
VIEW = View(ViewId(7, A), (A, B, C))
"""A is the sequencer."""
WITHOUT_A = View(ViewId(8, B), (B, C))
EVERY = 0.1
"""Seconds between reports."""


def member(local: Address = B, view: View = VIEW, *above: Protocol, **values: str) -> Script:
    """TOTAL alone: a test says in which order NAKACK would have delivered what."""
    return begun(Script(Total(TotalSettings(report_interval=EVERY, **values)), *above, local=local), view)


def sequencer(local: Address = A, view: View = VIEW, **values: str) -> Script:
    """TOTAL over NAKACK, which numbers what is sent and brings it back to its sender."""
    nakack = Nakack(NakackSettings(highest_interval=0.03))
    s = Script(nakack, Total(TotalSettings(report_interval=EVERY, **values)), local=local)
    for other in view.members:
        if other != local:
            nakack.open(other, 1)
    return begun(s, view)


def begun(s: Script, view: View) -> Script:
    install(s, view)
    s.floor.out.clear()
    s.roof.log.clear()
    s.stack.rules.clear()
    s.traced.clear()
    return s


def install(s: Script, view: View) -> None:
    s.stack.view = view
    s.stack.below(s.roof).down_event(ViewChange(view))
    s.event(ViewChange(view))


def record(sender: Address, seqno: int, *ranges: tuple[int, int, int]) -> Packet:
    packet = Packet(Total.codec.encode(Record(ranges)), None, Total.id, MCAST)
    packet.sender, packet.seqno = sender, seqno
    return packet


def report(sender: Address, position: int, ask: bool = False, view: View = VIEW) -> Packet:
    packet = Packet(Total.codec.encode(Report(position, ask)), None, Total.id, RAW)
    packet.sender, packet.view = sender, view.tag
    return packet


def bundles(sender: Address, first: int, last: int) -> list[Packet]:
    return [multicast(sender, n) for n in range(first, last + 1)]


def name(packet: Packet) -> str:
    return f"{packet.pos}:{packet.sender.name}{packet.seqno}"


def taken(s: Script) -> str:
    """What was delivered since the last look, as `position:sender number`."""
    return " ".join(map(name, s.arrived()))


def total(s: Script) -> Total:
    return s.stack.find(Total)


def records(s: Script) -> list[tuple[tuple[int, int, int], ...]]:
    return [message.ranges for _, message in s.sent(Record)]


def held(s: Script) -> list[tuple[int, bool]]:
    return [(event.position, event.everyone) for event in s.events(Held) if isinstance(event, Held)]


# The order.


def test_a_bundle_of_the_sequencer_has_the_place_at_which_it_stands_in_its_stream() -> None:
    s = member(B)
    s.up(multicast(A, 1), record(A, 2, (1, 1, 1)), multicast(A, 3))
    assert taken(s) == "1:a1"
    s.up(multicast(B, 1))
    assert taken(s) == "2:b1 3:a3"
    assert s.stack.rules["total.own_bundle"] == 2


def test_a_bundle_of_another_member_waits_for_its_record() -> None:
    s = member(B)
    s.up(multicast(C, 1))
    assert taken(s) == ""
    assert s.stack.rules["total.waits_for_record"] == 1
    s.up(record(A, 1, (2, 1, 1)))
    assert taken(s) == "1:c1"


def test_a_member_delivers_its_own_bundles_at_their_places_too() -> None:
    s = member(C)
    s.up(multicast(C, 1))
    s.up(multicast(B, 1))
    s.up(record(A, 1, (1, 1, 1), (2, 1, 1)))
    assert taken(s) == "1:b1 2:c1"


def test_a_member_that_gives_out_no_places_gets_its_own_bundles_with_their_record() -> None:
    s = sequencer(local=B)
    s.send("one")
    s.run(0.01)
    assert "total.waits_for_record" not in s.stack.rules  # it has not come up yet
    s.up(record(A, 1, (1, 1, 1)))
    assert taken(s) == "1:b1"


def test_a_member_that_gives_out_the_places_from_now_on_gets_what_it_has_sent_before() -> None:
    s = sequencer(local=B)
    s.send("one")
    install(s, WITHOUT_A)
    s.run(0)
    assert taken(s) == "1:b1"


def test_a_record_orders_ranges() -> None:
    s = member(B)
    s.up(*bundles(B, 4, 6), *bundles(C, 9, 12))
    s.up(record(A, 1, (2, 9, 10), (1, 4, 6), (2, 11, 12)))
    assert taken(s) == "1:c9 2:c10 3:b4 4:b5 5:b6 6:c11 7:c12"


def test_a_place_whose_bundle_is_not_here_holds_up_all_that_is_behind_it() -> None:
    s = member(B)
    s.up(multicast(B, 1), record(A, 1, (2, 1, 2), (1, 1, 1)), multicast(A, 2), multicast(C, 1))
    assert taken(s) == "1:c1"
    assert s.stack.rules["total.waits_for_content"] == 1
    s.up(multicast(C, 2), multicast(C, 3))
    assert taken(s) == "2:c2 3:b1 4:a2"
    s.up(record(A, 3, (2, 3, 3)))
    assert taken(s) == "5:c3"


def test_what_is_not_an_application_multicast_passes_at_once() -> None:
    s = member(B)
    other = Packet(b"flush", None, 99, MCAST)
    other.sender, other.seqno = C, 2
    s.up(multicast(C, 1), unit(C, 5, 1, dest=B), other, unit(A, 5, 1, dest=B))
    passed = s.arrived()
    assert [(p.sender, p.carrier, p.pos) for p in passed] == [(C, 2, 0), (C, 1, 0), (A, 2, 0)]


def test_each_ordered_bundle_is_traced_with_its_place_as_soon_as_place_and_content_are_known() -> None:
    s = member(B)
    s.up(record(A, 1, (2, 1, 1)), multicast(A, 2))
    assert [e for e in s.traced if e.kind == "ordered"] == []
    s.up(multicast(C, 1))
    events = [(e.view, e.pos, e.sender, e.first) for e in s.traced if e.kind == "ordered"]
    assert events == [(str(VIEW.id), 1, "c#1", 1), (str(VIEW.id), 2, "a#1", 2)]


def test_a_train_has_the_position_of_its_last_part() -> None:
    s = member(B, VIEW, Fragment())
    parts = bundles(C, 1, 2)
    parts[0].flags, parts[1].flags = TRAIN | TRAIN_START, TRAIN | TRAIN_END
    s.up(*parts, record(A, 1, (2, 1, 1)), multicast(A, 2), record(A, 3, (2, 2, 2)))
    assert taken(s) == "2:a2 3:c2"


# The sequencer.


def test_the_sequencer_orders_all_that_came_in_a_turn_with_one_record() -> None:
    s = sequencer()
    s.floor.pass_up(bundles(B, 1, 3))
    s.floor.pass_up([*bundles(C, 1, 2), multicast(B, 4)])
    s.run(0)
    assert records(s) == [((1, 1, 4), (2, 1, 2))]
    assert taken(s) == "1:b1 2:b2 3:b3 4:b4 5:c1 6:c2"
    assert s.stack.rules["total.record"] == 1


def test_the_next_record_goes_on_where_the_last_one_ended() -> None:
    s = sequencer()
    s.up(*bundles(B, 1, 3))
    s.up(multicast(C, 1))
    s.up(multicast(B, 4))
    assert records(s) == [((1, 1, 3),), ((2, 1, 1),), ((1, 4, 4),)]


def test_a_record_that_is_due_goes_out_right_before_the_sequencers_own_bundle() -> None:
    s = sequencer()
    s.floor.pass_up([multicast(B, 1)])
    s.send("mine")
    assert [(p.proto, p.seqno) for p in s.floor.out] == [(Total.id, 1), (APP, 2)]  # this very turn
    s.run(0)
    assert taken(s) == "1:b1 2:a2"
    assert records(s) == [((1, 1, 1),)]  # and no second one at its end
    assert s.stack.rules["total.piggyback"] == 1


def test_a_bundle_is_recorded_once_even_if_its_record_has_not_come_back_yet() -> None:
    s = sequencer()
    for number in (1, 2):
        s.floor.pass_up([multicast(B, number)])
        s.send("mine")
    assert records(s) == [((1, 1, 1),), ((1, 2, 2),)]
    s.run(0)
    assert taken(s) == "1:b1 2:a2 3:b2 4:a4"


def test_unicasts_take_no_record_along() -> None:
    s = sequencer()
    s.floor.pass_up([multicast(B, 1)])
    s.send("to one", B)
    assert [p.carrier for p in s.floor.out] == [2]


def test_nothing_is_ordered_before_it_has_come_to_the_sequencer() -> None:
    s = sequencer()
    s.up(multicast(B, 2), multicast(C, 1))
    assert records(s) == [((2, 1, 1),)]
    s.up(multicast(B, 1))
    assert records(s) == [((1, 1, 2),)]


def test_only_the_sequencer_sends_records() -> None:
    s = sequencer(B)
    s.up(multicast(C, 1))
    s.send("mine")
    s.run(0)
    assert records(s) == []


def test_a_record_has_the_same_few_bytes_for_one_bundle_and_for_a_thousand() -> None:
    sizes = []
    for count in (1, 1000):
        s = sequencer()
        s.up(*bundles(B, 1, count))
        (packet,) = s.packets()
        sizes.append(len(packet.body))
    assert sizes[0] == sizes[1] < 40


def test_an_idle_group_orders_without_waiting_for_any_time_to_pass() -> None:
    net = Net(*(sequencer(local) for local in (A, B, C)))
    net.members[C].send("hello")
    net.members[C].run(0)
    net.carry()
    assert [taken(s) for s in net.members.values()] == ["1:c1"] * 3
    assert all(s.world.time == net.members[A].world.time for s in net.members.values())


@given(st.integers(0, 2**32))
def test_whatever_is_lost_on_the_way_everybody_delivers_the_same_order(seed: int) -> None:
    rng = random.Random(seed)
    net = Net(*(sequencer(local) for local in (A, B, C)))
    for _ in range(30):
        s = net.members[rng.choice((A, B, C))]
        s.send("x")
        if rng.random() < 0.5:
            net.run(rng.choice((0.0, 0.01)), lambda *_: rng.random() < 0.3)
    net.run(0.5, lambda *_: rng.random() < 0.3)
    net.run(2)
    orders = [s.arrived() for s in net.members.values()]
    assert [p.pos for p in orders[0]] == list(range(1, 31))
    assert {tuple(map(name, order)) for order in orders} == {tuple(map(name, orders[0]))}
    assert [s.stack.held()["TOTAL.unordered"] for s in net.members.values()] == [0, 0, 0]


# A flush.


def test_a_paused_sequencer_orders_nothing_and_orders_what_piled_up_when_it_goes_on() -> None:
    s = sequencer()
    s.floor.pass_up([multicast(B, 1)])  # its record is due at the end of the turn
    total(s).pause()
    total(s).pause()
    s.run(0)
    s.up(multicast(C, 1), multicast(B, 2))
    assert records(s) == []
    assert taken(s) == ""
    assert total(s).held()["unordered"] == 3
    total(s).go_on()
    total(s).go_on()
    s.run(0)
    assert records(s) == [((1, 1, 2), (2, 1, 1))]
    assert taken(s) == "1:b1 2:b2 3:c1"
    assert s.stack.rules["total.paused"] == s.stack.rules["total.resumed"] == 1


def test_a_bundle_that_the_sequencer_still_sends_while_it_is_paused_takes_no_record_along() -> None:
    s = sequencer()
    total(s).pause()
    s.up(multicast(B, 1))
    s.send("the end of a train")
    s.run(0)
    assert records(s) == []
    assert taken(s) == "1:a1"


def test_a_pause_at_another_member_does_not_keep_it_from_delivering_what_is_ordered() -> None:
    s = member(B)
    total(s).pause()
    s.up(multicast(C, 1), record(A, 1, (2, 1, 1)))
    assert taken(s) == "1:c1"


def test_a_sequencer_stays_paused_over_a_view_change_until_the_flush_ends() -> None:
    s = sequencer()
    total(s).pause()
    s.up(multicast(B, 1))
    install(s, View(ViewId(8, A), (A, B)))
    assert taken(s) == "1:b1"
    s.up(multicast(B, 2))
    assert records(s) == []
    total(s).go_on()
    s.run(0)
    assert records(s) == [((1, 2, 2),)]


# The end of a view.


def log(s: Script) -> list[str]:
    """Deliveries and views as the layer above saw them."""
    told = [e for e in s.roof.log if not isinstance(e, Held)]
    return [
        name(e) if isinstance(e, Packet) else "end" if isinstance(e, OrderEnds) else str(e.view.id)  # type: ignore[attr-defined]
        for e in told
    ]


def test_what_has_no_place_when_the_view_ends_is_delivered_before_the_next_by_rank_and_number() -> None:
    s = member(B)
    s.up(multicast(A, 1), *bundles(C, 5, 6), *bundles(B, 2, 3))
    install(s, WITHOUT_A)
    assert log(s) == ["1:a1", "end", "2:b2", "3:b3", "4:c5", "5:c6", str(WITHOUT_A.id)]
    assert s.stack.rules["total.view_change_leftover"] == 2
    assert total(s).held() == {"unordered": 0, "unsafe": 0}


def test_what_has_a_place_comes_first_and_a_place_whose_bundle_nobody_has_is_given_up() -> None:
    s = member(B)
    s.up(multicast(B, 1), multicast(C, 1))
    s.up(record(A, 1, (2, 1, 3), (1, 1, 1)), multicast(A, 2), multicast(B, 2))
    assert taken(s) == "1:c1"
    install(s, WITHOUT_A)
    assert taken(s) == "2:b1 3:a2 4:b2"
    assert s.stack.rules["total.skipped_missing"] == 1
    assert total(s).stats["skipped"] == 1


def test_positions_start_anew_in_each_view_and_its_coordinator_is_the_sequencer() -> None:
    s = member(C)
    s.up(multicast(A, 1), multicast(B, 1))
    install(s, WITHOUT_A)
    assert taken(s) == "1:a1 2:b1"
    s.up(multicast(C, 1), multicast(B, 2), record(B, 3, (1, 1, 1)))
    assert taken(s) == "1:b2 2:c1"
    assert s.stack.rules["total.sequencer_changed"] == 1


def test_a_new_sequencer_orders_from_the_first_bundle_of_its_view_on() -> None:
    s = sequencer(B)
    s.up(multicast(C, 1))
    assert records(s) == []
    install(s, WITHOUT_A)
    assert taken(s) == "1:c1"
    s.up(*bundles(C, 2, 3))
    assert records(s) == [((1, 2, 3),)]
    assert taken(s) == "1:c2 2:c3"


def test_a_record_that_was_due_in_the_old_view_is_not_sent_in_the_new_one() -> None:
    s = sequencer()
    s.floor.pass_up([multicast(B, 1)])
    install(s, View(ViewId(8, A), (A, B)))
    s.run(0)
    assert records(s) == []
    assert taken(s) == "1:b1"


def test_the_rest_of_a_view_is_delivered_when_it_ends_before_the_next_is_there_and_only_once() -> None:
    s = member(B)
    s.up(multicast(C, 1))
    s.event(ViewEnding(VIEW))
    assert taken(s) == "1:c1"
    assert [e.view for e in s.traced if e.kind == "ordered"] == [str(VIEW.id)]
    install(s, WITHOUT_A)
    assert taken(s) == ""


# The sequencer crashes. Whatever it got out before: those who go on together deliver the same. (NAKACK and the flush
# bring them to the same cut: each stream up to the last bundle that any of them has.)

STREAMS = {
    A: (multicast(A, 1), record(A, 2, (1, 1, 1)), multicast(A, 3), record(A, 4, (2, 1, 1), (1, 2, 2)), multicast(A, 5)),
    B: tuple(bundles(B, 1, 3)),
    C: tuple(bundles(C, 1, 2)),
}


def feed(s: Script, streams: dict[Address, Iterable[Packet]], rng: random.Random) -> None:
    """Each stream in its order, the streams interleaved at random, in batches of any size."""
    left = {sender: [p.copy(None) for p in packets] for sender, packets in streams.items() if packets}
    batch: list[Packet] = []
    while left:
        sender = rng.choice(list(left))
        batch.append(left[sender].pop(0))
        left = {sender: packets for sender, packets in left.items() if packets}
        if rng.random() < 0.5 or not left:
            s.up(*batch)
            batch = []


def go_together(
    streams: dict[Address, tuple[Packet, ...]], had: dict[Address, dict[Address, int]], seed: int, view: View = VIEW
) -> dict[str, int]:
    """Survivors have so much of each stream, are brought to the common cut, and go on. The rules that they reached."""
    rng = random.Random(seed)
    cut = {sender: max(have[sender] for have in had.values()) for sender in streams}
    sequences = []
    for local, have in had.items():
        s = member(local, view)
        feed(s, {sender: packets[: have[sender]] for sender, packets in streams.items()}, rng)
        feed(s, {sender: packets[have[sender] : cut[sender]] for sender, packets in streams.items()}, rng)
        install(s, View(ViewId(8, B), tuple(had)))
        sequences.append(s.arrived())
    assert [list(map(name, sequence)) for sequence in sequences] == [list(map(name, sequences[0]))] * len(had)
    assert [p.pos for p in sequences[0]] == list(range(1, len(sequences[0]) + 1))
    there = [p for sender, upto in cut.items() for p in streams[sender][:upto] if p.proto == APP]
    assert sorted(p.seqno for p in sequences[0]) == sorted(p.seqno for p in there)
    assert {(p.sender, p.seqno) for p in sequences[0]} == {(p.sender, p.seqno) for p in there}
    return s.stack.rules


def test_the_sequencer_may_crash_at_any_step_and_the_survivors_deliver_the_same() -> None:
    """Record at some only, content at some only, its own bundle at some only, ...: all of it."""
    of_a, of_b, of_c = (range(len(STREAMS[sender]) + 1) for sender in (A, B, C))
    for a_at_b, a_at_c, b_at_c, c_at_b in itertools.product(of_a, of_a, of_b, of_c):
        at_b = {A: a_at_b, B: len(STREAMS[B]), C: c_at_b}
        at_c = {A: a_at_c, B: b_at_c, C: len(STREAMS[C])}
        go_together(STREAMS, {B: at_b, C: at_c}, seed=a_at_b + a_at_c)


def test_survivors_agree_when_a_sender_crashes_together_with_the_sequencer() -> None:
    """Nobody may have what a record orders: here the bundles of C, of which B and D have only some."""
    view = View(VIEW.id, (A, C, B, D))
    streams = {A: STREAMS[A], C: tuple(bundles(C, 1, 3)), B: tuple(bundles(B, 1, 2))}
    skipped = 0
    for a_at_b, a_at_d, c_at_b, c_at_d in itertools.product(range(6), range(6), range(4), range(4)):
        had = {B: {A: a_at_b, C: c_at_b, B: 2}, D: {A: a_at_d, C: c_at_d, B: 1}}
        skipped += go_together(streams, had, a_at_b + a_at_d, view).get("total.skipped_missing", 0)
    assert skipped > 0


@given(st.data(), st.integers(0, 2**32))
def test_members_that_go_together_deliver_the_same_sequence_whatever_came_in_which_order(
    data: st.DataObject, seed: int
) -> None:
    rng = random.Random(seed)
    s = sequencer()
    streams: dict[Address, list[Packet]] = {A: [], B: [], C: []}
    for _ in range(rng.randint(1, 25)):  # a real sequencer makes a real stream
        sender = rng.choice((A, B, C))
        if sender == A:
            s.send("x")
        else:
            streams[sender].append(multicast(sender, len(streams[sender]) + 1))
            s.floor.pass_up(streams[sender][-1:])
        if rng.random() < 0.4:
            s.run(0)
    s.run(0)
    streams[A] = s.packets()
    at_sequencer = [name(p) for p in s.arrived()]

    def have(local: Address) -> dict[Address, int]:
        return {
            sender: len(packets) if sender == local else data.draw(st.integers(0, len(packets)))
            for sender, packets in streams.items()
        }

    go_together({sender: tuple(packets) for sender, packets in streams.items()}, {B: have(B), C: have(C)}, seed)
    whole = member(C)
    feed(whole, dict(streams), rng)
    assert [name(p) for p in whole.arrived()] == at_sequencer


# Who holds it.


def test_of_three_a_member_that_is_not_the_sequencer_knows_at_once_that_a_majority_holds_what_it_holds() -> None:
    s = member(B, held="majority")
    s.up(multicast(A, 1), multicast(C, 1), record(A, 2, (2, 1, 1)))
    assert held(s) == [(2, False)]
    assert s.stack.rules["total.held_majority"] == 1


def test_whoever_has_answered_a_flush_for_a_view_holds_no_more_than_it_said_until_no_view_comes_of_it() -> None:
    s = member(B, held="majority")
    s.up(multicast(A, 1))
    total(s).promise()
    s.up(multicast(A, 2), multicast(A, 3))
    assert held(s) == [(1, False)]
    assert s.stack.rules["total.promised"] == 1
    total(s).release()
    assert held(s) == [(3, False)]


def test_what_was_promised_in_a_view_does_not_bind_in_the_next() -> None:
    s = member(B, held="majority")
    total(s).promise()
    install(s, View(ViewId(8, A), (A, B, C)))
    s.up(multicast(A, 1))
    assert [position for position, _ in held(s)] == [1]


def test_the_sequencer_learns_from_reports_what_a_majority_holds() -> None:
    s = sequencer(held="majority")
    s.up(*bundles(B, 1, 3))
    assert held(s) == []
    s.up(report(C, 2))
    assert held(s) == [(2, False)]
    s.up(report(B, 3))
    assert held(s) == [(3, False)]


def test_of_five_it_takes_a_third_member() -> None:
    five = View(ViewId(7, A), (A, B, C, D, E))
    s = member(B, five, held="majority")
    s.up(*bundles(A, 1, 4))
    assert held(s) == []
    s.up(report(D, 3, view=five))
    assert held(s) == [(3, False)]
    s.up(report(E, 2, view=five))
    assert held(s) == []
    s = sequencer(A, five, held="majority")
    s.up(*bundles(B, 1, 4))
    s.up(report(B, 4, view=five))
    assert held(s) == []
    s.up(report(E, 1, view=five))
    assert held(s) == [(1, False)]


def test_that_everybody_holds_it_is_told_when_the_last_one_has_said_so() -> None:
    s = sequencer(held="all")
    s.up(*bundles(B, 1, 3))
    s.up(report(B, 3))
    assert held(s) == [(3, False)]
    s.up(report(C, 2))
    assert held(s) == [(2, True)]
    s.up(report(C, 3))
    assert held(s) == [(3, True)]
    assert s.stack.rules["total.held_all"] == 2


def test_a_member_alone_holds_it_with_everybody() -> None:
    s = sequencer(A, View(ViewId(7, A), (A,)), held="all")
    s.send("x")
    s.run(1)
    assert held(s) == [(1, False), (1, True)]
    assert s.sent(Report) == []


def test_it_is_told_after_the_bundle_was_delivered_and_never_beyond_what_is_here() -> None:
    s = member(B, held="all")
    s.up(report(C, 9))
    assert held(s) == []
    s.up(multicast(A, 1))
    assert [type(entry) for entry in s.roof.log] == [Packet, Held, Held]
    assert held(s) == [(1, False), (1, True)]


def test_the_trace_names_those_who_are_known_to_hold_it() -> None:
    s = sequencer(held="all")
    s.up(*bundles(B, 1, 2))
    s.up(report(C, 1))
    s.up(report(B, 2))
    events = [(e.pos, e.data["by"], e.data["members"]) for e in s.traced if e.kind == "held"]
    assert events == [
        (1, "majority", ["a#1", "c#1"]),
        (2, "majority", ["a#1", "b#1"]),
        (1, "all", ["a#1", "b#1", "c#1"]),
    ]


def test_where_everybody_matters_a_member_reports_what_it_holds_once_at_the_end_of_a_turn() -> None:
    s = member(B, held="all")
    s.floor.pass_up([multicast(A, 1)])
    s.floor.pass_up([multicast(A, 2), multicast(C, 1)])
    assert s.sent(Report) == []
    s.run(0)
    assert s.sent(Report) == [(None, Report(2, False))]


def test_a_member_that_a_majority_needs_reports_before_it_hands_up_what_it_holds() -> None:
    s = member(B, held="majority")
    said: list[object] = []
    s.roof.on_up = lambda: said.append(s.sent(Report))
    s.floor.pass_up([multicast(A, 1), multicast(A, 2), multicast(C, 1)])
    assert said == [[(A, Report(2, False))]]
    s.run(5 * EVERY)
    assert s.sent(Report) == []


def test_of_three_only_the_sequencer_is_told_unless_it_matters_what_everybody_holds() -> None:
    s = member(B, held="all")
    s.up(multicast(A, 1))
    s.run(0)
    assert s.sent(Report) == [(None, Report(1, False))]
    five = View(ViewId(7, A), (A, B, C, D, E))
    s = member(C, five, held="majority")
    s.up(multicast(A, 1))
    s.run(0)
    assert s.sent(Report) == [(None, Report(1, False))]


def test_a_member_that_no_majority_needs_reports_later_for_many_turns() -> None:
    s = member(C, held="majority")
    for number in (1, 2, 3):
        s.up(multicast(A, number))
        s.run(0)
    assert s.sent(Report) == []
    s.run(EVERY / 10)
    assert s.sent(Report) == [(A, Report(3, False))]
    assert s.stack.rules["total.reports_later"] == 1
    s.run(5 * EVERY)
    assert s.sent(Report) == []


def test_who_is_needed_and_who_is_told_follows_from_who_counts() -> None:
    s = member(C, held="majority")
    total(s).count_holders((A, C), 2)
    s.up(multicast(A, 1))
    s.run(0)
    assert s.sent(Report) == [(None, Report(1, False))]  # B does not count, and a majority is not near it
    s = member(C, held="majority")
    total(s).count_holders((B, C), 2)
    s.up(multicast(A, 1))
    s.run(0)
    assert s.sent(Report) == [(None, Report(1, False))]


def test_a_member_that_is_told_late_who_counts_asks_what_those_hold() -> None:
    s = member(B, held="majority")
    s.up(multicast(A, 1))
    s.run(5 * EVERY)
    assert s.sent(Report) == [(A, Report(1, False))]
    total(s).count_holders((B, C), 2)
    s.run(2 * EVERY)
    assert s.sent(Report)[0] == (None, Report(1, True))


def test_the_sequencer_does_not_report_what_everybody_who_holds_it_knows() -> None:
    s = sequencer(held="all")
    s.up(*bundles(B, 1, 2))
    s.up(report(B, 2), report(C, 2))
    s.run(5 * EVERY)
    assert s.sent(Report) == []


def test_a_member_that_does_not_learn_in_time_who_holds_it_asks_until_it_does() -> None:
    s = sequencer(held="all")
    s.up(multicast(B, 1))
    s.run(EVERY - 0.001)
    assert s.sent(Report) == []
    s.run(0.002)
    assert s.sent(Report) == [(None, Report(1, True))]
    s.up(report(B, 1))
    s.run(EVERY)
    assert s.sent(Report) == [(None, Report(1, True))]
    s.up(report(C, 1))
    s.run(5 * EVERY)
    assert s.sent(Report) == []
    assert s.stack.rules["total.asked"] == 2


def test_a_member_that_is_asked_reports_once_more_even_if_it_needs_no_reports_itself() -> None:
    s = member(B)
    s.up(multicast(A, 1))
    s.run(1)
    assert s.sent(Report) == []
    s.up(report(C, 1, ask=True))
    assert s.sent(Report) == [(None, Report(1, False))]
    assert s.stack.rules["total.answered"] == 1


def test_the_sequencer_answers_nobody_and_nobody_answers_a_stranger() -> None:
    s = sequencer(held="majority")
    s.up(multicast(B, 1), report(B, 0, ask=True))
    assert s.sent(Report) == []
    s = member(B)
    s.up(report(D, 0, ask=True))
    assert s.sent(Report) == []


def test_what_is_newer_than_an_interval_is_not_asked_for_yet() -> None:
    s = sequencer(held="majority")
    s.up(multicast(B, 1))
    s.up(report(B, 1), report(C, 1))
    s.run(EVERY - 0.001)
    s.up(multicast(B, 2))
    s.run(EVERY)
    assert s.sent(Report) == []
    s.run(0.002)
    assert s.sent(Report) == [(None, Report(2, True))]


def test_when_a_view_is_over_nobody_reports_or_asks_about_it_any_more() -> None:
    s = member(B, held="all")
    s.floor.pass_up([multicast(A, 1)])
    install(s, WITHOUT_A)
    s.run(5 * EVERY)
    assert s.sent(Report) == []
    assert "total.asked" not in s.stack.rules


@given(st.integers(0, 2**32))
def test_lost_reports_cost_nothing_but_time_and_a_group_at_rest_is_silent(seed: int) -> None:
    rng = random.Random(seed)
    net = Net(*(sequencer(local, held="all") for local in (A, B, C)))
    for local in rng.choices((A, B, C), k=5):
        net.members[local].send("x")
    net.run(1.5, lambda *_: rng.random() < 0.4)
    net.run(1.5)
    for s in net.members.values():
        assert held(s)[-1] == (5, True)
        reports = total(s).stats.get("reports", 0)
        s.run(2)
        assert total(s).stats.get("reports", 0) == reports


def test_without_losses_each_member_but_the_sequencer_reports_once_and_nobody_asks() -> None:
    net = Net(*(sequencer(local, held="all") for local in (A, B, C)))
    net.members[B].send("x")
    net.run(1)
    assert [total(s).stats.get("reports", 0) for s in net.members.values()] == [0, 1, 1]
    assert all("total.asked" not in s.stack.rules for s in net.members.values())


def test_reports_of_another_view_and_of_strangers_and_late_ones_change_nothing() -> None:
    s = sequencer(held="all")
    s.up(*bundles(B, 1, 3))
    s.up(report(B, 3, view=WITHOUT_A), report(D, 3), report(C, 2), report(C, 1))
    assert held(s) == [(2, False)]
    s.up(report(B, 1))
    assert held(s) == [(1, True)]


def test_a_report_of_what_was_never_ordered_is_counted_and_changes_nothing() -> None:
    s = sequencer(held="all")
    s.up(multicast(B, 1))
    s.up(report(C, 2))
    assert held(s) == []
    assert total(s).stats["malformed"] == 1


def test_without_the_setting_nothing_is_said_and_nothing_is_reported() -> None:
    net = Net(*(sequencer(local) for local in (A, B, C)))
    net.members[B].send("x")
    net.run(1)
    assert [taken(s) for s in net.members.values()] == ["1:b1"] * 3
    assert [held(s) for s in net.members.values()] == [[], [], []]
    assert ["reports" in total(s).stats for s in net.members.values()] == [False] * 3


def test_what_is_held_starts_anew_in_each_view() -> None:
    s = member(B, held="all")
    s.up(*bundles(A, 1, 3), report(C, 3))
    assert held(s) == [(3, False), (3, True)]
    install(s, View(ViewId(8, A), VIEW.members))
    s.up(multicast(A, 4))
    assert [(e.view.counter, e.position, e.everyone) for e in s.events(Held)] == [(8, 1, False)]  # type: ignore[attr-defined]


# Safe delivery.


def test_under_safe_delivery_a_bundle_waits_until_every_member_holds_its_place() -> None:
    s = member(B, delivery="safe")
    s.up(multicast(A, 1), multicast(A, 2), unit(C, 5, 1, dest=B))
    assert taken(s) == "0:c1"  # a unicast does not wait
    assert total(s).held() == {"unordered": 0, "unsafe": 2}
    s.up(report(C, 1))
    assert taken(s) == "1:a1"
    s.up(report(C, 2))
    assert taken(s) == "2:a2"
    assert total(s).held() == {"unordered": 0, "unsafe": 0}
    assert s.stack.rules["total.safe_waits"] == 2


def test_safe_delivery_is_at_once_for_what_the_others_are_known_to_hold_already() -> None:
    s = member(B, delivery="safe")
    s.up(report(C, 3))
    s.up(multicast(A, 1))
    assert taken(s) == "1:a1"


def test_all_that_is_left_of_a_view_is_delivered_at_its_end_safe_or_not() -> None:
    s = member(B, delivery="safe")
    s.up(multicast(A, 1), multicast(C, 1), record(A, 2, (1, 1, 1)))
    install(s, WITHOUT_A)
    assert log(s) == ["end", "1:a1", "2:c1", str(WITHOUT_A.id)]
    assert s.stack.rules["total.safe_view_change"] == 1


def test_a_bundle_is_traced_as_ordered_before_it_is_safe() -> None:
    s = member(B, delivery="safe")
    s.up(multicast(A, 1))
    assert [e.pos for e in s.traced if e.kind == "ordered"] == [1]
    assert taken(s) == ""


def test_what_is_held_is_told_after_safe_delivery_as_well() -> None:
    s = member(B, delivery="safe", held="all")
    s.up(multicast(A, 1))
    assert held(s) == []
    s.up(report(C, 1))
    assert [type(entry) for entry in s.roof.log] == [Packet, Held, Held]


@given(st.integers(0, 2**32))
def test_safe_delivery_ends_with_everything_delivered_everywhere_in_the_same_order(seed: int) -> None:
    rng = random.Random(seed)
    net = Net(*(sequencer(local, delivery="safe") for local in (A, B, C)))
    for local in rng.choices((A, B, C), k=12):
        net.members[local].send("x")
        if rng.random() < 0.5:
            net.run(0.01, lambda *_: rng.random() < 0.3)
    net.run(3)
    orders = [taken(s) for s in net.members.values()]
    assert len(orders[0].split()) == 12
    assert orders == orders[:1] * 3
    assert all(total(s).held() == {"unordered": 0, "unsafe": 0} for s in net.members.values())


# What peers do wrong.


@pytest.mark.parametrize(
    "bad",
    [(3, 1, 1), (0, 1, 1), (2**64 - 1, 1, 1), (1, 0, 1), (1, 2, 1), (2, 1, 1), (2, 2, 4)],
    ids=["no such rank", "its own", "far out", "no number", "backwards", "again", "overlapping"],
)
def test_a_range_that_makes_no_sense_is_counted_and_dropped(bad: tuple[int, int, int]) -> None:
    s = member(B)
    s.up(*bundles(C, 1, 4), multicast(B, 1), record(A, 1, (2, 1, 2)))
    assert taken(s) == "1:c1 2:c2"
    s.up(record(A, 2, bad, (2, 3, 3)))
    assert taken(s) == "3:c3"
    assert total(s).stats["malformed"] == 1


def test_a_range_that_its_senders_stream_has_passed_holds_up_nothing() -> None:
    s = member(B)
    s.up(record(A, 1, (2, 1, 2)), multicast(A, 2), multicast(C, 1), multicast(C, 3))
    assert taken(s) == "1:c1 2:a2"
    assert total(s).stats["malformed"] == 1


def test_records_of_others_than_the_sequencer_or_without_a_number_are_counted_and_dropped() -> None:
    s = member(B)
    raw = record(A, 0, (2, 1, 1))
    raw.carrier = RAW
    s.up(multicast(C, 1), record(C, 2, (2, 1, 1)), raw)
    assert taken(s) == ""
    assert total(s).stats["foreign"] == 2


def test_a_bundle_of_somebody_outside_the_view_is_counted_and_dropped() -> None:
    s = member(B)
    s.up(multicast(D, 1))
    assert taken(s) == ""
    assert total(s).stats["foreign"] == 1


@given(st.binary(max_size=60), st.sampled_from((A, B, C, D)), st.sampled_from((RAW, MCAST)))
def test_no_message_of_a_peer_raises_and_the_order_goes_on(body: bytes, sender: Address, carrier: int) -> None:
    s = member(B, held="all")
    packet = Packet(body, None, Total.id, carrier)
    packet.sender, packet.view = sender, VIEW.tag
    s.up(packet)
    s.up(multicast(A, 1))
    if not total(s).held()["unordered"]:  # unless it was a proper record
        assert taken(s) == "1:a1"


# In a stack.


def test_a_stack_without_reliable_multicast_or_membership_below_it_is_refused() -> None:
    with pytest.raises(UserError, match="TOTAL needs reliable multicast below it"):
        build([Layer("TCP", {}), Layer("TOTAL", {})], REGISTRY)
    with pytest.raises(UserError, match="TOTAL needs membership below it"):
        build([Layer("TCP", {}), Layer("NAKACK", {}), Layer("TOTAL", {})], REGISTRY)


class Log(Receiver):
    """Positions, senders and messages, by view."""

    def __init__(self) -> None:
        self.views: list[str] = []
        self.order: dict[str, list[tuple[int, str, bytes]]] = {}

    def view_accepted(self, view: View) -> None:
        self.views.append(str(view.id))

    def receive(self, batch: list[Delivery]) -> None:
        here = self.order.setdefault(self.views[-1], [])
        here += [(d.position, d.sender.name, b" ".join(d.messages)) for d in batch]


@pytest.mark.parametrize("values", [{}, {"held": "all"}, {"delivery": "safe"}], ids=str)
def test_in_a_whole_stack_the_survivors_of_a_crashed_sequencer_deliver_the_same(values: dict[str, str]) -> None:
    traced: list[TraceEvent] = []
    world = World(3, "total", traced.append)
    fabric = Fabric(world)
    nodes = [Node(world, fabric, name) for name in "abc"]
    peers = [f"{node.ports.ip}:7800" for node in nodes]
    logs, channels = [Log() for _ in nodes], []
    for node, log in zip(nodes, logs, strict=True):
        layers = preset(
            "total-order",
            TCP={"bind_host": node.ports.ip, "bind_port": 7800},
            STATIC={"peers": peers, "interval": 0.1},
            TOTAL=values,
        )
        runtime = node.boot()
        channels.append(Channel(runtime, layers, group="test", name=node.name, incarnation=1, receiver=log))
        runtime.spawn(channels[-1].connect(3))
    world.run(10)
    view = channels[0].view
    assert len(view.members) == 3
    for turn in range(40):
        for node, channel in zip(nodes, channels, strict=True):
            if node.alive:
                channel.send_nowait(b"%d" % turn)
        if turn == 20:
            next(node for node in nodes if node.name == view.coordinator.name).crash()
        world.run(world.time + 0.0005)
    world.run(world.time + 20)
    one, other = (log for node, log in zip(nodes, logs, strict=True) if node.alive)
    assert one.order == other.order
    for id in one.views[-2:]:
        assert len(one.order[id]) > 0
        assert [position for position, _, _ in one.order[id]] == list(range(1, len(one.order[id]) + 1))
    assert check(traced, [VirtualSynchrony(), TotalOrder(), HeldByThose(causal=True)]) == []


def test_nothing_is_sent_after_the_stack_has_stopped() -> None:
    s = sequencer(held="all")
    s.floor.pass_up([multicast(B, 1)])
    s.stack.stop()
    s.run(1)
    assert s.floor.out == []


def test_an_application_may_say_whose_holding_makes_a_majority() -> None:
    s = member(B, held="majority")
    total(s).count_holders((B, C), 2)
    s.up(multicast(A, 1))
    assert [e for e in s.roof.log if isinstance(e, Held)] == []
    s.up(report(C, 1))
    assert [e.position for e in s.roof.log if isinstance(e, Held)] == [1]


def test_fewer_members_than_are_needed_hold_nothing() -> None:
    s = member(B, held="majority")
    total(s).count_holders((B,), 2)
    s.up(multicast(A, 1), report(C, 1))
    assert [e for e in s.roof.log if isinstance(e, Held)] == []
