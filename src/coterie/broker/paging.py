"""Paging: a long durable queue keeps its head in memory and leaves the rest on disk.

When a queue holds more than its share of memory, what came last is paged out as soon as it is on disk. What a
consumer is to be given is brought back first, in batches from the head. A message that must become a dead letter
while it is on disk is held by this pager until it has been brought: acquired, so that nobody else gets it, and gone
when its letter is there.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from coterie.broker.delivery import count_of, positions_in, split
from coterie.broker.message_table import count_in, within
from coterie.broker.observer import Reason
from coterie.broker.ranges import END, PositionSet, Range
from coterie.broker.state.positions import cut, put
from coterie.broker.storage import Damaged
from coterie.logs import Log

if TYPE_CHECKING:
    from coterie.broker.message import Message
    from coterie.broker.queue import Queue
    from coterie.runtime.base import Runtime, Timer

log = Log(__name__)
Found = Mapping[int, "Message"]
"""By position."""


class Pager:
    """Of one queue."""

    def __init__(self, queue: Queue, runtime: Runtime) -> None:
        store, settings = queue.vhost.store, queue.vhost.settings
        keeps = store.durable and queue.spec.durable and not queue.spec.exclusive and queue.vhost.cluster.immediate
        self.limit = settings.queue_resident_max if keeps else sys.maxsize
        """Bytes of bodies above which the queue is to be paged."""
        self.absent = PositionSet()
        """What is on disk only."""
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
    def paged(self) -> int:
        """How many messages are on disk only."""
        return self.absent.count

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
        candidates = self._candidates()
        self._next = queue.next_position
        out = self._store.on_disk(queue, [*candidates.ranges()])
        if out:
            self._forget(out)
            candidates.remove_all(self.absent)
        for first, stop in candidates.ranges():
            for position, message in enumerate(queue.table.messages([(first, stop)]), first):
                if message is not None and message.persistent:  # it is not on disk yet
                    self._next = position
                    return

    def _candidates(self) -> PositionSet:
        """What nobody is about to need; a lease is read when it is read."""
        queue = self._queue
        table = queue.table
        found = table.state.ready.copy()
        if not self._next:  # the first time, all but the head
            head = table.state.lengths.fitting(table.in_order(), self.limit // 2)
            cut(found, table.first_ready(head))
        for lease in queue.leases:
            held = table.held(lease)
            if held:
                found.add_all(held)
        if self._next:
            found = found.within(self._next, END)
        found.remove_all(self.absent)
        return found

    def _forget(self, ranges: list[Range]) -> None:
        self._queue.table.contents.drop(ranges)
        self._count_out(ranges)

    def restored(self, ranges: list[Range]) -> None:
        """They are on disk only."""
        self._count_out(ranges)
        if self._queue.bytes > self.limit:
            self.watch()

    def leaving(self, ranges: Sequence[Range]) -> tuple[list[Range], int]:
        """What of these is on disk only, and its bytes."""
        found = within(ranges, self.absent)
        return found, self._queue.table.bytes_of(found)

    def left(self, ranges: list[Range], size: int) -> None:
        """They have left the queue, and no step can bring them back."""
        cut(self.absent, ranges)
        self.paged_bytes -= size

    def _count_out(self, ranges: list[Range]) -> None:
        put(self.absent, ranges)
        self.paged_bytes += self._queue.table.bytes_of(ranges)

    def _count_in(self, ranges: list[Range]) -> None:
        cut(self.absent, ranges)
        self.paged_bytes -= self._queue.table.bytes_of(ranges)

    # In.

    def present(self, ranges: list[Range]) -> list[Range]:
        """Of what is at the head, that which is in memory before the first that is not; the rest is brought."""
        count = 0
        for first, stop in ranges:
            absent = self.absent.next_from(first)
            if absent is not None and absent < stop:
                count += absent - first
                self.bring(behind=count)
                return split(ranges, count)[0]
            count += stop - first
        return ranges

    def bring(self, done: Callable[[], None] | None = None, behind: int = 0) -> None:
        """Load what is next at the head, behind so many that are about to be given, then `done`; consumers are served
        in any case."""
        if done is not None:
            self._waiting.append(done)
        if self._loading:
            return
        table = self._queue.table
        most = 1 if self._singly else self._settings.page_batch
        next_ones = split(table.first_ready(behind + self._settings.page_batch), behind)[1]
        wanted = within(next_ones, self.absent)
        fitting = table.state.lengths.fitting(wanted, self._settings.page_batch_bytes - 1) + 1
        batch = split(wanted, min(most, fitting))[0]
        self._loading = True
        self._store.load(self._queue, batch, lambda found, error: self._loaded(batch, found, error))

    def bring_all(self, done: Callable[[Exception | None], None]) -> None:
        """Load everything, then `done`; with an error, what could not be loaded is still on disk only."""

        def loaded(found: Found, error: Exception | None) -> None:
            self._take_in(found)
            done(error)

        if self.absent:
            self._store.load(self._queue, [*self.absent.ranges()], loaded)
        else:
            done(None)

    def _take_in(self, found: Found) -> None:
        """It may have been loaded twice at a time, or have left."""
        absent, contents = self.absent, self._queue.table.contents
        there: list[Range] = []
        for position, message in found.items():
            if position in absent:
                contents.put(position, [message])
                there.append((position, position + 1))
        self._count_in(there)

    def _loaded(self, batch: list[Range], found: Found, error: Exception | None) -> None:
        self._loading = False
        queue = self._queue
        if not queue.deleted:
            self._take_in(found)
            absent = within(queue.table.ready_of(batch), self.absent)
            self._singly = max(self._singly - 1, 0)
            if not absent:
                self._failed = 0
                queue.dispatch()
            elif isinstance(error, Damaged):
                self._damaged(absent)
            else:
                self._unreadable(absent, error)
        waiting, self._waiting = self._waiting, []
        for done in waiting:
            done()

    def _damaged(self, absent: list[Range]) -> None:
        """At least one is damaged for good. Which one shows when they are brought one at a time."""
        count = count_of(absent)
        if count == 1:
            self._queue.lose(absent)
        else:
            self._singly = count
        self._runtime.call_soon(self._queue.dispatch)

    def _unreadable(self, absent: list[Range], error: Exception | None) -> None:
        """The disk may be well again later."""
        log.error(
            "messages cannot be read from disk", queue=self._queue.name, count=count_of(absent), error=error
        )  # fmt: skip
        self._failed += 1
        if self._failed >= self._settings.page_tries:
            self._failed = 0
            self._queue.lose(absent)
        self._runtime.call_later(self._settings.page_retry, self._queue.dispatch)

    def hold(self, ranges: list[Range], reason: Reason) -> list[Range]:
        """Ready ones must die. Those on disk are held and brought, and die then; the others are given back."""
        absent = within(ranges, self.absent)
        if not absent:
            return ranges
        queue = self._queue
        queue.keep()
        queue.lease(absent, self)
        queue.table.tie(absent)
        self.dying += count_of(absent)
        self.dying_bytes += queue.table.bytes_of(absent)
        self._bring_held(absent, reason, self._settings.page_tries)
        here = PositionSet(ranges)
        cut(here, absent)
        return within(ranges, here)

    def _bring_held(self, ranges: list[Range], reason: Reason, tries: int) -> None:
        queue = self._queue

        def loaded(found: Found, error: Exception | None) -> None:
            if queue.deleted:
                return
            self._take_in(found)
            held = queue.table.held_of(self, ranges)
            absent = within(held, self.absent)
            if count_of(absent) < count_of(held):
                here = PositionSet(held)
                cut(here, absent)
                self._die(within(held, here), reason)
            if not absent:
                return
            log.error("dead letters cannot be read", queue=queue.name, count=count_of(absent), error=error)
            damaged = isinstance(error, Damaged)
            if tries <= 1 or (damaged and count_of(absent) == 1):
                self._die(absent, Reason.LOST)
            elif damaged:
                for position in positions_in(absent):
                    self._bring_held([(position, position + 1)], reason, tries)
            else:
                self._runtime.call_later(self._settings.page_retry, self._bring_held, absent, reason, tries - 1)

        self._store.load(queue, ranges, loaded)

    def _die(self, ranges: list[Range], reason: Reason) -> None:
        self.dying -= count_of(ranges)
        self.dying_bytes -= self._queue.table.bytes_of(ranges)
        self._queue.dequeue(self, ranges, reason)

    def read(
        self, ranges: Sequence[Range], done: Callable[[list[tuple[int, Message]] | Exception], None]
    ) -> None:  # fmt: skip
        """Positions and messages of these, without making any of them resident."""
        table = self._queue.table
        messages = table.messages(ranges)
        absent = within(ranges, self.absent) if count_in(ranges, self.absent) else []
        if not absent:
            done([(at, message) for at, message in zip(positions_in(ranges), messages, strict=True) if message])
            return

        def loaded(brought: Found, error: Exception | None) -> None:
            found: list[tuple[int, Message]] = []
            lost = False
            for position, here in zip(positions_in(ranges), messages, strict=True):
                message = here or brought.get(position)
                if message is not None:
                    found.append((position, message))
                else:  # what left the queue meanwhile is not missed; anything else that is not there is an error
                    lost = lost or position in table.state.live
            done(error if lost and error is not None else found)

        self._store.load(self._queue, absent, loaded)

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self.absent = PositionSet()
        self.paged_bytes = 0
