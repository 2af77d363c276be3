"""The clients of `bench broker`: as little work for each message as a client can do, so that the broker is measured.

A worker plays publishers and consumers of one queue against any AMQP 0-9-1 broker. Publishes are byte strings made
beforehand, each body with its publisher and number; deliveries of one queue all have one size, and are cut out by it.
Whether every message came, and how often, is told by the sum of the numbers.
"""

from __future__ import annotations

import asyncio
import json
import struct
import sys
import time
from collections.abc import Callable
from functools import partial
from itertools import islice
from typing import TypeVar, cast

from coterie.amqp.codes import PROTOCOL_HEADER
from coterie.amqp.methods import METHODS, decode
from coterie.amqp.properties import Properties, encode
from coterie.amqp.tables import Value
from coterie.runtime.aio import run
from coterie.workers import Command, Message

WINDOW = 1000
"""Publishes that wait for their confirms."""
PREFETCH = 500
ACK_EVERY = 100
_FRAME = struct.Struct(">BHI")
_BODY = struct.Struct(">IQd")
"""Publisher, number, and when it was sent."""
_ACK = METHODS["basic.ack"].prefix
_BATCH = 50
PATIENCE = 30.0
"""Seconds that a cluster has until it serves."""


class Client(asyncio.Protocol):
    """One connection with one channel. `ready` is done when it may begin."""

    def __init__(self, queue: str) -> None:
        self.queue = queue
        self.ready: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.latencies: list[float] = []
        self._unread = b""
        self._transport: asyncio.Transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._transport.write(PROTOCOL_HEADER)

    def connection_lost(self, error: Exception | None) -> None:
        if not self.ready.done():
            self.ready.set_exception(error or ConnectionError("the broker closed the connection"))

    def call(self, channel: int, name: str, **arguments: Value) -> None:
        self._transport.write(METHODS[name].frame(channel, **arguments))

    def data_received(self, data: bytes) -> None:
        if self.ready.done():
            self.received(data)
            return
        self._unread += data
        while len(self._unread) >= 7:
            kind, _, size = _FRAME.unpack_from(self._unread)
            if len(self._unread) < size + 8 or self.ready.done():
                break
            payload, self._unread = self._unread[7 : size + 7], self._unread[size + 8 :]
            if kind == 1:
                self._told(decode(payload).method.name)
        if self.ready.done() and self._unread:
            rest, self._unread = self._unread, b""
            self.received(rest)

    def _told(self, name: str) -> None:
        if name == "connection.start":
            can: dict[str, Value] = {"publisher_confirms": True, "basic.nack": True}
            properties: dict[str, Value] = {"product": "coterie bench", "capabilities": can}
            self.call(
                0, "connection.start-ok", client_properties=properties, mechanism="PLAIN", response=b"\0guest\0guest",
                locale="en_US",
            )  # fmt: skip
        elif name == "connection.tune":
            self.call(0, "connection.tune-ok", channel_max=10, frame_max=131072, heartbeat=0)
            self.call(0, "connection.open", virtual_host="/")
        elif name == "connection.open-ok":
            self.call(1, "channel.open")
        elif name == "channel.open-ok":
            self.call(1, "queue.declare", queue=self.queue, durable=True)
        elif name == "queue.declare-ok":
            self.declared()
        elif name in ("confirm.select-ok", "basic.consume-ok"):
            self.ready.set_result(None)
        elif name == "basic.qos-ok":
            self.call(1, "basic.consume", queue=self.queue, consumer_tag="c")
        elif name in ("connection.close", "channel.close"):
            self.ready.set_exception(ConnectionError(f"the broker said {name}"))

    def declared(self) -> None: ...

    def received(self, data: bytes) -> None: ...

    def close(self) -> None:
        self._transport.close()


class Publisher(Client):
    """Publishes with confirms: as fast as the window lets it, or at a rate."""

    def __init__(self, queue: str, number: int, size: int, persistent: bool) -> None:
        super().__init__(queue)
        self._number = number
        header = encode(Properties(delivery_mode=2 if persistent else 1), size)
        method = METHODS["basic.publish"].frame(1, exchange="", routing_key=queue)
        self._lead = method + _FRAME.pack(2, 1, len(header)) + header + b"\xce" + _FRAME.pack(3, 1, size)
        self._rest = b"x" * (size - _BODY.size) + b"\xce"
        self.sent = self.confirmed = 0
        self.limit: int | None = 0
        self.rate = 0.0
        self._times: dict[int, float] = {}
        """By number, in order: when those were sent that are not confirmed."""
        self._began = 0.0

    def declared(self) -> None:
        self.call(1, "confirm.select")

    def begin(self, limit: int | None, rate: float = 0.0) -> None:
        """From now on, up to so many in all; None: until `limit` is set."""
        self.limit, self.rate, self._began = limit, rate, time.monotonic()
        self._go_on()

    def _go_on(self) -> None:
        now = time.monotonic()
        room = WINDOW - (self.sent - self.confirmed)
        if self.rate:
            due = int((now - self._began) * self.rate)
            room = min(room, due - self.sent)
            asyncio.get_running_loop().call_later(0.0005, self._go_on)
        if self.limit is not None:
            room = min(room, self.limit - self.sent)
        while room > 0:
            count = min(room, _BATCH)
            room -= count
            parts: list[bytes] = []
            for _ in range(count):
                self.sent += 1
                self._times[self.sent] = now
                parts += (self._lead, _BODY.pack(self._number, self.sent, now), self._rest)
            self._transport.write(b"".join(parts))

    def received(self, data: bytes) -> None:
        self._unread += data
        at, end, now = 0, len(self._unread), time.monotonic()
        while end - at >= 21:
            if self._unread[at + 7 : at + 11] == _ACK:
                tag = int.from_bytes(self._unread[at + 11 : at + 19], "big")
                self._settled(tag, bool(self._unread[at + 19] & 1), now)
            at += 8 + int.from_bytes(self._unread[at + 3 : at + 7], "big")
        self._unread = self._unread[at:]
        if not self.rate:
            self._go_on()

    def _settled(self, tag: int, multiple: bool, now: float) -> None:
        """One, or all up to it; some brokers confirm in any order."""
        times = self._times
        if not multiple:
            self.latencies.append(now - times.pop(tag))
            self.confirmed += 1
            return
        for earlier in list(islice(times, tag)):
            if earlier > tag:
                break
            self.latencies.append(now - times.pop(earlier))
            self.confirmed += 1


class Consumer(Client):
    """Takes everything, and acknowledges it in batches."""

    def __init__(self, queue: str, size: int, every: int) -> None:
        super().__init__(queue)
        self._size = size
        self._every = every
        self.got = self.total = 0
        self._unit = 0
        self._acked = 0

    def declared(self) -> None:
        self.call(1, "basic.qos", prefetch_count=PREFETCH)

    def received(self, data: bytes) -> None:
        unread = self._unread + data if self._unread else data
        if not self._unit:
            method = int.from_bytes(unread[3:7], "big") + 8
            if len(unread) < method + 7:
                self._unread = unread
                return
            header = int.from_bytes(unread[method + 3 : method + 7], "big") + 8
            self._lead, self._unit = method + header + 7, method + header + self._size + 8
        unit, at, end, now = self._unit, self._lead, len(unread), time.monotonic()
        whole = end // unit
        for _ in range(whole):
            _, number, sent = _BODY.unpack_from(unread, at)
            self.total += number
            self.latencies.append(now - sent)
            at += unit
        self._unread = unread[whole * unit :]
        self.got += whole
        if self.got - self._acked >= self._every:
            self.settle()

    def settle(self) -> None:
        if self.got > self._acked:
            self._acked = self.got
            self.call(1, "basic.ack", delivery_tag=self.got, multiple=True)


def percentile(values: list[float], share: float) -> float:
    """In microseconds."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(len(ordered) * share))] * 1e6 if ordered else 0.0


C = TypeVar("C", bound=Client)


async def connected(make: Callable[[], C], port: int) -> C:
    """A client that may begin. A clustered broker sends it away as long as it does not serve."""
    deadline = time.monotonic() + PATIENCE
    while True:
        client = make()
        await asyncio.get_running_loop().create_connection(partial(_same, client), "127.0.0.1", port)
        try:
            await client.ready
            return client
        except ConnectionError:
            if time.monotonic() > deadline:
                raise
        await asyncio.sleep(0.1)


def _same(client: C) -> C:
    return client


async def play(order: Message) -> Message:
    size, rate = int(order["size"]), float(order["rate"])
    queue = str(order["queue"])
    to, away = order["publish_at"], order["consume_at"]
    persistent = bool(order["persistent"])
    publishers = [
        await connected(partial(Publisher, queue, n, size, persistent), to) for n in range(order["publishers"])
    ]
    ack_every = 1 if rate else ACK_EVERY
    consumers = [await connected(partial(Consumer, queue, size, ack_every), away) for _ in range(order["consumers"])]
    share = None if order["messages"] is None else order["messages"] // len(publishers)
    began = time.monotonic()
    for publisher in publishers:
        publisher.begin(share, rate)
    answer: Message = {}
    if share is None:
        await asyncio.sleep(order["warmup"])
        for one in (*publishers, *consumers):
            one.latencies.clear()
        confirmed, got, since = _confirmed(publishers), _got(consumers), time.monotonic()
        await asyncio.sleep(order["seconds"])
        seconds = time.monotonic() - since
        answer["confirmed_per_second"] = (_confirmed(publishers) - confirmed) / seconds
        answer["got_per_second"] = (_got(consumers) - got) / seconds
    for publisher in publishers:
        publisher.limit = publisher.sent if share is None else share
    deadline = time.monotonic() + order["patience"]
    sent = sum(p.sent for p in publishers) if share is None else share * len(publishers)
    while time.monotonic() < deadline and (_confirmed(publishers) < sent or (consumers and _got(consumers) < sent)):
        await asyncio.sleep(0.02)
    wanted = sum(p.sent * (p.sent + 1) // 2 for p in publishers)
    answer["seconds"] = time.monotonic() - began
    answer["sent"] = sent
    answer["lost"] = sent - _confirmed(publishers)
    if consumers:
        answer["lost"] += sent - _got(consumers)
        answer["wrong"] = wanted != sum(c.total for c in consumers)
    for name, latencies in (
        ("confirm", [value for p in publishers for value in p.latencies]),
        ("consume", [value for c in consumers for value in c.latencies]),
    ):
        answer[f"{name}_p50"], answer[f"{name}_p99"] = percentile(latencies, 0.5), percentile(latencies, 0.99)
    for consumer in consumers:
        consumer.settle()
    for each in (*publishers, *consumers):
        each.close()
    return answer


def _confirmed(publishers: list[Publisher]) -> int:
    return sum(publisher.confirmed for publisher in publishers)


def _got(consumers: list[Consumer]) -> int:
    return sum(consumer.got for consumer in consumers)


async def main() -> None:
    command = await Command.attach()
    command.answer({"ready": True})
    while (order := await command.order()) is not None:
        command.answer(await play(order))


if __name__ == "__main__":
    json.loads(sys.argv[1])
    run(main())
