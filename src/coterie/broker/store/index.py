"""The index: every segment, which of them holds what, and what nobody needs any more.

It is all that the store keeps in memory of messages: entries know their number, and the index finds the place. A
content is needed as long as its own entry or one that refers to it lives; a saved record, until a newer value or its
deletion is saved; a dequeue, until the segment with the message itself is gone or written anew.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from coterie.broker.store.format import MOST
from coterie.broker.store.segment import Place, Segment

Key = tuple[str, str]


@dataclass(slots=True)
class Saved:
    """One value of a saved record in one segment."""

    segment: int
    size: int
    deleted: bool


class Index:
    """Segments by rising ids, and so by rising numbers of messages."""

    def __init__(self, garbage: float) -> None:
        self.segments: list[Segment] = []
        self.refers: dict[int, int] = {}
        """For messages without a content of their own: whose they share."""
        self.shared: dict[int, int] = {}
        """For contents that others refer to: how many do."""
        self.orphans: dict[int, None] = {}
        """Shared contents whose own entry is gone."""
        self.saved: dict[Key, list[Saved]] = {}
        """Every value that is on disk, oldest first; the last one counts."""
        self.ripe: dict[int, None] = {}
        """Segments, by id, that may be worth compacting."""
        self.killed: list[tuple[int, int]] | None = None
        """While compaction copies: the numbers that died meanwhile."""
        self.changes = 0
        """How often segments came or went."""
        self._garbage = garbage
        self._firsts: list[int] = []

    # Segments.

    def add(self, segment: Segment) -> None:
        self.segments.append(segment)
        self._firsts.append(segment.first)
        self.changes += 1

    def get(self, id: int) -> Segment | None:
        at = bisect_right(self.segments, id, key=lambda segment: segment.id) - 1
        return self.segments[at] if at >= 0 and self.segments[at].id == id else None

    def neighbours(self, id: int) -> tuple[int, list[Segment]]:
        """Where the segment stands, and all of them."""
        return bisect_right(self.segments, id, key=lambda segment: segment.id) - 1, self.segments

    def replace(self, old: Sequence[Segment], new: Segment | None) -> None:
        """Neighbours are one segment now, or none."""
        at = self.segments.index(old[0])
        self.segments[at : at + len(old)] = [] if new is None else [new]
        self._firsts = [segment.first for segment in self.segments]
        self.changes += 1

    def settle_end(self, segment: Segment) -> None:
        """Nothing comes back behind its end: whose header told where that is may go."""
        segment.given_up = False
        for other in self.segments:
            if other.after is segment:
                other.after = None
                self.check(other)

    @property
    def memory(self) -> int:
        """About how many bytes it takes."""
        return sum(segment.memory for segment in self.segments) + 200 * len(self.refers) + 120 * len(self.shared)

    # Messages.

    def find(self, number: int) -> Place | None:
        """Where the content of a message is."""
        content = self.refers.get(number, number)
        at = bisect_right(self._firsts, content) - 1
        return self.segments[at].find(content) if at >= 0 else None

    def refer(self, number: int, content: int) -> None:
        """The message's content is that of another one."""
        self.refers[number] = content
        self.shared[content] = self.shared.get(content, 0) + 1

    def kill(self, first: int, last: int, by: Segment | None) -> None:
        """These messages are gone; `by` is the segment that says so."""
        if not self.refers and not self.shared:
            self._kill(first, last, by)
            return
        at = first
        for number in self._special(first, last):
            content = self.refers.pop(number, None)
            if content is not None:
                self._unrefer(content, by)
            if number in self.shared:  # its content is needed by others
                self.orphans[number] = None
                self._needs(number, by)
                if at < number:
                    self._kill(at, number - 1, by)
                at = number + 1
        if at <= last:
            self._kill(at, last, by)

    def _special(self, first: int, last: int) -> list[int]:
        """Those that refer or are referred to."""
        if last - first < len(self.refers) + len(self.shared):
            return [number for number in range(first, last + 1) if number in self.refers or number in self.shared]
        found = {number: None for table in (self.refers, self.shared) for number in table if first <= number <= last}
        return sorted(found)

    def _unrefer(self, content: int, by: Segment | None) -> None:
        left = self.shared.get(content, 0) - 1
        if left > 0:
            self.shared[content] = left
            return
        self.shared.pop(content, None)
        if content in self.orphans:
            del self.orphans[content]
            self._kill(content, content, by)

    def _kill(self, first: int, last: int, by: Segment | None) -> None:
        if self.killed is not None:
            self.killed.append((first, last))
        for segment in self.spanning(first, last):
            if segment.kill(first, last):
                if by is not None and by is not segment:
                    by.needs[segment.id] = None
                self.check(segment)

    def _needs(self, number: int, by: Segment | None) -> None:
        for segment in self.spanning(number, number):
            if by is not None and by is not segment:
                by.needs[segment.id] = None

    def forget_needs(self, old: Sequence[int], new: int | None, settled: Sequence[int]) -> None:
        """The old segments, by id, hold nothing dead any more, but for what died while the new one was written, as
        segments say that were not settled by then."""
        for segment in self.segments:
            found = [id for id in old if id in segment.needs]
            if not found:
                continue
            for id in found:
                del segment.needs[id]
            if new is not None and segment.id not in settled:
                segment.needs[new] = None
            self.check(segment)

    def last_number_of(self, segment: Segment) -> int:
        """No message in it has a higher number."""
        at, segments = self.neighbours(segment.id)
        return segments[at + 1].first - 1 if at + 1 < len(segments) else MOST

    def spanning(self, first: int, last: int) -> Iterator[Segment]:
        """The segments that these numbers may be in."""
        at = max(bisect_right(self._firsts, first) - 1, 0)
        while at < len(self.segments) and self.segments[at].first <= last:
            yield self.segments[at]
            at += 1

    # Saved records.

    def save(self, segment: Segment, key: Key, size: int, deleted: bool) -> None:
        """The segment has the record's latest value."""
        values = self.saved.setdefault(key, [])
        if values:
            self._outdate(values[-1])
            if values[-1].segment == segment.id:
                values.pop()
        values.append(Saved(segment.id, size, deleted))
        segment.keys[key] = None
        segment.newest += 1
        segment.saved_bytes += size
        if deleted and len(values) == 1:  # nothing is left to be deleted by it
            self._outdate(values[0])
            del self.saved[key]

    def _outdate(self, value: Saved) -> None:
        segment = self.get(value.segment)
        if segment is not None:
            segment.newest -= 1
            segment.saved_bytes -= value.size
            self.check(segment)

    def keeps(self, key: Key, segments: Sequence[int]) -> bool:
        """Whether one of these segments has the record's latest value, and it must not be forgotten."""
        values = self.saved.get(key)
        if not values or values[-1].segment not in segments:
            return False
        return not values[-1].deleted or values[0].segment not in segments

    def move_saved(self, old: Sequence[Segment], new: Segment | None, copied: dict[Key, Saved]) -> None:
        """What was saved in the old segments is gone but for these, which are in the new one."""
        ids = [segment.id for segment in old]
        for key in {key: None for segment in old for key in segment.keys}:
            values = self.saved.get(key)
            if values is None:
                continue
            newest = values[-1]
            values[:] = [value for value in values if value.segment not in ids]
            if new is not None and key in copied:
                at = bisect_right(values, new.id, key=lambda value: value.segment)
                values.insert(at, copied[key])
                new.keys[key] = None
                if newest.segment in ids:
                    new.newest += 1
                    new.saved_bytes += newest.size
            if len(values) == 1 and values[0].deleted:
                self._outdate(values[0])
                values.clear()
            if not values:
                del self.saved[key]

    # Garbage.

    def check(self, segment: Segment) -> None:
        """Look at it when it is compaction's turn, if there is enough to gain."""
        if segment.sealed and (segment.useless or segment.garbage >= self._garbage * segment.size):
            self.ripe[segment.id] = None
