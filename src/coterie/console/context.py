"""What the console knows: the parts of the node that it shows, its samples, and how long the loop makes others wait."""

from __future__ import annotations

import asyncio
import os
import shutil
import time
import traceback
from collections.abc import AsyncIterator, Awaitable, Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass, field
from operator import attrgetter
from pathlib import Path
from typing import TypeVar

from coterie.amqp.channel import Channel
from coterie.amqp.connection import Connection
from coterie.amqp.server import Server
from coterie.amqp.stopwatch import Stopwatch
from coterie.amqp.traffic import Traffic
from coterie.broker.broker import Broker
from coterie.broker.counters import Counters
from coterie.broker.log_store import LogStore
from coterie.broker.queue import Queue
from coterie.broker.storage import Store
from coterie.broker.trace_exchange import EventStream
from coterie.broker.users import Users
from coterie.broker.vhost import Vhost
from coterie.cluster.member import Member
from coterie.console.arrivals import Arrivals
from coterie.console.backups import Backups
from coterie.console.history import History, Totals
from coterie.console.logbook import Logbook
from coterie.console.pace import Pace
from coterie.console.rates import Reading, Samples
from coterie.console.sessions import Sessions
from coterie.console.settings import ConsoleSettings
from coterie.durations import Durations
from coterie.errors import CoterieError
from coterie.logs import Log
from coterie.runtime.aio import descriptors
from coterie.runtime.aio.loop import resident_memory
from coterie.runtime.base import Endpoint, Runtime
from coterie.site_replication.links import Links

log = Log(__name__)
T = TypeVar("T")

OVERALL = ("overall",)
"""The key of the totals' readings."""
_SLICE = 500
"""Objects that are read in one turn of the loop."""
_TURN = 0.005
"""Seconds of a turn that reads objects until it has taken so long."""
LAG_INTERVAL = 0.25
"""Seconds between two looks at how late the loop is, and at how long a confirm takes."""

read_counters: Callable[[Counters], Reading] = attrgetter(
    "enqueued", "delivered", "delivered_no_ack", "got", "got_no_ack", "redelivered", "accepted"
)
read_traffic: Callable[[Traffic], Reading] = attrgetter(
    "published", "confirmed", "returned", "get_empty",
    "delivered", "delivered_no_ack", "got", "got_no_ack", "redelivered", "acked",
)  # fmt: skip


class Late(CoterieError):
    """It has been decided, but is not durable yet, and nobody wants to wait any longer."""


@dataclass(slots=True, eq=False)
class Context:
    """Of one node; to the broker it is the one who asks, like a connection."""

    name: str
    data: Path | None
    runtime: Runtime
    broker: Broker
    users: Users
    amqp: Server
    store: Store
    settings: ConsoleSettings
    member: Member | None = None
    """None: the node stands alone."""
    drain: Callable[[], Awaitable[None]] | None = None
    links: Links | None = None
    events: EventStream | None = None
    """None: trace events are never published."""
    security_report: Callable[[], Awaitable[dict[str, object]]] | None = None
    """What is unsafe about the node."""
    published: int = 0
    """Messages that came through the console."""
    lag: Durations = field(default_factory=Durations)
    started: float = 0.0
    """By the wall clock."""
    confirms: Durations = field(default_factory=Durations)
    """How long some confirms took."""
    samples: Samples = field(init=False)
    history: History = field(init=False)
    sessions: Sessions = field(init=False)
    logbook: Logbook = field(init=False)
    process: Process = field(init=False)
    """As of the last sample."""
    pace: Pace = field(init=False)
    """Of those who read streams."""
    arrivals: Arrivals = field(init=False)
    """Those who wait for messages."""
    backups: Backups = field(default_factory=Backups)
    certificates: tuple[str, ...] = ()
    """Files of those that clients are shown, or are checked with."""
    listens: list[Endpoint] = field(default_factory=list)
    """Where the console does."""
    url: str = ""
    """Where readers of streams reach it."""

    def __post_init__(self) -> None:
        settings, store = self.settings, self.store
        self.started = self.runtime.wall()
        self.samples = Samples(settings.samples_kept, settings.sample_interval / 2)
        syncs = store.writer.sync_times if isinstance(store, LogStore) else Durations()
        self.history = History(settings.history_kept, self.confirms, syncs, self.lag)
        self.sessions = Sessions(self.runtime, self.users, settings, self.name)
        self.logbook = Logbook(settings.log_kept)
        self.process = Process(None, None, None, None)
        self.arrivals = Arrivals(settings)
        self.pace = Pace(settings.stream_share, settings.stream_readers_max, self._activity)

    # Waiting for what the broker decides.

    async def outcome(self, call: Callable[[Callable[[object], None]], None]) -> object:
        """A call with a completion. What it is completed with is given, or raised if it is an error."""
        future: asyncio.Future[object] = asyncio.get_running_loop().create_future()
        call(lambda result: None if future.done() else future.set_result(result))
        return await self.patiently(future)

    async def patiently(self, future: asyncio.Future[T]) -> T:
        try:
            result = await asyncio.wait_for(future, self.settings.answer_timeout)
        except TimeoutError:
            seconds = self.settings.answer_timeout
            why = f": {self.broker.blocked}" if self.broker.blocked else ""
            raise Late(f"done, but not durable after {seconds:g} s{why}") from None
        if isinstance(result, Exception):
            raise result
        return result

    def _activity(self) -> int:
        """What clients of this node have said, in bytes, and what has happened on the log."""
        said = sum(each.received_bytes for each in self.amqp.connections.values())
        return said if self.member is None else said + 1001 * self.member.replica.progress.index

    # What there is.

    def queues(self) -> list[Queue]:
        return [queue for vhost in self.broker.vhosts.values() for queue in vhost.queues.values()]

    def connections(self) -> list[Connection]:
        """Those that are open, the oldest first."""
        return [each for each in self.amqp.connections.values() if each.state == "running"]

    def channels(self) -> list[Channel]:
        return [channel for each in self.connections() for channel in each.channels.values()]

    async def totals(self, vhosts: Sequence[Vhost] | None = None) -> Counters:
        """Of all queues that there ever were, or of some vhosts; in slices."""
        total = Counters()
        if vhosts is None:
            total.add(self.broker.gone)
        vhosts = list(self.broker.vhosts.values()) if vhosts is None else vhosts
        # The queues are noted in the same turn as what deleted ones have left: each is counted once, whatever happens.
        queues = [queue for vhost in vhosts for queue in vhost.queues.values()]
        for vhost in vhosts:
            total.add(vhost.gone)
        async for queue in sliced(queues):
            total.add(queue.counters)
        return total

    async def overall(self) -> Reading:
        return (*read_counters(await self.totals()), *read_traffic(self.amqp.traffic), self.published)

    async def look(self) -> Process:
        """At the process, now."""
        return await asyncio.get_running_loop().run_in_executor(None, look_at_process, self.data)

    # Samples.

    async def watch(self) -> None:
        """Until it is cancelled."""
        await asyncio.gather(self._sample(), self._look_at_lag())

    async def _sample(self) -> None:
        while True:
            try:
                await self.sample()
            except Exception:  # rates are not worth a node
                log.error("no sample could be taken", traceback=traceback.format_exc())
            await asyncio.sleep(self.settings.sample_interval)

    async def sample(self) -> None:
        """One sample of everything, in slices: others have their turns in between."""
        readings: dict[Hashable, Reading] = {}
        queues, connections = self.queues(), self.connections()
        consumers = ready = unacked = size = channels = 0
        async for queue in sliced(queues):
            readings[queue_key(queue)] = read_queue(queue)
            consumers += len(queue.consumers)
            ready += queue.ready
            unacked += queue.unacked
            size += queue.bytes
        async for connection in sliced(connections):
            channels += len(connection.channels)
            if connection.state == "running":
                readings[connection.number] = read_connection(connection)
                for channel in connection.channels.values():
                    readings[connection.number, channel.number] = read_traffic(channel.traffic)
        readings[OVERALL] = overall = await self.overall()
        now = self.runtime.now()
        self.samples.take(now, readings)
        self.process = await self.look()
        exchanges = sum(len(vhost.exchanges) + 1 for vhost in self.broker.vhosts.values())
        totals = Totals(len(queues), exchanges, consumers, len(connections), channels, ready, unacked, size)
        # As `overall` has them: of queues, of clients, and what came through the console.
        _, delivered, no_ack, got, got_no_ack, again, acked, published, confirmed = overall[:9]
        counted = published + overall[-1], confirmed, delivered + no_ack + got + got_no_ack, again, acked
        self.history.take(now, self.runtime.wall(), counted, totals)

    async def _look_at_lag(self) -> None:
        while True:
            self.amqp.stopwatch = Stopwatch(self.runtime, self.confirms)
            before = self.runtime.now()
            await asyncio.sleep(LAG_INTERVAL)
            self.lag.add(max(0.0, self.runtime.now() - before - LAG_INTERVAL))


async def sliced(things: Sequence[T]) -> AsyncIterator[T]:
    """One after the other; others have their turns now and then."""
    for count, thing in enumerate(things, 1):
        yield thing
        if count % _SLICE == 0:
            await asyncio.sleep(0)


async def in_turns(things: Iterable[T]) -> AsyncIterator[T]:
    """The same where each may cost much: others have their turns whenever it has taken long."""
    until = time.monotonic() + _TURN
    for thing in things:
        yield thing
        if time.monotonic() > until:
            await asyncio.sleep(0)
            until = time.monotonic() + _TURN


def queue_key(queue: Queue) -> Hashable:
    return queue.vhost.name, queue.name, queue.incarnation


def read_queue(queue: Queue) -> Reading:
    return read_counters(queue.counters)


def read_connection(connection: Connection) -> Reading:
    return (connection.received_bytes, connection.sent_bytes, *read_traffic(connection.traffic))


@dataclass(frozen=True, slots=True)
class Process:
    """What the operating system says of this process; None: it does not say."""

    memory: int | None
    descriptors: int | None
    descriptors_max: int | None
    disk_free: int | None


def look_at_process(data: Path | None) -> Process:
    """A few small reads of /proc; the disk's free space may be slow to tell, as on a network: not for the loop."""
    memory = in_use = free = None
    try:
        memory = resident_memory() or None
        in_use = len(os.listdir("/proc/self/fd"))
    except (OSError, ValueError, IndexError):
        pass
    try:
        free = None if data is None else shutil.disk_usage(data).free
    except OSError:
        pass
    return Process(memory, in_use, descriptors.limit(), free)
