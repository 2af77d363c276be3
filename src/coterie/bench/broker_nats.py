"""The clients of `bench broker` that speak to NATS JetStream, with as little work for each message as those for AMQP.

What a queue is there, as its documentation has it: a stream in files with the retention `workqueue`, on as many servers
as there are (up to three), and a durable pull consumer that acknowledges each message (a stream of work takes no
acknowledgement that means several). A message that need not reach the disk goes to a stream in memory.

The publisher is on the server that leads the stream, as it is with a quorum queue, which is led where it was declared.
Answers to publishes come in their order: the n-th is for the n-th publish.
"""

from __future__ import annotations

import asyncio
import json
import secrets
import time
from functools import cached_property
from typing import Any, cast

from coterie.bench.broker_clients import BODY, PREFETCH, Client, Consumer, Publisher, connected
from coterie.workers import Message

PROTOCOL = "nats"
DURABLE = "bench"
REPLICAS_MAX = 3
PENDING_MAX = 100_000
"""Messages that the server lets wait for acknowledgements. The clients ask for less."""
HOUR = 3600 * 10**9
"""Nanoseconds: longer than any case. A request for messages ends then, one that is not acknowledged comes again."""
ANSWER_TIMEOUT = 10.0
_HELLO = b'CONNECT {"verbose":false,"pedantic":false,"headers":true,"lang":"python","version":"0","protocol":1}\r\n'
_END = b"\r\n"


class Connection(Client):
    """One connection. `ready` is done when the server has understood what its client wants to hear."""

    server = ""
    """Its name."""

    @cached_property
    def inbox(self) -> str:
        """Where answers come: no other connection's, of this process or another one."""
        return f"_INBOX.{secrets.token_hex(8)}"

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._transport.write(_HELLO + f"SUB {self.inbox} 1\r\nPING\r\n".encode())

    def data_received(self, data: bytes) -> None:
        if self.ready.done():
            self.received(data)
            return
        self._unread += data
        while not self.ready.done() and _END in self._unread:
            line, _, self._unread = self._unread.partition(_END)
            if line.startswith(b"INFO "):
                self.server = json.loads(line[5:])["server_name"]
            elif line == b"PONG":
                self.ready.set_result(None)
                self.begun()
            elif line.startswith(b"-ERR"):
                self.ready.set_exception(ConnectionError(f"NATS said {line.decode()}"))

    def begun(self) -> None: ...

    def tell(self, subject: str, what: Message, reply: str = "") -> None:
        body = json.dumps(what).encode()
        self._transport.write(f"PUB {subject} {reply} {len(body)}\r\n".encode() + body + _END)

    def delete(self) -> None:
        self._transport.write(f"PUB $JS.API.STREAM.DELETE.{self.queue} 0\r\n\r\n".encode())

    def _pong(self) -> None:
        self._transport.write(b"PONG\r\n")


class Asking(Connection):
    """Asks the server for streams and consumers, one thing at a time."""

    def __init__(self) -> None:
        super().__init__("")
        self._answer: asyncio.Future[Message] | None = None

    async def ask(self, what: str, request: Message | None = None, patience: float = ANSWER_TIMEOUT) -> Message:
        """Again and again until it is done: a cluster that has just started does not answer, or has no leader yet."""
        deadline = time.monotonic() + patience
        why = "no answer"
        while time.monotonic() < deadline:
            self._answer = asyncio.get_running_loop().create_future()
            self.tell(f"$JS.API.{what}", request or {}, self.inbox)
            try:
                answer = await asyncio.wait_for(self._answer, 2.0)
            except TimeoutError:
                continue
            if "error" not in answer:
                return answer
            why = str(answer["error"].get("description"))
            await asyncio.sleep(0.1)
        raise ConnectionError(f"NATS JetStream: {what}: {why}")

    def received(self, data: bytes) -> None:
        self._unread += data
        while (end := self._unread.find(_END)) >= 0:
            fields = self._unread[:end].split(b" ")
            if fields[0] not in (b"MSG", b"HMSG"):
                if fields[0] == b"PING":
                    self._pong()
                self._unread = self._unread[end + 2 :]
                continue
            stop = end + 2 + int(fields[-1])
            if len(self._unread) < stop + 2:
                return
            body, self._unread = self._unread[end + 2 : stop], self._unread[stop + 2 :]
            # With headers and no body: that nobody listens, as JetStream has not begun.
            if fields[0] == b"MSG" and self._answer is not None and not self._answer.done():
                self._answer.set_result(json.loads(body))


class NatsPublisher(Connection, Publisher):
    """Publishes, and waits for the stream to say that it has each message."""

    def begun(self) -> None:
        size = BODY.size + len(self._rest) - 1
        self._lead = f"PUB {self.queue} {self.inbox} {size}\r\n".encode()
        self._rest = self._rest[:-1] + _END

    def received(self, data: bytes) -> None:
        lines = (self._unread + data).split(_END)
        self._unread = lines.pop()
        now = time.monotonic()
        for line in lines:
            if line.startswith(b"{") and b'"error"' not in line:
                self._settled(next(iter(self._times)), False, now)
            elif line == b"PING":
                self._pong()
        if not self.rate:
            self._go_on()


class NatsConsumer(Connection, Consumer):
    """Asks for as many messages as it may hold, and acknowledges each of them, many with one write."""

    _asked = 0

    def begun(self) -> None:
        self._replies: list[bytes] = []
        self._ask()

    def _ask(self) -> None:
        """For half of what it may hold at least, so that requests are few."""
        room = PREFETCH - (self._asked - self.acked)
        if room >= PREFETCH // 2:
            self._asked += room
            subject = f"$JS.API.CONSUMER.MSG.NEXT.{self.queue}.{DURABLE}"
            self.tell(subject, {"batch": room, "expires": HOUR}, self.inbox)

    def received(self, data: bytes) -> None:
        unread = self._unread + data if self._unread else data
        at, length, now, came = 0, len(unread), time.monotonic(), 0
        while (end := unread.find(_END, at)) >= 0:
            fields = unread[at:end].split(b" ")
            if fields[0] == b"MSG":
                stop = end + 4 + int(fields[4])
                if stop > length:
                    break
                _, number, sent = BODY.unpack_from(unread, end + 2)
                self.total += number
                self.latencies.append(now - sent)
                self._replies.append(fields[3])
                came += 1
                at = stop
            elif fields[0] == b"HMSG":  # what became of a request
                stop = end + 4 + int(fields[-1])
                if stop > length:
                    break
                at = stop
            else:
                if fields[0] == b"PING":
                    self._pong()
                at = end + 2
        self._unread = unread[at:]
        self._took(came)

    def settle(self) -> None:
        if self._replies:
            self.acked = self.got
            acks = b"".join([b"PUB %b 4\r\n+ACK\r\n" % reply for reply in self._replies])
            self._replies.clear()
            self._transport.write(acks)
            self._ask()


async def prepared(order: Message) -> tuple[int, int]:
    """The stream, and its consumer if there is to be one; the ports for publishers and for consumers."""
    queue, ports = str(order["queue"]), list(order["ports"])
    asking = [await connected(Asking, port) for port in ports]
    try:
        request: Message = {
            "name": queue, "subjects": [queue], "retention": "workqueue", "discard": "new",
            "storage": "file" if order["persistent"] else "memory", "num_replicas": min(REPLICAS_MAX, len(ports)),
        }  # fmt: skip
        stream = await asking[0].ask(f"STREAM.CREATE.{queue}", request, order["patience"])
        if order["consumers"]:
            config = {
                "durable_name": DURABLE,
                "ack_policy": "explicit",
                "ack_wait": HOUR,
                "max_ack_pending": PENDING_MAX,
            }
            await asking[0].ask(f"CONSUMER.DURABLE.CREATE.{queue}.{DURABLE}", {"stream_name": queue, "config": config})
        leader = await _leader(asking[0], queue, stream, len(ports))
        at = next((number for number, each in enumerate(asking) if each.server == leader), 0)
    finally:
        for each in asking:
            each.close()
    return ports[at], ports[(at + 1) % len(ports) if order["apart"] else at]


async def _leader(asking: Asking, queue: str, stream: dict[str, Any], servers: int) -> str:
    """Which server leads the stream."""
    deadline = time.monotonic() + ANSWER_TIMEOUT
    while not (leader := stream.get("cluster", {}).get("leader")):
        if servers == 1 or time.monotonic() > deadline:
            return ""
        await asyncio.sleep(0.05)
        stream = await asking.ask(f"STREAM.INFO.{queue}")
    return str(leader)


async def deleted(order: Message) -> None:
    asking = await connected(Asking, order["port"])
    await asking.ask(f"STREAM.DELETE.{order['queue']}")
    asking.close()
