"""The segment that is written to: its records so far, and the footer that it will get."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from coterie.log.folder import SegmentName
from coterie.log.place import Place, Position
from coterie.log.record import Record, encode_head
from coterie.log.segment import Header, Segment
from coterie.log.settings import LogSettings
from coterie.log.table import HEADS_PART, Table, encode_footer
from coterie.runtime.base import Buffer


class GrowingSegment:
    """It begins behind a record that is synced: that cuts off what earlier segments have behind that."""

    def __init__(self, settings: LogSettings, log_id: bytes, number: int, mark: bytes, before: Position) -> None:
        self._settings = settings
        self.table = Table()
        name = SegmentName(number, number, 0)
        self.file = str(name)
        self.segment = Segment(name, mark, before, before.ordinal, 0, self.table, closed=False)
        self.header = Header(log_id, number, number, before.ordinal + 1, 0, before, mark).encode()
        self._heads: list[bytes] = []
        self._heads_size = 0

    @property
    def ripe(self) -> bool:
        """It is to be closed."""
        full = self.segment.size >= self._settings.segment_bytes
        return full or len(self.table) >= self._settings.segment_records

    def encode(self, records: Sequence[Record], synced: int) -> list[Buffer]:
        """What is to be appended for them; the bodies as they are."""
        buffers: list[Buffer] = [] if self.segment.size else [self.header]
        for record in records:
            buffers.append(encode_head(record, self.segment.mark, synced))
            buffers += record.bodies
        return buffers

    def grow(self, records: Sequence[Record], buffers: Sequence[Buffer]) -> None:
        """They were appended."""
        at = self.segment.size or len(self.header)
        buffer = 0 if self.segment.size else 1
        for record in records:
            self.table.add(record, at)
            at += record.size
            head = buffers[buffer]
            buffer += 1 + len(record.bodies)
            self._heads_size += len(head)
            if self._heads_size * HEADS_PART <= self._settings.segment_bytes:
                self._heads.append(bytes(head))
        self.segment.size = at
        self.segment.last = records[-1].ordinal

    def footer(self, runs: Callable[[Place, Place], bytes]) -> list[Buffer]:
        table = self.table
        with_heads = len(self._heads) == len(table) and self._heads_size * HEADS_PART <= self.segment.size
        owned = runs(table.row(0).place, table.row(len(table) - 1).place) if len(table) else b""
        return encode_footer(table, owned, self._heads if with_heads else [], self.segment.size)

    def size_upto(self, ordinal: int) -> int:
        """Bytes up to the end of that record."""
        rows = self.table.first_after(ordinal)
        return self.table.row(rows - 1).end if rows else len(self.header)
