"""What a channel has delivered and its client has not settled yet.

Deliveries come in runs: some entries of one queue for one consumer, with delivery tags that rise by one. Tags only
rise, so the runs are a sorted row; a cumulative acknowledgement takes whole runs from its front. Whatever a client
does with tags, each entry is settled once, and runs that are done with are dropped, in whatever order that happens.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator
from operator import attrgetter
from typing import Final, NamedTuple, Protocol

from coterie.amqp.codes import PRECONDITION_FAILED
from coterie.broker.entry import Entry
from coterie.broker.queue import Queue
from coterie.errors import ProtocolError

Settled = dict[Queue, list[Entry]]
"""Entries by their queues, in the order in which they were settled."""
_SWEEP_MIN: Final = 64
"""So few runs that are done with are not worth a sweep."""


class Holder(Protocol):
    """Who may hold only so much."""

    held: int


class Run:
    """Deliveries in a row to one holder."""

    __slots__ = ("at", "entries", "first", "holder", "left", "next")

    def __init__(self, first: int, holder: Holder | None, entries: list[Entry | None], at: float) -> None:
        self.at = at
        """When they were delivered."""
        self.first = first
        """The tag of the first entry."""
        self.holder = holder
        """None: somebody got it with basic.get."""
        self.entries = entries
        """None: settled."""
        self.next = 0
        """All before this place are settled."""
        self.left = len(entries)


class Withdrawn(NamedTuple):
    """Settled in a transaction that is not committed yet."""

    tag: int
    holder: Holder | None
    entry: Entry
    at: float


_first = attrgetter("first")


class Unsettled:
    """The entries that a client holds, in the order of their delivery tags."""

    __slots__ = ("_done", "_freed", "_head", "_now", "_runs", "count", "next_tag")

    def __init__(self, freed: Callable[[Holder | None], None], now: Callable[[], float]) -> None:
        self._now = now
        self._freed = freed
        """Told of a holder that holds less than before; None: somebody who got it with basic.get."""
        self._runs: list[Run] = []
        self._head = 0
        """Runs before this place are done with."""
        self._done = 0
        """Runs that are done with, wherever they are."""
        self.count = 0
        self.next_tag = 1

    def add(self, holder: Holder | None, entries: list[Entry]) -> None:
        """They have been given the next tags."""
        size = len(entries)
        self._runs.append(Run(self.next_tag, holder, [*entries], self._now()))
        self.next_tag += size
        self.count += size
        if holder is not None:
            holder.held += size

    def skip(self, tags: int) -> None:
        """So many tags were given to deliveries that need no settling."""
        self.next_tag += tags

    def take(self, tag: int, multiple: bool, into: Settled) -> None:
        """Settle one, or all up to and with that tag (0: all). Raises ProtocolError 406 for one that is not there."""
        if not multiple and self._take_next(tag, into):
            return
        if multiple:
            for run, stop in self._spans(tag):
                self._give(run.holder, self._cut(run, stop), into)
            self._sweep()
        else:
            run = self._find(tag)
            self._give(run.holder, [self._pick(run, tag - run.first)], into)
            if not run.left:
                self._sweep()

    def _take_next(self, tag: int, into: Settled) -> bool:
        """The first one that is unsettled, if that is its tag: most clients settle one after the other."""
        if self._head >= len(self._runs):
            return False
        run = self._runs[self._head]
        index = run.next
        if tag - run.first != index or run.left < 2:
            return False
        entry = run.entries[index]
        if entry is None:
            return False
        run.entries[index] = None
        run.next = index + 1
        run.left -= 1
        self.count -= 1
        if run.holder is not None:
            run.holder.held -= 1
        self._freed(run.holder)
        found = into.get(entry.queue)
        if found is None:
            into[entry.queue] = [entry]
        else:
            found.append(entry)
        return True

    def withdraw(self, tag: int, multiple: bool) -> list[Withdrawn]:
        """As `take`, but who holds them holds them still: `settle` or `restore` follows."""
        taken: list[Withdrawn] = []
        if multiple:
            for run, stop in self._spans(tag):
                tags = range(run.first + run.next, run.first + stop)
                live = zip(tags, run.entries[run.next : stop], strict=True)
                taken += [Withdrawn(each, run.holder, entry, run.at) for each, entry in live if entry is not None]
                self._cut(run, stop)
        else:
            run = self._find(tag)
            taken.append(Withdrawn(tag, run.holder, self._pick(run, tag - run.first), run.at))
        self._sweep()
        return taken

    def settle(self, withdrawn: Iterable[Withdrawn], into: Settled) -> None:
        """The transaction is committed."""
        for _, holder, entry, _ in withdrawn:
            self._give(holder, [entry], into)

    def restore(self, withdrawn: Iterable[Withdrawn]) -> None:
        """The transaction is rolled back: the client has them again, with the tags that they had."""
        for tag, holder, entry, at in withdrawn:
            place = bisect_right(self._runs, tag, key=_first)
            run = self._runs[place - 1] if place else None
            if run is None or tag >= run.first + len(run.entries):
                self._runs.insert(place, Run(tag, holder, [entry], at))
            else:
                index = tag - run.first
                assert run.entries[index] is None
                run.entries[index] = entry
                run.next = min(run.next, index)
                self._done -= not run.left
                run.left += 1
            self._head = min(self._head, place - 1 if place else 0)

    def entries(self) -> list[Entry]:
        """All that is unsettled, by rising tags."""
        return [entry for run in self._runs[self._head :] for entry in run.entries if entry is not None]

    @property
    def oldest(self) -> float | None:
        """When the first of those that are unsettled was delivered."""
        return next((run.at for run in self._runs[self._head :] if run.left), None) if self.count else None

    def take_all(self) -> Settled:
        into: Settled = {}
        self.take(0, True, into)
        return into

    def _find(self, tag: int) -> Run:
        """The run with that tag, unsettled."""
        runs, head = self._runs, self._head
        if head < len(runs):
            run = runs[head]
            index = tag - run.first
            if index >= len(run.entries):
                run = runs[bisect_right(runs, tag, head, key=_first) - 1]
                index = tag - run.first
            if 0 <= index < len(run.entries) and run.entries[index] is not None:
                return run
        raise ProtocolError(PRECONDITION_FAILED, f"unknown delivery tag {tag}")

    def _spans(self, tag: int) -> Iterator[tuple[Run, int]]:
        """What is unsettled up to that tag: runs, and up to which place of each."""
        last = self._find(tag) if tag else None
        runs = self._runs
        for place in range(self._head, len(runs)):
            run = runs[place]
            if run is last:
                yield run, tag - run.first + 1
                return
            if run.left:
                yield run, len(run.entries)

    def _pick(self, run: Run, index: int) -> Entry:
        entry = run.entries[index]
        assert entry is not None
        run.entries[index] = None
        if index == run.next:
            run.next = index + 1
        run.left -= 1
        self._done += not run.left
        return entry

    def _cut(self, run: Run, stop: int) -> list[Entry]:
        """Everything of a run before that place."""
        entries = [entry for entry in run.entries[run.next : stop] if entry is not None]
        run.entries[run.next : stop] = [None] * (stop - run.next)
        run.next = stop
        run.left -= len(entries)
        self._done += not run.left
        return entries

    def _give(self, holder: Holder | None, entries: list[Entry], into: Settled) -> None:
        count = len(entries)
        self.count -= count
        if holder is not None:
            holder.held -= count
        self._freed(holder)
        queue = entries[0].queue
        if queue in into:
            into[queue] += entries
        else:
            into[queue] = entries

    def _sweep(self) -> None:
        """Drop runs that are done with, once they are the most of them."""
        runs, head = self._runs, self._head
        while head < len(runs) and not runs[head].left:
            head += 1
        if self._done > _SWEEP_MIN and self._done * 2 > len(runs):
            self._runs = [run for run in runs if run.left]
            self._done = head = 0
        self._head = head
