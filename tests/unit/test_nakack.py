"""NAKACK, as scripts of messages: what docs/protocols/nakack.md says, one test for each thing."""

from __future__ import annotations

from harness import A, B, C, Net, Script, multicast, unit
from hypothesis import given
from hypothesis import strategies as st

from coterie.group.events import Event, StreamEnded, ViewChange, Writable
from coterie.group.members import Address
from coterie.group.packet import AGAIN, APP, MCAST, RAW, Packet
from coterie.group.protocols.nakack import BURIED_MAX, Ask, Highest, Nakack, NakackSettings

D = Address("d", 1)


def script(*others: Address, local: Address = A, **settings: float) -> Script:
    """A member that knows that the streams of the others (B and C) start with number one."""
    others = others or (B, C)
    s = Script(Nakack(NakackSettings(**settings)), local=local, members=tuple(sorted((local, *others))))  # type: ignore[arg-type]
    for other in others:
        layer(s).open(other, 1)
    return s


def layer(s: Script) -> Nakack:
    return s.stack.find(Nakack)


def hear_from(s: Script, sender: Address, *numbers: int) -> None:
    s.up(*(multicast(sender, number) for number in numbers))


def net(**settings: float) -> Net:
    return Net(*(script(*(m for m in (A, B, C) if m != local), local=local, **settings) for local in (A, B, C)))


# Numbers and order.


def test_a_sender_numbers_its_bundles_from_one_without_holes() -> None:
    s = script()
    sent = [s.send(str(n)) for n in range(5)]
    assert [p.seqno for p in s.packets()] == [1, 2, 3, 4, 5]
    assert {(p.sender, p.dest, p.view) for p in sent} == {(A, None, s.stack.view.tag)}


def test_a_bundle_leaves_in_the_turn_in_which_it_is_sent() -> None:
    s = script()
    s.send("x")
    assert [p.seqno for p in s.floor.out] == [1]  # no time has passed, and no other call was made


def test_a_member_delivers_its_own_multicasts_in_order_once_the_turn_is_over() -> None:
    s = script()
    for n in range(3):
        s.send(str(n))
    assert s.delivered() == []  # never from within the call that sends
    s.run(0)
    assert [len(batch) for batch in s.roof.batches] == [3]
    assert s.delivered() == [1, 2, 3]
    s.send("more")
    s.run(0)
    assert s.delivered() == [4]


def test_what_comes_in_order_is_delivered_at_once_as_one_batch() -> None:
    s = script()
    hear_from(s, B, 1, 2, 3)
    assert [len(batch) for batch in s.roof.batches] == [3]
    assert s.delivered() == [1, 2, 3]


def test_what_comes_out_of_order_is_delivered_in_order() -> None:
    s = script()
    hear_from(s, B, 3)
    hear_from(s, B, 2)
    assert s.delivered() == []
    hear_from(s, B, 1)
    assert s.delivered() == [1, 2, 3]


def test_a_hole_in_one_senders_stream_does_not_hold_up_another() -> None:
    s = script()
    hear_from(s, B, 2)
    hear_from(s, C, 1)
    assert [(p.sender, p.seqno) for p in s.arrived()] == [(C, 1)]


def test_a_bundle_that_comes_twice_is_delivered_once() -> None:
    s = script()
    hear_from(s, B, 1, 1)
    hear_from(s, B, 2, 1)
    assert s.delivered() == [1, 2]
    assert layer(s).stats["duplicates"] == 2
    assert s.stack.rules["nakack.duplicate"] == 2
    assert [e.first for e in s.traced if e.kind == "receive"] == [1, 2]


def test_a_bundle_that_comes_again_after_it_was_forgotten_is_not_delivered_again() -> None:
    s = script()
    hear_from(s, B, 1, 2)
    layer(s).stable(B, 2)
    hear_from(s, B, 1, 2)
    assert s.delivered() == [1, 2]


def test_a_stream_of_which_we_do_not_know_the_start_is_not_delivered() -> None:
    s = script()
    hear_from(s, D, 1)
    assert s.delivered() == []
    assert layer(s).stats["unknown_sender"] == 1


def test_other_traffic_passes_untouched() -> None:
    s = script()
    raw = Packet(b"x", B, APP, RAW)
    s.roof.pass_down(raw)
    assert s.floor.out == [raw]
    assert raw.seqno == 0
    one = unit(B, 7, 4)
    s.up(one)
    assert s.arrived() == [one]


# Holes.


def test_a_hole_is_asked_for_after_the_delay_and_not_before() -> None:
    s = script(ask_delay=0.01)
    hear_from(s, B, 1, 3)
    s.run(0.0099)
    assert s.sent(Ask) == []
    s.run(0.0002)
    assert s.sent(Ask) == [(B, Ask(B, ((2, 2),)))]
    assert s.stack.rules["nakack.ask_sender"] == 1


def test_a_hole_that_closes_in_time_is_not_asked_for() -> None:
    s = script(ask_delay=0.01)
    hear_from(s, B, 1, 3)
    s.run(0.005)
    hear_from(s, B, 2)
    s.run(1)
    assert s.sent(Ask) == []


def test_a_request_names_exactly_what_is_missing_in_ranges() -> None:
    s = script()
    hear_from(s, B, 1, 4, 5, 7, 10)
    s.run(0.011)
    assert s.sent(Ask) == [(B, Ask(B, ((2, 3), (6, 6), (8, 9))))]


def test_a_request_asks_for_no_more_than_the_limit_at_a_time() -> None:
    s = script(ask_most=5)
    hear_from(s, B, 1, 4, 100)
    s.run(0.011)
    assert s.sent(Ask) == [(B, Ask(B, ((2, 3), (5, 7))))]


def test_the_pause_between_requests_doubles_up_to_the_maximum() -> None:
    s = script(ask_delay=0.01, ask_max_delay=0.05)
    hear_from(s, B, 2)
    times, began = [], s.world.time
    for _ in range(300):
        s.run(0.001)
        if s.sent(Ask):
            times.append(round(s.world.time - began, 3))
    assert times == [0.01, 0.03, 0.07, 0.12, 0.17, 0.22, 0.27]


def test_a_new_hole_after_a_quiet_time_is_asked_for_as_soon_as_the_first_one() -> None:
    s = script(ask_delay=0.01, ask_max_delay=0.5)
    hear_from(s, B, 2)
    s.run(0.2)  # several requests: the pause has grown
    hear_from(s, B, 1)
    s.run(1)
    s.sent(Ask)
    hear_from(s, B, 4)
    s.run(0.011)
    assert s.sent(Ask) == [(B, Ask(B, ((3, 3),)))]


def test_a_sender_that_does_not_answer_takes_turns_with_the_others() -> None:
    s = script(B, C, D, ask_delay=0.01, ask_max_delay=0.01, ask_others_after=3)
    hear_from(s, B, 2)
    s.run(0.105)
    asked = [dest for dest, _ in s.sent(Ask)]
    assert asked[:3] == [B, B, B]
    assert set(asked[3:]) == {B, C, D}
    assert s.stack.rules["nakack.ask_others"] == sum(dest != B for dest in asked)


def test_a_sender_that_answers_again_is_asked_first_again() -> None:
    s = script(ask_delay=0.01, ask_max_delay=0.01, ask_others_after=2)
    hear_from(s, B, 2)
    s.run(0.05)
    hear_from(s, B, 1)
    hear_from(s, B, 4)
    s.run(0.02)
    s.sent(Ask)
    hear_from(s, B, 3, 6)
    s.run(0.011)
    assert {dest for dest, _ in s.sent(Ask)} == {B}


def test_a_hole_that_nobody_can_fill_does_not_hold_up_the_requests_for_others() -> None:
    s = script(ask_delay=0.01, ask_max_delay=1.0)
    hear_from(s, C, 2)
    s.run(1.5)  # by now it is asked for once a second
    s.sent(Ask)
    hear_from(s, B, 2)
    s.run(0.011)
    assert [message.sender for _, message in s.sent(Ask)] == [B]


def test_what_a_departed_sender_left_behind_is_asked_for_from_the_others_at_once() -> None:
    s = script()
    hear_from(s, B, 2)
    s.view(A, C)
    s.run(0.011)
    assert s.sent(Ask) == [(C, Ask(B, ((1, 1),)))]
    assert s.stack.rules["nakack.ask_others"] == 1


def test_a_departed_senders_bundle_is_had_from_another_member() -> None:
    group = net()
    group.members[B].send("only c gets this")
    group.members[B].send("and this")
    group.carry(lambda source, target, packet: (target, packet.seqno) == (A, 1))
    group.members.pop(B)
    for member in group.members.values():
        member.view(A, C)
    group.run(0.1)
    assert group.members[A].delivered() == [1, 2]
    assert group.members[C].stack.rules["nakack.resend_foreign"] == 1


def test_nobody_is_asked_when_nobody_is_left() -> None:
    s = script()
    hear_from(s, B, 2)
    s.view(A)
    s.run(1)
    assert s.sent(Ask) == []


# Sending again.


def test_the_sender_sends_again_exactly_what_was_asked_for_and_to_whoever_asked() -> None:
    s = script()
    sent = {p.seqno: p for p in (s.send(str(n)) for n in range(10))}
    s.packets()
    s.hear(C, Nakack, Ask(A, ((2, 3), (7, 7))))
    again = s.packets()
    assert [(p.seqno, p.dest, p.sender) for p in again] == [(2, C, A), (3, C, A), (7, C, A)]
    assert all(p.flags & AGAIN for p in again)
    assert all(p.body == sent[p.seqno].body for p in again)
    assert s.stack.rules["nakack.resend_own"] == layer(s).stats["resent"] == 3


def test_a_member_sends_another_members_bundle_again_under_its_origins_name() -> None:
    s = script()
    hear_from(s, B, 1, 2)
    s.hear(C, Nakack, Ask(B, ((2, 2),)))
    (again,) = s.packets()
    assert (again.seqno, again.dest, again.sender) == (2, C, B)
    assert s.stack.rules["nakack.resend_foreign"] == 1


def test_what_is_not_here_cannot_be_sent_again_and_is_counted() -> None:
    s = script()
    hear_from(s, B, 1)
    layer(s).stable(B, 1)
    s.hear(C, Nakack, Ask(B, ((1, 2),)))
    s.hear(C, Nakack, Ask(D, ((1, 1),)))
    assert s.packets() == []
    assert layer(s).stats["cannot_resend"] == 3


def test_what_is_stable_is_discarded_once_and_a_stranger_has_nothing_to_discard() -> None:
    s = script()
    hear_from(s, B, 1, 2)
    for _ in range(2):
        layer(s).stable(B, 2)
        layer(s).stable(D, 2)
    assert [(e.sender, e.last) for e in s.traced if e.kind == "discard"] == [(str(B), 2)]


def test_a_protocols_own_multicast_is_traced_as_delivered_to_it() -> None:
    s = script()
    s.roof.pass_down(Packet(b"x", None, 99, MCAST))
    s.send("the application's is traced at the top")
    s.run(0)
    assert [(e.first, e.data["app"]) for e in s.traced if e.kind == "deliver"] == [(1, False)]


def test_a_request_for_everything_costs_no_more_than_the_limit() -> None:
    s = script(ask_most=64)
    for n in range(500):
        s.send(str(n))
    s.packets()
    s.hear(B, Nakack, Ask(A, tuple((1, 2**60) for _ in range(100))))
    assert len(s.packets()) == 64
    s.hear(B, Nakack, Ask(A, ((2**50, 2**60),)))
    assert s.packets() == []


def test_a_malformed_request_is_counted_and_survived() -> None:
    s = script()
    packet = Packet(b"\x01garbage", None, Nakack.id)
    packet.sender = B
    s.up(packet)
    assert layer(s).stats["malformed"] == 1
    hear_from(s, B, 1)
    assert s.delivered() == [1]


def test_whatever_the_network_loses_is_asked_for_and_arrives_in_order() -> None:
    group = net(highest_interval=0.05)
    lost = []

    def lossy(source: Address, target: Address, packet: Packet) -> bool:
        lose = packet.carrier == MCAST and (packet.seqno * 7 + ord(target.name)) % 3 == 0 and not packet.flags & AGAIN
        lost.append(lose)
        return lose

    for round_ in range(10):
        for member in group.members.values():
            for _ in range(3):
                member.send(str(round_))
        group.run(0.01, lossy)
    group.run(1, lossy)
    assert sum(lost) > 30
    for member in group.members.values():
        packets = member.arrived()
        for sender in (A, B, C):
            assert [p.seqno for p in packets if p.sender == sender] == list(range(1, 31))


# A lost last bundle.


def test_a_silent_sender_repeats_its_highest_number_until_it_is_stable() -> None:
    s = script(highest_interval=0.1)
    s.send("x")
    s.send("y")
    s.run(0.15)
    assert s.sent(Highest) == []  # it has only just fallen silent
    s.run(0.1)
    assert s.sent(Highest) == [(None, Highest(2))]
    s.run(0.3)
    assert s.sent(Highest) == [(None, Highest(2))] * 3
    assert s.stack.rules["nakack.highest"] == 4
    layer(s).stable(A, 2)
    s.run(5)
    assert s.sent(Highest) == []
    assert s.world.idle


def test_a_sender_that_goes_on_sending_does_not_repeat_its_highest_number() -> None:
    s = script(highest_interval=0.1)
    for _ in range(30):
        s.send("x")
        s.run(0.05)
    assert s.sent(Highest) == []


def test_a_sender_that_fell_silent_again_repeats_its_highest_number_again() -> None:
    s = script(highest_interval=0.1)
    s.send("x")
    s.run(0.1)
    layer(s).stable(A, 1)
    s.run(1)
    s.send("y")
    s.run(0.25)
    assert s.sent(Highest) == [(None, Highest(2))]


def test_a_lost_last_bundle_is_noticed_through_the_highest_number() -> None:
    s = script()
    hear_from(s, B, 1)
    s.hear(B, Nakack, Highest(3))
    s.run(0.011)
    assert s.sent(Ask) == [(B, Ask(B, ((2, 3),)))]
    assert s.stack.rules["nakack.last_lost"] == 1


def test_a_lost_only_bundle_arrives_after_all() -> None:
    group = net(highest_interval=0.1)
    group.members[A].send("x")
    group.carry(lambda source, target, packet: packet.seqno == 1)
    group.run(0.5)
    assert group.members[B].delivered() == group.members[C].delivered() == [1]


def test_a_highest_number_that_is_known_already_asks_for_nothing() -> None:
    s = script()
    hear_from(s, B, 1, 2)
    s.hear(B, Nakack, Highest(2))
    s.hear(D, Nakack, Highest(9))
    s.run(1)
    assert s.sent(Ask) == []
    assert "nakack.last_lost" not in s.stack.rules


def test_what_others_have_heard_of_is_asked_for_if_it_does_not_come_by_itself() -> None:
    s = script(highest_interval=0.1, ask_delay=0.01)
    layer(s).heard_of(B, 2)
    layer(s).heard_of(C, 1)
    s.run(0.05)
    hear_from(s, B, 1, 2)
    s.run(0.059)
    assert s.sent(Ask) == []  # it may well be on its way
    s.run(0.002)
    assert s.sent(Ask) == [(C, Ask(C, ((1, 1),)))]
    assert s.stack.rules["nakack.last_lost"] == layer(s).stats["asks"] == 1
    layer(s).heard_of(B, 3)
    s.run(1)
    assert (B, Ask(B, ((3, 3),))) in s.sent(Ask)  # and the next rumour, too


def test_what_another_says_about_our_own_stream_is_nothing_to_ask_for() -> None:
    s = script()
    layer(s).heard_of(A, 5)
    s.run(1)
    assert s.sent(Ask) == []
    s.send("x")
    s.run(0)
    assert s.delivered() == [1]


# Retention, and the bounded window.


def test_everything_is_kept_until_it_is_stable() -> None:
    s = script()
    for n in range(3):
        s.send(str(n))
    hear_from(s, B, 1, 2)
    s.run(0)
    assert layer(s).held()["unstable"] == 5
    s.packets()
    s.hear(C, Nakack, Ask(A, ((1, 3),)))
    s.hear(C, Nakack, Ask(B, ((1, 2),)))
    assert len(s.packets()) == 5
    layer(s).stable(A, 2)
    layer(s).stable(B, 1)
    assert layer(s).held()["unstable"] == 2
    s.hear(C, Nakack, Ask(A, ((1, 3),)))
    s.hear(C, Nakack, Ask(B, ((1, 2),)))
    assert [(p.sender, p.seqno) for p in s.packets()] == [(A, 3), (B, 2)]


def test_what_we_miss_ourselves_is_not_forgotten_whatever_is_said() -> None:
    s = script()
    hear_from(s, B, 1, 3)
    layer(s).stable(B, 3)
    hear_from(s, B, 2)
    assert s.delivered() == [1, 2, 3]


def test_a_full_window_blocks_and_writable_follows_when_something_is_stable() -> None:
    s = script(window=4)
    for n in range(3):
        s.send(str(n))
        assert not layer(s).full
    s.send("3")
    assert layer(s).full
    assert s.stack.rules["nakack.window_full"] == 1
    s.run(0)
    assert s.events(Writable) == []
    layer(s).stable(A, 1)
    assert s.events(Writable) == [Writable()]
    assert not layer(s).full
    layer(s).stable(A, 2)
    assert s.events(Writable) == []  # nobody waited


def test_what_is_ahead_of_the_window_is_not_kept_but_asked_for_later() -> None:
    s = script(window=10)
    hear_from(s, B, *range(2, 50))
    assert len(layer(s).streams[B].window.slots) == 9  # 2 to 10
    hear_from(s, B, 1)
    assert s.delivered() == list(range(1, 11))
    s.run(0.05)
    assert s.sent(Ask)[0] == (B, Ask(B, ((11, 20),)))


def test_what_is_too_far_ahead_to_be_kept_makes_us_ask_for_what_is_before_it() -> None:
    s = script(window=10)
    hear_from(s, B, 30)
    s.run(0.011)
    assert s.sent(Ask) == [(B, Ask(B, ((1, 10),)))]
    assert layer(s).stats == {"too_far_ahead": 1, "asks": 1}


def test_a_reopened_stream_of_which_more_is_known_to_exist_is_asked_for() -> None:
    s = script(window=10)
    hear_from(s, B, 1, 30)
    s.run(0.001)
    layer(s).open(B, 28)
    s.run(0.1)
    assert s.sent(Ask)[-1] == (B, Ask(B, ((28, 30),)))


def test_the_digest_tells_per_sender_what_was_delivered_and_what_exists() -> None:
    s = script()
    s.send("x")
    hear_from(s, B, 1, 2, 5)
    s.run(0)
    assert layer(s).digest() == {A: (1, 1), B: (2, 5), C: (0, 0)}


def test_what_is_held_back_is_told_and_is_nothing_when_all_is_stable() -> None:
    s = script()
    hear_from(s, B, 1, 3)
    assert s.stack.held() == {"NAKACK.unstable": 3, "NAKACK.undelivered": 2}
    hear_from(s, B, 2)
    layer(s).stable(B, 3)
    assert s.stack.held() == {"NAKACK.unstable": 0, "NAKACK.undelivered": 0}


# Members that leave, and streams that go on elsewhere.


def test_a_departed_members_bundles_are_kept_for_those_who_miss_some_and_then_forgotten() -> None:
    s = script(keep_departed=10.0)
    hear_from(s, B, 1, 2)
    s.view(A, C)
    assert s.stack.rules["nakack.departed_kept"] == 1
    s.run(9.9)
    s.hear(C, Nakack, Ask(B, ((1, 2),)))
    assert [p.seqno for p in s.packets()] == [1, 2]
    s.run(0.2)
    assert not layer(s).has(B)
    s.hear(C, Nakack, Ask(B, ((1, 2),)))
    assert s.packets() == []
    assert layer(s).has(C)


def test_how_far_those_were_who_left_long_ago_is_remembered_of_a_bounded_number() -> None:
    s = script(keep_departed=0.1)
    strangers = [Address(f"stranger{number}", 1) for number in range(BURIED_MAX + 3)]
    for stranger in strangers:
        layer(s).open(stranger, 1)
    s.view(A, B, C)
    s.run(0.2)
    assert len(layer(s)._buried) == BURIED_MAX
    assert s.events(StreamEnded) == [StreamEnded(stranger, MCAST, 0) for stranger in strangers[:3]]


def test_each_departed_member_has_its_own_time() -> None:
    s = script(keep_departed=10.0)
    s.view(A, C)
    s.run(6)
    s.view(A)
    s.run(6)
    assert (layer(s).has(B), layer(s).has(C)) == (False, True)
    s.run(10)
    assert not layer(s).has(C)
    assert layer(s).has(A)


def test_a_departed_member_holds_nothing_back() -> None:
    s = script()
    hear_from(s, B, 1, 3)
    s.view(A, C)
    assert not any(s.stack.held().values())


def test_a_member_that_returns_in_time_keeps_its_stream() -> None:
    s = script(keep_departed=10.0)
    hear_from(s, B, 1)
    s.view(A, C)
    s.run(5)
    s.view(A, B, C)
    s.run(20)
    hear_from(s, B, 2)
    assert s.delivered() == [1, 2]


def test_a_stream_begins_at_the_number_that_is_stated() -> None:
    s = script()
    layer(s).open(D, 8)
    hear_from(s, D, 7, 8)
    assert s.delivered() == [8]


def test_a_stream_that_we_lost_track_of_goes_on_at_the_number_that_is_stated() -> None:
    s = script()
    hear_from(s, B, 1, 2, 4)
    assert s.delivered() == [1, 2]
    assert layer(s).open(B, 8)
    hear_from(s, B, 3, 7, 8)
    assert s.delivered() == [8]
    assert layer(s).stats["reopened"] == s.stack.rules["nakack.reopened"] == 1


def test_a_stream_that_we_are_past_is_not_set_back() -> None:
    s = script()
    hear_from(s, B, 1, 2, 3)
    assert not layer(s).open(B, 4)
    assert not layer(s).open(B, 1)
    hear_from(s, B, 3, 4)
    assert s.delivered() == [1, 2, 3, 4]
    assert "nakack.reopened" not in s.stack.rules


def test_what_came_before_the_stated_number_was_known_is_delivered_from_it_on() -> None:
    s = script()
    hear_from(s, B, 1, 5, 6, 9)
    assert s.delivered() == [1]
    layer(s).open(B, 5)
    s.run(0)
    assert s.delivered() == [5, 6]
    s.run(0.05)
    assert s.sent(Ask)[0] == (B, Ask(B, ((7, 8),)))


def test_a_reopened_stream_stays_in_order_if_more_of_it_comes_in_the_same_turn() -> None:
    s = script()
    hear_from(s, B, 1, 5, 6)
    layer(s).open(B, 5)
    s.floor.pass_up([multicast(B, 7)])  # no turn of the loop between the two
    s.run(0)
    assert s.delivered() == [1, 5, 6, 7]


def test_a_view_is_passed_on_to_the_layers_below() -> None:
    s = script()
    heard: list[Event] = []
    s.floor.down_event = heard.append  # type: ignore[method-assign, assignment]
    s.view(A, B)
    assert [type(event) for event in heard] == [ViewChange]


def test_a_stopped_member_says_nothing_more() -> None:
    s = script()
    s.send("x")
    hear_from(s, B, 2)
    s.hear(C, Nakack, Highest(3))
    layer(s).heard_of(C, 5)
    s.view(A, B)
    s.stack.stop()
    s.floor.out.clear()
    s.run(100)
    assert s.floor.out == []
    assert layer(s).has(C)


# At random.


@given(st.lists(st.tuples(st.sampled_from([B, C]), st.integers(1, 25)), max_size=120))
def test_whatever_comes_in_whatever_order_is_delivered_once_in_order_without_holes(
    arrivals: list[tuple[Address, int]],
) -> None:
    s = script(window=10)
    for sender, number in arrivals:
        hear_from(s, sender, number)
    packets = s.arrived()
    for sender in (B, C):
        got = [p.seqno for p in packets if p.sender == sender]
        assert got == list(range(1, len(got) + 1))
        window = layer(s).streams[sender].window
        assert len(window.slots) <= len(got) + 10
