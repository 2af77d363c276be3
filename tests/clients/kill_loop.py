"""A node that is killed with -9 again and again, at random moments, under load, and started again with its data.

python tests/clients/kill_loop.py --rounds 100 --seed 7 --json

Publishers wait for confirms or commit transactions, consumers acknowledge by hand; nobody publishes a message twice.
Checked: nothing confirmed or committed is lost; a transaction is whole or not there; whose ack was followed by a
confirm on the same channel never comes again; whatever comes again is flagged; nothing comes that nobody sent. One
line for each round; exit code 1 if anything of this is not so.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
import random
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path

import aio_pika
from aio_pika.abc import AbstractChannel, AbstractConnection, AbstractIncomingMessage, DeliveryMode
from node_process import NodeProcess
from yarl import URL

QUEUES = ("loop.0", "loop.1")
SCRAP = "loop.scrap"
"""Where consumers publish to know that their acks are safe."""
PUBLISHERS, COMMITTERS, CONSUMERS = 3, 1, 3
PARTS = 4
"""Messages of a transaction."""
PREFETCH = 50
STUCK = 60.0
"""Seconds after which something that waits has waited too long."""
SMALL = (
    "--store-segment-bytes", "262144", "--store-compact-bytes", "65536", "--store-positions-ahead", "256",
    "--log-level", "warning",
)  # fmt: skip
"""So that segments are begun, and compacted, many times in a second."""


@dataclass
class Ledger:
    """What clients know, and what contradicts it."""

    sent: dict[bytes, int] = field(default_factory=dict)
    """And in which life of the node."""
    sure: set[bytes] = field(default_factory=set)
    """Confirmed or committed."""
    seen: set[bytes] = field(default_factory=set)
    settled: set[bytes] = field(default_factory=set)
    """Acknowledged, and a confirm came for what was published behind that."""
    kept: set[bytes] = field(default_factory=set)
    """Came in a later life than the one in which they were sent: the disk had them."""
    deliveries: int = 0
    again: int = 0
    undone: int = 0
    """Transactions that a consumer saw something of before they were lost as a whole."""
    violations: list[str] = field(default_factory=list)

    def deliver(self, body: bytes, flagged: bool, life: int) -> None:
        self.deliveries += 1
        if body not in self.sent:
            self.violations.append(f"{body!r}: nobody sent it")
        if body in self.settled:
            self.violations.append(f"{body!r}: came back after its ack was safe")
        if body in self.seen:
            self.again += 1
            if not flagged:
                self.violations.append(f"{body!r}: came again without a flag")
        self.seen.add(body)
        if life > self.sent.get(body, life):
            self.kept.add(body)

    def close(self, life: int) -> None:
        """Nothing more comes, and the node did not die in that life.

        Messages are delivered without waiting for the disk: a consumer may have seen a part of a transaction that was
        not committed when the node died, and that is gone as a whole. If anything of it is safe, all of it must be.
        """
        self.violations += [f"{body!r}: was confirmed and is lost" for body in sorted(self.sure - self.seen)]
        safe = self.sure | self.kept | self.settled | {body for body in self.seen if self.sent.get(body) == life}
        whole = {name for name, part, _ in (body.rpartition(b"/") for body in safe) if part}
        begun = {name for name, part, _ in (body.rpartition(b"/") for body in self.seen) if part}
        self.undone = len(begun - whole)
        for name in sorted(whole):
            count = sum(b"%s/%d" % (name, part) in self.seen for part in range(PARTS))
            if count != PARTS:
                self.violations.append(f"{name!r}: {count} of {PARTS} parts")


class Loop:
    """The whole of it."""

    def __init__(self, folder: Path, seed: int, say: Callable[[str], None]) -> None:
        self.ledger = Ledger()
        self._node = NodeProcess(folder, *SMALL)
        self._random = random.Random(seed)
        self._say = say
        self._stopping = False
        self._early = 0
        """Kills of a node that did not serve yet."""

    async def run(self, rounds: int) -> dict[str, object]:
        began = time.monotonic()
        await asyncio.to_thread(self._node.start)
        try:
            await self._declare()
            clients = [
                *(asyncio.create_task(self._live(Publisher(self, number).work)) for number in range(PUBLISHERS)),
                *(asyncio.create_task(self._live(Committer(self, number).work)) for number in range(COMMITTERS)),
                *(asyncio.create_task(self._live(Consumer(self, number).work)) for number in range(CONSUMERS)),
            ]
            for number in range(1, rounds + 1):
                await self._round(number)
            self._stopping = True
            await asyncio.wait_for(asyncio.gather(*clients), STUCK)
            await self._drain()
        finally:
            await asyncio.to_thread(self._node.__exit__, None, None, None)
        ledger = self.ledger
        ledger.close(self.life)
        return {
            "rounds": rounds,
            "seconds": round(time.monotonic() - began, 1),
            "killed_before_serving": self._early,
            "sent": len(ledger.sent),
            "confirmed": len(ledger.sure),
            "delivered": ledger.deliveries,
            "again": ledger.again,
            "settled": len(ledger.settled),
            "transactions_seen_and_lost": ledger.undone,
            "violations": ledger.violations[:100],
            "good": not ledger.violations,
        }

    async def _round(self, number: int) -> None:
        ledger, node = self.ledger, self._node
        before = len(ledger.sure), ledger.deliveries, ledger.again, len(ledger.settled)
        began = time.monotonic()
        if self._random.random() < 0.9:  # in the middle of work; else whatever it is at
            while len(ledger.sure) == before[0] and time.monotonic() < began + STUCK:
                await asyncio.sleep(0.01)
        await asyncio.sleep(self._random.uniform(0, 1))
        up = time.monotonic() - began
        await asyncio.to_thread(node.kill)
        while self._random.random() < 0.15:
            self._early += 1
            node.launch()
            await asyncio.sleep(self._random.uniform(0.1, 0.6))
            await asyncio.to_thread(node.kill)
        await asyncio.to_thread(node.start)
        after = len(ledger.sure), ledger.deliveries, ledger.again, len(ledger.settled)
        confirmed, delivered, again, settled = (b - a for a, b in zip(before, after, strict=True))
        self._say(
            f"round {number:3}: killed after {up:.2f} s; {confirmed} confirmed, {delivered} delivered, {again} of them "
            f"again, {settled} settled; {len(ledger.violations)} violations"
        )

    async def _declare(self) -> None:
        async with await aio_pika.connect(self._node.url) as connection:
            channel = await connection.channel()
            for name in QUEUES:
                await channel.declare_queue(name, durable=True)
            await channel.declare_queue(SCRAP, durable=True, arguments={"x-max-length": 10})

    async def _live(self, work: Callable[[AbstractConnection], Awaitable[None]]) -> None:
        """One client: connect, work until that fails, again."""
        while not self._stopping:
            connection = aio_pika.Connection(URL(self._node.url))
            try:
                await connection.connect(timeout=STUCK)
                await work(connection)
            except (Exception, asyncio.CancelledError):  # aiormq cancels what waits for a lost connection
                await asyncio.sleep(0.1)
            try:
                await connection.close()
            except (Exception, asyncio.CancelledError):
                pass

    async def _drain(self) -> None:
        async with await aio_pika.connect(self._node.url) as connection:
            channel = await connection.channel()
            for name in QUEUES:
                queue = await channel.get_queue(name)
                while (message := await queue.get(fail=False)) is not None:
                    self.ledger.deliver(message.body, bool(message.redelivered), self.life)
                    await message.ack()

    # What clients share.

    @property
    def life(self) -> int:
        return self._node.lives

    @property
    def over(self) -> bool:
        return self._stopping

    def draw(self, low: int, high: int) -> int:
        return self._random.randint(low, high)


class Publisher:
    """Some at a time, each confirmed."""

    def __init__(self, loop: Loop, number: int) -> None:
        self._loop = loop
        self._name = b"p%d" % number
        self._count = 0

    async def work(self, connection: AbstractConnection) -> None:
        channel = await connection.channel()
        while not self._loop.over:
            bodies = [self._next() for _ in range(self._loop.draw(1, 40))]
            done = await asyncio.wait_for(
                asyncio.gather(*(publish(channel, body) for body in bodies), return_exceptions=True), STUCK
            )
            confirmed = [body for body, result in zip(bodies, done, strict=True) if result is None]
            self._loop.ledger.sure.update(confirmed)
            if len(confirmed) < len(bodies):
                raise ConnectionError

    def _next(self) -> bytes:
        self._count += 1
        body = b"%s-%d-%s" % (self._name, self._count, b"x" * self._loop.draw(0, 300))
        self._loop.ledger.sent[body] = self._loop.life
        return body


class Committer:
    """Four messages, two for each queue, in a transaction."""

    def __init__(self, loop: Loop, number: int) -> None:
        self._loop = loop
        self._name = b"t%d" % number
        self._count = 0

    async def work(self, connection: AbstractConnection) -> None:
        channel = await connection.channel(publisher_confirms=False)
        transaction = channel.transaction()
        await transaction.select()
        while not self._loop.over:
            self._count += 1
            bodies = [b"%s-%d/%d" % (self._name, self._count, part) for part in range(PARTS)]
            self._loop.ledger.sent.update(dict.fromkeys(bodies, self._loop.life))
            for part, body in enumerate(bodies):
                await publish(channel, body, QUEUES[part % 2])
            await asyncio.wait_for(transaction.commit(), STUCK)
            self._loop.ledger.sure.update(bodies)


class Consumer:
    """Acknowledges most, gives some back, keeps some for a while; and looks whether its acks are safe."""

    def __init__(self, loop: Loop, number: int) -> None:
        self._loop = loop
        self._queue = QUEUES[number % len(QUEUES)]

    async def work(self, connection: AbstractConnection) -> None:
        loop, ledger = self._loop, self._loop.ledger
        life = loop.life
        channel = await connection.channel()
        await channel.set_qos(prefetch_count=PREFETCH)
        held: list[AbstractIncomingMessage] = []
        arrived = asyncio.Event()

        async def take(message: AbstractIncomingMessage) -> None:
            if life == loop.life:  # else it is from the grave
                ledger.deliver(message.body, bool(message.redelivered), life)
                held.append(message)
                arrived.set()

        queue = await channel.get_queue(self._queue)
        await queue.consume(take)
        while not loop.over:
            arrived.clear()
            if not held:
                await asyncio.wait_for(arrived.wait(), 1)
            acked: list[bytes] = []
            for message in held[:]:
                fate = loop.draw(1, 20)
                if fate == 1:
                    continue
                held.remove(message)
                if fate == 2:
                    await message.nack(requeue=True)
                else:
                    await message.ack()
                    acked.append(message.body)
            await asyncio.wait_for(publish(channel, b"acks are safe", SCRAP), STUCK)
            ledger.settled.update(acked)


async def publish(channel: AbstractChannel, body: bytes, queue: str | None = None) -> None:
    message = aio_pika.Message(body, delivery_mode=DeliveryMode.PERSISTENT)
    key = queue or QUEUES[len(body) % len(QUEUES)]
    await channel.default_exchange.publish(message, key, mandatory=False)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=100, help="kills (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=None, help="of the moments (default: another one each time)")
    parser.add_argument("--data", type=Path, help="the node's folder, kept (default: a temporary one)")
    parser.add_argument(
        "--json", action="store_true", help="one JSON object on standard output, rounds on standard error"
    )
    options = parser.parse_args()
    seed = random.randrange(1 << 32) if options.seed is None else options.seed

    def say(text: str) -> None:
        print(text, file=sys.stderr if options.json else sys.stdout, flush=True)

    logging.getLogger("aiormq").setLevel(logging.CRITICAL)  # it says each time that nobody is there
    say(f"seed {seed}")
    with tempfile.TemporaryDirectory(prefix="coterie-kill-loop-") as folder:
        data = options.data or Path(folder) / "data"
        outcome = asyncio.run(Loop(data, seed, say).run(options.rounds))
    if options.json:
        print(json.dumps(outcome, indent=2))
    else:
        say("".join(f"{name}: {value}\n" for name, value in outcome.items()).rstrip())
    return 0 if outcome["good"] else 1


if __name__ == "__main__":
    sys.exit(main())
