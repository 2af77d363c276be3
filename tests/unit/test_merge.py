"""MERGE over TCP in a simulated network: who is told of which view, and what follows from what is heard."""

from __future__ import annotations

from itertools import pairwise

import pytest
from transport_rig import Member, SimGroup

from coterie.group.events import Announce, Event, MergeFound, OtherView, PeerConnected, ViewChange
from coterie.group.members import Address, View, ViewId
from coterie.group.packet import APP, Packet
from coterie.group.protocol import Protocol
from coterie.group.protocols.merge import FRESH, HEARD_MAX, Info, Merge, MergeSettings
from coterie.group.protocols.tcp import Tcp

INTERVAL = 1.0
LONGEST = 1.25 * INTERVAL
"""Between two announcements of one member, at most."""
NETWORK = 0.05
"""More than any packet here takes."""


class Tap(Protocol):
    """Stands above the transport and keeps what MERGE sends and gets."""

    name, id = "TAP", 253

    def __init__(self) -> None:
        super().__init__()
        self.sent: list[tuple[float, Address]] = []
        self.events: list[Event] = []

    def down(self, packet: Packet) -> None:
        if packet.proto == Merge.id and packet.dest is not None:
            self.sent.append((self.runtime.now(), packet.dest))
        self.pass_down(packet)

    def down_event(self, event: Event) -> None:
        self.events.append(event)
        super().down_event(event)


def boot(group: SimGroup, name: str) -> Member:
    return group.boot(name, Tcp(), Tap(), Merge(MergeSettings(interval=INTERVAL)))


def connected(group: SimGroup, names: str) -> list[Member]:
    """Processes that reach each other, and have no view yet."""
    members = [boot(group, name) for name in names]
    for member in members:
        member.find(*[other for other in members if other is not member])
    group.run(0.2)
    for member in members:
        assert len(member.peers) == len(names) - 1
    forget(*members)
    return members


def forget(*members: Member) -> None:
    for member in members:
        member.top.events.clear()
        tap(member).sent.clear()
        tap(member).events.clear()


def tap(member: Member) -> Tap:
    return member.stack.find(Tap)


def told(member: Member) -> list[Address]:
    """Whom it told of its view, since we last forgot."""
    return [dest for _, dest in tap(member).sent]


def view(counter: int, *members: Member) -> View:
    return View(ViewId(counter, members[0].local), tuple(member.local for member in members))


def enter(view: View, *members: Member) -> None:
    """Membership installs the view at these."""
    for member in members:
        member.stack.view = view
        member.stack.below(member.top).down_event(ViewChange(view))


def others(member: Member) -> list[OtherView]:
    return [event for event in member.top.events if isinstance(event, OtherView)]


def found(member: Member) -> list[tuple[Address, ...]]:
    return [event.coordinators for event in member.top.events if isinstance(event, MergeFound)]


def split(group: SimGroup, names: str) -> list[Member]:
    """The first of them has a view of its own, the others are in one together."""
    members = connected(group, names)
    enter(view(1, members[0]), members[0])
    enter(view(1, *members[1:]), *members[1:])
    group.run(NETWORK)
    forget(*members)
    return members


# Who is told.


def test_a_process_that_comes_into_reach_is_told_at_once_which_view_we_are_in() -> None:
    group = SimGroup()
    a, b = boot(group, "a"), boot(group, "b")
    enter(view(4, a), a)
    b.find(a)
    group.run(NETWORK)
    assert set(others(b)) == {OtherView(a.local, ViewId(4, a.local), a.local, False)}
    assert a.stack.rules["merge.told_at_once"] == 1


def test_a_process_without_a_view_says_so() -> None:
    group = SimGroup()
    a, b = boot(group, "a"), boot(group, "b")
    b.find(a)
    group.run(NETWORK)
    assert {event.view for event in others(b)} == {ViewId(0, a.local)}
    assert {event.view for event in others(a)} == {ViewId(0, b.local)}


def test_a_coordinator_tells_everybody_at_the_interval_and_not_in_step_with_others() -> None:
    group = SimGroup()
    a, b, c = connected(group, "abc")
    enter(view(1, a, b), a, b)
    enter(view(1, c), c)
    group.run(NETWORK)
    forget(a, b, c)
    group.run(20 * INTERVAL)
    times = [[at for at, dest in tap(member).sent if dest == b.local] for member in (a, c)]
    for own in times:
        pauses = [later - earlier for earlier, later in pairwise(own)]
        assert all(pause <= LONGEST + 0.001 for pause in pauses)
        assert len({round(pause, 6) for pause in pauses}) > 5  # whoever collides once does not collide for ever
    assert set(told(a)) == {b.local, c.local}


def test_a_member_that_is_no_coordinator_tells_its_coordinator_and_those_outside_its_view() -> None:
    group = SimGroup()
    a, b, c, d = connected(group, "abcd")
    enter(view(1, a, b, c), a, b, c)
    group.run(NETWORK)
    forget(b)
    group.run(10 * INTERVAL)
    assert set(told(b)) == {a.local, d.local}


def test_a_view_is_told_at_once_to_those_who_are_not_in_it() -> None:
    group = SimGroup()
    a, b, c, d = connected(group, "abcd")
    enter(view(1, a, b), a)
    assert told(a) == [c.local, d.local]
    group.run(NETWORK)
    assert OtherView(a.local, ViewId(1, a.local), a.local, False) in others(c)
    assert others(b) == []


def test_whoever_is_asked_to_announce_tells_everybody_at_once() -> None:
    group = SimGroup()
    a, b, c = connected(group, "abc")
    enter(view(1, a, b, c), a, b, c)
    group.run(NETWORK)
    forget(b)
    b.stack.below(b.top).down_event(Announce())
    assert told(b) == [a.local, c.local]
    assert tap(b).events == []  # nobody further down needs to know


def test_whoever_hears_of_another_view_answers_with_its_own_though_not_without_end() -> None:
    group = SimGroup()
    a, b, c = connected(group, "abc")
    enter(view(2, a, b, c), a, c)
    enter(view(1, a, b, c), b)  # it missed a view
    group.run(INTERVAL / 4 + NETWORK)  # whoever was answered just now is not answered again
    forget(a, b, c)
    a.stack.below(a.top).down_event(Announce())
    group.run(INTERVAL / 8)
    assert told(b) == [a.local]
    assert told(a) == [b.local, c.local, b.local]  # it heard of the other view, too, and answered once
    assert others(a) == [OtherView(b.local, ViewId(1, a.local), a.local, True)]
    assert {(event.view, event.ours) for event in others(b)} == {(ViewId(2, a.local), True)}


# What is heard.


def test_the_view_that_we_are_in_is_no_news() -> None:
    group = SimGroup()
    a, b = connected(group, "ab")
    enter(view(1, a, b), a, b)
    group.run(10 * INTERVAL)
    assert [others(member) + list(found(member)) for member in (a, b)] == [[], []]


def test_another_view_is_reported_with_its_coordinator_and_whether_we_are_in_it() -> None:
    group = SimGroup()
    a, b, c = connected(group, "abc")
    enter(view(3, c, a, b), a)
    group.run(NETWORK)
    forget(b, c)
    a.stack.below(a.top).down_event(Announce())
    enter(view(1, b), b)
    group.run(NETWORK)
    assert others(b) == [OtherView(a.local, ViewId(3, c.local), c.local, True)]
    assert OtherView(b.local, ViewId(1, b.local), b.local, False) in others(a)
    assert b.stack.rules["merge.other_view"] >= 1


def test_members_in_different_views_learn_of_each_other_within_two_intervals_after_they_are_joined_again() -> None:
    group = SimGroup()
    a, b, c, d = connected(group, "abcd")
    for one in "ab":
        for other in "cd":
            group.part(one, other)
    enter(view(1, a, b), a, b)
    enter(view(1, c, d), c, d)
    group.run(5 * INTERVAL)
    assert [found(member) for member in (a, b, c, d)] == [[]] * 4
    for one in "ab":
        for other in "cd":
            group.heal(one, other)
    group.run(2 * LONGEST + NETWORK)
    both = (a.local, c.local)
    assert both in found(a)
    assert both in found(c)
    assert {event.peer for event in others(b)} >= {c.local}  # and everybody hears of the other view
    assert {event.peer for event in others(d)} >= {a.local}


# Other coordinators.


def test_a_coordinator_that_hears_of_another_one_finds_a_merge() -> None:
    group = SimGroup()
    a, b, c = split(group, "abc")
    group.run(2 * LONGEST)
    assert set(found(a)) == {(a.local, b.local)}
    assert set(found(b)) == {(a.local, b.local)}  # both know all, in the same order: one of them will act
    assert found(c) == []
    assert a.stack.rules["merge.found"] == len(found(a))


def test_a_merge_names_all_coordinators_that_are_known() -> None:
    group = SimGroup()
    members = connected(group, "dbca")
    for member in members:
        enter(view(1, member), member)
    group.run(2 * LONGEST)
    assert found(members[0])[-1] == tuple(sorted(member.local for member in members))


def test_only_what_a_coordinator_says_of_itself_counts() -> None:
    group = SimGroup()
    a, b, c = connected(group, "abc")
    enter(view(1, b, c), c)  # c says that b coordinates; b says nothing of the kind
    enter(view(1, a), a)
    group.run(5 * INTERVAL)
    assert found(a) == []
    assert c.local in {event.peer for event in others(a)}


def test_a_process_without_a_view_neither_finds_a_merge_nor_is_found() -> None:
    group = SimGroup()
    a, b = connected(group, "ab")
    enter(view(1, a), a)
    group.run(5 * INTERVAL)
    assert found(a) == []
    assert found(b) == []


def test_a_member_of_our_view_that_is_still_in_its_own_is_no_merge() -> None:
    group = SimGroup()
    a, b = connected(group, "ab")
    enter(view(1, b), b)
    group.run(NETWORK)
    enter(view(2, a, b), a)  # b has not got it yet
    group.run(3 * INTERVAL)
    assert found(a) == []
    assert others(a) != []


@pytest.mark.parametrize("gone", ["silent", "closed"])
def test_a_coordinator_that_is_gone_is_not_found_for_long(gone: str) -> None:
    group = SimGroup()
    a, b = connected(group, "ab")
    enter(view(1, a), a)
    enter(view(1, b), b)
    group.run(2 * LONGEST)
    assert found(a) != []
    if gone == "silent":
        group.part("a", "b")
        group.run(FRESH * INTERVAL + NETWORK)
    else:
        assert b.node is not None
        b.node.crash()
        group.run(NETWORK)
    forget(a)
    group.run(5 * INTERVAL)
    assert found(a) == []


# Its place in the stack.


def test_other_traffic_and_events_pass() -> None:
    group = SimGroup()
    a, b = boot(group, "a"), boot(group, "b")
    b.find(a)
    group.run(NETWORK)
    assert PeerConnected(b.local) in a.top.events
    a.send(b"hello", b.local, proto=APP)
    group.run(NETWORK)
    assert b.bodies == [b"hello"]
    change = ViewChange(view(1, a, b))
    forget(a)
    a.stack.below(a.top).down_event(change)
    assert tap(a).events == [change]


def test_a_malformed_announcement_is_counted_and_survived() -> None:
    group = SimGroup()
    a, b = split(group, "ab")
    a.send(b"\xff\xff", b.local, proto=Merge.id)
    group.run(NETWORK)
    assert b.stack.find(Merge).stats["malformed"] == 1
    group.run(2 * LONGEST)
    assert found(b) != []


def test_announcements_under_many_names_are_kept_in_a_bounded_number() -> None:
    group = SimGroup()
    a, _ = connected(group, "ab")
    merge = a.stack.find(Merge)
    for number in range(2 * HEARD_MAX):
        peer = Address(f"stranger{number}", 1)
        packet = Packet(Merge.codec.encode(Info(ViewId(3, peer), peer, False)), None, Merge.id)
        packet.sender = peer
        merge.up([packet])
    assert len(merge._heard) == HEARD_MAX
    assert len(merge._told) <= HEARD_MAX
    assert merge.stats["too_many"] >= HEARD_MAX
    group.run(4 * LONGEST)
    assert len(merge._heard) == 1  # b


def test_a_member_that_stops_announces_nothing_more() -> None:
    group = SimGroup()
    a, _ = split(group, "ab")
    a.stack.stop()
    forget(a)
    group.run(5 * INTERVAL)
    assert told(a) == []
