"""10,000 random, truncated and bit-flipped packets to each transport, over real sockets: the group goes on."""

from __future__ import annotations

import asyncio
import random
import socket
from collections.abc import Iterator

import pytest
from transport_rig import GROUP, Member, real, until

from coterie.group.members import Address
from coterie.group.packet import MCAST, NOBODY, RAW, Packet, encode_header, group_tag
from coterie.group.protocols.auth import NONCE_SIZE, Challenge, Proof
from coterie.group.protocols.failure import Failure
from coterie.group.protocols.seal import ID_SIZE, Seal
from coterie.group.protocols.tcp import Tcp, TcpSettings
from coterie.group.protocols.tcp_peer import CODEC
from coterie.group.protocols.tcp_peer import Hello as TcpHello
from coterie.group.protocols.udp import Hello as UdpHello
from coterie.group.protocols.udp import Udp, UdpSettings
from coterie.runtime.aio import run
from coterie.runtime.base import Endpoint

CLIENT = Address("client", 1)
SOUND = b"sound"
SECRET = "correct horse battery staple"
with_and_without_a_secret = pytest.mark.parametrize("secret", ["", SECRET], ids=["in clear", "with a secret"])


def wire(sender: Address, body: bytes, proto: int = 0, group: str = GROUP, carrier: int = MCAST) -> bytes:
    packet = Packet(body, None, proto, carrier)
    packet.sender, packet.seqno, packet.view = sender, 7, 9
    return encode_header(packet, group_tag(group), sender.name.encode(), True) + body


def garbage(rng: random.Random, sound: list[bytes]) -> Iterator[bytes]:
    """What no sound process of the group sends: noise, cut, flipped, foreign, glued, and claims of monstrous sizes."""
    while True:
        model = rng.choice(sound)
        flipped = bytearray(model)
        for _ in range(rng.randint(1, 8)):
            flipped[rng.randrange(len(model))] ^= 1 << rng.randrange(8)
        if bytes(flipped) != model:
            yield bytes(flipped)
        yield rng.randbytes(rng.randint(1, 300))
        yield model[: rng.randrange(1, len(model))]
        yield model[:2] + rng.randbytes(len(model) - 2)
        yield wire(CLIENT, rng.randbytes(50), rng.randrange(256), "another group")
        yield model[:4] + (0xFFFFFFF0).to_bytes(4, "little") + model[8:]
        yield model[rng.randrange(1, len(model)) :]


async def talk(endpoint: Endpoint, data: bytes) -> None:
    """Connect, say it, and wait for the other side to hang up."""
    reader, writer = await asyncio.open_connection(*endpoint)
    try:
        writer.write(data)
        writer.write_eof()
        await reader.read()
    except (ConnectionError, OSError):  # it hung up before it had heard all
        pass
    finally:
        writer.close()
        try:
            await writer.wait_closed()
        except (ConnectionError, OSError):
            pass


async def goes_on(a: Member, b: Member) -> None:
    """The two still hear each other."""
    for sender, other in ((a, b), (b, a)):
        heard = len(other.bodies)
        sender.send(b"still here", other.local)
        await until(lambda other=other, heard=heard: b"still here" in other.bodies[heard:], other)  # type: ignore[misc]
    assert (a.peers, b.peers) == ([str(b.local)], [str(a.local)])
    assert a.stack.find(Failure).suspects() == b.stack.find(Failure).suspects() == []


async def all_of_it(conversations: Iterator[bytes], endpoint: Endpoint) -> None:
    """Hold many conversations, some at a time."""

    async def some() -> None:
        for data in conversations:
            await talk(endpoint, data)

    async with asyncio.TaskGroup() as group:
        for _ in range(32):
            group.create_task(some())


def tcp_layers(secret: str = "") -> tuple[Tcp, Failure]:
    return Tcp(TcpSettings(bind_port=0, secret=secret)), Failure()


@with_and_without_a_secret
def test_five_thousand_bad_beginnings_of_tcp_connections(secret: str, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("ERROR")

    async def main() -> None:
        async with real("a", *tcp_layers(secret)) as a, real("b", *tcp_layers(secret)) as b:
            a.find(b)
            await until(lambda: bool(a.peers and b.peers), a, b)
            a.see(a, b)
            b.see(a, b)
            hello = CODEC.encode(TcpHello(1, 1, "127.0.0.1", 9, 1, 1, ()))
            source = garbage(random.Random(1), [wire(CLIENT, hello, Tcp.id), wire(CLIENT, SOUND)])
            await all_of_it((next(source) for _ in range(5000)), a.transport.endpoint)
            await goes_on(a, b)
            stats = a.transport.stats
            assert stats["handshakes_failed"] == 5000
            assert stats["foreign"] > 500
            assert stats["malformed"] > 2000
            assert [event for event in a.events if "client" in event] == []

    run(main())
    assert caplog.records == []


def test_five_thousand_tcp_connections_that_turn_bad_while_the_secret_is_being_proven(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level("ERROR")

    async def main() -> None:
        async with real("a", *tcp_layers(SECRET)) as a, real("b", *tcp_layers(SECRET)) as b:
            a.find(b)
            await until(lambda: bool(a.peers and b.peers), a, b)
            a.see(a, b)
            b.see(a, b)
            rng = random.Random(4)
            challenge = wire(NOBODY, CODEC.encode(Challenge(rng.randbytes(NONCE_SIZE))), Tcp.id, carrier=RAW)
            proof = wire(NOBODY, CODEC.encode(Proof(rng.randbytes(32))), Tcp.id, carrier=RAW)
            hello = wire(CLIENT, CODEC.encode(TcpHello(1, 1, "127.0.0.1", 9, 1, 1, ())), Tcp.id)
            source = garbage(rng, [challenge, proof, hello])

            def conversations() -> Iterator[bytes]:
                for _ in range(5000):
                    yield challenge + rng.choice((proof, hello, next(source), next(source)))

            await all_of_it(conversations(), a.transport.endpoint)
            await goes_on(a, b)
            stats = a.transport.stats
            assert stats["handshakes_failed"] == 5000
            assert stats["unproven"] > 2000
            assert stats["malformed"] > 500
            assert [event for event in a.events if "client" in event] == []

    run(main())
    assert caplog.records == []


def test_five_thousand_tcp_connections_that_turn_bad_after_the_handshake(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("ERROR")

    async def main() -> None:
        async with real("a", *tcp_layers()) as a, real("b", *tcp_layers()) as b:
            a.find(b)
            await until(lambda: bool(a.peers and b.peers), a, b)
            a.see(a, b)
            b.see(a, b)
            rng = random.Random(2)
            source = garbage(rng, [wire(CLIENT, rng.randbytes(100)), wire(CLIENT, b"", 8), wire(b.local, SOUND)])

            def conversations() -> Iterator[bytes]:
                for number in range(5000):
                    hello = CODEC.encode(TcpHello(1, number + 1, "127.0.0.1", 9, 1, 1, ()))
                    yield wire(CLIENT, hello, Tcp.id) + wire(CLIENT, SOUND) + next(source)

            await all_of_it(conversations(), a.transport.endpoint)
            await goes_on(a, b)
            heard = [body for body in a.bodies if body != b"still here"]
            assert heard == [SOUND] * 5000
            stats = a.transport.stats
            assert stats["foreign"] > 500
            assert stats["malformed"] > 2000
            assert len(a.transport._contacts) <= 3

    run(main())
    assert caplog.records == []


@with_and_without_a_secret
def test_ten_thousand_bad_datagrams(secret: str, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("ERROR")

    async def main() -> None:
        def layers() -> tuple[Udp, Failure]:
            return Udp(UdpSettings(bind_port=0, secret=secret)), Failure()

        async with real("a", *layers()) as a, real("b", *layers()) as b:
            a.find(b)
            await until(lambda: bool(a.peers and b.peers), a, b)
            a.see(a, b)
            b.see(a, b)
            rng = random.Random(3)
            hello = Udp.codec.encode(UdpHello(5, 0, True, "127.0.0.1", 9, 1, 1, ()))
            sound = [wire(CLIENT, hello, Udp.id), wire(b.local, rng.randbytes(100)), wire(b.local, b"", 8)]
            if secret:  # as somebody would have them who listened in
                seal = Seal(secret, GROUP, Udp.name, rng.randbytes(ID_SIZE), 1)
                sound += [b"".join(seal.seal((data,))) for data in sound]
            source = garbage(rng, sound)
            kinds = ("malformed", "foreign", "unproven")
            stats = a.transport.stats
            with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as stranger:
                for sent in range(1, 10_001):
                    data = next(source)
                    if sent % 2:
                        stranger.sendto(data, a.transport.endpoint)
                    else:  # from where b is, as if the network had done it
                        b.transport._socket.send((data,), a.transport.endpoint)
                    while sum(stats[kind] for kind in kinds) < sent:
                        await asyncio.sleep(0)
            await goes_on(a, b)
            least = {"foreign": 1000, "malformed": 5000}
            if secret:
                least = {"foreign": 300, "malformed": 2000, "unproven": 4000}
            assert {kind: stats[kind] for kind in least if stats[kind] < least[kind]} == {}
            assert sum(stats[kind] for kind in kinds) == 10_000
            assert [body for body in a.bodies if body != b"still here"] == []

    run(main())
    assert caplog.records == []
