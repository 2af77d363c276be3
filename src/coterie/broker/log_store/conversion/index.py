"""The index of an old store: every segment, and which of them holds what.

A content is needed as long as its own entry or one that refers to it lives.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator

from coterie.broker.log_store.conversion.segment import Place, Segment


class Index:
    """Segments by rising ids, and so by rising numbers of messages."""

    def __init__(self) -> None:
        self.segments: list[Segment] = []
        self.refers: dict[int, int] = {}
        """For messages without a content of their own: whose they share."""
        self.shared: dict[int, int] = {}
        """For contents that others refer to: how many do."""
        self.orphans: dict[int, None] = {}
        """Shared contents whose own entry is gone."""
        self._firsts: list[int] = []

    def add(self, segment: Segment) -> None:
        self.segments.append(segment)
        self._firsts.append(segment.first)

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

    def kill(self, first: int, last: int) -> None:
        """These messages are gone."""
        if not self.refers and not self.shared:
            self._kill(first, last)
            return
        at = first
        for number in self._special(first, last):
            content = self.refers.pop(number, None)
            if content is not None:
                self._unrefer(content)
            if number in self.shared:  # its content is needed by others
                self.orphans[number] = None
                if at < number:
                    self._kill(at, number - 1)
                at = number + 1
        if at <= last:
            self._kill(at, last)

    def _special(self, first: int, last: int) -> list[int]:
        """Those that refer or are referred to."""
        if last - first < len(self.refers) + len(self.shared):
            return [number for number in range(first, last + 1) if number in self.refers or number in self.shared]
        found = {number: None for table in (self.refers, self.shared) for number in table if first <= number <= last}
        return sorted(found)

    def _unrefer(self, content: int) -> None:
        left = self.shared.get(content, 0) - 1
        if left > 0:
            self.shared[content] = left
            return
        self.shared.pop(content, None)
        if content in self.orphans:
            del self.orphans[content]
            self._kill(content, content)

    def _kill(self, first: int, last: int) -> None:
        for segment in self.spanning(first, last):
            segment.kill(first, last)

    def spanning(self, first: int, last: int) -> Iterator[Segment]:
        """The segments that these numbers may be in."""
        at = max(bisect_right(self._firsts, first) - 1, 0)
        while at < len(self.segments) and self.segments[at].first <= last:
            yield self.segments[at]
            at += 1
