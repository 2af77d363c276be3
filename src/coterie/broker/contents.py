"""Contents: the messages of one queue that are in memory, by their positions.

In chunks of 256 positions, so that a message costs the reference to it and little more; what is not here is on disk
only. This is the one place that knows where a message's bytes are: (reference of an event, offset) may take the place
of objects without anybody else noticing.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from coterie.broker.message import Message
    from coterie.broker.ranges import Range

SHIFT: Final = 8
SIZE: Final = 1 << SHIFT
_MASK: Final = SIZE - 1
_NONE: Final = [None] * SIZE

Chunk = list["Message | None"]
"""Of up to 256 positions from a multiple of 256 on; the last ones may be missing."""


class Contents:
    """Of one queue."""

    __slots__ = ("_chunks",)

    def __init__(self) -> None:
        self._chunks: dict[int, Chunk] = {}

    def message(self, position: int) -> Message | None:
        chunk = self._chunks.get(position >> SHIFT)
        if chunk is None:
            return None
        place = position & _MASK
        return chunk[place] if place < len(chunk) else None

    def messages(self, ranges: Iterable[Range]) -> list[Message | None]:
        """In the order of the ranges."""
        found: Chunk = []
        for first, stop in ranges:
            if stop - first == 1:
                chunk = self._chunks.get(first >> SHIFT)
                found.append(chunk[first & _MASK] if chunk is not None and first & _MASK < len(chunk) else None)
                continue
            while first < stop:
                number, low = first >> SHIFT, first & _MASK
                count = min(SIZE - low, stop - first)
                chunk = self._chunks.get(number)
                some = _NONE[:count] if chunk is None else chunk[low : low + count]
                found += some
                found += _NONE[: count - len(some)]
                first += count
        return found

    def put(self, first: int, messages: Sequence[Message | None]) -> None:
        """They have positions in a row."""
        chunks, at, count = self._chunks, 0, len(messages)
        if count == 1:
            chunk = chunks.get(first >> SHIFT)
            if chunk is not None and len(chunk) == first & _MASK:
                chunk.append(messages[0])
                return
        while at < count:
            number, low = first >> SHIFT, first & _MASK
            some = messages[at : at + SIZE - low] if low or count - at > SIZE or at else messages
            chunk = chunks.get(number)
            if chunk is None:
                chunk = chunks[number] = [None] * low if low else []
            elif low > len(chunk):
                chunk += _NONE[: low - len(chunk)]
            chunk[low : low + len(some)] = some
            at += len(some)
            first += len(some)

    def drop(self, ranges: Iterable[Range]) -> None:
        """They are not here any more, if they were."""
        chunks = self._chunks
        for first, stop in ranges:
            if stop - first == 1:
                chunk = chunks.get(first >> SHIFT)
                low = first & _MASK
                if chunk is not None and low < len(chunk):
                    chunk[low] = None
                    # It is empty hardly ever: first a look at the neighbours.
                    if chunk[low - 1] is None and chunk[low + 1 - len(chunk)] is None and _is_empty(chunk):
                        del chunks[first >> SHIFT]
            elif (stop - first) >> SHIFT > len(chunks):
                self._drop_from(first, stop, [number for number in chunks if first >> SHIFT <= number <= stop >> SHIFT])
            else:
                self._drop_from(first, stop, range(first >> SHIFT, (stop - 1 >> SHIFT) + 1))

    def _drop_from(self, first: int, stop: int, numbers: Iterable[int]) -> None:
        for number in numbers:
            chunk = self._chunks.get(number)
            if chunk is None:
                continue
            base = number << SHIFT
            low, high = max(first - base, 0), min(stop - base, len(chunk))
            if low >= high:
                continue
            chunk[low:high] = _NONE[: high - low]
            if _is_empty(chunk):
                del self._chunks[number]

    def copy(self) -> Contents:
        """As they are now."""
        other = Contents()
        other._chunks = {number: [*chunk] for number, chunk in self._chunks.items()}
        return other

    def __iter__(self) -> Iterator[tuple[int, Message]]:
        """Positions, in no order, and their messages."""
        for number, chunk in self._chunks.items():
            for at, message in enumerate(chunk):
                if message is not None:
                    yield (number << SHIFT) + at, message


def _is_empty(chunk: Chunk) -> bool:
    return chunk.count(None) == len(chunk)
