"""Random lives of durable queues of every kind on a disk that loses power: after each restart the queue is what it was
at some moment since the last sync, and everything that was confirmed is there.

The machine is that of test_broker_machines, on the real store over the simulated disk: publishes wait for the disk, and
bodies may be on disk only. When power is lost, clients and what is not persistent are gone; what is found is compared
with the states that the queue may be in, and the model goes on from it.
"""

from __future__ import annotations

from copy import deepcopy
from typing import Any, ClassVar

from broker_model import READY, Item, Model
from broker_rig import Rig, held_of, message
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, initialize, invariant, multiple, rule
from queue_view import Seen, seen
from test_broker_machines import Watched

from coterie.amqp.wire.tables import Table
from coterie.broker.broker import Broker
from coterie.broker.consumer import Consumer
from coterie.broker.delivery import ranges_of
from coterie.broker.log_store import LogStore, StoreSettings
from coterie.broker.publish import Publish
from coterie.broker.queue import Queue
from coterie.broker.settings import BrokerSettings
from coterie.sim.clock import World
from coterie.sim.network import Fabric
from coterie.sim.node import Node

SMALL = StoreSettings(
    segment_bytes=1_500, record_bytes=300, sync_interval=0.01, reserve_bytes=0, compact_bytes=300, read_bytes=256,
    load_bytes=200, load_gap=20, copy_max=20,
)  # fmt: skip
"""Everything happens after a few messages."""

KEYS = st.sampled_from((None, "a", "b"))
State = tuple[int, Model, frozenset[int]]
"""The place in the store's log, the queue at that moment, and what was dying."""


class DurableRig(Rig):
    """A broker with a store on a host that can lose power."""

    def __init__(self, seed: int, resident: int | None) -> None:
        self.world = World(seed, "broker", None)
        self.node = Node(self.world, Fabric(self.world), "a")
        self.node.platter.tear = True
        extra = {} if resident is None else {"queue_resident_max": resident, "page_interval": 0.01, "page_batch": 3}
        self.settings = BrokerSettings(memory_high=0, **extra)  # type: ignore[arg-type]
        self.boot()

    def boot(self) -> None:
        self.runtime = self.node.boot()
        self.broker = Broker(self.runtime, self.settings, LogStore(self.runtime, SMALL))
        started: list[Exception | None] = []
        self.broker.start(started.append)
        self.run(1)
        assert started == [None]

    def ask(self, call: Any) -> Any:
        """As that of a rig, with time for the disk."""
        results: list[Any] = []
        call(results.append)
        self.run(0.5)
        (result,) = results
        return result


class DurableMachine(RuleBasedStateMachine):
    """One durable queue, its clients, a queue for its dead letters, and power cuts."""

    kind: ClassVar[str] = "fifo"
    arguments: ClassVar[Table] = {"x-dead-letter-exchange": "dlx"}
    clients = Bundle("clients")

    def number(self, name: str) -> int | None:
        value = self.arguments.get(name)
        assert value is None or isinstance(value, int)
        return value

    @initialize(seed=st.integers(0, 1000), resident=st.sampled_from((None, 0, 30)))
    def declare(self, seed: int, resident: int | None) -> None:
        self.rig = DurableRig(seed, resident)
        self.serial = 0
        self.people: list[Watched] = []
        self.confirmed: dict[str, None] = {}
        """Persistent ones."""
        self.accepted: dict[str, None] = {}
        """On disk."""
        self.model = Model(
            kind=self.kind,
            max_length=self.number("x-max-length"),
            max_priority=self.number("x-max-priority") or 0,
            dead="x-dead-letter-exchange" in self.arguments,
        )
        self.transient: dict[str, None] = {}
        self.rig.exchange("dlx", "fanout", durable=True)
        self.grave = self.rig.declare("dead", durable=True)
        self.rig.bind("dlx", "dead")
        self.queue: Queue = self.rig.declare("q", self.arguments, durable=True)
        self.states: list[State] = []
        self.note()

    def now(self) -> float:
        return self.rig.runtime.now()

    def note(self) -> None:
        """Power may be lost here: what is on disk is then this, or what comes later."""
        store = self.rig.broker.store
        self.states.append((store.written(), deepcopy(self.model), self.dying()))
        self.states = self.possible()

    def dying(self) -> frozenset[int]:
        """What must become a dead letter and is being brought from disk for that: not gone yet."""
        pager = self.queue.pager
        return frozenset(position for position, entry in seen(self.queue).items() if entry.holder is pager)

    def possible(self) -> list[State]:
        """The latest state that is on disk for sure, and all that came after it."""
        synced = self.rig.broker.store.synced()
        return [state for state in self.states if state[0] <= synced][-1:] + [
            state for state in self.states if state[0] > synced
        ]

    # What the queue does, as in test_broker_machines.

    def delivered(self, entry: Seen, holder: str, no_ack: bool) -> None:
        item = self.model.deliver(entry.position, holder, self.now())
        assert entry.message is not None
        assert entry.message.body.decode() == item.body
        assert entry.redelivered or not item.redelivered
        assert item.body not in self.accepted, "what was accepted comes back"

    def item(self, position: int) -> Item:
        return next((item for item in self.model.items if item.position == position), Item(0, "", state="gone"))

    # What clients do.

    @rule(
        count=st.integers(1, 6), priority=st.integers(0, 5), key=st.sampled_from([None, "a", "b"]), keep=st.booleans()
    )
    def publish(self, count: int, priority: int, key: str | None, keep: bool) -> None:
        """Without waiting for the disk."""
        publishes = []
        for _ in range(count):
            self.serial += 1
            body = f"m{self.serial}".ljust(12)
            properties: dict[str, Any] = {"priority": priority, "delivery_mode": 2 if keep else 1}
            if key is not None:
                properties["headers"] = {"k": key}
            publishes.append(Publish(message(body, **properties)))
            self.model.arrive(Item(0, body, priority, key), self.now())
            if not keep:
                self.transient[body] = None
        bodies = [publish.message.body.decode() for publish in publishes]
        self.rig.vhost.publish(publishes, lambda: self.confirmed.update(dict.fromkeys(bodies)) if keep else None)
        self.model.push_out()
        self.rig.run()
        self.note()

    @rule(target=clients, prefetch=st.sampled_from([1, 3, 7]))
    def consume(self, prefetch: int) -> object:
        if len(self.queue.consumers) >= 3:
            return multiple()
        client = Watched(self, f"client {len(self.people)}", prefetch, no_ack=False)  # type: ignore[arg-type]
        self.people.append(client)
        consumer = Consumer(client.name, self.queue, client)
        self.rig.ask(lambda done: self.rig.vhost.consume(consumer, done))
        self.note()
        return consumer

    def pick(self, consumer: Consumer, data: st.DataObject) -> tuple[list[Seen], list[Item]]:
        sink = consumer.sink
        assert isinstance(sink, Watched)
        positions = sorted(sink.held)
        chosen = data.draw(st.lists(st.sampled_from(positions), unique=True)) if positions else []
        return [sink.held.pop(position) for position in chosen], [self.item(position) for position in chosen]

    @rule(consumer=clients, data=st.data(), how=st.sampled_from(("accept", "release", "reject")))
    def answer(self, consumer: Consumer, data: st.DataObject, how: str) -> None:
        if consumer.queue is not self.queue:  # of the broker before the last crash
            return
        entries, items = self.pick(consumer, data)
        for item in items:
            if how == "release":
                self.model.release(item, True)
            else:
                getattr(self.model, how)(item)
        if how == "release":
            self.model.push_out()
        for held in held_of(entries):
            getattr(held.queue, how)(held.holder, held.ranges)
        self.queue.wake(consumer)
        self.note()
        if how == "accept" and items:
            bodies = [item.body for item in items]
            store = self.rig.broker.store
            store.when_synced(store.written(), lambda: self.accepted.update(dict.fromkeys(bodies)))
        self.rig.run()
        self.note()

    @rule(consumer=consumes(clients))
    def lose_client(self, consumer: Consumer) -> None:
        sink = consumer.sink
        assert isinstance(sink, Watched)
        if consumer.queue is not self.queue:
            return
        sink.gone = True
        self.rig.vhost.cancel(consumer)
        entries, sink.held = list(sink.held.values()), {}
        for entry in entries:
            self.model.release(self.item(entry.position), True)
        self.model.push_out()
        self.queue.release(consumer, ranges_of([entry.position for entry in entries]))
        self.rig.run()
        self.note()

    @rule()
    def purge(self) -> None:
        self.rig.vhost.purge("q", lambda _: None)
        self.model.purge()
        self.rig.run()
        self.note()

    @rule(seconds=st.sampled_from((0.001, 0.004, 0.05, 0.5)))
    def time_passes(self, seconds: float) -> None:
        self.rig.run(seconds)
        self.note()

    # Power is lost.

    @rule(power=st.booleans())
    def crash(self, power: bool) -> None:
        possible = self.possible()
        self.rig.node.crash(power=power)
        self.rig.boot()
        self.queue, self.grave = self.rig.vhost.queues["q"], self.rig.vhost.queues["dead"]
        assert self.queue.kind == self.kind
        for client in self.people:
            client.gone = True
        found = self.found(self.queue)
        self.check(found, possible)
        self.go_on(found, possible)

    def found(self, queue: Queue) -> dict[int, str]:
        results: list[Any] = []
        queue.read(1, queue.next_position, 10_000, results.append)
        self.rig.run(0.5)
        (result,) = results
        assert isinstance(result, list)
        return {row.position: row.message.body.decode() for row in result}

    def kept(self, state: State) -> list[dict[int, str]]:
        """What of it outlives the broker: all of that, or what then fits into the queue."""
        _, model, dying = state
        items = [item for item in model.items if item.state != "gone" or item.position in dying]
        kept = {item.position: item.body for item in items if item.body not in self.transient}
        room = len(kept) if model.max_length is None else model.max_length
        return [kept, {position: kept[position] for position in sorted(kept)[len(kept) - min(room, len(kept)) :]}]

    def check(self, found: dict[int, str], possible: list[State]) -> None:
        assert any(found in self.kept(state) for state in possible), "not what the queue was at any moment"
        assert list(found) == sorted(found)
        assert not self.accepted.keys() & set(found.values()), "what was accepted comes back"
        assert all(entry.redelivered for entry in seen(self.queue).values())
        given = max([item.position for _, model, _ in possible for item in model.items], default=0)
        assert self.queue.next_position > given, "a position would be given twice"
        letters = {body for body, _ in self.model.letters}
        graves = set(self.found(self.grave).values())
        here = set(found.values())
        for body in self.confirmed:
            item = next(item for item in self.model.items if item.body == body)
            left = item.state == "gone" and (body not in letters or not self.model.dead)
            assert body in here or body in graves or left, "a confirmed message is lost"
        assert not here & graves, "a message died, and is there all the same"

    def go_on(self, found: dict[int, str], possible: list[State]) -> None:
        model = deepcopy(next(state for state in possible if found in self.kept(state))[1])
        for item in model.items:
            if item.position not in found:
                item.state = "gone"
            else:
                item.state, item.holder, item.redelivered = READY, "", True
        model.next_position = self.queue.next_position
        self.model = model
        self.model.push_out()
        graves = set(self.found(self.grave).values())
        for body, reason in list(model.letters):
            if body not in graves:
                del model.letters[body, reason]
        self.states = []
        self.rig.run()
        self.note()

    @invariant()
    def queue_and_model_agree(self) -> None:
        if not hasattr(self, "model"):
            return
        dying = self.dying()
        present = {position: entry for position, entry in seen(self.queue).items() if position not in dying}
        assert list(present) == [item.position for item in self.model.live()]
        held = {position for position, entry in present.items() if entry.holder is not None}
        theirs = [position for client in self.people if not client.gone for position in client.held]
        assert len(theirs) == len(set(theirs))
        assert held == {position for position in theirs if self.item(position).state == "held"}

    def teardown(self) -> None:
        if hasattr(self, "model"):
            self.rig.run(1)
            self.note()
            self.crash(power=True)


class DurableRing(DurableMachine):
    kind = "ring"
    arguments: ClassVar[Table] = {"x-max-length": 4, "x-overflow": "ring", "x-dead-letter-exchange": "dlx"}


class DurableLastValue(DurableMachine):
    kind = "last-value"
    arguments: ClassVar[Table] = {"x-last-value-key": "k"}


class DurablePriority(DurableMachine):
    kind = "priority"
    arguments: ClassVar[Table] = {"x-max-priority": 3, "x-dead-letter-exchange": "dlx"}


class DurableBounded(DurableMachine):
    arguments: ClassVar[Table] = {"x-max-length": 5, "x-dead-letter-exchange": "dlx"}


TestFifo = DurableMachine.TestCase
TestRing = DurableRing.TestCase
TestLastValue = DurableLastValue.TestCase
TestPriority = DurablePriority.TestCase
TestBounded = DurableBounded.TestCase
for case in (TestFifo, TestRing, TestLastValue, TestPriority, TestBounded):
    case.settings = settings(max_examples=10, stateful_step_count=25, deadline=None)
