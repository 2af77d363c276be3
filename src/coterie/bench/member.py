"""A worker that is a member of a group: multicasts, unicasts to a peer, or answers pings."""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections.abc import Awaitable

from coterie.bench.load import Counter, measure
from coterie.group.channel import BufferFull, Channel, Delivery, Receiver
from coterie.group.members import Address
from coterie.group.presets import preset
from coterie.runtime.aio import AioRuntime, run
from coterie.workers import Command, Message


class Counting(Receiver):
    """Takes everything at once, or at a rate."""

    def __init__(self, rate: float = 0) -> None:
        self.counter = Counter()
        self._rate = rate

    def receive(self, batch: list[Delivery]) -> Awaitable[None] | None:
        for delivery in batch:
            self.counter.take(delivery.messages)
        if not self._rate:
            return None
        return asyncio.sleep(sum(len(delivery.messages) for delivery in batch) / self._rate)


class Echo(Receiver):
    """Answers each ping, and lets the one who pings know of the answer."""

    def __init__(self) -> None:
        self.channel: Channel | None = None
        self.pong: asyncio.Future[None] | None = None

    def receive(self, batch: list[Delivery]) -> None:
        assert self.channel is not None
        for delivery in batch:
            for message in delivery.messages:
                if message[0] == ord("?"):
                    self.channel.send_nowait(b"!" + message[1:], delivery.sender)
                elif self.pong is not None and not self.pong.done():
                    self.pong.set_result(None)


class Own(Receiver):
    """Waits for its own multicast."""

    def __init__(self) -> None:
        self.channel: Channel | None = None
        self.pong: asyncio.Future[None] | None = None

    def receive(self, batch: list[Delivery]) -> None:
        assert self.channel is not None
        own = self.channel.local
        if self.pong is not None and not self.pong.done() and any(delivery.sender == own for delivery in batch):
            self.pong.set_result(None)


async def flood(channel: Channel, payload: bytes, dest: Address | None) -> None:
    """Send for ever, as fast as credit allows."""
    send = channel.send_nowait
    while True:
        try:
            while True:
                send(payload, dest)
        except BufferFull:
            await channel.writable(dest)


async def ping(channel: Channel, receiver: Echo | Own, dest: Address | None, payload: bytes, seconds: float) -> Message:
    """One message at a time, until it is answered, or is delivered to its own sender; all the times."""
    loop = asyncio.get_running_loop()
    times = []
    end = time.perf_counter() + seconds
    while (began := time.perf_counter()) < end:
        receiver.pong = loop.create_future()
        channel.send_nowait(payload, dest)
        await receiver.pong
        times.append(time.perf_counter() - began)
    times.sort()
    return {
        "round_trips": len(times),
        "p50_us": times[len(times) // 2] * 1e6,
        "p99_us": times[len(times) * 99 // 100] * 1e6,
    }


async def main(arguments: Message) -> None:
    command = await Command.attach()
    runtime = AioRuntime(arguments["name"])
    receiver: Counting | Echo | Own = (
        Echo() if arguments["role"] == "ping" else Own() if arguments["role"] == "own" else
        Counting(arguments.get("rate", 0))
    )  # fmt: skip
    layers = preset(
        arguments["stack"],
        TCP={"bind_port": arguments["port"]},
        STATIC={"peers": [f"127.0.0.1:{port}" for port in arguments["peers"]]},
    )
    channel = Channel(
        runtime, layers, group="bench", name=arguments["name"], receiver=receiver, bundle_size=arguments["bundle"]
    )
    if isinstance(receiver, Echo | Own):
        receiver.channel = channel
    command.answer({"ready": True})
    await command.order()
    await channel.connect(members=len(arguments["peers"]) + 1)
    command.answer({"connected": True})
    payload = b"?" + bytes(arguments["size"] - 1)
    peers = [m for m in channel.view.members if m != channel.local]
    task: asyncio.Task[None] | None = None
    while (order := await command.order()) is not None:
        if isinstance(receiver, Own):  # the youngest: it is not the one who gives out the order
            sends = channel.view.members[-1] == channel.local
            command.answer(await ping(channel, receiver, None, payload, order["seconds"]) if sends else {})
            continue
        if isinstance(receiver, Echo):
            sends = channel.view.members[0] == channel.local
            command.answer(await ping(channel, receiver, peers[0], payload, order["seconds"]) if sends else {})
            continue
        if arguments["sends"]:
            dest = peers[0] if arguments["role"] == "unicast" else None
            task = asyncio.create_task(flood(channel, payload, dest))
        command.answer(
            await measure(
                receiver.counter,
                order["warmup"],
                order["seconds"],
                lambda: {"stats": channel.stats(), "held": channel.stack.held()},
            )
        )
    if task is not None:
        task.cancel()
    channel.stack.stop()
    await runtime.close()


if __name__ == "__main__":
    run(main(json.loads(sys.argv[1])))
