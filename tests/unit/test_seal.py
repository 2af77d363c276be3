"""Sealed datagrams: by themselves, of UDP and of MULTICAST, in the simulator and over real sockets."""

from __future__ import annotations

import asyncio
import logging
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from transport_rig import GROUP, Member, SimGroup, real, until

from coterie.errors import ForeignError, UnprovenError, UserError, WireError
from coterie.group.members import Address
from coterie.group.packet import MCAST, Packet, encode_header, group_tag
from coterie.group.protocols.discovery import Multicast
from coterie.group.protocols.discovery_multicast import MulticastSettings
from coterie.group.protocols.failure import Failure
from coterie.group.protocols.seal import ID_SIZE, OVERHEAD, SEALED, WINDOW, ReplayedError, Seal
from coterie.group.protocols.tcp import Tcp, TcpSettings
from coterie.group.protocols.udp import Hello, Udp, UdpSettings
from coterie.group.stack import Layer, build
from coterie.runtime.aio import run
from coterie.runtime.base import Buffer, DatagramHandler, Datagrams, Endpoint
from coterie.sim.link import Conditions

SECRET = "correct horse battery staple"
OTHER = "incorrect horse battery staple"
HAS_NONE = "it has no secret: set the same secret on every member"
HAS_ONE = "it has a secret and this member has none: set the same secret on every member"
HAS_ANOTHER = "it has another secret, or was altered on the way: set the same secret on every member"
GROUP_ADDRESS = "239.192.7.9:7979"


def seal(number: int = 1, secret: str = SECRET, group: str = GROUP, where: str = "UDP", senders_max: int = 16) -> Seal:
    return Seal(secret, group, where, number.to_bytes(ID_SIZE, "little"), senders_max)


def sealed(by: Seal, *buffers: bytes) -> memoryview:
    return memoryview(b"".join(by.seal(buffers)))


# The seal by itself.


@pytest.mark.parametrize("size", [0, 1, 1000, 65_000])
def test_what_is_sealed_can_be_opened_by_who_knows_the_secret_and_read_by_nobody_else(size: int) -> None:
    body = random.Random(size).randbytes(size)
    data = sealed(seal(1), body[: size // 2], body[size // 2 :])
    assert len(data) == size + OVERHEAD
    assert bytes(seal(2).open(data)) == body
    assert size < 8 or body[:8] not in bytes(data)


def test_equal_datagrams_are_sealed_differently_by_one_sender_and_by_two() -> None:
    one, other = seal(1), seal(2)
    texts = [bytes(sealed(by, b"the same"))[OVERHEAD - 16 :] for by in (one, one, other)]
    assert len(set(texts)) == 3


def test_every_flipped_bit_is_noticed() -> None:
    data = bytes(sealed(seal(1), b"body"))
    for known in (False, True):  # before, and after something of that sender was opened
        for bit in range(len(data) * 8):
            receiver, sender = seal(2), seal(1)
            if known:
                receiver.open(sealed(sender, b"an earlier one"))
                data = bytes(sealed(sender, b"body"))
            flipped = bytearray(data)
            flipped[bit // 8] ^= 1 << bit % 8
            with pytest.raises(WireError):
                receiver.open(memoryview(flipped))
            assert bytes(receiver.open(memoryview(data))) == b"body"  # and the sound one is not hurt by it


@given(st.binary(max_size=200))
def test_garbage_raises_a_wire_error_and_nothing_else(data: bytes) -> None:
    for garbage in (data, SEALED + data, bytes(sealed(seal(1), b"body"))[: len(data)], b"Ct" + data):
        with pytest.raises(WireError):
            seal(2).open(memoryview(garbage))


@pytest.mark.parametrize(
    ("by", "kind"),
    [
        pytest.param(seal(1, secret=OTHER), UnprovenError, id="another secret"),
        pytest.param(seal(1, where="MULTICAST"), UnprovenError, id="another purpose"),
        pytest.param(seal(1, group="strangers"), ForeignError, id="another group"),
    ],
)
def test_what_is_sealed_with_another_key_is_refused(by: Seal, kind: type[WireError]) -> None:
    with pytest.raises(kind):
        seal(2).open(sealed(by, b"body"))


def test_a_datagram_is_opened_once() -> None:
    sender, receiver = seal(1), seal(2)
    data = [sealed(sender, b"%d" % number) for number in range(3)]
    for one in data:
        receiver.open(one)
    for one in data:
        with pytest.raises(ReplayedError):
            receiver.open(one)


@given(st.lists(st.integers(0, 40), max_size=60), st.integers(1, 30))
def test_each_number_is_opened_at_most_once_and_every_one_within_the_window(order: list[int], start: int) -> None:
    sender, receiver = seal(1), seal(2)
    for _ in range(start):
        sender.seal((b"",))
    data = [sealed(sender, b"%d" % number) for number in range(41)]
    opened: set[int] = set()
    for number in order:
        if number in opened:
            with pytest.raises(ReplayedError):
                receiver.open(data[number])
        else:
            assert bytes(receiver.open(data[number])) == b"%d" % number
            opened.add(number)


def test_what_is_older_than_the_window_is_not_opened() -> None:
    sender, receiver = seal(1), seal(2)
    old, oldest_kept = sealed(sender, b"old"), sealed(sender, b"kept")
    for _ in range(WINDOW - 2):
        sender.seal((b"",))
    receiver.open(sealed(sender, b"new"))
    with pytest.raises(ReplayedError):
        receiver.open(old)
    assert bytes(receiver.open(oldest_kept)) == b"kept"
    with pytest.raises(ReplayedError):
        receiver.open(oldest_kept)


def test_a_great_leap_forgets_what_was_before_it() -> None:
    sender, receiver = seal(1), seal(2)
    early = sealed(sender, b"early")
    receiver.open(sealed(sender, b"then"))
    sender._number += 10 * WINDOW
    receiver.open(sealed(sender, b"far ahead"))
    with pytest.raises(ReplayedError):
        receiver.open(early)
    assert bytes(receiver.open(sealed(sender, b"next"))) == b"next"


def test_the_senders_kept_in_mind_are_bounded_and_the_quietest_is_forgotten() -> None:
    receiver = seal(0, senders_max=3)
    busy, first = seal(1), sealed(seal(2), b"")
    replay = sealed(busy, b"")
    receiver.open(replay)
    receiver.open(first)
    for number in range(3, 100):
        receiver.open(sealed(seal(number), b""))
        receiver.open(sealed(busy, b""))
    assert len(receiver._senders) == 3
    with pytest.raises(ReplayedError):
        receiver.open(replay)


def test_nobody_without_the_secret_makes_a_member_remember_anything() -> None:
    receiver = seal(0)
    for number in range(100):
        with pytest.raises(UnprovenError):
            receiver.open(sealed(seal(number, secret=OTHER), b"body"))
    assert receiver._senders == {}


def test_a_secret_that_can_be_guessed_is_refused() -> None:
    with pytest.raises(UserError, match="UDP: secret must have at least 16 characters"):
        build([Layer("UDP", {"secret": "too short"})], {"UDP": Udp})


# UDP.


class Ear(DatagramHandler):
    """A socket that keeps what it hears, and sends what a test wants it to send."""

    def __init__(self, group: SimGroup, name: str = "stranger") -> None:
        self.heard: list[bytes] = []
        member = group.boot(name, Udp(UdpSettings(bind_port=9999)))
        self.socket: Datagrams = member.runtime.net.datagrams(Endpoint("", 7900), self)

    def datagram(self, data: Buffer, source: Endpoint) -> None:
        self.heard.append(bytes(data))

    def send(self, data: bytes, to: Member) -> None:
        self.socket.send((data,), to.transport.endpoint)


def udp(secret: str = SECRET, **settings: object) -> Udp:
    return Udp(UdpSettings(secret=secret, **settings))  # type: ignore[arg-type]


def gang(group: SimGroup, names: str, *, multicast: str = "", failure: bool = False) -> list[Member]:
    members = [group.boot(name, udp(multicast=multicast), *([Failure()] if failure else [])) for name in names]
    for member in members:
        if not multicast:
            member.find(*[other for other in members if other is not member])
    group.run(3.0)
    for member in members:
        member.see(*members)
    return members


def refusals(caplog: pytest.LogCaptureFixture, local: str) -> list[str]:
    facts = [getattr(record, "coterie_facts", {}) for record in caplog.records]
    return [str(fact["why"]) for fact in facts if str(fact.get("local")) == local]


@pytest.mark.parametrize("multicast", ["", GROUP_ADDRESS])
def test_members_with_the_same_secret_reach_each_other(multicast: str) -> None:
    group = SimGroup()
    members = gang(group, "abc", multicast=multicast)
    for member in members:
        assert sorted(member.events) == [f"+{name}#1" for name in "abc" if name != member.local.name]
    a, b, c = members
    a.send(b"hi", carrier=MCAST)
    a.send(bytes(64_900), b.local)
    group.run(1.0)
    assert [sorted(map(len, member.bodies)) for member in (a, b, c)] == [[], [2, 64_900], [2]]
    assert [member.transport.stats["unproven"] for member in members] == [0, 0, 0]


def test_nothing_that_a_member_with_a_secret_sends_is_in_clear() -> None:
    group = SimGroup()
    ear = Ear(group)
    a = group.boot("a-name-to-look-for", udp())
    a.transport.found(ear.socket.endpoint)
    group.run(5.0)
    assert len(ear.heard) > 3
    for data in ear.heard:
        assert data[:2] == SEALED
        assert b"a-name-to-look-for" not in data
        assert a.transport.endpoint.host.encode() not in data


@pytest.mark.parametrize(
    ("secret", "at_a", "at_b"),
    [
        pytest.param(OTHER, HAS_ANOTHER, HAS_ANOTHER, id="another secret"),
        pytest.param("", HAS_NONE, HAS_ONE, id="no secret"),
    ],
)
def test_who_has_another_secret_or_none_is_not_heard_counted_and_logged_once_on_both_sides(
    secret: str, at_a: str, at_b: str, caplog: pytest.LogCaptureFixture
) -> None:
    group = SimGroup()
    a, b, c = (group.boot(name, udp(own)) for name, own in (("a", SECRET), ("b", secret), ("c", SECRET)))
    a.find(b, c)
    b.find(a)
    group.run(60.0)
    assert (a.events, b.events, c.events) == (["+c#1"], [], ["+a#1"])
    for member, why in ((a, at_a), (b, at_b)):
        assert member.transport.stats["unproven"] > 5
        assert refusals(caplog, str(member.local)) == [why]
    a.send(b"on we go", c.local)
    group.run(0.1)
    assert c.bodies == [b"on we go"]


class Tap(Udp):
    """A member's transport whose datagrams somebody records on their way in."""

    def __init__(self, settings: UdpSettings) -> None:
        super().__init__(settings)
        self.recorded: list[tuple[bytes, Endpoint]] = []

    def datagram(self, data: Buffer, source: Endpoint) -> None:
        self.recorded.append((bytes(data), source))
        super().datagram(data, source)


def test_recorded_datagrams_that_come_again_are_dropped_and_counted() -> None:
    group = SimGroup()
    a = group.boot("a", Tap(UdpSettings(secret=SECRET)))
    b = group.boot("b", udp())
    a.find(b)
    group.run(3.0)
    for number in range(10):
        b.send(b"%d" % number, a.local)
    group.run(1.0)
    recorded = list(a.transport.recorded)
    assert len(a.bodies) == 10
    for data, source in recorded:
        a.transport.datagram(data, source)
    group.run(1.0)
    assert len(a.bodies) == 10
    assert a.transport.stats["replayed"] == a.stack.rules["udp.replayed"] == len(recorded)


def test_what_was_recorded_from_an_earlier_life_does_not_bring_it_back() -> None:
    group = SimGroup()
    a = group.boot("a", Tap(UdpSettings(secret=SECRET)))
    b = group.boot("b", udp())
    a.find(b)
    group.run(3.0)
    b.send(b"hi", a.local)
    group.run(0.1)
    recorded = list(a.transport.recorded)
    for member in (a, b):
        assert member.node is not None
        member.node.crash()
    a2 = group.boot("a", udp())
    for data, source in recorded:
        a2.transport.datagram(data, source)
    group.run(5.0)
    assert (a2.events, a2.bodies) == ([], [])


def test_corruption_duplication_and_loss_are_survived() -> None:
    group = SimGroup(3, Conditions(corrupt=0.2, duplicate=0.2, loss=0.1, latency=0.01, jitter=0.01))
    a, b = gang(group, "ab")
    group.run(5.0)
    bodies = [b"%d" % n * 100 for n in range(1000)]
    for body in bodies:
        a.send(body, b.local)
    group.run(1.0)
    assert len(b.bodies) > 500
    assert set(b.bodies) <= set(bodies)
    assert len(b.bodies) == len(set(b.bodies))
    assert b.transport.stats["malformed"] > 100
    assert b.transport.stats["replayed"] > 100


def test_a_new_incarnation_and_a_healed_partition_are_recognised() -> None:
    group = SimGroup()
    a, b = gang(group, "ab", failure=True)
    group.part("a", "b")
    group.run(20.0)
    group.heal("a", "b")
    group.run(5.0)
    assert a.events == ["+b#1", "suspect b#1", "-b#1", "+b#1", "unsuspect b#1"]
    assert b.node is not None
    b.node.crash(silent=True)
    group.boot("b", udp(), Failure()).find(a)
    group.run(3.0)
    assert a.events[5:] == ["!b#1", "suspect! b#1", "+b#2"]


def packet(sender: Address, body: bytes, proto: int = 0) -> bytes:
    made = Packet(body, None, proto)
    made.sender = sender
    return encode_header(made, group_tag(GROUP), sender.name.encode(), True) + body


def test_a_datagram_in_clear_is_dropped_whatever_it_says() -> None:
    group = SimGroup()
    a, _ = gang(group, "ab")
    ear = Ear(group)
    body = Udp.codec.encode(Hello(7, 0, True, "", 7900, 1, 1, ()))
    for data in (packet(Address("z", 1), body, Udp.id), packet(Address("b", 1), b"in b's name")):
        ear.send(data, a)
    group.run(1.0)
    assert a.transport.stats["unproven"] == 2
    assert ear.heard == []
    assert (a.peers, a.bodies) == (["b#1"], [])


@pytest.mark.parametrize("multicast", ["", "239.192.7.11:7983"])
def test_real_sockets_with_the_secret_exchange_messages_and_one_without_it_stays_outside(
    multicast: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)

    async def main() -> None:
        quick = {"bind_port": 0, "reconnect_max": 0.2, "multicast": multicast}
        inside = real("a", udp(SECRET, **quick)), real("b", udp(SECRET, **quick))
        async with inside[0] as a, inside[1] as b, real("z", udp(OTHER, **quick)) as z:
            if not multicast:
                a.find(b, z)
                z.find(a)
            await until(lambda: bool(a.peers and b.peers), a, b)
            async with asyncio.timeout(30):
                while min(member.transport.stats["unproven"] for member in (a, z)) < 3:
                    await asyncio.sleep(0.01)
            for member in (a, b):
                member.see(a, b)
            a.send(b"hi", carrier=MCAST)
            b.send(bytes(64_000), a.local)
            await until(lambda: bool(a.bodies and b.bodies), a, b)
            assert (a.bodies, b.bodies) == ([bytes(64_000)], [b"hi"])
            assert (a.events, b.events, z.events) == (["+b#1"], ["+a#1"], [])

    run(main())
    assert refusals(caplog, "a#1") == [HAS_ANOTHER]
    assert refusals(caplog, "z#1") == [HAS_ANOTHER]


# MULTICAST.


def test_calls_are_sealed_with_the_secret_of_the_transport() -> None:
    group = SimGroup()
    a, b = (group.boot(name, Tcp(TcpSettings(secret=SECRET)), Multicast()) for name in "ab")
    group.run(3.0)
    assert (a.peers, b.peers) == (["b#1"], ["a#1"])


@pytest.mark.parametrize(("secret", "at_a"), [(OTHER, HAS_ANOTHER), ("", HAS_NONE)])
def test_calls_of_who_has_another_secret_or_none_are_not_answered_and_logged_once(
    secret: str, at_a: str, caplog: pytest.LogCaptureFixture
) -> None:
    group = SimGroup()
    settings = MulticastSettings(interval=0.5)
    a = group.boot("a", Tcp(TcpSettings(secret=SECRET)), Multicast(settings))
    z = group.boot("z", Tcp(TcpSettings(secret=secret)), Multicast(settings))
    group.run(5.0)
    for member in (a, z):
        layer = member.stack.find(Multicast)
        assert layer.stats["unproven"] > 5
        assert layer.found() == []
        assert member.transport.stats["dials"] == 0
    assert refusals(caplog, "a#1") == [at_a]


def test_a_call_that_comes_again_is_counted_and_not_answered() -> None:
    group = SimGroup(1, Conditions(duplicate=1.0))
    a, b = (group.boot(name, Tcp(TcpSettings(secret=SECRET)), Multicast()) for name in "ab")
    group.run(3.0)
    assert (a.peers, b.peers) == (["b#1"], ["a#1"])
    assert a.stack.find(Multicast).stats["replayed"] > 2
