"""A segment as memory knows it: where each message's content is, how much of it is still needed, and for what else.

Twelve bytes a message: offset, size and checksum, in arrays by number. A size of zero means that nobody needs it any
more; an offset of zero, that the content is elsewhere (it refers). In a segment that was just written the numbers
follow each other and are not kept; in one that recovery or compaction made, they are, and only those still needed are
there.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from itertools import accumulate
from typing import NamedTuple

from coterie.broker.store.format import HEADER_SIZE
from coterie.broker.store.operations import ENTRY_HEAD, empty_column

REFERENCE_SIZE = 32
"""What a message that refers to another's content counts for."""


class Place(NamedTuple):
    """Where a content is."""

    segment: Segment
    offset: int
    size: int
    crc: int


class Segment:
    """One file of the log."""

    __slots__ = (
        "_base", "_crcs", "_numbers", "_offsets", "_sizes", "after", "dequeue_bytes", "first", "generation", "given_up",
        "id", "keys", "last", "live", "live_bytes", "mark", "name", "named", "needs", "newest", "saved_bytes",
        "sealed", "size", "slack", "unreadable"
    )  # fmt: skip

    def __init__(self, id: int, last: int, generation: int, name: str, mark: bytes, first: int) -> None:
        self.id = id
        self.last = last
        self.generation = generation
        self.name = name
        self.mark = mark
        self.first = first
        """No message in it has a lower number, and none before it this one or a higher."""
        self.size = 0
        self.sealed = False
        """Nothing is appended any more, and everything is synced."""
        self.given_up = False
        """It was given up before its end: what is behind `size` may still be on disk, or come back."""
        self.after: Segment | None = None
        """The one that was given up before it was begun: its own header alone tells where that one ends."""
        self.named: set[int] = set()
        """Queues whose name stands in it."""
        self._base = first
        self._numbers: array[int] | None = None
        self._offsets = array("I")
        self._sizes = array("I")
        self._crcs = array("I")
        self.live = 0
        self.live_bytes = 0
        self.newest = 0
        """How many saved records have their latest value here."""
        self.saved_bytes = 0
        self.keys: dict[tuple[str, str], None] = {}
        """Saved records of which any value is here."""
        self.dequeue_bytes = 0
        self.needs: dict[int, None] = {}
        """Older segments, by id, that still hold messages of which only this one says that they are gone."""
        self.slack = 0
        """What it held beyond its needed content when it was written: never counted as garbage."""
        self.unreadable = False
        """Not all of it can be read: it is not written anew, for nobody knows what would be lost."""

    # Filling it.

    def place(self, lengths: Sequence[int], crcs: Iterable[int], offset: int) -> int:
        """Contents with the next numbers, one behind the other; gives where they end."""
        *offsets, end = accumulate(lengths, initial=offset)
        self._offsets.extend(offsets)
        self._sizes.extend(lengths)
        self._crcs.extend(crcs)
        self.live += len(lengths)
        self.live_bytes += end - offset
        return end

    def place_references(self, count: int) -> None:
        self._offsets.extend(empty_column("I", count))
        self._sizes.extend([REFERENCE_SIZE] * count)
        self._crcs.extend(empty_column("I", count))
        self.live += count
        self.live_bytes += count * REFERENCE_SIZE

    def fill(self, numbers: Sequence[int], offsets: Sequence[int], sizes: Sequence[int], crcs: Sequence[int]) -> int:
        """Recovery and compaction say where everything is; gives the first of the slots."""
        if self._numbers is None:
            self._numbers = array("Q")
        slot = len(self._sizes)
        self._numbers.extend(numbers)
        self._offsets.extend(offsets)
        self._sizes.extend(sizes)
        self._crcs.extend(crcs)
        self.live += len(sizes)
        self.live_bytes += sum(sizes)
        return slot

    def slots_alive(self, slot: int, count: int) -> Sequence[int]:
        """Which of these slots, counted from the first, hold something that is needed; before `tighten`."""
        sizes = self._sizes[slot : slot + count]
        return range(count) if 0 not in sizes else [at for at, size in enumerate(sizes) if size]

    def tighten(self) -> None:
        """Forget the places that nobody needs."""
        numbers = self._numbers
        if numbers is None:
            return
        if self.live < len(numbers):
            kept = [at for at, size in enumerate(self._sizes) if size]
            numbers = array("Q", [numbers[at] for at in kept])
            self._offsets = array("I", [self._offsets[at] for at in kept])
            self._sizes = array("I", [self._sizes[at] for at in kept])
            self._crcs = array("I", [self._crcs[at] for at in kept])
        self._numbers = numbers
        if numbers and numbers[-1] - numbers[0] == len(numbers) - 1:
            self._base, self._numbers = numbers[0], None

    def cut(self, first: int) -> None:
        """Messages from this number on are not here after all."""
        lo, _ = self._slots(first, first + len(self._sizes))
        gone = self._sizes[lo:]
        self.live -= len(gone) - gone.count(0)
        self.live_bytes -= sum(gone)
        del self._offsets[lo:], self._sizes[lo:], self._crcs[lo:]

    # Asking it.

    @property
    def last_number(self) -> int:
        """The highest number that it has a place for; below `first` if there is none."""
        if self._numbers is None:
            return self._base + len(self._sizes) - 1
        return self._numbers[-1] if self._numbers else self.first - 1

    def find(self, number: int) -> Place | None:
        """Where the content of this message is, if it is needed and here."""
        lo, hi = self._slots(number, number)
        if lo == hi or not self._sizes[lo]:
            return None
        return Place(self, self._offsets[lo], self._sizes[lo], self._crcs[lo])

    def alive(self) -> list[int]:
        """The numbers of everything that is needed."""
        numbers: Sequence[int] = range(self._base, self._base + len(self._sizes))
        if self._numbers is not None:
            numbers = self._numbers
        return [number for number, size in zip(numbers, self._sizes, strict=True) if size]

    def alive_of(self, numbers: Sequence[int]) -> list[int]:
        """Which of these, by their index, are needed."""
        if self._numbers is None and isinstance(numbers, range):
            lo, hi = self._slots(numbers[0], numbers[-1])
            shift = self._base + lo - numbers[0]
            return [at for at, size in enumerate(self._sizes[lo:hi], shift) if size]
        return [at for at, number in enumerate(numbers) if number in self]

    def __contains__(self, number: int) -> bool:
        lo, hi = self._slots(number, number)
        return lo < hi and bool(self._sizes[lo])

    def kill(self, first: int, last: int) -> int:
        """Nobody needs these any more; how many of them there were."""
        lo, hi = self._slots(first, last)
        gone = self._sizes[lo:hi]
        count = len(gone) - gone.count(0)
        if count:
            self.live -= count
            self.live_bytes -= sum(gone)
            self._sizes[lo:hi] = empty_column("I", hi - lo)
        return count

    def _slots(self, first: int, last: int) -> tuple[int, int]:
        """Where these numbers have their places: from, and up to but not including."""
        numbers = self._numbers
        if numbers is None:
            count = len(self._sizes)
            return min(max(first - self._base, 0), count), max(min(last - self._base + 1, count), 0)
        return bisect_left(numbers, first), bisect_right(numbers, last)

    # Is it worth keeping?

    @property
    def useless(self) -> bool:
        """It can go as it is."""
        return self.sealed and not (self.live or self.newest or self.needs)

    @property
    def needed(self) -> int:
        """About how many bytes of it must be kept."""
        kept = HEADER_SIZE + self.live_bytes + self.live * ENTRY_HEAD + self.saved_bytes
        return kept + (self.dequeue_bytes if self.needs else 0)

    @property
    def garbage(self) -> int:
        return self.size - self.needed - self.slack

    @property
    def memory(self) -> int:
        """Bytes that its arrays take."""
        arrays = self._numbers, self._offsets, self._sizes, self._crcs
        return sum(part.itemsize * len(part) for part in arrays if part is not None)

    def __repr__(self) -> str:
        return f"<Segment {self.name} {self.size} bytes, {self.live} live>"
