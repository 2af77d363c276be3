"""The segments in use, in the order of their records, and the tables that tell where each record is.

Tables of closed segments are kept in memory up to a limit, and read again from the footers when they are needed.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence

from coterie.errors import DiskError
from coterie.log.errors import Damaged, TailGone
from coterie.log.folder import Folder
from coterie.log.place import Place, Position
from coterie.log.record import NOTE, Record
from coterie.log.scan import Scanner
from coterie.log.segment import HEADER_SIZE, Segment
from coterie.log.settings import LogSettings
from coterie.log.table import TRAILER_SIZE, Footer, Row, Table, decode_footer, footer_size


class Segments:
    """Of one log. Ordinals and places rise from each to the next."""

    def __init__(self, folder: Folder, settings: LogSettings) -> None:
        self.folder = folder
        self.settings = settings
        self.list: list[Segment] = []
        self._loaded: dict[Segment, None] = {}
        """Closed ones whose table is in memory, least recently used first."""
        self._loaded_bytes = 0

    def add(self, segment: Segment) -> None:
        self.list.append(segment)

    def replace(self, old: Sequence[Segment], new: Sequence[Segment]) -> None:
        """`old` are neighbours."""
        at = self.list.index(old[0])
        assert self.list[at : at + len(old)] == list(old)
        self.list[at : at + len(old)] = new
        for segment in old:
            self._forget(segment)

    def shorten(self, segment: Segment, last: int) -> None:
        """Nothing of it behind that ordinal counts any more."""
        self._forget(segment)
        segment.table = None
        segment.last = last
        segment.closed = True

    def holder(self, place: Place) -> Segment | None:
        """The segment that has that place, if any has."""
        at = bisect_left(self.list, place, key=lambda segment: segment.before.place)
        return self.list[at - 1] if at else None

    def border(self, place: Place) -> Position | None:
        """If that is the last place of one segment: where the next one begins."""
        at = bisect_left(self.list, place, key=lambda segment: segment.before.place)
        before = self.list[at].before if at < len(self.list) else None
        return before if before is not None and before.place == place else None

    def holder_of(self, ordinal: int) -> Segment | None:
        at = bisect_right(self.list, ordinal, key=lambda segment: segment.first)
        found = self.list[at - 1] if at else None
        return found if found is not None and ordinal <= found.last else None

    async def find(self, place: Place) -> tuple[Segment, Row]:
        """Raises TailGone if there is no such record, any more or yet."""
        segment = self.holder(place)
        while segment is not None:
            try:
                row = (await self.table(segment)).find(place)
            except DiskError:
                other = self.holder(place)
                if other is segment:
                    raise
                segment = other  # a merge has removed the file meanwhile: the record is in another one, if it is needed
                continue
            if row is not None and row.ordinal <= segment.last:
                return segment, row
            break
        raise TailGone(f"there is no record {place}")

    async def table(self, segment: Segment) -> Table:
        """Raises DiskError."""
        if segment.table is None:
            if (footer := await self.footer(segment)) is not None:
                table = footer.table
            else:
                table = await self._scan(segment)
            table.cut(segment.last)
            segment.table = table
        if segment.closed:
            self._use(segment)
        return segment.table

    async def footer(self, segment: Segment, with_heads: bool = False) -> Footer | None:
        """None: it has none, or a damaged one."""
        file_size = segment.file_size
        if file_size < HEADER_SIZE + TRAILER_SIZE:
            return None
        trailer = await self.folder.read(segment.file, file_size - TRAILER_SIZE, TRAILER_SIZE)
        size = footer_size(trailer, file_size)
        if size < 0:
            return None
        data = await self.folder.read(segment.file, file_size - TRAILER_SIZE - size, size + TRAILER_SIZE)
        try:
            return decode_footer(data, with_heads)
        except Damaged:
            return None

    async def runs(self, segment: Segment) -> bytes:
        """What its owner has put into its footer; empty if it has none. Raises DiskError."""
        footer = await self.footer(segment)
        return b"" if footer is None else footer.runs

    async def read(self, place: Place) -> Record:
        """One whole record. Raises DiskError."""
        segment, row = await self.find(place)
        scanner = Scanner(self.folder, segment.file, segment.mark, row.offset, row.end, row.end - row.offset)
        async for found in scanner.records(with_bodies=True):
            if found.offset == row.offset and found.record is not None and found.sound and found.prefix.place == place:
                return found.record
        raise Damaged(f"record {place} is damaged")

    async def _scan(self, segment: Segment) -> Table:
        table = Table()
        read_bytes = self.settings.read_bytes
        scanner = Scanner(self.folder, segment.file, segment.mark, HEADER_SIZE, segment.size, read_bytes)
        ordinal = segment.before.ordinal
        async for found in scanner.records():
            if not found.prefix.flags & NOTE and ordinal < found.prefix.ordinal <= segment.last:
                ordinal = found.prefix.ordinal
                table.add(found.prefix, found.offset)
        return table

    def _use(self, segment: Segment) -> None:
        if segment in self._loaded:
            del self._loaded[segment]
        else:
            assert segment.table is not None
            self._loaded_bytes += segment.table.memory
        self._loaded[segment] = None
        while self._loaded_bytes > self.settings.tables_bytes and len(self._loaded) > 1:
            self._forget(next(iter(self._loaded)))

    def _forget(self, segment: Segment) -> None:
        if segment in self._loaded:
            del self._loaded[segment]
            assert segment.table is not None
            self._loaded_bytes -= segment.table.memory
            segment.table = None
