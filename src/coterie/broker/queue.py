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

from collections.abc import Callable, Iterator, Sequence
from operator import attrgetter
from typing import TYPE_CHECKING

from coterie.broker import queue_image
from coterie.broker.arguments import REJECT_DEAD
from coterie.broker.counters import Counters
from coterie.broker.deduplication import Window, window_for
from coterie.broker.dispatch import Dispatcher
from coterie.broker.entry import GONE, Entry
from coterie.broker.expiry import Expiry
from coterie.broker.leases import Leases
from coterie.broker.limits import Limits
from coterie.broker.observer import DEADLY, QueueObserver, Reason
from coterie.broker.paging import Pager
from coterie.broker.ready import OneLane, Ready

if TYPE_CHECKING:
    from coterie.broker.consumer import Consumer
    from coterie.broker.message import Message
    from coterie.broker.specs import QueueSpec
    from coterie.broker.vhost import Vhost
    from coterie.replication.replica import Replica
    from coterie.runtime.base import Runtime

_position = attrgetter("position")


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

    def get(self, holder: object, no_ack: bool = False) -> Entry | None:
        """The next one for whoever asks; None: there is none, or it is on disk and must be loaded (`pager.bring`)."""
        return self.dispatcher.get(holder, no_ack)

    # What becomes of an acquired message.

    def accept(self, entries: Sequence[Entry]) -> None:
        """They are done with."""
        self.cluster.accept(self, entries)

    def release(self, entries: Sequence[Entry], redelivered: bool = True) -> None:
        """Back to their places; `redelivered`: somebody may have seen them."""
        self.cluster.release(self, entries, redelivered)

    def reject(self, entries: Sequence[Entry]) -> None:
        """They are dead letters, or dropped if the queue has no dead-letter exchange."""
        self.cluster.reject(self, entries)

    def apply_accept(self, entries: Sequence[Entry]) -> None:
        self.dequeue(entries, Reason.ACCEPTED)

    def apply_reject(self, entries: Sequence[Entry]) -> None:
        self.dequeue(entries, Reason.REJECTED)

    def apply_release(self, entries: Sequence[Entry], redelivered: bool) -> None:
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

    def put_back(self, entries: Sequence[Entry], redelivered: bool) -> None:
        """As `apply_release`, without the rules: no limit is looked at, so nothing leaves the queue."""
        back = sorted((e for e in entries if e.holder is not None and e.holder is not GONE), key=_position)
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
        self.window = window_for(self, limits)
        if limits.ttl is not None and limits.ttl != before.ttl:
            self.expiry.shorten(self.entries.values(), limits.ttl)
        if limits.expires != before.expires:
            self.expiry.reset()
        self._fit((), None)

    def expire(self) -> None:
        """What has expired at the head of the queue leaves."""
        expired = self.lanes.take_expired(self.cluster.now())
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

    def lose(self, entries: list[Entry]) -> None:
        """Ready ones cannot be read from disk: they leave."""
        self.leave(entries, Reason.LOST, ghosts=True)

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

    def read(
        self, first: int, last: int, limit: int, done: Callable[[list[tuple[Entry, Message]] | Exception], None]
    ) -> None:
        """As `browse`, with the messages, also of what is on disk."""
        self.pager.read(self.browse(first, last, limit), done)
