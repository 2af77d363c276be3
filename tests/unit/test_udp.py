"""UDP over the simulated network and over real sockets on loopback."""

from __future__ import annotations

import pytest
from transport_rig import Member, SimGroup, real, until

from coterie.errors import UserError
from coterie.group.events import Replaced
from coterie.group.members import Address
from coterie.group.packet import AGAIN, MCAST, Packet, encode_header, group_tag
from coterie.group.protocols.failure import Failure
from coterie.group.protocols.udp import Hello, Udp, UdpSettings
from coterie.group.stack import Layer, build
from coterie.runtime.aio import run
from coterie.runtime.base import Buffer, DatagramHandler, Datagrams, Endpoint
from coterie.sim.link import Conditions

GROUP_ADDRESS = "239.192.7.9:7979"


def gang(group: SimGroup, names: str, *, multicast: str = "", failure: bool = False) -> list[Member]:
    above = (Failure(),) if failure else ()
    settings = UdpSettings(multicast=multicast)
    members = [group.boot(name, Udp(settings), *(type(layer)() for layer in above)) for name in names]
    for member in members:
        if not multicast:
            member.find(*[other for other in members if other is not member])
    group.run(3.0)
    for member in members:
        member.see(*members)
    return members


class Stranger(DatagramHandler):
    """A socket that sends what a test wants it to send."""

    def __init__(self, group: SimGroup, to: Member) -> None:
        node = group.boot("stranger", Udp())
        self.heard: list[bytes] = []
        self.to = to.transport.endpoint
        self.socket: Datagrams = node.runtime.net.datagrams(Endpoint("", 5000), self)

    def datagram(self, data: Buffer, source: Endpoint) -> None:
        self.heard.append(bytes(data))

    def send(self, data: bytes) -> None:
        self.socket.send((data,), self.to)


def hello(sender: Address, group: str = "friends", **fields: object) -> bytes:
    values: dict[str, object] = {
        "token": 7,
        "echo": 0,
        "ask": True,
        "host": "",
        "port": 5000,
        "lowest": 1,
        "highest": 1,
    }
    body = Udp.codec.encode(Hello(**(values | {"peers": ()} | fields)))  # type: ignore[arg-type]
    return packet(sender, body, 2, group)


def packet(sender: Address, body: bytes, proto: int = 0, group: str = "friends", *, check: bool = True) -> bytes:
    made = Packet(body, None, proto)
    made.sender = sender
    return encode_header(made, group_tag(group), sender.name.encode(), check) + body


# Peers.


@pytest.mark.parametrize("multicast", ["", GROUP_ADDRESS])
def test_members_that_said_hello_reach_each_other(multicast: str) -> None:
    group = SimGroup()
    members = gang(group, "abcd", multicast=multicast)
    for member in members:
        assert member.peers == [f"{name}#1" for name in "abcd" if name != member.local.name]
        assert sorted(member.events) == [f"+{peer}" for peer in member.peers]


@pytest.mark.parametrize("multicast", ["", GROUP_ADDRESS])
def test_a_multicast_reaches_every_other_member_once_and_not_oneself(multicast: str) -> None:
    group = SimGroup()
    a, b, c = gang(group, "abc", multicast=multicast)
    a.send(b"hi", carrier=MCAST)
    group.run(1.0)
    assert [member.bodies for member in (a, b, c)] == [[], [b"hi"], [b"hi"]]
    assert a.transport.stats["packets_out"] == (1 if multicast else 2)


def test_hello_is_repeated_until_it_is_answered() -> None:
    for seed in range(10):
        group = SimGroup(seed, Conditions(loss=0.5))
        a, b = (group.boot(name, Udp()) for name in "ab")
        a.find(b)
        group.run(60.0)
        assert (a.peers, b.peers) == (["b#1"], ["a#1"])
        assert (a.events, b.events) == (["+b#1"], ["+a#1"])


def test_nobody_is_connected_whom_only_one_direction_reaches() -> None:
    group = SimGroup()
    group.boot("x", Udp())
    a, b = (group.boot(name, Udp()) for name in "ab")
    group.block("a", "b")
    a.find(b)
    b.find(a)
    group.run(30.0)
    assert (a.events, b.events) == ([], [])
    assert b.stack.rules["udp.hello_repeated"] > 5
    group.fabric.link("a", "b").unblock()
    group.run(3.0)
    assert (a.events, b.events) == (["+b#1"], ["+a#1"])


def test_a_few_known_endpoints_suffice() -> None:
    group = SimGroup()
    seed, *others = (group.boot(name, Udp()) for name in "abcde")
    for other in others:
        other.find(seed)
    group.run(3.0)
    assert [len(member.peers) for member in (seed, *others)] == [4] * 5


def test_a_host_by_name_is_looked_up() -> None:
    group = SimGroup()
    a, b = (group.boot(name, Udp()) for name in "ab")
    a.transport.found(Endpoint("b", 7900))
    group.run(1.0)
    assert a.transport.endpoint_of(b.local) == b.transport.endpoint


def test_ones_own_endpoint_is_not_greeted() -> None:
    group = SimGroup()
    a = group.boot("a", Udp())
    a.transport.found(a.transport.endpoint)
    a.transport.found(Endpoint("a", 7900))
    group.run(10.0)
    assert a.transport.stats["hellos"] == 0
    assert a.stack.rules["udp.hello_to_self"] > 0


def test_a_new_incarnation_replaces_the_old_whose_death_is_told_first() -> None:
    group = SimGroup()
    a, b = gang(group, "ab")
    assert b.node is not None
    b.node.crash(silent=True)
    b2 = group.boot("b", Udp())
    b2.find(a)
    group.run(3.0)
    assert a.events == ["+b#1", "!b#1", "+b#2"]
    assert a.peers == ["b#2"]
    assert a.stack.rules["udp.new_incarnation"] == 1


def test_a_new_incarnation_whose_answer_is_lost_is_greeted_although_the_old_one_seems_connected() -> None:
    group = SimGroup()
    a, b = gang(group, "ab")
    assert b.node is not None
    b.node.crash(silent=True)
    b2 = group.boot("b", Udp())
    b2.find(a)
    said = a.stack.find(Udp).stats["hellos"]
    while a.stack.find(Udp).stats["hellos"] == said:
        group.run(0.00001)
    group.block("b", "a")  # what b2 answers is lost, and b2 answers once
    group.run(0.5)
    assert b2.peers == ["a#1"]
    assert a.peers == ["b#1"]
    group.fabric.link("b", "a").unblock()
    group.run(3.0)
    assert a.peers == ["b#2"]


def test_a_suspected_member_is_greeted_until_it_answers_again() -> None:
    group = SimGroup()
    a, b = gang(group, "ab", failure=True)
    group.part("a", "b")
    group.run(20.0)
    assert a.events == ["+b#1", "suspect b#1", "-b#1"]
    group.heal("a", "b")
    group.run(5.0)
    assert a.events == ["+b#1", "suspect b#1", "-b#1", "+b#1", "unsuspect b#1"]
    assert b.stack.find(Failure).suspects() == []


# What is dropped.


def test_packets_of_those_who_did_not_say_hello_are_dropped() -> None:
    group = SimGroup()
    a, _ = gang(group, "ab")
    stranger = Stranger(group, a)
    stranger.send(packet(Address("z", 1), b"hi"))
    stranger.send(packet(Address("b", 1), b"hi"))  # in b's name, but not from where b is
    group.run(1.0)
    assert a.bodies == []
    assert a.transport.stats["strangers"] == 2
    assert a.peers == ["b#1"]


def test_a_foreign_group_is_counted_and_not_answered() -> None:
    group = SimGroup()
    a = group.boot("a", Udp())
    stranger = Stranger(group, a)
    stranger.send(hello(Address("z", 1), group="strangers"))
    group.run(1.0)
    assert stranger.heard == []
    assert a.transport.stats["foreign"] == 1


def test_a_hello_of_other_versions_is_refused() -> None:
    group = SimGroup()
    a = group.boot("a", Udp())
    stranger = Stranger(group, a)
    stranger.send(hello(Address("z", 1), lowest=2, highest=3))
    group.run(1.0)
    assert stranger.heard == []
    assert a.transport.stats["versions"] == 1


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"short",
        hello(Address("z", 1))[:-1],
        hello(Address("z", 1)) + b"x",
        hello(Address("z", 1), port=0),
        hello(Address("z", 1), token=0),
        hello(Address("", 1)),
        packet(Address("z", 1), b"\xff", 2),
        packet(Address("z", 1), b"unchecked", check=False),
    ],
)
def test_malformed_datagrams_are_counted_and_dropped(data: bytes) -> None:
    group = SimGroup()
    a = group.boot("a", Udp())
    Stranger(group, a).send(data)
    group.run(1.0)
    assert a.transport.stats["malformed"] == 1
    assert (a.events, a.bodies) == ([], [])


def test_an_older_incarnation_or_a_namesake_is_refused() -> None:
    group = SimGroup()
    a, b = gang(group, "ab")
    stranger = Stranger(group, a)
    stranger.send(hello(Address("b", 0)))
    stranger.send(hello(a.local))
    group.run(1.0)
    assert a.transport.stats["stale"] == 2
    assert a.peers == [str(b.local)]


def test_a_newer_process_with_our_own_name_is_told_upwards_once_it_has_answered_us() -> None:
    group = SimGroup()
    a = group.boot("a", Udp())
    stranger = Stranger(group, a)
    stranger.send(hello(Address("a", 5)))
    group.run(0.1)
    assert a.top.events == []  # it may have been long on its way
    answer = Udp.codec.decode(a.transport._decode(memoryview(stranger.heard[-1])).body)
    stranger.send(hello(Address("a", 5), echo=answer.token))
    group.run(0.1)
    assert [event.by for event in a.top.events if isinstance(event, Replaced)] == [Address("a", 5)]
    assert a.peers == []


def test_of_two_processes_with_one_name_only_the_older_is_told_whoever_greets() -> None:
    for greets in "xy":
        group = SimGroup()
        x, y = (group.boot_as(host, Address("a", number), Udp()) for host, number in (("x", 3), ("y", 4)))
        (x if greets == "x" else y).find(y if greets == "x" else x)
        group.run(10)
        assert [event.by for event in x.top.events if isinstance(event, Replaced)][:1] == [y.local]
        assert y.top.events == []
        assert (x.peers, y.peers) == ([], [])


def test_what_was_meant_for_an_earlier_incarnation_does_not_reach_the_present_one() -> None:
    group = SimGroup()
    a, b = gang(group, "ab")
    late = Packet(b"for another", Address("b", 0))
    late.sender = a.local
    header = encode_header(late, group_tag("friends"), b"a", True)
    a.transport._socket.send((header, late.body), b.transport.endpoint)
    group.run(0.1)
    assert b.bodies == []
    assert b.transport.stats["strays"] == 1


def test_a_packet_over_the_limit_is_counted_and_not_sent() -> None:
    group = SimGroup()
    a, b = gang(group, "ab")
    a.send(bytes(65_000), b.local)
    a.send(bytes(64_900), b.local)
    group.run(1.0)
    assert a.transport.stats["oversized"] == 1
    assert b.bodies == [bytes(64_900)]


def test_corrupted_datagrams_never_come_up() -> None:
    group = SimGroup(3, Conditions(corrupt=0.3))
    a, b = gang(group, "ab")
    group.run(5.0)
    bodies = [b"%d" % n * 100 for n in range(1000)]
    for body in bodies:
        a.send(body, b.local)
    group.run(1.0)
    assert len(b.bodies) > 500
    assert set(b.bodies) <= set(bodies)
    assert b.transport.stats["malformed"] > 200


# Other packets.


def test_a_packet_to_oneself_comes_back_and_one_to_nobody_is_counted() -> None:
    group = SimGroup()
    a, b = gang(group, "ab")
    a.send(b"me", a.local)
    a.send(b"nobody", Address("z", 9))
    group.run(0.1)
    assert (a.bodies, b.bodies) == ([b"me"], [])
    assert a.transport.stats["unreachable"] == 1


def test_what_is_sent_again_for_somebody_else_comes_through() -> None:
    group = SimGroup()
    a, b = gang(group, "ab")
    again = Packet(b"old", b.local, 0, MCAST, AGAIN)
    again.sender = Address("c", 4)
    a.top.pass_down(again)
    group.run(0.1)
    assert b.top.batches[0][0].sender == Address("c", 4)


def test_many_peers_that_come_and_go_leave_nothing_behind() -> None:
    group = SimGroup()
    a = group.boot("a", Udp(UdpSettings(contacts_max=8, bind_port=7000)))
    for number in range(300):
        b = group.boot("b", Udp(UdpSettings(bind_port=8000 + number)))
        b.find(a)
        group.run(0.2)
        assert a.peers == [f"b#{number + 1}"]
        assert b.node is not None
        b.node.crash()
    held = [len(value) for value in vars(a.transport).values() if isinstance(value, dict | list)]
    assert max(held) < 32
    assert len(a.transport._contacts) <= 8


def test_a_stopped_transport_says_nothing_more() -> None:
    group = SimGroup()
    a, b = gang(group, "ab")
    a.stack.stop()
    a.find(b)
    b.send(b"late", a.local)
    group.run(5.0)
    assert (a.bodies, a.peers) == ([], [])


# Real sockets.


@pytest.mark.parametrize("multicast", ["", "239.192.7.10:7981"])
def test_three_real_sockets_reach_each_other(multicast: str) -> None:
    async def main() -> None:
        settings = UdpSettings(bind_port=0, multicast=multicast)
        async with real("a", Udp(settings)) as a, real("b", Udp(settings)) as b, real("c", Udp(settings)) as c:
            if not multicast:
                b.find(a)
                c.find(a)
            await until(lambda: all(len(member.peers) == 2 for member in (a, b, c)), a, b, c)
            for member in (a, b, c):
                member.see(a, b, c)
            a.send(b"hi", carrier=MCAST)
            b.send(bytes(64_000), c.local)
            await until(lambda: len(b.bodies) == 1 and len(c.bodies) == 2, b, c)
            assert a.bodies == []
            assert b.bodies == [b"hi"]
            assert sorted(map(len, c.bodies)) == [2, 64_000]

    run(main())


# Settings.


def test_settings_that_cannot_work_are_refused_with_what_to_do() -> None:
    registry = {"UDP": Udp}
    with pytest.raises(UserError, match="max_packet must be at most 65000"):
        build([Layer("UDP", {"max_packet": 65_001})], registry)
    with pytest.raises(UserError, match="of the form host:port"):
        build([Layer("UDP", {"multicast": "239.1.2.3"})], registry)
    with pytest.raises(UserError, match="reconnect_max must be at least reconnect_min"):
        build([Layer("UDP", {"reconnect_min": 3.0, "reconnect_max": 1.0})], registry)
