"""FAILURE over TCP (and the simulated network): who is suspected, when, and who is trusted again."""

from __future__ import annotations

import pytest
from transport_rig import Member, SimGroup

from coterie.errors import UserError
from coterie.group.packet import AGAIN, MCAST, Packet
from coterie.group.protocols.failure import Failure, FailureSettings
from coterie.group.protocols.tcp import Tcp
from coterie.sim.link import Conditions

WITHIN = 3.0 + 2 * 0.5 + 4 / 3 + 0.1
"""What the module promises with its default settings, and a little for the network."""


def boot(group: SimGroup, name: str) -> Member:
    return group.boot(name, Tcp(), Failure())


def gang(group: SimGroup, names: str) -> list[Member]:
    """Members in one view that heard each other for a while."""
    members = [boot(group, name) for name in names]
    for member in members:
        member.find(*[other for other in members if other is not member])
    group.run(1.0)
    for member in members:
        member.see(*members)
    group.run(5.0)
    for member in members:
        member.top.events.clear()
    return members


def failure(member: Member) -> Failure:
    return member.stack.find(Failure)


def suspicions(member: Member) -> list[str]:
    return [event for event in member.events if "suspect" in event]


def test_nobody_is_suspected_without_a_reason() -> None:
    group = SimGroup()
    members = gang(group, "abcd")
    group.run(120.0)
    assert [member.events for member in members] == [[]] * 4
    assert [failure(member).suspects() for member in members] == [[]] * 4


def test_a_killed_process_is_suspected_with_proof_at_once() -> None:
    group = SimGroup()
    a, b, c = gang(group, "abc")
    assert c.node is not None
    c.node.crash()
    group.run(0.1)
    for member in (a, b):
        assert member.events == ["-c#1", "!c#1", "suspect! c#1"]
        assert failure(member).suspects() == [c.local]
        assert member.stack.rules["failure.proof"] == 1


def test_a_silent_host_is_suspected_without_proof_within_the_promised_time() -> None:
    group = SimGroup()
    a, b, c = gang(group, "abc")
    assert c.node is not None
    c.node.crash(silent=True)
    group.run(3.0)
    assert (suspicions(a), suspicions(b)) == ([], [])
    group.run(WITHIN - 3.0)
    assert (suspicions(a), suspicions(b)) == (["suspect c#1"], ["suspect c#1"])
    assert a.stack.rules["failure.silent"] == 1
    assert a.stack.rules["failure.suspected"] == 1


def test_members_cut_off_together_are_suspected_in_one_event() -> None:
    group = SimGroup()
    a, b, c, d = gang(group, "abcd")
    for one in "ab":
        for other in "cd":
            group.part(one, other)
    group.run(WITHIN)
    assert suspicions(a) == ["suspect c#1 d#1"]
    assert suspicions(d) == ["suspect a#1 b#1"]
    assert failure(b).suspects() == [c.local, d.local]


def test_a_connection_that_breaks_and_comes_back_is_no_suspicion() -> None:
    group = SimGroup()
    a, b = gang(group, "ab")
    for _ in range(3):
        a.transport.drop_connection(b.local)
        group.run(1.0)
    assert suspicions(a) == []
    assert suspicions(b) == []
    assert a.stack.rules["failure.closed"] == 3
    assert a.stack.rules["failure.verified_alive"] == 3


def test_a_broken_connection_to_somebody_cut_off_is_suspected_after_the_second_look() -> None:
    group = SimGroup()
    a, b = gang(group, "ab")
    group.part("a", "b")
    a.transport.drop_connection(b.local)
    group.run(0.9)
    assert suspicions(a) == []
    group.run(0.5)
    assert suspicions(a) == ["suspect b#1"]


def test_a_suspected_member_that_is_reached_again_is_trusted_again() -> None:
    group = SimGroup()
    a, b = gang(group, "ab")
    group.part("a", "b")
    group.run(20.0)
    assert suspicions(a) == ["suspect b#1"]
    group.heal("a", "b")
    group.run(8.0)
    assert suspicions(a) == ["suspect b#1", "unsuspect b#1"]
    assert suspicions(b) == ["suspect a#1", "unsuspect a#1"]
    assert failure(a).suspects() == []
    group.run(20.0)
    assert suspicions(a) == ["suspect b#1", "unsuspect b#1"]


def test_a_suspected_member_gets_a_new_connection_because_a_stuck_one_recovers_late() -> None:
    group = SimGroup()
    a, b = gang(group, "ab")
    group.part("a", "b")
    group.run(WITHIN)
    assert a.stack.rules["tcp.suspect_redialled"] == 1
    assert (a.peers, b.peers) == ([], [])


def test_a_stopped_process_is_suspected_and_trusted_again_when_it_goes_on() -> None:
    group = SimGroup()
    a, b, c = gang(group, "abc")
    assert b.node is not None
    b.node.pause()
    group.run(30.0)
    assert suspicions(a) == ["suspect b#1"]
    b.node.resume(1)
    group.run(8.0)
    assert suspicions(a) == ["suspect b#1", "unsuspect b#1"]
    assert suspicions(c) == ["suspect b#1", "unsuspect b#1"]


def test_a_process_that_was_stopped_itself_suspects_nobody_for_that_time() -> None:
    for seed in range(10):
        group = SimGroup(seed)
        a, b, _ = gang(group, "abc")
        assert b.node is not None
        b.node.pause()
        group.run(60.0)
        b.node.resume(1)
        group.run(20.0)
        assert suspicions(b) == []
        assert b.stack.rules["failure.own_pause"] > 0
        assert failure(a).suspects() == []


def test_a_process_that_was_stopped_still_notices_who_died_meanwhile() -> None:
    group = SimGroup()
    _, b, c = gang(group, "abc")
    assert b.node is not None
    assert c.node is not None
    b.node.pause()
    group.run(10.0)
    c.node.crash(silent=True)
    group.run(10.0)
    b.node.resume(1)
    group.run(WITHIN)
    assert suspicions(b) == ["suspect c#1"]


def test_one_way_silence_ends_in_suspicion_on_both_sides() -> None:
    group = SimGroup()
    a, b = gang(group, "ab")
    group.block("a", "b")
    group.run(2 * WITHIN)
    assert suspicions(b) == ["suspect a#1"]
    assert suspicions(a) == ["suspect b#1"]
    group.fabric.link("a", "b").unblock()
    group.run(8.0)
    assert (failure(a).suspects(), failure(b).suspects()) == ([], [])


def test_data_is_as_good_a_sign_of_life_as_a_heartbeat() -> None:
    """c has no failure detection of its own, so it sends no heartbeats and answers no VERIFY."""
    group = SimGroup()
    a = group.boot("a", Tcp(), Failure())
    c = group.boot("c", Tcp())
    c.find(a)
    group.run(1.0)
    a.see(a, c)
    for _ in range(60):
        c.send(b"data", a.local)
        group.run(0.5)
    assert suspicions(a) == []
    group.run(WITHIN)
    assert suspicions(a)[0] == "suspect c#1"


def test_what_is_sent_again_is_no_sign_of_life_of_its_origin() -> None:
    group = SimGroup()
    a, b, c = gang(group, "abc")
    assert c.node is not None
    c.node.crash(silent=True)
    for _ in range(int(WITHIN / 0.25)):
        again = Packet(b"of c", a.local, 0, MCAST, AGAIN)
        again.sender = c.local
        b.top.pass_down(again)
        group.run(0.25)
    assert suspicions(a) == ["suspect c#1"]


def test_a_new_incarnation_ends_the_suspicion_of_the_old_one_for_good() -> None:
    group = SimGroup()
    a, b = gang(group, "ab")
    assert b.node is not None
    b.node.crash(silent=True)
    group.run(WITHIN)
    assert failure(a).suspects() == [b.local]
    b2 = boot(group, "b")
    b2.find(a)
    group.run(8.0)
    assert suspicions(a) == ["suspect b#1", "suspect! b#1"]
    a.see(a, b2)
    group.run(1.0)
    assert failure(a).suspects() == []
    assert a.stack.rules["failure.forgotten"] == 1
    group.run(20.0)
    assert suspicions(a) == ["suspect b#1", "suspect! b#1"]


def test_suspects_that_left_the_view_do_not_pile_up() -> None:
    group = SimGroup()
    a = group.boot("a", Tcp(), Failure(FailureSettings(suspects_max=4)))
    for number in range(30):
        b = boot(group, f"b{number}")
        b.find(a)
        group.run(0.2)
        a.see(a, b)
        group.part("a", f"b{number}")
        group.run(10.0)
    assert len([event for event in suspicions(a) if event.startswith("suspect")]) == 30
    a.see(a)
    group.run(1.0)
    assert len(failure(a).suspects()) <= 4
    held = [len(value) for value in vars(failure(a)).values() if isinstance(value, dict)]
    assert max(held) <= 8


def test_suspicions_are_in_the_trace() -> None:
    group = SimGroup()
    gang(group, "ab")
    group.part("a", "b")
    group.run(WITHIN)
    group.heal("a", "b")
    group.run(8.0)
    seen = [(event.node, event.kind, event.data) for event in group.traced if "suspect" in event.kind]
    assert ("a", "suspect", {"members": ["b#1"], "proof": False}) in seen
    assert ("a", "unsuspect", {"members": ["b#1"]}) in seen


def test_messages_of_this_layer_go_no_further_and_malformed_ones_are_counted() -> None:
    group = SimGroup()
    a, b = gang(group, "ab")
    b.send(b"\xff\xff", a.local, proto=Failure.id)
    group.run(5.0)
    assert a.bodies == []
    assert failure(a).stats["malformed"] == 1


def test_a_lossy_slow_network_causes_no_lasting_suspicion() -> None:
    group = SimGroup(5, Conditions(latency=0.2, jitter=0.1, loss=0.2))
    members = gang(group, "abc")
    group.run(120.0)
    assert [failure(member).suspects() for member in members] == [[]] * 3


def test_a_time_out_shorter_than_two_heartbeats_is_refused() -> None:
    with pytest.raises(UserError, match="at least twice heartbeat_interval"):
        Failure(FailureSettings(heartbeat_interval=2.0, heartbeat_timeout=3.0))
