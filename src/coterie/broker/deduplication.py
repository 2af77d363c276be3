"""Deduplication: a queue takes each message id once, as long as it remembers it.

`x-deduplicate-length` says how many ids a queue remembers, `x-deduplicate-ttl` for how many milliseconds. A publish
whose `message-id` is among them is dropped, and confirmed as if it had been taken: the first one was. An id is
remembered whatever becomes of its message: consumed, expired, dead. Messages without an id are always taken; so is what
died before (it has an `x-death`), or was moved: it comes back by rule, and not because a publisher repeats itself.

What is dropped depends on the queue and on the order and time of the events alone, so every broker of a cluster drops
the same. Ids of persistent messages are remembered apart from others, and a durable queue has them on disk, in one unit
with the messages: after a crash both are there, or neither. In memory and on disk an id is a digest of 16 bytes.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from hashlib import blake2b
from itertools import chain, islice
from typing import TYPE_CHECKING, Final

from coterie.amqp.wire.properties import message_id
from coterie.broker.dead_letter import DEATHS
from coterie.broker.journal import Journal, restore_attributes
from coterie.broker.seen import DIGEST, Pages, Run
from coterie.broker.state.vocabulary import Count

if TYPE_CHECKING:
    from coterie.broker.limits import Limits
    from coterie.broker.message import Message
    from coterie.broker.queue import Queue
    from coterie.broker.storage import Record

LENGTH_DEFAULT: Final = 1_000_000
"""Ids of a queue that says for how long, but not how many."""
_DEATHS: Final = DEATHS.encode()


class Memory:
    """Ids in the order in which they came, and in what runs."""

    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        self.seen: set[bytes] = set()
        self._order: deque[bytes] = deque()
        """The oldest first."""
        self._spans: deque[tuple[int, float, int]] = deque()
        """Of each run in the same order: its number, its time, and how many of its ids are still remembered."""
        self.number = 0
        """Of the last run."""

    def __len__(self) -> int:
        return len(self._order)

    def add(self, run: Run) -> None:
        ids = [run.ids[at : at + DIGEST] for at in range(0, len(run.ids), DIGEST)]
        if self._journal.on:
            self._journal.note(self._cut, len(self._order), len(self._spans), self.number)
        self.seen.update(ids)
        self._order.extend(ids)
        self._spans.append((run.number, run.wall, len(ids)))
        self.number = run.number

    def forget(self, before: float, length: int) -> None:
        """What came before that time, and the oldest of those that are too many."""
        while self._spans and self._spans[0][1] < before:
            self._drop(self._spans[0][2])
        self._drop(len(self._order) - length)

    def _drop(self, count: int) -> None:
        if count <= 0:
            return
        spans, order, seen = self._spans, self._order, self.seen
        ids: list[bytes] = []
        gone: list[tuple[int, float, int]] = []
        if self._journal.on:
            self._journal.note(self._remember, ids, gone)
        while count > 0:
            number, wall, there = spans.popleft()
            gone.append((number, wall, there))
            some = min(count, there)
            ids += [order.popleft() for _ in range(some)]
            if some < there:
                spans.appendleft((number, wall, there - some))
            count -= some
        seen.difference_update(ids)

    def _cut(self, ids: int, spans: int, number: int) -> None:
        """A step was taken back: what came last never came."""
        while len(self._order) > ids:
            self.seen.discard(self._order.pop())
        while len(self._spans) > spans:
            self._spans.pop()
        self.number = number

    def _remember(self, ids: list[bytes], spans: list[tuple[int, float, int]]) -> None:
        """And what was forgotten was not."""
        self._order.extendleft(reversed(ids))
        self.seen.update(ids)
        if spans and sum(span[2] for span in spans) > len(ids):
            self._spans.popleft()  # the rest of the last one
        self._spans.extendleft(reversed(spans))

    def settle(self) -> None:
        """Some that were added had been forgotten before, and come a second time."""
        self.seen = {*self._order}

    @property
    def oldest(self) -> int:
        """The number of the oldest run."""
        return self._spans[0][0] if self._spans else self.number + 1

    def runs(self) -> Iterator[Run]:
        """As they are now, however late somebody looks at them."""
        ids = iter([*self._order])
        return (Run(number, wall, b"".join(islice(ids, count))) for number, wall, count in [*self._spans])


class Window:
    """The ids that one queue remembers."""

    def __init__(self, queue: Queue) -> None:
        self._queue = queue
        self.kept = Memory(queue.journal)
        """Of persistent messages."""
        self.fleeting = Memory(queue.journal)
        """Of others."""
        self._wall = 0.0
        """The latest time that any event told: clocks of different brokers may differ."""
        self._pages = Pages(queue) if queue.vhost.store in queue.observers else None

    def __len__(self) -> int:
        return len(self.kept) + len(self.fleeting)

    def take(self, messages: Sequence[Message]) -> None:
        """What clients publish: those that are new are enqueued."""
        queue = self._queue
        store = queue.vhost.store
        store.begin()
        try:
            fresh, duplicates = self._sift(messages)
            if duplicates:
                queue.counters.duplicates += len(duplicates)
                if queue.journal.effects.on:
                    queue.journal.effects.counted(queue, Count.DUPLICATES, len(duplicates))
                if queue.vhost.traced is not None:
                    queue.vhost.traced.dropped(queue, duplicates)
            queue.enqueue(fresh)
        finally:
            store.end()

    def _sift(self, messages: Sequence[Message]) -> tuple[list[Message], list[Message]]:
        """The new ones, and those that are none."""
        if self._queue.journal.on:
            self._queue.journal.note(restore_attributes, self, ("_wall",), (self._wall,))
            self._queue.keep()
        self._wall = max(self._wall, self._queue.cluster.wall())
        self._forget()
        seen, seen_too, new = self.kept.seen, self.fleeting.seen, set[bytes]()
        fresh: list[Message] = []
        duplicates: list[Message] = []
        kept: list[bytes] = []
        fleeting: list[bytes] = []
        for message in messages:
            header = message.header
            found = None if message.has_headers and _DEATHS in header else message_id(header)
            if found is not None:
                digest = blake2b(found, digest_size=DIGEST).digest()
                if digest in seen or digest in seen_too or digest in new:
                    duplicates.append(message)
                    continue
                new.add(digest)
                (kept if message.persistent else fleeting).append(digest)
            fresh.append(message)
        if kept:
            run = Run(self.kept.number + 1, self._wall, b"".join(kept))
            self._remember(self.kept, run)
            if self._pages is not None:
                self._pages.save(run, self.kept.oldest)
        if fleeting:
            self._remember(self.fleeting, Run(self.fleeting.number + 1, self._wall, b"".join(fleeting)))
        return fresh, duplicates

    def _remember(self, memory: Memory, run: Run) -> None:
        memory.add(run)
        effects = self._queue.journal.effects
        if effects.on:
            effects.remembered(self._queue, run.ids)
        self._forget()

    def _forget(self) -> None:
        limits, known = self._queue.limits, len(self)
        ttl, length = limits.deduplicate_ttl, limits.deduplicate_length or LENGTH_DEFAULT
        before = 0.0 if ttl is None else self._wall - ttl / 1000
        self.kept.forget(before, length)
        self.fleeting.forget(before, length)
        effects = self._queue.journal.effects
        if effects.on and len(self) != known:
            effects.forgot(self._queue, known - len(self))

    def clear(self) -> None:
        """The queue does not deduplicate any more, or is gone."""
        if self._pages is not None:
            self._pages.clear()

    # For a broker that is to have the same.

    def runs(self) -> Iterator[tuple[bool, Run]]:
        """As they are now: whether they are of persistent messages, and what they are."""
        kept, fleeting = self.kept.runs(), self.fleeting.runs()
        return chain(((True, run) for run in kept), ((False, run) for run in fleeting))

    def restore(self, runs: Sequence[tuple[bool, Run]]) -> None:
        """Further ones, with rising numbers, that another broker remembers."""
        for persistent, run in runs:
            self._add(self.kept if persistent else self.fleeting, run)
        if self._pages is not None:
            self._pages.keep([run for persistent, run in runs if persistent])

    def recover(self, found: dict[str, Record]) -> None:
        """By their keys, the records that the store has kept."""
        if self._pages is not None:
            for run in self._pages.recover(found):
                self._add(self.kept, run)
            self._forget()
            self.kept.settle()

    def _add(self, memory: Memory, run: Run) -> None:
        memory.add(run)
        self._wall = max(self._wall, run.wall)


def window_for(queue: Queue, limits: Limits) -> Window | None:
    """What a queue with these limits remembers: what it did, if it did."""
    if limits.deduplicates:
        return queue.window or Window(queue)
    if queue.window is not None:
        queue.window.clear()
    return None
