"""A log on a simulated disk, and an owner that remembers what it was told, on a host that can lose its power."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Coroutine, Iterable
from dataclasses import dataclass, field
from typing import Any, TypeVar

from store_rig import TroubledDisk

from coterie.errors import DiskError
from coterie.log.event_log import EventLog
from coterie.log.merge import Kept
from coterie.log.place import ORIGIN, Place, Position
from coterie.log.record import Record, make_record
from coterie.log.settings import LogSettings
from coterie.log.snapshot import Snapshot
from coterie.runtime.base import Buffer
from coterie.sim.clock import World
from coterie.sim.network import Fabric
from coterie.sim.node import Node
from coterie.sim.runtime import SimRuntime

T = TypeVar("T")
LOG_ID = b"the log of tests"
SMALL = LogSettings(
    segment_bytes=2_000, append_bytes=900, backlog_bytes=20_000, retain_bytes=4_000, read_bytes=256, batch_bytes=700,
    gap_bytes=150, slice_bytes=300, tables_bytes=500,
)  # fmt: skip
"""Everything happens after a few records."""


def next_chain(chain: bytes, place: Place, head: bytes, effects: bytes) -> bytes:
    return hashlib.blake2b(repr((chain, tuple(place), head, effects)).encode(), digest_size=16).digest()


@dataclass
class History:
    """An owner: what it was told, in order, and what is live of it."""

    base: int = 0
    """Records up to that ordinal came by a snapshot."""
    records: dict[int, Record] = field(default_factory=dict)
    dead: set[Place] = field(default_factory=set)

    def load(self, snapshot: Snapshot) -> None:
        self.base = snapshot.position.ordinal
        self.state = snapshot.sections

    state: dict[int, bytes] = field(default_factory=dict)

    def apply(self, before: Position, record: Record) -> bool:
        if record.chain != next_chain(before.chain, record.place, bytes(record.head), bytes(record.effects)):
            return False
        self.records[record.ordinal] = record
        return True

    def live_bytes(self, after: Place, upto: Place) -> int:
        return sum(
            record.size
            for record in self.records.values()
            if after < record.place <= upto and record.place not in self.dead
        )

    def merging(self, after: Place, upto: Place) -> None:
        pass

    def live(self, place: Place, head: bytes) -> Kept | None:
        if place in self.dead:
            return None
        size = next(record.body_size for record in self.records.values() if record.place == place)
        return Kept(head, [(0, size)])


def event(before: Position, place: Place, body: bytes = b"", volatile: bool = False, sender: bytes = b"a") -> Record:
    head, effects = b"head of %d/%d" % place, b"effects of %d/%d" % place
    half = len(body) // 2
    bodies: list[Buffer] = [body[:half], memoryview(body)[half:]] if body else []
    chain = next_chain(before.chain, place, head, effects)
    return make_record(place, sender, chain, head, effects, bodies, volatile=volatile)


class Host:
    """A simulated host with a log on its disk."""

    log: EventLog
    owner: History
    disk: TroubledDisk

    def __init__(
        self, seed: int | str = 1, settings: LogSettings = SMALL, tear: bool = True, boot: bool = True
    ) -> None:
        self.world = World(seed)
        self.node = Node(self.world, Fabric(self.world), "a")
        self.node.platter.tear = tear
        self.settings = settings
        self.owner = self.new_owner()
        self.epoch = 1
        self.boot()

    @property
    def runtime(self) -> SimRuntime:
        assert self.node.process is not None
        return self.node.process

    @property
    def files(self) -> dict[str, bytes]:
        return {name.removeprefix("log/"): bytes(file.data) for name, file in self.node.platter.files.items()}

    def boot(self, log_id: bytes | None = LOG_ID) -> None:
        """Start, and recover. Raises DiskError."""
        runtime = self.node.boot()
        self.disk = TroubledDisk(self.world, self.node.platter)
        self.disk.owner = runtime.owner
        runtime.disk = self.disk
        dead, self.owner = self.owner.dead, self.new_owner()
        self.owner.dead = dead
        self.log = self.do(EventLog.open(runtime, "log", self.settings, log_id, self.owner))

    def new_owner(self) -> History:
        return History()

    def crash(self, log_id: bytes | None = LOG_ID) -> None:
        self.node.crash()
        self.boot(log_id)

    def restart(self) -> None:
        """A proper end, and the next start."""
        self.do(self.log.close())
        self.node.exit(self.runtime.incarnation)
        self.boot()

    def damage(self, name: str, at: int, bit: int = 0) -> None:
        file = self.node.platter.files[f"log/{name}"]
        file.data[at] ^= 1 << bit
        file.safe = bytes(file.data)
        file.writes = []

    def put(self, name: str, data: bytes) -> None:
        """As if somebody had put a file there."""
        self.do(_write(self.runtime, f"log/{name}", data))

    def add(self, *bodies: bytes, volatile: bool = False) -> list[Record]:
        """Append an event for each body."""
        added = []
        for body in bodies:
            last = self.log.writer.last
            index = last.place.index + 1 if last.place.epoch == self.epoch else 1
            record = event(last, Place(self.epoch, index), body, volatile)
            self.log.append(record)
            self.owner.records[record.ordinal] = record
            added.append(record)
        return added

    def fill(self, count: int, size: int = 100) -> list[Record]:
        start = self.log.writer.last.ordinal + 1
        return self.add(*(b"%d:" % n + b"." * size for n in range(start, start + count)))

    def sync(self) -> None:
        done: list[bool] = []
        self.log.writer.when_synced(self.log.writer.last.place, lambda: done.append(True))
        self.until(lambda: bool(done))

    def snapshot(self, pieces: Iterable[tuple[int, bytes]] = ((1, b"state"),), place: Place | None = None) -> None:
        place = place or self.log.writer.synced.place
        self.do(self.log.snapshot(place, place, pieces))

    def bodies(self, places: Iterable[Place]) -> dict[Place, bytes | str]:
        """What the log has for these places; or what is wrong."""
        left = list(places)
        found: dict[Place, bytes | str] = {}
        while left:
            some = self.do(self.log.reader.read(left))
            assert some
            for bodies in some:
                found[bodies.place] = bodies.problem if bodies.data is None else bytes(bodies.data)
            del left[: len(some)]
        return found

    async def _read(self, after: Place) -> list[Record]:
        return [record async for batch in self.log.tail.read(after) for record in batch]

    def read(self, after: Place = ORIGIN.place) -> list[Record]:
        return self.do(self._read(after))

    def run(self, seconds: float = 1.0) -> None:
        self.world.run(self.world.time + seconds)

    def turn(self) -> None:
        """What is ready happens; no time passes."""
        self.world.run(self.world.time)

    def do(self, work: Coroutine[Any, Any, T], seconds: float = 60.0) -> T:
        results: list[T | BaseException] = []

        async def caught() -> None:
            try:
                results.append(await work)
            except (DiskError, ValueError) as error:
                results.append(error)

        self.runtime.spawn(caught())
        self.until(lambda: bool(results), seconds)
        if isinstance(results[0], BaseException):
            raise results[0]
        return results[0]

    def until(self, happened: Callable[[], object], seconds: float = 60.0) -> None:
        end = self.world.time + seconds
        while not happened():
            assert self.world.time < end, "it does not happen"
            self.world.run(self.world.time + 0.001)


async def _write(runtime: SimRuntime, path: str, data: bytes) -> None:
    future = runtime.future()
    runtime.disk.append(path, [data], future.set_result)
    await future
    synced = runtime.future()
    runtime.disk.sync(path, synced.set_result)
    await synced


def content(record: Record) -> tuple[object, ...]:
    """All of a record, to be compared."""
    bodies = b"".join(record.bodies)
    return record.place, record.sender, record.chain, bytes(record.head), bytes(record.effects), bodies


def head_of(record: Record) -> tuple[object, ...]:
    return record.place, record.sender, record.chain, bytes(record.head), bytes(record.effects), record.body_size
