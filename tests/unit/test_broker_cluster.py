"""The Cluster interface: nothing changes before the cluster says so, and it may say so late."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

from broker_rig import Client, Rig, bodies, message
from queue_view import seen

from coterie.broker.cluster import NullCluster
from coterie.broker.consumer import Consumer
from coterie.broker.delivery import Delivery
from coterie.broker.publish import Publish, Routed
from coterie.broker.queue import Queue
from coterie.broker.ranges import Range
from coterie.broker.specs import QueueSpec
from coterie.broker.transaction import Transaction
from coterie.broker.vhost import Vhost
from coterie.broker.wiring import Change
from coterie.errors import ProtocolError

R = TypeVar("R")


class LateCluster(NullCluster):
    """Keeps everything, in order, until `step` or `settle`."""

    def __init__(self) -> None:
        self.waiting: list[tuple[str, Callable[[], None]]] = []

    def step(self, count: int = 1) -> list[str]:
        """Do the next ones; what they were."""
        now, self.waiting = self.waiting[:count], self.waiting[count:]
        for _, call in now:
            call()
        return [name for name, _ in now]

    def publish(
        self, vhost: Vhost, routed: Routed, done: Callable[[], None], publishes: Sequence[Publish] = ()
    ) -> None:
        self.waiting.append(("publish", lambda: NullCluster.publish(self, vhost, routed, done)))

    def accept(self, queue: Queue, holder: object, ranges: Sequence[Range]) -> None:
        self.waiting.append(("accept", lambda: NullCluster.accept(self, queue, holder, ranges)))

    def release(self, queue: Queue, holder: object, ranges: Sequence[Range], redelivered: bool) -> None:
        self.waiting.append(("release", lambda: NullCluster.release(self, queue, holder, ranges, redelivered)))

    def reject(self, queue: Queue, holder: object, ranges: Sequence[Range]) -> None:
        self.waiting.append(("reject", lambda: NullCluster.reject(self, queue, holder, ranges)))

    def expire(self, queue: Queue) -> None:
        self.waiting.append(("expire", lambda: NullCluster.expire(self, queue)))

    def get(
        self, queue: Queue, holder: object, no_ack: bool, done: Callable[[Delivery | ProtocolError | None], None]
    ) -> None:
        self.waiting.append(("get", lambda: NullCluster.get(self, queue, holder, no_ack, done)))

    def consume(self, consumer: Consumer, done: Callable[[ProtocolError | None], None]) -> None:
        self.waiting.append(("consume", lambda: NullCluster.consume(self, consumer, done)))

    def cancel(self, consumer: Consumer) -> None:
        self.waiting.append(("cancel", lambda: NullCluster.cancel(self, consumer)))

    def wiring(self, vhost: Vhost, change: Change[R], done: Callable[[R | ProtocolError], None]) -> None:
        self.waiting.append((type(change).__name__, lambda: NullCluster.wiring(self, vhost, change, done)))

    def transaction(
        self,
        vhost: Vhost,
        transaction: Transaction,
        done: Callable[[ProtocolError | None], None],
        publishes: Sequence[Publish] = (),
    ) -> None:
        self.waiting.append(("transaction", lambda: NullCluster.transaction(self, vhost, transaction, done)))


class LateRig(Rig):
    def __init__(self) -> None:
        self.cluster = LateCluster()
        super().__init__(cluster=self.cluster)

    def settle(self) -> list[str]:
        """Let everything happen."""
        done: list[str] = []
        self.run()
        while self.cluster.waiting:
            done += self.cluster.step()
            self.run()
        return done

    def send(self, *texts: str) -> list[bool]:
        """A batch; its list is [True] once it is confirmed."""
        confirmed: list[bool] = []
        self.vhost.publish([Publish(message(text)) for text in texts], lambda: confirmed.append(True))
        return confirmed

    def subscribe(self, queue: Queue, prefetch: int) -> Client:
        client = Client(queue, prefetch)
        client.consumer = Consumer("c", queue, client)
        self.vhost.consume(client.consumer, lambda _: None)
        self.settle()
        return client

    def queue(self, **arguments: object) -> Queue:
        spec = QueueSpec(arguments={name.replace("_", "-"): value for name, value in arguments.items()})
        self.vhost.declare_queue("q", spec, False, None, lambda _: None)
        self.settle()
        return self.vhost.queues["q"]


def numbers(count: int) -> list[str]:
    return [str(number) for number in range(count)]


def test_nothing_changes_before_the_cluster_says_so() -> None:
    rig = LateRig()
    answers: list[object] = []
    rig.vhost.declare_queue("q", QueueSpec(), False, None, answers.append)
    assert (rig.vhost.queues, answers) == ({}, [])
    assert rig.cluster.step() == ["DeclareQueue"]
    queue = rig.vhost.queues["q"]
    assert answers == [queue]
    confirmed = rig.send("a", "b")
    assert (queue.ready, confirmed) == (0, [])
    rig.cluster.step()
    assert (queue.ready, confirmed) == (2, [True])
    client = rig.subscribe(queue, 10)
    assert client.bodies() == ["a", "b"]
    client.accept("a")
    client.reject("b")
    assert queue.unacked == 2
    assert rig.cluster.step(2) == ["accept", "reject"]
    assert queue.unacked == 0


def test_everything_is_delivered_once_however_late() -> None:
    rig = LateRig()
    queue = rig.queue()
    clients = [rig.subscribe(queue, prefetch) for prefetch in (1, 4, 7)]
    for start in range(0, 100, 10):
        rig.send(*(str(start + number) for number in range(10)))
    seen: list[str] = []
    while rig.settle():
        for client in clients:
            seen += client.bodies()
            if client.held:
                client.accept()
    assert sorted(seen, key=int) == numbers(100)
    assert not queue.count


def test_a_get_is_decided_when_its_turn_comes() -> None:
    rig = LateRig()
    queue = rig.queue()
    answers: list[object] = []
    rig.send("a")
    rig.vhost.get("q", "first", False, answers.append)
    rig.vhost.get("q", "second", False, answers.append)
    assert queue.unacked == 0
    rig.settle()
    got, nothing = answers
    assert got is not None
    assert nothing is None


def test_a_publish_to_a_queue_that_is_deleted_in_between_is_dropped() -> None:
    rig = LateRig()
    queue = rig.queue()
    rig.vhost.delete_queue("q", False, False, lambda _: None)
    confirmed = rig.send("a")
    rig.settle()
    assert confirmed == [True]
    assert seen(queue) == {}


def test_expiry_waits_for_the_cluster_and_nothing_expired_is_delivered_meanwhile() -> None:
    rig = LateRig()
    queue = rig.queue(x_message_ttl=100)
    rig.send("a", "b")
    rig.settle()
    rig.run(1)
    assert bodies(queue) == ["a", "b"]
    assert {name for name, _ in rig.cluster.waiting} == {"expire"}
    rig.settle()
    assert queue.counters.expired == 2
