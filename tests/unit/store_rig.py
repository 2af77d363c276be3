"""A store on a simulated disk: queues that only a store sees, on a host that can crash."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar, cast

from coterie.amqp.wire.properties import Properties
from coterie.broker.cluster import Cluster, NullCluster
from coterie.broker.delivery import positions_in, ranges_of
from coterie.broker.log_store import LogStore, StoreSettings
from coterie.broker.message import Message, make_message
from coterie.broker.observer import Arrived, Mark, Reason
from coterie.broker.queue import Queue
from coterie.broker.ranges import Range
from coterie.broker.storage import Recovered
from coterie.errors import DiskError
from coterie.runtime.base import Runtime
from coterie.sim.clock import World
from coterie.sim.disk import SimDisk
from coterie.sim.network import Fabric
from coterie.sim.node import Node

T = TypeVar("T")

SMALL = StoreSettings(
    segment_bytes=2_000, record_bytes=500, reserve_bytes=0, positions_ahead=8, snapshot_bytes=1_000, compact_bytes=300,
    read_bytes=256, load_bytes=400, load_gap=50, tables_bytes=500, copy_max=60,
)  # fmt: skip
"""Everything happens after a few messages."""


def persistent(body: bytes, key: str = "key", **properties: Any) -> Message:
    return make_message("exchange", key, body, Properties(delivery_mode=2, **properties))


def transient(body: bytes) -> Message:
    return make_message("exchange", "key", body)


@dataclass(eq=False)
class Vhost:
    name: str = "/"


@dataclass(eq=False)
class Kept:
    """A message of a queue that only a store sees."""

    line: Line
    position: int
    message: Message | None
    """None: it is on disk only."""
    size: int
    redelivered: bool = False
    mark: Mark = None


@dataclass(eq=False)
class Line:
    """What a store sees of a queue."""

    store: LogStore
    name: str = "q"
    incarnation: int = 1
    next_position: int = 1
    vhost: Vhost = field(default_factory=Vhost)
    entries: dict[int, Kept] = field(default_factory=dict)

    @property
    def queue(self) -> Queue:
        return cast(Queue, self)

    @property
    def cluster(self) -> Cluster:
        cluster = NullCluster()
        cluster.start(self.store._runtime)
        return cluster

    def put(self, *messages: Message, expires: float | None = None, mark: Mark = None) -> list[Kept]:
        first = self.next_position
        entries = [Kept(self, first + at, each, len(each.body), mark=mark) for at, each in enumerate(messages)]
        self.entries.update((entry.position, entry) for entry in entries)
        self.next_position += len(messages)
        times = None if expires is None else [expires] * len(messages)
        marks = None if mark is None else [mark] * len(messages)
        self.store.enqueued(self.queue, Arrived(first, messages, times, marks))
        return entries

    def fill(self, first: int, count: int, size: int = 40) -> list[Kept]:
        """Messages that tell their positions."""
        return self.put(*(persistent(body(self.name, n, size)) for n in range(first, first + count)))

    def deliver(self, entries: Sequence[Kept]) -> None:
        self.store.acquired(self.queue, self, ranges(entries))

    def take(self, entries: Sequence[Kept], reason: Reason = Reason.ACCEPTED) -> None:
        for entry in entries:
            del self.entries[entry.position]
        self.store.dequeued(self.queue, ranges(entries), reason)

    def restore(self, store: LogStore, found: Recovered) -> None:
        """As a broker does it after a restart."""
        self.store = store
        next_position, entries = found.queues.get((self.vhost.name, self.name, self.incarnation), (1, []))
        self.next_position = next_position
        self.entries = {}
        for item in entries:
            entry = Kept(self, item.position, item.message, item.size, item.redelivered, item.mark)
            self.entries[item.position] = entry


def ranges(entries: Sequence[Kept]) -> list[Range]:
    return ranges_of([entry.position for entry in entries])


def load(store: LogStore, entries: Sequence[Kept], done: Callable[[Exception | None], None]) -> None:
    """Of one queue."""

    def loaded(found: dict[int, Message], error: Exception | None) -> None:
        for entry in entries:
            entry.message = found.get(entry.position, entry.message)
        done(error)

    if entries:
        store.load(entries[0].line.queue, ranges(entries), loaded)
    else:
        done(None)


def page_out(store: LogStore, entries: Sequence[Kept]) -> int:
    """Forget those that are on disk, of one queue; how many that were."""
    out = [*store.on_disk(entries[0].line.queue, ranges(entries))] if entries else []
    gone = {*positions_in(out)}
    for entry in entries:
        if entry.position in gone:
            entry.message = None
    return len(gone)


def place_of(store: LogStore, entry: Kept) -> tuple[int, int] | None:
    """Record and offset."""
    line = store.index.lines[entry.line.vhost.name, entry.line.name, entry.line.incarnation]
    at = entry.position
    return next(((record, offset) for record, offset, _ in store.index.places(line, [(at, at + 1)])), None)


def body(queue: str, number: int, size: int = 40) -> bytes:
    return f"{queue}:{number}:".encode().ljust(size, b".")


class PowerCut(BaseException):
    """The power is lost in the middle of a disk operation."""


class TroubledDisk(SimDisk):
    """Asks before each operation, and after it has had its effect but before anybody is told."""

    before: Callable[[], None] | None = None
    after: Callable[[], None] | None = None
    sync_fails: Callable[[str], bool] = staticmethod(lambda name: False)
    remove_fails: Callable[[str], bool] = staticmethod(lambda name: False)
    replace_fails: Callable[[str], bool] = staticmethod(lambda name: False)
    """Of the new name: the file is renamed, and that is reported as failed."""
    read_fails: Callable[[str], bool] = staticmethod(lambda name: False)

    def read(self, name: str, offset: int, size: int, done: Callable[[bytes | Exception], None]) -> None:
        if self.read_fails(name):
            self._do((name,), 0.001, lambda: _refuse(name), done)
        else:
            super().read(name, offset, size, done)

    def remove(self, name: str, done: Callable[[Exception | None], None]) -> None:
        if self.remove_fails(name):
            self._do((name,), 0.001, lambda: _refuse(name), done)
        else:
            super().remove(name, done)

    def replace(self, old: str, new: str, done: Callable[[Exception | None], None]) -> None:
        if self.replace_fails(new):
            super().replace(old, new, lambda _: done(DiskError(f"{old}: input/output error")))
        else:
            super().replace(old, new, done)

    def sync(self, name: str, done: Callable[[Exception | None], None]) -> None:
        if self.sync_fails(name):
            self._do((name,), 0.001, lambda: _refuse(name), done)
        else:
            super().sync(name, done)

    def _do(self, names: Sequence[str], latency: float, work: Callable[[], T], done: Callable[[Any], None]) -> None:
        def watched() -> T:
            if self.before is not None:
                self.before()
            result = work()
            if self.after is not None:
                self.after()
            return result

        super()._do(names, latency, watched, done)


def _refuse(name: str) -> None:
    raise DiskError(f"{name}: input/output error")


class Host:
    """A simulated host with a store on its disk."""

    disk: TroubledDisk
    sync_fails: Callable[[str], bool] = staticmethod(lambda name: False)
    disk_reads_fail: Callable[[str], bool] = staticmethod(lambda name: False)
    """What the disk of the next start will be like."""

    def __init__(self, seed: int | str = 1, settings: StoreSettings = SMALL, tear: bool = True) -> None:
        self.world = World(seed)
        self.node = Node(self.world, Fabric(self.world), "a")
        self.node.platter.tear = tear
        self.settings = settings
        self.alarms: list[bool] = []
        self.found: Recovered
        self.store: LogStore
        self.boot()

    @property
    def runtime(self) -> Runtime:
        assert self.node.process is not None
        return self.node.process

    @property
    def files(self) -> dict[str, bytes]:
        return {name: bytes(file.data) for name, file in self.node.platter.files.items()}

    def boot(self) -> None:
        runtime = self.node.boot()
        self.disk = TroubledDisk(self.world, self.node.platter)
        self.disk.owner = runtime.owner
        self.disk.sync_fails, self.disk.read_fails = self.sync_fails, self.disk_reads_fail
        runtime.disk = self.disk
        self.start(LogStore(runtime, self.settings))

    def start(self, store: LogStore) -> None:
        self.store = store
        self.alarms = []
        store.alarm = self.alarms.append
        results: list[Recovered | Exception] = []
        store.recover(results.append)
        self.until(lambda: bool(results))
        (result,) = results
        if isinstance(result, Exception):
            raise result
        self.found = result

    def crash(self, *lines: Line) -> Recovered:
        """Power is lost; the next start recovers."""
        self.node.crash()
        self.boot()
        for line in lines:
            line.restore(self.store, self.found)
        return self.found

    def close(self, *lines: Line) -> Recovered:
        """A proper end, and the next start."""
        ended: list[bool] = []
        self.store.close(lambda: ended.append(True))
        self.until(lambda: bool(ended))
        assert self.node.process is not None
        self.node.exit(self.node.process.incarnation)
        self.boot()
        for line in lines:
            line.restore(self.store, self.found)
        return self.found

    def run(self, seconds: float = 1.0) -> None:
        self.world.run(self.world.time + seconds)

    def turn(self) -> None:
        """What is ready happens; no time passes."""
        self.world.run(self.world.time)

    def until(self, happened: Any, seconds: float = 60.0) -> None:
        end = self.world.time + seconds
        while not happened():
            assert self.world.time < end, "it does not happen"
            self.world.run(self.world.time + 0.001)

    def sync(self) -> None:
        """Until all that the store was told is durable."""
        done: list[bool] = []
        self.store.when_synced(self.store.written(), lambda: done.append(True))
        self.until(lambda: bool(done))

    def load(self, entries: Sequence[Kept]) -> Exception | None:
        results: list[Exception | None] = []
        load(self.store, entries, results.append)
        self.until(lambda: bool(results))
        return results[0]

    def bodies(self, line: Line) -> dict[int, bytes]:
        """What is in a queue, by position, read from disk where it is not in memory."""
        missing = [entry for entry in line.entries.values() if entry.message is None]
        if missing:
            assert self.load(missing) is None
        return {position: bytes(entry.message.body) for position, entry in line.entries.items() if entry.message}
