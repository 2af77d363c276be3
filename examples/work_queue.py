"""A work queue with aio-pika: a worker dies at work, others do what it left, and no job is lost or done twice.

python examples/work_queue.py
"""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack

import aio_pika
from aio_pika.abc import AbstractIncomingMessage

import coterie.testing  # a broker in this process; the URL of any other one, `coterie up` for instance, does as well

JOBS = 30


class Worker:
    """One connection, one job at a time, and an ack for each that is done."""

    def __init__(self, done: list[int], falls_at: int | None = None) -> None:
        self.done = done
        self.falls_at = falls_at
        self.over = asyncio.Event()

    async def start(self, url: str) -> aio_pika.abc.AbstractConnection:
        connection = await aio_pika.connect(url)
        channel = await connection.channel()
        await channel.set_qos(prefetch_count=1)  # a slow job holds up nobody else's
        queue = await channel.declare_queue("jobs", durable=True)
        await queue.consume(self.work)
        return connection

    async def work(self, message: AbstractIncomingMessage) -> None:
        job = int(message.body)
        if job == self.falls_at:
            print(f"a worker dies at job {job}, after {len(self.done)} others")
            self.over.set()
            return  # and never acknowledges it
        if message.redelivered:
            print(f"job {job} comes again, and says so")
        self.done.append(job)
        await message.ack()
        if len(self.done) == JOBS:
            self.over.set()


async def send(url: str) -> None:
    async with await aio_pika.connect(url) as connection:
        channel = await connection.channel()  # with publisher confirms: `publish` returns when the broker has it
        await channel.declare_queue("jobs", durable=True)
        for job in range(JOBS):
            body = aio_pika.Message(str(job).encode(), delivery_mode=aio_pika.DeliveryMode.PERSISTENT)
            await channel.default_exchange.publish(body, "jobs")
    print(f"{JOBS} jobs are in the queue")


async def main(url: str) -> None:
    done: list[int] = []
    await send(url)

    weak = Worker(done, falls_at=7)
    async with await weak.start(url):
        await weak.over.wait()

    async with AsyncExitStack() as connections:
        strong = [Worker(done), Worker(done)]
        for worker in strong:
            await connections.enter_async_context(await worker.start(url))
        await asyncio.wait([asyncio.ensure_future(w.over.wait()) for w in strong], return_when=asyncio.FIRST_COMPLETED)

    assert sorted(done) == list(range(JOBS))
    print(f"{len(done)} jobs are done, each of them once")


if __name__ == "__main__":
    with coterie.testing.broker() as broker:
        asyncio.run(main(broker.url))
