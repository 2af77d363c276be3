"""A store of the form before the log becomes a log: at the first start, once.

What is in it is written into a generation of the log of its own, which counts when it is whole and synced; then the old
folder goes. A crash before that leaves the old one, and the next start begins again.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Final
from zlib import crc32

from coterie.broker.log_store.conversion.files import WHOLE, generation_of, is_of_store, parse_name
from coterie.broker.log_store.conversion.found import OldMessage
from coterie.broker.log_store.conversion.index import Index
from coterie.broker.log_store.conversion.recovery import Recovery
from coterie.broker.log_store.generation import Generation
from coterie.broker.log_store.lines import Line, Part, QueueKey, kind_of
from coterie.broker.log_store.own_records import CLOSED, LINE, STARTED
from coterie.broker.log_store.settings import StoreSettings
from coterie.broker.log_store.unit import Arrival, Unit
from coterie.errors import DiskError
from coterie.log.folder import Folder
from coterie.log.generation import Generations
from coterie.logs import Log
from coterie.runtime.base import Runtime

OLD: Final = "store"
"""The folder of the old form."""
log = Log(__name__)


class Conversion:
    """One of them. Everything raises DiskError."""

    def __init__(self, runtime: Runtime, settings: StoreSettings, generations: Generations) -> None:
        self._runtime = runtime
        self._settings = settings
        self._generations = generations
        self._files: dict[str, list[str]] = {}
        self.damage: list[str] = []
        """What could not be read, in sentences."""

    async def needed(self) -> bool:
        """Whether there is an old store."""
        for path in await Folder(self._runtime, OLD).list_all():
            folder, _, name = path.rpartition("/")
            if generation_of(folder, OLD) is not None and is_of_store(name):
                self._files.setdefault(folder, []).append(name)
        return any(parse_name(name) for names in self._files.values() for name in names)

    async def run(self) -> int:
        """Gives the generation of the log that it has become."""
        counting = [name for name, files in self._files.items() if name == OLD or WHOLE in files]
        old = Folder(self._runtime, max(counting, key=lambda name: generation_of(name, OLD) or 0, default=OLD))
        log.info("the store is written anew, as a log", folder=old.path(""))
        index = Index()
        recovery = Recovery(old, self._settings.read_bytes, index)
        await recovery.run()
        found = recovery.result
        of_log = self._settings.of_log()
        generation = Generation.new(
            self._runtime, self._settings, of_log, self._generations, self._runtime.entropy(16)
        )  # fmt: skip
        copy = _Copy(old, index, generation, self._settings)
        for (kind, key), record in found.records.items():
            await copy.save(kind, key, record)
        for queue, (next_position, entries) in found.queues.items():
            delivered = recovery.delivered.get(queue, 0)
            await copy.queue(
                queue,
                next_position,
                delivered,
                [each for each in entries if isinstance(each, OldMessage) and each.number not in recovery.lost],
            )
        await copy.save(STARTED, "", {"incarnation": found.previous})
        if found.clean and found.previous:
            await copy.save(CLOSED, "", {"incarnation": found.previous})
        await copy.end()
        await self._generations.complete(generation.number)
        self.damage = [*found.damage, *copy.damage]
        return generation.number

    async def remove(self) -> None:
        """The old store: what counts last."""
        for folder, names in sorted(self._files.items(), key=lambda item: generation_of(item[0], OLD) or 0):
            for name in sorted(names, key=lambda name: name == WHOLE):
                await Folder(self._runtime, folder).remove(name)


class _Copy:
    """Writes what it is given, record by record."""

    def __init__(self, old: Folder, index: Index, generation: Generation, settings: StoreSettings) -> None:
        self._old = old
        self._index = index
        self._generation = generation
        self._settings = settings
        self._unit = Unit()
        self._units = 0
        self._shared: dict[int, tuple[int, int]] = {}
        """Where contents of several messages are now: record and offset."""
        self.damage: list[str] = []

    async def save(self, kind: str, key: str, record: dict[str, object]) -> None:
        self._unit.save(((kind, key), json.dumps(record, separators=(",", ":")).encode()))
        await self._next()

    async def queue(self, key: QueueKey, next_position: int, delivered: int, entries: Sequence[OldMessage]) -> None:
        line = Line(key, next_position, delivered)
        await self.save(LINE, line.text, line.record())
        if not entries:
            return
        marks = [entry.mark for entry in entries]
        part = Part(self._generation.index.next_part, line, kind_of(marks))
        self._generation.index.next_part += 1
        line.parts[part.number] = line.current = part
        self._unit.made.append(part)
        for some in self._batches(entries):
            await self._copy(part, some)
            await self._next()

    def _batches(self, entries: Sequence[OldMessage]) -> Iterator[list[OldMessage]]:
        """Those whose contents are near each other, so that one read brings them."""
        batch: list[OldMessage] = []
        size = 0
        for entry in entries:
            batch.append(entry)
            size += entry.size + 64
            if size >= self._settings.record_bytes:
                yield batch
                batch, size = [], 0
        if batch:
            yield batch

    async def _copy(self, part: Part, entries: list[OldMessage]) -> None:
        contents = await self._read(entries)
        unit, record = self._unit, self._units + 1
        for entry in entries:
            number = self._index.refers.get(entry.number, entry.number)
            at = self._shared.get(number)
            if at is None:
                content = contents.get(number)
                if content is None:
                    self.damage.append(f"message {entry.position} of queue '{part.line.key[1]}' is damaged")
                    continue
                at = record, len(unit.content_sizes)
                unit.contents.append(content)
                unit.content_sizes.append(len(content))
                unit.size += len(content)
                if number in self._index.shared:
                    self._shared[number] = at
            expires = None if entry.expires is None else [round(entry.expires * 1000)]
            marks = None if entry.mark is None else [entry.mark]
            unit.arrive(Arrival(part, entry.position, *at, [entry.size], expires, marks))

    async def _read(self, entries: list[OldMessage]) -> dict[int, bytes]:
        """Contents by their numbers; without those that are damaged."""
        found: dict[int, bytes] = {}
        numbers = {self._index.refers.get(entry.number, entry.number) for entry in entries} - self._shared.keys()
        places = [(number, place) for number in numbers if (place := self._index.find(number)) is not None]
        places.sort(key=lambda each: (each[1].segment.name, each[1].offset))
        at = 0
        while at < len(places):
            first = places[at][1]
            until = at
            end = first.offset
            while until < len(places) and places[until][1].segment is first.segment:
                place = places[until][1]
                if until > at and place.offset + place.size - first.offset > self._settings.read_bytes:
                    break
                end = place.offset + place.size
                until += 1
            data = await self._old.read(first.segment.name, first.offset, end - first.offset)
            for number, place in places[at:until]:
                content = data[place.offset - first.offset :][: place.size]
                if len(content) == place.size and crc32(content) == place.crc:
                    found[number] = content
            at = until
        return found

    async def _next(self) -> None:
        """End the record if there is enough in it, and wait for the disk if there is much to be written."""
        if self._unit.size >= self._settings.record_bytes:
            self._end()
            while self._generation.log.writer.unsynced > self._settings.pending_max // 4:
                await self._old.rest(0.01)

    def _end(self) -> None:
        if not self._unit.empty:
            self._units += 1
            self._unit.upto = self._units
            self._generation.append(self._unit, self._units, self._settings.copy_max, hurry=True)
            self._unit = Unit()

    async def end(self) -> None:
        """Everything is on disk, with a snapshot."""
        self._end()
        await self._generation.end(0)
        if self._generation.unsynced:
            raise DiskError("the store cannot be written anew: the disk refuses")
