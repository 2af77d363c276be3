"""The Cluster interface: where a broker's decisions leave it and come back as steps.

Nothing changes the state of a queue or of the wiring but a step that the cluster calls (`apply_...`, `Change.apply`).
The null cluster calls it at once. One that replicates sends the event to all and calls the step, on every broker
alike, when the order of all events has come to it. What is called here is one batch of one queue, or one decision.

The events of the design and their calls: routing, enqueue, routed = publish; release; accept and dequeue =
accept; reject, rejected = reject (dequeue and letters are one step); consume; cancel; wiring; transaction. And
beyond them: lease. Who acquires what follows from these, at every broker alike (`dispatch`).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeVar

from coterie.broker.delivery import HeldRanges
from coterie.broker.journal import NO_VERDICT, Broken
from coterie.errors import ProtocolError

if TYPE_CHECKING:
    from coterie.broker.broker import Broker
    from coterie.broker.consumer import Consumer
    from coterie.broker.delivery import Delivery
    from coterie.broker.following.steps import Answer
    from coterie.broker.journal import Journal
    from coterie.broker.leases import Lease, LeaseStep
    from coterie.broker.message import Message
    from coterie.broker.publish import Publish, Routed
    from coterie.broker.queue import Queue
    from coterie.broker.ranges import Range
    from coterie.broker.rows import Row
    from coterie.broker.specs import QueueSpec
    from coterie.broker.transaction import Transaction
    from coterie.broker.vhost import PseudoQueue, Vhost
    from coterie.broker.wiring import Change
    from coterie.runtime.base import Runtime

R = TypeVar("R")
LeaseShape = dict[str, Any]
"""What a lease is, as its reader is told."""
ALONE: Final = "0.0"
"""The place of a broker that has no log."""


def read_place(place: str) -> tuple[int, int]:
    """Epoch and index. Raises ValueError."""
    epoch, _, index = place.partition(".")
    return int(epoch), int(index)


class Cluster(ABC):
    """What a broker does, it does through this."""

    immediate = True
    """Steps are taken within the calls that ask for them, by this broker alone: then its own clock, its own consumers'
    room and its own disk may decide. Otherwise nothing may but the order of all events."""

    def start(self, runtime: Runtime) -> None:
        """Before anything else."""
        self._runtime = runtime

    def place(self) -> str:
        """Of what was applied last, in the order of all events: "epoch.index"."""
        return ALONE

    def has_come_to(self, place: str) -> bool:
        """Whether everything up to there has been applied here. Raises ValueError if that is no place."""
        read_place(place)
        return True

    def may_serve(self) -> str:
        """Why nothing may leave this broker now; nothing: it may."""
        return ""

    def is_absent(self, messages: Iterable[Message | None]) -> bool:
        """Whether the body of any of them is still on its way to this broker."""
        return False

    def reading(self, queue: Queue, rows: Sequence[Row], lease: Lease | None) -> None:
        """They go to somebody who reads them in bulk, through that lease or without any."""
        traced = queue.vhost.traced
        if traced is not None and lease is not None:
            traced.reading(queue, rows, lease)

    def wall(self) -> float:
        """The time that messages are marked with; the same on every broker that takes the same step."""
        return self._runtime.wall()

    def now(self) -> float:
        """The time by which messages expire; while every broker takes a step, the same on each."""
        return self._runtime.now()

    def lead(self) -> float:
        """How much less that is than the time of the calendar."""
        return self._runtime.wall() - self._runtime.now()

    @property
    def sifts(self) -> bool:
        """Nobody is given what has expired at `now`. False: only what has been said to have."""
        return True

    def soon(self, call: Callable[[], None]) -> None:
        """At the end of this turn; or of this step, if every broker takes it."""
        self._runtime.call_soon(call)

    def new_incarnation(self) -> int | None:
        """For a queue that is declared; None: the broker counts for itself."""
        return None

    def keeps_time(self) -> bool:
        """Whether it is for this broker to say that something has expired."""
        return True

    def when_held(self, call: Callable[[], None]) -> None:
        """Once nothing that was applied here until now can be undone by others: then it may leave the cluster."""
        call()

    def keeps(self, spec: QueueSpec) -> bool:
        """Whether this broker's store is to have the messages of a durable queue like that."""
        return True

    def opened(self, queue: Queue) -> None:
        """There is a new queue."""

    def check_use(self, queue: Queue) -> None:
        """Raises ProtocolError 405 if nobody can consume or get here, as the messages are on another broker."""

    def send_letters(self, vhost: Vhost, routed: Routed) -> None:
        """Dead letters of a queue go to others."""
        for target, letters in routed.items():
            if letters and not target.elsewhere:
                if target.home is None:
                    target.enqueue(letters)
                else:
                    target.journal.apart(partial(target.enqueue, letters), "a queue that is here alone: enqueueing")

    def unused(self, queue: Queue) -> None:
        """The last consumer of an auto-delete queue is gone, and so is the queue."""
        queue.vhost.remove_queue(queue)

    def wake(self, queue: Queue, consumer: Consumer) -> None:
        """The consumer may have room again."""
        queue.dispatcher.wake(consumer)

    def reply_tag(self) -> str:
        """What names this broker in the address of a direct reply; nothing: it stands alone."""
        return ""

    def replies_elsewhere(self, vhost: Vhost, name: str) -> PseudoQueue | None:
        """The way to whoever waits for direct replies at another broker, if the address names one that is there."""
        return None

    def waits_elsewhere(self, vhost: Vhost, name: str, done: Callable[[bool], None]) -> None:
        """Whether somebody does: that broker is asked."""
        done(False)

    @abstractmethod
    def publish(
        self, vhost: Vhost, routed: Routed, done: Callable[[], None], publishes: Sequence[Publish] = ()
    ) -> None:
        """Enqueue (`Vhost.apply_publish`); `done` once every message is safe, in the order of these calls. Who refuses
        when the order has come to it marks those of `publishes`."""

    @abstractmethod
    def accept(self, queue: Queue, holder: object, ranges: Sequence[Range]) -> None: ...

    @abstractmethod
    def release(self, queue: Queue, holder: object, ranges: Sequence[Range], redelivered: bool) -> None: ...

    @abstractmethod
    def reject(self, queue: Queue, holder: object, ranges: Sequence[Range]) -> None: ...

    @abstractmethod
    def expire(self, queue: Queue) -> None:
        """The head of the queue may have expired (`Queue.expire`)."""

    @abstractmethod
    def get(
        self, queue: Queue, holder: object, no_ack: bool, done: Callable[[Delivery | ProtocolError | None], None]
    ) -> None: ...

    @abstractmethod
    def consume(self, consumer: Consumer, done: Callable[[ProtocolError | None], None]) -> None: ...

    @abstractmethod
    def cancel(self, consumer: Consumer) -> None:
        """Whoever consumed is gone: what is on its way to it goes back, or is lost if it acknowledges nothing."""

    def end(self, consumer: Consumer, done: Callable[[], None]) -> None:
        """The same for one that is still there: what is on its way to it and would be lost is delivered. `done` when
        nothing more can come."""
        self.cancel(consumer)
        self.in_turn(done)

    def in_turn(self, done: Callable[[], None]) -> None:
        """Once all that was asked for until now has its place in the order of all events, and cannot lose it."""
        done()

    @abstractmethod
    def wiring(self, vhost: Vhost, change: Change[R], done: Callable[[R | ProtocolError], None]) -> None:
        """Exchanges, queues, bindings, policies; purge and move; what cannot be decided by one broker alone."""

    @abstractmethod
    def transaction(
        self,
        vhost: Vhost,
        transaction: Transaction,
        done: Callable[[ProtocolError | None], None],
        publishes: Sequence[Publish] = (),
    ) -> None:
        """All of it in one step, or nothing: then the error says why, and what it settled goes back."""

    @abstractmethod
    def replicate(self, vhost: Vhost, step: bytes, done: Callable[[Answer], None]) -> None:
        """A step of another broker's link (`Vhost.apply_step`), with its answer when it is safe."""

    @abstractmethod
    def lease(self, queue: Queue, step: LeaseStep, done: Callable[[LeaseShape | ProtocolError], None]) -> None:
        """A step of a named lease (`LeaseStep.apply`); `done`, with what the lease is then, once that is safe."""

    @abstractmethod
    def administer(self, broker: Broker, said: dict[str, object], done: Callable[[Any], None]) -> None:
        """Vhosts and records that are no vhost's (`Broker.apply_administration`), with its answer."""


class NullCluster(Cluster):
    """A broker that stands alone: every step at once; and whole or not at all, where it may fail half-way."""

    def publish(
        self, vhost: Vhost, routed: Routed, done: Callable[[], None], publishes: Sequence[Publish] = ()
    ) -> None:
        if any(queue.limits.bounded or queue.window is not None for queue in routed):
            vhost.journal.run(partial(vhost.apply_publish, routed))
        else:
            vhost.apply_publish(routed)
        vhost.when_safe(done)

    def accept(self, queue: Queue, holder: object, ranges: Sequence[Range]) -> None:
        queue.apply_accept(holder, ranges)

    def release(self, queue: Queue, holder: object, ranges: Sequence[Range], redelivered: bool) -> None:
        """Nobody holds them any more, also if the queue's rules cannot be carried out."""
        step = partial(queue.apply_release, holder, ranges, redelivered)
        if not queue.journal.apart(step, "a release by the rules"):
            queue.put_back(holder, ranges, redelivered)
            queue.dispatcher.schedule()

    def reject(self, queue: Queue, holder: object, ranges: Sequence[Range]) -> None:
        held = HeldRanges(queue, holder, ranges)
        self._settle(queue.journal, partial(queue.apply_reject, holder, ranges), [held])

    def _settle(self, journal: Journal, step: Callable[[], None], settled: Iterable[HeldRanges]) -> None:
        """Take a step by which a client is done with these. If it fails, the client is told, and they go back: the
        client does not think of them any more."""
        try:
            journal.run(step)
        except (*NO_VERDICT, Broken):
            raise
        except Exception:
            for queue, holder, ranges in settled:
                self.release(queue, holder, ranges, redelivered=True)
            raise

    def expire(self, queue: Queue) -> None:
        if not queue.journal.apart(queue.expire, "the expiry of messages"):
            queue.expiry.pause()

    def get(
        self, queue: Queue, holder: object, no_ack: bool, done: Callable[[Delivery | ProtocolError | None], None]
    ) -> None:
        def again() -> None:
            done(None if queue.deleted else queue.get(holder, no_ack))

        found = queue.get(holder, no_ack)
        if found is None and queue.ready and queue.pager.paged:
            queue.pager.bring(again)
        else:
            done(found)

    def consume(self, consumer: Consumer, done: Callable[[ProtocolError | None], None]) -> None:
        try:
            consumer.queue.subscribe(consumer)
        except ProtocolError as error:
            done(error)
        else:
            done(None)

    def cancel(self, consumer: Consumer) -> None:
        consumer.queue.unsubscribe(consumer)

    def wiring(self, vhost: Vhost, change: Change[R], done: Callable[[R | ProtocolError], None]) -> None:
        before = vhost.store.written()
        try:
            result = vhost.journal.run(partial(change.apply, vhost))
        except ProtocolError as error:
            done(error)
            return
        written = vhost.store.written()
        if written == before:
            done(result)
        else:
            vhost.store.when_synced(written, lambda: done(result))

    def transaction(
        self,
        vhost: Vhost,
        transaction: Transaction,
        done: Callable[[ProtocolError | None], None],
        publishes: Sequence[Publish] = (),
    ) -> None:
        settled = [*transaction.accepts, *transaction.rejects, *transaction.requeues]
        self._settle(vhost.journal, partial(vhost.apply_transaction, transaction), settled)
        vhost.when_safe(partial(done, None))

    def replicate(self, vhost: Vhost, step: bytes, done: Callable[[Answer], None]) -> None:
        answer = vhost.journal.run(partial(vhost.apply_step, step))
        vhost.when_safe(lambda: done(answer))

    def lease(self, queue: Queue, step: LeaseStep, done: Callable[[LeaseShape | ProtocolError], None]) -> None:
        store = queue.vhost.store
        before = store.written()
        try:
            answer = queue.journal.run(partial(step.apply, queue)).shape()
        except ProtocolError as error:
            done(error)
            return
        written = store.written()
        if written == before:
            done(answer)
        else:
            store.when_synced(written, lambda: done(answer))

    def administer(self, broker: Broker, said: dict[str, object], done: Callable[[Any], None]) -> None:
        answer = broker.journal.run(partial(broker.apply_administration, said))
        broker.store.when_synced(broker.store.written(), lambda: done(answer))
