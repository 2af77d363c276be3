"""What FLOW and UNICAST3 do for a flush."""

from __future__ import annotations

from flush_rig import A, B, C, Member, lone
from harness import Script, unit, units

from coterie.group.events import ViewChange, Writable
from coterie.group.members import View, ViewId
from coterie.group.packet import APP, MCAST, TRAIN, TRAIN_END, TRAIN_START, Packet
from coterie.group.protocols.flow import Flow, HowFar, Taken
from coterie.group.protocols.flush2 import Flush2
from coterie.group.protocols.unicast3 import Unicast3
from coterie.group.protocols.unicast3_messages import Ack, Close, Unicast3Settings

# FLOW.


def shut(**settings: int) -> Member:
    s = lone(Flush2, A, **settings)
    s.start(B)
    assert s.flush.shut
    s.events(Writable)
    return s


def test_while_the_gate_is_shut_the_channel_is_told_that_there_is_no_room_and_then_that_there_is() -> None:
    s = shut()
    assert not s.flow.ready(None)
    assert s.flow.ready(B)
    s.stop(B)
    assert s.events(Writable)
    assert s.flow.ready(None)


def test_what_waits_for_the_gate_has_spent_no_credit() -> None:
    s = shut(window=100)
    packets = [Packet(bytes(60), None, APP, MCAST) for _ in range(3)]
    for packet in packets:
        s.roof.pass_down(packet)
    assert s.stack.held()["FLOW.waiting"] == 3
    s.stop(B)
    assert [p.seqno for p in packets] == [1, 2, 0]  # the window is full


def test_credit_that_comes_while_the_gate_is_shut_lets_nothing_through_and_is_no_news() -> None:
    s = lone(Flush2, A, window=100)
    s.roof.pass_down(Packet(bytes(100), None, APP, MCAST))
    waiting = Packet(bytes(10), None, APP, MCAST)
    s.roof.pass_down(waiting)
    s.start(B)
    s.events(Writable)
    for peer in (B, C):
        s.hear(peer, Flow, Taken(0, 1))
    for packet in s.arrived():
        s.flow.taken(packet)
    assert waiting.seqno == 0
    assert s.events(Writable) == []


def test_news_of_room_while_the_gate_is_shut_is_kept_back() -> None:
    s = shut()
    s.flow.up_event(Writable())
    assert s.events(Writable) == []


def test_a_sender_that_waits_for_the_gate_does_not_ask_for_credit() -> None:
    s = shut()
    s.send("waits")
    assert not s.flow.ready(None)
    s.run(1.0)
    assert s.told(HowFar) == []


def test_a_sender_that_lacks_credit_asks_for_it_again_once_the_gate_is_open() -> None:
    s = lone(Flush2, A, window=10)
    s.send("more than the window is wide")
    s.send("waits")
    s.start(B)
    s.run(0.5)
    assert s.told(HowFar) == []
    s.stop(B)
    s.run(0.5)
    assert s.told(HowFar)


def train(parts: int) -> list[Packet]:
    flags = [TRAIN] * parts
    flags[0] |= TRAIN_START
    flags[-1] |= TRAIN_END
    return [Packet(bytes(20), None, APP, MCAST, flag) for flag in flags]


def test_the_rest_of_a_begun_train_goes_out_without_credit_and_nothing_behind_it() -> None:
    s = lone(Flush2, A, window=10)
    begun, next_one = train(4), train(2)
    for packet in (*begun, *next_one):
        s.roof.pass_down(packet)
    assert [p.seqno for p in begun] == [1, 0, 0, 0]
    s.flow.finish_train()
    assert [p.seqno for p in begun] == [1, 2, 3, 4]
    assert [p.seqno for p in next_one] == [0, 0]
    s.flow.finish_train()
    assert [p.seqno for p in next_one] == [0, 0]


def test_the_rest_of_a_train_is_spent_and_must_be_taken_before_there_is_room() -> None:
    s = lone(Flush2, A, window=70)
    for packet in train(5):
        s.roof.pass_down(packet)
    s.flow.finish_train()
    assert not s.flow.ready(None)


# UNICAST3.


def unicasts(**settings: float) -> tuple[Script, Unicast3]:
    s = Script(Unicast3(Unicast3Settings(**settings)))  # type: ignore[arg-type]
    return s, s.stack.find(Unicast3)


def test_what_was_sent_and_may_not_have_arrived_is_in_the_digest() -> None:
    s, unicast3 = unicasts()
    assert unicast3.sent_digest() == {}
    for _ in range(3):
        last = s.send("m", B)
    s.send("m", C)
    assert unicast3.sent_digest() == {B: (last.conn, 3), C: (last.conn + 1, 1)}
    s.hear(B, Unicast3, Ack(last.conn, 3))
    assert unicast3.sent_digest() == {C: (last.conn + 1, 1)}


def test_units_of_protocols_are_not_in_the_digest() -> None:
    s, unicast3 = unicasts()
    first = s.send("m", B)
    for _ in range(5):
        s.roof.pass_down(Packet(b"control", B, 99, 2))
    assert unicast3.sent_digest() == {B: (first.conn, 1)}
    s.hear(B, Unicast3, Ack(first.conn, 1))
    assert unicast3.sent_digest() == {}


def test_what_was_sent_to_who_is_not_in_the_view_is_not_in_the_digest() -> None:
    s, unicast3 = unicasts()
    s.send("m", B)
    s.view(A, C)
    assert unicast3.sent_digest() == {}


def test_what_was_delivered_is_in_the_digest_with_its_connection() -> None:
    s, unicast3 = unicasts()
    s.up(*units(B, 5, 1, 3), unit(C, 7, 2))
    assert unicast3.received_digest() == {B: (5, 3)}  # of C the first is missing
    s.view(A, C)
    assert unicast3.received_digest() == {}


def test_a_connection_that_was_closed_stays_in_the_digest() -> None:
    s, unicast3 = unicasts()
    s.up(*units(B, 5, 1, 3))
    s.hear(B, Unicast3, Close(5))
    assert unicast3.received_digest() == {B: (5, 3)}


def test_whoever_waits_for_units_is_told_when_they_were_handed_up() -> None:
    s, unicast3 = unicasts()
    s.up(*units(B, 5, 1, 1))
    log: list[int] = []
    unicast3.await_units({B: (5, 3), C: (7, 1)}, lambda: log.append(len(s.roof.log)))
    s.roof.log.clear()
    s.up(*units(B, 5, 2, 3))
    assert log == []
    s.up(unit(C, 7, 1, first=True))
    assert log == [3]  # after they went up
    s.up(unit(C, 7, 2))
    assert log == [3]


def test_whoever_waits_for_what_is_there_already_is_told_at_once() -> None:
    s, unicast3 = unicasts()
    s.up(*units(B, 5, 1, 3))
    log: list[str] = []
    unicast3.await_units({B: (5, 2)}, lambda: log.append("there"))
    unicast3.await_units({}, lambda: log.append("nothing"))
    assert log == ["there", "nothing"]


def test_a_newer_connection_comes_after_everything_of_an_older_one() -> None:
    s, unicast3 = unicasts()
    log: list[str] = []
    unicast3.await_units({B: (5, 9)}, lambda: log.append("over"))
    s.up(unit(B, 6, 1, first=True))
    assert log == ["over"]


def test_a_later_question_takes_the_place_of_an_earlier_one() -> None:
    s, unicast3 = unicasts()
    log: list[str] = []
    unicast3.await_units({B: (5, 1)}, lambda: log.append("first"))
    unicast3.await_units({B: (5, 2)}, lambda: log.append("second"))
    s.up(*units(B, 5, 1, 2))
    assert log == ["second"]


def test_the_view_may_change_while_somebody_waits() -> None:
    s, unicast3 = unicasts()
    log: list[str] = []
    unicast3.await_units({B: (5, 1)}, lambda: log.append("there"))
    view = View(ViewId(9, A), (A, B))
    s.stack.view = view
    s.stack.below(s.roof).down_event(ViewChange(view))
    s.up(*units(B, 5, 1, 1))
    assert log == ["there"]
