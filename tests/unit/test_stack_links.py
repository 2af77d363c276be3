"""A running stack: packets and events find their layers, and layers are started and stopped in order."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from coterie.group.events import Event, PeerConnected
from coterie.group.members import Address
from coterie.group.packet import Packet
from coterie.group.protocol import Protocol
from coterie.group.stack import Stack
from coterie.group.wire import Codec
from coterie.sim.clock import World
from coterie.sim.network import Fabric
from coterie.sim.node import Node
from coterie.trace import Event as TraceEvent

LOCAL = Address("a", 1)


class Layer(Protocol):
    """Says what it is called with."""

    id = 200

    def __init__(self, name: str, said: list[str]) -> None:
        super().__init__()
        self.name = name  # type: ignore[misc]
        self.said = said

    def start(self) -> None:
        self.said.append(f"{self.name} start")

    def stop(self) -> None:
        self.said.append(f"{self.name} stop")


class Both(Layer):
    """Sees packets in both directions."""

    def down(self, packet: Packet) -> None:
        self.said.append(f"{self.name} down")
        self.pass_down(packet)

    def up(self, batch: list[Packet]) -> None:
        self.said.append(f"{self.name} up {len(batch)}")
        self.pass_up(batch)


class Listener(Layer):
    """Sees events, and keeps those that come from below."""

    def up_event(self, event: Event) -> None:
        self.said.append(f"{self.name} heard {type(event).__name__}")


@dataclass(frozen=True, slots=True)
class Ping:
    number: int


class Talker(Layer):
    """Has messages of its own."""

    codec = Codec({1: Ping})
    rules = {"talker.ping": "a ping is sent"}


def stack_of(*layers: Protocol, sink: list[TraceEvent] | None = None) -> Stack:
    world = World(1, "run", None if sink is None else sink.append)
    return Stack(Node(world, Fabric(world), "a").boot(), "friends", LOCAL, layers[:-1], layers[-1])


def test_packets_pass_every_layer_that_wants_them_and_no_other() -> None:
    said: list[str] = []
    bottom, middle, top = Both("bottom", said), Layer("middle", said), Both("top", said)
    stack_of(bottom, middle, top)
    top.down(Packet(b""))
    bottom.up([Packet(b""), Packet(b"")])
    assert said == ["top down", "bottom down", "bottom up 2", "top up 2"]


class Own(Both):
    """Takes nothing but its own messages."""

    only_own = True


def own_between(said: list[str]) -> tuple[Both, Own, Stack]:
    bottom, first, second, top = Both("bottom", said), Own("first", said), Own("second", said), Both("top", said)
    first.id, second.id = 201, 202  # type: ignore[misc]
    return bottom, second, stack_of(bottom, first, second, top)


def test_batches_without_messages_of_a_layer_that_takes_only_its_own_pass_it_by() -> None:
    said: list[str] = []
    bottom, _, _ = own_between(said)
    bottom.up([Packet(b""), Packet(b"", proto=200)])
    assert said == ["bottom up 2", "top up 2"]


def test_a_batch_with_a_message_of_one_of_several_such_layers_comes_to_the_first_and_finds_its_way() -> None:
    said: list[str] = []
    bottom, _, _ = own_between(said)
    bottom.up([Packet(b""), Packet(b"", proto=202)])
    assert said == ["bottom up 2", "first up 2", "second up 2", "top up 2"]
    said.clear()
    bottom.up([Packet(b"", proto=201)])
    assert said == ["bottom up 1", "first up 1", "top up 1"]


def test_a_layer_may_take_all_packets_for_a_while_and_only_its_own_from_then_on() -> None:
    said: list[str] = []
    bottom, middle, top = Both("bottom", said), Both("middle", said), Both("top", said)
    middle.id = 201  # type: ignore[misc]
    stack = stack_of(bottom, middle, top)
    bottom.up([Packet(b"")])
    stack.only_own_from_now(middle)
    bottom.up([Packet(b"")])
    bottom.up([Packet(b"", proto=201)])
    assert said == [
        *(f"{name} up 1" for name in ("bottom", "middle", "top", "bottom", "top", "bottom", "middle", "top"))
    ]


def test_packets_that_leave_a_stack_at_either_end_are_gone() -> None:
    layer = Both("only", [])
    stack_of(layer)
    layer.pass_down(Packet(b""))
    layer.pass_up([Packet(b"")])


def test_events_travel_until_a_layer_keeps_them() -> None:
    said: list[str] = []
    bottom, ears, above = Layer("bottom", said), Listener("ears", said), Listener("above", said)
    stack_of(bottom, ears, above)
    bottom.up_event(PeerConnected(LOCAL))
    assert said == ["ears heard PeerConnected"]


def test_events_that_nobody_keeps_end_at_the_ends() -> None:
    bottom, top = Layer("bottom", []), Layer("top", [])
    stack_of(bottom, top)
    bottom.up_event(PeerConnected(LOCAL))
    top.down_event(PeerConnected(LOCAL))


def test_layers_start_from_below_and_stop_from_above_once() -> None:
    said: list[str] = []
    stack = stack_of(Layer("bottom", said), Layer("top", said))
    stack.start()
    stack.stop()
    stack.stop()
    assert said == ["bottom start", "top start", "top stop", "bottom stop"]


def test_a_layer_is_found_by_its_class() -> None:
    ears = Listener("ears", [])
    stack = stack_of(Layer("bottom", []), ears)
    assert stack.find(Listener) is ears
    assert stack.has(Listener)
    assert not stack.has(Both)
    with pytest.raises(LookupError, match="no Both in this stack"):
        stack.find(Both)


def test_before_membership_says_otherwise_a_member_is_alone_in_its_view() -> None:
    assert stack_of(Layer("only", [])).view.members == (LOCAL,)


def test_a_layer_reads_back_its_own_messages_and_counts_what_is_none() -> None:
    said: list[str] = []
    sent: list[Packet] = []
    talker = Talker("talker", said)
    stack = stack_of(Layer("bottom", said), talker)
    talker.pass_down = sent.append
    talker.send(Ping(7), Address("b", 1))
    (packet,) = sent
    assert (packet.dest, packet.proto) == (Address("b", 1), talker.id)
    assert talker.decode(packet) == Ping(7)
    assert talker.decode(Packet(b"\x09garbage")) is None
    assert stack.stats() == {"talker": {"malformed": 1}}


def test_rules_are_counted_for_the_whole_stack() -> None:
    talker = Talker("talker", [])
    stack = stack_of(Layer("bottom", []), talker)
    talker.rule("talker.ping")
    talker.rule("talker.ping")
    assert stack.rules == {"talker.ping": 2}


def test_start_and_stop_are_traced_with_the_protocols_of_the_stack() -> None:
    seen: list[TraceEvent] = []
    stack = stack_of(Layer("bottom", []), Layer("top", []), sink=seen)
    stack.start()
    stack.stop()
    assert [(event.kind, event.sender) for event in seen] == [("start", "a#1"), ("stop", "a#1")]
    assert seen[0].data == {"stack": ["bottom", "top"]}
