"""aio-pika: asyncio with connections that come back by themselves."""

from __future__ import annotations

import asyncio

import aio_pika
import pytest
from aio_pika.abc import AbstractIncomingMessage, AbstractRobustConnection, DeliveryMode
from aio_pika.exceptions import AMQPConnectionError, ChannelInvalidStateError, DeliveryError, PublishError
from client_fixtures import Line

COUNT = 300


def persistent(number: int) -> aio_pika.Message:
    return aio_pika.Message(b"%d" % number, delivery_mode=DeliveryMode.PERSISTENT, message_id=str(number))


def test_many_publishes_at_once_are_confirmed_and_consumed_in_order(url: str, name: str) -> None:
    async def run() -> None:
        async with await aio_pika.connect_robust(url) as connection:
            channel = await connection.channel()
            await channel.set_qos(prefetch_count=20)
            queue = await channel.declare_queue(name, durable=True)
            for done in await asyncio.gather(
                *(channel.default_exchange.publish(persistent(number), name) for number in range(COUNT))
            ):
                assert type(done).__name__ == "Ack"
            found = []
            async with queue.iterator() as messages:
                async for message in messages:
                    async with message.process():
                        found.append(message.message_id)
                    if len(found) == COUNT:
                        break
            assert found == [str(number) for number in range(COUNT)]
            await queue.delete()

    asyncio.run(run())


def test_a_publisher_hears_what_reached_no_queue_and_what_a_queue_refused(url: str, name: str) -> None:
    async def run() -> None:
        async with await aio_pika.connect(url) as connection:
            channel = await connection.channel(on_return_raises=True)
            with pytest.raises(PublishError):
                await channel.default_exchange.publish(persistent(1), f"{name}.nobody")
            limits: dict[str, aio_pika.abc.FieldValue] = {"x-max-length": 1, "x-overflow": "reject-publish"}
            queue = await channel.declare_queue(name, exclusive=True, arguments=limits)
            await channel.default_exchange.publish(persistent(1), queue.name)
            with pytest.raises(DeliveryError):
                await channel.default_exchange.publish(persistent(2), queue.name)

    asyncio.run(run())


def test_a_transaction_that_is_rolled_back_leaves_nothing(url: str, name: str) -> None:
    async def run() -> None:
        async with await aio_pika.connect(url) as connection:
            channel = await connection.channel(publisher_confirms=False)
            queue = await channel.declare_queue(name, exclusive=True)
            undone = channel.transaction()
            await undone.select()
            await channel.default_exchange.publish(persistent(1), queue.name)
            await undone.rollback()
            async with channel.transaction():
                await channel.default_exchange.publish(persistent(2), queue.name)
            message = await queue.get()
            assert message.message_id == "2"
            assert message.message_count == 0

    asyncio.run(run())


def test_a_call_is_answered_through_direct_reply_to(url: str, name: str) -> None:
    async def run() -> bytes:
        async with await aio_pika.connect(url) as server, await aio_pika.connect(url) as caller:
            there = await server.channel()
            requests = await there.declare_queue(name, exclusive=True)

            async def serve(message: AbstractIncomingMessage) -> None:
                async with message.process():
                    assert message.reply_to is not None
                    answer = aio_pika.Message(message.body.upper(), correlation_id=message.correlation_id)
                    await there.default_exchange.publish(answer, message.reply_to)

            await requests.consume(serve)
            here = await caller.channel(publisher_confirms=False)
            replies = await here.get_queue("amq.rabbitmq.reply-to", ensure=False)
            answered: asyncio.Future[AbstractIncomingMessage] = asyncio.get_running_loop().create_future()
            await replies.consume(answered.set_result, no_ack=True)  # type: ignore[arg-type]
            call = aio_pika.Message(b"hello", correlation_id="7", reply_to="amq.rabbitmq.reply-to")
            await here.default_exchange.publish(call, name)
            reply = await answered
            assert reply.correlation_id == "7"
            return reply.body

    assert asyncio.run(run()) == b"HELLO"


def test_a_robust_connection_comes_back_with_its_consumer_and_loses_nothing_confirmed(line: Line, name: str) -> None:
    async def run() -> None:
        seen: dict[int, list[bool]] = {}
        arrived = asyncio.Condition()
        publisher = await connected(line.url)
        consumer = await connected(line.url)
        try:
            receiving = await consumer.channel()
            await receiving.set_qos(prefetch_count=10)
            queue = await receiving.declare_queue(name, durable=True)

            async def take(message: AbstractIncomingMessage) -> None:
                seen.setdefault(int(message.body), []).append(bool(message.redelivered))
                try:
                    await message.ack()
                except (AMQPConnectionError, ChannelInvalidStateError, asyncio.CancelledError):
                    pass  # it will come again
                async with arrived:
                    arrived.notify_all()

            await queue.consume(take)
            confirmed: set[int] = set()
            sent_again: set[int] = set()
            sending = await publisher.channel()

            async def publish(number: int) -> None:
                while number not in confirmed:
                    try:
                        await sending.default_exchange.publish(persistent(number), name, mandatory=True)
                        confirmed.add(number)
                    except (AMQPConnectionError, ChannelInvalidStateError, DeliveryError, asyncio.CancelledError):
                        sent_again.add(number)
                        await publisher.connected.wait()
                        await asyncio.sleep(0)

            async def all_of_them() -> None:
                for first in range(0, COUNT, 25):
                    await asyncio.gather(*(publish(number) for number in range(first, first + 25)))

            publishing = asyncio.create_task(all_of_them())
            async with arrived:
                await arrived.wait_for(lambda: len(seen) > COUNT // 3)
            await asyncio.to_thread(line.cut_off)
            await publishing
            async with arrived:
                await arrived.wait_for(lambda: len(seen) == COUNT)
            twice = {number for number, flags in seen.items() if flags.count(False) > 1}
            assert twice <= sent_again, "what comes again is flagged, unless it was published again"
            await queue.delete(if_unused=False, if_empty=False)
        finally:
            await publisher.close()
            await consumer.close()

    asyncio.run(run())


async def connected(url: str) -> AbstractRobustConnection:
    return await aio_pika.connect_robust(url, reconnect_interval=0.1)
