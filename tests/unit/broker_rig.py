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
from dataclasses import dataclass
from typing import Any

from queue_view import Seen, in_order, seen

from coterie.amqp.wire.properties import Properties
from coterie.amqp.wire.tables import Table
from coterie.broker.broker import Broker
from coterie.broker.cluster import Cluster
from coterie.broker.consumer import Consumer, Sink
from coterie.broker.delivery import Delivery, HeldRanges, count_of, positions_in, ranges_of
from coterie.broker.message import Message, make_message
from coterie.broker.observer import Arrived, Mark, QueueObserver, Reason
from coterie.broker.publish import Publish
from coterie.broker.queue import Queue
from coterie.broker.ranges import Range
from coterie.broker.settings import BrokerSettings
from coterie.broker.specs import Binding, Destination, ExchangeSpec, QueueSpec
from coterie.broker.storage import Loaded, Record, Recovered, RecoveredMessage, Store
from coterie.broker.vhost import Vhost
from coterie.errors import DiskError, ProtocolError
from coterie.sim.clock import World
from coterie.sim.network import Fabric
from coterie.sim.node import Node


def text(entry: Seen) -> str:
    assert entry.message is not None
    return entry.message.body.decode()


def held_of(entries: Sequence[Seen]) -> list[HeldRanges]:
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
        self.held: dict[str, Seen] = {}
        """What it has to answer for, by body."""
        self.seen: list[Seen] = []
        self.flags: list[bool] = []
        self.cancellations = 0
        self.consumer: Consumer

    def room(self, consumer: Consumer) -> int:
        return self.prefetch - len(self.held) if self.prefetch else 10_000

    def deliver(self, consumer: Consumer, delivery: Delivery) -> None:
        assert 0 < delivery.count <= self.room(consumer)
        assert delivery.holder is consumer
        for position, message, redelivered in delivery.rows():
            entry = Seen(self.queue, position)
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

    def take(self, bodies: Sequence[str]) -> list[Seen]:
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

    def enqueued(self, queue: Queue, arrived: Arrived) -> None:
        self._write("enqueued", [(arrived.first, arrived.stop)])

    def acquired(self, queue: Queue, holder: object, ranges: Sequence[Range]) -> None:
        self._write("acquired", ranges)

    def released(self, queue: Queue, ranges: Sequence[Range]) -> None:
        self._write("released", ranges)

    def dequeued(self, queue: Queue, ranges: Sequence[Range], reason: Reason) -> None:
        self._write(f"dequeued {reason.value}", ranges)

    def consumers_changed(self, queue: Queue) -> None:
        self.lines.append(f"consumers {len(queue.consumers)}")

    def deleted(self, queue: Queue) -> None:
        self.lines.append("deleted")

    def _write(self, what: str, ranges: Sequence[Range]) -> None:
        self.lines.append(f"{what} {','.join(map(str, positions_in(ranges)))}")

    def read(self) -> list[str]:
        """What came since the last look."""
        lines, self.lines = self.lines, []
        return lines


Key = tuple[str, str, int]


@dataclass
class Kept:
    """A message on a shelf."""

    place: int
    size: int
    mark: Mark
    given: bool = False
    """Somebody may have seen it."""

    def found(self, position: int) -> RecoveredMessage:
        return RecoveredMessage(position, None, self.given, self.size, None, self.mark)


class Shelf(Store):
    """A store in memory that finishes its work when it is told to: writes are durable after `sync`, loads come after
    `serve`. A second broker may start on it."""

    def __init__(self) -> None:
        self.records: dict[tuple[str, str], Record] = {}
        self.kept: dict[Key, dict[int, Kept]] = {}
        self.next: dict[Key, int] = {}
        self.contents: dict[int, Message] = {}
        """By place."""
        self.starts = 0
        self.at_once = False
        """Everything is durable when it is written."""
        self.broken = False
        """Loads fail."""
        self.error: Exception = DiskError("no")
        """What is said of a load that fails."""
        self._written = self._synced = 0
        self._waiting: list[tuple[int, Callable[[], None]]] = []
        self._loads: list[tuple[Key, Sequence[Range], Loaded]] = []

    def recover(self, done: Callable[[Recovered | Exception], None]) -> None:
        self.starts += 1
        queues: dict[Key, tuple[int, Sequence[RecoveredMessage]]] = {
            key: (self.next[key], [each.found(position) for position, each in kept.items()])
            for key, kept in self.kept.items()
        }
        done(Recovered(dict(self.records), queues, incarnation=self.starts))

    def save(self, kind: str, key: str, value: Record | None) -> None:
        self._written += 1
        if value is None:
            self.records.pop((kind, key), None)
        else:
            self.records[kind, key] = json.loads(json.dumps(value))

    def enqueued(self, queue: Queue, arrived: Arrived) -> None:
        key = _key(queue)
        for at, message in enumerate(arrived.messages):
            if message.persistent:
                self._written += 1
                mark = None if arrived.marks is None else arrived.marks[at]
                self.contents[self._written] = message
                self.kept.setdefault(key, {})[arrived.first + at] = Kept(self._written, len(message.body), mark)
        self.next[key] = queue.next_position

    def acquired(self, queue: Queue, holder: object, ranges: Sequence[Range]) -> None:
        self.flagged(queue, ranges)

    def flagged(self, queue: Queue, ranges: Sequence[Range]) -> None:
        kept = self.kept.get(_key(queue), {})
        for position in positions_in(ranges):
            if position in kept:
                kept[position].given = True

    def dequeued(self, queue: Queue, ranges: Sequence[Range], reason: Reason) -> None:
        kept = self.kept.get(_key(queue), {})
        for position in positions_in(ranges):
            each = kept.pop(position, None)
            if each is not None:
                self._written += 1
                self.contents.pop(each.place, None)

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

    def load(self, queue: Queue, ranges: Sequence[Range], done: Loaded) -> None:
        self._loads.append((_key(queue), [*ranges], done))

    def serve(self) -> int:
        """Bring what was asked for; how many loads that were."""
        loads, self._loads = self._loads, []
        for key, ranges, done in loads:
            kept = {} if self.broken else self.kept.get(key, {})
            found: dict[int, Message] = {}
            for position in positions_in(ranges):
                message = self.contents.get(kept[position].place) if position in kept else None
                if message is not None:
                    found[position] = message
            done(found, None if len(found) == count_of(ranges) else self.error)
        return len(loads)

    def on_disk(self, queue: Queue, ranges: Sequence[Range]) -> list[Range]:
        kept = self.kept.get(_key(queue), {})
        return ranges_of([at for at in positions_in(ranges) if at in kept and kept[at].place <= self.synced()])

    def place(self, queue: Queue, position: int) -> int:
        return self.kept[_key(queue)][position].place

    def close(self, done: Callable[[], None]) -> None:
        self.sync()
        done()


def _key(queue: Queue) -> Key:
    return queue.vhost.name, queue.name, queue.incarnation


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

    def get(self, name: str = "q", no_ack: bool = False, holder: object = "somebody") -> Seen | None:
        entries = seen(self.vhost.queues[name])
        got = self.ask(lambda done: self.vhost.get(name, holder, no_ack, done))
        if got is None:
            return None
        (position,) = got.delivery.positions()
        entry = entries[position]
        entry.given_again = bool(got.delivery.flagged)
        return entry

    def watch(self, queue: Queue) -> Diary:
        diary = Diary()
        queue.observers.append(diary)
        return diary


def bodies(queue: Queue) -> list[str]:
    """The ready messages of a queue, as consumers would get them."""
    return [text(entry) for entry in in_order(queue)]


def headers(entry: Seen) -> Table:
    assert entry.message is not None
    return entry.message.properties().headers or {}
