"""UNICAST3 against its design document: one test per thing that it says (docs/protocols/unicast3.md)."""

from __future__ import annotations

import pytest
from harness import A, B, C, Script, unit, units
from unicast3_rig import RUN, Pair, layer, part_of_a_train, script

from coterie.errors import UserError
from coterie.group.events import StreamEnded
from coterie.group.members import Address
from coterie.group.packet import AGAIN, APP, FIRST, TRAIN_END, UCAST, Packet
from coterie.group.protocols.unicast3 import Unicast3
from coterie.group.protocols.unicast3_entries import State
from coterie.group.protocols.unicast3_messages import Ack, Ask, Close, SendFirstSeqno, Unicast3Settings

# Acks.


def test_a_batch_of_31_gives_one_ack() -> None:
    s = script()
    s.up(*units(B, 7, 1, 19))
    s.run(1)
    s.sent(Ack)
    s.up(*units(B, 7, 20, 50))
    assert s.sent(Ack) == [(B, Ack(7, 50))]
    s.run(3)
    assert s.sent(Ack) == []
    assert s.stack.rules["unicast3.ack_batch"] == 2


def test_an_ack_is_cumulative_and_removes_everything_up_to_it_from_the_sender() -> None:
    s = script()
    for n in range(60):
        s.send(str(n), B)
    s.hear(B, Unicast3, Ack(layer(s).senders[B].conn, 50))
    entry = layer(s).senders[B]
    assert list(entry.unacked) == list(range(51, 61))
    assert s.stack.held()["UNICAST3.unacked"] == 10


def test_acks_of_5_8_13_52_62_83_101_within_a_second_are_at_most_three_with_a_minimum_of_500_ms() -> None:
    s = script(ack_interval=0.499, retransmit_interval=0.5)
    acks = []
    last = 0
    for upto in (5, 8, 13, 52, 62, 83, 101):
        s.up(*units(B, 7, last + 1, upto))
        s.run(1 / 7)
        last = upto
    acks = [ack.upto for _, ack in s.sent(Ack)]
    s.run(0.5)
    acks += [ack.upto for _, ack in s.sent(Ack)]
    assert len(acks) <= 3
    assert acks[-1] == 101
    assert layer(s).stats["acks_sent"] == len(acks)


def test_an_ack_is_sent_at_most_one_interval_after_it_is_due() -> None:
    s = script(ack_interval=0.2)
    s.up(*units(B, 7, 1, 1))
    assert s.sent(Ack) == [(B, Ack(7, 1))]
    s.run(0.05)
    s.up(unit(B, 7, 2))
    assert s.sent(Ack) == []
    s.run(0.1501)
    assert s.sent(Ack) == [(B, Ack(7, 2))]


def test_at_most_one_ack_is_sent_per_delivered_batch() -> None:
    s = script(ack_interval=0.0)
    for first in range(1, 400, 10):
        s.up(*units(B, 7, first, first + 9))
        s.run(0.01)
    s.run(2)
    assert len(s.sent(Ack)) == 40
    assert s.delivered() == list(range(1, 401))


def test_each_sender_gets_its_own_ack_for_a_mixed_batch() -> None:
    s = script()
    s.up(*units(B, 7, 1, 3), *units(C, 9, 1, 2))
    assert s.sent(Ack) == [(B, Ack(7, 3)), (C, Ack(9, 2))]


# Resending.


def test_with_ha_45_and_hs_50_only_message_50_is_resent_and_only_on_the_second_unchanged_run() -> None:
    s = script()
    for n in range(50):
        s.send(str(n), B)
    s.hear(B, Unicast3, Ack(layer(s).senders[B].conn, 45))
    s.packets()
    s.run(RUN)
    assert s.packets() == []
    s.run(RUN)
    (resent,) = s.packets()
    assert resent.seqno == 50
    assert resent.flags & AGAIN
    assert layer(s).stats["resent_highest"] == 1


def test_a_sender_whose_receiver_moves_between_two_runs_resends_nothing() -> None:
    s = script()
    for n in range(50):
        s.send(str(n), B)
    s.packets()
    conn = layer(s).senders[B].conn
    for upto in range(10, 50, 10):
        s.hear(B, Unicast3, Ack(conn, upto))
        s.run(RUN)
        assert s.packets() == []


def test_a_resend_comes_at_most_two_runs_after_the_last_movement() -> None:
    s = script()
    s.run(0.123)  # the task is not in step with the send
    s.send("x", B)
    s.packets()
    s.run(2 * RUN)
    assert [p.seqno for p in s.packets()] == [1]


def test_a_receiver_that_misses_46_and_48_asks_for_exactly_those_and_gets_46_and_48() -> None:
    pair = Pair()
    for n in range(45):
        pair.a.send(str(n), B)
    pair.run(1)
    pair.b.delivered()
    for n in range(45, 50):
        pair.a.send(str(n), B)
    asked: list[Ask] = []
    resent: list[int] = []

    def network(packet: Packet) -> bool:
        if packet.proto == Unicast3.id:
            message = Unicast3.codec.decode(packet.body)
            if isinstance(message, Ask):
                asked.append(message)
            return False
        if packet.flags & AGAIN:
            resent.append(packet.seqno)
            return False
        return packet.seqno in (46, 48, 50)

    pair.run(4 * RUN, network)
    assert pair.b.delivered() == [46, 47, 48, 49, 50]
    assert asked[0].ranges in (((46, 46), (48, 48)), ((46, 46), (48, 48), (50, 50)))
    assert sorted(resent) == [46, 48, 50]
    assert not layer(pair.a).senders[B].unacked


def test_the_first_message_lost_is_asked_for_by_the_task_and_nothing_is_lost() -> None:
    pair = Pair()
    for n in range(5):
        pair.a.send(str(n), B)
    pair.run(4 * RUN, lambda packet: packet.seqno == 1 and not packet.flags & AGAIN)
    assert pair.b.delivered() == [1, 2, 3, 4, 5]
    assert layer(pair.b).stats["send_first_seqno"] == 1


def test_the_last_message_lost_is_resent() -> None:
    pair = Pair()
    for n in range(5):
        pair.a.send(str(n), B)
    pair.run(4 * RUN, lambda packet: packet.seqno == 5 and not packet.flags & AGAIN)
    assert pair.b.delivered() == [1, 2, 3, 4, 5]
    assert layer(pair.a).stats["resent_highest"] == 1


def test_the_only_message_lost_is_resent_with_its_first_flag() -> None:
    pair = Pair()
    pair.a.send("x", B)
    pair.run(4 * RUN, lambda packet: packet.seqno == 1 and not packet.flags & AGAIN)
    assert pair.b.delivered() == [1]
    assert "send_first_seqno" not in layer(pair.b).stats


def test_a_lost_ack_leads_to_one_needless_resend_and_another_ack() -> None:
    pair = Pair()
    pair.a.send("x", B)
    lost: list[Packet] = []

    def network(packet: Packet) -> bool:
        if packet.proto == Unicast3.id and not lost:
            lost.append(packet)
            return True
        return False

    pair.run(4 * RUN, network)
    assert pair.b.delivered() == [1]
    assert layer(pair.b).stats["needless"] == 1
    assert not layer(pair.a).senders[B].unacked


def test_nothing_is_resent_when_nothing_is_lost() -> None:
    pair = Pair()
    for burst in range(30):
        for n in range(burst):
            pair.a.send(str(n), B)
            pair.b.send(str(n), A)
        pair.run(0.13)
    pair.run(2)
    for side in (pair.a, pair.b):
        stats = layer(side).stats
        assert not [name for name in stats if name.startswith("resent") or name in ("needless", "asks")]
    assert pair.b.delivered() == list(range(1, 436))


# The first message of a connection.


def test_a_batch_whose_first_message_is_in_its_middle_is_delivered_whole() -> None:
    s = script()
    three, one, two = unit(B, 7, 3), unit(B, 7, 1, first=True), unit(B, 7, 2)
    s.up(three, one, two)
    assert s.delivered() == [1, 2, 3]
    s.run(RUN)
    assert s.sent(SendFirstSeqno) == []


def test_messages_before_the_first_set_a_flag_and_the_task_sends_send_first_seqno_not_at_once() -> None:
    s = script()
    s.up(unit(B, 7, 4), unit(B, 7, 5))
    assert s.sent(SendFirstSeqno) == []
    assert s.delivered() == []
    s.run(RUN)
    assert s.sent(SendFirstSeqno) == [(B, SendFirstSeqno(7))]
    s.run(5 * RUN)
    assert s.sent(SendFirstSeqno) == []  # the flag is cleared: it takes another message to set it again


def test_send_first_seqno_is_answered_with_the_first_unacked_message_only() -> None:
    s = script()
    for n in range(10):
        s.send(str(n), B)
    conn = layer(s).senders[B].conn
    s.hear(B, Unicast3, Ack(conn, 4))
    s.packets()
    s.hear(B, Unicast3, SendFirstSeqno(conn))
    (answer,) = s.packets()
    assert answer.seqno == 5
    assert answer.flags & FIRST


def test_a_receiver_that_restarts_goes_on_with_the_first_unacked_message() -> None:
    pair = Pair()
    for n in range(10):
        pair.a.send(str(n), B)
    pair.run(1)
    pair.b = Script(Unicast3(Unicast3Settings(ack_interval=0.05, retransmit_interval=RUN)), local=B)
    for n in range(10, 15):
        pair.a.send(str(n), B)
    pair.run(4 * RUN)
    assert pair.b.delivered() == [11, 12, 13, 14, 15]
    assert layer(pair.b).stats["send_first_seqno"] == 1
    assert not layer(pair.a).senders[B].unacked


def test_a_restarted_receiver_that_gets_the_old_first_message_does_not_wait_for_what_it_once_acked() -> None:
    pair = Pair()
    first = pair.a.send("0", B)
    for n in range(1, 10):
        pair.a.send(str(n), B)
    pair.run(1)
    pair.b = Script(Unicast3(Unicast3Settings(ack_interval=0.05, retransmit_interval=RUN)), local=B)
    stray = first.copy(B)
    pair.b.up(stray)  # a duplicate that was long on its way
    pair.b.delivered()
    pair.a.send("new", B)
    pair.run(6 * RUN)
    assert pair.b.delivered() == [11]
    assert not layer(pair.a).senders[B].unacked


# Connections.


def test_closing_with_unacked_messages_loses_nothing() -> None:
    pair = Pair(conn_close_timeout=1.0)
    for n in range(5):
        pair.a.send(str(n), B)
    layer(pair.a).close(B)
    assert layer(pair.a).senders[B].state is State.CLOSING
    pair.run(5.0, lambda packet: True)  # nothing gets through for longer than the time-out
    assert layer(pair.a).senders[B].state is State.CLOSING
    assert len(layer(pair.a).senders[B].unacked) == 5
    pair.run(6.0)
    assert pair.b.delivered() == [1, 2, 3, 4, 5]
    assert B not in layer(pair.a).senders
    assert A not in layer(pair.b).receivers


def test_both_sides_closing_at_once_lose_nothing_and_leave_nothing_behind() -> None:
    pair = Pair(conn_close_timeout=1.0)
    for n in range(5):
        pair.a.send(str(n), B)
        pair.b.send(str(n), A)
    layer(pair.a).close(B)
    layer(pair.b).close(A)
    pair.run(4.0, lambda packet: packet.seqno == 3 and not packet.flags & AGAIN)
    for side in (pair.a, pair.b):
        assert side.delivered() == [1, 2, 3, 4, 5]
        assert not layer(side).senders
        assert not layer(side).receivers


def test_a_send_while_closing_reopens_the_connection() -> None:
    pair = Pair(conn_close_timeout=1.0)
    pair.a.send("0", B)
    pair.run(0.5)
    conn = layer(pair.a).senders[B].conn
    layer(pair.a).close(B)
    pair.run(0.9)
    pair.a.send("1", B)
    assert layer(pair.a).senders[B].state is State.OPEN
    pair.run(3.0)
    assert layer(pair.a).senders[B].conn == conn
    assert pair.b.delivered() == [1, 2]


def test_a_send_after_closed_makes_a_new_connection() -> None:
    pair = Pair(conn_close_timeout=1.0)
    pair.a.send("0", B)
    pair.run(0.5)
    old = layer(pair.a).senders[B]
    layer(pair.a).close(B)
    pair.run(2.0)
    assert old.state is State.CLOSED
    sent = pair.a.send("1", B)
    assert sent.conn > old.conn
    assert sent.flags & FIRST
    pair.run(0.5)
    assert pair.b.delivered() == [1, 1]


def test_a_send_on_an_entry_that_is_closed_but_not_yet_removed_makes_a_new_connection() -> None:
    s = script()
    old = s.send("0", B)
    layer(s).senders[B].state = State.CLOSED
    new = s.send("1", B)
    assert (new.seqno, new.flags & FIRST) == (1, FIRST)
    assert new.conn > old.conn


def test_an_idle_connection_is_reaped_on_both_sides_after_both_time_outs() -> None:
    pair = Pair(conn_expiry_timeout=3.0, conn_close_timeout=2.0)
    pair.a.send("0", B)
    pair.run(3.6)
    assert layer(pair.a).senders[B].state is State.CLOSING
    assert layer(pair.b).receivers[A].state is State.CLOSING
    pair.run(2.6)
    assert not layer(pair.a).senders
    assert not layer(pair.b).receivers
    for side in (pair.a, pair.b):
        assert side.stack.rules["unicast3.expired"] == 1


def test_reaping_can_be_switched_off() -> None:
    pair = Pair(conn_expiry_timeout=0.0, conn_close_timeout=1.0)
    pair.a.send("0", B)
    pair.run(10)
    assert layer(pair.a).senders[B].state is State.OPEN
    assert layer(pair.b).receivers[A].state is State.OPEN


def test_the_sender_of_a_removed_connection_sends_close() -> None:
    s = script(conn_close_timeout=1.0)
    s.send("0", B)
    conn = layer(s).senders[B].conn
    s.hear(B, Unicast3, Ack(conn, 1))
    layer(s).close(B)
    s.run(0.9)
    assert s.sent(Close) == []
    s.run(1)
    assert s.sent(Close) == [(B, Close(conn))]


def test_a_close_with_another_connection_id_is_ignored() -> None:
    s = script()
    s.up(*units(B, 7, 1, 3))
    s.hear(B, Unicast3, Close(6))
    assert B in layer(s).receivers
    s.hear(B, Unicast3, Close(7))
    assert B not in layer(s).receivers


def test_a_message_of_an_old_connection_is_ignored() -> None:
    s = script()
    s.up(*units(B, 7, 1, 3))
    s.up(*units(B, 8, 1, 2))
    s.up(*units(B, 7, 4, 6))
    s.up(unit(B, 7, 1, first=True))
    assert s.delivered() == [1, 2, 3, 1, 2]
    assert layer(s).stats["old_connection"] == 4


def test_a_message_of_a_closed_connection_that_was_long_on_its_way_is_ignored() -> None:
    s = script()
    s.up(*units(B, 7, 1, 3))
    s.hear(B, Unicast3, Close(7))
    s.up(unit(B, 7, 1, first=True), unit(B, 7, 3))
    assert s.delivered() == [1, 2, 3]


def test_an_ack_of_an_old_connection_is_ignored() -> None:
    s = script()
    s.send("0", B)
    entry = layer(s).senders[B]
    s.hear(B, Unicast3, Ack(entry.conn - 1, 1))
    assert list(entry.unacked) == [1]


def test_an_ack_for_what_was_never_sent_is_ignored() -> None:
    s = script()
    s.send("0", B)
    entry = layer(s).senders[B]
    s.hear(B, Unicast3, Ack(entry.conn, 99))
    assert list(entry.unacked) == [1]


def test_a_receiver_that_reaped_a_connection_its_sender_kept_delivers_nothing_twice() -> None:
    pair = Pair(conn_expiry_timeout=2.0, conn_close_timeout=1.0)
    pair.a.send("0", B)
    pair.carry(lambda packet: packet.proto == Unicast3.id)  # it arrives, its ack does not
    for _ in range(50):  # the receiver's host runs on alone
        pair.b.run(0.1)
        pair.b.floor.out.clear()
    assert A not in layer(pair.b).receivers
    pair.run(3 * RUN)
    pair.a.send("1", B)
    pair.run(3 * RUN)
    assert pair.b.delivered() == [1, 2]
    assert not layer(pair.a).senders[B].unacked


def test_a_crashed_member_that_reconnects_under_its_name_starts_fresh_connections_both_ways() -> None:
    pair = Pair()
    pair.a.send("0", B)
    pair.b.send("0", A)
    pair.run(1)
    reborn = Address("b", 2)
    pair.b = Script(Unicast3(Unicast3Settings(ack_interval=0.05, retransmit_interval=RUN)), local=reborn)
    for side in (pair.a, pair.b):
        side.delivered()
        side.view(A, reborn)
    pair.a.send("1", reborn)
    pair.b.send("1", A)
    late = unit(B, layer(pair.a).receivers[B].conn, 2)
    pair.a.up(late)  # what the dead incarnation had sent is still its own
    pair.run(1)
    assert pair.b.delivered() == [1]
    assert sorted(pair.a.delivered()) == [1, 2]
    assert layer(pair.a).senders[B].state is State.CLOSING
    assert layer(pair.a).senders[reborn].state is State.OPEN


def test_messages_for_a_member_that_left_are_given_up_after_the_close_time_out() -> None:
    s = script(conn_close_timeout=1.0)
    s.send("0", B)
    s.view(A, C)
    assert layer(s).senders[B].state is State.CLOSING
    s.run(2)
    assert B not in layer(s).senders


def test_units_to_oneself_take_the_same_way() -> None:
    pair = Pair()
    pair.a.send("0", A)
    for packet in pair.a.packets():
        pair.a.up(packet)
    assert pair.a.delivered() == [1]
    assert pair.a.stack.rules["unicast3.to_self"] == 1


# What peers may do to us.


def test_a_request_for_everything_costs_no_more_than_the_limit() -> None:
    s = script(ask_most=64)
    for n in range(500):
        s.send(str(n), B)
    s.packets()
    s.hear(B, Unicast3, Ask(layer(s).senders[B].conn, tuple((1, 2**60) for _ in range(100))))
    assert len(s.packets()) <= 64


def test_units_ahead_of_the_window_are_not_kept() -> None:
    s = script(window=10)
    s.up(unit(B, 7, 1, first=True), *(unit(B, 7, n) for n in range(3, 100)))
    assert s.stack.held()["UNICAST3.undelivered"] <= 10


def test_acks_slower_than_the_retransmission_task_are_refused() -> None:
    with pytest.raises(UserError, match="ack_interval must be shorter"):
        script(ack_interval=0.5)


def test_the_counters_tell_acks_per_unit_resends_and_what_the_sender_keeps() -> None:
    pair = Pair()
    for n in range(100):
        pair.a.send(str(n), B)
    pair.run(1)
    assert layer(pair.b).stats["acks_sent"] < 100
    assert layer(pair.a).stats["acks_received"] == layer(pair.b).stats["acks_sent"]
    assert pair.a.stack.held()["UNICAST3.unacked"] == 0


def test_units_before_the_first_are_kept_but_no_more_than_the_window() -> None:
    s = script(window=10)
    s.up(*(unit(B, 7, n) for n in range(2, 100)))
    assert s.stack.held()["UNICAST3.undelivered"] == 10
    s.up(unit(B, 7, 1, first=True))
    assert s.delivered() == list(range(1, 11))


def test_units_whose_first_never_comes_are_given_up_after_some_runs() -> None:
    s = script()
    s.up(unit(B, 7, 4))
    s.run(9 * RUN)
    assert B in layer(s).receivers
    s.run(2 * RUN)
    assert B not in layer(s).receivers
    assert s.stack.held()["UNICAST3.undelivered"] == 0
    s.up(*units(B, 7, 1, 4))
    assert s.delivered() == [1, 2, 3, 4]


def test_a_receiver_in_the_middle_of_a_message_asks_its_sender_instead_of_reaping_the_connection() -> None:
    s = script(conn_expiry_timeout=2.0, conn_close_timeout=1.0)
    s.up(part_of_a_train(unit(B, 7, 1, first=True)))
    s.run(0.9)
    s.sent(Ack)
    s.run(0.9)
    assert s.sent(Ack) == [(B, Ack(7, 1))]  # if the sender has given it up, it answers with CLOSE
    s.run(9)
    assert layer(s).receivers[B].state is State.OPEN
    assert s.stack.rules["unicast3.train_kept"] > 5
    last = part_of_a_train(unit(B, 7, 2))
    last.flags |= TRAIN_END
    s.up(last)
    s.run(5)
    assert B not in layer(s).receivers
    assert s.delivered() == [1, 2]


def test_a_sender_in_the_middle_of_a_message_does_not_close_the_connection() -> None:
    s = script(conn_close_timeout=1.0)
    packet = part_of_a_train(Packet(b"x", B, APP, UCAST))
    s.roof.pass_down(packet)
    s.hear(B, Unicast3, Ack(packet.conn, 1))
    layer(s).close(B)
    s.run(5)
    assert layer(s).senders[B].state is State.CLOSING
    last = part_of_a_train(Packet(b"x", B, APP, UCAST))
    last.flags |= TRAIN_END
    s.roof.pass_down(last)
    assert (last.conn, last.seqno) == (packet.conn, 2)


def test_whoever_asks_on_a_connection_that_was_given_up_is_told_that_it_is_closed() -> None:
    s = script()
    s.send("0", B)
    conn = layer(s).senders[B].conn
    s.hear(B, Unicast3, Ask(conn - 1, ((1, 1),)))
    s.hear(C, Unicast3, SendFirstSeqno(5))
    s.hear(C, Unicast3, Ack(4, 1))
    assert s.sent(Close) == [(B, Close(conn - 1)), (C, Close(5)), (C, Close(4))]


def test_a_member_outside_the_view_does_not_make_the_sender_keep_more_than_a_window() -> None:
    s = script(window=10)
    s.view(A, C)
    for n in range(50):
        s.send(str(n), B)
        assert s.stack.held()["UNICAST3.unacked"] <= 10
    assert s.stack.find(Unicast3).stats["undeliverable"] == 50
    s.packets()
    s.view(A, B, C)
    s.send("after its return", B)
    (packet,) = s.packets()
    assert (packet.seqno, packet.flags & FIRST) == (1, FIRST)


def test_the_rest_of_a_message_whose_beginning_was_given_up_is_not_sent() -> None:
    s = script(conn_close_timeout=1.0)
    s.roof.pass_down(part_of_a_train(Packet(b"beginning", B, APP, UCAST)))
    s.view(A, C)
    s.run(2)
    s.view(A, B, C)
    s.packets()
    s.roof.pass_down(part_of_a_train(Packet(b"rest", B, APP, UCAST)))
    assert s.packets() == []
    s.send("next", B)
    assert len(s.packets()) == 1


def test_the_end_of_a_connection_is_told_after_the_units_that_came_with_its_close() -> None:
    s = script()
    close = Packet(Unicast3.codec.encode(Close(7)), None, Unicast3.id)
    close.sender = B
    s.up(unit(B, 7, 1, first=True), close)
    assert [type(entry) for entry in s.roof.log][-2:] == [Packet, StreamEnded]


def test_a_receiver_that_reaped_a_connection_in_the_middle_of_a_message_asks_when_its_sender_is_back() -> None:
    s = script(conn_close_timeout=1.0)
    s.up(part_of_a_train(unit(B, 7, 1, first=True)))
    s.view(A, C)
    s.run(3)
    assert B not in layer(s).receivers
    s.sent(Ack)
    s.view(A, B, C)
    s.run(RUN)
    assert s.sent(Ack) == [(B, Ack(7, 1))]
    s.hear(B, Unicast3, Close(7))
    assert s.events(StreamEnded) == [StreamEnded(B, UCAST, 7)]


def test_what_ends_of_a_connection_is_told_to_the_layers_above() -> None:
    s = script()
    s.up(*units(B, 7, 1, 3))
    s.hear(B, Unicast3, Close(7))
    assert s.events(StreamEnded) == [StreamEnded(B, UCAST, 7)]
    s.up(*units(B, 8, 1, 3))
    s.up(*units(B, 9, 1, 3))
    assert s.events(StreamEnded) == [StreamEnded(B, UCAST, 8)]


def test_a_reaped_connection_has_not_ended_before_a_new_incarnation_of_its_sender_is_there() -> None:
    s = script(conn_expiry_timeout=2.0, conn_close_timeout=1.0)
    s.up(*units(B, 7, 1, 3))
    s.run(5)
    assert B not in layer(s).receivers
    assert s.events(StreamEnded) == []  # it may go on where it was
    s.view(A, Address("b", 2), C)
    s.run(0)
    assert s.events(StreamEnded) == [StreamEnded(B, UCAST, 7)]
