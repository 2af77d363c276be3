"""The baseline of `bench views`: sockets, and no protocol.

A "view" is who is connected. Joining is dialling everybody and hearing one answer from each; a flush is a message to
everybody and its answer; leaving is that and closing; a death is noticed when the connection closes. Nothing that
does the same over these sockets can be faster.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time

from coterie.bench.raw import Mesh, Peer
from coterie.bench.views_member import Sizes, serve
from coterie.group import bundle
from coterie.runtime.aio import AioRuntime, run
from coterie.runtime.base import CloseReason, Endpoint, Stream
from coterie.workers import Command, Message

BUNDLE = 60_000
QUESTION, ANSWER, DATA = b"?", b"!", b"."


class Link(Peer):
    """Tells when it opened and closed."""

    def __init__(self, net: Net) -> None:
        super().__init__(net)
        self._net = net

    def connected(self, stream: Stream) -> None:
        super().connected(stream)
        self._net.changed()

    def closed(self, reason: CloseReason) -> None:
        super().closed(reason)
        if self in self._net.peers:
            self._net.peers.remove(self)
            self._net.changed()


class Net(Mesh):
    """Who is connected, and questions to all of them."""

    def __init__(self) -> None:
        super().__init__(echo=False)
        self.sizes = Sizes()
        self._missing = 0
        self._answered: asyncio.Future[None] | None = None

    def changed(self) -> None:
        self.sizes.note(len(self.peers) + 1)

    def arrived(self, peer: Peer, body: memoryview) -> None:
        messages = bundle.split(body)
        kind = bytes(messages[0][:1])
        if kind == QUESTION:
            peer.write(bundle.join([ANSWER]))
        elif kind == ANSWER:
            self._missing -= 1
            if not self._missing and self._answered is not None:
                self._answered.set_result(None)
        else:
            self.counter.take(messages)

    async def ask_all(self) -> None:
        """A message to everybody, and everybody's answer."""
        self._missing = len(self.peers)
        if self._missing:
            self._answered = asyncio.get_running_loop().create_future()
            for peer in self.peers:
                peer.write(bundle.join([QUESTION]))
            await self._answered


class Member:
    """Does with sockets what `views_member` does with a group."""

    def __init__(self, arguments: Message, runtime: AioRuntime) -> None:
        self._arguments, self._runtime = arguments, runtime
        self._net = Net()
        self._task: asyncio.Task[None] | None = None
        runtime.net.listen(Endpoint("127.0.0.1", arguments["port"]), lambda: Link(self._net))

    async def connect(self, order: Message) -> Message:
        began = time.monotonic()
        for port in order["ports"]:
            self._runtime.net.connect(Endpoint("127.0.0.1", port), Link(self._net), timeout=5)
        if order["ports"]:
            await self._net.sizes.until(order["members"], began)
        await self._net.ask_all()
        return {"began": began, "at": time.monotonic()}

    async def until(self, order: Message) -> Message:
        return {"at": await self._net.sizes.until(order["members"], order["since"])}

    async def leave(self, _: Message) -> Message:
        began = time.monotonic()
        await self._net.ask_all()
        for peer in list(self._net.peers):
            peer.stream.close()
        return {"began": began, "at": time.monotonic()}

    async def flush(self, order: Message) -> Message:
        took = []
        for _ in range(order["count"]):
            began = time.monotonic()
            await self._net.ask_all()
            took.append(time.monotonic() - began)
            await asyncio.sleep(order["pause"])
        return {"took": took, "failed": 0}

    async def load(self, _: Message) -> Message:
        payload = DATA + bytes(self._arguments["size"] - len(DATA))
        self._task = asyncio.create_task(self._net.flood(payload, BUNDLE, to_self=True))
        return {}

    async def rest(self, _: Message) -> Message:
        if self._task is not None:
            self._task.cancel()
        return {"delivered": self._net.counter.messages}

    async def gates(self, _: Message) -> Message:
        return {"gates": []}


async def main(arguments: Message) -> None:
    command = await Command.attach()
    runtime = AioRuntime(arguments["name"])
    await serve(command, Member(arguments, runtime))
    await runtime.close()


if __name__ == "__main__":
    run(main(json.loads(sys.argv[1])))
