"""DROP, DELAY, DUPLICATE, SHUFFLE and CUT: they do what they say, as often as they are told, wherever they stand."""

from __future__ import annotations

import pytest
from harness import A, B, C, Script, multicast

from coterie.errors import UserError
from coterie.group.events import PeerClosed, PeerConnected, PeerHeard
from coterie.group.packet import AGAIN, RAW, Packet
from coterie.group.presets import REGISTRY
from coterie.group.protocol import Protocol
from coterie.group.protocols.cut import Cut
from coterie.group.protocols.faults import Delay, DelaySettings, Drop, Duplicate, FaultSettings, Shuffle
from coterie.group.protocols.nakack import Highest, Nakack
from coterie.group.stack import Layer, build

FAULTS: list[type[Protocol]] = [Drop, Delay, Duplicate, Shuffle]


def fault(kind: type[Protocol], **settings: float) -> Script:
    (layer,) = build([Layer("FLOOR", {}), Layer(kind.name, settings)], {"FLOOR": Ground, kind.name: kind})[1:]
    return Script(layer)


class Ground(Protocol):
    name, id, role = "FLOOR", 200, "transport"


def send(s: Script, count: int) -> list[Packet]:
    packets = [multicast(A, n) for n in range(1, count + 1)]
    for packet in packets:
        s.roof.pass_down(packet)
    return packets


def batch(count: int) -> list[Packet]:
    return [multicast(B, n) for n in range(1, count + 1)]


@pytest.mark.parametrize("kind", FAULTS)
def test_a_fault_that_is_not_asked_for_changes_nothing(kind: type[Protocol]) -> None:
    s = fault(kind)
    down, up = send(s, 20), batch(20)
    s.up(*up)
    assert s.floor.out == down
    assert s.arrived() == up


@pytest.mark.parametrize("kind", FAULTS)
def test_a_fault_on_the_way_up_leaves_the_way_down_alone(kind: type[Protocol]) -> None:
    s = fault(kind, up=1.0)
    down = send(s, 20)
    assert s.floor.out == down


@pytest.mark.parametrize("kind", [Drop, Delay, Duplicate])
def test_a_fault_on_the_way_down_leaves_the_way_up_alone(kind: type[Protocol]) -> None:
    s = fault(kind, down=1.0)
    up = batch(20)
    s.up(*up)
    assert s.arrived() == up


def test_drop_loses_everything_if_told_so() -> None:
    s = fault(Drop, up=1.0, down=1.0)
    send(s, 3)
    s.up(*batch(4))
    assert s.floor.out == []
    assert s.roof.batches == []  # no empty batch either
    assert s.stack.stats()["DROP"] == {"dropped": 7}


def test_drop_loses_about_as_many_as_it_is_told_to_and_the_others_in_order() -> None:
    s = fault(Drop, up=0.3, down=0.3)
    send(s, 1000)
    s.up(*batch(1000))
    for kept in ([p.seqno for p in s.floor.out], s.delivered()):
        assert 600 < len(kept) < 800
        assert kept == sorted(kept)


def test_duplicate_passes_everything_on_twice_if_told_so() -> None:
    s = fault(Duplicate, up=1.0, down=1.0)
    send(s, 3)
    s.up(*batch(3))
    assert sorted(p.seqno for p in s.floor.out) == sorted(s.delivered()) == [1, 1, 2, 2, 3, 3]
    assert s.stack.stats()["DUPLICATE"] == {"duplicated": 6}


def test_a_duplicate_on_the_way_down_is_a_packet_of_its_own_with_the_same_content() -> None:
    s = fault(Duplicate, down=1.0)
    send(s, 1)
    first, second = s.floor.out
    assert first is not second
    assert (first.body, first.seqno, first.sender, first.dest) == (
        second.body, second.seqno, second.sender, second.dest
    )  # fmt: skip


def test_delay_loses_nothing_and_holds_nothing_back_longer_than_it_is_told() -> None:
    s = fault(Delay, up=1.0, down=1.0, longest=0.5)
    send(s, 50)
    s.up(*batch(50))
    assert s.floor.out == []
    assert s.delivered() == []
    s.run(0.25)
    early = len(s.floor.out)
    assert 0 < early < 50
    s.run(0.2501)
    assert sorted(p.seqno for p in s.floor.out) == list(range(1, 51))
    assert sorted(s.delivered()) == list(range(1, 51))


def test_delayed_packets_overtake_each_other() -> None:
    s = fault(Delay, up=1.0, longest=0.5)
    s.up(*batch(50))
    s.run(1)
    assert s.delivered() != list(range(1, 51))


def test_what_is_delayed_is_not_passed_on_once_the_stack_has_stopped() -> None:
    s = fault(Delay, up=1.0, down=1.0)
    send(s, 3)
    s.up(*batch(3))
    s.stack.stop()
    s.run(1)
    assert s.floor.out == []
    assert s.arrived() == []


def test_shuffle_changes_the_order_and_loses_nothing() -> None:
    s = fault(Shuffle, up=1.0)
    s.up(*batch(50))
    before = len(s.roof.batches[0])
    s.run(0.1)
    got = s.delivered()
    assert before == 49  # one is held back
    assert sorted(got) == list(range(1, 51))
    assert got != list(range(1, 51))


def test_what_shuffle_holds_back_comes_with_the_next_batch() -> None:
    s = fault(Shuffle, up=1.0)
    s.up(multicast(B, 1))
    assert s.delivered() == []
    s.up(multicast(B, 2), multicast(B, 3))
    assert len(s.roof.batches[0]) == 2
    s.run(0.1)
    assert sorted(s.delivered()) == [1, 2, 3]


def test_shuffle_knows_one_direction_only_and_says_so() -> None:
    with pytest.raises(UserError, match="SHUFFLE: there is no setting 'down'"):
        fault(Shuffle, down=0.5)


def test_the_same_seed_gives_the_same_faults() -> None:
    def run() -> list[int]:
        s = fault(Drop, up=0.5)
        s.up(*batch(100))
        return s.delivered()

    assert run() == run()


@pytest.mark.parametrize("kind", FAULTS)
def test_every_fault_can_be_named_in_a_stack(kind: type[Protocol]) -> None:
    assert REGISTRY[kind.name] is kind


@pytest.mark.parametrize(
    "layer",
    [
        Drop(FaultSettings(up=0.3)),
        Delay(DelaySettings(up=0.5, longest=0.02)),
        Duplicate(FaultSettings(up=0.5)),
        Shuffle(Shuffle.Settings(up=0.5)),
    ],
    ids=lambda layer: layer.name,
)
def test_under_nakack_a_fault_changes_nothing_of_what_is_delivered(layer: Protocol) -> None:
    s = Script(layer, Nakack())
    s.stack.find(Nakack).open(B, 1)
    sent = {n: multicast(B, n) for n in range(1, 101)}
    for first in range(1, 101, 10):
        s.up(*(sent[n] for n in range(first, first + 10)))
        s.run(0.01)
    for _ in range(100):  # B tells how far it is, and answers what it is asked for
        s.hear(B, Nakack, Highest(100))
        s.run(0.05)
        for packet in s.floor.out:
            for first, last in getattr(Nakack.codec.decode(packet.body), "ranges", ()):
                s.up(*(sent[n].copy(A) for n in range(first, last + 1)))
        s.floor.out.clear()
    assert s.delivered() == list(range(1, 101))


# A partition.


def with_cut() -> tuple[Script, Cut]:
    cut = Cut()
    return Script(cut), cut


def test_without_a_cut_everything_passes() -> None:
    s, _ = with_cut()
    s.up(multicast(B, 1), multicast(C, 1))
    packet = s.send("to b", B)
    s.event(PeerHeard(B))
    assert [p.sender for p in s.arrived()] == [B, C]
    assert s.floor.out == [packet]
    assert s.events(PeerHeard) == [PeerHeard(B)]


def test_what_comes_from_the_other_side_is_lost_and_what_comes_from_this_side_is_not() -> None:
    s, cut = with_cut()
    cut.cut(["b"])
    s.up(multicast(B, 1), multicast(C, 1))
    s.up(multicast(B, 2))
    assert [p.sender for p in s.arrived()] == [C]
    assert s.stack.stats()["CUT"] == {"dropped": 2}


def test_what_goes_to_the_other_side_is_lost_and_what_goes_to_this_side_is_not() -> None:
    s, cut = with_cut()
    cut.cut(["b"])
    s.send("lost", B)
    kept = [s.send("kept", C), s.send("to all: lost where it arrives")]
    assert s.floor.out == kept


def test_what_is_sent_again_is_lost_for_it_may_come_through_the_cut() -> None:
    s, cut = with_cut()
    cut.cut(["b"])
    packet = Packet(b"", A, Cut.id, RAW, AGAIN)
    packet.sender = C  # sent again by b, perhaps
    s.up(packet)
    assert s.arrived() == []


def test_bytes_of_the_other_side_are_no_sign_of_life() -> None:
    s, cut = with_cut()
    cut.cut(["b"])
    s.event(PeerHeard(B))
    s.event(PeerHeard(C))
    assert s.events(PeerHeard) == [PeerHeard(C)]


def test_connections_of_the_other_side_break_but_none_comes_before_the_cut_has_healed() -> None:
    s, cut = with_cut()
    cut.cut(["b"])
    s.event(PeerClosed(B, False))
    s.event(PeerConnected(B))
    assert s.events(PeerClosed) == [PeerClosed(B, False)]
    assert s.events(PeerConnected) == []
    cut.heal()
    assert s.events(PeerConnected) == [PeerConnected(B)]


def test_a_connection_that_came_and_went_during_the_cut_is_never_told() -> None:
    s, cut = with_cut()
    cut.cut(["b"])
    s.event(PeerConnected(B))
    s.event(PeerClosed(B, False))
    cut.heal()
    assert s.events(PeerConnected) == []
    assert s.events(PeerClosed) == []


def test_a_proven_death_on_the_other_side_is_told_at_once() -> None:
    s, cut = with_cut()
    cut.cut(["b"])
    s.event(PeerConnected(B))
    s.event(PeerClosed(B, True))
    assert s.events(PeerClosed) == [PeerClosed(B, True)]


def test_after_the_cut_everything_passes_again() -> None:
    s, cut = with_cut()
    cut.cut(["b", "c"])
    cut.heal()
    s.up(multicast(B, 1), multicast(C, 1))
    s.event(PeerHeard(B))
    assert [p.sender for p in s.arrived()] == [B, C]
    assert s.events(PeerHeard) == [PeerHeard(B)]
