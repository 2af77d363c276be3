"""The server over real sockets: TLS with and without certificates, limits, slow clients."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Literal

import pytest
from amqp_rig import CAPABLE, publish_frames, quick_user
from test_tls import Authority

from coterie.amqp.server import Server
from coterie.amqp.settings import AmqpSettings
from coterie.amqp.wire.codes import PROTOCOL_HEADER
from coterie.amqp.wire.methods import METHODS, Call, decode
from coterie.amqp.wire.tables import Value
from coterie.broker.broker import Broker
from coterie.broker.users import Users
from coterie.runtime.aio import AioRuntime, run
from coterie.runtime.base import Endpoint, TlsConfig
from coterie.settings import describe

HERE = Endpoint("127.0.0.1", 0)
Verify = Literal["required", "optional", "none"]


@pytest.fixture
def ours(tmp_path: Path) -> Authority:
    return Authority(tmp_path, "ours")


class Client:
    """Methods over an asyncio stream."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    def send(self, channel: int, name: str, **arguments: Value) -> None:
        self.writer.write(METHODS[name].frame(channel, **arguments))

    async def payload(self) -> bytes:
        async with asyncio.timeout(30):
            head = await self.reader.readexactly(7)
            return (await self.reader.readexactly(int.from_bytes(head[3:], "big") + 1))[:-1]

    async def method(self) -> Call:
        return decode(await self.payload())

    async def greet(self) -> str:
        """The mechanisms that are offered."""
        self.writer.write(PROTOCOL_HEADER)
        return (await self.method()).raw("mechanisms").decode()

    async def open(self, mechanism: str = "PLAIN", response: bytes = b"\0guest\0guest") -> None:
        self.send(0, "connection.start-ok", client_properties=CAPABLE, mechanism=mechanism, response=response)
        assert (await self.method()).method.name == "connection.tune"
        self.send(0, "connection.tune-ok", channel_max=10, frame_max=131_072)
        self.send(0, "connection.open", virtual_host="/")
        self.send(1, "channel.open")
        assert [(await self.method()).method.name for _ in range(2)] == ["connection.open-ok", "channel.open-ok"]


@contextlib.asynccontextmanager
async def serving(tls: TlsConfig | None = None, settings: AmqpSettings | None = None) -> AsyncIterator[Server]:
    runtime = AioRuntime("broker")
    broker = Broker(runtime)
    broker.start(lambda _: None)
    users = Users(runtime, broker.store)
    users.restore([quick_user("guest"), quick_user("alice")])
    server = Server(runtime, broker, users, settings)
    server.listen(HERE, tls)
    try:
        yield server
    finally:
        stopped = asyncio.Event()
        server.stop(stopped.set)
        async with asyncio.timeout(30):
            await stopped.wait()
        await runtime.close()


@contextlib.asynccontextmanager
async def dialled(server: Server, context: ssl.SSLContext | None = None) -> AsyncIterator[Client]:
    host, port = server.listeners[0].endpoint
    reader, writer = await asyncio.open_connection(host, port, ssl=context)
    try:
        yield Client(reader, writer)
    finally:
        writer.close()
        with contextlib.suppress(OSError):
            await writer.wait_closed()


def config(ours: Authority, verify: Verify, version: Literal["1.2", "1.3"] = "1.3") -> TlsConfig:
    files = ours.member("broker")
    ca = "" if verify == "none" else files["tls_ca"]
    return TlsConfig(files["tls_cert"], files["tls_key"], ca, 5.0, 16, verify, version)


def trusting(ours: Authority, member: str = "") -> ssl.SSLContext:
    """A client that trusts the broker, and shows a certificate if it has a name."""
    context = ssl.create_default_context(cafile=ours.ca)
    context.check_hostname = False
    if member:
        files = ours.member(member)
        context.load_cert_chain(files["tls_cert"], files["tls_key"])
    return context


# TLS.


@pytest.mark.parametrize("verify", ["none", "optional"])
def test_a_client_without_a_certificate_logs_in_with_a_password(ours: Authority, verify: Verify) -> None:
    async def main() -> None:
        async with serving(config(ours, verify)) as server, dialled(server, trusting(ours)) as client:
            assert await client.greet() == "PLAIN AMQPLAIN"
            await client.open()

    run(main())


@pytest.mark.parametrize("verify", ["optional", "required"])
def test_a_client_with_a_certificate_logs_in_with_it(ours: Authority, verify: Verify) -> None:
    async def main() -> None:
        async with serving(config(ours, verify)) as server, dialled(server, trusting(ours, "alice")) as client:
            assert await client.greet() == "PLAIN AMQPLAIN EXTERNAL"
            await client.open("EXTERNAL", b"")
            (connection,) = server.connections.values()
            assert connection.user.name == "alice"

    run(main())


def test_a_certificate_of_nobody_we_know_does_not_log_in(ours: Authority) -> None:
    async def main() -> None:
        async with serving(config(ours, "optional")) as server, dialled(server, trusting(ours, "mallory")) as client:
            await client.greet()
            client.send(0, "connection.start-ok", client_properties=CAPABLE, mechanism="EXTERNAL")
            assert (await client.method()).number("reply_code") == 403

    run(main())


@pytest.mark.parametrize("case", ["no certificate", "of another authority", "old TLS"])
def test_who_does_not_come_up_to_what_is_asked_stays_outside(ours: Authority, tmp_path: Path, case: str) -> None:
    theirs = Authority(tmp_path, "theirs")
    context = trusting(ours)
    verify: Verify = "required"
    if case == "of another authority":
        files = theirs.member("alice")
        context.load_cert_chain(files["tls_cert"], files["tls_key"])
        verify = "optional"
    elif case == "old TLS":
        verify = "none"
        context.maximum_version = ssl.TLSVersion.TLSv1_2

    async def main() -> None:
        async with serving(config(ours, verify)) as server:
            with pytest.raises((OSError, asyncio.IncompleteReadError)):
                async with dialled(server, context) as client:
                    await client.greet()
            async with dialled(server, trusting(ours, "alice")) as good:
                assert "PLAIN" in await good.greet()

    run(main())


def test_older_tls_is_spoken_if_the_configuration_says_so(ours: Authority) -> None:
    context = trusting(ours)
    context.maximum_version = ssl.TLSVersion.TLSv1_2

    async def main() -> None:
        async with serving(config(ours, "none", "1.2")) as server, dialled(server, context) as client:
            await client.greet()
            await client.open()

    run(main())


# Limits and slow clients.


def test_connections_that_are_not_opened_are_limited_in_number() -> None:
    async def main() -> None:
        async with serving(settings=AmqpSettings(handshakes_max=2)) as server, contextlib.AsyncExitStack() as stack:
            first = await stack.enter_async_context(dialled(server))
            await first.greet()
            second = await stack.enter_async_context(dialled(server))
            await second.greet()
            third = await stack.enter_async_context(dialled(server))
            assert await third.greet()  # the oldest makes room for it
            with pytest.raises((OSError, asyncio.IncompleteReadError)):
                await first.open()
            await second.open()
            fourth = await stack.enter_async_context(dialled(server))
            assert await fourth.greet()
            assert (server.accepted, server.turned_away) == (4, 1)

    run(main())


def test_a_consumer_that_does_not_read_makes_the_queue_grow_and_not_the_connection() -> None:
    async def main() -> None:
        async with serving() as server, dialled(server) as slow, dialled(server) as publisher:
            for client in (slow, publisher):
                await client.greet()
                await client.open()
            slow.send(1, "queue.declare", queue="q", exclusive=True)
            slow.send(1, "basic.consume", queue="q", no_ack=True)
            assert [(await slow.method()).method.name for _ in range(2)] == ["queue.declare-ok", "basic.consume-ok"]
            publisher.send(1, "confirm.select")
            body, count = bytes(100_000), 400
            for _ in range(count):
                publisher.writer.write(publish_frames(1, "", "q", body))
            await publisher.method()
            confirmed = 0
            while confirmed < count:
                confirmed = (await publisher.method()).number("delivery_tag")
            connection = next(iter(server.connections.values()))
            assert connection.outbox.congested
            assert connection.outbox.waiting < 3 << 20
            queue = server.broker.vhost("/").queues["q"]
            assert queue.ready > 100
            received = 0
            while received < count * len(body):
                payload = await slow.payload()
                received += len(payload) if len(payload) == len(body) else 0
            assert queue.ready == 0

    run(main())


def test_a_client_that_vanishes_is_forgotten() -> None:
    async def main() -> None:
        async with serving() as server:
            async with dialled(server) as client:
                await client.greet()
                await client.open()
                client.send(1, "queue.declare", queue="q", exclusive=True)
                await client.method()
                client.writer.transport.abort()
            async with asyncio.timeout(30):
                while server.connections:
                    await asyncio.sleep(0)
            assert server.broker.vhost("/").queues == {}

    run(main())


# Documentation.


def test_the_documentation_names_every_setting_with_its_meaning() -> None:
    page = (Path(__file__).parents[2] / "docs" / "amqp.md").read_text()
    rows = [line for line in page.splitlines() if line.startswith("| `")]
    for setting in describe(AmqpSettings):
        meaning = setting.help.split(";")[0]
        assert any(line.startswith(f"| `{setting.name}` |") and meaning in line for line in rows), setting.name
