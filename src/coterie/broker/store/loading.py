"""Bringing paged-out messages back: in few reads, in the order in which they were asked for, one at a time.

Neighbours on disk are read together, also if a little of something else lies between them. What is read is checked
against the checksum; a message that cannot be read stays out, and whoever asked gets the error.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from itertools import islice
from zlib import crc32

from coterie.broker.entry import Entry
from coterie.broker.store.content import decode_content
from coterie.broker.store.files import Files
from coterie.broker.store.format import Damaged
from coterie.broker.store.index import Index
from coterie.broker.store.segment import Place
from coterie.broker.store.settings import StoreSettings
from coterie.errors import DiskError
from coterie.logs import Log
from coterie.runtime.base import Runtime

log = Log(__name__)

Done = Callable[[Exception | None], None]


class Loader:
    """Bounded by who asks: each queue asks for one batch at a time."""

    def __init__(self, runtime: Runtime, files: Files, settings: StoreSettings, index: Index) -> None:
        self._runtime = runtime
        self._files = files
        self._settings = settings
        self._index = index
        self._waiting: deque[tuple[Sequence[Entry], Done]] = deque()
        self._running = False
        self.damaged = 0
        """Messages that could not be read."""

    def load(self, entries: Sequence[Entry], done: Done) -> None:
        self._waiting.append((entries, done))
        if not self._running:
            self._running = True
            self._runtime.spawn(self._run())

    async def _run(self) -> None:
        try:
            while self._waiting:
                entries, done = self._waiting.popleft()
                done(await self._load(entries))
        except Exception:  # somebody's `done` raised: the others are served all the same
            self._running = bool(self._waiting)
            if self._running:
                self._runtime.spawn(self._run())
            raise
        self._running = False

    async def _load(self, entries: Sequence[Entry]) -> Exception | None:
        error: Exception | None = None
        placed = [(place, entry) for entry in entries if (place := self._index.find(entry.stored)) is not None]
        if len(placed) < len(entries):
            error = DiskError(f"{len(entries) - len(placed)} messages are not in the store")
        placed.sort(key=lambda pair: (pair[0].segment.id, pair[0].offset))
        at = 0
        while at < len(placed):
            group = self._group(placed, at)
            at += len(group)
            try:
                failed = await self._read(group)
            except DiskError as refused:
                failed = refused
            error = failed or error
        return error

    def _group(self, placed: list[tuple[Place, Entry]], at: int) -> list[Entry]:
        """Those from there on that one read can bring."""
        first, entry = placed[at]
        group, end = [entry], first.offset + first.size
        for place, entry in islice(placed, at + 1, None):
            gap = place.offset - end
            if place.segment is not first.segment or gap > self._settings.load_gap:
                break
            if place.offset + place.size - first.offset > self._settings.load_bytes:
                break
            group.append(entry)
            end = max(end, place.offset + place.size)
        return group

    async def _read(self, group: list[Entry]) -> Exception | None:
        """Where they are is looked up again: compaction may have moved them while others were read."""
        failed: Exception | None = None
        found = [(entry, place) for entry in group if (place := self._index.find(entry.stored)) is not None]
        while found:
            segment = found[0][1].segment
            here = [(entry, place) for entry, place in found if place.segment is segment]
            found = [(entry, place) for entry, place in found if place.segment is not segment]
            start = min(place.offset for _, place in here)
            end = max(place.offset + place.size for _, place in here)
            data = await self._files.read(segment.name, start, end - start)
            for entry, place in here:
                at = place.offset - start
                try:
                    self._fill(entry, data[at : at + place.size], place)
                except Damaged as error:
                    self.damaged += 1
                    log.error("a message is damaged", file=segment.name, offset=place.offset, bytes=place.size)
                    failed = error
        return failed

    def _fill(self, entry: Entry, content: bytes, place: Place) -> None:
        if crc32(content) != place.crc:
            raise Damaged("a message on disk is not what was written")
        message = decode_content(content)
        message.stored = self._index.refers.get(entry.stored, entry.stored)
        entry.message = message
