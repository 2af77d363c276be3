"""Dispatch: what is ready goes to consumers that have room.

Once in a turn of the loop, however much has arrived. The consumer whose turn it is gets a chunk: its share of what is
ready, as far as it has room. What a consumer is to get is asked of the cluster, and is its own when the cluster says
so: until then it is *offered*, counts as taken room, and is offered to nobody else.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from coterie.broker import queue_image
from coterie.broker.delivery import Delivery
from coterie.broker.effects import ADD, REMOVE, REST, WAKE
from coterie.broker.entry import Entry
from coterie.broker.observer import Reason
from coterie.broker.rotation import Rotation

if TYPE_CHECKING:
    from coterie.broker.consumer import Consumer
    from coterie.broker.queue import Queue
    from coterie.runtime.base import Runtime


class Dispatcher:
    """Of one queue."""

    def __init__(self, queue: Queue, runtime: Runtime, batch: int) -> None:
        self.rotation = Rotation(queue.spec.single_active)
        self._queue = queue
        self._runtime = runtime
        self._batch = batch
        self._scheduled = False
        self._busy = False
        self._offered = 0
        """Ready ones that the cluster has been asked for, and that nobody has got yet."""
        self._arrived: float | None = None
        """When the messages that the scheduled dispatch is for arrived, if any of them may expire."""

    # Consumers come and go.

    def subscribe(self, consumer: Consumer) -> None:
        queue = self._queue
        queue.keep()
        self.rotation.check(consumer, queue.what)
        self.rotation.add(consumer)
        self._tell(ADD, consumer)
        self._changed()
        self.schedule()

    def unsubscribe(self, consumer: Consumer) -> None:
        queue = self._queue
        if queue.deleted or consumer not in self.rotation.consumers:
            return
        queue.keep()
        self.rotation.remove(consumer)
        self._tell(REMOVE, consumer)
        self._changed()
        if queue.spec.auto_delete and not self.rotation.consumers:
            queue.cluster.unused(queue)
        else:
            self.schedule()

    def _changed(self) -> None:
        self._queue.expiry.used()
        for observer in self._queue.observers:
            observer.consumers_changed(self._queue)

    def _tell(self, code: int, consumer: Consumer) -> None:
        effects = self._queue.journal.effects
        if effects.on:
            effects.consumer(self._queue, code, consumer)

    def wake(self, consumer: Consumer) -> None:
        self._queue.keep()
        if self.rotation.wake(consumer):
            self._tell(WAKE, consumer)
            self.schedule()

    # Turns.

    def schedule(self, now: float | None = None) -> None:
        """Dispatch when this turn is over. `now`: when what may expire has arrived."""
        if now is not None:
            self._arrived = now
        if not self._scheduled and self._queue.ready:
            self._queue.keep()
            self._scheduled = True
            self._queue.cluster.soon(self._run)

    def _run(self) -> None:
        self._queue.keep()
        self._scheduled = False
        now, self._arrived = self._arrived, None
        self.dispatch(now)

    def dispatch(self, now: float | None = None) -> None:
        """`now`: the time by which messages have expired."""
        queue, rotation = self._queue, self.rotation
        if self._busy or queue.deleted:
            return
        self._busy = True
        try:
            while (waiting := queue.ready - self._offered) > 0:
                consumer = rotation.next()
                if consumer is None:
                    break
                room = consumer.sink.room(consumer) - consumer.offered
                if room <= 0:
                    rotation.rest(consumer)
                    self._tell(REST, consumer)
                    continue
                rotation.turn(consumer)
                entries = self.take(min(room, self._batch, max(1, waiting // rotation.hungry)), now)
                if not entries:
                    break
                consumer.offered += len(entries)
                self._offered += len(entries)
                queue.cluster.acquire(queue, consumer, entries)
        finally:
            self._busy = False

    def take(self, count: int, now: float | None = None) -> list[Entry]:
        """Up to `count` from the head that can be given away now."""
        queue = self._queue
        entries = queue.lanes.take(count)
        if queue.expiry.mortal and queue.cluster.sifts:
            entries = self._sift(entries, count, queue.cluster.now() if now is None else now)
            queue.expiry.arm()  # there is another head
        return queue.pager.present(entries) if queue.pager.paged else entries

    def _sift(self, entries: list[Entry], count: int, now: float) -> list[Entry]:
        """Without those whose time is over, and with others in their stead."""
        queue = self._queue
        good: list[Entry] = []
        expired: list[Entry] = []
        while entries:
            for entry in entries:
                (good if entry.expires is None or entry.expires > now else expired).append(entry)
            entries = queue.lanes.take(count - len(good))
        if expired:
            queue.leave(expired, Reason.EXPIRED)
        return good

    # The cluster has said so.

    def acquired(self, consumer: Consumer, entries: list[Entry]) -> None:
        """They are the consumer's; but not those that have left the queue meanwhile, and none if it has."""
        queue = self._queue
        if queue.journal.on:
            queue_image.keep(queue)
            queue.journal.note(queue_image.give_back, entries, consumer)
        consumer.offered -= len(entries)
        self._offered -= len(entries)
        if not consumer.active:
            queue.lanes.put_back([entry for entry in entries if entry.holder is None])
            self.schedule()
            return
        size = again = gone = 0
        for entry in entries:
            if entry.holder is not None:
                gone += 1
                continue
            entry.holder = consumer
            entry.deliveries += 1
            size += entry.size
            if entry.redelivered:
                again += 1
        if gone:
            self.wake(consumer)
            entries = [entry for entry in entries if entry.holder is consumer]
            if not entries:
                return
        queue.ready -= len(entries)
        queue.ready_bytes -= size
        counters = queue.counters
        counters.redelivered += again
        for observer in queue.observers:
            observer.acquired(queue, entries)
        consumer.sink.deliver(consumer, Delivery.of(queue, consumer, entries, bool(again)))
        if consumer.no_ack:
            counters.delivered_no_ack += len(entries)
            queue.dequeue(entries, Reason.GOT)
        else:
            counters.delivered += len(entries)

    def get(self, holder: object, no_ack: bool) -> Delivery | None:
        queue = self._queue
        queue.keep()
        queue.expiry.used()
        entries = self.take(1)
        if not entries:
            return None
        (entry,) = entries
        queue.lease(entries, holder)
        entry.deliveries += 1
        found = Delivery.of(queue, holder, entries)
        queue.counters.redelivered += entry.redelivered
        if no_ack:
            queue.counters.got_no_ack += 1
            queue.dequeue(entries, Reason.GOT)
        else:
            queue.counters.got += 1
        return found
