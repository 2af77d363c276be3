"""One generation of the store: a log, its index, and what is done with both in the background."""

from __future__ import annotations

from collections import deque
from typing import Final
from zlib import crc32

from coterie.broker.log_store.index import EPOCH, Index, next_chain
from coterie.broker.log_store.loading import Loader
from coterie.broker.log_store.settings import StoreSettings
from coterie.broker.log_store.tending import Tender
from coterie.broker.log_store.unit import Unit
from coterie.log.event_log import EventLog
from coterie.log.generation import Generations
from coterie.log.place import Place
from coterie.log.record import make_record
from coterie.log.settings import LogSettings
from coterie.runtime.base import Buffer, Runtime

_SENDER: Final = b""


class Generation:
    def __init__(self, runtime: Runtime, settings: StoreSettings, number: int, index: Index, log: EventLog) -> None:
        self.number = number
        self.index = index
        self.log = log
        self.loader = Loader(runtime, index, log.reader)
        self.tender = Tender(runtime, settings, log, index)
        self.units: deque[tuple[int, int]] = deque()
        """Records that are not on disk yet: ordinal, and the store's place after it."""
        self.stopped = False

    @classmethod
    def new(
        cls, runtime: Runtime, settings: StoreSettings, of_log: LogSettings, generations: Generations, log_id: bytes
    ) -> Generation:
        """One that does not count yet."""
        number, index = generations.new(), Index()
        return cls(
            runtime, settings, number, index, EventLog.new(runtime, generations.path(number), of_log, log_id, index)
        )  # fmt: skip

    def append(self, unit: Unit, index: int, copy_max: int, hurry: bool = False) -> None:
        """The unit becomes the record with this index. Bodies above `copy_max` bytes are not copied."""
        head, effects = self.index.take(unit, index)
        place = Place(EPOCH, index)
        bodies = _joined(unit.contents, copy_max)
        crc = 0
        for body in bodies:
            crc = crc32(body, crc)
        chain = next_chain(self.log.writer.last.chain, place, head, effects, crc)
        record = make_record(place, _SENDER, chain, head, effects, bodies, body_crc=crc)
        self.units.append((self.log.writer.append(record, hurry), unit.upto))
        self.tender.grown += record.size

    def synced(self, ordinal: int) -> int | None:
        """Records up to that one are on disk: the store's place after them, if that is another one now."""
        units, upto = self.units, None
        while units and units[0][0] <= ordinal:
            upto = units.popleft()[1]
        if upto is not None:
            self.index.synced(upto)
        return upto

    @property
    def unsynced(self) -> bool:
        return self.log.writer.synced.ordinal < self.log.writer.last.ordinal

    @property
    def busy(self) -> bool:
        return self.tender.busy

    def retire(self) -> None:
        """Another follows. What this one was told is still written and synced."""
        self.tender.stop()
        writer = self.log.writer
        writer.on_refused, writer.on_synced = _ignore, _ignore
        writer.hurry(writer.last.place)
        writer.flush()

    def stop(self) -> None:
        """Nobody will ever read what it was told."""
        self.stopped = True
        self.tender.stop()
        self.log.writer.stop()

    async def end(self, growth: int) -> None:
        """A proper end, with a snapshot if the log has grown by that much. Raises DiskError."""
        self.tender.stop()
        while self.tender.busy:
            await self.log.segments.folder.rest(0.001)
        if self.tender.grown >= growth:
            await self.tender.last_snapshot()
        await self.log.close()


def _ignore(_: object) -> None:
    """Nobody listens any more."""


def _joined(contents: list[Buffer], copy_max: int) -> list[Buffer]:
    """As few buffers as can be without copying what is large."""
    if not contents:
        return []
    if max(map(len, contents)) <= copy_max:
        return [b"".join(contents)]
    found: list[Buffer] = []
    small: list[Buffer] = []
    for each in contents:
        if len(each) <= copy_max:
            small.append(each)
            continue
        if small:
            found.append(b"".join(small))
            small = []
        found.append(each)
    if small:
        found.append(b"".join(small))
    return found
