"""Reading a segment from its beginning to its end: record by record, past whatever is damaged.

Where no sound prefix is, the next record is looked for by the segment's mark. Bodies are read too, and checked.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from zlib import crc32

from coterie.log.errors import Damaged
from coterie.log.folder import Folder
from coterie.log.record import MARK_SIZE, NOTE, PREFIX_SIZE, Prefix, Record, decode_head, decode_prefix
from coterie.log.segment import HEADER_SIZE


@dataclass(slots=True)
class Scanned:
    """One record as it was found. Notes are found too."""

    offset: int
    prefix: Prefix
    record: Record | None
    """None: its head is damaged. Without bodies, unless they were asked for."""
    body_sound: bool

    @property
    def sound(self) -> bool:
        return self.record is not None and self.body_sound


class Scanner:
    """One pass over the bytes [start, end) of one file."""

    def __init__(self, folder: Folder, file: str, mark: bytes, start: int, end: int, step: int) -> None:
        self._folder = folder
        self._file = file
        self._mark = mark
        self._end = end
        self._step = step
        self.at = max(start, HEADER_SIZE)
        self.skipped = 0
        """Bytes passed over, because no record was found in them."""
        self._raw = b""
        self._base = 0

    async def records(self, with_bodies: bool = False) -> AsyncIterator[Scanned]:
        """Everything that is a record or a note. Raises DiskError for what cannot be read."""
        wanted = PREFIX_SIZE
        while self.at + PREFIX_SIZE <= self._end:
            view = await self._window(self.at, wanted)
            wanted = PREFIX_SIZE
            size = None
            for found in self._parse(view, with_bodies):
                if isinstance(found, int):
                    size = found
                else:
                    yield found
            if size is None:
                continue
            if size and self.at + size <= self._end:
                wanted = size  # a sound prefix; the rest of it is not read yet
            elif not await self._resynchronise():
                return

    def _parse(self, view: memoryview, with_bodies: bool) -> Iterator[Scanned | int]:
        """The records at the beginning of the window; then, if it does not just end, the size of the next one, or 0 if
        there is no record."""
        at = 0
        while len(view) - at >= PREFIX_SIZE:
            prefix = decode_prefix(view, at, self._mark)
            size = 0 if prefix is None else prefix.size
            if prefix is None or at + size > len(view):
                yield size
                return
            body_at = at + PREFIX_SIZE + prefix.head_size
            bodies = view[body_at : at + size]
            record = None
            if not prefix.flags & NOTE:
                try:
                    record = decode_head(prefix, view[at + PREFIX_SIZE : body_at])
                except Damaged:
                    pass
                else:
                    if with_bodies and len(bodies):
                        record.bodies = (bytes(bodies),)
            offset = self.at
            at += size
            self.at += size
            yield Scanned(offset, prefix, record, crc32(bodies) == prefix.body_crc)

    async def _resynchronise(self) -> bool:
        """Go to the next record; False, and stay, if there is none."""
        at = self.at + 1
        while at + PREFIX_SIZE <= self._end:
            await self._window(at, PREFIX_SIZE)
            found = self._raw.find(self._mark, at - self._base)
            if found < 0:  # it may begin in this window and end in the next
                at = max(self._base + len(self._raw) - MARK_SIZE, at) + 1
                continue
            at = self._base + found
            prefix = decode_prefix(await self._window(at, PREFIX_SIZE), 0, self._mark)
            if prefix is not None and at + prefix.size <= self._end:
                self.skipped += at - self.at
                self.at = at
                return True
            at += 1
        self.skipped += self._end - self.at
        return False

    async def _window(self, at: int, size: int) -> memoryview:
        """The bytes from there on: at least that many, unless the file ends."""
        size = min(size, max(self._end - at, 0))
        start = at - self._base
        if start < 0 or start + size > len(self._raw):
            step = min(max(size, self._step), max(self._end - at, 0))
            self._raw = await self._folder.read(self._file, at, step)
            self._base, start = at, 0
        return memoryview(self._raw)[start:]
