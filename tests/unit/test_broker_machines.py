"""Random lives of queues of every kind, against the model: after every step both agree.

B2 a message has one holder at a time. B3 what was accepted is never delivered again. B4 what a lost consumer held is
back at its place, once, flagged. B5 what dies reaches the dead-letter exchange once. B9 a transaction is whole. B12
what is unacked is what live clients hold.
"""

from __future__ import annotations

from collections import Counter
from typing import Any, ClassVar

from broker_model import HELD, Item, Model
from broker_rig import Rig, headers, held_of, message, text
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    consumes,
    initialize,
    invariant,
    multiple,
    precondition,
    rule,
)  # fmt: skip
from queue_view import Seen, in_order, seen

from coterie.amqp.wire.tables import Table
from coterie.broker.consumer import Consumer, Sink
from coterie.broker.delivery import Delivery, ranges_of
from coterie.broker.publish import Publish
from coterie.broker.queue import Queue
from coterie.broker.ranges import Range

PLENTY = 10_000


def positions(entries: list[Seen]) -> list[Range]:
    return ranges_of([entry.position for entry in entries])


class Watched(Sink):
    """A client that checks each delivery against the model."""

    def __init__(self, machine: QueueMachine, name: str, prefetch: int, no_ack: bool) -> None:
        self.machine = machine
        self.name = name
        self.prefetch = prefetch
        self.no_ack = no_ack
        self.held: dict[int, Seen] = {}
        self.gone = False

    def room(self, consumer: Consumer) -> int:
        return self.prefetch - len(self.held) if self.prefetch else PLENTY

    def deliver(self, consumer: Consumer, delivery: Delivery) -> None:
        assert not self.gone
        assert consumer.active
        assert 0 < delivery.count <= self.room(consumer)
        for position, given, redelivered in delivery.rows():
            entry = seen(consumer.queue)[position]
            assert (entry.message, entry.redelivered) == (given, redelivered)
            self.machine.delivered(entry, self.name, self.no_ack)
            if not self.no_ack:
                self.held[entry.position] = entry

    def cancelled(self, consumer: Consumer) -> None:
        self.gone = True


class QueueMachine(RuleBasedStateMachine):
    """One queue, its clients, and a queue for its dead letters. The kinds of queues say what it is declared with."""

    kind: ClassVar[str] = "fifo"
    arguments: ClassVar[Table] = {}
    model: Model
    clients = Bundle("clients")

    def __init__(self) -> None:
        super().__init__()
        self.rig = self.make_rig()
        self.serial = 0
        self.people: list[Watched] = []
        self.fetched: dict[int, Seen] = {}
        """What was taken by get."""

    def make_rig(self) -> Rig:
        return Rig()

    def number(self, name: str) -> int | None:
        value = self.arguments.get(name)
        assert value is None or isinstance(value, int)
        return value

    @initialize()
    def declare(self) -> None:
        ttl = self.number("x-message-ttl")
        self.model = Model(
            kind=self.kind,
            max_length=self.number("x-max-length"),
            max_priority=self.number("x-max-priority") or 0,
            ttl=None if ttl is None else ttl / 1000,
            delivery_limit=self.number("x-delivery-limit"),
            dead="x-dead-letter-exchange" in self.arguments,
            refuses=self.arguments.get("x-overflow") == "reject-publish",
        )
        self.rig.exchange("dlx", "fanout")
        self.grave = self.rig.declare("dead")
        self.rig.bind("dlx", "dead")
        self.queue: Queue = self.rig.declare("q", self.arguments)
        assert self.queue.kind == self.kind

    def now(self) -> float:
        return self.rig.runtime.now()

    # What the queue does.

    def delivered(self, entry: Seen, holder: str, no_ack: bool) -> None:
        item = self.model.deliver(entry.position, holder, self.now())
        assert (text(entry), entry.redelivered) == (item.body, item.redelivered)
        if entry.state != "gone":
            assert entry.deliveries == item.deliveries
        if no_ack:
            self.model.accept(item)

    def item(self, position: int) -> Item:
        return next((item for item in self.model.items if item.position == position), Item(0, "", state="gone"))

    def active(self) -> list[tuple[Watched, Consumer]]:
        return [(c.sink, c) for c in self.queue.consumers if c.active and isinstance(c.sink, Watched)]

    def has_room(self) -> bool:
        return any(client.room(consumer) > 0 for client, consumer in self.active())

    # What clients do.

    def make(self, count: int, priority: int, key: str | None, ttl: int | None) -> tuple[list[Publish], list[Item]]:
        """Times are odd tens of milliseconds, and the clock moves by even ones: nothing expires on the stroke."""
        publishes, items = [], []
        for _ in range(count):
            self.serial += 1
            body = f"m{self.serial}"
            properties: dict[str, Any] = {"priority": priority}
            if ttl is not None:
                properties["expiration"] = str(ttl * 20 + 10)
            if key is not None:
                properties["headers"] = {"k": key}
            publishes.append(Publish(message(body, **properties)))
            expires = None if ttl is None else self.now() + (ttl * 20 + 10) / 1000
            items.append(Item(0, body, priority, key, expires))
        return publishes, items

    def arrive(self, items: list[Item]) -> None:
        for item in items:
            self.model.arrive(item, self.now())

    @rule(
        count=st.integers(1, 12), priority=st.integers(0, 5), key=st.sampled_from([None, "a", "b"]),
        ttl=st.sampled_from([None, None, 0, 2, 9]),
    )  # fmt: skip
    def publish(self, count: int, priority: int, key: str | None, ttl: int | None) -> None:
        publishes, items = self.make(count, priority, key, ttl)
        if self.model.refuses:
            self.publish_one_by_one(publishes, items)
        else:
            self.arrive(items)
            done: list[bool] = []
            self.rig.vhost.publish(publishes, lambda: done.append(True))
            assert done == [True]
            self.model.push_out()
            assert not any(publish.refused or publish.unroutable for publish in publishes)
        self.rig.run()

    def publish_one_by_one(self, publishes: list[Publish], items: list[Item]) -> None:
        """A queue refuses exactly when it is full and nobody has room."""
        for publish, item in zip(publishes, items, strict=True):
            refused = self.queue.ready >= (self.model.max_length or 0) and not self.has_room()
            if not refused:
                self.arrive([item])
            self.rig.vhost.publish([publish], lambda: None)
            assert publish.refused == refused

    @rule(target=clients, prefetch=st.sampled_from([0, 1, 3, 7]), no_ack=st.booleans(), priority=st.integers(0, 2))
    def consume(self, prefetch: int, no_ack: bool, priority: int) -> object:
        if len(self.queue.consumers) >= 4:
            return multiple()
        client = Watched(self, f"client {len(self.people)}", prefetch, no_ack)
        self.people.append(client)
        consumer = Consumer(client.name, self.queue, client, no_ack, priority=priority)
        self.rig.ask(lambda done: self.rig.vhost.consume(consumer, done))
        return consumer

    def pick(self, consumer: Consumer, data: st.DataObject) -> tuple[list[Seen], list[Item]]:
        """Some of what a client holds, which it no longer does."""
        sink = consumer.sink
        assert isinstance(sink, Watched)
        positions = sorted(sink.held)
        chosen = data.draw(st.lists(st.sampled_from(positions), unique=True)) if positions else []
        return [sink.held.pop(position) for position in chosen], [self.item(position) for position in chosen]

    def answered(self, consumer: Consumer) -> None:
        self.queue.wake(consumer)
        self.rig.run()

    @rule(consumer=clients, data=st.data())
    def accept(self, consumer: Consumer, data: st.DataObject) -> None:
        entries, items = self.pick(consumer, data)
        for item in items:
            self.model.accept(item)
        for _ in range(2):
            self.queue.accept(consumer, positions(entries))
        self.answered(consumer)

    @rule(consumer=clients, data=st.data(), redelivered=st.booleans())
    def release(self, consumer: Consumer, data: st.DataObject, redelivered: bool) -> None:
        entries, items = self.pick(consumer, data)
        for item in items:
            self.model.release(item, redelivered)
        self.model.push_out()
        self.queue.release(consumer, positions(entries), redelivered)
        self.answered(consumer)

    @rule(consumer=clients, data=st.data())
    def reject(self, consumer: Consumer, data: st.DataObject) -> None:
        entries, items = self.pick(consumer, data)
        for item in items:
            self.model.reject(item)
        self.queue.reject(consumer, positions(entries))
        self.answered(consumer)

    @rule(consumer=consumes(clients))
    def lose_client(self, consumer: Consumer) -> None:
        sink = consumer.sink
        assert isinstance(sink, Watched)
        sink.gone = True
        self.rig.vhost.cancel(consumer)
        entries, sink.held = list(sink.held.values()), {}
        self.give_back(consumer, entries)

    @rule()
    def give_back_what_was_fetched(self) -> None:
        entries, self.fetched = list(self.fetched.values()), {}
        self.give_back(self, entries)

    def give_back(self, holder: object, entries: list[Seen]) -> None:
        for entry in entries:
            self.model.release(self.item(entry.position), True)
        self.model.push_out()
        self.queue.release(holder, positions(entries))
        self.rig.run()

    @rule(no_ack=st.booleans())
    def get(self, no_ack: bool) -> None:
        now = self.now()
        fresh = any(item.expires is None or item.expires > now for item in self.model.ready())
        entry = self.rig.get(no_ack=no_ack, holder=self)
        assert (entry is not None) == fresh
        if entry is not None:
            self.delivered(entry, "get", no_ack)
            if not no_ack:
                self.fetched[entry.position] = entry

    @rule()
    def purge(self) -> None:
        assert self.rig.purge() == self.model.purge()

    @rule(steps=st.integers(1, 20))
    def time_passes(self, steps: int) -> None:
        self.rig.run(steps * 0.02)

    @precondition(lambda self: not self.model.refuses)
    @rule(consumer=clients, data=st.data(), count=st.integers(0, 3))
    def transaction(self, consumer: Consumer, data: st.DataObject, count: int) -> None:
        publishes, items = self.make(count, 0, None, None)
        accepts, accepted = self.pick(consumer, data)
        rejects, rejected = self.pick(consumer, data)
        self.arrive(items)
        done: list[bool] = []
        self.rig.vhost.transaction(publishes, held_of(accepts), held_of(rejects), [], lambda _: done.append(True))
        assert done == [True]
        self.model.push_out()
        for item in accepted:
            self.model.accept(item)
        for item in rejected:
            self.model.reject(item)
        self.answered(consumer)

    # What must hold.

    @invariant()
    def everything_holds(self) -> None:
        self.model.pass_time(self.now())
        self.queue_and_model_agree()
        self.unacked_is_what_live_clients_hold()
        self.letters_arrive_once()
        if self.queue.ready:
            assert not self.has_room(), "nobody waits in vain"

    def queue_and_model_agree(self) -> None:
        queue, ready, live = self.queue, self.model.ready(), self.model.live()
        assert [(e.position, text(e)) for e in in_order(queue)] == [(i.position, i.body) for i in ready]
        assert list(seen(queue)) == [item.position for item in live]
        assert (queue.ready, queue.unacked) == (len(ready), len(self.model.held()))
        assert (queue.ready_bytes, queue.bytes) == (sum(i.size for i in ready), sum(i.size for i in live))
        assert queue.next_position == self.model.next_position

    def unacked_is_what_live_clients_hold(self) -> None:
        held = {entry.position for entry in seen(self.queue).values() if entry.holder is not None}
        theirs = [position for client in self.people for position in client.held] + list(self.fetched)
        assert len(theirs) == len(set(theirs)), "one holder at a time"
        assert held == {position for position in theirs if self.item(position).state == HELD}
        for client in self.people:
            for position, entry in client.held.items():
                if position in held:
                    assert isinstance(entry.holder, Consumer)
                    assert entry.holder.tag == client.name == self.item(position).holder

    def letters_arrive_once(self) -> None:
        found: Counter[tuple[str, str]] = Counter()
        for entry in seen(self.grave).values():
            deaths = headers(entry)["x-death"]
            assert isinstance(deaths, list)
            (death,) = deaths
            found[text(entry), str(death["reason"])] += death["count"]
        assert found == self.model.letters


class RingMachine(QueueMachine):
    kind = "ring"
    arguments: ClassVar[Table] = {"x-max-length": 4, "x-overflow": "ring", "x-dead-letter-exchange": "dlx"}


class LastValueMachine(QueueMachine):
    kind = "last-value"
    arguments: ClassVar[Table] = {"x-last-value-key": "k", "x-dead-letter-exchange": "dlx"}


class BoundedLastValueMachine(LastValueMachine):
    arguments: ClassVar[Table] = {"x-last-value-key": "k", "x-max-length": 3}


class PriorityMachine(QueueMachine):
    kind = "priority"
    arguments: ClassVar[Table] = {"x-max-priority": 3, "x-dead-letter-exchange": "dlx"}


class BoundedPriorityMachine(PriorityMachine):
    arguments: ClassVar[Table] = {"x-max-priority": 3, "x-max-length": 4, "x-message-ttl": 130}


class BoundedMachine(QueueMachine):
    arguments: ClassVar[Table] = {"x-max-length": 5, "x-dead-letter-exchange": "dlx", "x-delivery-limit": 1}


class RefusingMachine(QueueMachine):
    arguments: ClassVar[Table] = {"x-max-length": 3, "x-overflow": "reject-publish"}


class MortalMachine(QueueMachine):
    arguments: ClassVar[Table] = {"x-message-ttl": 130, "x-dead-letter-exchange": "dlx"}


class SingleActiveMachine(QueueMachine):
    arguments: ClassVar[Table] = {"x-single-active-consumer": True, "x-dead-letter-exchange": "dlx"}

    @invariant()
    def one_is_active(self) -> None:
        assert sum(consumer.active for consumer in self.queue.consumers) == min(1, len(self.queue.consumers))


TestFifo = QueueMachine.TestCase
TestRing = RingMachine.TestCase
TestLastValue = LastValueMachine.TestCase
TestBoundedLastValue = BoundedLastValueMachine.TestCase
TestPriority = PriorityMachine.TestCase
TestBoundedPriority = BoundedPriorityMachine.TestCase
TestBounded = BoundedMachine.TestCase
TestRefusing = RefusingMachine.TestCase
TestMortal = MortalMachine.TestCase
TestSingleActive = SingleActiveMachine.TestCase
for case in (
    TestFifo, TestRing, TestLastValue, TestBoundedLastValue, TestPriority, TestBoundedPriority, TestBounded,
    TestRefusing, TestMortal, TestSingleActive,
):  # fmt: skip
    case.settings = settings(max_examples=12, stateful_step_count=30, deadline=None)
