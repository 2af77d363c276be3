"""Bulk reads: messages of a queue slice by slice, for whoever reads more of them than fit into memory.

A read of a lease gives the same messages whenever and wherever it is made, until they are retired or released. A browse
gives whatever is in the queue, and takes nothing. Each slice is bounded, is made in one turn, and only while this
broker may serve; messages that are on disk are brought for it without becoming resident.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import TYPE_CHECKING, Final, NamedTuple

from coterie.broker.leases import Gone
from coterie.broker.rows import Row, rows_of
from coterie.errors import CoterieError

if TYPE_CHECKING:
    from coterie.broker.entry import Entry
    from coterie.broker.leases import Lease
    from coterie.broker.message import Message
    from coterie.broker.queue import Queue

ROWS: Final = 4096
"""Of one slice at most."""
STEPS: Final = 65_536
"""Positions that a browse looks at in one turn."""


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
            entries, offsets, last = self._gather()
        except CoterieError as error:
            done(error)
            return

        def read(found: list[tuple[Entry, Message]] | Exception) -> None:
            if isinstance(found, Exception):
                done(NotHere(f"the disk does not give it back: {found}"))
            else:
                self._read(entries, found, offsets, last, done)

        self.queue.pager.read(entries, read)

    def _check(self) -> None:
        queue = self.queue
        why = queue.cluster.may_serve()
        if why:
            raise NotHere(f"this broker does not serve now: {why}")
        if queue.deleted:
            raise Gone(f"{queue.what} is gone")

    @abstractmethod
    def _gather(self) -> tuple[list[Entry], list[int] | None, bool]:
        """The next entries, their offsets, and whether they are the last."""

    def _read(
        self, entries: list[Entry], found: list[tuple[Entry, Message]], offsets: list[int] | None, last: bool,
        done: Done,
    ) -> None:  # fmt: skip
        if found and self.queue.cluster.is_absent(message for _, message in found):
            done(NotHere("this broker catches up, and lacks some of these messages"))
            return
        if found:
            rows = rows_of(found)
            self.queue.cluster.reading(self.queue, rows, self._holder)
        else:
            rows = []
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

    def _gather(self) -> tuple[list[Entry], list[int], bool]:
        live = self.queue.entries
        entries: list[Entry] = []
        offsets: list[int] = []
        room = self._slice
        for piece in self._lease.between(self._at, self._stop):
            offset = piece.offset
            for position in range(piece.first, piece.last + 1):
                entry = live[position]
                if entries and (entry.size > room or len(entries) >= ROWS):
                    self._at = offset
                    return entries, offsets, False
                room -= entry.size
                entries.append(entry)
                offsets.append(offset)
                offset += 1
        self._at = self._stop
        return entries, offsets, True

    def _read(
        self, entries: list[Entry], found: list[tuple[Entry, Message]], offsets: list[int] | None, last: bool,
        done: Done,
    ) -> None:  # fmt: skip
        lease = self._lease
        if len(found) != len(entries) or [entry for entry in entries if entry.holder is not lease]:
            # Some left while they were brought from disk.
            done(Gone(f"the lease '{lease.name}' of {self.queue.what} has given up what is read"))
        else:
            super()._read(entries, found, offsets, last, done)


class RangeRead(Read):
    """A browse: everything that is in the queue at positions from `first` to `last`."""

    def __init__(self, queue: Queue, first: int, last: int, slice_bytes: int) -> None:
        super().__init__(queue, slice_bytes)
        self._at = max(first, 1)
        self._last = min(last, queue.next_position - 1)
        self._sparse: list[int] | None = None
        """Positions, the last one first, of a queue that has few of the range."""

    def _gather(self) -> tuple[list[Entry], None, bool]:
        if self._sparse is None and self._last - self._at > 64 * (len(self.queue.entries) + ROWS):
            found = [position for position in self.queue.entries if self._at <= position <= self._last]
            self._sparse = sorted(found, reverse=True)
        return self._gather_some() if self._sparse is not None else self._gather_all()

    def _gather_all(self) -> tuple[list[Entry], None, bool]:
        get = self.queue.entries.get
        entries: list[Entry] = []
        room = self._slice
        stop = min(self._last, self._at + STEPS - 1) + 1
        for position in range(self._at, stop):
            entry = get(position)
            if entry is None:
                continue
            if entries and (entry.size > room or len(entries) >= ROWS):
                self._at = position
                return entries, None, False
            room -= entry.size
            entries.append(entry)
        self._at = stop
        return entries, None, stop > self._last

    def _gather_some(self) -> tuple[list[Entry], None, bool]:
        positions, get = self._sparse, self.queue.entries.get
        assert positions is not None
        entries: list[Entry] = []
        room = self._slice
        while positions and len(entries) < ROWS:
            entry = get(positions[-1])
            if entry is not None:
                if entries and entry.size > room:
                    break
                room -= entry.size
                entries.append(entry)
            positions.pop()
        return entries, None, not positions
