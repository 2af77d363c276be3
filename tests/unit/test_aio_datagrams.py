"""Datagrams and multicast over real sockets, bound to loopback, with TTL 0: nothing leaves this machine."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from coterie.errors import UserError
from coterie.runtime.aio import AioRuntime, run
from coterie.runtime.aio.arena import CHUNK_SIZE
from coterie.runtime.base import Buffer, DatagramHandler, Endpoint

HERE = Endpoint("127.0.0.1", 0)


class Inbox(DatagramHandler):
    def __init__(self, raise_on: bytes | None = None) -> None:
        self.arrived: asyncio.Queue[tuple[Buffer, Endpoint]] = asyncio.Queue()
        self.raise_on = raise_on

    def datagram(self, data: Buffer, source: Endpoint) -> None:
        if data == self.raise_on:
            raise ValueError("not this one")
        self.arrived.put_nowait((data, source))

    async def next(self) -> tuple[bytes, Endpoint]:
        data, source = await self.arrived.get()
        return bytes(data), source


def with_runtime(scenario: Callable[[AioRuntime], Coroutine[Any, Any, None]]) -> None:
    async def main() -> None:
        runtime = AioRuntime("a")
        try:
            await scenario(runtime)
        finally:
            await runtime.close()

    run(main())


def free_group() -> Endpoint:
    """A group whose port no other test run on this machine uses."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.bind(("127.0.0.1", 0))
        return Endpoint(f"239.192.{os.getpid() % 256}.7", probe.getsockname()[1])


@pytest.mark.parametrize("host", ["127.0.0.1", "::1"])
def test_a_datagram_is_gathered_arrives_whole_and_tells_an_endpoint_that_can_be_answered(host: str) -> None:
    async def scenario(runtime: AioRuntime) -> None:
        inboxes = Inbox(), Inbox()
        a, b = (runtime.net.datagrams(Endpoint(host, 0), inbox) for inbox in inboxes)
        a.send([b"he", bytearray(b"l"), memoryview(b"lo")], b.endpoint)
        assert await inboxes[1].next() == (b"hello", a.endpoint)
        b.send([b"yes"], a.endpoint)
        assert await inboxes[0].next() == (b"yes", b.endpoint)
        assert a.dropped == b.dropped == 0

    with_runtime(scenario)


def test_what_was_received_may_be_kept() -> None:
    async def scenario(runtime: AioRuntime) -> None:
        inbox = Inbox()
        a, b = runtime.net.datagrams(HERE, Inbox()), runtime.net.datagrams(HERE, inbox)
        kept = []
        for i in range(3 * CHUNK_SIZE // 60_000):
            a.send([i.to_bytes(4, "big") * 15_000], b.endpoint)
            kept.append((await inbox.arrived.get())[0])
        assert [bytes(data) for data in kept] == [i.to_bytes(4, "big") * 15_000 for i in range(len(kept))]

    with_runtime(scenario)


def test_a_multicast_reaches_every_node_on_this_machine_from_the_senders_own_endpoint() -> None:
    async def scenario(runtime: AioRuntime) -> None:
        group = free_group()
        inboxes = [Inbox() for _ in range(3)]
        nodes = [runtime.net.datagrams(HERE, inbox, group) for inbox in inboxes]
        nodes[0].send([b"to all"], group)
        for inbox in inboxes:  # also its own
            assert await inbox.next() == (b"to all", nodes[0].endpoint)
        nodes[1].send([b"to one"], nodes[0].endpoint)
        assert await inboxes[0].next() == (b"to one", nodes[1].endpoint)
        assert all(inbox.arrived.empty() for inbox in inboxes)

    with_runtime(scenario)


def test_a_socket_on_every_address_does_not_hear_a_group_that_only_others_joined() -> None:
    async def scenario(runtime: AioRuntime) -> None:
        group = free_group()
        inbox = Inbox()
        member = runtime.net.datagrams(HERE, Inbox(), group)
        other = runtime.net.datagrams(Endpoint("0.0.0.0", 0), inbox)
        member.send([b"for members"], Endpoint(group.host, other.endpoint.port))
        member.send([b"direct"], Endpoint("127.0.0.1", other.endpoint.port))
        assert await inbox.next() == (b"direct", member.endpoint)

    with_runtime(scenario)


def test_multicasts_do_not_leave_the_machine_unless_asked_to() -> None:
    async def scenario(runtime: AioRuntime) -> None:
        def ttl_of(datagrams: object) -> int:
            sock: socket.socket = datagrams._sock  # type: ignore[attr-defined]
            return sock.getsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_TTL)

        assert ttl_of(runtime.net.datagrams(HERE, Inbox(), free_group())) == 0
        assert ttl_of(runtime.net.datagrams(HERE, Inbox(), free_group(), ttl=3)) == 3

    with_runtime(scenario)


def test_what_cannot_be_sent_is_counted_and_never_raised() -> None:
    async def scenario(runtime: AioRuntime) -> None:
        inbox = Inbox()
        a, b = runtime.net.datagrams(HERE, Inbox()), runtime.net.datagrams(HERE, inbox)
        a.send([bytes(70_000)], b.endpoint)
        a.send([b"x"], Endpoint("some.name", 1234))
        a.send([b"x"], Endpoint("127.0.0.1", 70_000))
        a.send([b"x"], Endpoint("::1", 1234))
        assert a.dropped == 4
        a.send([b"fine"], b.endpoint)
        assert await inbox.next() == (b"fine", a.endpoint)

    with_runtime(scenario)


def test_datagrams_beyond_the_socket_buffers_are_lost_and_the_next_ones_arrive() -> None:
    async def scenario(runtime: AioRuntime) -> None:
        inbox = Inbox()
        a, b = runtime.net.datagrams(HERE, Inbox()), runtime.net.datagrams(HERE, inbox)
        for _ in range(2000):  # 120 MB in one turn of the loop: nobody reads meanwhile
            a.send([bytes(60_000)], b.endpoint)
        received = 0
        data = b""
        while data != b"after":  # may itself be lost while the buffer is full
            a.send([b"after"], b.endpoint)
            data, _ = await inbox.next()
            received += 1
        assert 0 < received < 2000

    with_runtime(scenario)


def test_a_handler_that_raises_is_logged_and_gets_the_next_datagram(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario(runtime: AioRuntime) -> None:
        inbox = Inbox(raise_on=b"bad")
        a, b = runtime.net.datagrams(HERE, Inbox()), runtime.net.datagrams(HERE, inbox)
        for text in (b"bad", b"good"):
            a.send([text], b.endpoint)
        assert await inbox.next() == (b"good", a.endpoint)

    with_runtime(scenario)
    assert "ValueError: not this one" in caplog.text


def test_a_closed_socket_sends_and_receives_nothing_and_frees_its_port() -> None:
    async def scenario(runtime: AioRuntime) -> None:
        inbox, again = Inbox(), Inbox()
        group = free_group()
        a, b = runtime.net.datagrams(HERE, Inbox()), runtime.net.datagrams(HERE, inbox, group)
        a.send([b"too late"], b.endpoint)
        b.close()
        b.close()
        b.send([b"ignored"], a.endpoint)
        c = runtime.net.datagrams(b.endpoint, again, group)
        a.send([b"hello"], c.endpoint)
        assert await again.next() == (b"hello", a.endpoint)
        assert inbox.arrived.empty()

    with_runtime(scenario)


@pytest.mark.parametrize(
    ("endpoint", "group", "text"),
    [
        (HERE, Endpoint("10.0.0.1", 7900), "10.0.0.1 is not a multicast address"),
        (HERE, Endpoint("somewhere", 7900), "somewhere is not a multicast address"),
        (HERE, Endpoint("ff15::1", 7900), "differ in IP version"),
        (Endpoint("192.0.2.1", 0), None, "not an address of this machine"),
    ],
)
def test_what_cannot_be_bound_is_a_user_error(endpoint: Endpoint, group: Endpoint | None, text: str) -> None:
    async def scenario(runtime: AioRuntime) -> None:
        with pytest.raises(UserError, match=text):
            runtime.net.datagrams(endpoint, Inbox(), group)

    with_runtime(scenario)


def test_a_busy_port_is_a_user_error_that_names_it() -> None:
    async def scenario(runtime: AioRuntime) -> None:
        taken = runtime.net.datagrams(HERE, Inbox()).endpoint
        with pytest.raises(UserError, match=f"port {taken.port} on 127.0.0.1 is in use: "):
            runtime.net.datagrams(taken, Inbox())

    with_runtime(scenario)
