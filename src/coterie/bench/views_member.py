"""A worker that joins, leaves, flushes and floods a group, and says when which view came.

Times are of the monotonic clock, which all processes of one host share.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from typing import Any

from coterie.bench.member import flood
from coterie.errors import CoterieError
from coterie.group.channel import Channel, Delivery, Receiver
from coterie.group.members import View
from coterie.group.presets import preset
from coterie.group.stack import Layer
from coterie.runtime.aio import AioRuntime, run
from coterie.workers import Command, Message

PATIENCE = 30.0
"""Seconds after which a view that should have come has not."""
GIVE_UP = 300.0
"""Seconds after which anything that a worker was told to do will not be done."""


class Sizes:
    """How many there were, and since when."""

    def __init__(self) -> None:
        self._history: list[tuple[float, int]] = []
        self._news: asyncio.Future[None] | None = None

    def note(self, members: int) -> None:
        self._history.append((time.monotonic(), members))
        if self._news is not None and not self._news.done():
            self._news.set_result(None)

    async def until(self, members: int, since: float) -> float:
        """When, since then, there were exactly so many."""
        while True:
            for at, count in self._history:
                if at >= since and count == members:
                    return at
            self._news = asyncio.get_running_loop().create_future()
            try:
                await asyncio.wait_for(self._news, PATIENCE)
            except TimeoutError:
                has = self._history[-1][1] if self._history else 0
                raise CoterieError(f"a group of {members} did not come about: there are {has}") from None


class Watcher(Receiver):
    """Notes views, and how long each flush kept the application from sending."""

    def __init__(self) -> None:
        self.sizes = Sizes()
        self.gates: list[float] = []
        self.delivered = 0
        self._blocked_at = 0.0
        # Of the object, not of the class: an application whose class has a block() is one with something to send
        # before a flush, and the flush waits until that is out.
        self.block = self._block  # type: ignore[method-assign]

    def receive(self, batch: list[Delivery]) -> None:
        for delivery in batch:
            self.delivered += len(delivery.messages)

    def view_accepted(self, view: View) -> None:
        self.sizes.note(len(view.members))

    def _block(self) -> None:
        self._blocked_at = time.monotonic()

    def unblock(self) -> None:
        self.gates.append(time.monotonic() - self._blocked_at)


class Member:
    """What the process does when it is told to."""

    def __init__(self, arguments: Message, runtime: AioRuntime) -> None:
        self._arguments, self._runtime = arguments, runtime
        self._task: asyncio.Task[None] | None = None
        self.watcher = Watcher()
        self._channel: Channel | None = None

    @property
    def channel(self) -> Channel:
        assert self._channel is not None, "connect comes first"
        return self._channel

    def _make_channel(self) -> Channel:
        given = self._arguments
        layers = preset(
            given["stack"],
            TCP={"bind_port": given["port"]},
            STATIC={"peers": [f"127.0.0.1:{port}" for port in given["peers"]]},
        )
        layers = [Layer(given["flush"], {}) if layer.protocol == "FLUSH2" else layer for layer in layers]
        return Channel(self._runtime, layers, group="bench", name=given["name"], receiver=self.watcher)

    async def connect(self, order: Message) -> Message:
        self._channel = channel = self._make_channel()
        began = time.monotonic()
        await channel.connect()
        return {"began": began, "at": await self.watcher.sizes.until(order["members"], began)}

    async def until(self, order: Message) -> Message:
        return {"at": await self.watcher.sizes.until(order["members"], order["since"])}

    async def leave(self, _: Message) -> Message:
        began = time.monotonic()
        await self.channel.close()
        return {"began": began, "at": time.monotonic()}

    async def flush(self, order: Message) -> Message:
        """Flush so many times; how long it took from asking until the flush held."""
        took, failed = [], 0
        for _ in range(order["count"]):
            began = time.monotonic()
            if await self.channel.start_flush():
                took.append(time.monotonic() - began)
                self.channel.stop_flush()
            else:
                failed += 1
            await asyncio.sleep(order["pause"])
        return {"took": took, "failed": failed}

    async def load(self, _: Message) -> Message:
        self._task = asyncio.create_task(flood(self.channel, bytes(self._arguments["size"]), None))
        return {}

    async def rest(self, _: Message) -> Message:
        if self._task is not None:
            self._task.cancel()
        return {"delivered": self.watcher.delivered}

    async def gates(self, _: Message) -> Message:
        gates, self.watcher.gates = self.watcher.gates, []
        return {"gates": gates}

    def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
        if self._channel is not None:
            self._channel.stack.stop()


async def serve(command: Command, worker: Any) -> None:
    """Do as told, one thing after the other, until there is nothing more; each order names a method of the worker."""
    command.answer({"ready": True})
    while (order := await command.order()) is not None:
        try:
            async with asyncio.timeout(GIVE_UP):
                answer = await getattr(worker, order["do"])(order)
        except CoterieError as error:
            answer = {"error": str(error)}
        except TimeoutError:
            answer = {"error": f"'{order['do']}' has not ended within {GIVE_UP:g} s"}
        command.answer(answer)


async def main(arguments: Message) -> None:
    command = await Command.attach()
    runtime = AioRuntime(arguments["name"])
    member = Member(arguments, runtime)
    await serve(command, member)
    member.stop()
    await runtime.close()


if __name__ == "__main__":
    run(main(json.loads(sys.argv[1])))
