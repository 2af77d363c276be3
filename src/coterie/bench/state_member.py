"""A worker that gives its state, is given one, or multicasts meanwhile.

The state is made a block at a time and is in nobody's memory: whoever is given it adds up a checksum and forgets it.
A multicast begins with the time at which it was sent. A member delivers its own when it has left the member, so the
difference is how long a flush, or credit, held it up.
"""

from __future__ import annotations

import asyncio
import json
import struct
import sys
import time
import zlib
from collections.abc import AsyncIterator, Iterator

from coterie.bench.views_member import Sizes, serve
from coterie.group.channel import Channel, Delivery, Receiver
from coterie.group.members import Address, View
from coterie.group.presets import preset
from coterie.runtime.aio import AioRuntime, run
from coterie.runtime.base import Buffer
from coterie.workers import Command, Message

BLOCK = 1 << 20
NUMBER = struct.Struct("<Q")
SENT_AT = struct.Struct("<d")
PAUSE = 0.002
"""Seconds between two bursts of multicasts."""


def blocks(size: int) -> Iterator[Buffer]:
    """A state of that size. Each block is told from the others by its number; all use the same memory."""
    block = bytearray(bytes(range(256)) * (BLOCK // 256))
    for number, at in enumerate(range(0, size, BLOCK)):
        NUMBER.pack_into(block, 0, number)
        yield memoryview(block)[: min(BLOCK, size - at)]


def checksum(size: int) -> int:
    """Of a state of that size."""
    total = 0
    for block in blocks(size):
        total = zlib.crc32(block, total)
    return total


class Application(Receiver):
    def __init__(self, state_size: int) -> None:
        self._state_size = state_size
        self.local: Address | None = None
        self.sizes = Sizes()
        self.held_up: list[float] = []
        self.given = 0
        """How often its state was asked for."""
        self.sum = 0
        self.count = 0

    def receive(self, batch: list[Delivery]) -> None:
        now = time.monotonic()
        for delivery in batch:
            if delivery.sender == self.local:
                self.held_up += [now - SENT_AT.unpack_from(message)[0] for message in delivery.messages]

    def view_accepted(self, view: View) -> None:
        self.sizes.note(len(view.members))

    def get_state(self) -> Iterator[Buffer]:
        self.given += 1
        return blocks(self._state_size)

    async def set_state(self, chunks: AsyncIterator[Buffer]) -> None:
        self.sum = self.count = 0
        async for chunk in chunks:
            self.sum = zlib.crc32(chunk, self.sum)
            self.count += len(chunk)


class Member:
    """What the process does when it is told to."""

    def __init__(self, arguments: Message, runtime: AioRuntime) -> None:
        self._arguments = arguments
        self.app = Application(arguments["state_size"])
        layers = preset(
            "virtual-synchrony",
            TCP={"bind_port": arguments["port"]},
            STATIC={"peers": [f"127.0.0.1:{port}" for port in arguments["peers"]]},
        )
        self.channel = Channel(runtime, layers, group="bench", name=arguments["name"], receiver=self.app)
        self.app.local = self.channel.local
        self._task: asyncio.Task[None] | None = None

    async def connect(self, order: Message) -> Message:
        began = time.monotonic()
        await self.channel.connect(state=order["state"])
        took = time.monotonic() - began
        await self.app.sizes.until(order["members"], began)
        return {"seconds": took, "sum": self.app.sum, "count": self.app.count}

    async def load(self, order: Message) -> Message:
        self._task = asyncio.create_task(self._multicast(order["rate"]))
        return {}

    async def _multicast(self, rate: float) -> None:
        filler = bytes(self._arguments["size"] - SENT_AT.size)
        number, began = 0, time.monotonic()
        while True:
            while number < (now := time.monotonic() - began) * rate:
                await self.channel.send(SENT_AT.pack(began + now) + filler)
                number += 1
            await asyncio.sleep(PAUSE)

    async def held_up(self, _: Message) -> Message:
        """How long each of its own multicasts was, since the last look."""
        held_up, self.app.held_up = self.app.held_up, []
        return {"seconds": held_up, "given": self.app.given}

    def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
        self.channel.stack.stop()


async def main(arguments: Message) -> None:
    command = await Command.attach()
    runtime = AioRuntime(arguments["name"])
    member = Member(arguments, runtime)
    await serve(command, member)
    member.stop()
    await runtime.close()


if __name__ == "__main__":
    run(main(json.loads(sys.argv[1])))
