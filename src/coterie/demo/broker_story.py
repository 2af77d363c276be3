"""The story of the broker's demonstration: three brokers that are one, of which one is killed, and nothing is lost.

Publishers and consumers are on all of them. Whoever was connected to the one that dies goes on at another; when it is
back and serves, they go home. Then a stream of Spark works through a second queue, which has a copy of every order, and
sends alerts back. In the end the books are closed: every message is accounted for.
"""

from __future__ import annotations

import asyncio
import shutil
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from coterie.audit import check, files, properties
from coterie.demo import shop
from coterie.demo.brokers import Brokers
from coterie.demo.clients import Client, Consumer, Gone, Publisher, Session
from coterie.demo.orders import Accounts, Fault, Ledger
from coterie.demo.pipeline import Found, Pipeline, Work
from coterie.demo.shop import ALERTS, EXCHANGE, QUEUE, SALES
from coterie.errors import CoterieError

NODES = 3
VICTIM = 1
STUCK = 45.0
"""Seconds after which something that waits has waited too long."""
HELD = 5.0
"""Seconds within which messages that a dead broker's consumer held have come to another one, if it held any."""
POLL = 0.02
"""Seconds between two looks at what no event tells."""


class Teller(Protocol):
    """To whom it is told."""

    def chapter(self, title: str) -> None: ...

    def say(self, text: str) -> None: ...

    def show(self, headers: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
        """As a table."""


@dataclass
class Outcome:
    """What the demonstration measured."""

    accounts: Accounts | None = None
    up_ms: float = 0.0
    elsewhere_ms: dict[str, float] = field(default_factory=dict)
    """By broker: from the kill to the first delivery of something that was published after it."""
    handed_over_ms: float | None = None
    """From the kill until something that the dead broker's consumer held came to another one; None: it held nothing."""
    reconnected: int = 0
    served_ms: float = 0.0
    seconds: float = 0.0
    spark: Found | None = None
    without_spark: str = ""
    """Why not, if it was wanted."""
    alerts: int = 0
    """That came back from Spark, into a queue."""
    events: int = 0
    properties: list[str] = field(default_factory=list)
    violations: list[str] = field(default_factory=list)

    @property
    def good(self) -> bool:
        return not self.violations


class BrokerStory:
    """Tells it. Traces, logs and Parquet files go to `folder`, which exists; the brokers' data to `data`."""

    def __init__(
        self, folder: Path, data: Path, rate: float, seconds: float, teller: Teller, pipeline: Pipeline | None = None
    ) -> None:
        """`pipeline`: Spark's; None: without."""
        for old in (*folder.glob("*.jsonl"), *folder.glob("node*.log")):
            old.unlink()
        shutil.rmtree(folder / SALES, ignore_errors=True)
        self._folder, self._rate, self._seconds = folder, rate, seconds
        self._chapter, self._say, self._show = teller.chapter, teller.say, teller.show
        self._data, self._pipeline = data, pipeline
        self._brokers = Brokers(NODES, data, ("--log-level", "warning"), folder, consoles=pipeline is not None)
        for broker in self._brokers.each:
            broker.log = folder / broker.log.name
        ports = [broker.port for broker in self._brokers.each]
        self._faults = [0] * NODES
        self._ledger = ledger = Ledger()
        writers = [shop.Orders(n).write if pipeline else None for n in range(NODES)]
        self._publishers = [Publisher(n, ports, self._faults, ledger, rate, writers[n]) for n in range(NODES)]
        self._consumers = [Consumer(n, ports, self._faults, ledger) for n in range(NODES)]
        self.outcome = Outcome()

    async def tell(self) -> Outcome:
        began = time.monotonic()
        try:
            await self._start()
            tasks = [asyncio.create_task(client.run()) for client in self._clients]
            await asyncio.sleep(self._seconds)
            await self._kill()
            await asyncio.sleep(self._seconds / 2)
            await self._return()
            if self._pipeline is not None:
                await self._pipeline.start()  # what is measured from here on is no more in a hurry
            await asyncio.sleep(self._seconds)
            await self._rest(tasks)
            await self._stream()
            await self._brokers.stop()
        finally:
            if self._pipeline is not None:
                await self._pipeline.end()
            await self._brokers.end()
        self._chapter("The books are closed")
        self.outcome.accounts = self._ledger.close()
        self._check()
        self.outcome.violations += self._ledger.violations
        self.outcome.seconds = round(time.monotonic() - began, 1)
        return self.outcome

    @property
    def _clients(self) -> list[Client]:
        return [*self._publishers, *self._consumers]

    async def _start(self) -> None:
        self._chapter("Three brokers become one")
        began = time.monotonic()
        await self._brokers.start()
        for broker in self._brokers.each:
            session = await served(broker.port)
            await session.declare(self._pipeline is not None)
            await session.close()
        self.outcome.up_ms = (time.monotonic() - began) * 1000
        ports = ", ".join(str(broker.port) for broker in self._brokers.each)
        self._say(f"node1, node2 and node3 serve the same queue, '{QUEUE}', on ports {ports}")
        self._say(
            f"clients of each: one publishes {self._rate:g} orders a second, with confirms; one consumes, with acks"
        )

    async def _kill(self) -> None:
        victim, ledger, outcome = self._brokers.each[VICTIM], self._ledger, self.outcome
        away = [client for client in self._clients if client.node == VICTIM]
        self._chapter(f"kill -9 {victim.name}")
        confirmed = ledger.confirmed
        self._faults[VICTIM] += 1
        ledger.fault = fault = Fault(asyncio.get_running_loop().time(), frozenset({VICTIM}))
        await victim.kill()
        self._say(f"it is dead; {confirmed:,} orders are confirmed so far: none of them may be lost")
        others = [broker for broker in self._brokers.each if broker is not victim]
        await until("the other brokers deliver", lambda: len(fault.elsewhere) == len(others))
        outcome.elsewhere_ms = {broker.name: fault.elsewhere[broker.number] * 1000 for broker in others}
        told = ", ".join(f"{name} after {ms:.0f} ms" for name, ms in outcome.elsewhere_ms.items())
        self._say(f"orders that are published from now on are delivered, by {told}")
        await until("clients are on other brokers", lambda: all(client.reconnects for client in away))
        outcome.reconnected = len(away)
        self._say(f"its {len(away)} clients go on at the others{await self._handed_over(fault)}")

    async def _handed_over(self, fault: Fault) -> str:
        """What became of the messages that the dead broker's consumer held: mostly some, but there may be none."""
        try:
            await until("held messages are handed over", lambda: fault.handed_over is not None, HELD)
        except CoterieError:
            return "; its consumer held nothing"
        assert fault.handed_over is not None
        self.outcome.handed_over_ms = fault.handed_over * 1000
        return f"; what its consumer held comes again, flagged, after {self.outcome.handed_over_ms:.0f} ms"

    async def _return(self) -> None:
        victim, ledger = self._brokers.each[VICTIM], self._ledger
        self._chapter(f"{victim.name} comes back")
        before, began = ledger.confirmed, time.monotonic()
        await victim.start()
        await (await served(victim.port)).close()
        self.outcome.served_ms = (time.monotonic() - began) * 1000
        self._say(
            f"it serves {self.outcome.served_ms / 1000:.1f} s after its start, while the others confirmed "
            f"{ledger.confirmed - before:,} more; its clients go home"
        )
        for client in self._clients:
            client.go_home()

    async def _rest(self, tasks: list[asyncio.Task[None]]) -> None:
        """Publishers stop, everything is consumed, and all brokers agree that nothing is left."""
        for publisher in self._publishers:
            publisher.stop()
        await until("publishers have all their confirms", lambda: all(task.done() for task in tasks[:NODES]))
        await drained([broker.port for broker in self._brokers.each], self._ledger)
        for consumer in self._consumers:
            consumer.stop()
        await until("consumers have committed their acks", lambda: all(task.done() for task in tasks))
        if await drained([broker.port for broker in self._brokers.each], self._ledger):
            self._say(f"publishers have stopped; every broker says that the queue '{QUEUE}' is empty")
        else:
            self.outcome.violations.append("brokers do not agree that the queue is empty")

    async def _stream(self) -> None:
        """By Spark, what is in the second queue."""
        pipeline, outcome = self._pipeline, self.outcome
        if pipeline is None:
            return
        self._chapter("The same orders, through Spark")
        servers = [f"http://{broker.console}" for broker in self._brokers.each if broker.console]
        if not servers:
            outcome.without_spark = "the brokers have no console, which it reads from: pip install 'coterie[console]'"
            self._say(f"left out: {outcome.without_spark}")
            return
        self._say(f"the queue '{SALES}' has a copy of each; Structured Streaming starts, and reads it ...")
        await self._close_shop()
        confirmed = self._data / "confirmed.txt"
        orders = [shop.name(body) for body, order in self._ledger.orders.items() if order.confirmed]
        confirmed.write_text("\n".join(orders) + "\n")
        work = Work(
            servers, [f"amqp://127.0.0.1:{broker.port}" for broker in self._brokers.each],
            shop.good(self._rate * NODES), str(self._folder / SALES), str(self._data / "checkpoint"), str(confirmed),
        )  # fmt: skip
        outcome.spark, outcome.without_spark = await pipeline.run(work), pipeline.why_not
        if pipeline.broken:
            outcome.violations.append(f"Spark has not done its work: {pipeline.broken}")
        elif outcome.spark is None:
            self._say(f"left out: {outcome.without_spark}")
        else:
            await self._compare(work, outcome.spark)

    async def _close_shop(self) -> None:
        session = await served(self._brokers.each[0].port)
        await session.publish(EXCHANGE, "closing", shop.closing())
        await session.close()

    async def _compare(self, work: Work, found: Found) -> None:
        """What Spark found with what there was, and what came back with what it found."""
        outcome, twice = self.outcome, found.orders - found.different
        self._say(
            f"{found.orders:,} orders, in {found.read_ms / 1000:.1f} s and {found.start_ms / 1000:.1f} s to start"
        )
        self._say(
            f"joined with their prices, and added up by the second in which they were made, with a watermark: "
            f"{found.rows} rows of Parquet, in {work.sales}"
        )
        self._show(("kind", "orders", "euros", "best second (UTC)", "euros in it"), found.kinds)
        victim = self._brokers.each[VICTIM]
        session = await served(victim.port)
        came = sorted(str(properties.message_id) for properties, _ in await session.take(ALERTS))
        await session.close()
        outcome.alerts = len(came)
        self._say(
            f"{len(came)} times one kind made {work.good:,} euros or more in a second: as many alerts came back, in "
            f"the queue '{ALERTS}', to a client of {victim.name}"
        )
        if found.missing or twice:
            outcome.violations.append(f"Spark: {found.missing} confirmed orders are missing, {twice} are there twice")
        if came != found.alerts:
            outcome.violations.append(f"Spark: alerts that should have come: {found.alerts}; that came: {came}")

    def _check(self) -> None:
        """What the brokers wrote down, as `coterie check` does."""
        reading, outcome, violations = files.Reading(), self.outcome, list[str]()
        for run in files.runs(files.find([str(self._folder)]), reading):
            folds = properties(run.causal)
            outcome.properties = [fold.name for fold in folds]
            violations += map(str, check(run.events, folds))
        outcome.events = reading.events
        outcome.violations += violations
        self._say(
            f"the brokers' traces, {outcome.events:,} events, are checked for {len(outcome.properties)} properties: "
            f"{len(violations) or 'no'} violations"
        )


async def served(port: int, patience: float = STUCK) -> Session:
    """A session there, as soon as that broker serves."""
    deadline = time.monotonic() + patience
    while True:
        session = Session(port)
        try:
            await session.open()
            return session
        except Gone:
            await session.close()
        if time.monotonic() > deadline:
            raise CoterieError(f"the broker at port {port} does not serve after {patience:g} s: see its log")
        await asyncio.sleep(POLL)


async def drained(ports: list[int], ledger: Ledger, patience: float = STUCK) -> bool:
    """Whether, in that time, every broker says that nothing is left, and whatever was confirmed has come."""
    deadline = time.monotonic() + patience
    while time.monotonic() < deadline:
        if not ledger.missing() and not any([await left(port) for port in ports]):
            return True
        await asyncio.sleep(POLL)
    return False


async def left(port: int) -> int:
    session = await served(port)
    try:
        return await session.count()
    except Gone:
        return 1
    finally:
        await session.close()


async def until(what: str, is_so: Callable[[], bool], patience: float = STUCK) -> None:
    """Ask until it is so; for what no event tells."""
    deadline = time.monotonic() + patience
    while not is_so():
        if time.monotonic() > deadline:
            raise CoterieError(f"not so after {patience:g} s: {what}")
        await asyncio.sleep(POLL)
