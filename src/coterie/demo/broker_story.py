"""The story of the broker's demonstration: three brokers that are one, of which one is killed, and nothing is lost.

Publishers and consumers are on all of them. Whoever was connected to the one that dies goes on at another; when it is
back and serves, they go home. In the end the books are closed: every message is accounted for. And Spark reads the
archive, a queue that nobody consumes, from all of them, and says whether any order is missing there.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from coterie.audit import check, files, properties
from coterie.demo.archive import Archive, Found
from coterie.demo.brokers import Brokers
from coterie.demo.clients import ARCHIVE, EXCHANGE, QUEUE, Client, Consumer, Gone, Publisher, Session
from coterie.demo.orders import Accounts, Fault, Ledger
from coterie.errors import CoterieError

NODES = 3
VICTIM = 1
STUCK = 45.0
"""Seconds after which something that waits has waited too long."""
POLL = 0.02
"""Seconds between two looks at what no event tells."""

Say = Callable[[str], None]


@dataclass
class Outcome:
    """What the demonstration measured."""

    accounts: Accounts | None = None
    up_ms: float = 0.0
    elsewhere_ms: dict[str, float] = field(default_factory=dict)
    """By broker: from the kill to the first delivery of something that was published after it."""
    handed_over_ms: float = 0.0
    """From the kill until something that the dead broker's consumer held came to another one."""
    reconnected: int = 0
    served_ms: float = 0.0
    seconds: float = 0.0
    spark: Found | None = None
    without_spark: str = ""
    """Why not, if it was wanted."""
    events: int = 0
    properties: list[str] = field(default_factory=list)
    violations: list[str] = field(default_factory=list)

    @property
    def good(self) -> bool:
        return not self.violations


class BrokerStory:
    """Tells it. Traces and logs go to `folder`, which exists; the brokers' data to `data`."""

    def __init__(
        self, folder: Path, data: Path, rate: float, seconds: float, say: Say, archive: Archive | None = None
    ) -> None:
        """`archive`: for Spark to read in the end; None: without."""
        for old in (*folder.glob("*.jsonl"), *folder.glob("node*.log")):
            old.unlink()
        self._folder, self._rate, self._seconds, self._say = folder, rate, seconds, say
        self._data, self._archive = data, archive
        self._brokers = Brokers(NODES, data, ("--log-level", "warning"), folder, consoles=archive is not None)
        for broker in self._brokers.each:
            broker.log = folder / broker.log.name
        ports = [broker.port for broker in self._brokers.each]
        self._faults = [0] * NODES
        self._ledger = Ledger()
        exchange = "" if archive is None else EXCHANGE
        self._publishers = [Publisher(n, ports, self._faults, self._ledger, rate, exchange) for n in range(NODES)]
        self._consumers = [Consumer(n, ports, self._faults, self._ledger) for n in range(NODES)]
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
            if self._archive is not None:
                await self._archive.start()  # what is measured from here on is no more in a hurry
            await asyncio.sleep(self._seconds)
            await self._rest(tasks)
            await self._read()
            await self._brokers.stop()
        finally:
            if self._archive is not None:
                await self._archive.end()
            self._brokers.end()
        self.outcome.accounts = self._ledger.close()
        self._check()
        self.outcome.violations += self._ledger.violations
        self.outcome.seconds = round(time.monotonic() - began, 1)
        return self.outcome

    @property
    def _clients(self) -> list[Client]:
        return [*self._publishers, *self._consumers]

    async def _start(self) -> None:
        began = time.monotonic()
        await self._brokers.start()
        for broker in self._brokers.each:
            session = await served(broker.port)
            await session.declare(self._archive is not None)
            await session.close()
        self.outcome.up_ms = (time.monotonic() - began) * 1000
        names = ", ".join(f"{broker.name} at {broker.port}" for broker in self._brokers.each)
        self._say(f"{names}: one cluster after {self.outcome.up_ms:.0f} ms, each has the queue '{QUEUE}'")
        self._say(
            f"on each of them: a publisher of {self._rate:g} numbered orders a second, which waits for confirms, and a "
            "consumer, which commits its acks"
        )

    async def _kill(self) -> None:
        victim, ledger, outcome = self._brokers.each[VICTIM], self._ledger, self.outcome
        away = [client for client in self._clients if client.node == VICTIM]
        confirmed = ledger.confirmed
        self._faults[VICTIM] += 1
        ledger.fault = fault = Fault(asyncio.get_running_loop().time(), frozenset({VICTIM}))
        await victim.kill()
        self._say(f"kill -9 {victim.name}: {confirmed:,} orders are confirmed so far")
        others = [broker for broker in self._brokers.each if broker is not victim]
        await until("the other brokers deliver", lambda: len(fault.elsewhere) == len(others))
        outcome.elsewhere_ms = {broker.name: fault.elsewhere[broker.number] * 1000 for broker in others}
        told = ", ".join(f"{name} after {ms:.0f} ms" for name, ms in outcome.elsewhere_ms.items())
        self._say(f"  what was published after that is delivered: {told}")
        await until("clients are on other brokers", lambda: all(client.reconnects for client in away))
        await until("held messages are handed over", lambda: fault.handed_over is not None)
        outcome.handed_over_ms = (fault.handed_over or 0) * 1000
        outcome.reconnected = len(away)
        self._say(
            f"  its {len(away)} clients have gone to others; what its consumer held came to another one after "
            f"{outcome.handed_over_ms:.0f} ms, flagged as redelivered"
        )

    async def _return(self) -> None:
        victim, ledger = self._brokers.each[VICTIM], self._ledger
        before, began = ledger.confirmed, time.monotonic()
        await victim.start()
        await (await served(victim.port)).close()
        self.outcome.served_ms = (time.monotonic() - began) * 1000
        self._say(
            f"{victim.name} is started again and serves after {self.outcome.served_ms:.0f} ms, in which the others "
            f"confirmed {ledger.confirmed - before:,} more; its clients go home"
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
            self._say("publishers have stopped; every broker says that the queue is empty")
        else:
            self.outcome.violations.append("brokers do not agree that the queue is empty")

    async def _read(self) -> None:
        """By Spark, what is in the archive."""
        archive, outcome = self._archive, self.outcome
        if archive is None:
            return
        confirmed = self._data / "confirmed.txt"
        orders = [body.decode() for body, order in self._ledger.orders.items() if order.confirmed]
        confirmed.write_text("\n".join(orders) + "\n")
        servers = [f"http://{broker.console}" for broker in self._brokers.each if broker.console]
        if not servers:
            archive.why_not = "the brokers have no console, which it reads from: pip install 'coterie[console]'"
            found = None
        else:
            found = await archive.read(servers, ARCHIVE, confirmed)
        outcome.spark, outcome.without_spark = found, archive.why_not
        if found is None:
            self._say(f"Spark is left out: {archive.why_not}")
            return
        start, took = found.start_ms / 1000, found.read_ms / 1000
        self._say(
            f"Spark, started meanwhile in {start:.1f} s, reads the queue '{ARCHIVE}', to which every order went too, "
            "as a table: a part of it from each broker"
        )
        shares = ", ".join(f"{count:,} of {name}" for name, count in found.by_publisher.items())
        twice = found.orders - found.different
        self._say(
            f"  {found.orders:,} orders in {took:.1f} s: {shares}; {found.missing or 'none'} of the confirmed ones "
            f"missing, {twice or 'none'} there twice"
        )
        if found.missing or twice:
            outcome.violations.append(f"the archive lacks {found.missing} confirmed orders, and has {twice} twice")

    def _check(self) -> None:
        reading, outcome = files.Reading(), self.outcome
        for run in files.runs(files.find([str(self._folder)]), reading):
            folds = properties(run.causal)
            outcome.properties = [fold.name for fold in folds]
            outcome.violations += map(str, check(run.events, folds))
        outcome.events = reading.events
        self._say(
            f"checked {outcome.events:,} trace events of the brokers for {len(outcome.properties)} properties: "
            f"{len(outcome.violations) or 'no'} violations"
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
