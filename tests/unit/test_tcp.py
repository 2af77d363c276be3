"""TCP over the simulated network: connections, their loss, and what is told of it."""

from __future__ import annotations

import random

import pytest
from transport_rig import Member, SimGroup, real, until

from coterie.errors import UserError
from coterie.group.events import Replaced
from coterie.group.members import Address
from coterie.group.packet import MCAST, RAW, Packet, encode_header, group_tag
from coterie.group.protocols.tcp import Tcp, TcpSettings
from coterie.group.protocols.tcp_peer import CODEC, Hello, Link
from coterie.group.stack import Layer, build
from coterie.runtime.aio import run
from coterie.runtime.base import Buffer, CloseReason, Endpoint, Stream, StreamHandler
from coterie.sim.link import Conditions


def mesh(group: SimGroup, names: str, **settings: object) -> list[Member]:
    """Members that all found each other."""
    members = [group.boot(name, Tcp(TcpSettings(**settings))) for name in names]  # type: ignore[arg-type]
    for member in members:
        member.find(*[other for other in members if other is not member])
    group.run(1.0)
    for member in members:
        member.see(*members)
    return members


class Wire(StreamHandler):
    """A stranger's end of a connection: it says what a test wants it to say."""

    def __init__(self, member: Member, to: Member) -> None:
        self.stream: Stream | None = None
        self.heard = b""
        self.end: CloseReason | None = None
        member.runtime.net.connect(to.transport.endpoint, self, 1.0)

    def connected(self, stream: Stream) -> None:
        self.stream = stream

    def received(self, data: Buffer) -> None:
        self.heard += data

    def closed(self, reason: CloseReason) -> None:
        self.end = reason

    def say(self, *buffers: bytes) -> None:
        assert self.stream is not None
        self.stream.write(buffers)


def hello(sender: Address, group: str = "friends", token: int = 7, number: int = 1, **fields: object) -> bytes:
    values = {"host": "10.0.0.9", "port": 7800, "lowest": 1, "highest": 1, "peers": ()} | fields
    return packet(sender, CODEC.encode(Hello(token, number, **values)), 1, group)  # type: ignore[arg-type]


def packet(sender: Address, body: bytes, proto: int = 0, group: str = "friends") -> bytes:
    made = Packet(body, None, proto)
    made.sender = sender
    return encode_header(made, group_tag(group), sender.name.encode(), True) + body


def stranger(group: SimGroup, to: Member) -> Wire:
    node = group.boot("stranger", Tcp()) if "stranger" not in group.nodes else None
    assert node is not None
    wire = Wire(node, to)
    group.run(0.1)
    return wire


# Connections.


def test_members_that_found_each_other_have_one_connection_per_pair() -> None:
    group = SimGroup()
    members = mesh(group, "abcd")
    group.run(5.0)
    for member in members:
        assert member.peers == [f"{name}#1" for name in "abcd" if name != member.local.name]
        assert sorted(member.events) == [f"+{peer}" for peer in member.peers]
    for one in "abc":
        assert len(group.fabric.streams_between(one, "d")) == 1


def test_crossed_dials_end_in_the_same_connection_on_both_sides() -> None:
    crossed = 0
    for seed in range(30):
        group = SimGroup(seed, Conditions(latency=0.05, jitter=0.03))
        a, b = mesh(group, "ab")
        group.run(5.0)
        assert (a.events, b.events) == (["+b#1"], ["+a#1"])
        a.send(b"to b", b.local)
        b.send(b"to a", a.local)
        group.run(1.0)
        assert (a.bodies, b.bodies) == ([b"to a"], [b"to b"])
        assert len(group.fabric.streams_between("a", "b")) == 1
        crossed += a.stack.rules.get("tcp.duplicate_connection", 0)
    assert crossed > 10


def test_nothing_is_lost_when_one_of_two_connections_is_given_up() -> None:
    for seed in range(20):
        group = SimGroup(seed, Conditions(latency=0.05, jitter=0.03))
        a, b = (group.boot(name, Tcp()) for name in "ab")
        a.find(b)
        b.find(a)
        sent: dict[str, list[bytes]] = {"a": [], "b": []}
        for step in range(100):
            group.run(0.01)
            for one, other in ((a, b), (b, a)):
                if one.peers:
                    body = b"%d" % step
                    one.send(body, other.local)
                    sent[one.local.name].append(body)
        group.run(2.0)
        assert sorted(a.bodies) == sorted(sent["b"])
        assert sorted(b.bodies) == sorted(sent["a"])


def test_a_few_known_endpoints_suffice_because_peers_tell_of_each_other() -> None:
    group = SimGroup()
    seed, *others = (group.boot(name, Tcp()) for name in "abcde")
    for other in others:
        other.find(seed)
    group.run(3.0)
    assert [len(member.peers) for member in (seed, *others)] == [4] * 5


def test_an_endpoint_by_another_name_does_not_lead_to_connections_that_replace_each_other() -> None:
    group = SimGroup()
    a, b = mesh(group, "ab")
    a.transport.found(Endpoint("b", 7800))
    b.transport.found(Endpoint("a", 7800))
    group.run(1.0)
    dials = a.transport.stats["dials"] + b.transport.stats["dials"]
    group.run(60.0)
    assert a.transport.stats["dials"] + b.transport.stats["dials"] == dials
    assert (a.events, b.events) == (["+b#1"], ["+a#1"])


def test_a_connection_to_oneself_is_recognised_and_never_tried_again() -> None:
    group = SimGroup()
    a = group.boot("a", Tcp())
    a.transport.found(a.transport.endpoint)
    assert a.transport.stats["dials"] == 0
    a.transport.found(Endpoint("a", 7800))  # its own host, by name
    group.run(1.0)
    a.transport.found(Endpoint("a", 7800))
    group.run(30.0)
    assert a.transport.stats["dials"] == 1
    assert a.stack.rules["tcp.connection_to_self"] > 0
    assert a.events == []


def test_another_process_with_the_same_address_is_not_taken_for_oneself() -> None:
    group = SimGroup()
    a = group.boot("a", Tcp())
    wire = stranger(group, a)
    wire.say(hello(a.local, token=99))
    group.run(0.1)
    assert wire.end is not None
    assert a.transport.stats["stale"] == 1


# The handshake.


def test_versions_that_do_not_overlap_close_the_connection_with_a_logged_reason(
    caplog: pytest.LogCaptureFixture,
) -> None:
    group = SimGroup()
    a = group.boot("a", Tcp())
    wire = stranger(group, a)
    wire.say(hello(Address("z", 1), lowest=2, highest=3))
    group.run(0.1)
    assert wire.end is CloseReason.RESET
    assert a.events == []
    assert a.transport.stats["versions"] == 1
    (record,) = caplog.records
    assert "z#1 speaks versions 2 to 3 of the wire format" in str(vars(record))


def test_versions_that_overlap_are_enough() -> None:
    group = SimGroup()
    a = group.boot("a", Tcp())
    wire = stranger(group, a)
    wire.say(hello(Address("z", 1), lowest=0, highest=3))
    group.run(0.1)
    assert a.events == ["+z#1"]


def test_a_foreign_group_is_counted_and_closed() -> None:
    group = SimGroup()
    a = group.boot("a", Tcp())
    wire = stranger(group, a)
    wire.say(hello(Address("z", 1), group="strangers"))
    group.run(0.1)
    assert wire.end is CloseReason.RESET
    assert wire.heard == b""  # it was told nothing
    assert a.transport.stats["foreign"] == 1


def test_two_groups_that_found_each_other_stay_apart() -> None:
    group = SimGroup()
    a = group.boot("a", Tcp())
    b = group.boot("b", Tcp(), group="strangers")
    a.find(b)
    b.find(a)
    group.run(20.0)
    assert (a.events, b.events) == ([], [])
    assert 0 < a.transport.stats["foreign"] < 50  # the back-off keeps it low


def test_a_connection_without_a_hello_is_closed_in_time() -> None:
    group = SimGroup()
    a = group.boot("a", Tcp(TcpSettings(connect_timeout=0.5)))
    wire = stranger(group, a)
    group.run(1.0)
    assert wire.end is CloseReason.RESET
    assert a.transport.stats["handshakes_failed"] == 1


def test_connections_without_a_hello_are_limited() -> None:
    group = SimGroup()
    a = group.boot("a", Tcp(TcpSettings(handshakes_max=3)))
    z = group.boot("z", Tcp())
    wires = [Wire(z, a) for _ in range(10)]
    group.run(0.5)
    assert sum(wire.end is None for wire in wires) == 3


def test_who_says_nothing_keeps_no_member_out() -> None:
    """However many there are, and although each of them is let wait for long."""
    group = SimGroup()
    a = group.boot("a", Tcp(TcpSettings(handshakes_max=3, connect_timeout=60.0)))
    z = group.boot("z", Tcp())
    first = [Wire(z, a) for _ in range(3)]
    group.run(0.1)
    assert [wire.end for wire in first] == [None] * 3
    b = group.boot("b", Tcp())
    b.transport.found(a.transport.endpoint)
    group.run(0.1)
    assert (b.peers, a.peers) == (["a#1"], ["b#1"])
    assert sum(wire.end is CloseReason.RESET for wire in first) == 1


def test_half_a_packet_of_who_has_not_said_who_it_is_keeps_nothing_else_in_memory() -> None:
    group = SimGroup()
    a, _ = mesh(group, "ab")
    link = Link(a.transport, None)
    chunk = bytearray(hello(Address("z", 1), host="x" * 200))
    for piece in (memoryview(chunk)[:5], memoryview(chunk)[5:60], memoryview(chunk)[60:100]):
        link.received(piece)
        piece.release()
    chunk.append(0)  # BufferError: a slice of it is kept


@pytest.mark.parametrize(
    "first",
    [
        pytest.param(packet(Address("z", 1), b"x"), id="no HELLO"),
        pytest.param(hello(Address("z", 1), port=0), id="no port"),
        pytest.param(hello(Address("", 1)), id="no name"),
        pytest.param(packet(Address("z", 1), b"\xff", 1), id="unknown message"),
        pytest.param(hello(Address("z", 1)) * 2, id="two HELLOs"),
        pytest.param(packet(Address("z", 1), bytes(70_000), 1), id="too large for a stranger"),
        pytest.param(b"GET / HTTP/1.1\r\n\r\n", id="another protocol"),
    ],
)
def test_a_handshake_that_makes_no_sense_closes_that_connection(first: bytes) -> None:
    group = SimGroup()
    a, _ = mesh(group, "ab")
    wire = stranger(group, a)
    wire.say(first)
    group.run(0.1)
    assert wire.end is CloseReason.RESET
    assert a.transport.stats["malformed"] == 1
    assert "b#1" in a.peers


def test_a_peer_without_a_host_of_its_own_is_reached_where_it_comes_from() -> None:
    group = SimGroup()
    a = group.boot("a", Tcp())
    wire = stranger(group, a)
    wire.say(hello(Address("z", 1), host=""))
    group.run(0.1)
    assert a.transport.endpoint_of(Address("z", 1)) == Endpoint(group.nodes["stranger"].ports.ip, 7800)


# Packets.


def test_a_multicast_goes_once_to_every_other_member_of_the_view() -> None:
    group = SimGroup()
    a, b, c, d = mesh(group, "abcd")
    a.see(a, b, c)
    a.send(b"hi", carrier=MCAST)
    group.run(1.0)
    assert [member.bodies for member in (a, b, c, d)] == [[], [b"hi"], [b"hi"], []]
    received = b.top.batches[0][0]
    assert (received.sender, received.carrier) == (a.local, MCAST)
    assert a.transport.stats["packets_out"] == 2


def test_a_packet_to_oneself_comes_back_but_not_within_the_call() -> None:
    group = SimGroup()
    a = group.boot("a", Tcp())
    a.send(b"me", a.local)
    assert a.bodies == []
    group.run(0.1)
    assert a.bodies == [b"me"]
    assert a.top.batches[0][0].sender == a.local


def test_a_packet_for_somebody_unknown_is_counted_and_dropped() -> None:
    group = SimGroup()
    a, b = mesh(group, "ab")
    a.send(b"?", Address("nobody", 1))
    a.see(a, b)
    a.stack.view = type(a.stack.view)(a.stack.view.id, (*a.stack.view.members, Address("nobody", 1)))
    a.send(b"all")
    group.run(0.1)
    assert a.transport.stats["unreachable"] == 2
    assert b.bodies == [b"all"]


def test_a_retransmission_keeps_its_origin_as_sender() -> None:
    group = SimGroup()
    a, b = mesh(group, "ab")
    again = Packet(b"old", b.local, 0, MCAST, 16)
    again.sender = Address("zoë", 4)
    a.top.pass_down(again)
    group.run(0.1)
    assert b.top.batches[0][0].sender == Address("zoë", 4)


def test_packets_are_whole_however_the_stream_is_cut() -> None:
    for seed in range(3):
        group = SimGroup(seed, Conditions(chop=0.9, bandwidth=2e6))
        a, b = mesh(group, "ab")
        sizes = [0, 1, 7, 8, 9, 47, 48, 49, 1000, 60_000, 3, 90_000] * 3
        bodies = [bytes([n % 251]) * size for n, size in enumerate(sizes)]
        for body in bodies:
            a.send(body, b.local)
        group.run(20.0)
        assert b.bodies == bodies


def test_a_stream_that_arrives_byte_by_byte_gives_the_same_packets() -> None:
    group = SimGroup()
    a = group.boot("a", Tcp())
    wire = stranger(group, a)
    z = Address("z", 1)
    for byte in hello(z) + packet(z, b"one") + packet(z, b"") + packet(z, b"three"):
        wire.say(bytes([byte]))
    group.run(1.0)
    assert a.bodies == [b"one", b"", b"three"]


def test_a_chunk_goes_up_as_one_batch() -> None:
    group = SimGroup()
    a = group.boot("a", Tcp())
    wire = stranger(group, a)
    z = Address("z", 1)
    wire.say(hello(z) + b"".join(packet(z, b"%d" % n) for n in range(50)))
    group.run(0.1)
    assert [len(batch) for batch in a.top.batches] == [50]
    assert a.events == ["+z#1"]


def test_what_is_sound_before_something_malformed_is_delivered() -> None:
    group = SimGroup()
    a = group.boot("a", Tcp())
    wire = stranger(group, a)
    z = Address("z", 1)
    wire.say(hello(z) + packet(z, b"good") + b"bad" * 20 + packet(z, b"never"))
    group.run(0.1)
    assert a.bodies == [b"good"]
    assert a.transport.stats["malformed"] == 1
    assert a.events == ["+z#1", "-z#1"]


def test_a_packet_over_the_limit_is_not_sent() -> None:
    group = SimGroup()
    a, b = mesh(group, "ab", max_packet=4096)
    a.send(bytes(5000), b.local)
    a.send(bytes(4000), b.local)
    group.run(0.1)
    assert a.transport.stats["oversized"] == 1
    assert b.bodies == [bytes(4000)]


@pytest.mark.parametrize("checksum", ["header", "full"])
def test_an_altered_body_is_noticed_if_the_checksum_covers_it(checksum: str) -> None:
    group = SimGroup()
    a, b = mesh(group, "ab", checksum=checksum)
    a.send(b"body", b.local)
    group.run(0.1)
    assert bool(b.top.batches[0][0].flags & 8) == (checksum == "full")


def test_beyond_the_buffer_data_is_dropped_first_and_control_later() -> None:
    group = SimGroup()
    a, b = mesh(group, "ab", buffer_max=100_000)
    group.part("a", "b")
    for _ in range(100):
        a.send(bytes(10_000), b.local, MCAST)
    data = 100 - a.transport.stats["dropped_full"]
    for _ in range(100):
        a.send(bytes(10_000), b.local, RAW)
    both = 200 - a.transport.stats["dropped_full"]
    # 64 KiB are with the operating system, then 100,000 bytes wait, then 200,000, each overshot by one packet.
    assert 16 <= data <= 18
    assert 26 <= both <= 28
    assert a.stack.rules["tcp.buffer_full"] == a.transport.stats["dropped_full"]
    group.heal("a", "b")
    group.run(2.0)
    assert len(b.bodies) == both


# Losing connections.


def test_a_killed_process_is_told_without_proof_and_at_once_after_with_proof() -> None:
    for seed in range(10):  # its host may reset or end the stream
        group = SimGroup(seed)
        a, b = mesh(group, "ab")
        assert b.node is not None
        b.node.crash()
        group.run(0.1)
        assert a.events == ["+b#1", "-b#1", "!b#1"]
        assert a.peers == []


def test_a_process_that_is_killed_as_soon_as_it_is_back_is_gone_with_proof_as_quickly_as_any_other() -> None:
    """However often it was dialled in vain while it was down: that tells nothing about its next incarnation."""
    for seed in range(10):
        group = SimGroup(seed)
        a, b = mesh(group, "ab")
        assert b.node is not None
        b.node.crash()
        group.run(20.0)
        b2 = group.boot("b", Tcp())
        b2.find(a)
        while "b#2" not in a.peers:
            group.run(0.001)
        group.run(0.05)  # less than reconnect_min
        b.node.crash()
        group.run(0.25)
        assert a.events[-1] == "!b#2"


def test_a_process_that_stops_in_good_order_is_gone_with_proof() -> None:
    group = SimGroup()
    a, b = mesh(group, "ab")
    b.send(b"last words", a.local)
    b.stack.stop()
    group.run(0.5)
    assert a.bodies == [b"last words"]
    assert a.events == ["+b#1", "-b#1", "!b#1"]
    assert b.events == ["+a#1"]


def test_a_silent_host_gives_no_proof_until_it_is_back() -> None:
    group = SimGroup()
    a, b = mesh(group, "ab")
    assert b.node is not None
    b.node.crash(silent=True)
    group.run(10.0)
    assert a.events == ["+b#1"]  # nobody said anything: heartbeats are for that
    b2 = group.boot("b", Tcp())
    group.run(7.0)
    assert b2.peers == ["a#1"]
    assert [event for event in a.events if event[0] in "+!"] == ["+b#1", "!b#1", "+b#2"]


def test_a_dropped_connection_is_made_again_without_proof_of_anything() -> None:
    group = SimGroup()
    a, b = mesh(group, "ab")
    for _ in range(5):
        a.transport.drop_connection(b.local)
        group.run(1.0)
    assert a.events == ["+b#1"] + ["-b#1", "+b#1"] * 5
    assert a.transport.stats["reconnects"] == 5
    assert a.peers == ["b#1"]
    assert b.peers == ["a#1"]
    assert not any(event.startswith("!") for event in a.events + b.events)


def test_a_peer_behind_a_partition_is_found_again_after_healing() -> None:
    group = SimGroup()
    a, b = mesh(group, "ab")
    group.part("a", "b")
    a.transport.drop_connection(b.local)
    group.run(60.0)
    assert (a.peers, a.events) == ([], ["+b#1", "-b#1"])
    group.heal("a", "b")
    group.run(8.0)
    assert (a.peers, b.peers) == (["b#1"], ["a#1"])


def test_one_side_that_lost_the_connection_alone_replaces_it() -> None:
    """The larger address dials: its new connection must beat the smaller's older one, which is dead without knowing."""
    for lost_by in "ab":
        group = SimGroup()
        a, b = mesh(group, "ab")
        loser, other = (a, b) if lost_by == "a" else (b, a)
        group.block(lost_by, other.local.name)
        loser.transport.drop_connection(other.local)
        group.run(0.2)
        assert other.peers == [str(loser.local)]  # it has heard nothing of it
        group.fabric.link(lost_by, other.local.name).unblock()
        group.run(10.0)
        loser.send(b"again", other.local)
        other.send(b"too", loser.local)
        group.run(1.0)
        assert (loser.bodies, other.bodies) == ([b"too"], [b"again"])


def test_a_new_incarnation_replaces_the_old_whose_death_is_told_first() -> None:
    group = SimGroup()
    a, b = mesh(group, "ab")
    assert b.node is not None
    b.node.crash(silent=True)
    b2 = group.boot("b", Tcp())
    b2.find(a)
    group.run(2.0)
    assert [event for event in a.events if event[0] in "+!"] == ["+b#1", "!b#1", "+b#2"]
    assert a.peers == ["b#2"]
    assert a.stack.rules["tcp.new_incarnation"] == 1


def test_an_older_incarnation_does_not_push_out_a_newer_one() -> None:
    group = SimGroup()
    a = group.boot("a", Tcp())
    new = stranger(group, a)
    new.say(hello(Address("z", 5)))
    old = Wire(group.boot("y", Tcp()), a)
    group.run(0.1)
    old.say(hello(Address("z", 4)))
    group.run(0.1)
    assert a.peers == ["z#5"]
    assert old.end is CloseReason.RESET
    assert a.transport.stats["stale"] == 1


def test_a_newer_process_with_our_own_name_is_told_upwards_and_an_older_one_reads_who_we_are_and_is_closed() -> None:
    group = SimGroup()
    a = group.boot("a", Tcp())
    newer = stranger(group, a)
    newer.say(hello(Address("a", 5)))
    older = Wire(group.boot("y", Tcp()), a)
    group.run(0.1)
    older.say(hello(Address("a", 0)))
    group.run(0.1)
    assert [event for event in a.top.events if isinstance(event, Replaced)] == [
        Replaced(Address("a", 5), Endpoint("10.0.0.9", 7800))
    ]
    assert (newer.end, older.end) == (CloseReason.RESET, CloseReason.EOF)
    assert len(older.heard) > 0
    assert a.transport.stats["stale"] == 1
    assert a.peers == []
    assert a.events == []


def test_of_two_processes_with_one_name_only_the_older_is_told_whoever_dials() -> None:
    for dialler in "xy":
        group = SimGroup()
        x, y = (group.boot_as(host, Address("a", number), Tcp()) for host, number in (("x", 3), ("y", 4)))
        (x if dialler == "x" else y).find(y if dialler == "x" else x)
        group.run(10)
        assert [event.by for event in x.top.events if isinstance(event, Replaced)][:1] == [y.local]
        assert y.top.events == []
        assert (x.peers, y.peers) == ([], [])
        assert x.transport.stats["dials"] + y.transport.stats["dials"] < 16


def test_endpoints_are_dialled_for_ever_with_growing_pauses() -> None:
    group = SimGroup()
    a = group.boot("a", Tcp(TcpSettings(reconnect_min=0.1, reconnect_max=5.0)))
    b = group.boot("b", Tcp())
    endpoint = b.transport.endpoint
    assert b.node is not None
    b.node.crash()
    a.transport.found(endpoint)
    group.run(60.0)
    assert 12 <= a.transport.stats["dials"] <= 36  # 6 while the pause doubles, then one in 2.5 to 5 s
    before = a.transport.stats["dials"]
    group.run(600.0)
    assert 120 <= a.transport.stats["dials"] - before <= 240
    group.boot("b", Tcp())
    group.run(6.0)
    assert a.peers == ["b#2"]


def test_a_peer_that_hangs_up_after_each_handshake_is_not_dialled_in_a_loop() -> None:
    group = SimGroup()
    a = group.boot("a", Tcp())
    b = group.boot("b", Tcp())
    a.find(b)
    for _ in range(400):
        group.run(0.05)
        b.transport.drop_connection(a.local)
    assert a.transport.stats["dials"] + b.transport.stats["dials"] < 100


def test_thousands_of_reconnects_leave_nothing_behind() -> None:
    group = SimGroup()
    a = group.boot("a", Tcp(TcpSettings(contacts_max=8, bind_port=7000)))
    for number in range(1000):
        b = group.boot("b", Tcp(TcpSettings(bind_port=8000 + number)))
        b.find(a)
        group.run(0.2)
        assert a.peers == [f"b#{number + 1}"]
        assert b.node is not None
        b.node.crash(silent=number % 3 == 0)
        group.run(0.2)
    group.run(10.0)
    transport = a.transport
    held = [len(value) for value in vars(transport).values() if isinstance(value, dict | list)]
    assert max(held) < 32
    assert len(transport._contacts) <= 8


def test_a_stopped_transport_says_and_does_nothing_more() -> None:
    group = SimGroup()
    a, b, c = mesh(group, "abc")
    a.stack.stop()
    a.transport.found(c.transport.endpoint)
    seen = list(a.events)
    assert b.node is not None
    b.node.crash()
    group.run(20.0)
    assert a.events == seen
    assert a.transport.peers() == []


# Real sockets.


def real_tcp() -> Tcp:
    return Tcp(TcpSettings(bind_port=0))


def test_real_sockets_carry_packets_of_all_sizes_in_both_directions() -> None:
    async def main() -> None:
        rng = random.Random(1)
        sizes = [0, 1, 1_000_000, *(rng.choice((10, 1000, 60_000)) for _ in range(300))]
        bodies = [rng.randbytes(size) for size in sizes]
        async with real("a", real_tcp()) as a, real("b", real_tcp()) as b:
            a.find(b)
            b.find(a)
            await until(lambda: bool(a.peers and b.peers), a, b)
            for member in (a, b):
                member.see(a, b)
                for body in bodies:
                    member.send(body)
            await until(lambda: len(a.bodies) == len(b.bodies) == len(bodies), a, b)
            assert a.bodies == b.bodies == bodies
            assert (a.events, b.events) == (["+b#1"], ["+a#1"])

    run(main())


def test_a_real_process_that_is_gone_is_told_with_proof_and_replaced_by_its_next_incarnation() -> None:
    async def main() -> None:
        async with real("a", real_tcp()) as a:
            async with real("b", real_tcp()) as b:
                b.find(a)
                await until(lambda: bool(a.peers and b.peers), a, b)
                port = b.transport.endpoint.port
                await b.runtime.close()  # type: ignore[attr-defined]
                await until(lambda: len(a.events) == 3, a)
                assert a.events == ["+b#1", "-b#1", "!b#1"]
            async with real("b", Tcp(TcpSettings(bind_port=port)), incarnation=2):
                await until(lambda: a.peers == ["b#2"], a)
                assert a.events[3:] == ["+b#2"]

    run(main())


def test_a_real_connection_that_breaks_is_made_again() -> None:
    async def main() -> None:
        async with real("a", real_tcp()) as a, real("b", real_tcp()) as b:
            b.find(a)
            await until(lambda: bool(a.peers and b.peers), a, b)
            a.transport.drop_connection(b.local)
            await until(lambda: a.events == ["+b#1", "-b#1", "+b#1"] and b.peers == ["a#1"], a, b)

    run(main())


# Settings.


def test_settings_that_cannot_work_are_refused_with_what_to_do() -> None:
    registry = {"TCP": Tcp}
    with pytest.raises(UserError, match="checksum must be one of header, full"):
        build([Layer("TCP", {"checksum": "none"})], registry)
    with pytest.raises(UserError, match="reconnect_max must be at least reconnect_min"):
        build([Layer("TCP", {"reconnect_min": 3.0, "reconnect_max": 1.0})], registry)
    with pytest.raises(UserError, match="did you mean 'bind_port'"):
        build([Layer("TCP", {"bindport": 1})], registry)
