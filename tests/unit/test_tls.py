"""TLS with mutual certificates on TCP, over real sockets, with certificates that are made here."""

from __future__ import annotations

import asyncio
import contextlib
import datetime
import logging
import random
import socket
import ssl
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID
from transport_rig import Member, SimGroup, real, until

from coterie.errors import UserError
from coterie.group.channel import Channel, Delivery, Receiver
from coterie.group.presets import preset
from coterie.group.protocols.tcp import Tcp, TcpSettings
from coterie.group.stack import Layer, build
from coterie.runtime.aio import AioRuntime, run
from coterie.runtime.aio.authority import _private_key, trust_key
from coterie.runtime.aio.tls import Tls
from coterie.runtime.base import Buffer, CloseReason, Endpoint, Stream, StreamHandler, TlsConfig

HERE = Endpoint("127.0.0.1", 0)
SECRET = "correct horse battery staple"


@dataclass
class Authority:
    """A certificate authority, and the files that it wrote."""

    folder: Path
    name: str

    def __post_init__(self) -> None:
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._own = self._sign(self.name, self._key.public_key(), ca=True)
        self.ca = self._write("ca", self._own.public_bytes(serialization.Encoding.PEM))

    def member(self, name: str, *, days: int = 1) -> dict[str, str]:
        """The settings of a member with a certificate of this authority."""
        key = ec.generate_private_key(ec.SECP256R1())
        cert = self._sign(name, key.public_key(), ca=False, days=days)
        form = serialization.PrivateFormat.PKCS8
        private = key.private_bytes(serialization.Encoding.PEM, form, serialization.NoEncryption())
        return {
            "tls_cert": self._write(f"{name}.cert", cert.public_bytes(serialization.Encoding.PEM)),
            "tls_key": self._write(f"{name}.key", private),
            "tls_ca": self.ca,
        }

    def config(self, name: str, *, timeout: float = 5.0, handshakes_max: int = 16) -> TlsConfig:
        files = self.member(name)
        return TlsConfig(files["tls_cert"], files["tls_key"], files["tls_ca"], timeout, handshakes_max)

    def _write(self, name: str, data: bytes) -> str:
        path = self.folder / f"{self.name}-{name}.pem"
        path.write_bytes(data)
        return str(path)

    def _sign(self, name: str, key: ec.EllipticCurvePublicKey, *, ca: bool, days: int = 1) -> x509.Certificate:
        now = datetime.datetime.now(datetime.UTC)
        return (
            x509.CertificateBuilder()
            .subject_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)]))
            .issuer_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, self.name)]))
            .public_key(key)
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - datetime.timedelta(days=3))
            .not_valid_after(now + datetime.timedelta(days=days))
            .add_extension(x509.BasicConstraints(ca=ca, path_length=None), critical=True)
            .sign(self._key, hashes.SHA256())
        )


@pytest.fixture
def ours(tmp_path: Path) -> Authority:
    return Authority(tmp_path, "ours")


@pytest.fixture
def theirs(tmp_path: Path) -> Authority:
    return Authority(tmp_path, "theirs")


def tcp(files: dict[str, str], **settings: object) -> Tcp:
    values: dict[str, object] = {"bind_port": 0, "reconnect_min": 0.01, "reconnect_max": 0.02} | settings
    return Tcp(TcpSettings(**files, **values))  # type: ignore[arg-type]


async def refused(member: Member, times: int = 3) -> None:
    """Wait until it has refused somebody, or was refused, so many times."""
    stats = member.transport.stats
    async with asyncio.timeout(30):
        while stats["unproven"] + stats["handshakes_failed"] + stats["malformed"] < times:
            await asyncio.sleep(0.01)


def logged(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [str(getattr(record, "coterie_facts", {}).get("why")) for record in caplog.records]


# Members.


@pytest.mark.parametrize("secret", ["", SECRET])
def test_members_with_certificates_of_the_same_authority_exchange_messages(ours: Authority, secret: str) -> None:
    async def main() -> None:
        bodies = [random.Random(size).randbytes(size) for size in (0, 1, 1000, 60_000, 500_000) * 5]
        members = [tcp(ours.member(name), secret=secret) for name in "abc"]
        async with real("a", members[0]) as a, real("b", members[1]) as b, real("c", members[2]) as c:
            group = (a, b, c)
            b.find(a)
            c.find(a)
            await until(lambda: all(len(member.peers) == 2 for member in group), *group)
            for member in group:
                member.see(*group)
                for body in bodies:
                    member.send(body)
            await until(lambda: all(len(member.bodies) == 2 * len(bodies) for member in group), *group)
            for member in group:
                for other in group:
                    if other is not member:
                        received = [p for batch in member.top.batches for p in batch if p.sender == other.local]
                        assert [bytes(packet.body) for packet in received] == bodies
                assert sorted(member.events) == [f"+{other.local}" for other in group if other is not member]

    run(main())


class Heard(Receiver):
    def __init__(self, enough: int) -> None:
        self.messages: list[bytes] = []
        self.all = asyncio.Event()
        self._enough = enough

    def receive(self, batch: list[Delivery]) -> None:
        self.messages += [bytes(message) for delivery in batch for message in delivery.messages]
        if len(self.messages) >= self._enough:
            self.all.set()


def test_channels_over_tls_and_with_a_secret_form_a_group(ours: Authority) -> None:
    async def main() -> None:
        async with contextlib.AsyncExitStack() as ends:
            channels: list[Channel] = []
            heard = [Heard(3 * 50) for _ in range(3)]
            for name, receiver in zip("abc", heard, strict=True):
                runtime = AioRuntime(name)
                ends.push_async_callback(runtime.close)
                known = [str(channel.stack.find(Tcp).endpoint) for channel in channels[:1]]
                tcp_settings: dict[str, object] = {"bind_port": 0, "secret": SECRET, **ours.member(name)}
                layers = preset("reliable", TCP=tcp_settings, STATIC={"peers": known})
                channels.append(Channel(runtime, layers, group="tls", name=name, receiver=receiver))
                await channels[-1].connect(members=len(channels))
                ends.push_async_callback(channels[-1].close)
            async with asyncio.timeout(30):
                for channel in channels:
                    await channel.has_members(3)
                for number in range(50):
                    for channel in channels:
                        await channel.send(b"%d of %s" % (number, channel.local.name.encode()) * 1000)
                for receiver in heard:
                    await receiver.all.wait()
            expected = {name: [b"%d of %s" % (number, name.encode()) * 1000 for number in range(50)] for name in "abc"}
            for receiver in heard:
                for name in "abc":
                    assert [text for text in receiver.messages if text.endswith(name.encode())] == expected[name]

    run(main())


def test_nothing_that_members_say_is_in_clear(ours: Authority) -> None:
    async def main() -> None:
        heard = bytearray()

        async def tap(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            far_reader, far_writer = await asyncio.open_connection(*target)

            async def pump(source: asyncio.StreamReader, to: asyncio.StreamWriter) -> None:
                while data := await source.read(65536):
                    heard.extend(data)
                    to.write(data)
                to.close()

            with contextlib.suppress(ConnectionError):
                await asyncio.gather(pump(reader, far_writer), pump(far_reader, writer))

        member = tcp(ours.member("a"), advertised_host="192.0.2.1")
        async with real("a", member) as a, real("b", tcp(ours.member("b"), advertised_host="192.0.2.2")) as b:
            target = a.transport.endpoint._replace(host="127.0.0.1")
            server = await asyncio.start_server(tap, "127.0.0.1", 0)
            b.transport.found(Endpoint("127.0.0.1", server.sockets[0].getsockname()[1]))
            await until(lambda: bool(a.peers and b.peers), a, b)
            b.send(b"a message that nobody else reads", a.local)
            await until(lambda: bool(a.bodies), a)
            assert len(heard) > 1000
            assert b"a message that" not in heard
            assert b"192.0.2." not in heard
            server.close()

    run(main())


def test_a_member_that_is_gone_is_told_with_proof_and_a_broken_connection_is_made_again(ours: Authority) -> None:
    async def main() -> None:
        async with real("a", tcp(ours.member("a"))) as a, real("b", tcp(ours.member("b"))) as b:
            b.find(a)
            await until(lambda: bool(a.peers and b.peers), a, b)
            a.transport.drop_connection(b.local)
            await until(lambda: a.events == ["+b#1", "-b#1", "+b#1"] and b.peers == ["a#1"], a, b)
            b.send(b"last words", a.local)
            b.stack.stop()
            await until(lambda: len(a.events) == 5, a)
            assert a.events[3:] == ["-b#1", "!b#1"]
            assert a.bodies == [b"last words"]

    run(main())


@pytest.mark.parametrize("dialler", ["a", "b"])
@pytest.mark.parametrize(
    ("case", "why"),
    [
        ("another authority", "tls_ca must have signed it"),
        ("another authority, but trusts ours", "tls_ca must have signed it"),
        ("expired", "certificate has expired"),
        ("no TLS", "TLS"),
    ],
)
def test_who_has_no_certificate_of_the_authority_stays_outside_and_the_group_goes_on(
    case: str, why: str, dialler: str, ours: Authority, theirs: Authority, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    files = {
        "another authority": theirs.member("b"),
        "another authority, but trusts ours": theirs.member("b") | {"tls_ca": ours.ca},
        "expired": ours.member("b", days=-1),
        "no TLS": {},
    }[case]

    async def main() -> None:
        inside = real("a", tcp(ours.member("a"))), real("c", tcp(ours.member("c")))
        async with inside[0] as a, inside[1] as c, real("b", tcp(files)) as b:
            one, other = (a, b) if dialler == "a" else (b, a)
            one.find(other)
            await refused(a)
            if case != "no TLS" or dialler == "a":
                await refused(b)
            c.find(a)
            await until(lambda: bool(a.peers and c.peers), a, c)
            a.send(b"on we go", c.local)
            await until(lambda: bool(c.bodies), c)
            assert (a.events, b.events, c.events) == (["+c#1"], [], ["+a#1"])

    run(main())
    assert any(why in text for text in logged(caplog))
    assert len(caplog.records) <= 4  # not one for each attempt
    assert [record for record in caplog.records if record.levelno > logging.WARNING] == []


# Certificates that are made of the secret.


def made_of(secret: str, **settings: object) -> Tcp:
    return tcp({}, secret=secret, encrypt=True, **settings)


def test_members_that_know_the_secret_need_nothing_else_to_encrypt() -> None:
    async def main() -> None:
        body = random.Random(1).randbytes(500_000)
        async with real("a", made_of(SECRET)) as a, real("b", made_of(SECRET)) as b:
            b.find(a)
            await until(lambda: bool(a.peers and b.peers), a, b)
            b.send(body, a.local)
            a.send(body, b.local)
            await until(lambda: bool(a.bodies and b.bodies), a, b)
            assert a.bodies == b.bodies == [body]

    run(main())


@pytest.mark.parametrize("dialler", ["a", "b"])
@pytest.mark.parametrize(
    ("stranger", "ours_says", "theirs_says"),
    [
        (lambda: made_of("another secret, just as long"), "it has another secret", "that has another secret"),
        (lambda: tcp({}, secret=SECRET), "encrypt", "encrypt"),
        (lambda: tcp({}), "encrypt", "encrypt"),
    ],
    ids=["another secret", "does not encrypt", "no secret"],
)
def test_who_has_not_the_secret_stays_outside_and_both_sides_log_why(
    stranger: Callable[[], Tcp], ours_says: str, theirs_says: str, dialler: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)

    async def main() -> None:
        async with real("a", made_of(SECRET)) as a, real("c", made_of(SECRET)) as c, real("b", stranger()) as b:
            one, other = (a, b) if dialler == "a" else (b, a)
            one.find(other)
            await refused(a)
            await refused(b)
            c.find(a)
            await until(lambda: bool(a.peers and c.peers), a, c)
            assert (a.events, b.events, c.events) == (["+c#1"], [], ["+a#1"])

    run(main())
    whys = logged(caplog)
    assert any(ours_says in why for why in whys)
    assert any(theirs_says in why for why in whys)
    assert 2 <= len(caplog.records) <= 4  # each side, and not one for each attempt
    assert [record for record in caplog.records if record.levelno > logging.WARNING] == []
    assert SECRET not in caplog.text


@pytest.mark.parametrize("side", ["server", "client"])
def test_the_certificate_of_any_other_authority_is_refused(ours: Authority, side: str) -> None:
    """A stranger that takes every certificate, and shows one that it signed itself, or none."""

    async def main() -> None:
        async with real("a", made_of(SECRET)) as a:
            if side == "server":
                context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
                files = ours.member("b")
                context.load_cert_chain(files["tls_cert"], files["tls_key"])
                heard = bytearray()

                async def welcome(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
                    heard.extend(await reader.read())

                server = await asyncio.start_server(welcome, "127.0.0.1", 0, ssl=context)
                a.transport.found(Endpoint("127.0.0.1", server.sockets[0].getsockname()[1]))
                await refused(a)
                server.close()
                assert heard == b""
                return
            for files in (ours.member("b"), {}):
                context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
                context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
                if files:
                    context.load_cert_chain(files["tls_cert"], files["tls_key"])
                reader, writer = await asyncio.open_connection(*a.transport.endpoint, ssl=context)
                told = b""
                with contextlib.suppress(ssl.SSLError, ConnectionError):  # TLS 1.3: the client learns it afterwards
                    writer.write(b"let me in")
                    told = await reader.read()
                assert told == b""
                writer.close()
            assert a.peers == []

    run(main())


def test_one_hang_up_is_no_alarm_and_a_second_one_is(caplog: pytest.LogCaptureFixture) -> None:
    """Members that dial each other at the same moment drop one of the two connections, at every start."""
    tls = Tls()
    tls.hung_up(Endpoint("10.0.0.1", 1))
    tls.hung_up(Endpoint("10.0.0.2", 1))
    assert caplog.records == []
    for port in range(2, 5):
        tls.hung_up(Endpoint("10.0.0.1", port))
    assert len(caplog.records) == 1  # and not each time


def test_certificates_hold_for_clocks_that_are_wrong_and_for_nodes_that_run_for_years() -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    trust_key(context, b"k" * 32)
    (root,) = context.get_ca_certs()
    assert (root["notBefore"], root["notAfter"]) == ("Jan  1 00:00:00 1970 GMT", "Dec 31 23:59:59 9999 GMT")


def test_the_authority_is_the_same_wherever_the_key_is_and_another_for_another_key() -> None:
    numbers = [_private_key(key).private_numbers().private_value for key in (b"k" * 32, b"k" * 32, b"l" * 32)]
    assert numbers[0] == numbers[1] != numbers[2]


def test_encryption_without_a_secret_or_beside_certificates_is_refused(ours: Authority) -> None:
    with pytest.raises(UserError, match="encrypt needs a secret"):
        tcp({}, encrypt=True)
    with pytest.raises(UserError, match="leave it out, or tls_cert"):
        tcp(ours.member("a"), encrypt=True, secret=SECRET)


# Streams.


class Peer(StreamHandler):
    """Keeps what happens to a stream."""

    def __init__(self) -> None:
        self.stream: Stream | None = None
        self.data = bytearray()
        self.end: CloseReason | None = None
        self.changed = asyncio.Event()

    def connected(self, stream: Stream) -> None:
        self.stream = stream
        self.changed.set()

    def received(self, data: Buffer) -> None:
        self.data += data
        self.changed.set()

    def closed(self, reason: CloseReason) -> None:
        assert self.end is None
        self.end = reason
        self.changed.set()

    async def until_closed(self) -> CloseReason:
        async with asyncio.timeout(30):
            while self.end is None:
                self.changed.clear()
                await self.changed.wait()
        return self.end

    async def until_heard(self, size: int) -> None:
        async with asyncio.timeout(30):
            while len(self.data) < size:
                self.changed.clear()
                await self.changed.wait()


@contextlib.asynccontextmanager
async def node() -> AsyncIterator[AioRuntime]:
    runtime = AioRuntime("node")
    try:
        yield runtime
    finally:
        await runtime.close()


@contextlib.asynccontextmanager
async def pair(ours: Authority) -> AsyncIterator[tuple[Peer, Peer]]:
    """Two ends of a TLS stream: the dialler's and the listener's."""
    async with node() as runtime:
        tls, near, far = ours.config("node"), Peer(), Peer()
        listener = runtime.net.listen(HERE, lambda: far, tls)
        runtime.net.connect(listener.endpoint, near, 5.0, tls)
        async with asyncio.timeout(30):
            while near.stream is None or far.stream is None:
                await asyncio.sleep(0)
        yield near, far


def test_what_is_written_before_a_close_arrives_and_both_ends_are_told(ours: Authority) -> None:
    async def main() -> None:
        async with pair(ours) as (near, far):
            assert near.stream is not None
            near.stream.write([b"x" * 1_000_000] * 5)
            near.stream.close()
            await far.until_heard(5_000_000)
            assert (await far.until_closed(), await near.until_closed()) == (CloseReason.EOF, CloseReason.LOCAL)

    run(main())


@pytest.mark.parametrize("size", [7, 100_000], ids=["gathered", "more than is gathered"])
def test_what_one_turn_writes_is_buffered_until_it_ends_and_arrives_in_order(ours: Authority, size: int) -> None:
    async def main() -> None:
        async with pair(ours) as (near, far):
            assert near.stream is not None
            written = b""
            for number in range(50):
                part = bytes((number,)) * size
                near.stream.write((part, b"|"))
                written += part + b"|"
                assert near.stream.buffered == len(written) or size > 7
            await far.until_heard(len(written))
            assert far.data == written

    run(main())


def test_an_aborted_stream_ends_at_once_at_both_ends(ours: Authority) -> None:
    async def main() -> None:
        async with pair(ours) as (near, far):
            assert near.stream is not None
            near.stream.abort()
            assert await near.until_closed() is CloseReason.LOCAL
            assert await far.until_closed() in (CloseReason.EOF, CloseReason.RESET)

    run(main())


def test_a_reader_that_pauses_slows_the_writer_whose_buffer_is_told(ours: Authority) -> None:
    async def main() -> None:
        async with pair(ours) as (near, far):
            assert near.stream is not None
            assert far.stream is not None
            far.stream.pause_reading()
            written = 0
            while near.stream.buffered < 4_000_000:
                near.stream.write((bytes(1_000_000),))
                written += 1_000_000
                assert written < 100_000_000
                await asyncio.sleep(0)
            assert len(far.data) < written
            far.stream.resume_reading()
            await far.until_heard(written)

    run(main())


def test_a_dial_to_somebody_who_accepts_and_says_nothing_times_out(ours: Authority) -> None:
    async def main() -> None:
        async with node() as runtime:
            with socket.socket() as silent:
                silent.bind(("127.0.0.1", 0))
                silent.listen()
                peer = Peer()
                runtime.net.connect(Endpoint(*silent.getsockname()), peer, 0.05, ours.config("node"))
                assert await peer.until_closed() is CloseReason.TIMEOUT

    run(main())


def test_accepted_streams_that_do_not_shake_hands_are_limited_in_number_and_time(ours: Authority) -> None:
    async def main() -> None:
        async with node() as runtime:
            peers: list[Peer] = []

            def accept() -> Peer:
                peers.append(Peer())
                return peers[-1]

            listener = runtime.net.listen(HERE, accept, ours.config("node", timeout=0.3, handshakes_max=2))
            with contextlib.ExitStack() as sockets:
                for _ in range(4):
                    sockets.enter_context(socket.create_connection(listener.endpoint))
                async with asyncio.timeout(30):
                    while len(peers) < 4:
                        await asyncio.sleep(0)
                ends = [await peer.until_closed() for peer in peers]
            assert sorted(end.name for end in ends) == ["LOCAL", "LOCAL", "TIMEOUT", "TIMEOUT"]
            assert all(peer.stream is None for peer in peers)

    run(main())


def test_a_node_that_stops_during_handshakes_ends_them(ours: Authority) -> None:
    async def main() -> None:
        async with node() as runtime:
            near, far = Peer(), Peer()
            tls = ours.config("node")
            listener = runtime.net.listen(HERE, lambda: far, tls)
            with socket.socket() as silent, socket.create_connection(listener.endpoint):
                silent.bind(("127.0.0.1", 0))
                silent.listen()
                silent.setblocking(False)
                runtime.net.connect(Endpoint(*silent.getsockname()), near, 5.0, tls)
                async with asyncio.timeout(30):
                    accepted, _ = await asyncio.get_running_loop().sock_accept(silent)
                    while not runtime.net.tls.pending:
                        await asyncio.sleep(0)
                with accepted:
                    await runtime.close()
            assert (near.end, far.end) == (CloseReason.LOCAL, CloseReason.LOCAL)

    run(main())


@pytest.mark.parametrize("secure", [False, True])
def test_a_node_may_stop_at_any_moment_while_a_stream_is_being_made(ours: Authority, secure: bool) -> None:
    tls = ours.config("node") if secure else None

    async def main() -> None:
        for turns in range(30):
            runtime = AioRuntime("node")
            near = Peer()
            accepted: list[Peer] = []

            def accept(accepted: list[Peer] = accepted) -> Peer:
                accepted.append(Peer())
                return accepted[-1]

            listener = runtime.net.listen(HERE, accept, tls)
            runtime.net.connect(listener.endpoint, near, 5.0, tls)
            for _ in range(turns):
                await asyncio.sleep(0)
            async with asyncio.timeout(5):
                await runtime.close()
            assert [peer.end for peer in (near, *accepted) if peer.end is None] == []

    run(main())


def test_two_hundred_bad_handshakes_leave_nothing_behind(ours: Authority, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.ERROR)

    async def main() -> None:
        rng = random.Random(1)
        async with node() as runtime:
            ends: list[Peer] = []

            def accept() -> Peer:
                ends.append(Peer())
                return ends[-1]

            tls = ours.config("node", timeout=0.5, handshakes_max=1000)
            listener = runtime.net.listen(HERE, accept, tls)
            client = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
            client.check_hostname, client.verify_mode = False, ssl.CERT_NONE
            incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
            with contextlib.suppress(ssl.SSLWantReadError):
                client.wrap_bio(incoming, outgoing).do_handshake()
            hello = outgoing.read()
            for number in range(200):
                data = bytearray(hello) if number % 2 else bytearray(rng.randbytes(100))
                data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
                with socket.create_connection(listener.endpoint) as stranger:
                    stranger.sendall(data[: rng.randrange(1, len(data))])
                await asyncio.sleep(0)
            near = Peer()
            runtime.net.connect(listener.endpoint, near, 5.0, tls)
            async with asyncio.timeout(30):
                while near.stream is None or runtime.net.tls.pending:
                    await asyncio.sleep(0.001)
            assert [peer.end for peer in ends[:200] if peer.end is None] == []
            assert [peer.stream is not None for peer in ends[200:]] == [True]

    run(main())
    assert caplog.records == []


# Settings.


def test_files_belong_together() -> None:
    with pytest.raises(UserError, match="tls_cert, tls_key and tls_ca belong together"):
        build([Layer("TCP", {"tls_cert": "a.pem", "tls_key": "a.key"})], {"TCP": Tcp})


def test_files_that_are_no_good_are_refused_by_name(ours: Authority, theirs: Authority, tmp_path: Path) -> None:
    good, other = ours.member("a"), theirs.member("b")
    junk = tmp_path / "junk.pem"
    junk.write_text("junk")
    locked = tmp_path / "locked.pem"
    key = ec.generate_private_key(ec.SECP256R1())
    phrase = serialization.BestAvailableEncryption(b"phrase")
    form = serialization.PrivateFormat.PKCS8
    locked.write_bytes(key.private_bytes(serialization.Encoding.PEM, form, phrase))
    cases = [
        ({"tls_ca": "/no/such.pem"}, r"tls_ca: /no/such.pem: cannot be read: No such file"),
        ({"tls_cert": "/no/such.pem"}, r"tls_cert: /no/such.pem: cannot be read: No such file"),
        ({"tls_key": "/no/such.pem"}, r"tls_key: /no/such.pem: cannot be read: No such file"),
        ({"tls_ca": str(junk)}, "not a certificate in PEM form"),
        ({"tls_cert": str(junk)}, "not a certificate and its private key"),
        ({"tls_key": other["tls_key"]}, "not a certificate and its private key"),
        ({"tls_key": str(locked)}, "without a pass phrase"),
    ]

    async def main() -> None:
        for wrong, why in cases:
            with pytest.raises(UserError, match=why):
                async with real("a", tcp(good | wrong)):
                    pass

    run(main())


def test_the_simulator_refuses_tls(ours: Authority) -> None:
    with pytest.raises(UserError, match="the simulator has no TLS"):
        SimGroup().boot("a", tcp(ours.member("a")))
