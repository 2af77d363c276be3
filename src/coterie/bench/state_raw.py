"""The baseline of `bench state`: the same bytes, checksum and chunks over one stream, with no protocol at all."""

from __future__ import annotations

import asyncio
import json
import sys
import time
import zlib

from coterie.bench.state_member import blocks
from coterie.bench.views_member import serve
from coterie.runtime.aio import AioRuntime, run
from coterie.runtime.base import Buffer, CloseReason, Endpoint, Stream, StreamHandler
from coterie.workers import Command, Message

CHUNK = 256 << 10
HIGH_WATER = 4 << 20
"""Bytes: what STATE lets a provider be ahead, too."""


class Giver(StreamHandler):
    """Writes the state to whoever connects."""

    def __init__(self, size: int) -> None:
        self._pieces = (bytes(block[at : at + CHUNK]) for block in blocks(size) for at in range(0, len(block), CHUNK))

    def connected(self, stream: Stream) -> None:
        self._stream = stream
        self.drained()

    def drained(self) -> None:
        while self._stream.buffered < HIGH_WATER:
            piece = next(self._pieces, None)
            if piece is None:
                self._stream.close()
                return
            self._stream.write([piece])

    def received(self, data: Buffer) -> None:
        pass

    def closed(self, reason: CloseReason) -> None:
        pass


class Taker(StreamHandler):
    """Adds it up."""

    def __init__(self) -> None:
        self.sum = self.count = 0
        self.over: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def connected(self, stream: Stream) -> None:
        pass

    def received(self, data: Buffer) -> None:
        self.sum = zlib.crc32(data, self.sum)
        self.count += len(data)

    def closed(self, reason: CloseReason) -> None:
        self.over.set_result(None)


class Member:
    def __init__(self, arguments: Message, runtime: AioRuntime) -> None:
        self._runtime = runtime
        runtime.net.listen(Endpoint("127.0.0.1", arguments["port"]), lambda: Giver(arguments["state_size"]))

    async def fetch(self, order: Message) -> Message:
        taker, began = Taker(), time.monotonic()
        self._runtime.net.connect(Endpoint("127.0.0.1", order["port"]), taker, timeout=5)
        await taker.over
        return {"seconds": time.monotonic() - began, "sum": taker.sum, "count": taker.count}


async def main(arguments: Message) -> None:
    command = await Command.attach()
    runtime = AioRuntime(arguments["name"])
    await serve(command, Member(arguments, runtime))
    await runtime.close()


if __name__ == "__main__":
    run(main(json.loads(sys.argv[1])))
