"""FIXED, as scripts of messages: what docs/protocols/fixed.md says, one test for each thing."""

from __future__ import annotations

from typing import Any

import pytest
from harness import A, B, C, Net, Script, multicast

from coterie.group.events import PeerClosed, PeerConnected, StreamOpened, Suspect, Unsuspect, ViewChange
from coterie.group.members import Address
from coterie.group.packet import APP, MCAST, TRAIN, TRAIN_END, TRAIN_START, Packet
from coterie.group.protocols.fixed import Bye, Fixed, FixedSettings, Joined, Welcome
from coterie.group.protocols.nakack import Nakack, NakackSettings

B2 = Address("b", 2)
EVERY = 0.1
"""Seconds between repeated welcomes."""


def script(local: Address = A, **nakack: float) -> Script:
    s = Script(
        Nakack(NakackSettings(**nakack)),  # type: ignore[arg-type]
        Fixed(FixedSettings(welcome_interval=EVERY)),
        local=local,
        members=(local,),
    )
    s.roof.events.clear()
    return s


def connected(s: Script, *peers: Address) -> Script:
    for peer in peers:
        s.event(PeerConnected(peer))
    return s


def joined(s: Script, *peers: Address) -> Script:
    """These are in the view, and both sides know where the streams start."""
    connected(s, *peers)
    for peer in peers:
        s.hear(peer, Fixed, Welcome(1, 1, False))
        s.hear(peer, Fixed, Joined(1))
    s.floor.out.clear()
    s.roof.events.clear()
    return s


def members(s: Script) -> list[str]:
    return [str(m) for m in s.stack.view.members]


def welcomes(s: Script) -> list[tuple[Any, Welcome]]:
    return s.sent(Welcome)


# Who is in.


def test_a_member_begins_alone_in_a_view_of_its_own() -> None:
    s = script()
    assert members(s) == ["a#1"]
    assert s.stack.view.id.creator == A


def test_a_peer_that_can_be_reached_is_in_the_view_and_everybody_is_told() -> None:
    s = connected(script(), B)
    assert members(s) == ["a#1", "b#1"]
    assert s.events(ViewChange) == [ViewChange(s.stack.view)]


def test_views_rise_and_list_their_members_in_the_same_order_everywhere() -> None:
    s = script()
    before = s.stack.view.id
    connected(s, C, B)
    assert members(s) == ["a#1", "b#1", "c#1"]
    assert s.stack.view.id > before


def test_a_peer_that_is_in_already_changes_nothing() -> None:
    s = joined(script(), B)
    view = s.stack.view
    connected(s, B)
    s.event(Unsuspect((B,)))
    assert s.stack.view is view
    assert s.floor.out == []


def test_a_suspected_member_is_removed() -> None:
    s = joined(script(), B, C)
    s.event(Suspect((B,), False))
    assert members(s) == ["a#1", "c#1"]
    assert s.stack.rules["fixed.removed"] == 1


def test_a_member_whose_death_is_proven_is_removed() -> None:
    s = joined(script(), B, C)
    s.event(PeerClosed(B, False))
    assert members(s) == ["a#1", "b#1", "c#1"]  # a closed connection alone is no proof
    s.event(PeerClosed(B, True))
    assert members(s) == ["a#1", "c#1"]


def test_a_member_never_removes_itself() -> None:
    s = joined(script(), B)
    s.event(Suspect((A,), True))
    assert members(s) == ["a#1", "b#1"]


def test_a_suspicion_of_someone_else_installs_no_view() -> None:
    s = joined(script(), B)
    view = s.stack.view
    s.event(Suspect((C,), True))
    assert s.stack.view is view


def test_a_process_that_has_our_own_name_is_not_let_in() -> None:
    s = connected(script(), Address("a", 7))
    assert members(s) == ["a#1"]


def test_events_from_below_go_on_to_the_layers_above() -> None:
    s = script()
    s.event(PeerConnected(B))
    s.event(Suspect((B,), False))
    assert s.events(PeerConnected) == [PeerConnected(B)]
    assert s.events(Suspect) == [Suspect((B,), False)]


# Where streams start.


def test_a_new_member_is_told_that_our_stream_starts_with_the_next_bundle() -> None:
    s = script()
    s.send("before")
    s.send("before")
    connected(s, B)
    assert welcomes(s) == [(B, Welcome(1, 3, True))]
    assert s.stack.rules["fixed.welcome"] == 1


def send_part(s: Script, flags: int) -> None:
    s.roof.pass_down(Packet(b"x", None, APP, MCAST, TRAIN | flags))


def test_a_member_that_comes_in_the_middle_of_a_train_is_in_the_view_at_once_and_welcomed_behind_the_train() -> None:
    s = script()
    send_part(s, TRAIN_START)
    connected(s, B)
    assert members(s) == ["a#1", "b#1"]
    send_part(s, 0)
    s.run(1)
    assert welcomes(s) == []
    send_part(s, TRAIN_END)
    s.run(0)
    assert welcomes(s) == [(B, Welcome(1, 4, True))]
    assert s.stack.rules["fixed.waits"] == 1


def test_a_member_that_waits_is_neither_owed_our_bundles_nor_asked_for_credit() -> None:
    s = script()
    send_part(s, TRAIN_START)
    s.roof.events.clear()
    connected(s, B)
    assert s.events(ViewChange) == [ViewChange(s.stack.view, (B,))]
    send_part(s, TRAIN_END)
    s.run(0)
    assert s.events(ViewChange) == [ViewChange(s.stack.view)]


def test_members_that_wait_for_each_other_in_the_middle_of_trains_do_not_wait_for_ever() -> None:
    """Each is in the middle of a message when it meets the other: each takes the other's stream all the same."""
    s = script()
    send_part(s, TRAIN_START)
    connected(s, B)
    s.hear(B, Fixed, Welcome(1, 1, True))
    assert s.stack.find(Nakack).has(B)
    assert s.sent(Joined) == [(B, Joined(1))]
    assert welcomes(s) == []


def test_a_peer_that_is_lost_again_before_the_train_has_ended_is_not_let_in() -> None:
    s = script()
    send_part(s, TRAIN_START)
    connected(s, B, C)
    s.event(Suspect((B,), False))
    send_part(s, TRAIN_END)
    s.run(0)
    assert members(s) == ["a#1", "c#1"]


def test_a_welcome_opens_the_stream_at_its_number_and_is_answered() -> None:
    s = connected(script(), B)
    s.roof.events.clear()
    s.hear(B, Fixed, Welcome(1, 5, False))
    assert s.sent(Joined) == [(B, Joined(1))]
    assert s.events(StreamOpened) == [StreamOpened(B, 5)]
    s.up(multicast(B, 4), multicast(B, 5))
    assert s.delivered() == [5]


def test_a_welcome_is_repeated_until_it_is_answered() -> None:
    s = connected(script(), B)
    first = welcomes(s)
    s.run(3 * EVERY + 0.001)
    assert welcomes(s) == first * 3
    assert s.stack.rules["fixed.welcome_repeated"] == 3
    s.hear(B, Fixed, Joined(1))
    s.run(60)
    assert welcomes(s) == []
    assert s.world.idle


def test_a_repeated_welcome_states_the_same_start_whatever_was_sent_since() -> None:
    s = connected(script(), B)
    s.send("x")
    s.run(EVERY + 0.001)
    assert welcomes(s) == [(B, Welcome(1, 1, True))] * 2


def test_each_guest_is_repeated_to_until_it_has_answered_itself() -> None:
    s = connected(script(), B, C)
    welcomes(s)
    s.hear(B, Fixed, Joined(1))
    s.run(EVERY + 0.001)
    assert [dest for dest, _ in welcomes(s)] == [C]


def test_a_welcome_says_whether_we_have_a_stream_of_the_guest() -> None:
    s = connected(script(), B)
    s.hear(B, Fixed, Welcome(1, 1, False))
    welcomes(s)
    s.run(EVERY + 0.001)
    assert [welcome.want for _, welcome in welcomes(s)] == [False]


def test_a_welcome_that_comes_again_is_answered_again_and_changes_nothing() -> None:
    s = joined(script(), B)
    s.up(multicast(B, 1), multicast(B, 2))
    view = s.stack.view
    s.hear(B, Fixed, Welcome(1, 1, False))
    assert s.sent(Joined) == [(B, Joined(1))]
    assert s.stack.view is view
    assert s.events(StreamOpened) == []
    s.up(multicast(B, 2), multicast(B, 3))
    assert s.delivered() == [1, 2, 3]


def test_a_welcome_of_an_earlier_epoch_is_ignored() -> None:
    s = connected(script(), B)
    s.hear(B, Fixed, Welcome(2, 10, False))
    s.sent(Joined)
    s.roof.events.clear()
    s.hear(B, Fixed, Welcome(1, 50, False))
    assert s.sent(Joined) == []
    s.up(multicast(B, 10))
    assert s.delivered() == [10]
    assert s.events(StreamOpened) == []


def test_an_answer_to_an_earlier_welcome_does_not_count() -> None:
    s = joined(script(), B)
    s.event(Suspect((B,), False))
    s.event(Unsuspect((B,)))
    assert [welcome.epoch for _, welcome in welcomes(s)] == [2]
    s.hear(B, Fixed, Joined(1))
    s.run(EVERY + 0.001)
    assert [welcome.epoch for _, welcome in welcomes(s)] == [2]
    s.hear(B, Fixed, Joined(2))
    s.run(1)
    assert welcomes(s) == []


def test_a_welcome_from_someone_outside_the_view_waits_until_it_is_in() -> None:
    s = script()
    s.hear(B, Fixed, Welcome(1, 1, True))
    assert s.floor.out == []
    connected(s, B)
    s.hear(B, Fixed, Welcome(1, 1, True))
    assert s.sent(Joined) == [(B, Joined(1))]


def test_a_welcome_from_someone_who_was_removed_waits_until_it_is_back() -> None:
    s = joined(script(), B)
    s.event(Suspect((B,), False))
    s.hear(B, Fixed, Welcome(2, 9, False))
    s.hear(B, Fixed, Bye())
    assert s.sent(Joined) == []
    s.event(Unsuspect((B,)))
    s.hear(B, Fixed, Welcome(2, 9, False))
    assert s.sent(Joined) == [(B, Joined(2))]


def test_a_welcome_to_number_nought_makes_no_sense_and_is_ignored() -> None:
    s = connected(script(), B)
    s.hear(B, Fixed, Welcome(1, 0, False))
    assert s.sent(Joined) == []
    assert not s.stack.find(Nakack).has(B)


def test_a_malformed_message_is_counted_and_survived() -> None:
    s = joined(script(), B)
    packet = Packet(b"\x09", None, Fixed.id)
    packet.sender = B
    s.up(packet, multicast(B, 1))
    assert s.stack.find(Fixed).stats["malformed"] == 1
    assert s.delivered() == [1]


def test_a_lost_stream_is_asked_for_and_welcomed_again_where_it_is_now() -> None:
    s = joined(script(), B)
    s.send("x")
    s.hear(B, Fixed, Welcome(1, 1, True))  # B has lost our stream
    assert welcomes(s) == [(B, Welcome(2, 2, False))]
    assert s.stack.rules["fixed.welcome_wanted"] == 1
    s.hear(B, Fixed, Welcome(1, 1, True))  # and asks once more before it got that
    assert welcomes(s) == [(B, Welcome(2, 2, False))]


@pytest.mark.parametrize("welcome_first", [True, False])
def test_what_came_in_the_same_batch_as_a_welcome_is_delivered_before_the_stream_opens_anew(
    welcome_first: bool,
) -> None:
    s = joined(script(), B)
    welcome = Packet(Fixed.codec.encode(Welcome(2, 7, False)), None, Fixed.id)
    welcome.sender = B
    s.roof.log.clear()
    s.up(*((welcome, multicast(B, 1)) if welcome_first else (multicast(B, 1), welcome)), multicast(B, 7))
    log = [entry for entry in s.roof.log if not isinstance(entry, ViewChange)]
    assert [entry.seqno if isinstance(entry, Packet) else entry for entry in log] == [1, StreamOpened(B, 7), 7]


# Coming back.


def test_a_member_that_was_suspected_in_error_is_welcomed_again() -> None:
    s = joined(script(), B)
    s.send("1")
    s.event(Suspect((B,), False))
    s.send("2")
    s.event(Unsuspect((B,)))
    assert members(s) == ["a#1", "b#1"]
    assert welcomes(s) == [(B, Welcome(2, 3, False))]
    assert s.stack.rules["fixed.returned"] == 1


def test_a_later_welcome_opens_the_stream_again_beyond_what_was_missed() -> None:
    s = joined(script(), B)
    s.up(multicast(B, 1), multicast(B, 3))
    s.hear(B, Fixed, Welcome(2, 7, False))
    assert s.sent(Joined) == [(B, Joined(2))]
    assert s.events(StreamOpened) == [StreamOpened(B, 7)]
    s.up(multicast(B, 7))
    s.run(0)
    assert s.delivered() == [1, 7]


def test_a_later_welcome_to_where_we_are_anyway_breaks_nothing() -> None:
    s = joined(script(), B)
    s.up(multicast(B, 1), multicast(B, 2))
    s.hear(B, Fixed, Welcome(2, 3, False))
    assert s.sent(Joined) == [(B, Joined(2))]
    assert s.events(StreamOpened) == []
    s.up(multicast(B, 3))
    assert s.delivered() == [1, 2, 3]


def test_a_member_that_returns_after_its_stream_was_dropped_asks_to_be_welcomed() -> None:
    s = joined(script(keep_departed=5.0), B)
    s.event(Suspect((B,), False))
    s.run(6)
    s.event(Unsuspect((B,)))
    assert [welcome.want for _, welcome in welcomes(s)] == [True]


def test_a_new_incarnation_replaces_the_old_one() -> None:
    s = joined(script(), B, C)
    connected(s, B2)
    assert members(s) == ["a#1", "b#2", "c#1"]
    assert welcomes(s) == [(B2, Welcome(1, 1, True))]
    assert s.stack.rules["fixed.reincarnated"] == 1


def test_an_old_incarnation_does_not_come_back() -> None:
    s = connected(joined(script(), B), B2)
    s.event(Unsuspect((B,)))
    connected(s, B)
    assert members(s) == ["a#1", "b#2"]


def test_a_new_incarnation_of_someone_who_was_removed_is_let_in_and_the_old_one_is_not() -> None:
    s = joined(script(), B)
    s.event(Suspect((B,), True))
    connected(s, B2)
    s.event(Unsuspect((B,)))
    assert members(s) == ["a#1", "b#2"]


def test_a_member_that_says_good_bye_is_removed_at_once_and_does_not_come_back() -> None:
    s = joined(script(), B)
    s.hear(B, Fixed, Bye())
    assert members(s) == ["a#1"]
    assert s.stack.rules["fixed.bye"] == 1
    connected(s, B)
    assert members(s) == ["a#1"]
    connected(s, B2)
    assert members(s) == ["a#1", "b#2"]


def test_a_member_that_stops_says_good_bye() -> None:
    s = joined(script(), B)
    s.stack.stop()
    assert s.sent(Bye) == [(None, Bye())]
    s.run(60)
    assert s.floor.out == []


# Together.


def test_members_that_meet_get_each_others_multicasts_without_a_hole_although_every_first_welcome_is_lost() -> None:
    group = Net(*(script(local) for local in (A, B, C)))
    lost: set[tuple[Address, Address]] = set()

    def network(source: Address, target: Address, packet: Packet) -> bool:
        if packet.proto == Fixed.id and (source, target) not in lost:
            lost.add((source, target))
            return True
        return False

    for local, member in group.members.items():
        connected(member, *(other for other in group.members if other != local))
        member.send("1")
        member.send("2")
    group.run(1, network)
    assert len(lost) == 6
    for member in group.members.values():
        packets = member.arrived()
        assert {sender: [p.seqno for p in packets if p.sender == sender] for sender in (A, B, C)} == {
            A: [1, 2], B: [1, 2], C: [1, 2]
        }  # fmt: skip


def test_after_a_one_sided_suspicion_both_go_on_without_a_hole_from_where_they_are_told() -> None:
    group = Net(script(A), script(B))
    a, b = group.members[A], group.members[B]
    connected(a, B)
    connected(b, A)
    group.run(0.5)
    a.send("1")
    group.run(0.1)
    a.event(Suspect((B,), False))
    a.send("2 is not for b")
    group.run(0.1)
    a.event(Unsuspect((B,)))
    a.send("3")
    b.send("1")
    group.run(1)
    assert [p.seqno for p in b.arrived() if p.sender == A] == [1, 3]
    assert [p.seqno for p in a.arrived() if p.sender == B] == [1]
