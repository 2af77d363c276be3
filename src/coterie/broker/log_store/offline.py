"""The store of a node that does not run: what is in it, whether all of it can be read, and one change of it.

A change is one record: a crash at any moment leaves the store as it was, or as it shall be.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Final

from coterie.broker.delivery import count_of
from coterie.broker.log_store.conversion.conversion import Conversion
from coterie.broker.log_store.generation import Generation
from coterie.broker.log_store.index import EPOCH
from coterie.broker.log_store.lines import QueueKey
from coterie.broker.log_store.opening import Opening
from coterie.broker.log_store.own_records import CLOSED, LINE
from coterie.broker.log_store.settings import StoreSettings
from coterie.broker.log_store.store import POSITIONS_PER_SECOND
from coterie.broker.log_store.unit import Unit
from coterie.broker.ranges import Range
from coterie.broker.storage import Record, Recovered
from coterie.errors import DiskError, UserError
from coterie.log.generation import Generations
from coterie.log.place import Place
from coterie.runtime.base import Runtime, resolve

_AT_ONCE: Final = 4096
"""Records that are read in one step, at most."""
_NO_SNAPSHOT: Final = 2**63
Progress = Callable[[int, int], None]
"""Told how many records have been read, and of how many."""


@dataclass(slots=True)
class Unreadable:
    """Messages whose content is damaged."""

    ranges: dict[QueueKey, list[Range]] = field(default_factory=dict)
    """Their positions, by queue."""
    queues: dict[QueueKey, int] = field(default_factory=dict)
    """How many in each queue."""

    @property
    def count(self) -> int:
        return sum(self.queues.values())


class OfflineStore:
    """One that nobody else uses."""

    def __init__(
        self, runtime: Runtime, settings: StoreSettings, generations: Generations, generation: Generation,
        found: Recovered,
    ) -> None:  # fmt: skip
        self._runtime = runtime
        self._settings = settings
        self._generations = generations
        self._generation = generation
        self.found = found

    @classmethod
    async def open(cls, runtime: Runtime, settings: StoreSettings, folder: str = "log") -> OfflineStore:
        """As a start of the node would. Raises DiskError, and UserError for a store of the form before the log."""
        generations = Generations(runtime, folder, settings.aside_max)
        if await Conversion(runtime, settings, generations).needed():
            raise UserError(
                "the folder holds a store of an earlier form: start its node once with this version, and stop it"
            )
        opening = Opening(runtime, settings, generations)
        return cls(runtime, settings, generations, await opening.run(), opening.result)

    @property
    def last(self) -> int:
        """The ordinal of its last record, as it was found."""
        return self._generation.log.found.last.ordinal

    @property
    def folder(self) -> str:
        """Of the generation that counts."""
        return self._generations.path(self._generation.number)

    @property
    def messages(self) -> dict[QueueKey, int]:
        """How many each queue has."""
        return {key: len(entries) for key, (_, entries) in sorted(self.found.queues.items())}

    async def check(self, progress: Progress = lambda done, of: None) -> Unreadable:
        """Read the content of every message. Raises DiskError if the disk cannot say what it has."""
        states = self._generation.index.state.queues
        records = sorted({run.ref for state in states.values() for run in state.runs})
        bad: set[int] = set()
        done = 0
        while done < len(records):
            wanted = [Place(EPOCH, number) for number in islice(records, done, done + _AT_ONCE)]
            for bodies in await self._generation.log.reader.read(wanted):
                done += 1
                if bodies.data is None and not bodies.lasting:
                    raise DiskError(bodies.problem)
                if bodies.data is None:
                    bad.add(bodies.place.index)
            progress(done, len(records))
        return self._unreadable(bad)

    def _unreadable(self, bad: set[int]) -> Unreadable:
        found = Unreadable()
        index = self._generation.index
        for number, state in index.state.queues.items() if bad else ():
            ranges = [each for run in state.runs if run.ref in bad for each in state.live.ranges(run.first, run.stop)]
            if ranges:
                key = index.parts[number].line.key
                found.ranges.setdefault(key, []).extend(ranges)
                found.queues[key] = found.queues.get(key, 0) + count_of(ranges)
        return found

    async def change(
        self, saved: Mapping[tuple[str, str], Record | None], leaving: Mapping[QueueKey, Sequence[Range]]
    ) -> None:
        """Keep, or delete, these records, let these messages leave, and have queues go on behind every position that
        anybody may have been given; what is there may have been delivered. Damage that there was is not met
        again. Raises DiskError: then nobody knows whether it was done."""
        unit = Unit()
        for name, record in saved.items():
            unit.save((name, None if record is None else json.dumps(record, separators=(",", ":")).encode()))
        for text, record in self._positions():
            unit.save(((LINE, text), json.dumps(record, separators=(",", ":")).encode()))
        unit.save(((CLOSED, ""), None))
        for key, ranges in leaving.items():
            unit.leave(self._generation.index.lines[key], ranges)
        writer = self._generation.log.writer
        place = Place(EPOCH, writer.last.place.index + 1)
        synced = self._runtime.future()

        def refused(now: bool) -> None:
            if now and not synced.done():
                synced.set_exception(DiskError("the disk refuses: whether the store was changed is not known"))

        writer.on_refused = refused
        self._generation.append(unit, place.index, self._settings.copy_max, hurry=True)
        writer.when_synced(place, lambda: resolve(synced, None))
        try:
            await synced
            if leaving or self.found.damage:  # behind a snapshot damage is not read, and not told, again
                await self._generation.tender.snapshot()
        except DiskError:
            writer.stop()
            raise

    def _positions(self) -> Iterator[tuple[str, Record]]:
        """By the clock's: it outruns any queue."""
        clock = int(self._runtime.wall() * POSITIONS_PER_SECOND)
        for line in self._generation.index.lines.values():
            yield line.text, {"next": max(line.next, clock), "delivered": line.delivered}

    async def close(self) -> None:
        """Raises DiskError."""
        await self._generation.end(_NO_SNAPSHOT)
