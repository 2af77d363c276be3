"""The message ids that a queue remembers: digests in the order in which they came, by the events that brought them.

A digest of 16 bytes costs about 100 bytes of memory (measured in docs/queue-state.md), 16 in a snapshot.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Final, NamedTuple

DIGEST: Final = 16
"""Bytes of a message id, and of a last-value key."""


class Span(NamedTuple):
    """Of the ids that one event brought."""

    time: int
    """Of the log."""
    size: int
    """How many of them are still remembered."""


class Window:
    """Ids of persistent messages, or of others."""

    __slots__ = ("_order", "_seen", "spans")

    def __init__(self) -> None:
        self._order: deque[bytes] = deque()
        """The oldest first."""
        self._seen: set[bytes] = set()
        self.spans: deque[Span] = deque()

    def __len__(self) -> int:
        return len(self._order)

    def __contains__(self, digest: bytes) -> bool:
        return digest in self._seen

    def __iter__(self) -> Iterator[bytes]:
        return iter(self._order)

    def remember(self, time: int, ids: Sequence[bytes]) -> None:
        """New ones, which are not remembered yet."""
        self._order.extend(ids)
        self._seen.update(ids)
        self.spans.append(Span(time, len(ids)))

    def unremember(self) -> None:
        """The last `remember` is taken back."""
        for _ in range(self.spans.pop().size):
            self._seen.remove(self._order.pop())

    def forget(self, count: int) -> tuple[list[bytes], list[Span]]:
        """The oldest ones; gives what `unforget` needs."""
        ids = [self._order.popleft() for _ in range(count)]
        self._seen.difference_update(ids)
        spans: list[Span] = []
        while count:
            span = self.spans.popleft()
            spans.append(span)
            if span.size > count:
                self.spans.appendleft(Span(span.time, span.size - count))
            count -= min(span.size, count)
        return ids, spans

    def unforget(self, ids: list[bytes], spans: list[Span]) -> None:
        if sum(span.size for span in spans) > len(ids):
            self.spans.popleft()  # the rest of the last one
        self.spans.extendleft(reversed(spans))
        self._order.extendleft(reversed(ids))
        self._seen.update(ids)

    def overdue(self, before: int, most: int) -> int:
        """How many of the oldest are to be forgotten: those that came before that time, or are too many."""
        count = 0
        for span in self.spans:
            if span.time >= before:
                break
            count += span.size
        return max(count, len(self._order) - most)

    def by_span(self) -> Iterator[tuple[int, list[bytes]]]:
        ids = iter(self._order)
        return ((span.time, [*islice(ids, span.size)]) for span in self.spans)
