"""The head of a record: small records that are saved, marks that are texts, and where each content is in the bodies.

    version, flags         1 byte each; of flags, those parts follow that are there
    saved       1          number of them; of each kind, key, 0 (deleted) or 1 and the value
    texts       2          number of them; of each queue, position, text
    contents    4          ranges of offsets that are left of an event (none: all), sizes

A message's *offset* is how many contents were before it when the record was written, for ever: what a merge leaves of a
record keeps its offsets.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Final

from coterie.broker.ranges import Range
from coterie.broker.ranges.codec import Reader, write_uint
from coterie.broker.state.effect_codec import Sizes, read_sizes, write_sizes
from coterie.errors import WireError
from coterie.log.merge import Kept

Key = tuple[str, str]
Save = tuple[Key, bytes | None]
Text = tuple[int, int, str]
"""Queue, position, and the mark that is a text."""

VERSION: Final = 1
_SAVED, _TEXTS, _CONTENTS = 1, 2, 4
_HEAD_MAX: Final = 2**31
_ANY: Final = "surrogateescape"
"""Names are what clients say they are, UTF-8 or not."""


class MalformedHead(WireError):
    """Bytes that this version has not written."""


@dataclass(slots=True)
class Contents:
    """Where each content is in the bodies."""

    sizes: Sizes
    kept: list[Range] = field(default_factory=list)
    """Offsets that are left; none: all from 0 on."""

    @property
    def count(self) -> int:
        return self.sizes[0] if isinstance(self.sizes, tuple) else len(self.sizes)

    def starts(self) -> Sequence[int]:
        """Where each begins, and where the last one ends."""
        if isinstance(self.sizes, tuple):
            count, size = self.sizes
            return range(0, size * count + 1, size) if size else [0] * (count + 1)
        return [*accumulate(self.sizes, initial=0)]

    def at(self, offset: int) -> int | None:
        """How many are before the one with that offset; None: it is not there."""
        if not self.kept:
            return offset if offset < self.count else None
        number = bisect_right(self.kept, offset, key=lambda pair: pair[0]) - 1
        if number < 0 or offset >= self.kept[number][1]:
            return None
        return sum(stop - first for first, stop in self.kept[:number]) + offset - self.kept[number][0]


@dataclass(slots=True)
class Head:
    saved: list[Save] = field(default_factory=list)
    texts: list[Text] = field(default_factory=list)
    contents: Contents | None = None

    def encode(self) -> bytes:
        flags = (_SAVED if self.saved else 0) | (_TEXTS if self.texts else 0)
        out = bytearray((VERSION, flags | (_CONTENTS if self.contents is not None else 0)))
        if self.saved:
            write_uint(out, len(self.saved))
            for (kind, key), value in self.saved:
                write_save(out, kind, key, value)
        if self.texts:
            write_uint(out, len(self.texts))
            for queue, position, text in self.texts:
                write_uint(out, queue)
                write_uint(out, position)
                _write_bytes(out, text.encode(errors=_ANY))
        if self.contents is not None:
            write_uint(out, len(self.contents.kept))
            for first, stop in self.contents.kept:
                write_uint(out, first)
                write_uint(out, stop)
            write_sizes(out, self.contents.sizes)
        return bytes(out)


def decode_head(data: bytes | memoryview) -> Head:
    """Raises WireError."""
    reader = Reader(data, _HEAD_MAX)
    if reader.uint(255) != VERSION:
        raise MalformedHead("a record of another version")
    flags = reader.uint(_SAVED | _TEXTS | _CONTENTS)
    head = Head()
    if flags & _SAVED:
        head.saved = [read_save(reader) for _ in range(reader.items(3))]
    if flags & _TEXTS:
        head.texts = [(reader.uint(), reader.uint(), _read_text(reader)) for _ in range(reader.items(3))]
    if flags & _CONTENTS:
        kept = [(reader.uint(), reader.uint()) for _ in range(reader.items(2))]
        head.contents = Contents(read_sizes(reader), kept)
        if kept and sum(stop - first for first, stop in kept) != head.contents.count:
            raise MalformedHead("sizes of other contents than there are")
    reader.done()
    return head


def write_save(out: bytearray, kind: str, key: str, value: bytes | None) -> None:
    _write_bytes(out, kind.encode(errors=_ANY))
    _write_bytes(out, key.encode(errors=_ANY))
    out.append(value is not None)
    if value is not None:
        _write_bytes(out, value)


def read_save(reader: Reader) -> Save:
    kind, key = _read_text(reader), _read_text(reader)
    return (kind, key), reader.bytes(reader.uint()) if reader.uint(1) else None


def _write_bytes(out: bytearray, data: bytes) -> None:
    write_uint(out, len(data))
    out += data


def _read_text(reader: Reader) -> str:
    return reader.bytes(reader.uint()).decode(errors=_ANY)


def sizes_of(sizes: Sequence[int]) -> Sizes:
    first = sizes[0]
    return (len(sizes), first) if sizes.count(first) == len(sizes) else array("I", sizes)


def remnant(contents: Contents, live: Iterable[Range]) -> Kept | None:
    """What remains of a record when only these offsets are needed; None: nothing."""
    starts = contents.starts()
    kept: list[Range] = []
    sizes: list[int] = []
    bytes_kept: list[Range] = []
    for first, stop in _merged(live):
        for offset in range(first, stop):
            at = contents.at(offset)
            if at is None:
                continue
            start, end = starts[at], starts[at + 1]
            sizes.append(end - start)
            if bytes_kept and bytes_kept[-1][1] == start:
                bytes_kept[-1] = bytes_kept[-1][0], end
            else:
                bytes_kept.append((start, end))
            if kept and kept[-1][1] == offset:
                kept[-1] = kept[-1][0], offset + 1
            else:
                kept.append((offset, offset + 1))
    if not sizes:
        return None
    return Kept(Head(contents=Contents(sizes_of(sizes), kept)).encode(), bytes_kept)


def _merged(ranges: Iterable[Range]) -> list[Range]:
    found: list[Range] = []
    for first, stop in sorted(ranges):
        if found and first <= found[-1][1]:
            found[-1] = found[-1][0], max(stop, found[-1][1])
        else:
            found.append((first, stop))
    return found
