"""The worker of `bench broker` whose clients live through what happens to brokers: one joins, one is killed.

It kills the broker itself, in the moment in which that broker's consumer has got something, so that the clock starts
when the process dies, and a queue that has an owner loses it.
"""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from itertools import cycle
from typing import TypeVar

from coterie.bench.broker_clients import ACK_EVERY, BODY, Consumer, Publisher, Visitor, attempt, connected
from coterie.runtime.aio import run
from coterie.workers import Command, Message

HELD_MIN = 10
"""Messages that the killed broker's consumer holds at the least."""
KNOCK = 0.005
"""Seconds between two attempts to be let in again."""
EXILE_RATE = 100.0
UNCONFIRMED = "a publisher that connected again has no confirm"
T = TypeVar("T")
_TICK = 0.01


class Watched(Publisher):
    """Knows the longest time between two confirms."""

    gap = 0.0
    last = 0.0

    def _settled(self, tag: int, multiple: bool, now: float) -> None:
        super()._settled(tag, multiple, now)
        self.gap = max(self.gap, now - self.last)
        self.last = now

    def longest(self) -> float:
        """Milliseconds since the last look; a gap that has not ended counts as far as it has come."""
        found = max(self.gap, time.monotonic() - self.last)
        self.gap = 0.0
        return found * 1000


class Witness(Consumer):
    """Remembers what came, and tells somebody of each."""

    def __init__(self, queue: str, size: int, every: int) -> None:
        super().__init__(queue, size, every)
        self.bodies: list[tuple[int, int]] = []
        """Publishers and numbers."""
        self.came: Callable[[int, int, float], None] = lambda publisher, number, sent: None

    def received(self, data: bytes) -> None:
        unread, whole = self._cut(data)
        found = [BODY.unpack_from(unread, self._lead + number * self._unit) for number in range(whole)]
        self.bodies += [(publisher, number) for publisher, number, _ in found]
        self._took(whole)
        for body in found:
            self.came(*body)

    @property
    def settled(self) -> set[tuple[int, int]]:
        """What it has acknowledged."""
        return set(self.bodies[: self.acked])


# A broker joins.


class Steady:
    """One publisher at a steady rate, for as long as others want."""

    def __init__(self) -> None:
        self._publisher: Watched

    async def publish(self, order: Message) -> Message:
        make = partial(Watched, order["queue"], 1, order["size"], True)
        self._publisher = await connected(make, order["port"])
        self._publisher.last = time.monotonic()
        self._publisher.begin(None, order["rate"])
        return {}

    async def gap(self, order: Message) -> Message:
        return {"gap": self._publisher.longest()}

    async def joined(self, order: Message) -> Message:
        """Wait until a client is let in at a port: when, and the longest gap until then."""
        self._publisher.longest()
        (await connected(Visitor, order["port"], pause=0.02, patience=order["patience"])).close()
        return {"at": time.monotonic(), "gap": self._publisher.longest()}

    async def stop(self, order: Message) -> Message:
        publisher = self._publisher
        publisher.limit = publisher.sent
        deadline = time.monotonic() + order["patience"]
        while publisher.unconfirmed and time.monotonic() < deadline:
            await asyncio.sleep(_TICK)
        publisher.close()
        return {"sent": publisher.sent, "lost": len(publisher.unconfirmed)}


# A broker is killed.


class Deathbed:
    """Kills a broker in the moment in which its consumer gets something and holds enough.

    With `in_a_row` it must be that consumer's turn: so many have come there since another one got anything.
    """

    def __init__(
        self, pid: int, consumer: Witness, publisher: Publisher, other: Witness | None = None, in_a_row: int = 1
    ) -> None:
        self._pid, self._consumer, self._publisher = pid, consumer, publisher
        self._row, self._in_a_row = 0, in_a_row
        self.at: asyncio.Future[float] = asyncio.get_running_loop().create_future()
        self.sent = 0
        """What had been published by then."""
        self.settled: set[tuple[int, int]] = set()
        """What the consumer had acknowledged by then."""
        consumer.came = self._came
        if other is not None:
            other.came = self._elsewhere

    def _elsewhere(self, publisher: int, number: int, sent: float) -> None:
        self._row = 0

    def _came(self, publisher: int, number: int, sent: float) -> None:
        self._row += 1
        held = self._consumer.got - self._consumer.acked
        if self.at.done() or held < HELD_MIN or self._row < self._in_a_row:
            return
        self.sent, self.settled = self._publisher.sent, self._consumer.settled
        now = time.monotonic()
        os.kill(self._pid, signal.SIGKILL)
        self.at.set_result(now)


class Relief:
    """What the consumer elsewhere gets: the first message published after the kill, and all that the dead one held."""

    def __init__(self, since: float, held: set[tuple[int, int]]) -> None:
        loop = asyncio.get_running_loop()
        self.delivery: asyncio.Future[float] = loop.create_future()
        self.held: asyncio.Future[float] = loop.create_future()
        self._since, self._held = since, held

    def watch(self, consumer: Witness) -> Witness:
        """What it has got already need not come."""
        self._held -= set(consumer.bodies)
        if not self._held:
            self.held.set_result(self._since)
        consumer.came = self._came
        return consumer

    def _came(self, publisher: int, number: int, sent: float) -> None:
        now = time.monotonic()
        if sent > self._since and not self.delivery.done():
            self.delivery.set_result(now)
        self._held.discard((publisher, number))
        if not self._held and not self.held.done():
            self.held.set_result(now)

    async def came_to(self, order: Message) -> tuple[float, float]:
        """When the one was there, and the other."""
        delivery = await within(order, self.delivery, "what was published after the kill is not delivered elsewhere")
        return delivery, await within(order, self.held, "what the killed node held has not all come again elsewhere")


async def within(order: Message, waited: Awaitable[T], otherwise: str) -> T:
    try:
        return await asyncio.wait_for(waited, order["patience"])
    except TimeoutError:
        raise TimeoutError(f"{otherwise} in {order['patience']:g} s") from None


async def back(make: Callable[[], Publisher], ports: Sequence[int], rate: float) -> tuple[Publisher, float]:
    """A publisher that connects again at once, wherever it is let in, and when it had its first confirm."""
    for port in cycle(ports):
        try:
            publisher = await attempt(make, port)
        except ConnectionError:
            await asyncio.sleep(KNOCK)
            continue
        publisher.begin(None if rate else 1, rate)
        while not publisher.confirmed and not publisher.lost:
            await asyncio.sleep(0.0005)
        if publisher.confirmed:
            break
    return publisher, time.monotonic()


def confirmed(publisher: Publisher, number: int) -> set[tuple[int, int]]:
    return {(number, each) for each in range(1, publisher.sent + 1)} - {(number, n) for n in publisher.unconfirmed}


async def kill(order: Message) -> Message:
    """The publisher and another consumer are on brokers that survive; a third client publishes on the killed one."""
    queue, size = order["queue"], order["size"]
    publisher = await connected(partial(Publisher, queue, 0, size, True), order["publish_at"])
    victim = await connected(partial(Witness, queue, size, ACK_EVERY), order["victim"])
    other = await connected(partial(Witness, queue, size, 1), order["consume_at"])
    exile = await connected(partial(Publisher, f"{queue}-exile", 1, size, True), order["victim"])
    publisher.begin(None, order["rate"])
    exile.begin(None, EXILE_RATE)
    await asyncio.sleep(order["lead"])
    death = Deathbed(order["pid"], victim, publisher, other, order["in_a_row"])
    since = await within(order, death.at, "the consumer at the node to be killed gets nothing")
    before = {(0, number) for number in range(1, death.sent + 1)}
    relief = Relief(since, before - death.settled)
    relief.watch(other)
    again = partial(Publisher, f"{queue}-exile", 2, size, True)
    publishing = asyncio.create_task(back(again, (order["publish_at"], order["consume_at"]), 0.0))
    delivery, held = await relief.came_to(order)
    returned, confirm = await within(order, publishing, UNCONFIRMED)
    publisher.limit = publisher.sent
    sent = {(0, number) for number in range(1, publisher.sent + 1)}
    await _until(lambda: not publisher.unconfirmed and sent <= death.settled | set(other.bodies), order["linger"])
    last = await connected(partial(Witness, f"{queue}-exile", size, ACK_EVERY), order["consume_at"])
    promised = confirmed(exile, 1) | confirmed(returned, 2)
    await _until(lambda: promised <= set(last.bodies), order["linger"])
    missing = (sent - death.settled - set(other.bodies)) | (promised - set(last.bodies))
    twice = len(other.bodies) - len(set(other.bodies)) + len(last.bodies) - len(set(last.bodies))
    other.delete()
    last.delete()
    for client in (publisher, victim, other, exile, returned, last):
        client.close()
    return {
        "delivery": (delivery - since) * 1000, "held": (held - since) * 1000, "confirm": (confirm - since) * 1000,
        "lost": len(missing) + len(publisher.unconfirmed), "wrong": twice,
    }  # fmt: skip


async def kill_alone(order: Message) -> Message:
    """A broker that stands alone is killed, and started again at once by whoever hears of it; all clients come back."""
    queue, size, port = order["queue"], order["size"], order["victim"]
    publisher = await connected(partial(Publisher, queue, 0, size, True), port)
    victim = await connected(partial(Witness, queue, size, ACK_EVERY), port)
    publisher.begin(None, order["rate"])
    await asyncio.sleep(order["lead"])
    death = Deathbed(order["pid"], victim, publisher)
    since = await within(order, death.at, "the consumer at the node to be killed gets nothing")
    held_before = confirmed(publisher, 0) - death.settled
    Command.answer({"killed": True})
    again = partial(Publisher, queue, 1, size, True)
    publishing = asyncio.create_task(back(again, (port,), order["rate"]))
    relief = Relief(since, held_before)
    consumer = await connected(lambda: relief.watch(Witness(queue, size, 1)), port, pause=KNOCK)
    delivery, held = await relief.came_to(order)
    returned, confirm = await within(order, publishing, UNCONFIRMED)
    returned.limit = returned.sent
    await _until(lambda: not returned.unconfirmed, order["linger"])
    promised = (confirmed(publisher, 0) | confirmed(returned, 1)) - death.settled
    await _until(lambda: promised <= set(consumer.bodies), order["linger"])
    lost = len(promised - set(consumer.bodies)) + len(returned.unconfirmed)
    consumer.delete()
    for client in (publisher, victim, consumer, returned):
        client.close()
    return {
        "delivery": (delivery - since) * 1000, "held": (held - since) * 1000, "confirm": (confirm - since) * 1000,
        "lost": lost, "wrong": len(consumer.bodies) - len(set(consumer.bodies)),
    }  # fmt: skip


async def _until(done: Callable[[], bool], seconds: float) -> None:
    """Wait for that, but no longer than so: what is missing then is lost."""
    deadline = time.monotonic() + seconds
    while not done() and time.monotonic() < deadline:
        await asyncio.sleep(_TICK)


async def main() -> None:
    command, steady = await Command.attach(), Steady()
    orders = {
        "publish": steady.publish, "gap": steady.gap, "joined": steady.joined, "stop": steady.stop,
        "kill": kill, "kill_alone": kill_alone,
    }  # fmt: skip
    command.answer({"ready": True})
    while (order := await command.order()) is not None:
        try:
            command.answer(await orders[order["do"]](order))
        except OSError as error:
            command.answer({"error": str(error)})


if __name__ == "__main__":
    run(main())
