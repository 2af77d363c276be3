"""Clients of a cluster, with pika: they publish with confirms and consume with transactions, and never give up.

A client has a home, one of the brokers. Whenever its connection ends it goes to the next broker, until it is told to
go home. What it was promised and given is in the ledger that all clients share.
"""

from __future__ import annotations

import asyncio
import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any

import pika
import pika.exceptions
from pika.adapters.asyncio_connection import AsyncioConnection
from pika.channel import Channel
from pika.spec import Basic, BasicProperties

from coterie.demo.orders import Ledger
from coterie.demo.shop import ALERT_IDS, ALERTS, BINDINGS, EXCHANGE, QUEUE, SALES

PREFETCH = 100
TICK = 0.02
"""Seconds between two looks at what is to be done."""
WINDOW = 500
"""Messages of a publisher that may wait for their confirms."""
PAUSE = 0.05
"""Seconds between two attempts to connect."""
PATIENCE = 3.0
"""Seconds that a broker has for the handshake."""
PERSISTENT = BasicProperties(delivery_mode=2)

logging.getLogger("pika").setLevel(logging.CRITICAL)  # it says each time that nobody is there


class Gone(Exception):
    """The connection is over."""


class Session:
    """A connection with one channel, to be awaited."""

    def __init__(self, port: int) -> None:
        self._parameters = pika.ConnectionParameters(
            "127.0.0.1", port, heartbeat=0, socket_timeout=PATIENCE, stack_timeout=PATIENCE, connection_attempts=1
        )
        self._waiting: set[asyncio.Future[Any]] = set()
        self._connection: AsyncioConnection
        self.channel: Channel
        self.blocked = False
        self.over = False

    async def open(self) -> None:
        """Raises Gone."""
        opened = self._future()
        self._connection = AsyncioConnection(
            self._parameters,
            on_open_callback=lambda _: _answer(opened, None),
            on_open_error_callback=lambda *_: self._ended(),
            on_close_callback=lambda *_: self._ended(),
        )
        await opened
        self._connection.add_on_connection_blocked_callback(lambda *_: self._block(True))
        self._connection.add_on_connection_unblocked_callback(lambda *_: self._block(False))
        self.channel = await self.ask(lambda done: self._connection.channel(on_open_callback=done))
        self.channel.add_on_close_callback(lambda *_: self._ended())

    def _block(self, blocked: bool) -> None:
        self.blocked = blocked

    async def ask(self, call: Callable[[Callable[..., None]], object]) -> Any:
        """A method that is answered."""
        if self.over:
            raise Gone
        future = self._future()
        try:
            call(lambda *answer: _answer(future, answer[0] if answer else None))
        except pika.exceptions.AMQPError:
            raise Gone from None
        return await future

    def do(self, call: Callable[[], object]) -> None:
        """One that is not."""
        if self.over:
            raise Gone
        try:
            call()
        except pika.exceptions.AMQPError:
            raise Gone from None

    def _future(self) -> asyncio.Future[Any]:
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._waiting.add(future)
        future.add_done_callback(self._waiting.discard)
        return future

    def _ended(self) -> None:
        self.over = True
        for future in [*self._waiting]:
            if not future.done():
                future.set_exception(Gone())

    async def close(self) -> None:
        """In good order, if it is still open."""
        if self._connection.is_open:
            ended = self._future()
            self._connection.close()
            try:
                async with asyncio.timeout(PATIENCE):
                    await ended
            except (Gone, TimeoutError):
                pass
        self.over = True

    async def declare(self, shop: bool = False) -> None:
        """The queue of the orders; and, if it is wanted, all that Spark's pipeline needs."""
        channel = self.channel
        await self.ask(lambda done: channel.queue_declare(QUEUE, durable=True, callback=done))
        if not shop:
            return
        once = {"x-deduplicate-length": ALERT_IDS}
        await self.ask(lambda done: channel.queue_declare(SALES, durable=True, callback=done))
        await self.ask(lambda done: channel.queue_declare(ALERTS, durable=True, arguments=once, callback=done))
        await self.ask(lambda done: channel.exchange_declare(EXCHANGE, "topic", durable=True, callback=done))
        for queue, key in BINDINGS:
            await self.ask(lambda done, queue=queue, key=key: channel.queue_bind(queue, EXCHANGE, key, callback=done))  # type: ignore[misc]

    async def publish(self, exchange: str, key: str, body: bytes) -> None:
        """One message; returns when it is confirmed."""
        confirmed = self._future()
        channel = self.channel
        await self.ask(lambda done: channel.confirm_delivery(lambda _: _answer(confirmed, None), callback=done))
        self.do(lambda: channel.basic_publish(exchange, key, body, PERSISTENT))
        await confirmed

    async def take(self, queue: str) -> list[tuple[BasicProperties, bytes]]:
        """All messages that are in a queue which nobody else consumes."""
        taken: list[tuple[BasicProperties, bytes]] = []
        all_came = self._future()
        count = await self.count(queue)

        def deliver(_: object, __: object, properties: BasicProperties, body: bytes) -> None:
            taken.append((properties, body))
            if len(taken) == count:
                _answer(all_came, None)

        if count:
            await self.ask(lambda done: self.channel.basic_consume(queue, deliver, auto_ack=True, callback=done))
            await all_came
        return taken

    async def count(self, queue: str = QUEUE) -> int:
        """Ready messages of a queue, as this broker sees it."""
        answer = await self.ask(lambda done: self.channel.queue_declare(queue, passive=True, callback=done))
        number: int = answer.method.message_count
        return number


def _answer(future: asyncio.Future[Any], answer: object) -> None:
    if not future.done():
        future.set_result(answer)


class Client(ABC):
    """One of them. `faults` counts, by broker, what was done to it."""

    def __init__(self, number: int, ports: Sequence[int], faults: Sequence[int], ledger: Ledger) -> None:
        self.number = number
        self.home = self.node = number % len(ports)
        self.reconnects = 0
        self.ledger = ledger
        self._ports = ports
        self._faults = faults
        self._finish = False
        """This session, in good order."""
        self._stop = False

    def go_home(self) -> None:
        if self.node != self.home:
            self._finish = True

    def stop(self) -> None:
        self._finish = self._stop = True

    async def run(self) -> None:
        while not self._stop:
            self._finish = False
            session = Session(self._ports[self.node])
            served = False
            try:
                await session.open()
                served = True
                await self._work(session)
                self.node = self.home
            except Gone:
                if served:
                    self.reconnects += 1
                self.node = (self.node + 1) % len(self._ports)
                await asyncio.sleep(PAUSE)
            finally:
                await session.close()

    @property
    def finishes(self) -> bool:
        return self._finish

    def now(self) -> float:
        return asyncio.get_running_loop().time()

    @abstractmethod
    async def _work(self, session: Session) -> None:
        """Until it is told to finish; raises Gone."""


class Publisher(Client):
    """So many a second, each confirmed; what is not confirmed is not published again."""

    def __init__(
        self,
        number: int,
        ports: Sequence[int],
        faults: Sequence[int],
        ledger: Ledger,
        rate: float,
        shop: Callable[[str], bytes] | None = None,
    ) -> None:
        """`shop`: writes the order of that name, which goes to the shop's exchange; None: the name goes to a queue."""
        super().__init__(number, ports, faults, ledger)
        self._rate = rate
        self._write = shop or str.encode
        self._exchange, self._key = (EXCHANGE, f"order.{number}") if shop else ("", QUEUE)
        self._count = 0

    async def _work(self, session: Session) -> None:
        waiting: dict[int, bytes] = {}
        tags = 0

        def confirmed(frame: Any) -> None:
            tag, method = frame.method.delivery_tag, frame.method
            done = [each for each in waiting if each <= tag] if method.multiple else [tag]
            for each in done:
                body = waiting.pop(each)
                if isinstance(method, Basic.Ack):
                    self.ledger.confirm(body)

        await session.ask(lambda done: session.channel.confirm_delivery(confirmed, callback=done))
        due = self.now()
        while not self.finishes:
            while due <= self.now() and len(waiting) < WINDOW and not session.blocked:
                due += 1 / self._rate
                tags += 1
                waiting[tags] = body = self._next()
                session.do(lambda body=body: session.channel.basic_publish(self._exchange, self._key, body, PERSISTENT))  # type: ignore[misc]
            due = max(due, self.now() - TICK)
            await asyncio.sleep(TICK)
            if session.over:
                raise Gone
        while waiting:
            await asyncio.sleep(TICK)
            if session.over:
                raise Gone

    def _next(self) -> bytes:
        self._count += 1
        body = self._write(f"p{self.number}-{self._count}")
        self.ledger.publish(body, self.now(), self.node)
        return body


class Consumer(Client):
    """Acknowledges in transactions: once that is committed, a majority of the brokers has it on disk."""

    async def _work(self, session: Session) -> None:
        channel, faults, node = session.channel, self._faults[self.node], self.node
        taken: list[bytes] = []
        last = 0

        def deliver(_: object, method: Any, __: object, body: bytes) -> None:
            nonlocal last
            taken.append(body)
            last = method.delivery_tag
            doubtful = self._faults[node] != faults
            self.ledger.deliver(body, method.redelivered, node, self.now(), doubtful)

        await session.ask(lambda done: channel.tx_select(done))
        await session.ask(lambda done: channel.basic_qos(prefetch_count=PREFETCH, callback=done))
        await session.ask(lambda done: channel.basic_consume(QUEUE, deliver, callback=done))
        while not self.finishes:
            await asyncio.sleep(TICK)
            if taken:
                acked = taken[:]
                taken.clear()
                session.do(lambda: channel.basic_ack(last, multiple=True))
                await session.ask(lambda done: channel.tx_commit(done))
                self.ledger.settle(acked)
            elif session.over:
                raise Gone
