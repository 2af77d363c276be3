"""Consumers of every node, on every node: who gets which message follows from the ordered log alone.

Each consumer has a limit of unsettled messages that everybody knows; the consumers of one channel may share a second
one. A message is allotted as soon as it is in the queue and a consumer has room left, by the same turns everywhere
(`broker.dispatch`), with no lock and no extra message. The consumer's own node hands it on once a majority holds that
place of the log; the others only keep count.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Final, NamedTuple

from coterie.broker.consumer import Consumer, Sink
from coterie.broker.delivery import count_of
from coterie.broker.journal import Journal, restore_key
from coterie.broker.ranges import PositionSet

if TYPE_CHECKING:
    from coterie.broker.delivery import Delivery
    from coterie.broker.queue import Queue
    from coterie.broker.ranges import Range
    from coterie.cluster.queue_ownership import Owners
    from coterie.group.members import Address


GETTER: Final = 0
"""No consumer has this number."""


class Pool:
    """What the consumers of one channel may hold together."""

    __slots__ = ("held", "limit", "members", "number")

    def __init__(self, number: int, limit: int) -> None:
        self.number = number
        self.limit = limit
        """0: as much as they like."""
        self.held = 0
        self.members: dict[int, Subscriber] = {}


class Subscriber(Consumer):
    """A consumer of any node, as the ordered log knows it."""

    __slots__ = ("details", "effect_name", "held", "limit", "number", "peer", "pool")

    def __init__(
        self,
        tag: str,
        queue: Queue,
        sink: Sink,
        no_ack: bool,
        exclusive: bool,
        priority: int,
        arguments: Mapping[str, object],
        peer: Peer,
        number: int,
        limit: int,
        pool: Pool | None,
        details: dict[str, object],
    ) -> None:
        super().__init__(tag, queue, sink, no_ack, exclusive, priority, arguments)
        self.peer = peer
        self.number = number
        self.effect_name = b"%b %d" % (peer.effect_name, number)
        self.limit = limit
        self.held = 0
        self.pool = pool
        self.details = details
        """Whose it is, as its own node says (`Sink.details`)."""

    @property
    def room(self) -> int:
        unready = self.peer.unready
        if unready and (self.no_ack or self.queue.incarnation in unready):
            return 0
        room = self.limit - self.held
        pool = self.pool
        return min(room, pool.limit - pool.held) if pool is not None and pool.limit else room


class Getter:
    """Who got messages with basic.get, and has not settled them: one for all clients of a node. Which of them has which
    message is known to that node, and of no interest to the others."""

    __slots__ = ("effect_name", "number", "peer")

    def __init__(self, peer: Peer) -> None:
        self.peer = peer
        self.number = GETTER
        self.effect_name = b"%b got" % peer.effect_name


class Owner:
    """A connection on another node that has queues for itself."""

    __slots__ = ("number", "peer")

    def __init__(self, peer: Peer, number: int) -> None:
        self.peer = peer
        self.number = number

    def __repr__(self) -> str:
        return f"<connection {self.number} of {self.peer.address}>"


Holder = Subscriber | Getter


class Held(NamedTuple):
    """Positions of a queue that were allotted to one holder, and are not settled."""

    holder: Holder
    positions: PositionSet


def _restore_account(subscriber: Subscriber, held: int, limit: int, pool: Pool | None) -> None:
    subscriber.held, subscriber.limit, subscriber.pool = held, limit, pool


def _restore_pool(pool: Pool, held: int, limit: int) -> None:
    pool.held, pool.limit = held, limit


class Peer(Sink):
    """A member of the cluster, ourselves too: its consumers, and what it holds."""

    def __init__(self, address: Address, journal: Journal, owners: Owners | None = None) -> None:
        self.address = address
        self.effect_name = str(address).encode()
        self._journal = journal
        self._owners = owners
        """None: every consumer may be served at any time."""
        self.events = 0
        """How many of its events have been applied. Only the next one counts."""
        self.unready: set[int] = set()
        """Queues whose messages it has not got all yet: its consumers are given nothing of them. Those that acknowledge
        nothing are given nothing at all: what they are given is gone, and it might have come from there."""
        self.subscribers: dict[int, Subscriber] = {}
        self.pools: dict[int, Pool] = {}
        self.owners: dict[int, object] = {}
        self.getter = Getter(self)
        self.held: dict[int, dict[int, Held]] = {}
        """By the numbers of queue and holder: everything that was allotted to it and is not settled."""
        self.allotted: Callable[[Subscriber, Delivery], None] | None = None
        """On its own node: what to do with messages that are its to deliver."""
        self.ended: Callable[[Subscriber], None] | None = None
        """And with a consumer whose queue is gone."""

    # As a sink: what the log allots.

    def room(self, consumer: Consumer) -> int:
        assert isinstance(consumer, Subscriber)
        if self._owners is not None and not self._owners.may_serve(self, consumer.queue):
            return 0
        return consumer.room

    def ready(self, queues: Collection[int]) -> None:
        """It has all messages of these."""
        self.unready.difference_update(queues)
        for _, subscriber in sorted(self.subscribers.items()):
            if subscriber.queue.incarnation in queues or (subscriber.no_ack and not self.unready):
                self._wake(subscriber)

    def deliver(self, consumer: Consumer, delivery: Delivery) -> None:
        assert isinstance(consumer, Subscriber)
        count = delivery.count
        self._keep_account(consumer)
        consumer.held += count
        if consumer.pool is not None:
            consumer.pool.held += count
        if not consumer.no_ack:
            self.hold(consumer.queue.incarnation, consumer, delivery.ranges)
        if self._owners is not None:
            others = [] if consumer.pool is None else [member for _, member in sorted(consumer.pool.members.items())]
            for queue in dict.fromkeys((consumer.queue, *(other.queue for other in others))):
                self._owners.room_changed(queue)
        if self.allotted is not None:
            self._journal.after(self.allotted, consumer, delivery)

    def cancelled(self, consumer: Consumer) -> None:
        """The queue is gone."""
        assert isinstance(consumer, Subscriber)
        self.drop(consumer)
        if self.ended is not None:
            self._journal.after(self.ended, consumer)

    def hold(self, queue: int, holder: Holder, ranges: Sequence[Range]) -> None:
        if self._journal.on:
            self._journal.note(self._unhold, queue, holder.number, ranges)
        self._add(queue, holder, ranges)

    def _add(self, queue: int, holder: Holder, ranges: Iterable[Range]) -> None:
        by_holder = self.held.get(queue)
        if by_holder is None:
            by_holder = self.held[queue] = {}
        held = by_holder.get(holder.number)
        if held is None:
            held = by_holder[holder.number] = Held(holder, PositionSet())
        add = held.positions.add
        for first, stop in ranges:
            add(first, stop)

    def holds(self, queue: int) -> int:
        """How many of a queue."""
        return sum(held.positions.count for held in self.held.get(queue, {}).values())

    # What a step may have to take back.

    def _keep_account(self, subscriber: Subscriber) -> None:
        if self._journal.on:
            pool = subscriber.pool
            self._journal.note(_restore_account, subscriber, subscriber.held, subscriber.limit, pool)
            if pool is not None:
                self._journal.note(_restore_pool, pool, pool.held, pool.limit)

    def _unhold(self, queue: int, holder: int, ranges: Iterable[Range]) -> None:
        held = self.held.get(queue, {}).get(holder)
        if held is not None:
            for first, stop in ranges:
                held.positions.remove(first, stop)
            self._forget_empty(queue, held)

    def _hold_again(self, queue: int, holder: Holder, taken: list[Range]) -> None:
        if taken:
            self._add(queue, holder, taken)

    def _forget_empty(self, queue: int, held: Held) -> None:
        if not held.positions:
            by_holder = self.held[queue]
            del by_holder[held.holder.number]
            if not by_holder:
                del self.held[queue]

    def _keep_place(self, subscriber: Subscriber) -> None:
        """Where it stands in the tables."""
        if self._journal.on:
            note, number, pool = self._journal.note, subscriber.number, subscriber.pool
            note(restore_key, self.subscribers, number, self.subscribers.get(number))
            if pool is not None:
                note(restore_key, pool.members, number, pool.members.get(number))
                note(restore_key, self.pools, pool.number, self.pools.get(pool.number))

    # Settling.

    def settled(
        self, queue: int, ranges: Sequence[Range], holder: int | None = None
    ) -> list[tuple[Holder, list[Range]]]:
        """Take what it holds of these positions of a queue off its account; gives that, and whose it was. `holder`: of
        that one alone."""
        by_holder = self.held.get(queue, {})
        if holder is None:
            asked = [held for _, held in sorted(by_holder.items())]
        else:
            asked = [by_holder[holder]] if holder in by_holder else []
        return [(held.holder, taken) for held in asked if (taken := self._take(queue, held, ranges))]

    def _take(self, queue: int, held: Held, ranges: Sequence[Range]) -> list[Range]:
        holder, positions = held
        taken: list[Range] = []
        if self._journal.on:
            self._journal.note(self._hold_again, queue, holder, taken)
        for first, stop in ranges:
            if stop - first == 1:
                if positions.remove(first, stop):
                    taken.append((first, stop))
                continue
            found = [*positions.ranges(first, stop)]
            taken += found
            positions.remove(first, stop)
        if taken:
            self._forget_empty(queue, held)
            if isinstance(holder, Subscriber):
                self.free(holder, count_of(taken))
            if self._journal.effects.on:
                self._journal.effects.settled(queue, holder, count_of(taken))
        return taken

    def free(self, subscriber: Subscriber, count: int) -> None:
        """It has room for so many more."""
        self._keep_account(subscriber)
        subscriber.held -= count
        pool = subscriber.pool
        if pool is None:
            self._wake(subscriber)
        else:
            pool.held -= count
            for _, member in sorted(pool.members.items()):
                self._wake(member)

    def _wake(self, subscriber: Subscriber) -> None:
        subscriber.queue.dispatcher.wake(subscriber)
        if self._owners is not None:
            self._owners.room_changed(subscriber.queue)

    # Consumers.

    def add(self, subscriber: Subscriber) -> None:
        self._keep_place(subscriber)
        self.subscribers[subscriber.number] = subscriber
        if subscriber.pool is not None:
            subscriber.pool.members[subscriber.number] = subscriber

    def drop(self, subscriber: Subscriber) -> None:
        """It is given nothing more; what it holds is settled by its channel."""
        self._keep_place(subscriber)
        self.subscribers.pop(subscriber.number, None)
        pool = subscriber.pool
        if pool is not None:
            pool.members.pop(subscriber.number, None)
            if not pool.members:
                self.pools.pop(pool.number, None)

    def pool(self, number: int, limit: int) -> Pool | None:
        """The second limit of a channel's consumers; number 0: there is none."""
        if not number:
            return None
        pool = self.pools.get(number)
        if self._journal.on:
            self._journal.note(restore_key, self.pools, number, pool)
            if pool is not None:
                self._journal.note(_restore_pool, pool, pool.held, pool.limit)
        if pool is None:
            pool = self.pools[number] = Pool(number, limit)
        pool.limit = limit
        return pool

    def allow(self, subscriber: Subscriber, limit: int, pool: Pool | None) -> None:
        """Other limits apply from now on."""
        self._keep_account(subscriber)
        self._keep_place(subscriber)
        if self._journal.on and pool is not None:
            self._journal.note(_restore_pool, pool, pool.held, pool.limit)
            self._journal.note(restore_key, pool.members, subscriber.number, pool.members.get(subscriber.number))
        subscriber.limit = limit
        if pool is not subscriber.pool:
            if subscriber.pool is not None:
                subscriber.pool.members.pop(subscriber.number, None)
                subscriber.pool.held -= subscriber.held
            subscriber.pool = pool
            if pool is not None:
                pool.members[subscriber.number] = subscriber
                pool.held += subscriber.held
        for each in (subscriber,) if pool is None else [member for _, member in sorted(pool.members.items())]:
            self._wake(each)
