"""A broker on the simulated runtime, with clients that are told what to do.

rig = Rig()
queue = rig.declare("q", {"x-max-length": 3})
rig.publish("a", "b")                  # to the default exchange, key "q"
client = rig.consume(queue, prefetch=1)
client.bodies()                        # ["a"]: what it was given since the last look
client.accept("a")
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any

from coterie.amqp.wire.properties import Properties
from coterie.amqp.wire.tables import Table
from coterie.broker.broker import Broker
from coterie.broker.cluster import Cluster
from coterie.broker.consumer import Consumer, Sink
from coterie.broker.delivery import Delivery, HeldRanges, ranges_of
from coterie.broker.entry import Entry
from coterie.broker.message import Message, make_message
from coterie.broker.observer import QueueObserver, Reason
from coterie.broker.publish import Publish
from coterie.broker.queue import Queue
from coterie.broker.ranges import Range
from coterie.broker.settings import BrokerSettings
from coterie.broker.specs import Binding, Destination, ExchangeSpec, QueueSpec
from coterie.broker.storage import Record, Recovered, RecoveredEntry, Store
from coterie.broker.vhost import Vhost
from coterie.errors import DiskError, ProtocolError
from coterie.sim.clock import World
from coterie.sim.network import Fabric
from coterie.sim.node import Node


def text(entry: Entry) -> str:
    assert entry.message is not None
    return entry.message.body.decode()


def held_of(entries: Sequence[Entry]) -> list[HeldRanges]:
    """As their holders settle them."""
    found: dict[tuple[Queue, object], list[int]] = {}
    for entry in entries:
        found.setdefault((entry.queue, entry.holder), []).append(entry.position)
    return [HeldRanges(queue, holder, ranges_of(positions)) for (queue, holder), positions in found.items()]


def message(body: str, exchange: str = "", key: str = "q", **properties: object) -> Message:
    return make_message(exchange, key, body.encode(), Properties(**properties))  # type: ignore[arg-type]


class Client(Sink):
    """One subscription that remembers what it was given."""

    def __init__(self, queue: Queue, prefetch: int) -> None:
        self.queue = queue
        self.prefetch = prefetch
        self.held: dict[str, Entry] = {}
        """What it has to answer for, by body."""
        self.seen: list[Entry] = []
        self.flags: list[bool] = []
        self.cancellations = 0
        self.consumer: Consumer

    def room(self, consumer: Consumer) -> int:
        return self.prefetch - len(self.held) if self.prefetch else 10_000

    def deliver(self, consumer: Consumer, delivery: Delivery) -> None:
        assert 0 < delivery.count <= self.room(consumer)
        assert delivery.holder is consumer
        for position, message, redelivered in delivery.rows():
            entry = self.queue.entries[position]
            assert entry.holder is consumer
            assert (entry.message, entry.redelivered) == (message, redelivered)
            self.flags.append(redelivered)
            if not consumer.no_ack:
                self.held[text(entry)] = entry
            self.seen.append(entry)

    def cancelled(self, consumer: Consumer) -> None:
        self.cancellations += 1

    def bodies(self) -> list[str]:
        """What it was given since the last look."""
        seen, self.seen = self.seen, []
        return [text(entry) for entry in seen]

    def redelivered(self) -> list[bool]:
        """The flags of what it was given since the last look."""
        flags, self.flags = self.flags, []
        return flags

    def take(self, bodies: Sequence[str]) -> list[Entry]:
        entries = [self.held.pop(body) for body in bodies or list(self.held)]
        self.queue.wake(self.consumer)
        return entries

    def ranges(self, bodies: Sequence[str]) -> list[Range]:
        return ranges_of([entry.position for entry in self.take(bodies)])

    def settle(self, *bodies: str) -> list[HeldRanges]:
        """For a transaction."""
        return [HeldRanges(self.queue, self.consumer, self.ranges(bodies))]

    def accept(self, *bodies: str) -> None:
        """These, or everything that it holds."""
        self.queue.accept(self.consumer, self.ranges(bodies))

    def release(self, *bodies: str, redelivered: bool = True) -> None:
        self.queue.release(self.consumer, self.ranges(bodies), redelivered)

    def reject(self, *bodies: str) -> None:
        self.queue.reject(self.consumer, self.ranges(bodies))

    def cancel(self) -> None:
        self.queue.vhost.cancel(self.consumer)

    def close(self) -> None:
        """Its channel is gone: nothing more comes, and what it held goes back."""
        self.cancel()
        self.release()


class Diary(QueueObserver):
    """Writes down what a queue tells its observers."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def enqueued(self, queue: Queue, entries: Sequence[Entry]) -> None:
        self._write("enqueued", entries)

    def acquired(self, queue: Queue, entries: Sequence[Entry]) -> None:
        self._write("acquired", entries)

    def released(self, queue: Queue, entries: Sequence[Entry]) -> None:
        self._write("released", entries)

    def dequeued(self, queue: Queue, entries: Sequence[Entry], reason: Reason) -> None:
        self._write(f"dequeued {reason.value}", entries)

    def consumers_changed(self, queue: Queue) -> None:
        self.lines.append(f"consumers {len(queue.consumers)}")

    def deleted(self, queue: Queue) -> None:
        self.lines.append("deleted")

    def _write(self, what: str, entries: Sequence[Entry]) -> None:
        self.lines.append(f"{what} {','.join(str(entry.position) for entry in entries)}")

    def read(self) -> list[str]:
        """What came since the last look."""
        lines, self.lines = self.lines, []
        return lines


class Shelf(Store):
    """A store in memory that finishes its work when it is told to: writes are durable after `sync`, loads come after
    `serve`. A second broker may start on it."""

    def __init__(self) -> None:
        self.records: dict[tuple[str, str], Record] = {}
        self.kept: dict[tuple[str, str, int], dict[int, Entry]] = {}
        self.next: dict[tuple[str, str, int], int] = {}
        self.contents: dict[int, Message] = {}
        self.starts = 0
        self.at_once = False
        """Everything is durable when it is written."""
        self.broken = False
        """Loads fail."""
        self.error: Exception = DiskError("no")
        """What is said of a load that fails."""
        self._written = self._synced = 0
        self._waiting: list[tuple[int, Callable[[], None]]] = []
        self._loads: list[tuple[Sequence[Entry], Callable[[Exception | None], None]]] = []

    def recover(self, done: Callable[[Recovered | Exception], None]) -> None:
        self.starts += 1
        queues: dict[tuple[str, str, int], tuple[int, Sequence[RecoveredEntry]]] = {
            key: (self.next[key], [_found(entry) for entry in kept.values()]) for key, kept in self.kept.items()
        }
        done(Recovered(dict(self.records), queues, incarnation=self.starts))

    def save(self, kind: str, key: str, value: Record | None) -> None:
        self._written += 1
        if value is None:
            self.records.pop((kind, key), None)
        else:
            self.records[kind, key] = json.loads(json.dumps(value))

    def enqueued(self, queue: Queue, entries: Sequence[Entry]) -> None:
        key = queue.vhost.name, queue.name, queue.incarnation
        for entry in entries:
            assert entry.message is not None
            if entry.message.persistent:
                self._written += 1
                entry.stored = self._written
                self.contents[entry.stored] = entry.message
                self.kept.setdefault(key, {})[entry.position] = entry
        self.next[key] = queue.next_position

    def dequeued(self, queue: Queue, entries: Sequence[Entry], reason: Reason) -> None:
        kept = self.kept.get((queue.vhost.name, queue.name, queue.incarnation), {})
        for entry in entries:
            if entry.stored:
                self._written += 1
                del kept[entry.position]
                self.contents.pop(entry.stored, None)

    def deleted(self, queue: Queue) -> None:
        key = queue.vhost.name, queue.name, queue.incarnation
        assert not self.kept.pop(key, None), "everything was dequeued before"
        self.next.pop(key, None)

    def begin(self) -> None:
        pass

    def end(self) -> None:
        pass

    def written(self) -> int:
        return self._written

    def synced(self) -> int:
        return self._written if self.at_once else self._synced

    def when_synced(self, upto: int, done: Callable[[], None]) -> None:
        if self.synced() >= upto:
            done()
        else:
            self._waiting.append((upto, done))

    def sync(self) -> None:
        """Everything up to now is durable."""
        self._synced = self._written
        waiting, self._waiting = self._waiting, []
        for upto, done in waiting:
            self.when_synced(upto, done)

    def load(self, entries: Sequence[Entry], done: Callable[[Exception | None], None]) -> None:
        self._loads.append((entries, done))

    def serve(self) -> int:
        """Bring what was asked for; how many loads that were."""
        loads, self._loads = self._loads, []
        for entries, done in loads:
            for entry in entries:
                if not self.broken:
                    entry.message = self.contents.get(entry.stored)
            done(self.error if any(entry.message is None for entry in entries) else None)
        return len(loads)

    def page_out(self, entries: Sequence[Entry]) -> int:
        out = [entry for entry in entries if entry.stored and entry.stored <= self.synced()]
        for entry in out:
            entry.message = None
        return len(out)

    def close(self, done: Callable[[], None]) -> None:
        self.sync()
        done()


def _found(entry: Entry) -> RecoveredEntry:
    seen = entry.redelivered or entry.deliveries > 0
    return RecoveredEntry(entry.position, None, seen, entry.size, entry.stored, None, entry.mark)


class Rig:
    """One broker in a world of its own."""

    def __init__(
        self, settings: BrokerSettings | None = None, store: Store | None = None, cluster: Cluster | None = None
    ) -> None:
        self.world = World(1, "broker", None)
        self.runtime = Node(self.world, Fabric(self.world), "a").boot()
        self.broker = Broker(self.runtime, settings or BrokerSettings(memory_high=0), store, cluster)
        started: list[Exception | None] = []
        self.broker.start(started.append)
        self.run()
        assert started == [None]

    @property
    def vhost(self) -> Vhost:
        return self.broker.vhosts["/"]

    def run(self, seconds: float = 0.0) -> None:
        """Time passes; without any, what is ready is done."""
        self.world.run(self.world.time + seconds)

    def ask(self, call: Callable[[Callable[[Any], None]], None]) -> Any:
        """The result of a call with a completion, or the error that it gave."""
        results: list[Any] = []
        call(results.append)
        self.run()
        assert len(results) == 1, "a completion comes once"
        (result,) = results
        if isinstance(result, ProtocolError):
            raise result
        return result

    def declare(
        self,
        name: str = "q",
        arguments: Table | None = None,
        *,
        durable: bool = False,
        auto_delete: bool = False,
        exclusive: bool = False,
        owner: object | None = None,
        passive: bool = False,
    ) -> Queue:
        spec = QueueSpec(durable, auto_delete, exclusive, arguments or {})
        queue = self.ask(lambda done: self.vhost.declare_queue(name, spec, passive, owner, done))
        assert isinstance(queue, Queue)
        return queue

    def exchange(self, name: str, kind: str = "direct", passive: bool = False, **spec: object) -> None:
        declared = ExchangeSpec(name, kind, **spec)  # type: ignore[arg-type]
        self.ask(lambda done: self.vhost.declare_exchange(declared, passive, done))

    def bind(
        self, source: str, destination: str, key: str = "", arguments: Table | None = None, kind: Destination = "queue"
    ) -> None:
        self.ask(lambda done: self.vhost.bind(Binding(source, kind, destination, key, arguments or {}), done))

    def unbind(
        self, source: str, destination: str, key: str = "", arguments: Table | None = None, kind: Destination = "queue"
    ) -> None:
        self.ask(lambda done: self.vhost.unbind(Binding(source, kind, destination, key, arguments or {}), done))

    def delete(self, name: str, if_unused: bool = False, if_empty: bool = False, owner: object | None = None) -> int:
        count = self.ask(lambda done: self.vhost.delete_queue(name, if_unused, if_empty, done, owner))
        assert isinstance(count, int)
        return count

    def purge(self, name: str = "q") -> int:
        count = self.ask(lambda done: self.vhost.purge(name, done))
        assert isinstance(count, int)
        return count

    def publish(self, *bodies: str, exchange: str = "", key: str = "q", **properties: object) -> list[Publish]:
        """One batch."""
        publishes = [Publish(message(body, exchange, key, **properties)) for body in bodies]
        confirmed: list[bool] = []
        self.vhost.publish(publishes, lambda: confirmed.append(True))
        self.run()
        assert confirmed == [True]
        return publishes

    def consume(
        self, queue: Queue, prefetch: int = 0, *, no_ack: bool = False, exclusive: bool = False, priority: int = 0
    ) -> Client:
        client = Client(queue, prefetch)
        client.consumer = Consumer(f"c{len(queue.consumers)}", queue, client, no_ack, exclusive, priority)
        self.ask(lambda done: self.vhost.consume(client.consumer, done))
        return client

    def get(self, name: str = "q", no_ack: bool = False, holder: object = "somebody") -> Entry | None:
        entries = dict(self.vhost.queues[name].entries)
        got = self.ask(lambda done: self.vhost.get(name, holder, no_ack, done))
        if got is None:
            return None
        (position,) = got.delivery.positions()
        return entries[position]

    def watch(self, queue: Queue) -> Diary:
        diary = Diary()
        queue.observers.append(diary)
        return diary


def bodies(queue: Queue) -> list[str]:
    """The ready messages of a queue, as consumers would get them."""
    return [text(entry) for entry in queue.in_order()]


def headers(entry: Entry) -> Table:
    assert entry.message is not None
    return entry.message.properties().headers or {}
