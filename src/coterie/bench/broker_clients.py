"""The clients of `bench broker`: as little work for each message as a client can do, so that the broker is measured.

They speak to any AMQP 0-9-1 broker. Publishes are byte strings made beforehand, each body with its publisher and
number; deliveries of one queue all have one size, and are cut out by it. Whether every message came, and how often, is
told by the sum of the numbers.
"""

from __future__ import annotations

import asyncio
import struct
import time
from collections.abc import Callable
from functools import partial
from itertools import islice
from typing import TypeVar, cast

from coterie.amqp.wire.codes import PROTOCOL_HEADER
from coterie.amqp.wire.methods import METHODS, decode
from coterie.amqp.wire.properties import Properties, encode
from coterie.amqp.wire.tables import Value

WINDOW = 1000
"""Publishes that wait for their confirms."""
PREFETCH = 500
ACK_EVERY = 100
_FRAME = struct.Struct(">BHI")
BODY = struct.Struct(">IQd")
"""Publisher, number, and when it was sent."""
_ACK = METHODS["basic.ack"].prefix
_BATCH = 50
PATIENCE = 30.0
"""Seconds that a cluster has until it serves."""


class Client(asyncio.Protocol):
    """One connection with one channel. `ready` is done when it may begin."""

    def __init__(self, queue: str, kind: str = "") -> None:
        """`kind`: of the queue, where the broker has several (`x-queue-type`)."""
        self.queue = queue
        self.kind = kind
        self.lost = False
        self.ready: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.latencies: list[float] = []
        self._unread = b""
        self._transport: asyncio.Transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._transport.write(PROTOCOL_HEADER)

    def connection_lost(self, error: Exception | None) -> None:
        self.lost = True
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
            arguments: dict[str, Value] = {"x-queue-type": self.kind} if self.kind else {}
            self.call(1, "queue.declare", queue=self.queue, durable=True, arguments=arguments)
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

    def delete(self) -> None:
        """The queue and what is in it. Nobody waits for that."""
        self.call(1, "queue.delete", queue=self.queue, nowait=True)

    def close(self) -> None:
        self._transport.close()


class Visitor(Client):
    """Wants nothing but to be let in."""

    def __init__(self) -> None:
        super().__init__("")

    def _told(self, name: str) -> None:
        if name == "connection.open-ok":
            self.ready.set_result(None)
        else:
            super()._told(name)


class Publisher(Client):
    """Publishes with confirms: as fast as the window lets it, or at a rate."""

    def __init__(self, queue: str, number: int, size: int, persistent: bool, kind: str = "") -> None:
        super().__init__(queue, kind)
        self._number = number
        header = encode(Properties(delivery_mode=2 if persistent else 1), size)
        method = METHODS["basic.publish"].frame(1, exchange="", routing_key=queue)
        self._lead = method + _FRAME.pack(2, 1, len(header)) + header + b"\xce" + _FRAME.pack(3, 1, size)
        self._rest = b"x" * (size - BODY.size) + b"\xce"
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
        if self.lost:
            return
        now = time.monotonic()
        room = WINDOW - (self.sent - self.confirmed)
        if self.rate:
            due = int((now - self._began) * self.rate)
            room = min(room, due - self.sent)
            if self.limit is None or self.sent < self.limit:
                asyncio.get_running_loop().call_later((due + 1) / self.rate - (now - self._began), self._go_on)
        if self.limit is not None:
            room = min(room, self.limit - self.sent)
        while room > 0:
            count = min(room, _BATCH)
            room -= count
            parts: list[bytes] = []
            for _ in range(count):
                self.sent += 1
                self._times[self.sent] = now
                parts += (self._lead, BODY.pack(self._number, self.sent, now), self._rest)
            self._transport.write(b"".join(parts))

    @property
    def unconfirmed(self) -> list[int]:
        return list(self._times)

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

    def __init__(self, queue: str, size: int, every: int, kind: str = "") -> None:
        super().__init__(queue, kind)
        self._size = size
        self._every = every
        self.got = self.total = 0
        self.acked = 0
        self._unit = self._lead = 0

    def declared(self) -> None:
        self.call(1, "basic.qos", prefetch_count=PREFETCH)

    def received(self, data: bytes) -> None:
        unread, whole = self._cut(data)
        unit, at, now = self._unit, self._lead, time.monotonic()
        for _ in range(whole):
            _, number, sent = BODY.unpack_from(unread, at)
            self.total += number
            self.latencies.append(now - sent)
            at += unit
        self._took(whole)

    def _cut(self, data: bytes) -> tuple[bytes, int]:
        """What has come, from the beginning of a delivery on, and how many of them are whole."""
        unread = self._unread + data if self._unread else data
        if not self._unit:
            method = int.from_bytes(unread[3:7], "big") + 8
            if len(unread) < method + 7:
                self._unread = unread
                return unread, 0
            header = int.from_bytes(unread[method + 3 : method + 7], "big") + 8
            self._lead, self._unit = method + header + 7, method + header + self._size + 8
        whole = len(unread) // self._unit
        self._unread = unread[whole * self._unit :]
        return unread, whole

    def _took(self, count: int) -> None:
        self.got += count
        if self.got - self.acked >= self._every:
            self.settle()

    def settle(self) -> None:
        if self.got > self.acked:
            self.acked = self.got
            self.call(1, "basic.ack", delivery_tag=self.got, multiple=True)


def percentile(values: list[float], share: float) -> float:
    """In microseconds."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(len(ordered) * share))] * 1e6 if ordered else 0.0


C = TypeVar("C", bound=Client)


async def attempt(make: Callable[[], C], port: int) -> C:
    """A client that may begin, or ConnectionError."""
    client = make()
    await asyncio.get_running_loop().create_connection(partial(_same, client), "127.0.0.1", port)
    try:
        await client.ready
    except ConnectionError:
        client.close()
        raise
    return client


def _same(client: C) -> C:
    return client


async def connected(make: Callable[[], C], port: int, pause: float = 0.1, patience: float = PATIENCE) -> C:
    """A client that may begin. A clustered broker sends it away as long as it does not serve."""
    deadline = time.monotonic() + patience
    while True:
        try:
            return await attempt(make, port)
        except ConnectionError as error:
            if time.monotonic() > deadline:
                raise ConnectionError(f"nobody is served at port {port} after {patience:g} s: {error}") from None
        await asyncio.sleep(pause)
