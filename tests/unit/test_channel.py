"""The channel with the whole stack below it, in the simulator, over both transports: docs/protocols/channel.md."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine, Mapping
from typing import Any

import pytest

from coterie.errors import UserError
from coterie.group.channel import BufferFull, Channel, ChannelClosed, Delivery, Receiver
from coterie.group.members import Address, View
from coterie.group.packet import APP, MCAST, Packet
from coterie.group.presets import preset
from coterie.group.protocols.nakack import Nakack
from coterie.group.stack import Layer
from coterie.runtime.base import Future
from coterie.sim.clock import World
from coterie.sim.network import Fabric
from coterie.sim.node import Node
from coterie.sim.runtime import SimRuntime
from coterie.trace import Event as TraceEvent

PORT = 7800
Settings = Mapping[str, Mapping[str, object]]
"""By layer, and for the channel itself."""


class Log(Receiver):
    """An application that writes down what it is told, and may be slow or faulty."""

    def __init__(self) -> None:
        self.batches: list[list[Delivery]] = []
        self.views: list[View] = []
        self.then: Callable[[list[Delivery]], Awaitable[None] | None] = lambda batch: None

    def receive(self, batch: list[Delivery]) -> Awaitable[None] | None:
        self.batches.append(batch)
        return self.then(batch)

    def view_accepted(self, view: View) -> None:
        self.views.append(view)

    @property
    def deliveries(self) -> list[Delivery]:
        return [delivery for batch in self.batches for delivery in batch]

    def texts(self, sender: Address | None = None) -> list[bytes]:
        chosen = [d for d in self.deliveries if sender is None or d.sender == sender]
        return [bytes(message) for delivery in chosen for message in delivery.messages]


class Member:
    """A channel, its application, and the node that it runs on."""

    def __init__(self, node: Node, layers: list[Layer], log: Log, **settings: object) -> None:
        self.node = node
        self.log = log
        self.runtime: SimRuntime = node.boot()
        self.channel = Channel(
            self.runtime, layers, group="test", name=node.name, incarnation=node.incarnation, receiver=log, **settings
        )

    def do(self, coroutine: Coroutine[Any, Any, Any]) -> Any:
        return self.runtime.spawn(coroutine)

    @property
    def local(self) -> Address:
        return self.channel.local


class Group:
    """Members in one simulated world."""

    def __init__(self, transport: str = "TCP", size: int = 2) -> None:
        self.traced: list[TraceEvent] = []
        self.world = World(1, "test", self.traced.append)
        self.fabric = Fabric(self.world)
        self.transport = transport
        self.nodes = [Node(self.world, self.fabric, "abc"[n]) for n in range(size)]

    def layers(self, node: Node, settings: Settings) -> list[Layer]:
        name = "reliable" if self.transport == "TCP" else "reliable-udp"
        peers = [f"{other.ports.ip}:{PORT}" for other in self.nodes]
        own: Settings = {
            self.transport: {"bind_host": node.ports.ip, "bind_port": PORT},
            "STATIC": {"peers": peers, "interval": 0.1},
        }
        return preset(name, **{**own, **{layer: values for layer, values in settings.items() if layer != "channel"}})

    def boot(self, number: int, settings: Settings | None = None) -> Member:
        node, settings = self.nodes[number], settings or {}
        return Member(node, self.layers(node, settings), Log(), **settings.get("channel", {}))

    def connected(self, settings: Settings | None = None) -> list[Member]:
        """All members, connected, at rest."""
        members = [self.boot(number, settings) for number in range(len(self.nodes))]
        for member in members:
            member.do(member.channel.connect(len(members)))
        self.until(lambda: all(len(m.channel.view.members) == len(members) for m in members))
        self.run(2)
        return members

    def run(self, seconds: float) -> None:
        self.world.run(self.world.time + seconds)
        assert not self.world.unhandled

    def until(self, condition: Callable[[], bool], seconds: float = 30) -> None:
        end = self.world.time + seconds
        while not condition():
            assert self.world.time < end, "it never happened"
            self.run(0.01)


@pytest.fixture(params=["TCP", "UDP"])
def group(request: pytest.FixtureRequest) -> Group:
    return Group(request.param)


def sent(member: Member) -> int:
    """How many multicasts were stamped."""
    return member.channel.stack.find(Nakack).sent


def gate(member: Member) -> Future[None]:
    """From now on the application takes nothing until this future is done."""
    future: Future[None] = member.runtime.future()

    async def wait() -> None:
        await future

    member.log.then = lambda batch: wait()
    return future


# Bundles.


def test_what_is_sent_in_one_turn_is_one_bundle_and_arrives_everywhere_in_order(group: Group) -> None:
    a, b = group.connected()
    for n in range(5):
        a.channel.send_nowait(b"%d" % n)
    group.run(1)
    assert sent(a) == 1
    for member in (a, b):
        (delivery,) = member.log.deliveries
        assert (delivery.sender, delivery.multicast) == (a.local, True)
        assert [bytes(m) for m in delivery.messages] == [b"0", b"1", b"2", b"3", b"4"]
        assert all(isinstance(m, memoryview) for m in delivery.messages)


def test_an_idle_channel_sends_at_once(group: Group) -> None:
    a, b = group.connected()
    before = a.channel.stats()[group.transport]["packets_out"]
    now = group.world.time
    a.channel.send_nowait(b"to all")
    a.channel.send_nowait(b"to one", b.local)
    group.run(0)  # no time passes
    assert a.channel.stats()[group.transport]["packets_out"] >= before + 2
    assert [e.t for e in group.traced if e.kind == "send"] == [now, now]


def test_what_is_sent_in_different_turns_is_not_held_back_to_be_gathered(group: Group) -> None:
    a, b = group.connected()
    for n in range(3):
        a.channel.send_nowait(b"%d" % n)
        group.run(0)
    assert sent(a) == 3
    group.run(1)
    assert b.log.texts() == [b"0", b"1", b"2"]


def test_a_full_bundle_leaves_before_the_turn_is_over() -> None:
    a, b = (group := Group()).connected({"channel": {"bundle_size": 1000}})
    for _ in range(10):
        a.channel.send_nowait(bytes(300))
    assert sent(a) == 3  # three fit into each
    group.run(1)
    assert sent(a) == 4
    assert [len(d.messages) for d in b.log.deliveries] == [3, 3, 3, 1]


def test_a_bundle_that_is_exactly_full_is_not_a_train() -> None:
    a, b = (group := Group()).connected({"FRAG": {"size": 1000}})
    for size in range(180, 260):
        for _ in range(10):
            a.channel.send_nowait(bytes(size))
        group.run(1)
    assert "frag.train" not in a.channel.stack.rules
    assert len(b.log.texts()) == 800


def test_a_message_larger_than_a_bundle_arrives_whole(group: Group) -> None:
    a, b = group.connected({"FLOW": {"window": 100_000}})
    large = bytes(range(256)) * 2000
    a.channel.send_nowait(b"before")
    a.channel.send_nowait(large)
    a.channel.send_nowait(b"after")
    a.channel.send_nowait(large, b.local)
    group.run(5)
    assert a.log.texts() == [b"before", large, b"after"]
    assert [m for d in b.log.deliveries if d.multicast for m in map(bytes, d.messages)] == [b"before", large, b"after"]
    assert [m for d in b.log.deliveries if not d.multicast for m in map(bytes, d.messages)] == [large]


def test_an_empty_message_is_a_message() -> None:
    a, b = (group := Group()).connected()
    a.channel.send_nowait(b"")
    a.channel.send_nowait(b"", b.local)
    group.run(1)
    assert b.log.texts() == [b"", b""]


# To one.


def test_a_unicast_reaches_its_addressee_only(group: Group) -> None:
    a, b = group.connected()
    a.channel.send_nowait(b"for b", b.local)
    a.channel.send_nowait(b"for me", a.local)
    group.run(1)
    assert [(d.sender, d.multicast) for d in b.log.deliveries] == [(a.local, False)]
    assert b.log.texts() == [b"for b"]
    assert a.log.texts() == [b"for me"]


def test_unicasts_are_gathered_for_each_destination_apart() -> None:
    a, b, c = (group := Group(size=3)).connected()
    for n in range(6):
        a.channel.send_nowait(b"%d" % n, (b.local, c.local)[n % 2])
    group.run(1)
    assert [len(d.messages) for d in b.log.deliveries] == [3]
    assert b.log.texts() == [b"0", b"2", b"4"]
    assert c.log.texts() == [b"1", b"3", b"5"]


def test_everybody_gets_everybodys_messages_in_the_order_of_each_sender() -> None:
    members = (group := Group("UDP", 3)).connected()
    group.fabric.link("a", "b").change(1, {"loss": 0.2, "duplicate": 0.2, "reorder": 0.2})
    group.fabric.link("c", "b").change(1, {"loss": 0.2, "duplicate": 0.2, "reorder": 0.2})
    for n in range(100):
        for member in members:
            member.channel.send_nowait(b"%d" % n)
        group.run(0.01)
    group.run(3)
    for member in members:
        for other in members:
            assert member.log.texts(other.local) == [b"%d" % n for n in range(100)]
    assert group.fabric.effects["loss"] > 10


# Back-pressure.

SMALL: Settings = {
    "channel": {"buffer_max": 2000, "bundle_size": 500},
    "FLOW": {"window": 3000, "ask_interval": 0.1},
}


def fill(member: Member, dest: Address | None = None) -> list[bytes]:
    """Send until the channel takes no more."""
    taken: list[bytes] = []
    while len(taken) < 10_000:
        message = b"%d " % len(taken) + bytes(90)
        try:
            member.channel.send_nowait(message, dest)
        except BufferFull:
            return taken
        taken.append(message)
    raise AssertionError("it took everything")


@pytest.mark.parametrize("to_all", [True, False])
def test_a_slow_receiver_makes_the_sender_full_and_when_it_goes_on_everything_arrives(
    group: Group, to_all: bool
) -> None:
    a, b = group.connected(SMALL)
    slow = gate(b)
    accepted = []
    for _ in range(20):  # the sender tries again and again, and the receiver takes nothing
        accepted += [text for text in fill(a, None if to_all else b.local) if text]
        group.run(0.2)
    assert sum(map(len, accepted)) < 3000 + 2000 + 4 * 600  # the window, the buffer, and a few bundles
    assert len(b.log.batches) == 1
    slow.set_result(None)
    b.log.then = lambda batch: None
    group.run(3)
    assert b.log.texts(a.local) == accepted


def test_a_refused_message_is_not_sent() -> None:
    a, b = (group := Group()).connected(SMALL)
    slow = gate(b)
    accepted = fill(a)
    with pytest.raises(BufferFull, match="bytes wait for credit"):
        a.channel.send_nowait(b"refused" + bytes(500))
    slow.set_result(None)
    b.log.then = lambda batch: None
    group.run(3)
    assert b.log.texts() == accepted


def test_awaiting_send_waits_as_long_as_the_receiver_is_too_slow(group: Group) -> None:
    a, b = group.connected(SMALL)
    slow = gate(b)
    done = []

    async def send_all() -> None:
        for n in range(500):
            await a.channel.send(b"%d " % n + bytes(90))
            done.append(n)

    task = a.do(send_all())
    group.run(5)
    assert not task.done()
    waited = len(done)
    assert 20 < waited < 100
    group.run(5)
    assert len(done) == waited
    slow.set_result(None)
    b.log.then = lambda batch: None
    group.until(task.done)
    group.run(2)
    assert [int(text.split(b" ")[0]) for text in b.log.texts()] == list(range(500))


def test_a_sender_that_waits_is_woken_although_the_application_sends_other_things_meanwhile() -> None:
    """Its own application is the slow one here, and sends from within receive()."""
    (a,) = (group := Group(size=1)).connected(SMALL)

    def answer(batch: list[Delivery]) -> None:
        if any(delivery.multicast for delivery in batch):
            a.channel.send_nowait(b"ack", a.local)

    a.log.then = answer

    async def send_all() -> None:
        for _ in range(500):
            await a.channel.send(bytes(90))

    task = a.do(send_all())
    group.until(task.done, 60)


def test_a_batch_that_is_awaited_holds_back_the_next_one() -> None:
    a, b = (group := Group()).connected()
    first = gate(b)
    for n in (1, 2, 3):
        a.channel.send_nowait(b"%d" % n)
        group.run(1)
    assert b.log.texts() == [b"1"]
    assert b.channel.stack.held()["CHANNEL.untaken"] == 3
    second = gate(b)
    first.set_result(None)
    group.run(0)
    assert b.log.texts() == [b"1", b"2"]
    b.log.then = lambda batch: None
    second.set_result(None)
    group.run(0)
    assert b.log.texts() == [b"1", b"2", b"3"]
    assert b.channel.stack.held()["CHANNEL.untaken"] == 0


def test_a_view_does_not_overtake_what_was_delivered_before_it() -> None:
    a, b, c = (group := Group(size=3)).connected()
    slow = gate(b)
    a.channel.send_nowait(b"1")
    group.run(1)
    a.channel.send_nowait(b"2")
    group.run(1)
    before = len(b.log.views)
    group.until(c.do(c.channel.close()).done)
    group.until(lambda: c.local not in b.channel.view)
    assert len(b.log.views) == before
    told: list[bytes] = []
    b.log.view_accepted = lambda view: told.extend(b.log.texts())  # type: ignore[method-assign]
    b.log.then = lambda batch: None
    slow.set_result(None)
    group.run(0)
    assert told == [b"1", b"2"]


def test_a_slow_receiver_does_not_slow_those_who_do_not_send_to_it() -> None:
    a, b, c = (group := Group(size=3)).connected(SMALL)
    gate(b)
    fill(a, b.local)
    group.run(1)
    for n in range(100):
        a.channel.send_nowait(b"%d" % n, c.local)
        group.run(0.01)
    group.run(1)
    assert len(c.log.texts()) == 100


def test_lost_credit_does_not_stop_a_sender_for_ever() -> None:
    a, b = (group := Group("UDP")).connected(SMALL)
    slow = gate(b)
    accepted = fill(a)
    group.run(0.5)
    group.fabric.link("b", "a").block()  # b's word that it has taken everything is lost
    slow.set_result(None)
    b.log.then = lambda batch: None
    group.run(0.3)
    group.fabric.link("b", "a").unblock()
    group.run(3)
    assert b.log.texts() == accepted
    assert not any(a.channel.stack.held().values())


# Applications and peers that fail.


def fail(batch: object) -> None:
    raise RuntimeError("the application has a bug")


async def fail_later() -> None:
    raise RuntimeError("the application has a bug, later")


@pytest.mark.parametrize("failure", [fail, lambda batch: fail_later()], ids=["at once", "later"])
def test_a_receiver_that_raises_is_survived_and_its_batch_counts_as_taken(
    failure: Callable[[object], Awaitable[None] | None], caplog: pytest.LogCaptureFixture
) -> None:
    a, b = (group := Group()).connected(SMALL)
    b.log.then = failure
    for n in range(200):  # many windows: so credit comes back
        a.channel.send_nowait(b"%d " % n + bytes(90))
        group.run(0.05)
    group.run(1)
    assert [int(text.split(b" ")[0]) for text in b.log.texts()] == list(range(200))
    assert "b#1" in caplog.text
    assert "the application has a bug" in caplog.text


def test_a_receiver_that_raises_on_a_view_is_survived(caplog: pytest.LogCaptureFixture) -> None:
    group = Group()
    a, b = group.boot(0), group.boot(1)
    a.log.view_accepted = fail  # type: ignore[method-assign, assignment]
    for member in (a, b):
        member.do(member.channel.connect())
    group.until(lambda: len(a.channel.view.members) == 2)
    b.channel.send_nowait(b"x")
    group.run(1)
    assert a.log.texts() == [b"x"]
    assert "failed on a view" in caplog.text


@pytest.mark.parametrize("body", [b"", b"\1", b"\xff\xff\xff\xff", b"\x08\0\0\0\x07\0\0\0", bytes(50)])
def test_a_malformed_bundle_is_counted_and_survived(body: bytes) -> None:
    a, b = (group := Group()).connected(SMALL)
    a.channel._send_down(Packet(body, None, APP, MCAST))
    group.run(1)
    assert b.log.batches == []  # not even an empty one
    assert b.channel.stats()["CHANNEL"] == {"malformed": 1}
    a.channel.send_nowait(b"next")
    group.run(1)
    assert b.log.texts() == [b"next"]


def test_malformed_bundles_are_credited_so_that_they_cannot_stop_a_stream() -> None:
    a, b = (group := Group()).connected(SMALL)
    for _ in range(20):
        a.channel._send_down(Packet(bytes(400), None, APP, MCAST))
        group.run(0.5)
    assert a.channel.stack.held()["FLOW.waiting"] == 0
    assert b.channel.stats()["CHANNEL"]["malformed"] == 20


def test_a_message_that_is_too_large_is_refused_with_the_limit_and_the_channel_goes_on() -> None:
    a, b = (group := Group()).connected({"FRAG": {"message_max": 100_000}})
    with pytest.raises(UserError, match=r"a message of 100001 bytes: the limit is 100000 \(message_max of FRAG\)"):
        a.channel.send_nowait(bytes(100_001))
    a.channel.send_nowait(bytes(100_000))
    group.run(2)
    assert [len(text) for text in b.log.texts()] == [100_000]


def test_without_fragmentation_a_message_is_as_large_as_a_bundle_at_most() -> None:
    group = Group()
    layers = [layer for layer in group.layers(group.nodes[0], {}) if layer.protocol != "FRAG"]
    a = Member(group.nodes[0], layers, Log(), bundle_size=1000)
    a.do(a.channel.connect())
    group.run(1)
    with pytest.raises(UserError, match=r"a message of 1001 bytes: the limit is 1000 \(bundle_size"):
        a.channel.send_nowait(bytes(1001))
    a.channel.send_nowait(bytes(1000))
    group.run(1)
    assert [len(text) for text in a.log.texts()] == [1000]


# Connecting and closing.


@pytest.mark.parametrize("transport", ["TCP", "UDP"])
def test_connect_waits_for_as_many_members_as_it_is_told(transport: str) -> None:
    group = Group(transport, 3)
    a = group.boot(0)
    waiting = a.do(a.channel.connect(3))
    b = group.boot(1)
    b.do(b.channel.connect())
    group.run(3)
    assert set(a.channel.view.members) == {a.local, b.local}
    assert not waiting.done()
    c = group.boot(2)
    c.do(c.channel.connect())
    group.until(waiting.done)
    assert set(a.channel.view.members) == {a.local, b.local, c.local}
    assert a.log.views[-1] == a.channel.view


def test_a_member_alone_is_a_group() -> None:
    (a,) = (group := Group(size=1)).connected()
    a.channel.send_nowait(b"hello?")
    group.run(1)
    assert a.log.texts() == [b"hello?"]


def test_sending_before_connect_is_refused() -> None:
    a = Group().boot(0)
    with pytest.raises(ChannelClosed, match="connect"):
        a.channel.send_nowait(b"x")
    with pytest.raises(ChannelClosed, match="connect"):
        a.channel.send_nowait(bytes(100_000))


def test_a_channel_connects_once() -> None:
    (a,) = (group := Group(size=1)).connected()
    again = a.do(a.channel.connect())
    group.world.run(group.world.time + 0.1)
    with pytest.raises(UserError, match="make another one"):
        again.result()


def test_close_sends_what_was_sent_before_it_and_gives_it_time_to_arrive(group: Group) -> None:
    a, b = group.connected(SMALL)
    numbers = range(40)
    for n in numbers:  # more than the window, so that some of it has to wait for credit
        a.channel.send_nowait(b"%d " % n + bytes(90))
    for n in numbers:
        a.channel.send_nowait(b"%d " % n + bytes(90), b.local)
    closing = a.do(a.channel.close())
    group.until(closing.done)
    group.run(1)
    for multicast in (True, False):
        texts = [bytes(m) for d in b.log.deliveries if d.multicast is multicast for m in d.messages]
        assert [int(text.split(b" ")[0]) for text in texts] == list(numbers)


def test_close_says_good_bye_so_that_the_others_need_not_find_out(group: Group) -> None:
    a, b = group.connected()
    closing = a.do(a.channel.close())
    group.until(closing.done, 3)
    group.run(0.1)
    assert b.channel.view.members == (b.local,)


def test_close_waits_no_longer_than_its_time_out_for_someone_who_does_not_take_anything() -> None:
    a, b = (group := Group()).connected({**SMALL, "channel": {**SMALL["channel"], "close_timeout": 1.5}})
    gate(b)
    fill(a)
    began = group.world.time
    closing = a.do(a.channel.close())
    group.until(closing.done, 10)
    assert 1.49 < group.world.time - began < 1.6


def test_closing_twice_and_closing_what_was_never_connected_do_nothing() -> None:
    a, b = (group := Group()).connected()
    for _ in range(2):
        closing = a.do(a.channel.close())
        group.until(closing.done)
    never = Group().boot(0)
    task = never.do(never.channel.close())
    never.runtime.world.run(1)
    assert task.done()
    assert b.channel.stack.running


def test_a_closed_channel_refuses_to_send() -> None:
    a, _ = (group := Group()).connected()
    group.until(a.do(a.channel.close()).done)
    with pytest.raises(ChannelClosed):
        a.channel.send_nowait(b"x")


def test_whoever_waits_for_a_channel_is_told_that_it_was_closed() -> None:
    a, b = (group := Group()).connected(SMALL)
    gate(b)
    fill(a)
    writer, guest = a.do(a.channel.send(bytes(600))), a.do(a.channel.has_members(3))
    group.run(0.1)
    a.channel.stack.stop()
    group.world.run(group.world.time + 0.1)
    for task in (writer, guest):
        with pytest.raises(ChannelClosed):
            task.result()


def test_what_is_sent_to_a_member_that_has_left_does_not_block() -> None:
    a, b = (group := Group()).connected(SMALL)
    gone = b.local
    group.until(b.do(b.channel.close()).done)
    group.until(lambda: gone not in a.channel.view)

    async def send_all() -> None:
        for _ in range(200):
            await a.channel.send(bytes(90), gone)

    group.until(a.do(send_all()).done)


def test_a_name_that_is_empty_or_too_long_is_refused() -> None:
    group = Group()
    runtime = group.nodes[0].boot()
    for name in ("", "x" * 256, "é" * 128):
        with pytest.raises(UserError, match="1 to 255 bytes"):
            Channel(runtime, "reliable", group="g", name=name)


def test_without_an_incarnation_a_later_channel_of_the_same_name_has_a_higher_one() -> None:
    group = Group()
    runtime = group.nodes[0].boot()
    first = Channel(runtime, "reliable", group="g", name="x")
    group.run(0.01)
    assert Channel(runtime, "reliable", group="g", name="x").local > first.local


def test_stats_tell_every_layers_counters() -> None:
    a, b = (group := Group("UDP")).connected()
    group.fabric.link("a", "b").change(1, {"loss": 0.5})
    for _ in range(20):
        a.channel.send_nowait(b"x")
        group.run(0.05)
    group.run(2)
    assert a.channel.stats()["NAKACK"]["resent"] >= b.channel.stats()["NAKACK"]["asks"] > 0
    assert a.channel.stats()["UDP"]["packets_out"] > 20
