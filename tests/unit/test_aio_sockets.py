"""Streams over real sockets on loopback: every byte once and in order, and exactly one `closed` however it ends."""

from __future__ import annotations

import asyncio
import os
import socket
import struct
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

import pytest

from coterie.errors import UserError
from coterie.runtime.aio import AioRuntime, run
from coterie.runtime.aio.arena import CHUNK_SIZE, Arena
from coterie.runtime.aio.streams import HIGH_MARK, LOW_MARK
from coterie.runtime.base import Buffer, CloseReason, Endpoint, Stream, StreamHandler

HERE = Endpoint("127.0.0.1", 0)


class Recorder(StreamHandler):
    """Keeps what it is told, and lets a test wait for it."""

    def __init__(self, raise_in: str = "") -> None:
        loop = asyncio.get_running_loop()
        self.raise_in = raise_in
        self.pieces: list[Buffer] = []
        self.size = 0
        self.reasons: list[CloseReason] = []
        self.drains = asyncio.Event()
        self.opened: asyncio.Future[Stream] = loop.create_future()
        self.ended: asyncio.Future[CloseReason] = loop.create_future()
        self._more = asyncio.Event()

    def connected(self, stream: Stream) -> None:
        self.opened.set_result(stream)
        self._maybe_raise("connected")

    def received(self, data: Buffer) -> None:
        assert not self.reasons
        self.pieces.append(data)
        self.size += len(data)
        self._more.set()
        self._maybe_raise("received")

    def drained(self) -> None:
        self.drains.set()
        self._maybe_raise("drained")

    def closed(self, reason: CloseReason) -> None:
        self.reasons.append(reason)
        if not self.ended.done():
            self.ended.set_result(reason)
        self._maybe_raise("closed")

    async def bytes(self, size: int) -> bytes:
        """The first `size` bytes, once they are all there."""
        while self.size < size:
            self._more.clear()
            await self._more.wait()
        return b"".join(self.pieces)[:size]

    def _maybe_raise(self, where: str) -> None:
        if self.raise_in == where:
            raise ValueError(f"raised in {where}")


class Pair:
    """A client and the server's end of its connection."""

    def __init__(self, runtime: AioRuntime, host: str = "127.0.0.1", server: str = "", client: str = "") -> None:
        self.runtime = runtime
        self.server = Recorder(server)
        self.client = Recorder(client)
        self.listener = runtime.net.listen(Endpoint(host, 0), lambda: self.server)
        runtime.net.connect(self.listener.endpoint, self.client, 5.0)

    async def streams(self) -> tuple[Stream, Stream]:
        return await self.client.opened, await self.server.opened


def with_runtime(scenario: Callable[[AioRuntime], Coroutine[Any, Any, None]], *, uvloop: bool = True) -> None:
    async def main() -> None:
        runtime = AioRuntime("a")
        try:
            await scenario(runtime)
        finally:
            await runtime.close()

    (run if uvloop else asyncio.run)(main())


@pytest.mark.parametrize("host", ["127.0.0.1", "::1"])
@pytest.mark.parametrize("uvloop", [True, False])
def test_bytes_go_both_ways_over_ipv4_and_ipv6(host: str, uvloop: bool) -> None:
    async def scenario(runtime: AioRuntime) -> None:
        pair = Pair(runtime, host)
        client, server = await pair.streams()
        assert client.peer == pair.listener.endpoint
        assert server.peer.host == host
        client.write([b"one ", bytearray(b"two "), memoryview(b"three")])
        server.write([b"four"])
        assert await pair.server.bytes(13) == b"one two three"
        assert await pair.client.bytes(4) == b"four"

    with_runtime(scenario, uvloop=uvloop)


def test_many_and_large_and_empty_buffers_arrive_whole_and_in_order() -> None:
    async def scenario(runtime: AioRuntime) -> None:
        pair = Pair(runtime)
        client, _ = await pair.streams()
        small = [struct.pack("<I", i) for i in range(5000)]  # more than one writev takes
        large = os.urandom(3 * CHUNK_SIZE + 17)
        client.write([*small, b"", large])
        client.write([])
        client.write([b"end"])
        expected = b"".join(small) + large + b"end"
        assert await pair.server.bytes(len(expected)) == expected

    with_runtime(scenario)


def test_a_handler_may_keep_what_it_received_for_ever() -> None:
    async def scenario(runtime: AioRuntime) -> None:
        pair = Pair(runtime)
        client, _ = await pair.streams()
        rounds = [os.urandom(CHUNK_SIZE) for _ in range(8)]
        for i, data in enumerate(rounds):
            client.write([data])
            await pair.server.bytes((i + 1) * CHUNK_SIZE)
            if i == 0:
                kept = pair.server.pieces[0]
                copy = bytes(kept)
            else:  # let go of everything else, so that its memory may be used again
                pair.server.pieces[1:] = [b"" for _ in pair.server.pieces[1:]]
        assert bytes(kept) == copy

    with_runtime(scenario)


def test_the_arena_uses_a_chunk_again_only_when_no_slice_of_it_is_alive() -> None:
    def owner(view: memoryview) -> int:
        return id(view.obj)

    arena = Arena()
    arena.room()[:5] = b"hello"
    kept = arena.take(CHUNK_SIZE)[:5]
    first = owner(kept)
    others = set()
    for _ in range(100):
        others.add(owner(arena.room()))
        arena.room()[:] = b"x" * len(arena.room())
        arena.take(CHUNK_SIZE)
    assert first not in others
    assert len(others) <= 2
    assert bytes(kept) == b"hello"
    del kept
    again = set()
    for _ in range(4):
        again.add(owner(arena.room()))
        arena.take(CHUNK_SIZE)
    assert first in again


def test_small_reads_share_a_chunk_without_overlapping() -> None:
    arena = Arena()
    slices = []
    for i in range(100):
        arena.room()[:4] = struct.pack("<I", i)
        slices.append(arena.take(4))
    assert len({id(part.obj) for part in slices}) == 1
    assert [struct.unpack("<I", part)[0] for part in slices] == list(range(100))


def test_buffered_grows_when_the_peer_does_not_read_and_drained_tells_when_it_has() -> None:
    async def scenario(runtime: AioRuntime) -> None:
        pair = Pair(runtime)
        client, server = await pair.streams()
        server.pause_reading()
        written = 0
        while client.buffered <= HIGH_MARK:
            client.write([bytes(1 << 20)])
            written += 1 << 20
        assert not pair.client.drains.is_set()
        server.resume_reading()
        await pair.client.drains.wait()
        assert client.buffered <= LOW_MARK
        await pair.server.bytes(written)
        assert client.buffered == 0

    with_runtime(scenario)


def test_nothing_is_received_while_reading_is_paused() -> None:
    async def scenario(runtime: AioRuntime) -> None:
        pair, other = Pair(runtime), Pair(runtime)
        (client, server), (marker, _) = await pair.streams(), await other.streams()
        server.pause_reading()
        server.pause_reading()
        client.write([b"later"])
        marker.write([b"now"])
        await other.server.bytes(3)
        assert pair.server.size == 0
        server.resume_reading()
        server.resume_reading()
        assert await pair.server.bytes(5) == b"later"

    with_runtime(scenario)


def test_closing_sends_what_is_buffered_first_even_if_the_peer_is_sending_too() -> None:
    async def scenario(runtime: AioRuntime) -> None:
        pair = Pair(runtime)
        client, server = await pair.streams()
        client.pause_reading()
        server.write([bytes(4 << 20)])  # unread when the client closes: a plain close would answer it with a reset
        data = os.urandom(8 << 20)
        client.write([data])
        client.close()
        client.write([b"ignored"])
        assert await pair.server.ended is CloseReason.EOF
        assert await pair.client.ended is CloseReason.LOCAL
        assert b"".join(pair.server.pieces) == data
        assert pair.client.reasons == [CloseReason.LOCAL]
        assert pair.server.reasons == [CloseReason.EOF]
        assert client.buffered == 0

    with_runtime(scenario)


def test_aborting_drops_what_is_buffered_and_resets_the_peer() -> None:
    async def scenario(runtime: AioRuntime) -> None:
        pair = Pair(runtime)
        client, server = await pair.streams()
        server.pause_reading()
        server.write([b"unread by the client"])
        while not client.buffered:
            client.write([bytes(1 << 20)])
        client.abort()
        client.abort()
        client.close()
        assert await pair.client.ended is CloseReason.LOCAL
        server.resume_reading()
        assert await pair.server.ended in (CloseReason.RESET, CloseReason.EOF)
        assert len(pair.client.reasons) == len(pair.server.reasons) == 1

    with_runtime(scenario)


def test_a_reset_by_the_peer_is_told_as_such() -> None:
    async def scenario(runtime: AioRuntime) -> None:
        server = Recorder()
        listener = runtime.net.listen(HERE, lambda: server)
        raw = socket.create_connection(listener.endpoint)
        await server.opened
        raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        raw.close()
        assert await server.ended is CloseReason.RESET

    with_runtime(scenario)


def test_the_end_of_the_peer_is_told_at_once_even_while_bytes_for_it_wait_here() -> None:
    async def scenario(runtime: AioRuntime) -> None:
        server = Recorder()
        listener = runtime.net.listen(HERE, lambda: server)
        raw = socket.create_connection(listener.endpoint)
        stream = await server.opened
        written = 0
        while stream.buffered < HIGH_MARK:
            stream.write([bytes(1 << 20)])
            written += 1 << 20
        raw.shutdown(socket.SHUT_WR)
        assert await server.ended is CloseReason.EOF
        received = 0
        while part := await asyncio.to_thread(raw.recv, 1 << 20):
            received += len(part)
        assert received == written
        raw.close()

    with_runtime(scenario)


def test_closing_does_not_wait_for_ever_for_a_peer_that_does_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("coterie.runtime.aio.streams.LINGER", 0.02)

    async def scenario(runtime: AioRuntime) -> None:
        server = Recorder()
        listener = runtime.net.listen(HERE, lambda: server)
        raw = socket.create_connection(listener.endpoint)
        stream = await server.opened
        while stream.buffered < HIGH_MARK:
            stream.write([bytes(1 << 20)])
        stream.close()
        assert await server.ended is CloseReason.LOCAL
        raw.close()

    with_runtime(scenario)


def test_a_refused_connection_ends_with_refused() -> None:
    async def scenario(runtime: AioRuntime) -> None:
        listener = runtime.net.listen(HERE, Recorder)
        listener.close()
        handler = Recorder()
        runtime.net.connect(listener.endpoint, handler, 5.0)
        assert not handler.reasons
        assert await handler.ended is CloseReason.REFUSED
        assert not handler.opened.done()

    with_runtime(scenario)


def test_a_connection_that_nobody_answers_ends_with_timeout() -> None:
    async def scenario(runtime: AioRuntime) -> None:
        # A listener whose queue is full does not answer; whoever fills it stays connected.
        full = socket.socket()
        full.bind(HERE)
        full.listen(0)
        filler = socket.create_connection(full.getsockname())
        handlers = [Recorder() for _ in range(4)]
        for handler in handlers:
            runtime.net.connect(Endpoint(*full.getsockname()), handler, 0.05)
        assert await handlers[-1].ended is CloseReason.TIMEOUT
        filler.close()
        full.close()

    with_runtime(scenario)


def test_a_name_that_does_not_exist_ends_with_error() -> None:
    async def scenario(runtime: AioRuntime) -> None:
        handler = Recorder()
        runtime.net.connect(Endpoint("no such host", 1), handler, 5.0)
        assert await handler.ended is CloseReason.ERROR

    with_runtime(scenario)


@pytest.mark.parametrize("where", ["connected", "received", "drained", "closed"])
def test_a_handler_that_raises_is_logged_and_closed_once_and_hurts_nobody_else(
    where: str, caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario(runtime: AioRuntime) -> None:
        good, bad = Pair(runtime), Pair(runtime, server=where)
        (fine, _), (client, server) = await good.streams(), await bad.streams()
        client.write([b"x"])
        if where == "drained":
            client.pause_reading()
            while server.buffered <= HIGH_MARK:
                server.write([bytes(1 << 20)])
            client.resume_reading()
        elif where == "closed":
            server.abort()
        reason = await bad.server.ended
        assert reason is (CloseReason.LOCAL if where == "closed" else CloseReason.ERROR)
        await bad.client.ended
        fine.write([b"still here"])
        assert await good.server.bytes(10) == b"still here"
        assert bad.server.reasons == [reason]
        assert good.server.reasons == []

    with_runtime(scenario)
    assert f"ValueError: raised in {where}" in caplog.text
    assert len(caplog.records) == 1


def test_an_accept_that_raises_is_logged_and_the_next_is_asked_again(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario(runtime: AioRuntime) -> None:
        server = Recorder()
        answers: list[Recorder | None] = [None, server]

        def accept() -> StreamHandler:
            answer = answers.pop(0)
            if answer is None:
                raise ValueError("not this one")
            return answer

        listener = runtime.net.listen(HERE, accept)
        first, second = Recorder(), Recorder()
        runtime.net.connect(listener.endpoint, first, 5.0)
        await first.ended
        runtime.net.connect(listener.endpoint, second, 5.0)
        await server.opened

    with_runtime(scenario)
    assert "ValueError: not this one" in caplog.text


def test_a_busy_port_is_a_user_error_that_names_it() -> None:
    async def scenario(runtime: AioRuntime) -> None:
        endpoint = runtime.net.listen(HERE, Recorder).endpoint
        with pytest.raises(UserError, match=f"port {endpoint.port} on 127.0.0.1 is in use: "):
            runtime.net.listen(endpoint, Recorder)

    with_runtime(scenario)


@pytest.mark.parametrize(
    ("endpoint", "text"),
    [
        (Endpoint("192.0.2.1", 0), "192.0.2.1 is not an address of this machine"),
        (Endpoint("no such host", 0), "cannot bind no such host:0"),
        (Endpoint("127.0.0.1", 70000), "cannot bind 127.0.0.1:70000"),
    ],
)
def test_an_endpoint_that_cannot_be_bound_is_a_user_error(endpoint: Endpoint, text: str) -> None:
    async def scenario(runtime: AioRuntime) -> None:
        with pytest.raises(UserError, match=text):
            runtime.net.listen(endpoint, Recorder)

    with_runtime(scenario)


def test_a_closed_listener_frees_its_port_at_once_and_keeps_its_streams() -> None:
    async def scenario(runtime: AioRuntime) -> None:
        pair = Pair(runtime)
        client, _ = await pair.streams()
        pair.listener.close()
        pair.listener.close()
        again = runtime.net.listen(pair.listener.endpoint, Recorder)
        assert again.endpoint == pair.listener.endpoint
        client.write([b"still here"])
        await pair.server.bytes(10)

    with_runtime(scenario)


def test_closing_the_node_ends_every_stream_dial_and_listener_once() -> None:
    async def scenario(runtime: AioRuntime) -> None:
        pair = Pair(runtime)
        await pair.streams()
        dialling = Recorder()
        runtime.net.connect(pair.listener.endpoint, dialling, 5.0)
        await runtime.close()
        assert pair.client.reasons == [CloseReason.LOCAL]
        assert pair.server.reasons == [CloseReason.LOCAL]
        assert len(dialling.reasons) == 1
        with pytest.raises(UserError, match="stopping"):
            runtime.net.listen(HERE, Recorder)
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(pair.listener.endpoint)

    with_runtime(scenario)


def test_small_writes_are_sent_at_once() -> None:
    async def scenario(runtime: AioRuntime) -> None:
        pair = Pair(runtime)
        for stream in await pair.streams():
            sock = stream._transport.get_extra_info("socket")  # type: ignore[attr-defined]
            assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)

    with_runtime(scenario)


def test_names_resolve_to_sorted_addresses_and_unknown_ones_to_none() -> None:
    async def scenario(runtime: AioRuntime) -> None:
        async def resolved(host: str) -> Sequence[str]:
            found = asyncio.get_running_loop().create_future()
            runtime.net.resolve(host, found.set_result)
            return list(await found)

        assert await resolved("127.0.0.1") == ["127.0.0.1"]
        local = await resolved("localhost")
        assert "127.0.0.1" in local or "::1" in local
        assert local == sorted(local)
        assert await resolved("no such host") == []
        assert await resolved("a" * 70 + ".example") == []

    with_runtime(scenario)
