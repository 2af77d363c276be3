"""Consumers of every node, on every node: who gets which message follows from the ordered log alone.

Each consumer has a limit of unsettled messages that everybody knows; the consumers of one channel may share a second
one. A message is allotted as soon as it is in the queue and a consumer has room left, by the same turns everywhere
(`broker.dispatch`), with no lock and no extra message. The consumer's own node hands it on once a majority holds that
place of the log; the others only keep count.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import TYPE_CHECKING

from coterie.broker.consumer import Consumer, Sink
from coterie.broker.journal import Journal, restore_key

if TYPE_CHECKING:
    from coterie.broker.entry import Entry
    from coterie.broker.queue import Queue
    from coterie.cluster.queue_ownership import Owners
    from coterie.group.members import Address


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

    __slots__ = ("details", "held", "limit", "number", "peer", "pool")

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
    """Who got a message with basic.get, and has not settled it."""

    __slots__ = ("number", "peer")

    def __init__(self, peer: Peer, number: int) -> None:
        self.peer = peer
        self.number = number


class Owner:
    """A connection on another node that has queues for itself."""

    __slots__ = ("number", "peer")

    def __init__(self, peer: Peer, number: int) -> None:
        self.peer = peer
        self.number = number

    def __repr__(self) -> str:
        return f"<connection {self.number} of {self.peer.address}>"


Holder = Subscriber | Getter


def _restore_account(subscriber: Subscriber, held: int, limit: int, pool: Pool | None) -> None:
    subscriber.held, subscriber.limit, subscriber.pool = held, limit, pool


def _restore_pool(pool: Pool, held: int, limit: int) -> None:
    pool.held, pool.limit = held, limit


class Peer(Sink):
    """A member of the cluster, ourselves too: its consumers, and what it holds."""

    def __init__(self, address: Address, journal: Journal, owners: Owners | None = None) -> None:
        self.address = address
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
        self.held: dict[int, dict[int, Holder]] = {}
        """By queue and position: everything that was allotted to it and is not settled."""
        self.allotted: Callable[[Subscriber, list[Entry]], None] | None = None
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

    def deliver(self, consumer: Consumer, entries: list[Entry]) -> None:
        assert isinstance(consumer, Subscriber)
        count = len(entries)
        self._keep_account(consumer)
        consumer.held += count
        if consumer.pool is not None:
            consumer.pool.held += count
        if not consumer.no_ack:
            self.hold(consumer.queue.incarnation, consumer, entries)
        if self._owners is not None:
            others = [] if consumer.pool is None else [member for _, member in sorted(consumer.pool.members.items())]
            for queue in dict.fromkeys((consumer.queue, *(other.queue for other in others))):
                self._owners.room_changed(queue)
        if self.allotted is not None:
            self._journal.after(self.allotted, consumer, entries)

    def cancelled(self, consumer: Consumer) -> None:
        """The queue is gone."""
        assert isinstance(consumer, Subscriber)
        self.drop(consumer)
        if self.ended is not None:
            self._journal.after(self.ended, consumer)

    def hold(self, queue: int, holder: Holder, entries: list[Entry]) -> None:
        if self._journal.on:
            self._journal.note(self._unhold, queue, holder, entries)
        held = self.held.get(queue)
        if held is None:
            held = self.held[queue] = {}
        held.update(dict.fromkeys([entry.position for entry in entries], holder))

    # What a step may have to take back.

    def _keep_account(self, subscriber: Subscriber) -> None:
        if self._journal.on:
            pool = subscriber.pool
            self._journal.note(_restore_account, subscriber, subscriber.held, subscriber.limit, pool)
            if pool is not None:
                self._journal.note(_restore_pool, pool, pool.held, pool.limit)

    def _unhold(self, queue: int, holder: Holder, entries: list[Entry]) -> None:
        held = self.held.get(queue, {})
        for entry in entries:
            if held.get(entry.position) is holder:
                del held[entry.position]
        if not held:
            self.held.pop(queue, None)

    def _hold_again(self, queue: int, taken: list[tuple[int, Holder]]) -> None:
        if taken:
            self.held.setdefault(queue, {}).update(taken)

    def _keep_place(self, subscriber: Subscriber) -> None:
        """Where it stands in the tables."""
        if self._journal.on:
            note, number, pool = self._journal.note, subscriber.number, subscriber.pool
            note(restore_key, self.subscribers, number, self.subscribers.get(number))
            if pool is not None:
                note(restore_key, pool.members, number, pool.members.get(number))
                note(restore_key, self.pools, pool.number, self.pools.get(pool.number))

    # Settling.

    def settled(self, number: int, queue: Queue | None, positions: list[int]) -> list[Entry]:
        """Take what it holds of these positions off its account; gives those that are still in the queue. None: the
        queue of that number is gone."""
        held = self.held.get(number)
        if held is None:
            return []
        live = {} if queue is None else queue.entries
        taken: list[tuple[int, Holder]] = []
        if self._journal.on:
            self._journal.note(self._hold_again, number, taken)
        entries: list[Entry] = []
        freed: dict[Subscriber, int] = {}
        for position in positions:
            holder = held.pop(position, None)
            if holder is None:
                continue
            taken.append((position, holder))
            if isinstance(holder, Subscriber):
                freed[holder] = freed.get(holder, 0) + 1
            entry = live.get(position)
            if entry is not None and entry.holder is holder:
                entries.append(entry)
        if not held:
            del self.held[number]
        for subscriber, count in freed.items():
            self.free(subscriber, count)
        return entries

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
