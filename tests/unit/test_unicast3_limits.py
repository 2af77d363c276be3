"""UNICAST3: those who are not in the view, times that are set anew, and what bounds everything that it keeps."""

from __future__ import annotations

from harness import A, B, C, unit, units
from unicast3_rig import RUN, Pair, layer, part_of_a_train, script

from coterie.group.events import StreamEnded
from coterie.group.members import Address
from coterie.group.packet import APP, FIRST, UCAST, Packet
from coterie.group.protocols import unicast3
from coterie.group.protocols.unicast3 import Unicast3
from coterie.group.protocols.unicast3_entries import Graveyard, State
from coterie.group.protocols.unicast3_messages import Ack, Ask, SendFirstSeqno

# Those who are not in the view.


def test_what_is_sent_to_a_member_that_left_is_given_up_after_the_close_time_out_also_without_expiry() -> None:
    s = script(conn_expiry_timeout=0.0, conn_close_timeout=1.0)
    s.view(A, C)
    s.send("0", B)
    s.packets()
    assert layer(s).senders[B].state is State.CLOSING
    s.run(1 + RUN)
    assert B not in layer(s).senders
    s.packets()
    s.run(10)
    assert s.packets() == []
    assert s.stack.held()["UNICAST3.overdue"] == 0


def test_a_send_to_a_member_that_left_does_not_reopen_its_connection() -> None:
    s = script(conn_expiry_timeout=0.0, conn_close_timeout=1.0)
    s.send("0", B)
    s.view(A, C)
    s.run(0.5)
    s.send("1", B)
    assert layer(s).senders[B].state is State.CLOSING
    s.run(0.9)
    assert B in layer(s).senders  # the time-out counts from the last send
    s.run(0.2 + RUN)
    assert B not in layer(s).senders


def test_a_unit_of_a_member_that_left_does_not_reopen_its_connection() -> None:
    s = script(conn_expiry_timeout=0.0, conn_close_timeout=1.0)
    s.up(unit(B, 7, 1, first=True))
    s.view(A, C)
    s.run(0.5)
    s.up(unit(B, 7, 2))
    assert layer(s).receivers[B].state is State.CLOSING
    s.run(1 + RUN)
    assert B not in layer(s).receivers
    assert s.delivered() == [1, 2]


def test_a_member_that_comes_into_the_view_has_its_connection_opened_by_the_next_unit() -> None:
    s = script(conn_expiry_timeout=0.0, conn_close_timeout=1.0)
    s.view(A, C)
    s.send("0", B)
    s.up(unit(B, 7, 1, first=True))
    s.view(A, B, C)
    s.send("1", B)
    s.up(unit(B, 7, 2))
    s.run(3)
    assert layer(s).senders[B].state is State.OPEN
    assert list(layer(s).senders[B].unacked) == [1, 2]
    assert layer(s).receivers[B].state is State.OPEN


def test_what_outlives_the_close_time_out_of_one_that_left_counts_as_held() -> None:
    s = script(conn_close_timeout=1.0)
    s.send("0", B)
    s.view(A, C)
    layer(s).senders[B].state = State.OPEN  # as if it had been opened again
    s.run(1 + 3 * RUN)
    assert s.stack.held()["UNICAST3.overdue"] == 1


# Times that are set anew.


def test_acks_of_two_connections_that_have_to_wait_are_both_sent_in_time() -> None:
    s = script(ack_interval=0.2)
    s.up(unit(B, 7, 1, first=True))
    s.run(0.1)
    s.up(unit(C, 9, 1, first=True))
    s.run(0.05)
    s.sent(Ack)
    s.up(unit(B, 7, 2), unit(C, 9, 2))
    s.run(0.0501)
    assert s.sent(Ack) == [(B, Ack(7, 2))]
    s.run(0.1)
    assert s.sent(Ack) == [(C, Ack(9, 2))]


def test_a_send_sets_the_time_of_a_connection_anew() -> None:
    s = script(conn_expiry_timeout=2.0, conn_close_timeout=1.0)
    s.send("0", B)
    s.run(2.8)
    assert layer(s).senders[B].state is State.CLOSING
    s.send("1", B)
    s.run(1.8)
    assert layer(s).senders[B].state is State.OPEN
    s.run(0.2 + RUN)
    assert layer(s).senders[B].state is State.CLOSING


def test_an_ack_that_moves_something_sets_the_time_of_a_connection_anew() -> None:
    s = script(conn_expiry_timeout=2.0, conn_close_timeout=1.0)
    s.send("0", B)
    s.run(1.8)
    s.hear(B, Unicast3, Ack(layer(s).senders[B].conn, 1))
    s.run(1.6)
    assert layer(s).senders[B].state is State.OPEN
    s.run(0.4 + RUN)
    assert layer(s).senders[B].state is State.CLOSING


def test_a_unit_that_comes_opens_a_closing_connection_again_and_sets_its_time_anew() -> None:
    s = script(conn_expiry_timeout=2.0, conn_close_timeout=1.0)
    s.up(unit(B, 7, 1, first=True))
    s.run(2.8)
    assert layer(s).receivers[B].state is State.CLOSING
    s.up(unit(B, 7, 2))
    assert layer(s).receivers[B].state is State.OPEN
    s.run(1.8)
    assert layer(s).receivers[B].state is State.OPEN
    s.run(0.2 + RUN)
    assert layer(s).receivers[B].state is State.CLOSING


def test_an_idle_connection_is_closing_for_the_whole_close_time_out() -> None:
    s = script(conn_expiry_timeout=2.0, conn_close_timeout=1.0)
    s.send("0", B)
    s.hear(B, Unicast3, Ack(layer(s).senders[B].conn, 1))
    s.up(unit(C, 7, 1, first=True))
    s.run(2.9)
    assert layer(s).senders[B].state is State.CLOSING
    assert layer(s).receivers[C].state is State.CLOSING
    s.run(RUN)
    assert not layer(s).senders
    assert not layer(s).receivers


def test_a_connection_that_is_closed_after_a_long_silence_is_closing_for_the_whole_close_time_out() -> None:
    s = script(conn_expiry_timeout=0.0, conn_close_timeout=1.0)
    s.send("0", B)
    s.hear(B, Unicast3, Ack(layer(s).senders[B].conn, 1))
    s.run(5)
    layer(s).close(B)
    s.run(0.9)
    assert layer(s).senders[B].state is State.CLOSING
    s.run(RUN)
    assert not layer(s).senders


def test_a_member_that_leaves_after_a_long_silence_is_waited_for_during_the_whole_close_time_out() -> None:
    s = script(conn_expiry_timeout=0.0, conn_close_timeout=1.0)
    s.send("0", B)
    s.up(unit(B, 7, 1, first=True))
    s.run(5)
    s.view(A, C)
    s.run(0.9)
    assert B in layer(s).senders
    assert B in layer(s).receivers
    s.run(RUN)
    assert not layer(s).senders
    assert not layer(s).receivers


# The first unit in a batch.


def test_a_new_connection_in_a_batch_does_not_drop_what_stands_before_it() -> None:
    s = script()
    s.up(*units(B, 7, 1, 2))
    s.up(unit(B, 7, 3), unit(B, 8, 2), unit(B, 8, 1, first=True), unit(B, 7, 4))
    assert s.delivered() == [1, 2, 3, 1, 2]
    assert layer(s).stats["old_connection"] == 1


def test_a_first_unit_that_moves_a_receiver_forward_does_not_drop_what_stands_before_it() -> None:
    s = script()
    s.up(*units(B, 7, 1, 4))
    s.up(unit(B, 7, 5), unit(B, 7, 6, first=True))
    assert s.delivered() == [1, 2, 3, 4, 5, 6]


def test_a_unit_without_a_number_is_counted_and_forgotten() -> None:
    s = script()
    s.up(unit(B, 7, 0, first=True), unit(C, 7, 0))
    assert s.delivered() == []
    assert not layer(s).receivers
    assert layer(s).stats["malformed"] == 2


# Bounds.


def stranger(number: int) -> Address:
    return Address(f"stranger{number}", 1)


def test_tombstones_are_bounded_and_the_end_of_what_is_forgotten_is_told() -> None:
    s = script(conn_close_timeout=0.0)
    s.up(unit(B, 7, 1, first=True))
    s.view(A, C)
    s.run(RUN)
    assert list(layer(s)._graves.stones) == [B]
    for number in range(Graveyard.MOST):
        s.up(unit(stranger(number), 7, 1, first=True))
        if number % 200 == 0:
            s.run(RUN)
    s.run(RUN)
    assert len(layer(s)._graves.stones) == Graveyard.MOST
    assert B not in layer(s)._graves.stones
    assert s.events(StreamEnded) == [StreamEnded(B, UCAST, 7)]


def test_whoever_speaks_under_many_names_gets_a_bounded_number_of_entries() -> None:
    s = script()
    s.up(unit(C, 7, 1, first=True))
    for number in range(3 * unicast3.OUTSIDERS_MAX):
        s.up(unit(stranger(number), 7, 1, first=True))
        assert len(layer(s).receivers) <= unicast3.OUTSIDERS_MAX + 1
    assert C in layer(s).receivers  # a member
    assert stranger(3 * unicast3.OUTSIDERS_MAX - 1) in layer(s).receivers  # the latest
    assert layer(s).stats["outsiders_dropped"] == 2 * unicast3.OUTSIDERS_MAX


def test_little_is_kept_of_one_that_is_not_in_the_view_until_it_is() -> None:
    s = script()
    outsider = stranger(1)
    s.up(*(unit(outsider, 7, n) for n in range(2, 500)))
    assert len(layer(s).receivers[outsider].early) == unicast3.OUTSIDERS_WINDOW
    s.up(unit(outsider, 7, 1, first=True), *(unit(outsider, 7, n) for n in range(100, 900)))
    window = layer(s).receivers[outsider].window
    assert window is not None
    assert len(window.slots) <= unicast3.OUTSIDERS_WINDOW
    s.view(A, B, C, outsider)
    s.up(*(unit(outsider, 7, n) for n in range(200, 900)))
    assert len(window.slots) >= 700


def test_what_is_remembered_of_given_up_messages_is_bounded() -> None:
    s = script(conn_close_timeout=0.0)
    for number in range(unicast3.GIVEN_UP_MAX + 100):
        s.roof.pass_down(part_of_a_train(Packet(b"beginning", stranger(number), APP, UCAST)))
    s.run(2 * RUN)
    assert not layer(s).senders
    assert len(layer(s)._given_up) == unicast3.GIVEN_UP_MAX
    assert stranger(0) not in layer(s)._given_up


def test_connections_to_those_who_are_gone_end_whatever_their_number() -> None:
    s = script(conn_expiry_timeout=0.0, conn_close_timeout=1.0)
    for number in range(1000):
        s.send("x", stranger(number))
    s.run(1 + 2 * RUN)
    assert not layer(s).senders


def test_numbers_at_the_end_of_their_range_do_no_harm() -> None:
    s = script()
    most, conn = 2**64 - 1, 2**32 - 1
    s.up(unit(B, 7, most), unit(B, 7, 1, first=True), unit(B, 7, most - 1))
    s.up(unit(C, conn, most, first=True), unit(C, conn, most))
    for message in (Ack(most, most), Ask(most, ((0, most), (most, 0))), SendFirstSeqno(most)):
        s.hear(B, Unicast3, message)
    s.run(3)
    assert [p.seqno for p in s.arrived()] == [1, most]
    assert s.sent(Ask)[0] == (B, Ask(7, ((2, 65),)))


def test_both_ends_agree_when_one_has_the_other_out_of_its_view_for_a_while() -> None:
    pair = Pair(conn_expiry_timeout=0.0, conn_close_timeout=1.0)
    pair.a.send("0", B)
    pair.run(0.5)
    pair.b.view(B, C)
    pair.a.send("1", B)
    pair.run(0.5)
    assert layer(pair.b).receivers[A].state is State.CLOSING
    pair.run(3)
    assert A not in layer(pair.b).receivers
    pair.b.view(A, B, C)
    sent = pair.a.send("2", B)
    assert not sent.flags & FIRST  # a has had b in its view all the time
    pair.run(4 * RUN)
    assert pair.b.delivered() == [1, 2, 3]
    assert layer(pair.b).receivers[A].state is State.OPEN
