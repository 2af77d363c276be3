"""Consumers of this node, and what the log allots to them.

Who they are, and how much each may hold, is told by events; what is theirs to deliver is handed to their sockets as
soon as a majority holds that place of the log, and as far as they have room.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

from coterie.broker import records
from coterie.broker.delivery import Delivery, add_range, positions_in, those
from coterie.cluster import settling, wire
from coterie.cluster.bodiless import is_bodiless
from coterie.cluster.consumers import Subscriber
from coterie.cluster.outbox import Asked
from coterie.cluster.wire import Credit, Kind
from coterie.errors import ProtocolError
from coterie.runtime.base import Buffer, Runtime

if TYPE_CHECKING:
    from coterie.broker.consumer import Consumer, Sink
    from coterie.broker.queue import Queue
    from coterie.broker.ranges import Range
    from coterie.cluster.answers import Answers
    from coterie.cluster.catchup.catchup import Catchup
    from coterie.cluster.standing import Standing
    from coterie.cluster.traced import ClusterTrace
    from coterie.cluster.turn import Turn

STRAYS = 100
"""So often something may be allotted to a consumer that is gone."""
PROMPT = 1.0
"""Seconds that what is allotted may take to be held by a majority, and still be in time when it was so on the log."""


class Events(Protocol):
    """What becomes of the wishes of consumers."""

    def ask(self, kind: Kind, parts: Sequence[Buffer], asked: Asked) -> None:
        """An event."""

    def insist(self, kind: Kind, encode: Callable[[int], bytes]) -> None:
        """One that must be so in the end; `encode` is given the version of the event."""

    def release(self, queue: Queue, holder: object, ranges: Sequence[Range], redelivered: bool) -> None:
        """Messages go back."""

    def in_turn(self, done: Callable[[], None]) -> None:
        """After the answers to all events so far."""

    def new_number(self) -> int:
        """That nobody else has on this broker."""

    @property
    def is_full(self) -> bool:
        """Too much waits to be sent."""


class Client:
    """A consumer of this node: who it is on the log, and what was allotted to it and waits for its socket."""

    __slots__ = ("consumer", "gone", "last", "number", "pumped_later", "sent", "told", "waiting")

    def __init__(self, number: int, consumer: Consumer) -> None:
        self.number = number
        self.consumer = consumer
        self.told = Credit(number, 0, 0, 0, 0)
        """What the log knows of its limits."""
        self.waiting: deque[Delivery] = deque()
        self.sent = 0
        """Delivered without acknowledgement, and the log does not know yet."""
        self.gone = False
        self.pumped_later = False
        """The body of what is next is on its way."""
        self.last: Callable[[], None] | None = None
        """To be called when it has got what waits: the log allots nothing to it any more."""


class LocalConsumers:
    """Of one broker."""

    def __init__(
        self, runtime: Runtime, standing: Standing, turn: Turn, events: Events, answers: Answers, catchup: Catchup,
        traced: ClusterTrace | None, credit_max: int,
    ) -> None:  # fmt: skip
        self._runtime = runtime
        self._standing = standing
        self._turn = turn
        self._events = events
        self._answers = answers
        self._catchup = catchup
        self._traced = traced
        self._credit_max = credit_max
        """Of a consumer without a limit of its own."""
        self._clients: dict[Consumer, Client] = {}
        self._by_number: dict[int, Client] = {}
        self._pools: dict[object, int] = {}
        self._unsaid: dict[Client, None] = {}
        self._untold: dict[Client, None] = {}
        """Those with other limits than the log knows, while too much waits to be sent."""
        self._strays: dict[int, int] = {}
        """Consumers that are gone, and how often something was allotted to each all the same."""

    @property
    def numbers(self) -> Collection[int]:
        """Those in use."""
        return self._by_number

    def sink(self, holder: object) -> Sink | None:
        """Of a client that holds something."""
        client = self._by_number.get(holder.number) if isinstance(holder, Subscriber) else None
        return None if client is None else client.consumer.sink

    def consume(self, consumer: Consumer, done: Callable[[ProtocolError | None], None]) -> None:
        client = Client(self._events.new_number(), consumer)
        self._clients[consumer] = self._by_number[client.number] = client
        client.told = credit = self._limits(client)
        said = {
            "queue": consumer.queue.incarnation, "number": client.number, "tag": consumer.tag,
            "flags": [consumer.no_ack, consumer.exclusive], "priority": consumer.priority, "limit": credit.limit,
            "pool": [credit.pool, credit.pool_limit], "args": records.pack(consumer.arguments),
            "details": consumer.sink.details(),
        }  # fmt: skip

        def answered(error: Any) -> None:
            if error is not None:
                self._forget(client)
            done(error)

        self._events.ask(Kind.CONSUME, (wire.encode_json(said),), Asked(b"", answered))

    def cancel(self, consumer: Consumer) -> None:
        client = self._clients.get(consumer)
        if client is not None:
            self._forget(client)
            self._say_cancelled(client)
            self._give_back(client)

    def end(self, consumer: Consumer, done: Callable[[], None]) -> None:
        """For the log, what is allotted to a consumer without acknowledgements has left its queue. So one that is still
        there is given that, and hears of its end behind it: not before the log has come to the end of the consumer, or
        it would think that no message can be lost to it any more."""
        client = self._clients.get(consumer)
        if client is None or not consumer.no_ack:
            self.cancel(consumer)
            self._events.in_turn(done)
        else:
            self._say_cancelled(client)
            self._events.in_turn(partial(self._let_go, client, done))

    def _say_cancelled(self, client: Client) -> None:
        credit = Credit(client.number, 0, 0, 0, 0)
        self._events.insist(Kind.CANCEL, partial(wire.credit, credit))

    def _let_go(self, client: Client, done: Callable[[], None]) -> None:
        """The log has come to its end: nothing is added to what waits for its socket."""
        client.last = done
        if client.gone:
            self._has_all(client)
        else:
            self._pump(client)

    def _has_all(self, client: Client) -> None:
        last, client.last = client.last, None
        if last is not None:
            self._forget(client)
            last()

    def _forget(self, client: Client) -> None:
        client.gone = True
        self._clients.pop(client.consumer, None)
        self._by_number.pop(client.number, None)
        pool = client.told.pool
        if pool and all(other.told.pool != pool for other in self._clients.values()):
            self._pools = {group: number for group, number in self._pools.items() if number != pool}

    def wake(self, consumer: Consumer) -> None:
        """It may have room again, or other limits."""
        client = self._clients.get(consumer)
        if client is None:
            return
        credit = self._limits(client)
        if credit != client.told:
            if self._events.is_full:  # a client may change its mind as often as it likes
                self._untold[client] = None
            else:
                client.told = credit
                self._send_credit(client, credit)
        self._pump(client)

    def _limits(self, client: Client) -> Credit:
        consumer = client.consumer
        if consumer.no_ack:
            return Credit(client.number, self._credit_max, 0, 0, 0)
        limit, group, together = consumer.sink.limits(consumer)
        pool = 0
        if together:
            pool = self._pools.get(group, 0)
            if not pool:
                pool = self._pools[group] = self._events.new_number()
        return Credit(client.number, limit or self._credit_max, pool, together, 0)

    def room_again(self) -> None:
        """Less waits to be sent: those with other limits may say so."""
        untold, self._untold = self._untold, {}
        for client in untold:
            self.wake(client.consumer)

    @property
    def some_wait(self) -> bool:
        return bool(self._untold)

    # What the log allots to them.

    def allotted(self, subscriber: Subscriber, delivery: Delivery) -> None:
        client = self._by_number.get(subscriber.number)
        if client is None:
            if not subscriber.no_ack:
                self._events.release(subscriber.queue, subscriber, delivery.ranges, redelivered=False)
            self._end_stray(subscriber.number)
            return
        self._answers.deliver(self._standing.place, partial(self._hand_on, client, delivery))

    def _end_stray(self, number: int) -> None:
        """Something is allotted to a consumer that is gone. Mostly its cancel is under way; but if that goes on and on,
        the log knows of a consumer that there never was, and must be told."""
        self._strays[number] = self._strays.get(number, 0) + 1
        if self._strays[number] >= STRAYS:
            self._events.insist(Kind.CANCEL, partial(wire.credit, Credit(number, 0, 0, 0, 0)))
        if self._strays[number] >= STRAYS or len(self._strays) > STRAYS:
            self._strays.clear()

    def _hand_on(self, client: Client, delivery: Delivery) -> None:
        waited = bool(client.waiting)
        client.waiting.append(delivery)
        self._pump(client, waited)

    def _pump(self, client: Client, waited: bool = True) -> None:
        """As far as it has room. `waited`: it had none before."""
        waiting, consumer = client.waiting, client.consumer
        if client.gone:
            self._give_back(client)
            return
        answers = self._answers
        if waiting and not answers.may_speak():  # others may have given them to somebody else by now
            answers.when_it_may_speak(client, partial(self._pump, client))
            return
        now = None
        if consumer.queue.expiry.mortal and self._turn.sifts and not consumer.no_ack:
            now = self._turn.now() - (0.0 if waited else PROMPT)
        while waiting and (room := consumer.sink.room(consumer)) > 0:
            room = min(room, self._whole(client, waiting[0]))
            if not room:
                return
            delivery: Delivery | None = waiting[0].cut(room) if room < waiting[0].count else waiting.popleft()
            if delivery is not None and not consumer.no_ack:
                delivery = self._still_theirs(delivery, now)
            if delivery is not None:
                if self._traced is not None:
                    self._traced.given(delivery)
                consumer.sink.deliver(consumer, delivery)
                if consumer.no_ack:
                    client.sent += delivery.count
                    if not self._unsaid:
                        self._runtime.call_soon(self._say_sent)
                    self._unsaid[client] = None
        if not waiting:
            self._has_all(client)

    def _still_theirs(self, delivery: Delivery, now: float | None) -> Delivery | None:
        """Without what has left the queue since it was allotted, and what has waited until its time was over: on the
        log, nobody is given that any more."""
        queue, holder = delivery.queue, delivery.holder
        held = queue.still_held(holder, delivery.ranges)
        late = [] if now is None else queue.are_over(held, now)
        if not late and held == delivery.ranges:
            return delivery
        gone = self.write_off(queue, holder, delivery.ranges, held)
        if late:
            self._events.release(queue, holder, late, redelivered=False)
        return delivery.without(positions_in((*gone, *late)))

    def _whole(self, client: Client, delivery: Delivery) -> int:
        """How many of them may be given before the first whose body is on its way to this broker, which catches up."""
        backfill = self._catchup.backfill
        if backfill is None or client.consumer.no_ack or not any(map(is_bodiless, delivery.messages)):
            return delivery.count
        held = {*positions_in(delivery.queue.still_held(delivery.holder, delivery.ranges))}
        rows = enumerate(delivery.rows())
        count = next((at for at, row in rows if is_bodiless(row[1]) and row[0] in held), delivery.count)
        if not count and not client.pumped_later:  # once, however often it is looked at meanwhile
            client.pumped_later = True
            backfill.when_filled(partial(self._pump_later, client))
        return count

    def _pump_later(self, client: Client) -> None:
        client.pumped_later = False
        self._pump(client)

    def _say_sent(self) -> None:
        unsaid, self._unsaid = self._unsaid, {}
        for client in unsaid:
            self._send_credit(client, Credit(client.number, 0, 0, 0, client.sent))
            client.sent = 0

    def _send_credit(self, client: Client, credit: Credit) -> None:
        data = wire.credit(credit, self._standing.versions.spoken)
        self._events.ask(Kind.CREDIT, (data,), Asked(b"", failed=client.consumer.sink.failed))

    def _give_back(self, client: Client) -> None:
        """It never saw them."""
        waiting = [*client.waiting]
        client.waiting.clear()
        if client.consumer.no_ack or not waiting:
            return
        queue, holder = waiting[0].queue, waiting[0].holder
        ranges: list[Range] = []
        for delivery in waiting:
            for first, stop in delivery.ranges:
                add_range(ranges, first, stop)
        held = queue.still_held(holder, ranges)
        if held:
            self._events.release(queue, holder, held, redelivered=False)
        self.write_off(queue, holder, ranges, held)

    def write_off(self, queue: Queue, holder: object, ranges: Sequence[Range], held: Sequence[Range]) -> list[Range]:
        """All but `held` of these have left their queue after they were allotted, and nobody will answer for them: off
        the account. Gives them."""
        there = {*positions_in(held)}
        gone = those(ranges, lambda position: position not in there)
        if gone:
            self._events.insist(Kind.ACCEPT, partial(settling.settle, queue, [settling.share_of(holder, gone)]))
        return gone

    def ended(self, subscriber: Subscriber) -> None:
        """Its queue is gone."""
        client = self._by_number.get(subscriber.number)
        if client is not None:
            self._forget(client)
            self._give_back(client)
            self._has_all(client)
            client.consumer.sink.cancelled(client.consumer)

    def clear(self) -> None:
        """This broker begins anew, without clients."""
        for client in self._clients.values():
            client.gone = True
        self._clients.clear()
        self._by_number.clear()
        self._pools.clear()
        self._unsaid.clear()
        self._untold.clear()
