"""NAKACK with agreed views: what docs/protocols/nakack.md says of bundles and views, one test for each thing."""

from __future__ import annotations

import pytest
from harness import A, B, C, Net, Script, multicast
from hypothesis import given
from hypothesis import strategies as st

from coterie.group.events import Event, StreamEnded, StreamOpened, ViewChange
from coterie.group.members import Address, View, ViewId
from coterie.group.packet import MCAST, Packet
from coterie.group.protocols.nakack import Ask, Highest, Nakack, NakackSettings

D = Address("d", 1)


def view(counter: int, *members: Address, creator: Address = A) -> View:
    return View(ViewId(counter, creator), members or (A, B, C))


FIRST, SECOND, THIRD = view(1), view(2), view(3)


def enter(s: Script, view: View, **starts: int) -> list[Event]:
    """Membership installs a view, in which the streams start at these numbers, or where they are."""
    nakack = layer(s)
    now = {m: nakack.streams[m].window.delivered + 1 if nakack.has(m) else 1 for m in view.members}
    events = nakack.install(view, now | {m: starts[m.name] for m in view.members if m.name in starts})
    s.stack.view = view
    s.stack.below(s.roof).down_event(ViewChange(view))
    return events


def script(local: Address = A, first: View = FIRST, **settings: float) -> Script:
    s = Script(Nakack(NakackSettings(**settings)), local=local)  # type: ignore[arg-type]
    layer(s).synchronous = True
    s.stack.view = View(ViewId(0, local), (local,))
    enter(s, first)
    return s


def layer(s: Script) -> Nakack:
    return s.stack.find(Nakack)


def stamped(view: View, sender: Address, *numbers: int) -> list[Packet]:
    """Bundles of that view, as they come from the network."""
    packets = [multicast(sender, number) for number in numbers]
    for packet in packets:
        packet.view = view.tag
    return packets


def hear(s: Script, view: View, sender: Address, *numbers: int) -> None:
    s.up(*stamped(view, sender, *numbers))


def hear_highest(s: Script, view: View, sender: Address, highest: int) -> None:
    packet = Packet(Nakack.codec.encode(Highest(highest)), None, Nakack.id)
    packet.sender, packet.view = sender, view.tag
    s.up(packet)


def net() -> Net:
    return Net(*(script(local) for local in (A, B, C)))


# A bundle is delivered in the view in which it was stamped.


def test_a_bundle_carries_the_view_in_which_it_was_stamped_also_when_it_is_sent_again() -> None:
    s = script()
    s.send("x")
    s.run(0)
    enter(s, SECOND)
    s.send("y")
    s.run(0)
    s.hear(B, Nakack, Ask(A, ((1, 2),)))
    assert [(p.seqno, p.view) for p in s.packets()] == [
        (1, FIRST.tag), (2, SECOND.tag), (1, FIRST.tag), (2, SECOND.tag),
    ]  # fmt: skip


def test_numbers_go_on_over_views() -> None:
    s = script()
    hear(s, FIRST, B, 1, 2)
    enter(s, SECOND)
    hear(s, SECOND, B, 3)
    assert s.delivered() == [1, 2, 3]


def test_a_bundle_of_a_view_that_is_not_installed_yet_waits_for_it() -> None:
    s = script()
    hear(s, SECOND, B, 1, 2)
    hear(s, FIRST, C, 1)
    assert [(p.sender, p.seqno) for p in s.arrived()] == [(C, 1)]
    enter(s, SECOND)
    assert s.arrived() == []  # the layers above do not know the view yet
    s.run(0)
    assert [(p.sender, p.seqno) for p in s.arrived()] == [(B, 1), (B, 2)]
    assert s.stack.rules["nakack.early"] == 2


def test_bundles_that_waited_for_their_view_are_in_order_with_what_comes_after_it() -> None:
    s = script()
    hear(s, SECOND, B, 3, 1)
    enter(s, SECOND)
    s.floor.pass_up(stamped(SECOND, B, 2))  # no turn of the loop between the two
    s.run(0)
    assert s.delivered() == [1, 2, 3]


def test_bundles_wait_over_several_views() -> None:
    s = script()
    hear(s, THIRD, B, 1)
    enter(s, SECOND)
    s.run(0)
    assert s.delivered() == []
    enter(s, THIRD)
    s.run(0)
    assert s.delivered() == [1]


def test_bundles_of_a_view_that_never_comes_are_forgotten_with_the_next_one() -> None:
    s = script(early_max=2)
    hear(s, view(2, creator=C), C, 1, 2)  # somebody else's view
    hear(s, SECOND, B, 1)
    assert layer(s).stats["early_dropped"] == 1
    enter(s, SECOND)
    hear(s, THIRD, B, 1, 2)  # there is room for them again
    assert layer(s).stats["early_dropped"] == 1
    enter(s, THIRD)
    s.run(0)
    assert [(p.sender, p.seqno) for p in s.arrived()] == [(B, 1), (B, 2)]


def test_no_more_than_early_max_bundles_wait_and_the_rest_is_asked_for_when_the_view_is_here() -> None:
    s = script(early_max=3)
    hear(s, SECOND, B, *range(1, 6))
    assert layer(s).stats["early_dropped"] == 2
    enter(s, SECOND)
    s.run(0)
    assert s.delivered() == [1, 2, 3]
    hear_highest(s, SECOND, B, 5)
    s.run(0.05)
    assert s.sent(Ask)[0] == (B, Ask(B, ((4, 5),)))


def test_a_bundle_of_a_view_that_is_over_is_dropped() -> None:
    s = script()
    enter(s, SECOND)
    hear(s, FIRST, B, 1)
    assert s.delivered() == []
    assert layer(s).stats["old_view"] == s.stack.rules["nakack.old_view"] == 1
    hear(s, SECOND, B, 1)
    assert s.delivered() == [1]


def test_a_bundle_of_another_view_with_the_same_counter_is_dropped() -> None:
    s = script()
    hear(s, view(1, creator=B), B, 1)
    assert s.delivered() == []
    assert layer(s).stats["old_view"] == 1


def test_a_bundle_that_waited_for_its_view_is_dropped_if_the_next_one_comes_at_once() -> None:
    s = script()
    hear(s, SECOND, B, 1)
    enter(s, SECOND)
    enter(s, THIRD)
    s.run(0)
    assert s.delivered() == []
    assert layer(s).stats["old_view"] == 1


def test_the_highest_number_of_another_view_is_not_believed() -> None:
    s = script()
    for other in (SECOND, view(1, creator=B)):
        hear_highest(s, other, B, 7)
    s.run(1)
    assert s.sent(Ask) == []
    hear_highest(s, FIRST, B, 7)
    s.run(0.02)
    assert s.sent(Ask) == [(B, Ask(B, ((1, 7),)))]


def test_a_silent_sender_repeats_its_highest_number_with_the_view_it_is_in() -> None:
    s = script()
    s.send("x")
    s.run(0.5)
    assert {p.view for p in s.floor.out if p.proto == Nakack.id} == {FIRST.tag}


# While a flush holds.


def test_freezing_delivers_what_we_have_sent_and_says_how_far_everything_is() -> None:
    s = script()
    hear(s, FIRST, B, 1, 2, 4)
    s.send("x")
    s.send("y")  # and our own turn has not come yet
    assert layer(s).freeze() == {A: 2, B: 2, C: 0}
    assert [(p.sender, p.seqno) for p in s.arrived()] == [(B, 1), (B, 2), (A, 1), (A, 2)]


def test_frozen_what_arrives_is_kept_and_not_delivered_and_thawed_it_follows_in_order() -> None:
    s = script()
    layer(s).freeze()
    hear(s, FIRST, B, 2, 1)
    hear(s, FIRST, C, 1)
    assert s.delivered() == []
    assert s.stack.rules["nakack.frozen"] == 2
    assert layer(s).freeze() == {A: 0, B: 0, C: 0}  # a second flush finds the same
    layer(s).thaw()
    assert [(p.sender, p.seqno) for p in s.arrived()] == [(B, 1), (B, 2), (C, 1)]
    hear(s, FIRST, B, 3)
    assert s.delivered() == [3]


def test_thawed_a_window_that_was_full_asks_for_what_did_not_fit() -> None:
    """Nobody else would say that there is more: its sender may have nothing left to send."""
    s = script(window=4)
    layer(s).freeze()
    hear(s, FIRST, B, 1, 2, 3, 4, 5, 6)
    s.run(1.0)
    assert s.sent(Ask) == []  # it has all that it can hold
    layer(s).thaw()
    assert s.delivered() == [1, 2, 3, 4]
    s.run(0.02)
    assert s.sent(Ask) == [(B, Ask(B, ((5, 6),)))]


def test_frozen_other_traffic_passes() -> None:
    s = script()
    layer(s).freeze()
    packet = Packet(b"x", A, 99)
    packet.sender = B
    s.up(packet)
    assert s.arrived() == [packet]


def test_frozen_holes_are_filled_so_that_less_is_missing_when_a_cut_comes() -> None:
    s = script()
    layer(s).freeze()
    hear(s, FIRST, B, 2)
    s.run(0.02)
    assert s.sent(Ask) == [(B, Ask(B, ((1, 1),)))]


def test_advancing_delivers_up_to_the_cut_and_no_further() -> None:
    s = script()
    layer(s).freeze()
    hear(s, FIRST, B, 1, 2, 3)
    hear(s, FIRST, C, 1)
    reached: list[dict[Address, int]] = []
    layer(s).advance({A: 0, B: 2, C: 0}, {B: B}, lambda: reached.append(layer(s).delivered()))
    assert [(p.sender, p.seqno) for p in s.arrived()] == [(B, 1), (B, 2)]
    assert reached == [{A: 0, B: 2, C: 0}]
    hear(s, FIRST, B, 4)
    assert s.delivered() == []  # it stays there
    layer(s).thaw()
    assert [(p.sender, p.seqno) for p in s.arrived()] == [(B, 3), (B, 4), (C, 1)]


def test_advancing_to_where_we_are_is_done_at_once_and_once_only() -> None:
    s = script()
    hear(s, FIRST, B, 1)
    reached: list[None] = []
    layer(s).advance(layer(s).freeze(), {}, lambda: reached.append(None))
    assert len(reached) == 1
    hear(s, FIRST, B, 2)
    assert len(reached) == 1
    assert "nakack.advanced" not in s.stack.rules


def test_what_is_missing_of_the_cut_is_asked_for_at_once_from_whoever_has_it() -> None:
    s = script()
    hear(s, FIRST, B, 1)
    layer(s).freeze()
    layer(s).advance({A: 0, B: 4, C: 0}, {B: C}, lambda: None)
    s.run(0.001)
    assert s.sent(Ask) == [(C, Ask(B, ((2, 4),)))]
    assert s.stack.rules["nakack.advanced"] == 1


def test_a_holder_that_does_not_answer_is_not_the_only_one_to_be_asked() -> None:
    s = script(first=view(1, A, B, C, D), ask_max_delay=0.01, ask_others_after=3)
    layer(s).freeze()
    layer(s).advance({A: 0, B: 1, C: 0, D: 0}, {B: C}, lambda: None)
    s.run(0.2)
    asked = [dest for dest, _ in s.sent(Ask)]
    assert asked[:3] == [C, C, C]
    assert {B, D} <= set(asked[3:])


def test_the_cut_is_reached_when_the_last_missing_bundle_has_come() -> None:
    s = script()
    layer(s).freeze()
    reached: list[list[int]] = []
    layer(s).advance({A: 0, B: 2, C: 1}, {B: C, C: C}, lambda: reached.append(s.delivered()))
    hear(s, FIRST, B, 3, 2, 1)
    assert reached == []
    hear(s, FIRST, C, 1)
    assert reached == [[1, 2, 1]]  # delivered before anybody is told


def test_another_cut_replaces_the_one_before_it() -> None:
    s = script()
    layer(s).freeze()
    reached: list[str] = []
    layer(s).advance({A: 0, B: 1, C: 0}, {B: C}, lambda: reached.append("first"))
    layer(s).advance({A: 0, B: 2, C: 0}, {B: C}, lambda: reached.append("second"))
    hear(s, FIRST, B, 1)
    assert reached == []
    hear(s, FIRST, B, 2)
    assert reached == ["second"]


@pytest.mark.parametrize("end", ["thaw", "install"])
def test_a_flush_that_is_over_is_not_told_of_its_cut_any_more(end: str) -> None:
    s = script()
    layer(s).freeze()
    reached: list[None] = []
    layer(s).advance({A: 0, B: 1, C: 0}, {B: C}, lambda: reached.append(None))
    if end == "thaw":
        layer(s).thaw()
    else:
        enter(s, SECOND)
    hear(s, FIRST if end == "thaw" else SECOND, B, 1)
    assert s.delivered() == [1]  # and delivery is free again
    assert not layer(s).frozen
    assert reached == []


def test_whoever_misses_bundles_of_a_dead_sender_gets_them_from_the_one_who_has_them() -> None:
    n = net()
    a, b, c = n.members.values()
    for _ in range(3):
        c.send("x")
    n.run(0.1, lambda source, target, packet: target == A and packet.carrier == MCAST)
    del n.members[C]  # and that was its end
    digests = [layer(s).freeze() for s in (a, b)]
    assert [digest[C] for digest in digests] == [0, 3]
    cut = digests[1]
    reached: list[Address] = []
    for s in (a, b):
        layer(s).advance(cut, {C: B}, lambda s=s: reached.append(s.stack.local))  # type: ignore[misc]
    n.run(0.05)
    assert reached == [B, A]
    assert [layer(s).delivered() for s in (a, b)] == [cut, cut]


# The next view.


def test_a_member_that_is_not_in_the_next_view_is_forgotten() -> None:
    s = script()
    hear(s, FIRST, B, 1)
    assert enter(s, view(2, A, C)) == [StreamEnded(B, MCAST, 0)]
    assert not layer(s).has(B)
    s.hear(C, Nakack, Ask(B, ((1, 1),)))
    assert s.packets() == []
    assert layer(s).delivered() == {A: 0, C: 0}


def test_a_member_that_is_new_in_a_view_has_a_stream_from_the_number_that_is_stated() -> None:
    s = script()
    assert enter(s, view(2, A, B, C, D), d=8) == [StreamOpened(D, 8)]
    hear(s, s.stack.view, D, 7, 8, 9)
    assert s.delivered() == [8, 9]


def test_a_stream_that_goes_on_is_not_opened_again() -> None:
    s = script()
    hear(s, FIRST, B, 1, 2)
    assert enter(s, SECOND) == []


def test_a_member_that_went_its_own_way_and_comes_back_is_heard_from_where_it_is_now() -> None:
    s = script()
    hear(s, FIRST, B, 1)
    enter(s, view(2, A, C))
    assert enter(s, THIRD, b=20) == [StreamOpened(B, 20)]
    hear(s, THIRD, B, 20)
    assert s.delivered() == [1, 20]


def test_what_came_of_the_old_view_and_was_not_delivered_in_it_never_is() -> None:
    s = script()
    layer(s).freeze()
    hear(s, FIRST, B, 1, 2)  # its sender went on after a cut that does not have them
    hear(s, FIRST, C, 3)
    enter(s, SECOND)
    layer(s).freeze()
    layer(s).thaw()
    s.run(0)
    assert s.delivered() == []
    hear(s, SECOND, B, 1)
    assert [(p.seqno, p.view) for p in s.arrived()] == [(1, SECOND.tag)]
    s.run(1)
    assert s.sent(Ask) == []  # nor is what was heard of it missed
    assert layer(s).held() == {"unstable": 1, "undelivered": 0}


def test_what_was_heard_of_the_old_view_is_not_missed_in_the_next_one() -> None:
    s = script()
    hear_highest(s, FIRST, B, 5)
    layer(s).heard_of(C, 5)
    enter(s, SECOND)
    s.run(1)
    assert s.sent(Ask) == []


def test_our_own_bundles_count_from_when_they_are_stamped() -> None:
    """Between a stamp and the end of the turn a view must not be taken for one that has the bundle in it."""
    s = script()
    s.send("x")
    assert layer(s).delivered()[A] == 1


def test_what_we_kept_for_others_is_still_there_in_the_next_view() -> None:
    s = script()
    hear(s, FIRST, B, 1)
    s.send("x")
    s.run(0)
    enter(s, SECOND)
    s.packets()
    s.hear(C, Nakack, Ask(B, ((1, 1),)))
    s.hear(C, Nakack, Ask(A, ((1, 1),)))
    assert [(p.sender, p.seqno, p.view) for p in s.packets()] == [(B, 1, FIRST.tag), (A, 1, FIRST.tag)]


def test_nothing_is_kept_of_a_member_that_has_left() -> None:
    s = script(keep_departed=0.1)
    hear(s, FIRST, B, 1)
    enter(s, view(2, A, C))
    s.run(1)
    assert "nakack.departed_kept" not in s.stack.rules
    assert set(layer(s).streams) == {A, C}


# At random.

VIEWS = [FIRST, SECOND, THIRD]
Step = tuple[str, int, Address, int]
steps = st.tuples(
    st.sampled_from(["hear", "hear", "hear", "freeze", "thaw", "advance", "enter", "send"]),
    st.sampled_from([0, 0, 1, -1]),  # of this view, of the next, of the one before
    st.sampled_from([B, C]),
    st.sampled_from([1, 1, 2, 0]),  # the next number, or about that
)


@given(st.lists(steps, min_size=20, max_size=60))
def test_whatever_comes_when_it_comes_each_bundle_is_delivered_in_its_own_view_in_order_or_not_at_all(
    history: list[Step],
) -> None:
    s = script()
    nakack = layer(s)
    last: dict[Address, int] = {A: 0, B: 0, C: 0}
    at = 0
    for what, away, sender, ahead in history:
        number = last[sender] + ahead
        match what:
            case "hear":
                s.up(*stamped(VIEWS[min(max(at + away, 0), 2)], sender, number))
            case "send" if not nakack.frozen:
                s.send("x")
            case "freeze":
                nakack.freeze()
            case "advance" if nakack.frozen:
                nakack.advance(nakack.delivered() | {sender: number}, {}, lambda: None)
            case "thaw":
                nakack.thaw()
            case "enter" if at < 2:
                nakack.freeze()
                check(s, last)
                at += 1
                enter(s, VIEWS[at])
        s.run(0)
        check(s, last)


def check(s: Script, last: dict[Address, int]) -> None:
    for packet in s.arrived():
        assert packet.view == s.stack.view.tag
        assert packet.seqno == last[packet.sender] + 1
        last[packet.sender] += 1
