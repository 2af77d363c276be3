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

from array import array
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, ClassVar

from coterie.broker import queue_image
from coterie.broker.arguments import REJECT_DEAD
from coterie.broker.counters import Counters
from coterie.broker.deduplication import Window, window_for
from coterie.broker.delivery import Delivery, HeldRanges, count_of, merged, positions_in
from coterie.broker.dispatch import Dispatcher
from coterie.broker.effects import REMOVE
from coterie.broker.expiry import Expiry
from coterie.broker.journal import restore_attributes
from coterie.broker.leases import Leases
from coterie.broker.limits import Limits
from coterie.broker.message_table import MessageTable, within
from coterie.broker.observer import DEADLY, Arrived, Mark, QueueObserver, Reason
from coterie.broker.paging import Pager
from coterie.broker.ranges import END, PositionSet
from coterie.broker.restoring import restore
from coterie.broker.rows import Row
from coterie.broker.state.queue_state import QueueConfig
from coterie.broker.state.vocabulary import Count

if TYPE_CHECKING:
    from coterie.broker.consumer import Consumer
    from coterie.broker.following.followed_queue import Replica
    from coterie.broker.message import Message
    from coterie.broker.ranges import Range
    from coterie.broker.restoring import Restored
    from coterie.broker.specs import QueueSpec
    from coterie.broker.vhost import Vhost
    from coterie.runtime.base import Runtime


class Queue:
    """First in, first out; the other kinds override what differs."""

    kind = "fifo"
    marked: ClassVar[bool] = False
    """This kind must know something of each message (`mark_of`)."""

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
        self.counters = Counters()
        self.deleted = False
        self.journal = vhost.journal
        self.table = MessageTable(incarnation, self._config(spec), self.journal)
        """What is in it, ready or acquired."""
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

    @property
    def what(self) -> str:
        """Its name for an error's text."""
        return f"queue '{self.name}' in vhost '{self.vhost.name}'"

    @property
    def ready(self) -> int:
        return self.table.state.ready.count

    @property
    def ready_bytes(self) -> int:
        return self.table.state.ready_bytes

    @property
    def unacked(self) -> int:
        return self.table.state.held_count

    @property
    def bytes(self) -> int:
        """Bodies of everything that is in the queue."""
        return self.table.state.bytes

    @property
    def next_position(self) -> int:
        return self.table.state.next_position

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
            self.vhost.bury(self, [(0, 1)] * len(messages), messages, Reason.EVICTED, told=False)

    def enqueue(self, messages: Sequence[Message]) -> None:
        """Give them positions and a place. Consumers get them once this turn is over."""
        if not messages:
            return
        if self.journal.on:
            queue_image.keep(self)
        table = self.table
        ttl = self.limits.ttl
        lives = [message.ttl for message in messages]
        mortal = ttl is not None or lives.count(None) != len(lives)
        first = table.enqueue(messages)
        state = table.state
        self.counters.enqueued += len(messages)
        now: float | None = None
        times: list[float | None] | None = None
        if mortal:
            now = self.cluster.now()
            times = self.expiry.stamp(first, lives, ttl, now)
        marks = self._mark(first, messages) if self.marked else None
        arrived = Arrived(first, messages, times, marks)
        for observer in self.observers:
            observer.enqueued(self, arrived)
        if self.rotation.hungry:
            self.dispatcher.schedule(now)
        self._fit(arrived, now)
        if mortal:
            self.expiry.arm()
        if state.ready_bytes + state.held_bytes > self.pager.limit:
            self.pager.watch()

    # What the store kept, or another broker has.

    def restore(self, found: Restored, next_position: int) -> None:
        """Into a queue that is empty yet; then leases and consumers may hold something of it, and then `settle`."""
        assert not self.count
        restore(self, found)
        self.leap(next_position)

    def settle(self) -> None:
        """Everything that was restored is there, and whoever holds something of it."""
        self.pager.restored([*self.pager.absent.ranges()])
        self.expiry.restored()
        self._restored()
        self._fit(None, None)
        self.expiry.arm()

    def leap(self, position: int) -> None:
        """Go on from there, at least: others may have given the positions before it."""
        self.table.leap(position)
        for observer in self.observers:
            observer.leapt(self)

    def flag(self, upto: int | None = None) -> None:
        """Whatever is ready, or is so up to there, may have been given to somebody by others."""
        state = self.table.state
        found = state.ready.copy() if upto is None else state.ready.within(0, min(upto + 1, END))
        found.remove_all(self.table.flagged)
        ranges = [*found.ranges()]
        self.table.flag(ranges)
        for observer in self.observers:
            observer.flagged(self, ranges)

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
        self.give_back(holder, self.table.held_of(holder, ranges), redelivered)

    def _settle(self, holder: object, ranges: Sequence[Range], reason: Reason) -> None:
        """What that holder holds of these leaves."""
        if self.journal.on:
            queue_image.keep(self)
        table = self.table
        if len(ranges) == 1 and reason is Reason.ACCEPTED and table.is_plain:
            ((first, stop),) = ranges
            if stop - first == 1:
                if table.leave_held(holder, first):
                    self.counters.accepted += 1
                    for observer in self.observers:
                        observer.dequeued(self, ranges, reason)
                    if self.journal.on or self.pager.absent.count:
                        self._gone([*ranges])
                    else:
                        table.forget([(first, stop)])
                return
        held = table.held_of(holder, ranges)
        if held:
            self._leave([(holder, held)], held, reason)

    def give_back(self, holder: object, ranges: list[Range], redelivered: bool) -> None:
        """What it holds goes back by the rules: beyond the delivery limit it leaves."""
        if not ranges:
            return
        self.keep()
        limit = self.limits.delivery_limit
        if limit is not None and redelivered:
            exhausted = self.table.exhausted(ranges, limit)
            if exhausted:
                self._give_up(holder, exhausted)
                ranges = self.table.held_of(holder, ranges)
        self._put_back(holder, ranges, redelivered)
        self.counters.released += count_of(ranges)
        for observer in self.observers:
            observer.released(self, merged(ranges))
        self._fit(None, None)
        if self.expiry.mortal:
            self.expiry.arm()
        self.dispatcher.schedule()

    def _give_up(self, holder: object, ranges: list[Range]) -> None:
        """What it holds was given back too often. A lease may have some on disk only, which must be brought before they
        can die."""
        absent = self.pager.absent
        on_disk = within(ranges, absent) if absent and self.limits.dead_exchange is not None else []
        if on_disk:
            self.put_back(holder, on_disk, redelivered=True)
            self.leave(on_disk, Reason.EXHAUSTED)
        self.dequeue(holder, ranges, Reason.EXHAUSTED)

    def _put_back(self, holder: object, ranges: list[Range], redelivered: bool) -> None:
        if ranges:
            self.table.release(holder, merged(ranges), redelivered)

    def put_back(self, holder: object, ranges: Sequence[Range], redelivered: bool) -> None:
        """As `apply_release`, without the rules: no limit is looked at, so nothing leaves the queue."""
        self.keep()
        back = merged(self.table.held_of(holder, ranges))
        self._put_back(holder, back, redelivered)
        for observer in self.observers:
            observer.released(self, back)

    def forget(self, consumer: Consumer) -> None:
        """As `unsubscribe`, and nothing follows from it."""
        self.keep()
        if consumer in self.rotation.consumers:
            self.rotation.remove(consumer)
            self.table.let_go(consumer)
            if self.journal.effects.on:
                self.journal.effects.consumer(self, REMOVE, consumer)

    def dequeue(self, holder: object, ranges: Sequence[Range], reason: Reason) -> None:
        """What it holds of these leaves."""
        self.dequeue_all([(holder, self.table.held_of(holder, ranges))], ranges, reason)

    def dequeue_all(
        self, shares: Sequence[tuple[object, list[Range]]], ranges: Sequence[Range], reason: Reason
    ) -> None:  # fmt: skip
        """What these hold leaves, in the order of the ranges."""
        self.keep()
        shares = [share for share in shares if share[1]]
        if len(shares) == 1:
            self._leave(shares, shares[0][1], reason)
        elif shares:
            all_held = PositionSet([each for _, held in shares for each in held])
            self._leave(shares, within(ranges, all_held), reason)

    def leave(self, ranges: list[Range], reason: Reason) -> None:
        """Ready ones leave."""
        if reason in DEADLY and self.pager.absent and self.limits.dead_exchange is not None:
            ranges = self.pager.hold(ranges, reason)
        self.keep()
        if ranges:
            self._leave([(None, ranges)], ranges, reason)
            if self.expiry.mortal:
                self.expiry.arm()

    def _leave(
        self, shares: Sequence[tuple[object | None, list[Range]]], ranges: list[Range], reason: Reason
    ) -> None:  # fmt: skip
        table = self.table
        dies = reason in DEADLY and self.limits.dead_exchange is not None
        messages = table.messages(ranges) if dies else ()
        for holder, some in shares:
            table.leave(holder, some, reason)
        self.counters.left(reason, count_of(ranges))
        if dies:
            self.vhost.bury(self, ranges, messages, reason)
        else:
            for observer in self.observers:
                observer.dequeued(self, ranges, reason)
        self._gone(ranges)

    def _gone(self, ranges: list[Range]) -> None:
        """They have left; unless the step fails."""
        on_disk = self.pager.leaving(ranges) if self.pager.absent else None
        self.journal.after(self._forget, self.table, ranges, on_disk)

    def _forget(self, table: MessageTable, ranges: list[Range], on_disk: tuple[list[Range], int] | None) -> None:
        """They have left, and nothing brings them back."""
        if on_disk is not None and table is self.table:
            self.pager.left(*on_disk)
        table.forget(ranges)

    # Limits, and what the kinds of queues do differently.

    def set_limits(self, limits: Limits) -> None:
        """Another policy applies."""
        self.keep()
        before, self.limits = self.limits, limits
        if self.journal.effects.on:
            self.journal.effects.limited(self)
        self.window = window_for(self, limits)
        if limits.ttl is not None and limits.ttl != before.ttl:
            self.expiry.shorten(limits.ttl)
        if limits.expires != before.expires:
            self.expiry.reset()
        self._fit(None, None)

    def expire(self) -> None:
        """What has expired at the head of the queue leaves: what is too much for one step, a little later."""
        expired = self.table.heads_over(self.cluster.now(), self.vhost.graveyard.at_once(self))
        if expired:
            self.leave(expired, Reason.EXPIRED)

    @staticmethod
    def _config(spec: QueueSpec) -> QueueConfig:
        """What this kind is to its table."""
        return QueueConfig()

    def _mark(self, first: int, messages: Sequence[Message]) -> Sequence[Mark]:
        """Note what this kind must know of each, and tell it."""
        return [None] * len(messages)

    def mark_of(self, message: Message) -> Mark:
        """What this kind must know of it."""
        return None

    def restore_mark(self, position: int, mark: Mark) -> None:
        """The same, as it was kept."""

    def _restored(self) -> None:
        """And what this kind must look at then."""

    def _fit(self, arrived: Arrived | None, now: float | None) -> None:
        """Some arrived or came back: keep the limits of length."""
        limits = self.limits
        if not limits.bounded or limits.refuses or not self._excess(limits):
            return
        if arrived is not None and self.rotation.hungry:
            self.dispatch(now)  # what a consumer takes at once was never too much
        while True:
            count = self._excess(limits)
            victims = self.table.first_ready(count) if count else []
            if not victims:
                return
            self.leave(victims, Reason.EVICTED)

    def _excess(self, limits: Limits) -> int:
        """How many ready ones must go at least."""
        if limits.max_length is not None and self.ready > limits.max_length:
            return self.ready - limits.max_length
        return 1 if limits.max_bytes is not None and self.ready_bytes > limits.max_bytes else 0

    # For the parts of this queue.

    def routing_key(self, position: int) -> str:
        """Of a message; of one that is gone, or on disk only, none."""
        message = self.message(position)
        return "" if message is None else message.key

    def lease(self, ranges: list[Range], holder: object) -> None:
        """Ready ones are somebody's, who is no consumer."""
        self.keep()
        self.table.acquire(holder, ranges)
        for observer in self.observers:
            observer.acquired(self, holder, ranges)

    def drop_ready(self, ranges: Sequence[Range], reason: Reason) -> int:
        """What is ready of these leaves; how much that was."""
        ready = self.table.ready_of(ranges)
        if ready:
            self.leave(ready, reason)
        return count_of(ready)

    def lose(self, ranges: list[Range]) -> None:
        """Ready ones cannot be read from disk: they leave."""
        self.leave(ranges, Reason.LOST)

    # Questions about what is in it, by positions.

    def message(self, position: int) -> Message | None:
        """The one that is there, if it is in memory."""
        return self.table.contents.message(position) if position in self.table.state.live else None

    @property
    def count(self) -> int:
        """All that is in it, ready or acquired."""
        return self.table.state.live.count

    @property
    def first_position(self) -> int:
        """Of the oldest that is in it; of the next one, if nothing is."""
        first = self.table.state.live.first()
        return self.next_position if first is None else first

    def positions(self, first: int = 0) -> Iterator[int]:
        """From there on, rising."""
        return positions_in(self.table.state.live.ranges(first))

    def has(self, position: int) -> bool:
        return position in self.table.state.live

    def holders(self) -> list[tuple[object, list[Range]]]:
        """Who holds what; None: it is ready."""
        state = self.table.state
        found: list[tuple[object, list[Range]]] = [(None, [*state.ready.ranges()])] if state.ready else []
        found += [(holder, [*held.ranges()]) for holder, held in self.table.holders()]
        return sorted(found, key=lambda share: share[1][0])

    def last_flagged(self) -> int:
        """The last ready one that somebody may have seen; 0: there is none. A lease knows what it was of its own."""
        return self.table.state.ready.intersection(self.table.flagged).last() or 0

    def sizes(self) -> tuple[array[int], array[int]]:
        """Positions, rising, and the bytes of their bodies, also of what is on disk."""
        live = [*self.table.state.live.ranges()]
        return array("Q", positions_in(live)), array("Q", self.table.sizes(live))

    def bodies_came(self, positions: Sequence[int]) -> None:
        """The store gets them now: it had nothing to keep without."""
        store = self.vhost.store
        if store in self.observers:
            for first, stop in merged((position, position + 1) for position in positions):
                store.enqueued(self, self.arrived(first, stop))

    def arrived(self, first: int, stop: int) -> Arrived:
        """These, which are all in memory, as an observer hears of them that did not when they came."""
        messages = [message for message in self.table.messages([(first, stop)]) if message is not None]
        assert len(messages) == stop - first
        times: list[float | None] | None = None
        if self.table.is_mortal:
            times = [
                time for begin, end, time in self.table.expiries([(first, stop)]) for time in [time] * (end - begin)
            ]
        marks = [self.mark_of(message) for message in messages] if self.marked else None
        return Arrived(first, messages, times, marks)

    def ready_over(self) -> list[Range]:
        """What is at the heads and has no time left, and may die at once."""
        return self.table.heads_over(self.cluster.now(), self.vhost.graveyard.at_once(self))

    # Questions about what somebody holds.

    def still_held(self, holder: object, ranges: Sequence[Range]) -> list[Range]:
        """What of these is still in the queue, and that holder's."""
        return self.table.held_of(holder, ranges)

    def held_now(self, ranges: Sequence[Range]) -> list[HeldRanges]:
        """What of these somebody holds, and who."""
        return [HeldRanges(self, holder, held) for holder, held in self.table.shares(ranges)]

    def are_over(self, ranges: Sequence[Range], now: float) -> list[Range]:
        """What of these has no time left."""
        return self.table.are_over(self.table.live_of(ranges), now)

    # Everything at once, and looking.

    def purge(self) -> int:
        """Drop everything that is ready; how much that was."""
        self.keep()
        count = self.ready
        if count:
            self.leave([*self.table.state.ready.ranges()], Reason.PURGED)
        return count

    def take_out(self, count: int) -> list[Message]:
        """Up to `count` from the head leave for another queue; those on disk do not."""
        self.keep()
        ranges = self.dispatcher.take(count)
        messages = [message for message in self.table.messages(ranges) if message is not None]
        if ranges:
            self.leave(ranges, Reason.MOVED)
        return messages

    def stop(self) -> None:
        """The broker ends: no timers any more, and nobody is given anything."""
        self.deleted = True
        self.expiry.stop()
        self.leases.expiry.stop()
        self.pager.stop()

    def delete(self) -> None:
        """The vhost has taken it out: it ends, with everything in it."""
        self.keep()
        ranges = [*self.table.state.live.ranges()]
        if self.journal.on:
            pager = self.pager
            self.journal.note(restore_attributes, self, ("table",), (self.table,))
            self.journal.note(
                restore_attributes, pager, ("absent", "paged_bytes"), (pager.absent, pager.paged_bytes)
            )  # fmt: skip
        self.stop()
        self.table = self.table.emptied()
        self.leases.end_all()
        for observer in self.observers:
            if ranges:
                observer.dequeued(self, ranges, Reason.DELETED)
            observer.deleted(self)
        for consumer in self.rotation.clear():
            if self.home is None:
                consumer.sink.cancelled(consumer)
            else:
                self.journal.after(consumer.sink.cancelled, consumer)

    def browse(self, first: int, last: int, limit: int) -> list[Range]:
        """Where up to `limit` messages are with positions from `first` to `last`, ready or acquired. Nothing changes.
        A message may be paged out: `read` brings it."""
        return self.table.first_live(first, last + 1, limit)

    def read(self, first: int, last: int, limit: int, done: Callable[[list[Row] | Exception], None]) -> None:
        """Up to `limit` with positions from `first` to `last`, also of what is on disk."""
        self.read_ranges(self.browse(first, last, limit), done)

    def read_ranges(self, ranges: Sequence[Range], done: Callable[[list[Row] | Exception], None]) -> None:
        """What of these is in the queue."""
        self.pager.read(
            self.table.live_of(ranges), lambda found: done(found if isinstance(found, Exception) else self.rows(found))
        )

    def rows(self, found: Iterable[tuple[int, Message]]) -> list[Row]:
        """As they are looked at: positions and messages of this queue, which may have left it."""
        state, flagged = self.table.state, self.table.flagged

        def what(position: int) -> str:
            return "ready" if position in state.ready else "acquired" if position in state.live else "gone"

        return [Row(position, message, position in flagged, what(position)) for position, message in found]

    def choose(self, first: int, last: int, limit: int, size: int, each: int = 0) -> tuple[list[Range], int | None]:
        """Where up to `limit` messages with positions from `first` to `last` are, that have up to `size` bytes, but one
        in any case; and the first that is left out, if there is one. A message takes its body and `each`."""
        return self.table.choose(self.browse(first, min(last, END), limit + 1), limit, size, each)
