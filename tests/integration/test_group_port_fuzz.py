"""The port that brokers reach each other at, given garbage in great numbers, by who has the secret and by who has not.

`make fuzz` tries more. A broker that stands in a cluster of one is asked afterwards whether it still serves.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
import socket
import ssl
from collections.abc import Iterator
from pathlib import Path

import pika
import pytest
from group_port_rig import NodeProcess

from coterie.group.members import Address
from coterie.group.packet import MCAST, NOBODY, RAW, Decoder, Packet, encode_header, group_tag
from coterie.group.protocols.auth import NONCE_SIZE, Challenge, Handshake, Proof, Refused, derive
from coterie.group.protocols.tcp_peer import CODEC, TCP_ID, Hello
from coterie.runtime.aio import run
from coterie.runtime.aio.authority import trust_key
from coterie.secret_file import make_secret_file
from coterie.workers import free_ports

INSIDE = 0.1
"""Of those without the secret who speak TLS at all: a handshake takes as long as many other inputs."""
AT_ONCE = 16
TRAIN = 20
"""Packets that one who has proven the secret sends."""
GROWTH_MAX = 40 << 20
"""Bytes that a broker may grow by: its chunks for received bytes, of which it keeps 32 MiB (`arena`), and a little. A
million inputs that leave 40 bytes each are as much."""
GROUP = "coterie"
FUZZER = Address("fuzzer", 1)
HELLO_BYTES = b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03"
"""How the first record of a TLS client begins."""


class Target:
    """A broker with a secret; `encrypt` as it is told."""

    def __init__(self, folder: Path, encrypt: str) -> None:
        self.secret = make_secret_file(folder / "secret").encode()
        (self.port,) = free_ports(1)
        self.encrypts = encrypt == "always"
        self.proofs = 0
        """How often somebody has proven to it that it knows the secret."""
        self.node = NodeProcess(
            folder, "target", "--console", "", "--bind", f"127.0.0.1:{self.port}", "--cluster-size", "1",
            "--secret-file", str(folder / "secret"), "--encrypt", encrypt, "--log-level", "error",
        )  # fmt: skip
        self.node.up()

    def serves(self) -> None:
        channel = self.node.channel()
        channel.confirm_delivery()
        channel.queue_declare("still-here")
        channel.basic_publish("", "still-here", b"still here", pika.BasicProperties(delivery_mode=2))
        _, _, body = channel.basic_get("still-here", auto_ack=True)
        assert body == b"still here"
        channel.connection.close()

    def context(self) -> ssl.SSLContext | None:
        """As a member has it that knows the secret."""
        if not self.encrypts:
            return None
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname = False
        trust_key(context, derive(self.secret, "authority", GROUP.encode()))
        return context


@pytest.fixture(scope="module", params=["never", "always"], ids=["in clear", "encrypted"])
def target(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Target]:
    target = Target(tmp_path_factory.mktemp("target"), request.param)
    try:
        target.serves()
        yield target
    finally:
        target.node.stop()


def wire(body: bytes, sender: Address = FUZZER, proto: int = TCP_ID, carrier: int = RAW) -> bytes:
    packet = Packet(body, None, proto, carrier)
    packet.sender, packet.seqno, packet.view = sender, 7, 1
    return encode_header(packet, group_tag(GROUP), sender.name.encode(), True) + body


def altered(rng: random.Random, models: list[bytes]) -> bytes:
    model = bytearray(rng.choice(models))
    for _ in range(rng.randint(1, 6)):
        model[rng.randrange(len(model))] ^= 1 << rng.randrange(8)
    place = rng.randrange(len(model) + 1)
    return rng.choice(
        (
            bytes(model), bytes(model[:place]), bytes(model[place:] + model),
            rng.randbytes(rng.randint(0, 300)),
            bytes(model[:4]) + rng.choice((0, 2**31, 2**32 - 1)).to_bytes(4, "little") + bytes(model[8:]),
            HELLO_BYTES + rng.randbytes(300),
        )
    )  # fmt: skip


def garbage(rng: random.Random) -> bytes:
    """In a packet that is none."""
    return wire(rng.randbytes(rng.choice((0, 1, 8, 40, 300))), FUZZER, rng.randrange(24), rng.choice((RAW, MCAST)))


async def talk(target: Target, said: bytes, context: ssl.SSLContext | None, prove: bool) -> None:
    """Connect, say it, and leave, or wait to be left; with a proof of the secret first, and who one is, or without."""
    if context is None and not prove:
        await _blurt(target.port, said)
        return
    reader, writer = await asyncio.open_connection("127.0.0.1", target.port, ssl=context)
    try:
        if prove:
            await _prove(target, reader, writer)
        writer.write(said)
        if writer.can_write_eof():
            writer.write_eof()
        else:
            writer.close()
        async with asyncio.timeout(10):
            await reader.read()
    finally:
        writer.close()
        with contextlib.suppress(OSError):
            await writer.wait_closed()


async def _blurt(port: int, said: bytes) -> None:
    """Without streams, which take longer than the broker."""
    loop = asyncio.get_running_loop()
    with socket.socket() as connection:
        connection.setblocking(False)
        async with asyncio.timeout(10):
            await loop.sock_connect(connection, ("127.0.0.1", port))
            await loop.sock_sendall(connection, said)
            connection.shutdown(socket.SHUT_WR)
            while await loop.sock_recv(connection, 65536):
                pass


async def _prove(target: Target, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    key = derive(target.secret, "connection", GROUP.encode())
    decoder = Decoder(group_tag(GROUP), 1 << 16, FUZZER)
    handshake = Handshake(key, random.randbytes(NONCE_SIZE), dialled=True)
    challenge = handshake.opening()
    assert challenge is not None
    writer.write(wire(CODEC.encode(challenge), NOBODY))
    while not handshake.proven:
        prefix = await reader.readexactly(8)
        whole = prefix + await reader.readexactly(decoder.length(prefix) - len(prefix))
        message = CODEC.decode(decoder.decode(memoryview(whole)).body)
        assert isinstance(message, Challenge | Proof | Refused)
        answer = handshake.received(message)
        if answer is not None:
            writer.write(wire(CODEC.encode(answer), NOBODY))
    writer.write(wire(CODEC.encode(Hello(1, 1, "127.0.0.1", 9, 1, 1, ()))))
    target.proofs += 1


async def all_of_it(target: Target, conversations: Iterator[tuple[bytes, bool, bool]]) -> None:
    inside, outside = target.context(), None
    if target.encrypts:
        outside = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        outside.check_hostname, outside.verify_mode = False, ssl.CERT_NONE

    async def some() -> None:
        for said, tls, prove in conversations:
            context = (inside if prove else outside) if tls or prove else None
            with contextlib.suppress(OSError, asyncio.IncompleteReadError, TimeoutError):
                await talk(target, said, context, prove)

    async with asyncio.TaskGroup() as group:
        for _ in range(AT_ONCE):
            group.create_task(some())


def conversations(rng: random.Random, count: int, prove: bool) -> Iterator[tuple[bytes, bool, bool]]:
    """What is said, whether inside TLS if there is any, and whether the secret was proven before."""
    early = [
        wire(CODEC.encode(Challenge(rng.randbytes(NONCE_SIZE))), NOBODY),
        wire(CODEC.encode(Proof(rng.randbytes(32))), NOBODY),
        wire(CODEC.encode(Hello(1, 1, "127.0.0.1", 9, 1, 1, ()))),
    ]
    late = [wire(rng.randbytes(100), FUZZER, proto, carrier) for proto in range(20) for carrier in (RAW, MCAST)]
    for _ in range(count):
        if prove:  # packets that are whole, whatever is in them, until one is not
            train = [garbage(rng) for _ in range(TRAIN - 1)]
            yield b"".join(train) + altered(rng, late), True, True
        else:
            said = b"".join(rng.choice(early) for _ in range(rng.randint(0, 2))) + altered(rng, early)
            yield said, rng.random() < INSIDE, False


@pytest.mark.fuzz
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("prove", [False, True], ids=["without the secret", "with the secret"])
def test_garbage_stops_nothing_and_takes_up_no_memory(target: Target, prove: bool, port_fuzz_inputs: int) -> None:
    """An input is a connection, and what is said on it; with the secret, a packet."""
    rng = random.Random(f"{prove} {port_fuzz_inputs}")
    count = max(1, port_fuzz_inputs // TRAIN) if prove else port_fuzz_inputs
    run(
        all_of_it(target, conversations(rng, max(20, count // 10), prove))
    )  # what is loaded, cached and pooled, is then
    before = target.node.memory()
    target.proofs = 0
    run(all_of_it(target, conversations(rng, count, prove)))
    target.serves()
    after = target.node.memory()
    assert after - before < GROWTH_MAX
    assert target.node.process.poll() is None
    assert target.node.log() == ""  # not one error
    assert target.proofs == (count if prove else 0)
    told = {"port": "group", "encrypted": target.encrypts, "secret": prove}
    print(json.dumps({**told, "inputs": port_fuzz_inputs, "memory": [before, after]}))
