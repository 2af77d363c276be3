"""Reading a segment from its beginning: record by record, past whatever is damaged.

Sizes are believed only under a checksum. Where a record's prefix is not sound the next one is looked for by the
segment's mark; where only its head is not, the record is passed over. If no record follows any more, the rest is a
tail: torn off by a crash in the segment that was written last, damage in any other.
"""

from __future__ import annotations

from dataclasses import dataclass
from zlib import crc32

from coterie.broker.log_store.conversion.format import (
    HEADER_SIZE,
    MARK_SIZE,
    PREFIX_SIZE,
    Damaged,
    Header,
    decode_header,
    decode_prefix,
    mark_of,
)
from coterie.broker.log_store.conversion.operations import Enqueue, Operation, operations
from coterie.log.folder import Folder


@dataclass(slots=True)
class Record:
    """One record whose head is sound. Whether its contents are, their checksums tell."""

    offset: int
    size: int
    operations: list[Operation]
    contents: memoryview
    contents_offset: int


class Scanner:
    """One pass over one segment."""

    def __init__(
        self, folder: Folder, name: str, size: int, secret: bytes, step: int, damage: list[tuple[int, str]]
    ) -> None:
        self._folder = folder
        self._name = name
        self._size = size
        self._secret = secret
        self._step = step
        self._damage = damage
        self.header: Header | None = None
        self.at = 0
        """Where the next record should begin; in the end, where the tail begins."""
        self._end = 0
        """Where the last sound record ends."""
        self._mark = b""
        self._raw = b""
        """What was read last, and where it stands in the segment."""
        self._base = 0

    @property
    def tail(self) -> int:
        """Bytes behind the last record."""
        return self._size - self.at

    async def open(self) -> None:
        """Read the header. If it is damaged, the store's secret or the first record may still tell the mark."""
        data = await self._window(0, HEADER_SIZE + PREFIX_SIZE)
        try:
            self.header = decode_header(data)
            self._mark = mark_of(self.header.secret, self._name)
        except Damaged:
            self._mark = bytes(data[HEADER_SIZE : HEADER_SIZE + MARK_SIZE])
            if decode_prefix(data, HEADER_SIZE, self._mark) is None:
                self._mark = mark_of(self._secret, self._name) if self._secret else b""
        self.at = self._end = HEADER_SIZE if self._size >= HEADER_SIZE else 0

    async def next(self) -> Record | None:
        """The next sound record; None: there is none any more."""
        while self._mark and self.tail > 0:
            data = await self._window(self.at, PREFIX_SIZE)
            sizes = decode_prefix(data, 0, self._mark)
            if sizes is None or PREFIX_SIZE + sizes[0] + sizes[1] > self.tail:
                if not await self._resynchronise():
                    break
                continue
            head_size, content_size, head_crc = sizes
            offset, size = self.at, PREFIX_SIZE + head_size + content_size
            data = await self._window(offset, size)
            self.at += size
            head = data[PREFIX_SIZE : PREFIX_SIZE + head_size]
            try:
                if len(data) < size or crc32(head) != head_crc:
                    raise Damaged("a record is damaged")
                found = list(operations(head))
                if sum(sum(op.lengths) for op in found if isinstance(op, Enqueue)) != content_size:
                    raise Damaged("a record has other contents than it says")
            except Damaged as error:
                self._damage.append((offset, f"{error} ({size} bytes)"))
                continue
            contents = PREFIX_SIZE + head_size
            self._end = self.at
            return Record(offset, size, found, data[contents:size], offset + contents)
        # Nothing sound follows: whatever was wrong behind the last record belongs to the tail.
        self.at = self._end
        while self._damage and self._damage[-1][0] >= self.at:
            self._damage.pop()
        return None

    async def _resynchronise(self) -> bool:
        """Go to the next place that looks like a record; False, and stay, if there is none."""
        at = self.at + 1
        while at + PREFIX_SIZE <= self._size:
            await self._window(at, PREFIX_SIZE)
            found = self._raw.find(self._mark, at - self._base)
            if found < 0:  # it may begin in this window and end in the next
                at = max(self._base + len(self._raw) - MARK_SIZE, at) + 1
                continue
            at = self._base + found
            sizes = decode_prefix(await self._window(at, PREFIX_SIZE), 0, self._mark)
            if sizes is not None and at + PREFIX_SIZE + sizes[0] + sizes[1] <= self._size:
                self._damage.append((self.at, f"{at - self.at} bytes are no record"))
                self.at = at
                return True
            at += 1
        return False

    async def _window(self, at: int, size: int) -> memoryview:
        """The bytes from there on: at least that many, unless the segment ends."""
        size = min(size, max(self._size - at, 0))
        start = at - self._base
        if start < 0 or start + size > len(self._raw):
            step = min(max(size, self._step), max(self._size - at, 0))
            self._raw = await self._folder.read(self._name, at, step)
            self._base, start = at, 0
        return memoryview(self._raw)[start:]
