"""A process of the demonstration: keeps its book, multicasts numbered messages, and tells its views as they come."""

from __future__ import annotations

import asyncio
import json
import sys
import time
from pathlib import Path

from coterie.demo.book import NUMBER, Book
from coterie.errors import CoterieError
from coterie.group.channel import Channel
from coterie.group.members import Address, View
from coterie.group.presets import preset
from coterie.group.protocols.cut import Cut
from coterie.group.stack import Layer
from coterie.runtime.aio import AioRuntime, Segments, open_trace, run
from coterie.workers import Command, Message

PAUSE = 0.04
"""Seconds between two bursts of messages."""
FAILURE = {"heartbeat_interval": 0.2, "heartbeat_timeout": 1.0, "verify_timeout": 0.3}
"""Whoever watches should not have to wait for long until a partition is noticed."""
MERGE = {"interval": 0.4}


class Member:
    """What the process does when it is told to."""

    def __init__(self, arguments: Message, runtime: AioRuntime) -> None:
        self._arguments = arguments
        self.book = Book(self._view)
        transport, *others = preset(
            "total-order",
            TCP={"bind_port": arguments["port"]},
            STATIC={"peers": [f"127.0.0.1:{port}" for port in arguments["peers"]]},
            FAILURE=FAILURE,
            MERGE=MERGE,
        )
        layers = [transport, Layer("CUT", {}), *others]
        self.channel = Channel(
            runtime,
            layers,
            group="demo",
            name=arguments["name"],
            incarnation=arguments["incarnation"],
            receiver=self.book,
        )
        self.book.local = self.channel.local
        self._tasks: set[asyncio.Task[None]] = set()
        self._load: asyncio.Task[None] | None = None
        self._takes_over = False
        """After a merge: from then on the state that it tells is that one."""

    async def connect(self) -> None:
        """Whoever finds nobody in time begins alone, and takes over the others' state when they merge."""
        began = time.monotonic()
        await self.channel.connect(state=self._arguments["state"])
        if self._arguments["state"] and not self._takes_over and self.channel.state_progress is not None:
            self._tell_state(began)

    def _view(self, view: View, take: Address | None) -> None:
        Command.answer({"view": [str(m) for m in view.members], "id": str(view.id), "at": time.monotonic()})
        if take is not None:
            self._takes_over = True
            task = asyncio.create_task(self._take_over(take))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _take_over(self, provider: Address) -> None:
        began = time.monotonic()
        try:
            await self.channel.get_state(provider)
        except CoterieError as error:
            Command.answer({"state": None, "why": str(error)})
        else:
            self._tell_state(began)

    def _tell_state(self, began: float) -> None:
        progress = self.channel.state_progress
        assert progress is not None
        Command.answer({
            "state": progress.bytes, "from": progress.provider.name, "seconds": time.monotonic() - began,
        })  # fmt: skip

    def load(self, rate: float, size: int) -> None:
        self._load = asyncio.create_task(self._multicast(rate, size))

    async def _multicast(self, rate: float, size: int) -> None:
        """So many messages per second, in small bursts."""
        number, began = 0, time.monotonic()
        filler = bytes(size - NUMBER.size)
        while True:
            while number < (time.monotonic() - began) * rate:
                await self.channel.send(NUMBER.pack(number) + filler)
                number += 1
            await asyncio.sleep(PAUSE)

    def rest(self) -> None:
        if self._load is not None:
            self._load.cancel()

    def tell(self) -> Message:
        book = self.book
        return {
            "address": str(self.channel.local), "held": self.channel.stack.held(), "bytes": len(book.pages),
            "sum": book.sum, "delivered": book.delivered, "wrong": book.wrong,
        }  # fmt: skip

    async def leave(self) -> float:
        began = time.monotonic()
        self.rest()
        await self.channel.close()
        return time.monotonic() - began


async def main(arguments: Message) -> None:
    command = await Command.attach()
    name, incarnation = arguments["name"], arguments["incarnation"]
    seconds = arguments["segment_seconds"]
    segments = Segments(seconds) if seconds else None
    trace = open_trace(
        Path(arguments["trace"]), arguments["run"], name, incarnation, time.monotonic, time.time, segments
    )
    runtime = AioRuntime(name, trace=trace)
    member = Member(arguments, runtime)
    cut = member.channel.stack.find(Cut)
    await member.connect()
    while (order := await command.order()) is not None:
        match order["do"]:
            case "load":
                member.load(order["rate"], order["size"])
            case "rest":
                member.rest()
            case "cut":
                cut.cut(order["from"])
            case "heal":
                cut.heal()
            case "leave":
                command.answer({"left": await member.leave()})
            case "tell":
                command.answer(member.tell())
            case "hush":  # all are at rest: what follows, one leaving after the other, is not part of the story
                trace.emit("stop", sender=member.channel.local)
                trace.close()
                command.answer({})
    await member.channel.close()
    await runtime.close()
    trace.close()


if __name__ == "__main__":
    run(main(json.loads(sys.argv[1])))
