"""The baseline: the same messages, bundles and application over the runtime's sockets, with no protocol at all.

Messages are gathered into bundles of the same size, one join and one write per bundle and peer; on arrival a bundle
is split into memoryviews and each message touched once. The only flow control is the sockets' own. A member also
hands its own multicasts to itself, as a group does.
"""

from __future__ import annotations

import asyncio
import json
import struct
import sys
import time

from coterie.bench.load import Counter, measure
from coterie.group import bundle
from coterie.runtime.aio import AioRuntime, run
from coterie.runtime.base import Buffer, CloseReason, Endpoint, Stream, StreamHandler
from coterie.workers import Command, Message

FRAME = struct.Struct("<I")
HIGH_WATER = 1 << 20


class Peer(StreamHandler):
    """One connection of the mesh."""

    def __init__(self, mesh: Mesh) -> None:
        self._mesh = mesh
        self._parts: list[Buffer] = []
        """The beginning of a frame that has not arrived whole."""
        self._have, self._need = 0, FRAME.size
        self.writable = asyncio.Event()
        self.writable.set()

    def connected(self, stream: Stream) -> None:
        self.stream = stream
        self._mesh.peers.append(self)

    def closed(self, reason: CloseReason) -> None:
        self.writable.set()

    def write(self, body: Buffer) -> None:
        self.stream.write([FRAME.pack(len(body)), body])
        if self.stream.buffered > HIGH_WATER:
            self.writable.clear()

    def drained(self) -> None:
        self.writable.set()

    def received(self, data: Buffer) -> None:
        chunk, at = memoryview(data), 0
        if self._parts:
            missing = self._need - self._have
            self._parts.append(chunk[:missing])
            if len(chunk) < missing:
                self._have += len(chunk)
                return
            whole = b"".join(self._parts)
            self._parts.clear()
            if len(whole) > FRAME.size:
                self._mesh.arrived(self, memoryview(whole)[FRAME.size :])
                at = missing
            else:  # even the length was cut in two
                chunk = memoryview(whole + bytes(chunk[missing:]))
        end = len(chunk)
        while end - at >= FRAME.size:
            need = FRAME.size + FRAME.unpack_from(chunk, at)[0]
            if end - at < need:
                self._need = need
                break
            self._mesh.arrived(self, chunk[at + FRAME.size : at + need])
            at += need
        else:
            self._need = FRAME.size
        if at < end:
            self._parts.append(chunk[at:])
            self._have = end - at


class Mesh:
    def __init__(self, echo: bool) -> None:
        self.peers: list[Peer] = []
        self.counter = Counter()
        self.echo = echo
        self.pong: asyncio.Future[None] | None = None

    def arrived(self, peer: Peer, body: memoryview) -> None:
        messages = bundle.split(body)
        if self.pong is not None:
            if not self.pong.done():
                self.pong.set_result(None)
        elif self.echo:
            reply = bundle.join(messages)
            peer.write(reply)
        else:
            self.counter.take(messages)

    async def flood(self, payload: bytes, bundle_size: int, to_self: bool) -> None:
        loop = asyncio.get_running_loop()
        while True:
            messages: list[bytes] = []
            size = 0
            while size + len(payload) + bundle.OFFSET_SIZE <= bundle_size:
                messages.append(payload)
                size += len(payload) + bundle.OFFSET_SIZE
            body = bundle.join(messages)
            for peer in self.peers:
                peer.write(body)
            if to_self:
                loop.call_soon(self.counter.take, bundle.split(body))
            blocked = [peer for peer in self.peers if not peer.writable.is_set()]
            if blocked:
                for peer in blocked:
                    await peer.writable.wait()
            else:
                await asyncio.sleep(0)

    async def ping(self, payload: bytes, seconds: float) -> Message:
        times = []
        end = time.perf_counter() + seconds
        body = bundle.join([payload])
        while (began := time.perf_counter()) < end:
            self.pong = asyncio.get_running_loop().create_future()
            self.peers[0].write(body)
            await self.pong
            times.append(time.perf_counter() - began)
        times.sort()
        return {"p50_us": times[len(times) // 2] * 1e6, "p99_us": times[len(times) * 99 // 100] * 1e6}


async def main(arguments: Message) -> None:
    command = await Command.attach()
    runtime = AioRuntime(arguments["name"])
    mesh = Mesh(echo=arguments["role"] == "ping" and not arguments["sends"])
    runtime.net.listen(Endpoint("127.0.0.1", arguments["port"]), lambda: Peer(mesh))
    command.answer({"ready": True})
    await command.order()  # everybody listens
    for port in arguments["peers"]:
        if port < arguments["port"]:  # each pair has one connection
            runtime.net.connect(Endpoint("127.0.0.1", port), Peer(mesh), timeout=5)
    while len(mesh.peers) < len(arguments["peers"]):
        await asyncio.sleep(0.01)
    command.answer({"connected": True})
    payload = b"?" + bytes(arguments["size"] - 1)
    task: asyncio.Task[None] | None = None
    while (order := await command.order()) is not None:
        if arguments["role"] == "ping":
            command.answer(await mesh.ping(payload, order["seconds"]) if arguments["sends"] else {})
            continue
        if arguments["sends"]:
            to_self = arguments["role"] == "multicast"
            task = asyncio.create_task(mesh.flood(payload, arguments["bundle"], to_self))
        command.answer(await measure(mesh.counter, order["warmup"], order["seconds"]))
    if task is not None:
        task.cancel()
    await runtime.close()


if __name__ == "__main__":
    run(main(json.loads(sys.argv[1])))
