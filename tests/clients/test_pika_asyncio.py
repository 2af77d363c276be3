"""pika's AsyncioConnection: callbacks all the way, many messages under way at once."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import TypeVar

import pika
from client_fixtures import Line
from pika.adapters.asyncio_connection import AsyncioConnection
from pika.channel import Channel
from pika.exceptions import AMQPConnectionError

PERSISTENT = pika.BasicProperties(delivery_mode=2)
COUNT = 500
T = TypeVar("T")


class Client:
    """A connection with one channel, its calls as futures."""

    def __init__(self) -> None:
        self.loop = asyncio.get_running_loop()
        self.lost: asyncio.Future[BaseException] = self.loop.create_future()
        self.confirmed = 0
        """All numbers up to this one: the broker confirms in their order."""
        self.refused: list[int] = []
        self._waiting: tuple[int, asyncio.Future[None]] | None = None
        self.connection: AsyncioConnection
        self.channel: Channel

    async def connect(self, url: str) -> None:
        opened: asyncio.Future[Channel] = self.loop.create_future()
        self.connection = AsyncioConnection(
            pika.URLParameters(url),
            on_open_callback=lambda connection: connection.channel(on_open_callback=opened.set_result),
            on_open_error_callback=lambda _, error: opened.set_exception(_error(error)),
            on_close_callback=lambda _, error: self.lost.set_result(error),
        )
        self.channel = await opened

    async def call(self, method: Callable[..., object], *args: object, **kwargs: object) -> None:
        answered: asyncio.Future[object] = self.loop.create_future()
        method(*args, callback=answered.set_result, **kwargs)
        await answered

    async def confirm(self) -> None:
        answered: asyncio.Future[object] = self.loop.create_future()
        self.channel.confirm_delivery(self._settled, answered.set_result)
        await answered

    def _settled(self, frame: pika.frame.Method[pika.spec.Basic.Ack | pika.spec.Basic.Nack]) -> None:
        method = frame.method
        if isinstance(method, pika.spec.Basic.Nack):
            self.refused.append(method.delivery_tag)
        self.confirmed = method.delivery_tag
        if self._waiting is not None and self.confirmed >= self._waiting[0]:
            self._waiting[1].set_result(None)
            self._waiting = None

    async def confirmed_up_to(self, number: int) -> None:
        if self.confirmed < number:
            self._waiting = number, self.loop.create_future()
            done, _ = await asyncio.wait((self._waiting[1], self.lost), return_when=asyncio.FIRST_COMPLETED)
            assert self.lost not in done, self.lost

    async def close(self) -> None:
        if not self.lost.done():
            self.connection.close()
            await self.lost


def _error(error: BaseException | str) -> BaseException:
    return error if isinstance(error, BaseException) else AMQPConnectionError(error)


@asynccontextmanager
async def client_of(url: str) -> AsyncIterator[Client]:
    client = Client()
    await client.connect(url)
    try:
        yield client
    finally:
        await client.close()


def test_many_messages_are_confirmed_and_consumed_at_the_same_time(url: str, name: str) -> None:
    async def run() -> list[bytes]:
        found: list[bytes] = []
        async with client_of(url) as client, client_of(url) as other:
            await client.call(client.channel.queue_declare, name, durable=True)
            await client.confirm()
            complete = asyncio.Event()

            def deliver(channel: Channel, method: pika.spec.Basic.Deliver, _: object, body: bytes) -> None:
                found.append(body)
                if len(found) % 50 == 0:  # several at once
                    channel.basic_ack(method.delivery_tag or 0, multiple=True)
                if len(found) == COUNT:
                    complete.set()

            await other.call(other.channel.basic_qos, prefetch_count=100)
            other.channel.basic_consume(name, deliver)
            for number in range(COUNT):
                client.channel.basic_publish("", name, b"%d" % number, PERSISTENT)
            await client.confirmed_up_to(COUNT)
            await complete.wait()
            await other.call(other.channel.queue_delete, name)
            assert client.refused == []
        return found

    assert asyncio.run(run()) == [b"%d" % number for number in range(COUNT)]


def test_what_is_rolled_back_never_was(url: str, name: str) -> None:
    async def run() -> list[bytes]:
        async with client_of(url) as client:
            channel = client.channel
            await client.call(channel.queue_declare, name, exclusive=True)
            await client.call(channel.tx_select)
            channel.basic_publish("", name, b"no")
            await client.call(channel.tx_rollback)
            channel.basic_publish("", name, b"yes")
            await client.call(channel.tx_commit)
            found: asyncio.Future[list[bytes]] = client.loop.create_future()
            channel.basic_consume(name, lambda *heard: found.set_result([heard[3]]), auto_ack=True)
            return await found

    assert asyncio.run(run()) == [b"yes"]


def test_what_was_confirmed_when_the_connection_went_is_there(line: Line, name: str) -> None:
    async def publish() -> int:
        async with client_of(line.url) as client:
            await client.call(client.channel.queue_declare, name, durable=True)
            await client.confirm()
            for number in range(COUNT):
                client.channel.basic_publish("", name, b"%d" % number, PERSISTENT)
            await client.confirmed_up_to(100)  # and the others are somewhere on the way
            await asyncio.to_thread(line.cut_off)
            await client.lost
            return client.confirmed

    async def consume(count: int) -> list[bytes]:
        async with client_of(line.url) as client:
            found: list[bytes] = []
            last: asyncio.Future[None] = client.loop.create_future()

            def deliver(channel: Channel, method: pika.spec.Basic.Deliver, _: object, body: bytes) -> None:
                found.append(body)
                channel.basic_ack(method.delivery_tag or 0)
                if len(found) == count:
                    last.set_result(None)

            client.channel.basic_consume(name, deliver)
            await last
            await client.call(client.channel.queue_delete, name)
        return found

    confirmed = asyncio.run(publish())
    assert confirmed >= 100
    expected = [b"%d" % number for number in range(confirmed)]
    assert asyncio.run(consume(confirmed))[:confirmed] == expected
