"""Paging: a long durable queue keeps its head in memory and leaves the rest on disk.

When a queue holds more than its share of memory, what came last is paged out as soon as it is on disk. What a
consumer is to be given is brought back first, in batches from the head. A message that must become a dead letter
while it is on disk is held by this pager until it has been brought: acquired, so that nobody else gets it, and gone
when its letter is there.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Sequence
from itertools import islice
from typing import TYPE_CHECKING

from coterie.broker.entry import GONE, Entry
from coterie.broker.leases import Lease
from coterie.broker.observer import Reason
from coterie.broker.storage import Damaged
from coterie.logs import Log

if TYPE_CHECKING:
    from coterie.broker.message import Message
    from coterie.broker.queue import Queue
    from coterie.runtime.base import Runtime, Timer

log = Log(__name__)


class Pager:
    """Of one queue."""

    def __init__(self, queue: Queue, runtime: Runtime) -> None:
        store, settings = queue.vhost.store, queue.vhost.settings
        keeps = store.durable and queue.spec.durable and not queue.spec.exclusive and queue.vhost.cluster.immediate
        self.limit = settings.queue_resident_max if keeps else sys.maxsize
        """Bytes of bodies above which the queue is to be paged."""
        self.paged = 0
        """How many entries are on disk only."""
        self.paged_bytes = 0
        self.dying = 0
        """How many are held until they have been brought and are gone."""
        self.dying_bytes = 0
        self._queue = queue
        self._runtime = runtime
        self._store = store
        self._settings = settings
        self._timer: Timer | None = None
        self._next = 0
        """Positions below it were looked at."""
        self._loading = False
        self._failed = 0
        """Loads in a row that could not bring everything."""
        self._singly = 0
        """How many are to be brought one at a time."""
        self._waiting: list[Callable[[], None]] = []

    @property
    def resident(self) -> int:
        """Bytes of bodies in memory."""
        return self._queue.bytes - self.paged_bytes

    # Out.

    def watch(self) -> None:
        """The queue has become large."""
        if self._timer is None:
            self._timer = self._runtime.call_later(self._settings.page_interval, self._sweep)

    def _sweep(self) -> None:
        self._timer = None
        queue = self._queue
        if queue.bytes <= self.limit:
            self._next = 0
            return
        self.watch()
        if self.resident <= self.limit:
            return
        candidates: list[Entry] = []
        if not self._next:  # the first time, all but the head
            spare = self.limit // 2
            for entry in queue.in_order():
                spare -= entry.size
                if spare < 0:
                    candidates.append(entry)
            candidates += [entry for lease in queue.leases for entry in lease.entries(lease.pieces)]
            candidates.sort(key=lambda entry: entry.position)
        else:
            candidates = queue.browse(self._next, queue.next_position - 1, len(queue.entries))
        self._next = queue.next_position
        out = [entry for entry in candidates if entry.message is not None and _may_leave(entry.holder)]
        if self._store.page_out(out):
            self._count_out(out)
        not_yet = (e.position for e in out if e.message is not None and e.message.persistent)
        self._next = next(not_yet, self._next)

    def restored(self, entries: Iterable[Entry]) -> None:
        self._count_out(entries)
        if self._queue.bytes > self.limit:
            self.watch()

    def left(self, entries: Iterable[Entry]) -> None:
        """They have left the queue."""
        if self._queue.journal.on:
            entries = list(entries)
            self._queue.journal.note(_page_again, [entry for entry in entries if entry.paged])
        for entry in entries:
            if entry.paged:
                entry.paged = False
                self.paged -= 1
                self.paged_bytes -= entry.size

    def _count_out(self, entries: Iterable[Entry]) -> None:
        for entry in entries:
            if entry.message is None and not entry.paged:
                entry.paged = True
                self.paged += 1
                self.paged_bytes += entry.size

    # In.

    def present(self, entries: list[Entry]) -> list[Entry]:
        """Of what was taken from the head, that which is in memory before the first that is not; the rest goes back,
        and is brought."""
        for at, entry in enumerate(entries):
            if entry.message is None:
                self._queue.untake(entries[at:])
                self.bring()
                return entries[:at]
        return entries

    def bring(self, done: Callable[[], None] | None = None) -> None:
        """Load what is next at the head, then `done`; consumers are served in any case."""
        if done is not None:
            self._waiting.append(done)
        if self._loading:
            return
        batch, size = [], 0
        most = 1 if self._singly else self._settings.page_batch
        for entry in islice(self._queue.in_order(), self._settings.page_batch):
            if entry.message is None:
                batch.append(entry)
                size += entry.size
                if len(batch) >= most or size >= self._settings.page_batch_bytes:
                    break
        self._loading = True
        self._store.load(batch, lambda error: self._loaded(batch, error))

    def bring_all(self, done: Callable[[Exception | None], None]) -> None:
        """Load everything, then `done`; with an error, what could not be loaded is still on disk only."""
        absent = [entry for entry in self._queue.entries.values() if entry.message is None]

        def loaded(error: Exception | None) -> None:
            self._count_in(absent)
            done(error)

        if absent:
            self._store.load(absent, loaded)
        else:
            done(None)

    def _loaded(self, batch: list[Entry], error: Exception | None) -> None:
        self._loading = False
        if not self._queue.deleted:
            self._count_in(batch)
            absent = [entry for entry in batch if entry.message is None and entry.holder is None]
            self._singly = max(self._singly - 1, 0)
            if not absent:
                self._failed = 0
                self._queue.dispatch()
            elif isinstance(error, Damaged):
                self._damaged(absent)
            else:
                self._unreadable(absent, error)
        waiting, self._waiting = self._waiting, []
        for done in waiting:
            done()

    def _damaged(self, absent: list[Entry]) -> None:
        """At least one is damaged for good. Which one shows when they are brought one at a time."""
        if len(absent) == 1:
            self._queue.lose(absent)
        else:
            self._singly = len(absent)
        self._runtime.call_soon(self._queue.dispatch)

    def _unreadable(self, absent: list[Entry], error: Exception | None) -> None:
        """The disk may be well again later."""
        log.error("messages cannot be read from disk", queue=self._queue.name, count=len(absent), error=error)
        self._failed += 1
        if self._failed >= self._settings.page_tries:
            self._failed = 0
            self._queue.lose(absent)
        self._runtime.call_later(self._settings.page_retry, self._queue.dispatch)

    def _count_in(self, batch: Sequence[Entry]) -> None:
        for entry in batch:
            if entry.message is not None and entry.paged:
                entry.paged = False
                self.paged -= 1
                self.paged_bytes -= entry.size

    def hold(self, entries: list[Entry], reason: Reason) -> list[Entry]:
        """Ready ones must die. Those on disk are held and brought, and die then; the others are given back."""
        absent = [entry for entry in entries if entry.message is None]
        if not absent:
            return entries
        self._queue.lease(absent, self)
        self.dying += len(absent)
        self.dying_bytes += sum(entry.size for entry in absent)
        self._bring_held(absent, reason, self._settings.page_tries)
        return [entry for entry in entries if entry.message is not None]

    def _bring_held(self, entries: list[Entry], reason: Reason, tries: int) -> None:
        def loaded(error: Exception | None) -> None:
            if self._queue.deleted:
                return
            self._count_in(entries)
            here = [entry for entry in entries if entry.message is not None]
            absent = [entry for entry in entries if entry.message is None and entry.holder is self]
            if here:
                self._die(here, reason)
            if not absent:
                return
            log.error("dead letters cannot be read", queue=self._queue.name, count=len(absent), error=error)
            damaged = isinstance(error, Damaged)
            if tries <= 1 or (damaged and len(absent) == 1):
                self._die(absent, Reason.LOST)
            elif damaged:
                for entry in absent:
                    self._bring_held([entry], reason, tries)
            else:
                self._runtime.call_later(self._settings.page_retry, self._bring_held, absent, reason, tries - 1)

        self._store.load(entries, loaded)

    def _die(self, entries: list[Entry], reason: Reason) -> None:
        self.dying -= len(entries)
        self.dying_bytes -= sum(entry.size for entry in entries)
        self._queue.dequeue(entries, reason)

    def read(self, entries: Sequence[Entry], done: Callable[[list[tuple[Entry, Message]] | Exception], None]) -> None:
        """The messages of these entries, without making any of them resident."""
        absent = [entry for entry in entries if entry.message is None]
        if not absent:
            done([(entry, entry.message) for entry in entries if entry.message is not None])
            return
        copies = {entry.position: _copy(entry) for entry in absent}
        messages = {entry.position: entry.message for entry in entries}

        def loaded(error: Exception | None) -> None:
            messages.update((position, copy.message) for position, copy in copies.items())
            found = [(e, m) for e in entries if (m := messages[e.position]) is not None]
            # What left the queue meanwhile is not missed; anything else that is not there is an error.
            lost = error is not None and any(messages[e.position] is None and e.holder is not GONE for e in entries)
            done(error if lost and error is not None else found)

        self._store.load(list(copies.values()), loaded)

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self.paged = self.paged_bytes = 0


def _may_leave(holder: object) -> bool:
    """Whether nobody is about to need its message; a lease is read when it is read."""
    return holder is None or isinstance(holder, Lease)


def _page_again(entries: Iterable[Entry]) -> None:
    for entry in entries:
        entry.paged = True


def _copy(entry: Entry) -> Entry:
    copy = Entry(entry.position, None, entry.queue, entry.size)
    copy.stored = entry.stored
    return copy
