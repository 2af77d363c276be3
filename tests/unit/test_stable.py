"""STABLE over NAKACK, as scripts of messages: what docs/protocols/stable.md says, one test for each thing."""

from __future__ import annotations

from harness import A, B, C, Net, Script, multicast
from hypothesis import given
from hypothesis import strategies as st

from coterie.group.events import Writable
from coterie.group.members import Address
from coterie.group.packet import Packet
from coterie.group.protocols.nakack import Ask, Nakack, NakackSettings
from coterie.group.protocols.stable import Digest, Stable, StableSettings

D = Address("d", 1)
EVERY = 0.2
"""Seconds between digests."""


def script(
    local: Address = A,
    members: tuple[Address, ...] = (A, B, C),
    window: int = 1000,
    highest_interval: float = 3600.0,
    **settings: float,
) -> Script:
    s = Script(
        Nakack(NakackSettings(window=window, highest_interval=highest_interval)),
        Stable(StableSettings(**{"interval": EVERY} | settings)),  # type: ignore[arg-type]
        local=local,
        members=members,
    )
    for other in members:
        if other != local:
            nakack(s).open(other, 1)
    s.run(1)  # the first view made it look once
    s.floor.out.clear()
    return s


def nakack(s: Script) -> Nakack:
    return s.stack.find(Nakack)


def hear(s: Script, member: Address, streams: dict[Address, int], stable: int = 0, keeps: bool = False) -> None:
    """`member` says how much of each stream it has delivered."""
    s.hear(member, Stable, Digest({sender: (upto, upto) for sender, upto in streams.items()}, stable, keeps))


def send(s: Script, count: int) -> None:
    for n in range(count):
        s.send(str(n))
    s.run(0)


def net() -> Net:
    return Net(*(script(local) for local in (A, B, C)))


def is_digest(packet: Packet) -> bool:
    return packet.proto == Stable.id


# What is stable.


def test_a_sender_forgets_what_every_other_member_has_delivered_and_nothing_more() -> None:
    s = script()
    send(s, 5)
    hear(s, B, {A: 4})
    assert nakack(s).own.window.forgotten == 0  # C has said nothing yet
    hear(s, C, {A: 2})
    assert nakack(s).own.window.forgotten == 2
    hear(s, C, {A: 5})
    assert nakack(s).own.window.forgotten == 4
    assert s.stack.rules["stable.own"] == 2


def test_a_member_forgets_anothers_bundles_when_their_sender_says_so_and_not_before() -> None:
    s = script()
    s.up(*(multicast(B, n) for n in (1, 2, 3)))
    hear(s, C, {B: 3}, stable=3)  # whatever C says: it is not its stream
    assert nakack(s).streams[B].window.forgotten == 0
    hear(s, B, {B: 3}, stable=2)
    assert nakack(s).streams[B].window.forgotten == 2


def test_a_member_keeps_what_it_has_not_delivered_itself() -> None:
    s = script()
    s.up(multicast(B, 1), multicast(B, 3))
    hear(s, B, {B: 3}, stable=3)
    s.up(multicast(B, 2))
    assert s.delivered() == [1, 2, 3]


def test_an_old_digest_that_was_long_on_its_way_takes_nothing_back() -> None:
    s = script()
    send(s, 5)
    hear(s, B, {A: 5})
    hear(s, C, {A: 5})
    hear(s, B, {A: 1})
    send(s, 1)
    hear(s, C, {A: 6})
    assert nakack(s).own.window.forgotten == 5


def test_a_digest_that_tells_of_what_was_never_sent_is_counted_and_changes_nothing() -> None:
    s = script()
    send(s, 2)
    hear(s, C, {A: 2})
    hear(s, B, {A: 99})
    assert s.stack.find(Stable).stats["malformed"] == 1
    assert nakack(s).own.window.forgotten == 0


def test_a_malformed_digest_is_counted_and_survived() -> None:
    s = script()
    packet = Packet(b"\x01\xff", None, Stable.id)
    packet.sender = B
    s.up(packet, multicast(B, 1))
    assert s.stack.find(Stable).stats["malformed"] == 1
    assert s.delivered() == [1]


def test_a_digest_of_a_stranger_is_ignored() -> None:
    s = script(members=(A, B))
    send(s, 2)
    hear(s, D, {A: 2})
    assert nakack(s).own.window.forgotten == 0


def test_a_digest_tells_of_bundles_that_were_lost() -> None:
    s = script(highest_interval=0.1)
    hear(s, C, {B: 2})
    s.run(0.12)
    assert s.sent(Ask) == [(B, Ask(B, ((1, 2),)))]


def test_digests_go_no_further_up() -> None:
    s = script()
    hear(s, B, {A: 0})
    assert s.arrived() == []


def test_a_window_that_was_full_is_writable_again_when_something_is_stable() -> None:
    s = script(window=3)
    send(s, 3)
    assert nakack(s).full
    hear(s, B, {A: 1})
    hear(s, C, {A: 1})
    assert s.events(Writable) == [Writable()]


# When digests are sent.


def test_a_digest_goes_out_after_so_many_bundles() -> None:
    s = script(after_bundles=3, interval=3600.0)
    s.up(multicast(B, 1), multicast(B, 2))
    assert s.sent(Digest) == []
    s.up(multicast(B, 3))
    ((dest, digest),) = s.sent(Digest)
    assert dest is None
    assert digest.streams == {A: (0, 0), B: (3, 3), C: (0, 0)}
    assert s.stack.rules["stable.by_volume"] == 1
    s.up(multicast(B, 4), multicast(B, 5))
    assert s.sent(Digest) == []  # counted anew


def test_a_digest_goes_out_after_so_many_bytes() -> None:
    s = script(after_bytes=1000, interval=3600.0)
    s.up(multicast(B, 1, b"x" * 900))
    assert s.sent(Digest) == []
    s.up(multicast(B, 2, b"x" * 100))
    assert len(s.sent(Digest)) == 1


def test_what_a_member_sends_itself_counts_as_well() -> None:
    s = script(after_bundles=3, interval=3600.0)
    send(s, 3)
    assert len(s.sent(Digest)) == 1


def test_a_digest_goes_out_at_the_interval_while_anything_is_kept() -> None:
    s = script()
    s.up(multicast(B, 1))
    s.run(EVERY - 0.001)
    assert s.sent(Digest) == []
    s.run(0.002)
    ((_, digest),) = s.sent(Digest)
    assert digest.keeps
    s.run(5 * EVERY)
    assert len(s.sent(Digest)) == 5
    assert s.stack.rules["stable.by_time"] == 6


def test_a_digest_says_how_far_our_own_stream_is_stable() -> None:
    s = script()
    send(s, 3)
    hear(s, B, {A: 3})
    hear(s, C, {A: 2})
    s.run(EVERY)
    ((_, digest),) = s.sent(Digest)
    assert digest.stable == 2


def test_a_group_at_rest_is_silent() -> None:
    group = net()
    for member in group.members.values():
        send(member, 3)
    group.run(2)
    for member in group.members.values():
        assert not any(member.stack.held().values())
        before = member.stack.find(Stable).stats["digests"]
        member.run(7300)  # NAKACK's timer, too, runs out
        assert member.stack.find(Stable).stats["digests"] == before
        assert member.floor.out == []
        assert member.world.idle


def test_a_group_that_never_sent_anything_is_silent() -> None:
    s = script()
    s.run(60)
    assert s.floor.out == []
    assert s.world.idle


def test_lost_digests_cost_nothing_but_time() -> None:
    group = net()
    for member in group.members.values():
        send(member, 3)
    group.run(1, lambda source, target, packet: is_digest(packet))
    assert all(nakack(m).held()["unstable"] == 9 for m in group.members.values())
    group.run(1)
    assert not any(any(m.stack.held().values()) for m in group.members.values())


def test_a_sender_at_rest_answers_someone_who_still_keeps() -> None:
    group = net()
    send(group.members[A], 3)
    group.run(2, lambda source, target, packet: target == C and is_digest(packet))  # C never hears what is stable
    assert nakack(group.members[A]).held()["unstable"] == 0
    assert nakack(group.members[C]).held()["unstable"] == 3
    group.run(1)
    assert nakack(group.members[C]).held()["unstable"] == 0


def test_a_member_alone_keeps_nothing() -> None:
    s = script(members=(A,))
    send(s, 5)
    s.run(2 * EVERY)
    assert nakack(s).held()["unstable"] == 0


# Views.


def test_a_member_that_leaves_is_no_longer_waited_for() -> None:
    s = script()
    send(s, 3)
    hear(s, B, {A: 3})
    assert nakack(s).own.window.forgotten == 0
    s.view(A, B)
    assert nakack(s).own.window.forgotten == 3


def test_a_new_member_is_owed_what_is_sent_from_then_on() -> None:
    s = script(members=(A, B))
    send(s, 3)
    hear(s, B, {A: 3})
    assert nakack(s).own.window.forgotten == 3
    s.view(A, B, D)
    send(s, 2)
    hear(s, B, {A: 5})
    assert nakack(s).own.window.forgotten == 3  # D has neither 4 nor 5, for all we know
    hear(s, D, {A: 4})
    assert nakack(s).own.window.forgotten == 4


def test_a_member_that_left_and_returned_is_owed_what_is_sent_from_its_return_on() -> None:
    s = script()
    hear(s, C, {A: 0})
    send(s, 2)
    s.view(A, B)
    s.view(A, B, C)
    hear(s, B, {A: 2})
    assert nakack(s).own.window.forgotten == 2
    send(s, 1)
    hear(s, B, {A: 3})
    assert nakack(s).own.window.forgotten == 2


def test_a_departed_members_bundles_are_forgotten_once_all_that_are_left_have_them() -> None:
    s = script()
    s.up(multicast(B, 1), multicast(B, 2), multicast(B, 3))
    s.view(A, C)
    s.run(EVERY)
    assert nakack(s).streams[B].window.forgotten == 0  # C has said nothing
    hear(s, C, {A: 0, B: 2})
    s.run(EVERY)
    assert nakack(s).streams[B].window.forgotten == 2
    hear(s, C, {A: 0, B: 3})
    s.run(EVERY)
    assert nakack(s).streams[B].window.forgotten == 3
    assert s.stack.rules["stable.departed"] >= 2


def test_what_someone_said_who_is_no_longer_there_does_not_count() -> None:
    s = script()
    s.up(*(multicast(B, n) for n in (1, 2, 3)))
    hear(s, C, {A: 0, B: 3})
    s.view(A, D)
    s.run(2 * EVERY)
    assert nakack(s).streams[B].window.forgotten == 0  # D may miss all of it


def test_a_departed_members_bundles_are_kept_while_somebody_who_stays_misses_one() -> None:
    s = script(members=(A, B, C, D))
    s.up(*(multicast(B, n) for n in (1, 2, 3)))
    s.view(A, C, D)
    hear(s, D, {A: 0, B: 3})
    hear(s, C, {A: 0, B: 1})
    s.run(EVERY)
    assert nakack(s).streams[B].window.forgotten == 1
    s.hear(C, Nakack, Ask(B, ((2, 3),)))
    assert [p.seqno for p in s.packets()] == [2, 3]


def test_a_stopped_member_says_nothing_more() -> None:
    s = script()
    s.up(multicast(B, 1))
    s.stack.stop()
    s.run(60)
    assert s.sent(Digest) == []


# At random.

digests = st.tuples(st.sampled_from([B, C]), st.integers(0, 20), st.integers(0, 20), st.booleans())
steps = st.lists(st.one_of(st.just("send"), st.just("b sends"), st.just("time"), digests), max_size=60)


@given(steps)
def test_whatever_is_said_nothing_is_forgotten_that_a_member_of_the_view_may_miss(
    steps: list[str | tuple[Address, int, int, bool]],
) -> None:
    """What a member delivered only rises, but its digests may be lost and overtake each other."""
    s = script()
    sent = foreign = 0
    said = {B: 0, C: 0}
    b_said_stable = 0
    for step in steps:
        match step:
            case "send":
                send(s, 1)
                sent += 1
            case "b sends":
                foreign += 1
                s.up(multicast(B, foreign))
            case "time":
                s.run(EVERY)
            case (Address() as member, upto, stable, keeps):
                hear(s, member, {A: upto, B: foreign}, stable, keeps)
                if upto <= sent:
                    said[member] = max(said[member], upto)
                    if member == B:
                        b_said_stable = max(b_said_stable, stable)
        own, other = nakack(s).own.window, nakack(s).streams[B].window
        assert own.forgotten == min(said.values())
        assert sorted(own.slots) == list(range(own.forgotten + 1, sent + 1))
        assert other.forgotten <= b_said_stable
        assert sorted(other.slots) == list(range(other.forgotten + 1, foreign + 1))
        assert nakack(s).streams[C].window.forgotten == 0


@given(st.lists(st.integers(0, 2**16), max_size=30))
def test_whatever_digests_are_lost_the_group_ends_up_keeping_nothing(losses: list[int]) -> None:
    group = net()
    fate = iter(losses)
    for member in group.members.values():
        send(member, 2)
    group.run(0.5, lambda source, target, packet: is_digest(packet) and next(fate, 0) % 2 == 1)
    group.run(2)
    assert not any(any(m.stack.held().values()) for m in group.members.values())


# Agreed views.


def test_with_agreed_views_a_digest_of_another_view_changes_nothing() -> None:
    s = script()
    nakack(s).synchronous = True
    for sender in (A, B):
        packet = multicast(sender, 1) if sender != A else s.send("x")
        packet.view = s.stack.view.tag
        if sender != A:
            s.up(packet)
    s.run(0)
    for tag, kept in ((s.stack.view.tag + (1 << 32), True), (s.stack.view.tag, False)):
        for member in (B, C):  # everybody has everything, and says that its own is stable
            digest = Packet(Stable.codec.encode(Digest({A: (1, 1), B: (1, 1)}, 1, False)), None, Stable.id)
            digest.sender, digest.view = member, tag
            s.up(digest)
        assert [1 in nakack(s).streams[sender].window.slots for sender in (A, B)] == [kept, kept]


def test_a_digest_says_in_which_view_it_was_sent() -> None:
    s = script()
    send(s, 1)
    s.run(EVERY)
    assert {packet.view for packet in s.floor.out if is_digest(packet)} == {s.stack.view.tag}
