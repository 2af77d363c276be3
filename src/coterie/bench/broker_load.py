"""The worker of `bench broker` that plays publishers and consumers of one queue, and says how fast the broker was."""

from __future__ import annotations

import asyncio
import time
from functools import partial

from coterie.bench import broker_nats
from coterie.bench.broker_clients import ACK_EVERY, BODY, Consumer, Publisher, Visitor, connected, percentile
from coterie.bench.broker_nats import NatsConsumer, NatsPublisher
from coterie.runtime.aio import run
from coterie.workers import Command, Message


async def play(order: Message) -> Message:
    """For a while, or so many messages; every message must be confirmed, and come once."""
    size, rate = int(order["size"]), float(order["rate"])
    queue, kind = str(order["queue"]), str(order["kind"])
    publishing: type[Publisher] = Publisher
    consuming: type[Consumer] = Consumer
    to, away = order["ports"][0], order["ports"][1 if order["apart"] else 0]
    if order["protocol"] == broker_nats.PROTOCOL:
        publishing, consuming = NatsPublisher, NatsConsumer
        to, away = await broker_nats.prepared(order)
    persistent = bool(order["persistent"])
    publishers = [
        await connected(partial(publishing, queue, n, size, persistent, kind), to) for n in range(order["publishers"])
    ]
    every = 1 if rate else ACK_EVERY
    consumers = [await connected(partial(consuming, queue, size, every, kind), away) for _ in range(order["consumers"])]
    share = None if order["messages"] is None else order["messages"] // len(publishers)
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
    if consumers:
        publishers[0].delete()
    for each in (*publishers, *consumers):
        each.close()
    return answer


def _confirmed(publishers: list[Publisher]) -> int:
    return sum(publisher.confirmed for publisher in publishers)


def _got(consumers: list[Consumer]) -> int:
    return sum(consumer.got for consumer in consumers)


async def serve(order: Message) -> Message:
    """Wait until clients are let in everywhere, and say when that was."""
    for port in order["ports"]:
        (await connected(Visitor, port, pause=0.02, patience=order["patience"])).close()
    return {"at": time.monotonic()}


async def drain(order: Message) -> Message:
    """Take what there must be in a queue: so many messages, whose numbers have this sum."""
    consumer = await connected(partial(Consumer, order["queue"], order["size"], ACK_EVERY), order["port"])
    deadline = time.monotonic() + order["patience"]
    while consumer.got < order["messages"] and time.monotonic() < deadline:
        await asyncio.sleep(0.02)
    consumer.settle()
    consumer.close()
    return {"lost": order["messages"] - consumer.got, "wrong": consumer.total != order["sum"]}


async def delete(order: Message) -> Message:
    if order["protocol"] == broker_nats.PROTOCOL:
        await broker_nats.deleted(order)
        return {}
    publisher = await connected(partial(Publisher, order["queue"], 0, BODY.size, True, order["kind"]), order["port"])
    publisher.delete()
    publisher.close()
    return {}


ORDERS = {"play": play, "serve": serve, "drain": drain, "delete": delete}


async def main() -> None:
    command = await Command.attach()
    command.answer({"ready": True})
    while (order := await command.order()) is not None:
        try:
            command.answer(await ORDERS[order["do"]](order))
        except OSError as error:
            command.answer({"error": str(error)})


if __name__ == "__main__":
    run(main())
