"""Compaction: segments of which little is still needed are written anew without the rest, or dropped, while the node
serves.

Neighbours that shrink together become one segment; the order of the log stays as it is, and so do the numbers of
messages. The new file is written under another name and synced, renamed in one step, and only then are the old ones
removed: a crash at any point leaves either, or both, of which recovery takes the new one. One step reads or writes at
most `compact_bytes`.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate, groupby
from operator import itemgetter

from coterie.broker.store.files import Files, SegmentName
from coterie.broker.store.format import Header, encode_prefix, mark_of
from coterie.broker.store.index import Index, Key, Saved
from coterie.broker.store.operations import CONTENT_ONLY, Dequeue, Enqueue, Name, Save
from coterie.broker.store.scan import Record, Scanner
from coterie.broker.store.segment import REFERENCE_SIZE, Segment
from coterie.broker.store.settings import StoreSettings
from coterie.errors import DiskError, NoSuchFile
from coterie.logs import Log
from coterie.runtime.base import Buffer

log = Log(__name__)


class Compactor:
    """Does one thing at a time: `choose`, then `compact`."""

    def __init__(self, files: Files, settings: StoreSettings, index: Index, secret: bytes, incarnation: int) -> None:
        self._files = files
        self._settings = settings
        self._index = index
        self._secret = secret
        self._incarnation = incarnation
        self._strays: list[str] = []
        """Files that should be gone, and may not be: nothing else is removed before they are."""
        self._looked = -1
        """How often segments had come or gone when small ones were last looked for."""
        self.rewritten = 0
        self.removed = 0

    # Which segments.

    def choose(self) -> list[Segment] | None:
        """Neighbours that are worth being written anew, or one that can go as it is."""
        index, settings = self._index, self._settings
        while index.ripe:
            id = next(iter(index.ripe))
            del index.ripe[id]
            segment = index.get(id)
            if segment is None or not self._free(segment):
                continue
            if segment.useless or (segment.given_up and not segment.unreadable):
                return [segment]
            if not segment.unreadable and segment.garbage >= settings.compact_garbage * segment.size:
                return self._run(id)
        if self._looked == index.changes:
            return None
        self._looked = index.changes
        return self._small()

    @staticmethod
    def _free(segment: Segment) -> bool:
        """Whether it may go, or be written anew: not as long as its header is needed."""
        return segment.sealed and (segment.after is None or not segment.after.given_up)

    def _run(self, id: int) -> list[Segment]:
        """The segment with the neighbours that are light enough to go into the same file."""
        at, segments = self._index.neighbours(id)
        lo = hi = at
        total = segments[at].needed
        while (
            lo > 0 and self._light(segments[lo - 1]) and total + segments[lo - 1].needed <= self._settings.segment_bytes
        ):
            lo -= 1
            total += segments[lo].needed
        while hi + 1 < len(segments) and self._light(segments[hi + 1]):
            if total + segments[hi + 1].needed > self._settings.segment_bytes:
                break
            hi += 1
            total += segments[hi].needed
        return segments[lo : hi + 1]

    def _light(self, segment: Segment) -> bool:
        small = 4 * segment.size <= self._settings.segment_bytes
        light = segment.garbage >= self._settings.compact_garbage * segment.size
        return self._free(segment) and not segment.unreadable and (small or light)

    def _small(self) -> list[Segment] | None:
        """A row of small ones, as many restarts leave them."""
        row: list[Segment] = []
        total = 0
        for segment in self._index.segments:
            small = 4 * segment.size <= self._settings.segment_bytes
            small = small and self._free(segment) and not segment.unreadable
            if not small or total + segment.needed > self._settings.segment_bytes:
                row, total = [], 0
            if small:
                row.append(segment)
                total += segment.needed
                if len(row) >= self._settings.compact_merge:
                    return row
        return None

    # How.

    async def compact(self, run: list[Segment]) -> None:
        """Raises DiskError; then everything that is not done is as before."""
        await self._sweep()
        if len(run) == 1 and run[0].useless:
            await self._drop(run)
            return
        settled = [segment.id for segment in self._index.segments if segment.sealed]
        self._index.killed = []
        try:
            parts = self._files, self._settings, self._index, self._secret, self._incarnation, self._strays
            copy = await _Copy(*parts).make(run)
            if copy is None:
                return
            for first, last in self._index.killed:
                copy.segment.kill(first, last)
        finally:
            self._index.killed = None
        if not copy.size:
            await self._drop(run)
            return
        self._swap(run, copy.segment, copy.saved, settled)
        self._strays += [segment.name for segment in run]
        self.removed += len(run)
        try:
            await self._sweep()
        except DiskError as error:  # recovery would, by their names; but only as long as the new one is there
            log.warning("old segments cannot be removed", files=self._strays, error=error)

    async def _drop(self, run: list[Segment]) -> None:
        """Nothing of them is needed. Each is forgotten when its file is gone: what says of its messages that they left
        is kept until then."""
        for segment in run:
            await self._remove(segment.name)
            self.removed += 1
            self._swap([segment], None, {}, ())

    async def _sweep(self) -> None:
        while self._strays:
            await self._remove(self._strays[0])
            del self._strays[0]

    async def _remove(self, name: str) -> None:
        try:
            await self._files.remove(name)
        except NoSuchFile:
            pass

    def _swap(self, run: list[Segment], new: Segment | None, saved: dict[Key, Saved], settled: Sequence[int]) -> None:
        index = self._index
        ids = [segment.id for segment in run]
        if new is not None:
            self.rewritten += 1
            new.sealed = True
            new.needs = {id: None for segment in run for id in segment.needs if id not in ids}
            new.tighten()
        index.replace(run, new)
        index.move_saved(run, new, saved)
        index.forget_needs(ids, None if new is None else new.id, settled)
        for segment in run:
            index.settle_end(segment)
        if new is not None:
            index.check(new)


class _Copy:
    """What must be kept of some segments, as one new file."""

    def __init__(
        self,
        files: Files,
        settings: StoreSettings,
        index: Index,
        secret: bytes,
        incarnation: int,
        strays: list[str],
    ) -> None:
        self._files = files
        self._settings = settings
        self._index = index
        self._secret = secret
        self._incarnation = incarnation
        self._strays = strays
        """Files that it could not remove."""
        self.saved: dict[Key, Saved] = {}
        self.size = 0
        self.segment: Segment
        self._temporary = ""
        self._names: dict[int, Name] = {}
        self._saves: dict[Key, Save] = {}
        self._needs: list[Segment] = []
        self._heads: list[bytes] = []
        self._contents: list[Buffer] = []
        self._enqueues: list[Enqueue] = []
        self._gathered = 0
        self._copied = 0

    async def make(self, run: list[Segment]) -> _Copy | None:
        """None if they cannot all be read."""
        name = SegmentName(run[0].id, run[-1].last, max(segment.generation for segment in run) + 1)
        self.segment = Segment(*name, str(name), mark_of(self._secret, str(name)), run[0].first)
        self._temporary = f"{name}.tmp"
        ids = [segment.id for segment in run]
        found = {id: self._index.get(id) for segment in run for id in segment.needs if id not in ids}
        self._needs = [segment for segment in found.values() if segment is not None]
        try:
            if not await self._copy(run, ids):
                await self._remove()
                return None
            await self._put_saves()
            if self.size:
                await self._files.sync(self._temporary)
                self._strays.append(str(name))  # if that fails, it may have happened all the same
                await self._files.replace(self._temporary, str(name))
                self._strays.remove(str(name))
        except DiskError:
            await self._remove()
            raise
        segment = self.segment
        segment.size = self.size
        # What it has beyond its needed content, as long as all of that lives.
        saved = sum(value.size for value in self.saved.values())
        segment.slack = self.size - segment.needed - saved - segment.dequeue_bytes
        return self

    async def _remove(self) -> None:
        try:
            await self._files.remove(self._temporary)
        except NoSuchFile:
            pass
        except DiskError:  # the next copy may have the same name
            self._strays.append(self._temporary)

    async def _copy(self, run: list[Segment], ids: list[int]) -> bool:
        for segment in run:
            alive = segment.live
            self._copied = 0
            damaged: list[tuple[int, str]] = []
            step = self._settings.compact_bytes
            scanner = Scanner(self._files, segment.name, segment.size, self._secret, step, damaged)
            await scanner.open()
            while (record := await scanner.next()) is not None:
                self._take(record, segment, ids)
                if self._gathered >= self._settings.compact_bytes:
                    await self._put()
            await self._put()
            # What died meanwhile may be missing; anything else that is must not be lost by our doing.
            if damaged or scanner.tail or self._copied < min(alive, segment.live):
                segment.unreadable = True
                log.error("a segment is damaged: it is not compacted", file=segment.name, damage=damaged[:10])
                return False
        return True

    def _take(self, record: Record, segment: Segment, ids: list[int]) -> None:
        at = 0
        for op in record.operations:
            if isinstance(op, Enqueue):
                self._take_enqueue(op, record.contents[at:], segment)
                at += sum(op.lengths)
            elif isinstance(op, Dequeue):
                self._take_dequeue(op)
            elif isinstance(op, Save):
                if self._index.keeps((op.kind, op.key), ids):
                    self._saves[op.kind, op.key] = op
            elif isinstance(op, Name):
                self._names[op.id] = op

    def _take_enqueue(self, op: Enqueue, contents: memoryview, segment: Segment) -> None:
        alive = segment.alive_of(op.numbers)
        self._copied += len(alive)
        orphans = self._index.orphans
        kept: Sequence[int]
        pieces: list[tuple[int, Sequence[int]]] = [(op.queue, alive)] if alive else []
        if orphans and op.queue != CONTENT_ONLY:
            # Numbers rise along a segment, so what is in no queue any more stands among what is.
            queues = ((at, CONTENT_ONLY if op.numbers[at] in orphans else op.queue) for at in alive)
            pieces = [(queue, [at for at, _ in run]) for queue, run in groupby(queues, key=itemgetter(1))]
        starts = list(accumulate(op.lengths, initial=0))
        for queue, kept in pieces:
            picked = op.pick(kept)
            if queue != op.queue:
                picked = Enqueue(queue, picked.numbers, picked.numbers, picked.bodies, picked.lengths, picked.crcs, ())
            elif queue in self._names and queue not in self.segment.named:
                self._heads.append(self._names[queue].encode())
                self.segment.named.add(queue)
            head = picked.encode()
            self._heads.append(head)
            self._enqueues.append(picked)
            self._gathered += len(head)
            if op.lengths:
                self._contents += [contents[starts[at] : starts[at + 1]] for at in kept]
                self._gathered += sum(picked.lengths)

    def _take_dequeue(self, op: Dequeue) -> None:
        """Only of messages that are still in other, older segments."""
        ranges = []
        for first, last in op.ranges:
            for segment in self._index.spanning(first, last):
                if segment in self._needs:
                    end = self._index.last_number_of(segment)
                    ranges.append((max(first, segment.first), min(last, end)))
        if ranges:
            head = Dequeue(ranges).encode()
            self._heads.append(head)
            self._gathered += len(head)
            self.segment.dequeue_bytes += len(head)

    async def _put_saves(self) -> None:
        for key, op in self._saves.items():
            head = op.encode()
            self._heads.append(head)
            self._gathered += len(head)
            self.saved[key] = Saved(self.segment.id, len(head), op.value is None)
            if self._gathered >= self._settings.compact_bytes:
                await self._put()
        await self._put()

    async def _put(self) -> None:
        """Append what was gathered, as one record."""
        if not self._heads:
            return
        heads, self._heads = self._heads, []
        contents, self._contents = self._contents, []
        enqueues, self._enqueues = self._enqueues, []
        self._gathered = 0
        segment = self.segment
        header = b""
        if not self.size:
            ids = segment.id, segment.last, segment.first
            header = Header(self._incarnation, *ids, 0, 0, self._secret, rewritten=True).encode()
        head = b"".join(heads)
        content_size = sum(map(len, contents))
        prefix = encode_prefix(segment.mark, head, content_size)
        await self._files.append(self._temporary, [header, prefix, head, *contents])
        at = self.size + len(header) + len(prefix) + len(head)
        self.size = at + content_size
        for op in enqueues:
            count = len(op.numbers)
            if op.lengths:
                *offsets, at = accumulate(op.lengths, initial=at)
                segment.fill(op.numbers, offsets, op.lengths, op.crcs)
            else:
                segment.fill(op.numbers, [0] * count, [REFERENCE_SIZE] * count, [0] * count)
        if self._settings.compact_pause:
            await self._files.rest(self._settings.compact_pause)
