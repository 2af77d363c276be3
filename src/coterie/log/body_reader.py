"""Reading bodies: of records in a row with few, large reads, each body checked before anybody sees it.

Whoever needs a record's head too gets it with the same read: it stands before the bodies.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from zlib import crc32

from coterie.errors import DiskError
from coterie.log.errors import Damaged, TailGone
from coterie.log.place import Place
from coterie.log.record import PREFIX_SIZE, decode_head, decode_prefix
from coterie.log.segment import Segment
from coterie.log.segments import Segments
from coterie.log.table import Row
from coterie.log.writer import Writer
from coterie.runtime.base import Buffer


@dataclass(slots=True)
class Bodies:
    """The bodies of one record, one after the other as they were written; or why there are none."""

    place: Place
    data: memoryview | None
    problem: str = ""
    """Of a record that is not there, cannot be read, or is damaged: to be fetched from another broker."""
    head: Buffer = b""
    """The event's head, if it was asked for."""
    lasting: bool = False
    """Of a problem: reading again does not help."""

    def parts(self, ranges: Sequence[tuple[int, int]]) -> list[memoryview]:
        """Cut by (start, end)."""
        assert self.data is not None
        return [self.data[start:end] for start, end in ranges]


class BodyReader:
    """Of one log."""

    def __init__(self, segments: Segments, writer: Writer) -> None:
        self._segments = segments
        self._writer = writer
        self.reads = 0

    async def read(self, places: Sequence[Place], with_heads: bool = False) -> list[Bodies]:
        """Of these places, which rise: as many of the first of them as make about `batch_bytes`, at least one. Raises
        nothing: what is wrong with a record is told with it."""
        settings = self._segments.settings
        found: list[Bodies] = []
        run: list[tuple[Segment, Row]] = []
        size = 0
        for place in places:
            if (found or run) and size >= settings.batch_bytes:
                break
            recent = self._writer.recent(place)
            if recent is not None:
                found += await self._read_run(run, with_heads)
                run = []
                found.append(Bodies(place, memoryview(b"".join(recent.bodies)), head=recent.head))
                size += recent.body_size
                continue
            try:
                segment, row = await self._segments.find(place)
            except DiskError as error:
                found += await self._read_run(run, with_heads)
                run = []
                found.append(_problem(place, error))
                continue
            if run and (
                run[-1][0] is not segment or not 0 <= _begin(row, with_heads) - run[-1][1].end <= settings.gap_bytes
            ):
                found += await self._read_run(run, with_heads)
                run = []
            run.append((segment, row))
            size += row.body_size
        return found + await self._read_run(run, with_heads)

    async def _read_run(self, run: Sequence[tuple[Segment, Row]], with_heads: bool) -> list[Bodies]:
        if not run:
            return []
        segment, first = run[0]
        start, end = _begin(first, with_heads), run[-1][1].end
        try:
            data = memoryview(b"")
            if end > start:
                self.reads += 1
                data = memoryview(await self._segments.folder.read(segment.file, start, end - start))
        except DiskError as error:
            return [await self._again(row.place, segment, error, with_heads) for _, row in run]
        return [
            _check(segment, row, data[_begin(row, with_heads) - start : row.end - start], with_heads) for _, row in run
        ]

    async def _again(self, place: Place, segment: Segment, error: DiskError, with_heads: bool) -> Bodies:
        """A merge may have removed the file meanwhile: then the record is in another one."""
        try:
            other, row = await self._segments.find(place)
            if other is segment:
                return _problem(place, error)
            start = _begin(row, with_heads)
            data = await self._segments.folder.read(other.file, start, row.end - start)
            return _check(other, row, memoryview(data), with_heads)
        except TailGone:
            return _problem(place, error)
        except DiskError as second:
            return _problem(place, second)


def _begin(row: Row, with_heads: bool) -> int:
    return row.offset if with_heads else row.body_offset


def _problem(place: Place, error: DiskError) -> Bodies:
    return Bodies(place, None, str(error), lasting=isinstance(error, Damaged | TailGone))


def _check(segment: Segment, row: Row, data: memoryview, with_heads: bool) -> Bodies:
    head: Buffer = b""
    if with_heads:
        prefix = decode_prefix(data, 0, segment.mark)
        if prefix is None or prefix.place != row.place:
            return Bodies(row.place, None, f"record {row.place} is damaged", lasting=True)
        try:
            head = decode_head(prefix, data[PREFIX_SIZE:]).head
        except Damaged as error:
            return _problem(row.place, error)
        data = data[row.body_offset - row.offset :]
    if len(data) != row.body_size or crc32(data) != row.body_crc:
        return Bodies(row.place, None, f"the bodies of record {row.place} are damaged", lasting=True)
    return Bodies(row.place, data, head=head)
