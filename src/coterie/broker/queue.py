"""A queue: messages with positions, given to consumers, until each is accepted or leaves by a rule.

| from     | what happens                        | to       | observers are told            | dead letter |
|----------|-------------------------------------|----------|-------------------------------|-------------|
| -        | enqueue                             | READY    | enqueued                      |             |
| READY    | dispatch to a consumer, get; a      | ACQUIRED | acquired                      |             |
|          | lease takes it                      |          |                               |             |
| ACQUIRED | accept; its lease retires it        | GONE     | dequeued ACCEPTED             | no          |
| ACQUIRED | delivered without acknowledgement   | GONE     | dequeued GOT                  | no          |
| ACQUIRED | release; its holder is lost         | READY    | released                      |             |
| ACQUIRED | reject                              | GONE     | dequeued REJECTED             | yes         |
| ACQUIRED | release beyond the delivery limit   | GONE     | dequeued EXHAUSTED            | yes         |
| READY    | its time is over                    | GONE     | dequeued EXPIRED              | yes         |
| READY    | the queue is too long (a ring:      | GONE     | dequeued EVICTED              | yes         |
|          | ACQUIRED too, but by no lease)      |          |                               |             |
| READY or | a newer value of its key arrives    | GONE     | dequeued REPLACED             | no          |
| ACQUIRED | (last-value queues; one that is     |          |                               |             |
|          | leased: when it is released)        |          |                               |             |
| READY    | purge, move                         | GONE     | dequeued PURGED, MOVED        | no          |
| READY    | the disk does not give it back      | GONE     | dequeued LOST                 | no          |
| any      | the queue is deleted                | GONE     | dequeued DELETED, deleted     | no          |

Nothing else happens to a message, and what is GONE stays so: accepting, releasing or rejecting it again does nothing.
What a client wants (`accept`, `release`, `reject`) goes to the cluster, which calls the step that does it
(`apply_accept`...): alone at once, in a cluster when the order of all events has come to it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from operator import attrgetter
from typing import TYPE_CHECKING

from coterie.broker import queue_image
from coterie.broker.arguments import REJECT_DEAD
from coterie.broker.counters import Counters
from coterie.broker.deduplication import Window, window_for
from coterie.broker.delivery import Delivery, HeldRanges, positions_in, ranges_of
from coterie.broker.dispatch import Dispatcher
from coterie.broker.effects import REMOVE
from coterie.broker.entry import GONE, Entry
from coterie.broker.expiry import Expiry
from coterie.broker.leases import Leases
from coterie.broker.limits import Limits
from coterie.broker.observer import DEADLY, QueueObserver, Reason
from coterie.broker.paging import Pager
from coterie.broker.ready import OneLane, Ready
from coterie.broker.rows import Row, rows_of
from coterie.broker.state.vocabulary import Count

if TYPE_CHECKING:
    from coterie.broker.consumer import Consumer
    from coterie.broker.following.followed_queue import Replica
    from coterie.broker.message import Message
    from coterie.broker.ranges import Range
    from coterie.broker.specs import QueueSpec
    from coterie.broker.vhost import Vhost
    from coterie.runtime.base import Runtime

_position = attrgetter("position")
_LONG = 4096
"""A range may be longer than the queue by so many positions, and all of them are looked at."""


class Queue:
    """First in, first out; the other kinds override what differs."""

    kind = "fifo"

    def __init__(
        self, vhost: Vhost, name: str, incarnation: int, spec: QueueSpec, runtime: Runtime, owner: object | None = None
    ) -> None:
        self.vhost = vhost
        self.name = name
        self.incarnation = incarnation
        self.spec = spec
        self.owner = owner
        """The connection that an exclusive queue belongs to."""
        self.home: str | None = None
        """In a cluster, the broker that alone has its messages; None: every broker has them."""
        self.elsewhere = False
        """And that is another one."""
        self.limits = Limits()
        self.policy: str | None = None
        self.operator_policy: str | None = None
        self.observers: list[QueueObserver] = []
        self.entries: dict[int, Entry] = {}
        """Everything that is in the queue, ready or acquired, by position; in the order of positions."""
        self.ready = 0
        self.ready_bytes = 0
        self.bytes = 0
        """Bodies of everything that is in the queue."""
        self.next_position = 1
        self.counters = Counters()
        self.deleted = False
        self.journal = vhost.journal
        self.kept_in = -1
        """The turn of the journal that knows how this queue was."""
        self.replica: Replica | None = None
        """What it has of the queue of another broker that it follows, or followed."""
        self.window: Window | None = None
        """If it deduplicates: the message ids that it remembers."""
        self.leases = Leases(self, runtime)
        self.dispatcher = Dispatcher(self, runtime, vhost.settings.dispatch_batch)
        self.rotation = self.dispatcher.rotation
        self.expiry = Expiry(self, runtime)
        self.pager = Pager(self, runtime)
        self._runtime = runtime
        self.cluster = vhost.cluster
        self.lanes = self._make_lanes()
        self._prepare()

    @property
    def what(self) -> str:
        """Its name for an error's text."""
        return f"queue '{self.name}' in vhost '{self.vhost.name}'"

    @property
    def unacked(self) -> int:
        return len(self.entries) - self.ready

    @property
    def consumers(self) -> list[Consumer]:
        return self.rotation.consumers

    def __repr__(self) -> str:
        return f"<Queue {self.name}#{self.incarnation} ready={self.ready} unacked={self.unacked}>"

    # What a step may have to take back.

    def keep(self) -> None:
        """Before anything but messages changes: note how it is, if that is called for."""
        if self.journal.on:
            queue_image.keep(self)

    def remake(self) -> None:
        """A step was taken back: make anew what follows from what is in the queue, and who holds it."""
        self.lanes = self._make_lanes()
        self.lanes.push([entry for entry in self.entries.values() if entry.holder is None])
        self._remake()

    def _remake(self) -> None:
        """And what this kind needs."""

    # Messages come.

    def refuses(self, message: Message, waiting: int = 0, waiting_bytes: int = 0) -> bool:
        """Whether it is too full for this message, after those that are on their way to it already."""
        limits = self.limits
        if not limits.refuses or not self._full(limits, message, waiting, waiting_bytes):
            return False
        if self.ready and self.rotation.hungry:
            self.dispatch()  # what consumers take now is no longer in the way
        return self._full(limits, message, waiting, waiting_bytes)

    def _full(self, limits: Limits, message: Message, waiting: int, waiting_bytes: int) -> bool:
        long = limits.max_length is not None and self.ready + waiting >= limits.max_length
        size = self.ready_bytes + waiting_bytes + len(message.body)
        return long or (limits.max_bytes is not None and size > limits.max_bytes)

    def refuse(self, messages: Sequence[Message]) -> None:
        """Count what was refused; it may be a dead letter all the same."""
        self.keep()
        self.counters.refused += len(messages)
        if self.journal.effects.on:
            self.journal.effects.counted(self, Count.REFUSED, len(messages))
        if self.limits.overflow == REJECT_DEAD and self.limits.dead_exchange is not None:
            entries = [Entry(0, message, self, len(message.body)) for message in messages]
            self.vhost.bury(self, entries, Reason.EVICTED, told=False)

    def enqueue(self, messages: Sequence[Message]) -> list[Entry]:
        """Give them positions and a place. Consumers get them once this turn is over."""
        if not messages:
            return []
        entries: list[Entry] = []
        if self.journal.on:
            queue_image.keep(self)
            self.journal.note(queue_image.take_back, self, entries)
        live = self.entries
        position = self.next_position
        ttl = self.limits.ttl
        mortal = ttl is not None
        size = 0
        for message in messages:
            length = len(message.body)
            entry = Entry(position, message, self, length)
            if message.ttl is not None:
                mortal = True
            entries.append(entry)
            live[position] = entry
            size += length
            position += 1
        self.next_position = position
        self.ready += len(entries)
        self.ready_bytes += size
        self.bytes += size
        self.counters.enqueued += len(entries)
        now = self.cluster.now() if mortal else None
        if now is not None:
            self.expiry.stamp(entries, ttl, now)
        self._mark(entries)
        self.lanes.push(entries)
        for observer in self.observers:
            observer.enqueued(self, entries)
        if self.rotation.hungry:
            self.dispatcher.schedule(now)
        self._fit(entries, now)
        if mortal:
            self.expiry.arm()
        if self.bytes > self.pager.limit:
            self.pager.watch()
        return entries

    def restore(self, entries: list[Entry], next_position: int) -> None:
        """What the store kept, or another broker has, by rising positions, into a queue that is empty yet."""
        assert not self.entries
        assert next_position >= self.next_position
        self.leap(next_position)
        self.entries = {entry.position: entry for entry in entries}
        ready = [entry for entry in entries if entry.holder is None]
        self.ready, self.ready_bytes = len(ready), sum(entry.size for entry in ready)
        self.bytes = sum(entry.size for entry in entries)
        self.pager.restored(entries)
        self.expiry.restored(entries)
        self._mark(entries)
        self.lanes.push(ready)
        self._fit(entries, None)
        self.expiry.arm()

    def leap(self, position: int) -> None:
        """Go on from there, at least: others may have given the positions before it."""
        self.next_position = max(self.next_position, position)
        for observer in self.observers:
            observer.leapt(self)

    def flag(self, upto: int | None = None) -> None:
        """Whatever is ready, or is so up to there, may have been given to somebody by others."""
        entries = [
            entry
            for entry in self.entries.values()
            if entry.holder is None and not entry.redelivered and (upto is None or entry.position <= upto)
        ]
        for entry in entries:
            entry.redelivered = True
        for observer in self.observers:
            observer.flagged(self, entries)

    # Consumers.

    def subscribe(self, consumer: Consumer) -> None:
        """Raises ProtocolError 403 if somebody has it, or wants it, alone."""
        self.dispatcher.subscribe(consumer)

    def unsubscribe(self, consumer: Consumer) -> None:
        """What it holds stays with its holder, who accepts or releases it. The last one to go ends an auto-delete
        queue."""
        self.dispatcher.unsubscribe(consumer)

    def wake(self, consumer: Consumer) -> None:
        """The consumer has room again."""
        self.cluster.wake(self, consumer)

    def dispatch(self, now: float | None = None) -> None:
        """Give consumers with room what is ready, now and not at the end of the turn."""
        self.keep()
        self.dispatcher.dispatch(now)

    def apply_acquire(self, consumer: Consumer, entries: list[Entry]) -> None:
        """The entries, which were taken from the ready ones, are the consumer's."""
        self.dispatcher.acquired(consumer, entries)

    def get(self, holder: object, no_ack: bool = False) -> Delivery | None:
        """The next one for whoever asks; None: there is none, or it is on disk and must be loaded (`pager.bring`)."""
        return self.dispatcher.get(holder, no_ack)

    # What becomes of acquired messages. What their holder does not hold any more is left alone.

    def accept(self, holder: object, ranges: Sequence[Range]) -> None:
        """They are done with."""
        self.cluster.accept(self, holder, ranges)

    def release(self, holder: object, ranges: Sequence[Range], redelivered: bool = True) -> None:
        """Back to their places; `redelivered`: somebody may have seen them."""
        self.cluster.release(self, holder, ranges, redelivered)

    def reject(self, holder: object, ranges: Sequence[Range]) -> None:
        """They are dead letters, or dropped if the queue has no dead-letter exchange."""
        self.cluster.reject(self, holder, ranges)

    def apply_accept(self, holder: object, ranges: Sequence[Range]) -> None:
        self._settle(holder, ranges, Reason.ACCEPTED)

    def apply_reject(self, holder: object, ranges: Sequence[Range]) -> None:
        self._settle(holder, ranges, Reason.REJECTED)

    def apply_release(self, holder: object, ranges: Sequence[Range], redelivered: bool) -> None:
        self.give_back(self._held(holder, ranges), redelivered)

    def _settle(self, holder: object, ranges: Sequence[Range], reason: Reason) -> None:
        """What that holder holds of these leaves."""
        live, gone, size = self.entries, GONE, 0
        left: list[Entry] = []
        if self.journal.on:
            queue_image.keep(self)
            self.journal.note(queue_image.hold_in, self, left, holder)
        if holder is None:
            return
        for position in self._within(ranges):
            entry = live.get(position)
            if entry is not None and entry.holder is holder:
                left.append(entry)
                entry.holder = gone
                del live[position]
                size += entry.size
        self.bytes -= size
        if left:
            self._left(left, reason)

    def _held(self, holder: object, ranges: Sequence[Range]) -> list[Entry]:
        """Those that are still in the queue, and that holder's."""
        found = map(self.entries.get, self._within(ranges))
        return [entry for entry in found if entry is not None and entry.holder is holder]

    def _within(self, ranges: Sequence[Range]) -> Iterable[int]:
        """Positions in these ranges, and of very long ones those alone where something is."""
        live = self.entries
        most = len(live) + _LONG
        for first, stop in ranges:
            if stop - first > most:
                break
        else:
            return range(*ranges[0]) if len(ranges) == 1 else positions_in(ranges)
        return [position for first, stop in ranges for position in sorted(live) if first <= position < stop]

    def give_back(self, entries: Sequence[Entry], redelivered: bool) -> None:
        """By the rules: beyond the delivery limit they leave."""
        back = [entry for entry in entries if entry.holder is not None and entry.holder is not GONE]
        if not back:
            return
        self.keep()
        limit = self.limits.delivery_limit
        if limit is not None and redelivered:
            exhausted = [entry for entry in back if entry.deliveries > limit]
            if exhausted:
                self.dequeue(exhausted, Reason.EXHAUSTED)
                back = [entry for entry in back if entry.holder is not GONE]
        back.sort(key=_position)
        if self.journal.on:
            self.journal.note(queue_image.hold_again, queue_image.held(back))
        for entry in back:
            entry.holder = None
            if redelivered:
                entry.redelivered = True
            else:
                entry.deliveries -= 1
            self.ready_bytes += entry.size
        self.ready += len(back)
        self.counters.released += len(back)
        self.lanes.put_back(back)
        for observer in self.observers:
            observer.released(self, back)
        self._fit((), None)
        if self.expiry.mortal:
            self.expiry.arm()
        self.dispatcher.schedule()

    def put_back(self, holder: object, ranges: Sequence[Range], redelivered: bool) -> None:
        """As `apply_release`, without the rules: no limit is looked at, so nothing leaves the queue."""
        back = sorted(self._held(holder, ranges), key=_position)
        if self.journal.on:
            queue_image.keep(self)
            self.journal.note(queue_image.hold_again, queue_image.held(back))
        for entry in back:
            entry.holder = None
            entry.redelivered = entry.redelivered or redelivered
        self.ready += len(back)
        self.ready_bytes += sum(entry.size for entry in back)
        self.remake()
        for observer in self.observers:
            observer.released(self, back)

    def forget(self, consumer: Consumer) -> None:
        """As `unsubscribe`, and nothing follows from it."""
        self.keep()
        if consumer in self.rotation.consumers:
            self.rotation.remove(consumer)
            if self.journal.effects.on:
                self.journal.effects.consumer(self, REMOVE, consumer)

    def dequeue(self, entries: Sequence[Entry], reason: Reason) -> None:
        """Acquired ones leave; those that are gone already are left alone."""
        if self.journal.on:
            queue_image.keep(self)
            holders = [GONE if entry.holder is None else entry.holder for entry in entries]
            self.journal.note(queue_image.bring_back, self, entries, holders)
        live = self.entries
        gone = GONE
        size = 0
        left: list[Entry] = []
        for entry in entries:
            holder = entry.holder
            if holder is not None and holder is not gone:
                entry.holder = gone
                del live[entry.position]
                size += entry.size
                left.append(entry)
        self.bytes -= size
        if left:
            self._left(left, reason)

    def leave(self, entries: list[Entry], reason: Reason, ghosts: bool = False) -> None:
        """Ready ones leave. They were taken from the head, unless they become ghosts."""
        if reason in DEADLY and self.pager.paged and self.limits.dead_exchange is not None:
            entries = self.pager.hold(entries, reason)
        if self.journal.on:
            queue_image.keep(self)
            self.journal.note(queue_image.bring_back, self, entries, [entry.holder for entry in entries])
        live = self.entries
        size = 0
        for entry in entries:
            entry.holder = GONE
            del live[entry.position]
            size += entry.size
        self.ready -= len(entries)
        self.ready_bytes -= size
        self.bytes -= size
        if ghosts:
            self.lanes.haunt(len(entries), self.ready)
        if entries:
            self._left(entries, reason)
            if self.expiry.mortal:
                self.expiry.arm()

    def _left(self, entries: list[Entry], reason: Reason) -> None:
        if self.pager.paged:
            self.pager.left(entries)
        self.counters.left(reason, len(entries))
        self._forget(entries)
        if reason in DEADLY and self.limits.dead_exchange is not None:
            self.vhost.bury(self, entries, reason)
        else:
            for observer in self.observers:
                observer.dequeued(self, entries, reason)

    # Limits, and what the kinds of queues do differently.

    def set_limits(self, limits: Limits) -> None:
        """Another policy applies."""
        self.keep()
        before, self.limits = self.limits, limits
        if self.journal.effects.on:
            self.journal.effects.limited(self)
        self.window = window_for(self, limits)
        if limits.ttl is not None and limits.ttl != before.ttl:
            self.expiry.shorten(self.entries.values(), limits.ttl)
        if limits.expires != before.expires:
            self.expiry.reset()
        self._fit((), None)

    def expire(self) -> None:
        """What has expired at the head of the queue leaves: what is too much for one step, a little later."""
        expired = self.lanes.take_expired(self.cluster.now(), self.vhost.graveyard.at_once(self))
        if expired:
            self.leave(expired, Reason.EXPIRED)

    def _make_lanes(self) -> Ready:
        return OneLane()

    def _prepare(self) -> None:
        """What this kind needs."""

    def _mark(self, entries: Sequence[Entry]) -> None:
        """Note what this kind must know of each."""

    def _fit(self, arrived: Sequence[Entry], now: float | None) -> None:
        """Some arrived or came back: keep the limits of length."""
        limits = self.limits
        if not limits.bounded or limits.refuses or not self._excess(limits):
            return
        if arrived and self.rotation.hungry:
            self.dispatch(now)  # what a consumer takes at once was never too much
        while True:
            count = self._excess(limits)
            victims = self.lanes.take(count) if count else []
            if not victims:
                return
            self.leave(victims, Reason.EVICTED)

    def _excess(self, limits: Limits) -> int:
        """How many ready ones must go at least."""
        if limits.max_length is not None and self.ready > limits.max_length:
            return self.ready - limits.max_length
        return 1 if limits.max_bytes is not None and self.ready_bytes > limits.max_bytes else 0

    def _forget(self, entries: list[Entry]) -> None:
        """They are gone."""

    def leased(self) -> None:
        """A lease has taken some, or is about to give some back."""

    # For the parts of this queue.

    def routing_key(self, position: int) -> str:
        """Of a message; of one that is gone, or on disk only, none."""
        entry = self.entries.get(position)
        return "" if entry is None or entry.message is None else entry.message.key

    def heads(self) -> Iterator[Entry]:
        """The first ready one of each priority."""
        return self.lanes.heads()

    def in_order(self) -> Iterator[Entry]:
        """The ready ones, as consumers would get them."""
        return iter(self.lanes)

    def untake(self, entries: list[Entry]) -> None:
        """They were taken from the ready ones, and nobody got them."""
        self.lanes.put_back(entries)

    def lease(self, entries: Sequence[Entry], holder: object) -> None:
        """Ready ones that were taken from the head are somebody's, who is no consumer."""
        if self.journal.on:
            queue_image.keep(self)
            self.journal.note(queue_image.hold_again, queue_image.held(entries))
        size = 0
        for entry in entries:
            entry.holder = holder
            size += entry.size
        self.ready -= len(entries)
        self.ready_bytes -= size
        for observer in self.observers:
            observer.acquired(self, entries)

    def drop_ready(self, ranges: Sequence[Range], reason: Reason) -> int:
        """What is ready of these leaves; how much that was."""
        found = map(self.entries.get, self._within(ranges))
        entries = [entry for entry in found if entry is not None and entry.holder is None]
        if entries:
            self.leave(entries, reason, ghosts=True)
        return len(entries)

    def lose(self, entries: list[Entry]) -> None:
        """Ready ones cannot be read from disk: they leave."""
        self.leave(entries, Reason.LOST, ghosts=True)

    # Questions about what is in it, by positions.

    def message(self, position: int) -> Message | None:
        """The one that is there, if it is in memory."""
        entry = self.entries.get(position)
        return None if entry is None else entry.message

    @property
    def count(self) -> int:
        """All that is in it, ready or acquired."""
        return len(self.entries)

    @property
    def first_position(self) -> int:
        """Of the oldest that is in it; of the next one, if nothing is."""
        return next(iter(self.entries), self.next_position)

    def positions(self, first: int = 0) -> Iterator[int]:
        """From there on, rising."""
        return (position for position in self.entries if position >= first)

    def has(self, position: int) -> bool:
        return position in self.entries

    def holders(self) -> list[tuple[object, list[Range]]]:
        """Who holds what; None: it is ready."""
        found: dict[object, list[int]] = {}
        for position, entry in sorted(self.entries.items()):
            found.setdefault(entry.holder, []).append(position)
        return [(holder, ranges_of(positions)) for holder, positions in found.items()]

    def last_flagged(self) -> int:
        """The last ready one that somebody may have seen; 0: there is none. A lease knows what it was of its own."""
        ready = (entry for entry in self.entries.values() if entry.holder is None)
        return max((entry.position for entry in ready if entry.redelivered), default=0)

    def sizes(self) -> Iterator[tuple[int, int]]:
        """Positions, rising, with the bytes of their bodies, also of what is on disk."""
        return ((position, entry.size) for position, entry in self.entries.items())

    def bodies_came(self, positions: Sequence[int]) -> None:
        """The store gets them now: it had nothing to keep without."""
        store = self.vhost.store
        if store in self.observers:
            store.enqueued(self, [self.entries[position] for position in sorted(positions)])

    def ready_over(self) -> list[Range]:
        """What is at the heads and has no time left, and may die at once."""
        over = self.lanes.expired(self.cluster.now(), self.vhost.graveyard.at_once(self))
        return ranges_of([entry.position for entry in over])

    # Questions about what somebody holds.

    def still_held(self, holder: object, ranges: Sequence[Range]) -> list[Range]:
        """What of these is still in the queue, and that holder's."""
        return ranges_of([entry.position for entry in self._held(holder, ranges)])

    def held_now(self, ranges: Sequence[Range]) -> list[HeldRanges]:
        """What of these somebody holds, and who."""
        found: dict[object, list[int]] = {}
        for entry in map(self.entries.get, self._within(ranges)):
            if entry is not None and entry.holder is not None:
                found.setdefault(entry.holder, []).append(entry.position)
        return [HeldRanges(self, holder, ranges_of(positions)) for holder, positions in found.items()]

    def are_over(self, ranges: Sequence[Range], now: float) -> list[Range]:
        """What of these has no time left."""
        found = map(self.entries.get, self._within(ranges))
        return ranges_of([e.position for e in found if e is not None and e.expires is not None and e.expires <= now])

    # Everything at once, and looking.

    def purge(self) -> int:
        """Drop everything that is ready, also what was offered and nobody has got yet; how much that was."""
        self.keep()
        self.lanes.clear()
        entries = [entry for entry in self.entries.values() if entry.holder is None]
        if entries:
            self.leave(entries, Reason.PURGED)
        return len(entries)

    def take_out(self, count: int) -> list[Entry]:
        """Up to `count` from the head leave for another queue; those on disk do not."""
        self.keep()
        entries = self.dispatcher.take(count)
        if entries:
            self.leave(entries, Reason.MOVED)
        return entries

    def stop(self) -> None:
        """The broker ends: no timers any more, and nobody is given anything."""
        self.deleted = True
        self.expiry.stop()
        self.leases.expiry.stop()
        self.pager.stop()

    def delete(self) -> None:
        """The vhost has taken it out: it ends, with everything in it."""
        entries = list(self.entries.values())
        if self.journal.on:
            queue_image.keep(self)
            self.journal.note(queue_image.bring_back, self, entries, [entry.holder for entry in entries])
        self.stop()
        for entry in entries:
            entry.holder = GONE
        self.entries = {}
        self.lanes = self._make_lanes()
        self.ready = self.ready_bytes = self.bytes = 0
        self.leases.end_all()
        for observer in self.observers:
            if entries:
                observer.dequeued(self, entries, Reason.DELETED)
            observer.deleted(self)
        for consumer in self.rotation.clear():
            if self.home is None:
                consumer.sink.cancelled(consumer)
            else:
                self.journal.after(consumer.sink.cancelled, consumer)

    def browse(self, first: int, last: int, limit: int) -> list[Entry]:
        """Up to `limit` entries with positions from `first` to `last`, ready or acquired, by rising positions. Nothing
        changes. A message may be paged out: `read` brings it."""
        live = self.entries
        if not live or limit <= 0:
            return []
        last = min(last, self.next_position - 1)
        if last - first >= 2 * len(live):
            found = sorted(position for position in live if first <= position <= last)[:limit]
            return [live[position] for position in found]
        result: list[Entry] = []
        for position in range(max(first, 1), last + 1):
            entry = live.get(position)
            if entry is not None:
                result.append(entry)
                if len(result) >= limit:
                    break
        return result

    def read(self, first: int, last: int, limit: int, done: Callable[[list[Row] | Exception], None]) -> None:
        """Up to `limit` with positions from `first` to `last`, also of what is on disk."""
        self._read(self.browse(first, last, limit), done)

    def read_ranges(self, ranges: Sequence[Range], done: Callable[[list[Row] | Exception], None]) -> None:
        """What of these is in the queue."""
        found = map(self.entries.get, self._within(ranges))
        self._read([entry for entry in found if entry is not None], done)

    def _read(self, entries: list[Entry], done: Callable[[list[Row] | Exception], None]) -> None:
        self.pager.read(entries, lambda found: done(found if isinstance(found, Exception) else rows_of(found)))

    def choose(self, first: int, last: int, limit: int, size: int, each: int = 0) -> tuple[list[Range], int | None]:
        """Where up to `limit` messages with positions from `first` to `last` are, that have up to `size` bytes, but one
        in any case; and the first that is left out, if there is one. A message takes its body and `each`."""
        chosen: list[int] = []
        for entry in self.browse(first, last, limit + 1):
            if len(chosen) >= limit or (chosen and entry.size > size):
                return ranges_of(chosen), entry.position
            chosen.append(entry.position)
            size -= entry.size + each
        return ranges_of(chosen), None
