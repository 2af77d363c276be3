"""Where the messages of a queue are: positions in a row that are messages in a row of one event.

A *run* is (first position, count, reference of the event, place of the first in it); 28 bytes, however many messages it
has. Runs rise by their positions, and are added behind the last one. A run whose messages have all left is dropped;
one with a live message stays as it is.

Runs are kept in chunks of 512, which copies share until one of them changes a chunk.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from typing import Final, NamedTuple

from coterie.broker.ranges.codec import (
    ENCODED_MAX,
    END,
    MalformedRanges,
    Reader,
    check_range,
    write_array,
    write_uint,
)
from coterie.broker.ranges.positions import PositionSet

CHUNK: Final = 512
COUNT_MAX: Final = 2**32 - 1
_RUN_BYTES: Final = 28


class Run(NamedTuple):
    first: int
    stop: int
    """The position behind the last."""
    ref: int
    offset: int


class _Chunk:
    __slots__ = ("counts", "firsts", "offsets", "owner", "refs")

    def __init__(self, owner: object) -> None:
        self.owner = owner
        """The only one who may change it."""
        self.firsts = array("Q")
        self.counts = array("I")
        self.refs = array("Q")
        self.offsets = array("Q")

    def clone(self, owner: object) -> _Chunk:
        other = _Chunk(owner)
        other.firsts, other.counts, other.refs, other.offsets = (
            self.firsts[:], self.counts[:], self.refs[:], self.offsets[:],
        )  # fmt: skip
        return other

    def run(self, at: int) -> Run:
        first = self.firsts[at]
        return Run(first, first + self.counts[at], self.refs[at], self.offsets[at])


class Runs:
    """By rising positions."""

    __slots__ = ("_chunks", "_owner", "_starts", "count", "runs")

    def __init__(self) -> None:
        self._chunks: list[_Chunk] = []
        """None is empty."""
        self._starts: list[int] = []
        """The first position of each."""
        self._owner = object()
        self.count: int = 0
        """Positions in all runs, whether live or not."""
        self.runs: int = 0

    def copy(self) -> Runs:
        other = Runs()
        other._chunks, other._starts = self._chunks.copy(), self._starts.copy()
        other.count, other.runs = self.count, self.runs
        self._owner = object()  # what was ours alone is so no more
        return other

    def __eq__(self, other: object) -> bool:
        return [*self] == [*other] if isinstance(other, Runs) else NotImplemented

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"<{self.runs} runs of {self.count} positions>"

    # Questions.

    def __iter__(self) -> Iterator[Run]:
        return (chunk.run(at) for chunk in self._chunks for at in range(len(chunk.firsts)))

    @property
    def stop(self) -> int:
        """The position behind all runs."""
        return self._chunks[-1].run(-1).stop if self._chunks else 0

    def find(self, position: int) -> Run | None:
        """The run with this position."""
        number = bisect_right(self._starts, position) - 1
        if number < 0:
            return None
        chunk = self._chunks[number]
        run = chunk.run(bisect_right(chunk.firsts, position) - 1)
        return run if position < run.stop else None

    def within(self, first: int, stop: int) -> Iterator[Run]:
        """The runs in a range, cut at its ends."""
        number = max(bisect_right(self._starts, first) - 1, 0)
        for chunk in self._chunks[number:]:
            for at in range(max(bisect_right(chunk.firsts, first) - 1, 0), len(chunk.firsts)):
                run = chunk.run(at)
                if run.first >= stop:
                    return
                begin, end = max(run.first, first), min(run.stop, stop)
                if begin < end:
                    yield Run(begin, end, run.ref, run.offset + begin - run.first)

    def of_refs(self, low: int, high: int) -> Iterator[Run]:
        """The runs of the events from `low` to `high`. Chunks that have none of them cost next to nothing."""
        for chunk in self._chunks:
            if min(chunk.refs) <= high and max(chunk.refs) >= low:
                for at, ref in enumerate(chunk.refs):
                    if low <= ref <= high:
                        yield chunk.run(at)

    # Changes.

    def append(self, first: int, count: int, ref: int, offset: int) -> None:
        """Behind all others; a run that goes on where the last one ends becomes a part of it."""
        chunks, stop, before = self._chunks, 0, 0
        if chunks:
            chunk = chunks[-1]
            before = chunk.counts[-1]
            stop = chunk.firsts[-1] + before
        if not (
            stop <= first <= END - count and 0 < count <= COUNT_MAX and 0 <= ref < END and 0 <= offset <= END - count
        ):
            raise ValueError(f"no run behind {stop}: {first}, {count}, {ref}, {offset}")
        self.count += count
        if (
            before and stop == first and chunk.refs[-1] == ref and chunk.offsets[-1] + before == offset
            and before + count <= COUNT_MAX
        ):  # fmt: skip
            self._writable(len(chunks) - 1).counts[-1] += count
            return
        if not before or len(chunk.firsts) >= CHUNK:
            chunks.append(_Chunk(self._owner))
            self._starts.append(first)
        chunk = chunks[-1]
        if chunk.owner is not self._owner:
            chunk = self._writable(len(chunks) - 1)
        chunk.firsts.append(first)
        chunk.counts.append(count)
        chunk.refs.append(ref)
        chunk.offsets.append(offset)
        self.runs += 1

    def unappend(self, count: int) -> None:
        """Take back the last `append`, which had so many positions; nothing was dropped since."""
        chunk = self._writable(len(self._chunks) - 1)
        if not 0 < count <= chunk.counts[-1]:
            raise ValueError(f"the last run has {chunk.counts[-1]} positions, not {count}")
        if chunk.counts[-1] == count:
            self._delete(len(self._chunks) - 1, len(chunk.firsts) - 1, len(chunk.firsts))
        else:  # it had become a part of the run before it
            chunk.counts[-1] -= count
            self.count -= count

    def drop(self, first: int, stop: int, live: PositionSet) -> array[int]:
        """What is in this range has left; `live`: what has not. Runs in it that have nothing live are dropped; gives
        their references.

        It need not be called for each message: once for all (0 to END), whenever half of them have left, does too."""
        check_range(first, stop)
        dropped = array("Q")
        number = max(bisect_right(self._starts, first) - 1, 0)
        while number < len(self._chunks) and self._starts[number] < stop:
            chunk = self._chunks[number]
            at = max(bisect_right(chunk.firsts, first) - 1, 0)
            end = bisect_left(chunk.firsts, stop, at)
            while at < end:
                begin = chunk.firsts[at]
                if begin + chunk.counts[at] <= first:
                    at += 1
                    continue
                alive = live.next_from(begin)
                dead = end if alive is None else min(bisect_right(chunk.firsts, alive, at), end)
                if alive is not None and alive < chunk.firsts[dead - 1] + chunk.counts[dead - 1]:
                    dead -= 1
                if dead == at:
                    at += 1
                else:
                    dropped += chunk.refs[at:dead]
                    chunk = self._delete(number, at, dead)
                    end -= dead - at
            number += bool(chunk.firsts)
        return dropped

    def _writable(self, number: int) -> _Chunk:
        chunk = self._chunks[number]
        if chunk.owner is not self._owner:
            chunk = self._chunks[number] = chunk.clone(self._owner)
        return chunk

    def _delete(self, number: int, low: int, high: int) -> _Chunk:
        """Some runs of a chunk; the chunk too, if nothing is left in it."""
        chunk = self._chunks[number]
        self.runs -= high - low
        self.count -= sum(chunk.counts[low:high])
        if high - low == len(chunk.firsts):
            del self._chunks[number], self._starts[number]
            return _Chunk(None)
        chunk = self._writable(number)
        del chunk.firsts[low:high], chunk.counts[low:high], chunk.refs[low:high], chunk.offsets[low:high]
        self._starts[number] = chunk.firsts[0]
        return chunk

    # Bytes: columns, so that they are read and checked at the speed of C.

    def encode(self) -> bytes:
        out = bytearray()
        write_uint(out, self.runs)
        for chunk in self._chunks:
            write_array(out, chunk.firsts)
        for chunk in self._chunks:
            write_array(out, chunk.counts)
        for chunk in self._chunks:
            write_array(out, chunk.refs)
        for chunk in self._chunks:
            write_array(out, chunk.offsets)
        return bytes(out)

    @staticmethod
    def decode(data: bytes | memoryview, limit: int = ENCODED_MAX) -> Runs:
        """Raises MalformedRanges for whatever `encode` does not write."""
        reader = Reader(data, limit)
        size = reader.items(_RUN_BYTES)
        columns = reader.array("Q", size), reader.array("I", size), reader.array("Q", size), reader.array("Q", size)
        reader.done()
        _check(*columns)
        found = Runs()
        found.runs, found.count = size, sum(columns[1])
        for at in range(0, size, CHUNK):
            chunk = _Chunk(found._owner)
            chunk.firsts, chunk.counts, chunk.refs, chunk.offsets = (column[at : at + CHUNK] for column in columns)
            found._chunks.append(chunk)
            found._starts.append(chunk.firsts[0])
        return found


def _goes_on(last: Run, run: Run) -> bool:
    """Whether the two are one."""
    return (
        last.stop == run.first
        and last.ref == run.ref
        and last.offset + last.stop - last.first == run.offset
        and run.stop - last.first <= COUNT_MAX
    )


def _check(firsts: array[int], counts: array[int], refs: array[int], offsets: array[int]) -> None:
    if not firsts:
        return
    if min(counts) == 0:
        raise MalformedRanges("a run of no messages")
    stops = [first + count for first, count in zip(firsts, counts, strict=True)]
    if stops[-1] > END or any(map(int.__gt__, stops, firsts[1:])):
        raise MalformedRanges("runs do not rise, or go beyond 2^63")
    if max(refs) >= END or max(map(int.__add__, offsets, counts)) > END:
        raise MalformedRanges("references or offsets of runs are beyond 2^63")
    last = None
    for row in zip(firsts, stops, refs, offsets, strict=True):
        run = Run(*row)
        if last is not None and _goes_on(last, run):
            raise MalformedRanges("two runs are not one")
        last = run
