"""Bulk reads: messages of a queue slice by slice, for whoever reads more of them than fit into memory.

A read of a lease gives the same messages whenever and wherever it is made, until they are retired or released. A browse
gives whatever is in the queue, and takes nothing. Each slice is bounded, is made in one turn, and only while this
broker may serve; messages that are on disk are brought for it without becoming resident.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import TYPE_CHECKING, Final, NamedTuple

from coterie.broker.delivery import add_range
from coterie.broker.leases import Gone
from coterie.broker.rows import Row
from coterie.errors import CoterieError

if TYPE_CHECKING:
    from coterie.broker.leases import Lease
    from coterie.broker.message import Message
    from coterie.broker.queue import Queue
    from coterie.broker.ranges import Range

ROWS: Final = 4096
"""Of one slice at most."""


class NotHere(CoterieError):
    """This broker cannot give it now: ask again, or another one."""


class Slice(NamedTuple):
    rows: list[Row]
    offsets: list[int] | None
    """Of a lease."""
    last: bool
    """Nothing follows."""


Done = Callable[[Slice | Exception], None]


class Read(ABC):
    """Of one queue; `next` again and again, each when the one before has given its slice."""

    def __init__(self, queue: Queue, slice_bytes: int) -> None:
        self.queue = queue
        self._slice = slice_bytes

    def next(self, done: Done) -> None:
        """A slice; or NotHere, or Gone, or what the disk says."""
        try:
            self._check()
            ranges, offsets, last = self._gather()
        except CoterieError as error:
            done(error)
            return

        def read(found: list[tuple[int, Message]] | Exception) -> None:
            if isinstance(found, Exception):
                done(NotHere(f"the disk does not give it back: {found}"))
            else:
                self._read(ranges, found, offsets, last, done)

        self.queue.pager.read(ranges, read)

    def _check(self) -> None:
        queue = self.queue
        why = queue.cluster.may_serve()
        if why:
            raise NotHere(f"this broker does not serve now: {why}")
        if queue.deleted:
            raise Gone(f"{queue.what} is gone")

    @abstractmethod
    def _gather(self) -> tuple[list[Range], list[int] | None, bool]:
        """Where the next ones are, their offsets, and whether they are the last."""

    def _read(
        self, ranges: list[Range], found: list[tuple[int, Message]], offsets: list[int] | None, last: bool, done: Done
    ) -> None:
        if found and self.queue.cluster.is_absent(message for _, message in found):
            done(NotHere("this broker catches up, and lacks some of these messages"))
            return
        rows = self.queue.rows(found)
        if rows:
            self.queue.cluster.reading(self.queue, rows, self._holder)
        done(Slice(rows, offsets, last))

    _holder: Lease | None = None


class LeaseRead(Read):
    """Of offsets from `first` up to, and without, `stop`."""

    def __init__(self, lease: Lease, first: int, stop: int, slice_bytes: int, skip: bool = False) -> None:
        """`skip`: what it does not hold any more is left out. Raises Gone."""
        super().__init__(lease.queue, slice_bytes)
        self._lease = self._holder = lease
        self._at = first
        self._stop = stop
        self._skip = skip
        if not skip:
            self.check_whole(first)

    def check_whole(self, first: int) -> None:
        """Raises Gone if it does not hold all of what is left."""
        at = first
        for piece in self._lease.between(first, self._stop):
            if piece.offset > at:
                break
            at = piece.stop
        if at < self._stop:
            what = f"the lease '{self._lease.name}' of {self.queue.what}"
            raise Gone(f"{what} holds offset {at} no more: it was retired or released (it holds {self._holds()})")

    def _holds(self) -> str:
        lease = self._lease
        return f"{lease.count} of {lease.first} to {lease.next - 1}" if lease.count else "nothing"

    def _check(self) -> None:
        super()._check()
        if self.queue.leases.get(self._lease.name) is not self._lease:
            raise Gone(f"the lease '{self._lease.name}' of {self.queue.what} has ended")
        if not self._skip:
            self.check_whole(self._at)

    def _gather(self) -> tuple[list[Range], list[int], bool]:
        sizes = self.queue.table.sizes
        ranges: list[Range] = []
        offsets: list[int] = []
        room = self._slice
        for piece in self._lease.between(self._at, self._stop):
            offset = piece.offset
            for position, size in enumerate(sizes([(piece.first, piece.last + 1)]), piece.first):
                if offsets and (size > room or len(offsets) >= ROWS):
                    self._at = offset
                    return ranges, offsets, False
                room -= size
                add_range(ranges, position, position + 1)
                offsets.append(offset)
                offset += 1
        self._at = self._stop
        return ranges, offsets, True

    def _read(
        self, ranges: list[Range], found: list[tuple[int, Message]], offsets: list[int] | None, last: bool, done: Done
    ) -> None:
        lease = self._lease
        if self.queue.table.held_of(lease, ranges) != ranges:  # some left while they were brought from disk
            done(Gone(f"the lease '{lease.name}' of {self.queue.what} has given up what is read"))
        else:
            super()._read(ranges, found, offsets, last, done)


class RangeRead(Read):
    """A browse: everything that is in the queue at positions from `first` to `last`."""

    def __init__(self, queue: Queue, first: int, last: int, slice_bytes: int) -> None:
        super().__init__(queue, slice_bytes)
        self._at = max(first, 1)
        self._last = min(last, queue.next_position - 1)

    def _gather(self) -> tuple[list[Range], None, bool]:
        table = self.queue.table
        live = table.first_live(self._at, self._last + 1, ROWS)
        ranges, left_out = table.choose(live, ROWS, self._slice)
        self._at = left_out or (live[-1][1] if live else self._last + 1)
        return ranges, None, not table.first_live(self._at, self._last + 1, 1)
