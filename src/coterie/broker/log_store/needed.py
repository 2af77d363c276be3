"""How many bytes of each record are needed still, and what a merge of the log may drop of it.

A message of a queue counts for the record that has its content; one that is in several queues counts several times.
It counts until its leaving is on disk: before that a crash brings it back. Eight bytes for each record, in pages of 64
that go when nothing of them is needed.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

from coterie.broker.ranges import Range, Runs
from coterie.broker.state.queue_state import QueueState

EXTRA: Final = 64
"""What a message takes beside its body, about."""
_SHIFT: Final = 6
_PAGE: Final = 1 << _SHIFT
_MASK: Final = _PAGE - 1


class Gone(NamedTuple):
    """Messages of one record that have left a queue."""

    record: int
    offset: int
    messages: int
    bytes: int


class Needed:
    def __init__(self) -> None:
        self._pages: dict[int, array[int]] = {}
        self._totals: dict[int, int] = {}
        self.messages = 0
        self.bytes = 0

    @property
    def memory(self) -> int:
        return len(self._pages) * (8 * _PAGE + 250)

    def add(self, record: int, count: int, size: int) -> None:
        size += EXTRA * count
        number = record >> _SHIFT
        page = self._pages.get(number)
        if page is None:
            page = self._pages[number] = array("Q", bytes(8 * _PAGE))
            self._totals[number] = 0
        page[record & _MASK] += size
        self._totals[number] += size
        self.messages += count
        self.bytes += size

    def remove(self, gone: Iterable[Gone]) -> None:
        for record, _, count, size in gone:
            number = record >> _SHIFT
            page, size = self._pages[number], size + EXTRA * count
            page[record & _MASK] -= size
            self._totals[number] -= size
            self.messages -= count
            self.bytes -= size
            if not self._totals[number]:
                del self._pages[number], self._totals[number]

    def between(self, after: int, upto: int) -> int:
        """Of the records behind the one and up to the other."""
        first, last = after + 1, upto
        if last < first:
            return 0
        low, high = first >> _SHIFT, last >> _SHIFT
        if low == high:
            return self._part(low, first & _MASK, (last & _MASK) + 1)
        total = self._part(low, first & _MASK, _PAGE) + self._part(high, 0, (last & _MASK) + 1)
        if high - low > len(self._totals):
            return total + sum(size for number, size in self._totals.items() if low < number < high)
        return total + sum([self._totals.get(number, 0) for number in range(low + 1, high)])

    def _part(self, number: int, low: int, high: int) -> int:
        page = self._pages.get(number)
        return 0 if page is None else sum(page[low:high])


def gone_of(queue: QueueState, ranges: Sequence[Range]) -> list[Gone]:
    """Of these messages, which are in the queue still."""
    if len(ranges) == 1 and ranges[0][1] - ranges[0][0] == 1:
        first = ranges[0][0]
        found = queue.runs.find(first)
        assert found is not None
        return [Gone(found.ref, found.offset + first - found.first, 1, queue.lengths.get(first))]
    sum_of = queue.lengths.sum
    return [
        Gone(run.ref, run.offset, run.stop - run.first, sum_of(run.first, run.stop))
        for first, stop in ranges
        for run in queue.runs.within(first, stop)
    ]


def offsets_in(queue: QueueState, after: int, upto: int, into: dict[int, list[Range]]) -> None:
    """Which offsets of the records between these the queue has."""
    runs: Runs = queue.runs
    for run in runs.of_refs(after + 1, upto):
        found = queue.live.ranges(run.first, run.stop)
        shift = run.offset - run.first
        into.setdefault(run.ref, []).extend([(first + shift, stop + shift) for first, stop in found])
