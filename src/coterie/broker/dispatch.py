"""Dispatch: what is ready goes to consumers that have room.

Once in a turn of the loop, however much has arrived. The consumer whose turn it is gets a chunk: its share of what is
ready, as far as it has room. In a cluster that follows from the log alone, so every broker takes this step alike.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from coterie.broker.delivery import Delivery, count_of
from coterie.broker.effects import ADD, REMOVE, REST, WAKE
from coterie.broker.observer import Reason
from coterie.broker.rotation import Rotation

if TYPE_CHECKING:
    from coterie.broker.consumer import Consumer
    from coterie.broker.message import Message
    from coterie.broker.queue import Queue
    from coterie.broker.ranges import Range
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
        queue.table.let_go(consumer)
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
            while waiting := queue.ready:
                consumer = rotation.next()
                if consumer is None:
                    break
                room = consumer.sink.room(consumer)
                if room <= 0:
                    rotation.rest(consumer)
                    self._tell(REST, consumer)
                    continue
                rotation.turn(consumer)
                ranges = self.take(min(room, self._batch, max(1, waiting // rotation.hungry)), now)
                if not ranges:
                    break
                self._give(consumer, ranges)
        finally:
            self._busy = False

    def take(self, count: int, now: float | None = None) -> list[Range]:
        """Up to `count` from the head that can be given away now."""
        queue = self._queue
        if queue.expiry.mortal and queue.cluster.sifts:
            ranges, over = queue.table.sifted(count, queue.cluster.now() if now is None else now)
            if over:
                queue.leave(over, Reason.EXPIRED)
        else:
            ranges = queue.table.first_ready(count)
        return queue.pager.present(ranges) if queue.pager.absent else ranges

    def _give(self, consumer: Consumer, ranges: list[Range]) -> None:
        """Who dispatches has noted how the queue was."""
        queue = self._queue
        delivery = self._delivery(consumer, ranges)
        count = delivery.count
        queue.table.acquire(consumer, ranges)
        if queue.expiry.mortal:
            queue.expiry.arm()  # there is another head
        counters = queue.counters
        if delivery.flagged:
            counters.redelivered += count_of(delivery.flagged)
        for observer in queue.observers:
            observer.acquired(queue, consumer, ranges)
        consumer.sink.deliver(consumer, delivery)
        if consumer.no_ack:
            counters.delivered_no_ack += count
            queue.dequeue(consumer, ranges, Reason.GOT)
        else:
            counters.delivered += count

    def _delivery(self, holder: object, ranges: list[Range]) -> Delivery:
        table = self._queue.table
        messages: list[Message] = table.messages(ranges)  # type: ignore[assignment]  # what is given is in memory
        return Delivery(self._queue, holder, ranges, messages, table.flagged_of(ranges))

    def get(self, holder: object, no_ack: bool) -> Delivery | None:
        queue = self._queue
        queue.keep()
        queue.expiry.used()
        ranges = self.take(1)
        if not ranges:
            return None
        found = self._delivery(holder, ranges)
        queue.lease(ranges, holder)
        if queue.expiry.mortal:
            queue.expiry.arm()
        queue.counters.redelivered += count_of(found.flagged)
        if no_ack:
            queue.counters.got_no_ack += 1
            queue.dequeue(holder, ranges, Reason.GOT)
        else:
            queue.counters.got += 1
        return found
