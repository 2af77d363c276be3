"""The proof of the cluster's secret on TCP connections: by itself, in the simulator, and over real sockets."""

from __future__ import annotations

import asyncio
import logging
import random

import pytest
from transport_rig import GROUP, Member, SimGroup, real, until

from coterie.errors import UserError
from coterie.group.members import Address
from coterie.group.packet import NOBODY, Decoder, Packet, encode_header, group_tag
from coterie.group.protocols.auth import (
    NO_PROOF,
    NO_SECRET,
    NONCE_SIZE,
    WRONG_PROOF,
    Challenge,
    Handshake,
    Message,
    Proof,
    Refused,
    RefusedError,
    derive,
)  # fmt: skip
from coterie.group.protocols.tcp import Tcp, TcpSettings
from coterie.group.protocols.tcp_peer import CODEC, TCP_ID, Hello
from coterie.group.stack import Layer, build
from coterie.runtime.aio import run
from coterie.runtime.base import Buffer, CloseReason, Endpoint, Stream, StreamHandler
from coterie.sim.link import Conditions

SECRET = "correct horse battery staple"
OTHER = "incorrect horse battery staple"
HAS_NONE = "it has no secret: set the same secret on every member"
HAS_ONE = "it has a secret and this member has none: set the same secret on every member"
HAS_ANOTHER = "it has another secret: set the same secret on every member"


def key(secret: str = SECRET, group: str = GROUP) -> bytes:
    return derive(secret.encode(), "connection", group.encode())


def side(of: bytes | None, *, dialled: bool) -> Handshake:
    return Handshake(of, (b"d" if dialled else b"l") * NONCE_SIZE, dialled=dialled)


def talk(dialler: Handshake, listener: Handshake) -> list[tuple[str, Message]]:
    """Let the two talk until one has nothing to answer; gives who said what."""
    said: list[tuple[str, Message]] = []
    message: Message | None = dialler.opening()
    while message is not None:
        by_dialler = len(said) % 2 == 0
        said.append(("dialler" if by_dialler else "listener", message))
        message = (listener if by_dialler else dialler).received(message)
    return said


# The handshake by itself.


def test_two_who_know_the_secret_prove_it_to_each_other_and_the_dialler_does_so_first() -> None:
    dialler, listener = side(key(), dialled=True), side(key(), dialled=False)
    said = talk(dialler, listener)
    assert [(who, type(message)) for who, message in said] == [
        ("dialler", Challenge), ("listener", Challenge), ("dialler", Proof), ("listener", Proof),
    ]  # fmt: skip
    assert dialler.proven
    assert listener.proven


def test_the_secret_is_in_nothing_that_is_said_and_each_proof_differs() -> None:
    said = talk(side(key(), dialled=True), side(key(), dialled=False))
    wire = b"".join(CODEC.encode(message) for _, message in said)
    assert SECRET.encode() not in wire
    assert key() not in wire
    proofs = [message for _, message in said if isinstance(message, Proof)]
    assert proofs[0] != proofs[1]


@pytest.mark.parametrize("other", [key(OTHER), key(group="another group")])
def test_another_secret_or_another_group_is_refused_before_the_listener_has_proven_anything(other: bytes) -> None:
    dialler, listener = side(other, dialled=True), side(key(), dialled=False)
    opening = dialler.opening()
    assert opening is not None
    challenge = listener.received(opening)
    assert challenge is not None
    proof = dialler.received(challenge)
    assert isinstance(proof, Proof)
    with pytest.raises(RefusedError, match=HAS_ANOTHER) as caught:
        listener.received(proof)
    assert caught.value.answer == Refused(WRONG_PROOF)
    assert not listener.proven
    assert not dialler.proven


def test_the_listeners_proof_is_checked_too() -> None:
    dialler = side(key(), dialled=True)
    dialler.received(Challenge(b"l" * NONCE_SIZE))
    with pytest.raises(RefusedError, match=HAS_ANOTHER):
        dialler.received(Proof(bytes(32)))
    assert not dialler.proven


def test_a_reflected_challenge_and_a_reflected_proof_are_refused() -> None:
    dialler = side(key(), dialled=True)
    opening = dialler.opening()
    assert opening is not None
    with pytest.raises(RefusedError, match="reflected"):
        dialler.received(opening)
    dialler = side(key(), dialled=True)
    proof = dialler.received(Challenge(b"l" * NONCE_SIZE))
    assert isinstance(proof, Proof)
    with pytest.raises(RefusedError, match=HAS_ANOTHER):
        dialler.received(proof)


@pytest.mark.parametrize(
    "messages",
    [
        pytest.param([Proof(bytes(32))], id="a proof before the challenge"),
        pytest.param([Proof(b"")], id="an empty proof"),
        pytest.param([Challenge(b"short")], id="a short nonce"),
        pytest.param([Challenge(b"1" * NONCE_SIZE), Challenge(b"2" * NONCE_SIZE)], id="two challenges"),
        pytest.param([Challenge(b"1" * NONCE_SIZE), Proof(b"")], id="an empty proof in its turn"),
        pytest.param([Refused(99)], id="a refusal for no known reason"),
    ],
)
def test_what_is_out_of_turn_or_makes_no_sense_is_refused(messages: list[Message]) -> None:
    listener = side(key(), dialled=False)
    for message in messages[:-1]:
        listener.received(message)
    with pytest.raises(RefusedError):
        listener.received(messages[-1])
    assert not listener.proven


def test_a_proof_is_not_taken_twice() -> None:
    dialler, listener = side(key(), dialled=True), side(key(), dialled=False)
    proof = talk(dialler, listener)[2][1]
    with pytest.raises(RefusedError):
        listener.received(proof)


# Members: who is let in.


def tcp(secret: str, **settings: object) -> Tcp:
    return Tcp(TcpSettings(secret=secret, **settings))  # type: ignore[arg-type]


def boot(group: SimGroup, **secrets: str) -> list[Member]:
    """Members that all found each other, each with its secret."""
    members = [group.boot(name, tcp(secret)) for name, secret in secrets.items()]
    for member in members:
        member.find(*[other for other in members if other is not member])
    return members


def refusals(caplog: pytest.LogCaptureFixture, local: str) -> list[str]:
    """What a member logged about peers that it refused."""
    facts = [getattr(record, "coterie_facts", {}) for record in caplog.records]
    return [str(fact["why"]) for fact in facts if str(fact.get("local")) == local]


def test_members_with_the_same_secret_have_one_connection_per_pair_however_their_dials_cross() -> None:
    for seed in range(30):
        group = SimGroup(seed, Conditions(latency=0.05, jitter=0.03, chop=0.5))
        members = boot(group, a=SECRET, b=SECRET, c=SECRET)
        group.run(5.0)
        for member in members:
            assert sorted(member.events) == [f"+{name}#1" for name in "abc" if name != member.local.name]
            assert member.transport.stats["unproven"] == 0
        for one, other in ("ab", "bc", "ac"):
            assert len(group.fabric.streams_between(one, other)) == 1


def test_a_member_with_a_secret_reconnects_and_its_new_incarnation_is_let_in() -> None:
    group = SimGroup()
    a, b = boot(group, a=SECRET, b=SECRET)
    group.run(1.0)
    a.transport.drop_connection(b.local)
    group.run(1.0)
    assert a.events == ["+b#1", "-b#1", "+b#1"]
    assert b.node is not None
    b.node.crash()
    group.run(0.2)
    assert a.events[3:] == ["-b#1", "!b#1"]
    group.boot("b", tcp(SECRET))
    group.run(6.0)
    assert a.peers == ["b#2"]


@pytest.mark.parametrize(
    ("secret", "at_a", "at_b"),
    [
        pytest.param(OTHER, HAS_ANOTHER, HAS_ANOTHER, id="another secret"),
        pytest.param("", HAS_NONE, HAS_ONE, id="no secret"),
    ],
)
@pytest.mark.parametrize("dialler", ["a", "b"])
def test_who_has_another_secret_or_none_is_refused_counted_and_logged_once_on_both_sides(
    secret: str, at_a: str, at_b: str, dialler: str, caplog: pytest.LogCaptureFixture
) -> None:
    group = SimGroup()
    a, b, c = (group.boot(name, tcp(own)) for name, own in (("a", SECRET), ("b", secret), ("c", SECRET)))
    c.find(a)
    one, other = (a, b) if dialler == "a" else (b, a)
    one.find(other)
    group.run(60.0)
    assert (a.events, b.events, c.events) == (["+c#1"], [], ["+a#1"])
    for member, why in ((a, at_a), (b, at_b)):
        assert 5 < member.transport.stats["unproven"] < 60
        assert refusals(caplog, str(member.local)) == [why]
    assert "secret" not in "".join(refusals(caplog, "c#1"))
    assert SECRET not in caplog.text
    a.see(a, c)
    a.send(b"on we go", c.local)
    group.run(0.1)
    assert c.bodies == [b"on we go"]


def test_a_refused_member_is_let_in_once_it_has_the_secret() -> None:
    group = SimGroup()
    a, b = boot(group, a=SECRET, b=OTHER)
    group.run(10.0)
    assert b.node is not None
    b.node.crash()
    b2 = group.boot("b", tcp(SECRET))
    b2.find(a)
    group.run(6.0)
    assert (a.events, b2.events) == (["+b#2"], ["+a#1"])


def test_refusal_is_no_proof_of_death() -> None:
    group = SimGroup()
    a, b = boot(group, a=SECRET, b=SECRET)
    group.run(1.0)
    assert b.node is not None
    b.node.crash()
    group.boot("b", tcp(OTHER))  # somebody else at the same place
    group.run(5.0)
    assert a.events[:2] == ["+b#1", "-b#1"]
    assert "+b#2" not in a.events


# Strangers: what they are told, and what they can do.


class Wire(StreamHandler):
    """A stranger's end of a connection: it keeps what it hears, and says what a test wants it to say."""

    def __init__(self, *, echo: bool = False) -> None:
        self.stream: Stream | None = None
        self.heard = b""
        self.end: CloseReason | None = None
        self._echo = echo

    def connected(self, stream: Stream) -> None:
        self.stream = stream

    def received(self, data: Buffer) -> None:
        self.heard += data
        if self._echo:
            self.say(bytes(data))

    def closed(self, reason: CloseReason) -> None:
        self.end = reason

    def say(self, *buffers: bytes) -> None:
        assert self.stream is not None
        self.stream.write(buffers)

    @property
    def packets(self) -> list[tuple[Address, object]]:
        """Who said what, as far as it can be read."""
        decoder, found, at = Decoder(group_tag(GROUP), 2**20, NOBODY), [], 0
        while at < len(self.heard):
            size = decoder.length(self.heard, at)
            packet = decoder.decode(memoryview(self.heard)[at : at + size])
            found.append((packet.sender, CODEC.decode(packet.body)))
            at += size
        return found


def dial(group: SimGroup, to: Member) -> Wire:
    wire = Wire()
    if "stranger" not in group.nodes:
        group.boot("stranger", Tcp())
    process = group.nodes["stranger"].process
    assert process is not None
    process.net.connect(to.transport.endpoint, wire, 1.0)
    group.run(0.1)
    return wire


def wire_of(message: object, sender: Address = NOBODY) -> bytes:
    packet = Packet(CODEC.encode(message), None, TCP_ID)
    packet.sender = sender
    return encode_header(packet, group_tag(GROUP), sender.name.encode(), True) + bytes(packet.body)


def hello(sender: Address) -> bytes:
    return wire_of(Hello(7, 1, "10.0.0.9", 7800, 1, 1, ()), sender)


def test_a_stranger_hears_nothing_before_it_has_proven_the_secret() -> None:
    group = SimGroup()
    a, *_ = boot(group, a=SECRET, b=SECRET)
    group.run(1.0)
    wire = dial(group, a)
    assert wire.heard == b""
    wire.say(wire_of(Challenge(b"1" * NONCE_SIZE)))
    group.run(0.1)
    ((sender, challenge),) = wire.packets
    assert sender == NOBODY
    assert isinstance(challenge, Challenge)
    wire.say(wire_of(Proof(b"2" * 32)))
    group.run(0.1)
    assert wire.packets[1:] == [(NOBODY, Refused(WRONG_PROOF))]
    wire.say(hello(Address("z", 1)))
    group.run(5.0)
    assert len(wire.packets) == 2
    assert wire.end is CloseReason.RESET
    assert a.transport.stats["unproven"] == 1
    assert a.events == ["+b#1"]


def test_a_hello_without_a_proof_is_answered_with_a_refusal_and_nothing_else() -> None:
    group = SimGroup()
    (a,) = boot(group, a=SECRET)
    wire = dial(group, a)
    wire.say(hello(Address("z", 1)))
    group.run(5.0)
    assert wire.packets == [(NOBODY, Refused(NO_PROOF))]
    assert wire.end is CloseReason.RESET
    assert a.events == []


def test_a_member_without_a_secret_that_is_challenged_says_so() -> None:
    group = SimGroup()
    (a,) = boot(group, a="")
    wire = dial(group, a)
    wire.say(wire_of(Challenge(b"1" * NONCE_SIZE)))
    group.run(5.0)
    assert wire.packets == [(NOBODY, Refused(NO_SECRET))]


def test_who_does_not_prove_it_in_time_is_closed_and_counted() -> None:
    group = SimGroup()
    a = group.boot("a", tcp(SECRET, connect_timeout=0.5))
    silent, slow = dial(group, a), dial(group, a)
    slow.say(wire_of(Challenge(b"1" * NONCE_SIZE)))
    group.run(1.0)
    assert (silent.end, slow.end) == (CloseReason.RESET, CloseReason.RESET)
    assert a.transport.stats["unproven"] == 2
    assert a.transport.stats["handshakes_failed"] == 2


def test_refused_strangers_that_do_not_hang_up_are_limited_like_those_that_say_nothing() -> None:
    group = SimGroup()
    a = group.boot("a", tcp(SECRET, handshakes_max=3))
    wires = [dial(group, a) for _ in range(3)]
    for wire in wires:
        wire.say(hello(Address("z", 1)))
    group.run(0.1)
    assert [wire.end for wire in wires] == [None] * 3  # each is let read why
    assert dial(group, a).end is None
    assert [wire.end for wire in wires] == [CloseReason.RESET, None, None]
    group.run(1.5)
    assert [wire.end for wire in wires] == [CloseReason.RESET] * 3


class Tap(Wire):
    """Stands between a dialler and a member, and keeps what each of them said."""

    def __init__(self, group: SimGroup, name: str, to: Member) -> None:
        super().__init__()
        self.to_member = b""
        self._other = Wire()
        self._group, self._to = group, to
        node = group.boot(name, Tcp(TcpSettings(bind_port=7999)))
        self._runtime = node.runtime
        self.endpoint = node.runtime.net.listen(Endpoint("", 7800), lambda: self).endpoint

    def connected(self, stream: Stream) -> None:
        tap = self

        class Far(Wire):
            def connected(self, stream: Stream) -> None:
                super().connected(stream)
                stream.write((tap.to_member,))

            def received(self, data: Buffer) -> None:
                super().received(data)
                tap.say(bytes(data))

        super().connected(stream)
        self._other = Far()
        self._runtime.net.connect(self._to.transport.endpoint, self._other, 1.0)

    def received(self, data: Buffer) -> None:
        super().received(data)
        self.to_member += data
        if self._other.stream is not None:
            self._other.say(bytes(data))

    def closed(self, reason: CloseReason) -> None:
        super().closed(reason)
        if self._other.stream is not None:
            self._other.stream.abort()


def test_a_recorded_handshake_lets_nobody_in_again() -> None:
    group = SimGroup()
    a = group.boot("a", tcp(SECRET))
    tap = Tap(group, "tap", a)
    b = group.boot("b", tcp(SECRET))
    b.transport.found(tap.endpoint)
    group.run(1.0)
    assert a.peers == ["b#1"]  # the handshake went well, and the tap has all of it
    assert b.node is not None
    b.node.crash()
    group.run(1.0)
    wire = dial(group, a)
    wire.say(tap.to_member)
    group.run(1.0)
    assert [type(message) for _, message in wire.packets] == [Challenge, Refused]
    assert a.peers == []


def test_who_only_reflects_what_a_member_says_learns_nothing() -> None:
    group = SimGroup()
    a = group.boot("a", tcp(SECRET))
    mirror = Wire(echo=True)
    node = group.boot("mirror", Tcp(TcpSettings(bind_port=7999)))
    endpoint = node.runtime.net.listen(Endpoint("", 7800), lambda: mirror).endpoint
    a.transport.found(endpoint)
    group.run(0.05)
    assert [type(message) for _, message in mirror.packets] == [Challenge]
    assert a.transport.stats["unproven"] == 1
    assert a.events == []


# Real sockets.


@pytest.mark.parametrize(
    ("secret", "at_a", "at_b"),
    [
        pytest.param(OTHER, HAS_ANOTHER, HAS_ANOTHER, id="another secret"),
        pytest.param("", HAS_NONE, HAS_ONE, id="no secret"),
    ],
)
@pytest.mark.parametrize("dialler", ["a", "b"])
def test_real_members_with_the_secret_exchange_messages_and_one_without_it_stays_outside(
    secret: str, at_a: str, at_b: str, dialler: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)

    async def main() -> None:
        quick = {"bind_port": 0, "reconnect_min": 0.01, "reconnect_max": 0.01}
        inside = real("a", tcp(SECRET, **quick)), real("c", tcp(SECRET, **quick))
        async with inside[0] as a, inside[1] as c, real("b", tcp(secret, **quick)) as b:
            one, other = (a, b) if dialler == "a" else (b, a)
            one.find(other)
            c.find(a)
            await until(lambda: bool(a.peers and c.peers), a, c)
            async with asyncio.timeout(30):
                while min(member.transport.stats["unproven"] for member in (a, b)) < 3:
                    await asyncio.sleep(0.01)
            bodies = [random.Random(1).randbytes(size) for size in (1, 1000, 100_000, 60_000)]
            for member in (a, c):
                member.see(a, c)
                for body in bodies:
                    member.send(body)
            await until(lambda: len(a.bodies) == len(c.bodies) == len(bodies), a, c)
            assert a.bodies == c.bodies == bodies
            assert (a.events, b.events, c.events) == (["+c#1"], [], ["+a#1"])

    run(main())
    assert refusals(caplog, "a#1") == [at_a]
    assert refusals(caplog, "b#1") == [at_b]
    assert [record for record in caplog.records if record.levelno > logging.WARNING] == []


# Settings.


def test_a_secret_that_can_be_guessed_is_refused_with_what_to_do() -> None:
    with pytest.raises(
        UserError, match="TCP: secret must have at least 16 characters: make one with `coterie cluster init"
    ):
        build([Layer("TCP", {"secret": "too short"})], {"TCP": Tcp})


def test_a_secret_is_not_shown_with_the_other_settings() -> None:
    assert SECRET not in repr(TcpSettings(secret=SECRET))
