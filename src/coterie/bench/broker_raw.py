"""The baseline of `bench broker`: what a broker must do at the least, and no broker.

A process that takes the same bytes off the publishers' sockets, appends persistent ones to a file and syncs that, one
sync for all that came meanwhile, off the loop; then it confirms them. What arrived is passed to the consumers' sockets
at once. Nothing is parsed but the sizes; all messages of a run have one size. It speaks just enough AMQP for the
clients of the benchmark.
"""

from __future__ import annotations

import asyncio
import json
import os
import struct
import sys
from pathlib import Path
from typing import cast

from coterie.amqp.wire.methods import METHODS, decode
from coterie.amqp.wire.tables import Value
from coterie.runtime.aio import run
from coterie.workers import Command

_FRAME = struct.Struct(">BHI")
_DELIVER_HEAD = METHODS["basic.deliver"]
_ANSWERS: dict[str, tuple[str, dict[str, Value]]] = {
    "connection.start-ok": ("connection.tune", {"channel_max": 10, "frame_max": 131072, "heartbeat": 0}),
    "connection.open": ("connection.open-ok", {}),
    "channel.open": ("channel.open-ok", {}),
    "queue.declare": ("queue.declare-ok", {"queue": "q", "message_count": 0, "consumer_count": 0}),
    "confirm.select": ("confirm.select-ok", {}),
    "basic.qos": ("basic.qos-ok", {}),
    "basic.consume": ("basic.consume-ok", {"consumer_tag": "c"}),
}


class Relay:
    """From publishers to consumers, by way of the disk."""

    def __init__(self, folder: Path, persistent: bool) -> None:
        self.consumers: list[Connection] = []
        self._turn = 0
        self._persistent = persistent
        self._file = os.open(folder / "raw.log", os.O_CREAT | os.O_WRONLY | os.O_APPEND)
        self._unwritten: list[bytes] = []
        self._unsynced: list[tuple[Connection, int]] = []
        self._syncing = False

    def take(self, publisher: Connection, contents: list[bytes], upto: int) -> None:
        if self.consumers:
            self.consumers[self._turn % len(self.consumers)].deliver(contents)
            self._turn += 1
        if not self._persistent:
            publisher.confirm(upto)
            return
        self._unwritten += contents
        self._unsynced.append((publisher, upto))
        if not self._syncing:
            self._syncing = True
            asyncio.get_running_loop().call_soon(self._sync)

    def _sync(self) -> None:
        unwritten, self._unwritten = self._unwritten, []
        unsynced, self._unsynced = self._unsynced, []

        def work() -> None:
            os.write(self._file, b"".join(unwritten))
            os.fdatasync(self._file)

        def done(future: asyncio.Future[None]) -> None:
            for publisher, upto in unsynced:
                publisher.confirm(upto)
            self._syncing = bool(self._unwritten)
            if self._syncing:
                self._sync()

        asyncio.get_running_loop().run_in_executor(None, work).add_done_callback(done)


class Connection(asyncio.Protocol):
    """A client of the benchmark."""

    def __init__(self, relay: Relay) -> None:
        self._relay = relay
        self._unread = b""
        self._unit = self._content = 0
        self._published = self._delivered = 0
        self._transport: asyncio.Transport
        self._consumes = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        unread = self._unread + data
        if unread[:4] == b"AMQP":
            unread = unread[8:]
            self._say("connection.start", version_major=0, version_minor=9, mechanisms=b"PLAIN", locales=b"en_US")
        while self._unit == 0 and len(unread) >= 8:
            _, _, size = _FRAME.unpack_from(unread)
            if len(unread) < size + 8:
                break
            name = decode(unread[7 : size + 7]).method.name
            if name == "basic.publish":
                self._measure(unread, size + 8)
                break
            unread = unread[size + 8 :]
            self._told(name)
        if self._unit and len(unread) >= self._unit:
            count = len(unread) // self._unit
            contents = [unread[n * self._unit + self._content : (n + 1) * self._unit] for n in range(count)]
            self._published += count
            self._relay.take(self, contents, self._published)
            unread = unread[count * self._unit :]
        self._unread = b"" if self._consumes else unread

    def _measure(self, unread: bytes, method: int) -> None:
        header = int.from_bytes(unread[method + 3 : method + 7], "big") + 8
        body = int.from_bytes(unread[method + header + 3 : method + header + 7], "big") + 8
        self._content, self._unit = method, method + header + body

    def _told(self, name: str) -> None:
        answer = _ANSWERS.get(name)
        if answer is not None:
            self._say(answer[0], **answer[1])
        if name == "basic.consume":
            self._consumes = True
            self._relay.consumers.append(self)

    def _say(self, name: str, **arguments: Value) -> None:
        channel = 0 if name.startswith("connection") else 1
        self._transport.write(METHODS[name].frame(channel, **arguments))

    def confirm(self, upto: int) -> None:
        self._transport.write(METHODS["basic.ack"].frame(1, delivery_tag=upto, multiple=True))

    def deliver(self, contents: list[bytes]) -> None:
        parts: list[bytes] = []
        for content in contents:
            self._delivered += 1
            method = _DELIVER_HEAD.frame(
                1, consumer_tag="c", delivery_tag=self._delivered, redelivered=False, exchange="", routing_key="q"
            )
            parts += (method, content)
        self._transport.write(b"".join(parts))

    def connection_lost(self, error: Exception | None) -> None:
        if self in self._relay.consumers:
            self._relay.consumers.remove(self)


async def main() -> None:
    options = json.loads(sys.argv[1])
    relay = Relay(Path(options["folder"]), options["persistent"])
    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: Connection(relay), "127.0.0.1", 0)
    command = await Command.attach()
    command.answer({"port": server.sockets[0].getsockname()[1]})
    await command.order()


if __name__ == "__main__":
    run(main())
