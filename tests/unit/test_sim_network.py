"""The simulated network: streams, datagrams, partitions, resets, crashes."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from coterie.errors import UserError
from coterie.runtime.base import Buffer, CloseReason, DatagramHandler, Endpoint, Stream, StreamHandler
from coterie.sim.clock import World
from coterie.sim.link import Conditions
from coterie.sim.network import Fabric
from coterie.sim.node import Node
from coterie.sim.stream import Limits

PORT = 7000


class Peer(StreamHandler):
    """Writes down what happens to its stream."""

    def __init__(self) -> None:
        self.stream: Stream | None = None
        self.pieces: list[bytes] = []
        self.ended: list[CloseReason] = []
        self.drains = 0

    def connected(self, stream: Stream) -> None:
        self.stream = stream

    def received(self, data: Buffer) -> None:
        self.pieces.append(bytes(data))

    def closed(self, reason: CloseReason) -> None:
        self.ended.append(reason)

    def drained(self) -> None:
        self.drains += 1

    @property
    def data(self) -> bytes:
        return b"".join(self.pieces)

    def write(self, data: bytes) -> None:
        assert self.stream is not None
        self.stream.write([data])


class Mailbox(DatagramHandler):
    def __init__(self) -> None:
        self.got: list[tuple[bytes, Endpoint]] = []

    def datagram(self, data: Buffer, source: Endpoint) -> None:
        self.got.append((bytes(data), source))


class Net:
    """Nodes a, b, c and the network between them."""

    def __init__(self, base: Conditions | None = None, limits: Limits | None = None, seed: int = 1) -> None:
        self.world = World(seed)
        self.fabric = Fabric(self.world, base, limits)
        self.nodes = {name: Node(self.world, self.fabric, name) for name in "abc"}
        self.accepted: list[Peer] = []
        for node in self.nodes.values():
            node.boot()

    def listen(self, name: str) -> None:
        process = self.nodes[name].process
        assert process is not None
        process.net.listen(Endpoint("", PORT), self._accept)

    def _accept(self) -> Peer:
        self.accepted.append(Peer())
        return self.accepted[-1]

    def dial(self, source: str, target: str, timeout: float = 1.0) -> Peer:
        process = self.nodes[source].process
        assert process is not None
        peer = Peer()
        process.net.connect(Endpoint(self.nodes[target].ports.ip, PORT), peer, timeout)
        return peer

    def connect(self) -> tuple[Peer, Peer]:
        self.listen("b")
        near = self.dial("a", "b")
        self.pass_time(0.5)
        return near, self.accepted[-1]

    def block(self, source: str, target: str) -> None:
        self.fabric.link(source, target).block()

    def unblock(self, source: str, target: str) -> None:
        self.fabric.link(source, target).unblock()

    def pass_time(self, seconds: float) -> None:
        self.world.run(self.world.time + seconds)

    def bind(self, name: str, group: Endpoint | None = None) -> tuple[Mailbox, object]:
        process = self.nodes[name].process
        assert process is not None
        mailbox = Mailbox()
        return mailbox, process.net.datagrams(Endpoint("", PORT), mailbox, group)


def write_numbered(peer: Peer, count: int) -> bytes:
    for number in range(count):
        peer.write(b"%06d" % number)
    return b"".join(b"%06d" % number for number in range(count))


def test_a_stream_carries_bytes_in_order_both_ways() -> None:
    net = Net(Conditions(0.001, 0.05, chop=0.5))
    near, far = net.connect()
    there, back = write_numbered(near, 200), write_numbered(far, 100)
    net.pass_time(5)
    assert far.data == there
    assert near.data == back
    assert len(far.pieces) > 200  # chopped somewhere


def test_nobody_listening_means_refused_and_no_such_host_an_error() -> None:
    net = Net()
    refused = net.dial("a", "b")
    process = net.nodes["a"].process
    assert process is not None
    lost = Peer()
    process.net.connect(Endpoint("nowhere", PORT), lost, 1.0)
    net.pass_time(0.1)
    assert refused.ended == [CloseReason.REFUSED]
    assert lost.ended == [CloseReason.ERROR]


def test_a_dead_process_refuses_but_a_dead_host_does_not_answer() -> None:
    net = Net()
    net.nodes["b"].crash(silent=False)
    net.nodes["c"].crash(silent=True)
    refused, unanswered = net.dial("a", "b"), net.dial("a", "c")
    net.pass_time(0.5)
    assert refused.ended == [CloseReason.REFUSED]
    assert unanswered.ended == []
    net.pass_time(1.0)
    assert unanswered.ended == [CloseReason.TIMEOUT]


@pytest.mark.parametrize(("source", "target"), [("a", "b"), ("b", "a")])
def test_dialling_through_a_partition_times_out_whichever_direction_is_cut(source: str, target: str) -> None:
    net = Net()
    net.listen("b")
    net.block(source, target)
    peer = net.dial("a", "b")
    net.pass_time(3)
    assert peer.ended == [CloseReason.TIMEOUT]
    assert peer.stream is None
    assert net.accepted == []


def test_a_stopped_process_is_connected_by_its_kernel_but_a_frozen_host_is_not() -> None:
    net = Net()
    net.listen("b")
    net.listen("c")
    net.nodes["b"].pause(frozen=False)
    net.nodes["c"].pause(frozen=True)
    stopped, frozen = net.dial("a", "b"), net.dial("a", "c")
    net.pass_time(3)
    assert stopped.stream is not None
    assert net.accepted == []
    assert frozen.ended == [CloseReason.TIMEOUT]
    stopped.write(b"hello")
    net.nodes["b"].resume(1)
    net.pass_time(1)
    assert net.accepted[0].data == b"hello"


def test_what_is_in_flight_when_a_partition_starts_arrives_after_it_has_healed() -> None:
    net = Net(Conditions(0.01, 0.0))
    near, far = net.connect()
    near.write(b"before ")
    net.block("a", "b")
    near.write(b"during ")
    net.pass_time(10)
    assert far.data == b""
    net.unblock("a", "b")
    net.pass_time(1)
    near.write(b"after")
    net.pass_time(1)
    assert far.data == b"before during after"


def test_a_one_way_partition_stops_one_way_only() -> None:
    net = Net()
    near, far = net.connect()
    net.block("a", "b")
    near.write(b"x")
    far.write(b"y")
    net.pass_time(1)
    assert far.data == b""
    assert near.data == b"y"


def test_a_reset_loses_what_is_in_flight_and_both_ends_are_told_once() -> None:
    net = Net(Conditions(0.01, 0.0))
    near, far = net.connect()
    near.write(b"lost")
    (stream,) = net.fabric.streams_between("a", "b")
    stream.reset()
    stream.other.reset()
    net.pass_time(1)
    assert far.data == b""
    assert near.ended == far.ended == [CloseReason.RESET]
    near.write(b"ignored")
    net.pass_time(1)
    assert far.data == b""


def test_a_reset_during_the_handshake_of_a_paused_process_is_told_once() -> None:
    net = Net(Conditions(0.01, 0.0))
    net.listen("b")
    near = net.dial("a", "b")
    process = net.nodes["a"].process
    assert process is not None
    net.world.pause(process.owner)
    net.pass_time(0.5)
    (stream,) = net.fabric.streams_between("a", "b")
    stream.reset()
    stream.other.reset()
    net.pass_time(0.1)
    net.world.resume(process.owner)
    net.pass_time(1)
    assert near.stream is None
    assert near.ended == [CloseReason.RESET]


def test_close_sends_what_is_buffered_first() -> None:
    net = Net(limits=Limits(room=100))
    near, far = net.connect()
    sent = write_numbered(near, 500)
    assert near.stream is not None
    near.stream.close()
    near.write(b"too late")
    net.pass_time(5)
    assert far.data == sent
    assert near.ended == [CloseReason.LOCAL]
    assert far.ended == [CloseReason.EOF]


def test_abort_drops_what_is_buffered_and_resets_the_peer() -> None:
    net = Net(limits=Limits(room=10))
    near, far = net.connect()
    near.write(b"x" * 1000)
    assert near.stream is not None
    near.stream.abort()
    net.pass_time(5)
    assert len(far.data) < 1000
    assert near.ended == [CloseReason.LOCAL]
    assert far.ended == [CloseReason.RESET]


def test_what_the_reader_does_not_take_stays_buffered_at_the_writer_until_it_does() -> None:
    net = Net(limits=Limits(room=1000, high_mark=2000, low_mark=500))
    near, far = net.connect()
    assert near.stream is not None
    assert far.stream is not None
    far.stream.pause_reading()
    sent = b"".join(bytes([n]) * 100 for n in range(50))
    for n in range(50):
        near.write(bytes([n]) * 100)
    net.pass_time(1)
    assert far.data == b""
    assert near.stream.buffered == 4000
    assert near.drains == 0
    far.stream.resume_reading()
    net.pass_time(1)
    assert far.data == sent
    assert near.stream.buffered == 0
    assert near.drains == 1


def test_bandwidth_makes_size_cost_time() -> None:
    net = Net(Conditions(0.001, 0.0, bandwidth=1000.0))
    near, far = net.connect()
    near.write(b"x" * 2000)
    net.pass_time(1.5)
    assert far.data == b""
    net.pass_time(1.0)
    assert len(far.data) == 2000


def test_a_killed_process_ends_or_resets_its_connections_and_a_dead_host_says_nothing() -> None:
    seen = set()
    for seed in range(20):
        net = Net(seed=seed)
        _, far = net.connect()
        net.nodes["a"].crash(silent=False)
        net.pass_time(1)
        seen.update(far.ended)
    assert seen == {CloseReason.EOF, CloseReason.RESET}
    net = Net()
    _, far = net.connect()
    net.nodes["a"].crash(silent=True)
    net.pass_time(100)
    assert far.ended == []
    net.nodes["a"].boot()
    net.pass_time(1)
    assert far.ended == [CloseReason.RESET]


def test_a_datagram_reaches_its_socket_with_the_address_of_its_sender() -> None:
    net = Net()
    mailbox, _ = net.bind("b")
    _, socket = net.bind("a")
    socket.send([b"he", memoryview(b"llo")], Endpoint(net.nodes["b"].ports.ip, PORT))  # type: ignore[attr-defined]
    net.pass_time(1)
    assert mailbox.got == [(b"hello", Endpoint(net.nodes["a"].ports.ip, PORT))]


def test_multicast_reaches_every_socket_of_the_group_also_the_senders_own() -> None:
    net = Net()
    group = Endpoint("239.0.0.1", 9)
    boxes = {name: net.bind(name, group) for name in "ab"}
    outside, _ = net.bind("c")
    boxes["a"][1].send([b"x"], group)  # type: ignore[attr-defined]
    net.pass_time(1)
    assert [len(boxes[name][0].got) for name in "ab"] == [1, 1]
    assert outside.got == []


def count_datagrams(base: Conditions, count: int = 1000) -> tuple[list[bytes], Net]:
    net = Net(base)
    mailbox, _ = net.bind("b")
    _, socket = net.bind("a")
    for number in range(count):
        net.world.after(
            number * 0.01, net.world.nature,
            socket.send, [b"%06d" % number], Endpoint(net.nodes["b"].ports.ip, PORT),  # type: ignore[attr-defined]
        )  # fmt: skip
    net.pass_time(count * 0.01 + 5)
    return [data for data, _ in mailbox.got], net


def test_datagrams_are_lost_doubled_reordered_and_damaged_about_as_often_as_the_link_says() -> None:
    all_sent = [b"%06d" % number for number in range(1000)]
    assert count_datagrams(Conditions(0.001, 0.0))[0] == all_sent
    lost, _ = count_datagrams(Conditions(0.001, 0.0, loss=0.1))
    assert 850 < len(lost) < 950
    doubled, _ = count_datagrams(Conditions(0.001, 0.0, duplicate=0.1))
    assert 1050 < len(doubled) < 1150
    reordered, net = count_datagrams(Conditions(0.001, 0.0005, reorder=0.3))
    assert sorted(reordered) == all_sent
    assert reordered != all_sent
    assert 200 < net.fabric.effects["reorder"] < 400
    damaged, _ = count_datagrams(Conditions(0.001, 0.0, corrupt=0.2))
    assert 700 < len(set(damaged) & set(all_sent)) < 900


def test_a_blocked_link_loses_datagrams_for_good() -> None:
    net = Net()
    mailbox, _ = net.bind("b")
    _, socket = net.bind("a")
    to = Endpoint(net.nodes["b"].ports.ip, PORT)
    net.block("a", "b")
    socket.send([b"lost"], to)  # type: ignore[attr-defined]
    net.pass_time(1)
    net.unblock("a", "b")
    socket.send([b"found"], to)  # type: ignore[attr-defined]
    net.pass_time(1)
    assert [data for data, _ in mailbox.got] == [b"found"]


def test_a_port_in_use_is_an_error_that_says_so_and_a_crash_frees_it() -> None:
    net = Net()
    net.listen("b")
    net.bind("b")
    with pytest.raises(UserError, match="in use"):
        net.listen("b")
    with pytest.raises(UserError, match="in use"):
        net.bind("b")
    net.nodes["b"].crash()
    net.nodes["b"].boot()
    net.listen("b")
    net.bind("b")


def test_names_are_resolved_from_a_table_sorted_or_not_at_all() -> None:
    net = Net()
    net.fabric.names["peers"] = ("10.0.0.3", "10.0.0.1")
    process = net.nodes["a"].process
    assert process is not None
    answers: list[Sequence[str]] = []
    process.net.resolve("peers", answers.append)
    process.net.resolve("unknown", answers.append)
    net.pass_time(1)
    assert answers == [["10.0.0.1", "10.0.0.3"], []]
