"""A process of the demonstration: multicasts numbered messages, checks those that arrive, tells its views."""

from __future__ import annotations

import asyncio
import json
import struct
import sys
import time
from pathlib import Path

from coterie.group.channel import Channel, Delivery, Receiver
from coterie.group.members import View
from coterie.group.presets import preset
from coterie.runtime.aio import AioRuntime, open_trace, run
from coterie.workers import Command, Message

NUMBER = struct.Struct("<Q")


class Ledger(Receiver):
    """What came from whom: the numbers must be without a hole from the first on."""

    def __init__(self) -> None:
        self.streams: dict[str, list[int]] = {}
        """Per sender: first number, last number, how many numbers were wrong."""

    def receive(self, batch: list[Delivery]) -> None:
        for delivery in batch:
            stream = self.streams.setdefault(str(delivery.sender), [])
            for message in delivery.messages:
                (number,) = NUMBER.unpack_from(message)
                if not stream:
                    stream[:] = (number, number, 0)
                else:
                    stream[2] += number != stream[1] + 1
                    stream[1] = number

    def view_accepted(self, view: View) -> None:
        Command.answer({"view": [str(m) for m in view.members], "at": time.monotonic()})


async def load(channel: Channel, rate: float, size: int) -> None:
    """Multicast so many messages per second, in small bursts."""
    number, began = 0, time.monotonic()
    filler = bytes(size - NUMBER.size)
    while True:
        while number < (time.monotonic() - began) * rate:
            await channel.send(NUMBER.pack(number) + filler)
            number += 1
        await asyncio.sleep(0.005)


async def main(arguments: Message) -> None:
    command = await Command.attach()
    incarnation = time.time_ns() // 1_000_000
    trace = open_trace(
        Path(arguments["trace"]), arguments["run"], arguments["name"], incarnation, time.monotonic, time.time
    )
    runtime = AioRuntime(arguments["name"], trace=trace)
    ledger = Ledger()
    layers = preset(
        "reliable",
        TCP={"bind_port": arguments["port"]},
        STATIC={"peers": [f"127.0.0.1:{port}" for port in arguments["peers"]]},
    )
    channel = Channel(runtime, layers, group="demo", name=arguments["name"], incarnation=incarnation, receiver=ledger)
    await channel.connect()
    task: asyncio.Task[None] | None = None
    while (order := await command.order()) is not None:
        match order["do"]:
            case "load":
                task = asyncio.create_task(load(channel, order["rate"], order["size"]))
            case "rest":
                if task is not None:
                    task.cancel()
            case "streams":
                command.answer({"streams": ledger.streams, "held": channel.stack.held()})
    await channel.close()
    await runtime.close()
    trace.close()


if __name__ == "__main__":
    run(main(json.loads(sys.argv[1])))
