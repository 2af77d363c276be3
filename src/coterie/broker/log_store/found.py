"""What recovery found in one queue: told one at a time, as it is asked for."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from heapq import merge
from operator import attrgetter
from typing import overload

from coterie.broker.state.queue_state import QueueState
from coterie.broker.state.vocabulary import Kind
from coterie.broker.storage import RecoveredMessage


class FoundMessages(Sequence[RecoveredMessage]):
    """By rising positions. To be read before the queue changes."""

    def __init__(self, parts: Sequence[tuple[QueueState, Mapping[int, str]]], delivered: int) -> None:
        """`delivered`: up to this position they may have been."""
        self._parts = sorted(parts, key=lambda part: part[0].live.first() or 0)
        self._delivered = delivered
        self._same: dict[int, int] = {}
        """Sizes, so that equal ones are one object: there are many messages and few sizes."""

    @property
    def last(self) -> int:
        return max(queue.live.last() or 0 for queue, _ in self._parts)

    def __len__(self) -> int:
        return sum(queue.live.count for queue, _ in self._parts)

    @overload
    def __getitem__(self, index: int) -> RecoveredMessage: ...
    @overload
    def __getitem__(self, index: slice) -> list[RecoveredMessage]: ...
    def __getitem__(self, index: int | slice) -> RecoveredMessage | list[RecoveredMessage]:
        return [*self][index]

    def __iter__(self) -> Iterator[RecoveredMessage]:
        parts = [self._of(queue, texts) for queue, texts in self._parts]
        lasts = [queue.live.last() or 0 for queue, _ in self._parts]
        firsts = [queue.live.first() or 0 for queue, _ in self._parts]
        if all(last < first for last, first in zip(lasts, firsts[1:], strict=False)):
            for part in parts:
                yield from part
        else:
            yield from merge(*parts, key=attrgetter("position"))

    def _of(self, queue: QueueState, texts: Mapping[int, str]) -> Iterator[RecoveredMessage]:
        delivered, same = self._delivered, self._same.setdefault
        plain = not (queue.expires.runs or texts or queue.config.kind is Kind.PRIORITY)
        priorities: dict[int, int] = {}
        for first, stop in queue.live.ranges():
            if queue.config.kind is Kind.PRIORITY:
                priorities = {p: n for low, high, n in queue.priorities.items(first, stop) for p in range(low, high)}
            for position, size in enumerate(queue.lengths.each(first, stop), first):
                found = RecoveredMessage(position, None, position <= delivered, same(size, size))
                if not plain:
                    run = queue.expires.find(position)
                    if run is not None:
                        found.expires = run.ref / 1000
                    if queue.config.kind is Kind.PRIORITY:
                        found.mark = priorities.get(position, 0)
                    else:
                        found.mark = texts.get(position)
                yield found
