"""The tail of the log: the newest records, verbatim, for a broker that was away and has to catch up.

Two logs may have different records at one place. Their chains tell: equal chains mean an equal history up to there. A
broker that comes back sends `chains()`; the other one finds the newest that it has too (`find_fork`), and sends what
follows it.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from typing import Final, NamedTuple

from coterie.errors import DiskError
from coterie.log.errors import Damaged, TailGone
from coterie.log.place import Place
from coterie.log.record import PREFIX_SIZE, Record, decode_head, decode_prefix
from coterie.log.scan import Scanner
from coterie.log.segment import Segment
from coterie.log.segments import Segments
from coterie.log.writer import Writer

LINKS_MAX: Final = 4096
"""Of a history, newest, that are sent or looked at."""


class Link(NamedTuple):
    """One record of a history, and the digest of everything up to it."""

    place: Place
    chain: bytes


class Tail:
    """What of one log can be sent to others."""

    def __init__(self, segments: Segments, writer: Writer) -> None:
        self._segments = segments
        self._writer = writer
        self._retain = segments.settings.retain_bytes

    def give_up(self) -> None:
        """There is little room on the disk: nothing is kept for others until `keep_again`."""
        self._retain = 0

    def keep_again(self) -> None:
        self._retain = self._segments.settings.retain_bytes

    @property
    def retained(self) -> list[Segment]:
        """The newest verbatim segments, up to `retain_bytes`, and always the active one."""
        kept: list[Segment] = []
        size = 0
        for segment in reversed(self._segments.list):
            size += segment.size
            if segment.merged or (segment.closed and size > self._retain):
                break
            kept.append(segment)
        return kept[::-1]

    @property
    def verbatim_from(self) -> Link:
        """Every record behind this one is there as it was written."""
        synced = self._writer.synced
        link = Link(synced.place, synced.chain)
        for segment in reversed(self._segments.list):
            link = Link(segment.before.place, segment.before.chain)
            if segment.merged:
                assert segment is not self._segments.list[-1], "what is merged lies below the tail"
                return self._end_of(segment)
        return link

    def _end_of(self, segment: Segment) -> Link:
        after = self._segments.list[self._segments.list.index(segment) + 1]
        return Link(after.before.place, after.before.chain)

    async def read(self, after: Place) -> AsyncIterator[list[Record]]:
        """The synced records behind that place, with their bodies, in batches of about `batch_bytes`. Raises TailGone
        if they are not all there any more, Damaged at one that is damaged, and other DiskErrors."""
        if after < self.verbatim_from.place:
            raise TailGone(f"the log begins behind {self.verbatim_from.place}")
        batch_bytes = self._segments.settings.batch_bytes
        ordinal = await self._ordinal(after)
        while ordinal < self._writer.synced.ordinal:
            segment = self._segments.holder_of(ordinal + 1)
            if segment is None or segment.merged:
                raise TailGone(f"the log does not have record {ordinal + 1} any more")
            table = await self._segments.table(segment)
            at = table.first_after(ordinal)
            end = min(segment.last, self._writer.synced.ordinal)
            first, size, until = table.row(at), 0, at
            while until < len(table) and table.ordinals[until] <= end and (until == at or size < batch_bytes):
                size += table.row(until).end - table.row(until).offset
                until += 1
            batch = await self._read_rows(segment, first.offset, table.row(until - 1).end)
            if [record.ordinal for record in batch] != list(range(ordinal + 1, ordinal + 1 + until - at)):
                raise Damaged(f"{segment.file}: records between {first.place} and {table.row(until - 1).place}")
            if any(record.remnant for record in batch):
                raise TailGone(f"of records before {batch[-1].place} only what is live is there")
            ordinal += len(batch)
            yield batch

    async def _read_rows(self, segment: Segment, start: int, end: int) -> list[Record]:
        scanner = Scanner(self._segments.folder, segment.file, segment.mark, start, end, end - start)
        found = [scanned async for scanned in scanner.records(with_bodies=True)]
        return [scanned.record for scanned in found if scanned.record is not None and scanned.body_sound]

    async def _ordinal(self, place: Place) -> int:
        """Of the last record that is not behind that place."""
        if (border := self._segments.border(place)) is not None:
            return border.ordinal
        segment = self._segments.holder(place)
        if segment is None:
            return self._segments.list[0].before.ordinal if self._segments.list else self._writer.synced.ordinal
        table = await self._segments.table(segment)
        at = table.first_at(Place(place.epoch, place.index + 1))
        return min(table.ordinals[at - 1], segment.last) if at else segment.before.ordinal

    # Comparing histories.

    async def chains(self, newest: int = 16) -> list[Link]:
        """Rising: of the borders of segments, and of the newest synced records. Raises DiskError."""
        borders = {segment.before.place: segment.before.chain for segment in self._segments.list}
        links = {place: chain for place, chain in borders.items() if chain and place <= self._writer.synced.place}
        ordinal = self._writer.synced.ordinal
        for wanted in range(max(ordinal - newest + 1, 1), ordinal + 1):
            segment = self._segments.holder_of(wanted)
            if segment is None or segment.merged:
                continue
            table = await self._segments.table(segment)
            at = table.first_after(wanted - 1)
            if at < len(table) and table.ordinals[at] == wanted:
                place = table.row(at).place
                if (chain := await self.chain_at(place)) is not None:
                    links[place] = chain
        return [Link(place, links[place]) for place in sorted(links)[-LINKS_MAX:]]

    async def chain_at(self, place: Place) -> bytes | None:
        """None: there is no such record, or it cannot be read."""
        if (recent := self._writer.recent(place)) is not None:
            return recent.chain
        if (border := self._segments.border(place)) is not None and border.chain:
            return border.chain
        try:
            segment, row = await self._segments.find(place)
            data = await self._segments.folder.read(segment.file, row.offset, PREFIX_SIZE + row.head_size)
            prefix = decode_prefix(data, 0, segment.mark)
            if prefix is None or prefix.place != place:
                return None
            return decode_head(prefix, memoryview(data)[PREFIX_SIZE:]).chain
        except DiskError:
            return None

    async def find_fork(self, theirs: Sequence[Link]) -> Link | None:
        """The newest of these records that this log has too; None: not one. Whoever asked must be cut off behind it."""
        for link in sorted(theirs, reverse=True)[:LINKS_MAX]:
            if await self.chain_at(link.place) == link.chain:
                return link
        return None
