"""Asynchronous completion: what a client is promised waits for disks, and nothing else does."""

from __future__ import annotations

from collections.abc import Callable

from cluster_rig import Cluster, Host

from coterie.broker.log_store import LogStore
from coterie.broker.queue import Queue
from coterie.broker.specs import QueueSpec
from coterie.errors import ProtocolError


class Withholding(LogStore):
    """A store that does not say what is on disk until it is told to."""

    withholds = False

    def when_synced(self, upto: int, done: Callable[[], None]) -> None:
        if self.withholds:
            self._held.append((upto, done))
        else:
            super().when_synced(upto, done)

    def withhold(self) -> None:
        self.withholds = True
        self._held: list[tuple[int, Callable[[], None]]] = []

    def tell(self) -> None:
        self.withholds = False
        for upto, done in self._held:
            super().when_synced(upto, done)


def brokers() -> tuple[Cluster, list[Host], list[Withholding]]:
    cluster = Cluster(3)
    cluster.make_store = Withholding
    hosts = cluster.started()
    hosts[0].declare()
    stores = [host.store for host in hosts if isinstance(host.store, Withholding)]
    assert len(stores) == 3
    return cluster, hosts, stores


def test_a_persistent_message_is_confirmed_when_a_majority_of_disks_has_it_and_given_to_consumers_before() -> None:
    cluster, (a, b, _), stores = brokers()
    client = b.consume(prefetch=10)
    cluster.settle()
    for store in stores[:2]:
        store.withhold()
    a.publish("safe")
    cluster.settle()
    assert client.seen == ["safe"]
    assert not a.confirmed  # one disk is no majority
    stores[1].tell()
    cluster.settle()
    assert a.confirmed == ["safe"]


def test_transient_messages_and_other_brokers_clients_wait_for_no_disk_but_each_publisher_for_its_turn() -> None:
    cluster, (a, b, _), stores = brokers()
    for store in stores:
        store.withhold()
    a.publish("persistent")
    cluster.settle()
    a.publish("behind it", delivery_mode=1)
    b.publish("transient", delivery_mode=1)
    cluster.settle()
    assert b.confirmed == ["transient"]
    assert not a.confirmed
    for store in stores:
        store.tell()
    cluster.settle()
    assert a.confirmed == ["persistent", "behind it"]


def test_an_accept_is_complete_and_makes_room_although_no_disk_says_anything() -> None:
    cluster, (a, b, c), stores = brokers()
    client = b.consume(prefetch=1)
    a.publish("one", "two")
    cluster.settle()
    for store in stores:
        store.withhold()
    client.accept("one")
    cluster.settle()
    assert client.seen == ["one", "two"]
    assert [body for _, body, _, _ in c.content()] == ["two"]


def test_a_declaration_is_answered_when_a_majority_of_disks_has_it() -> None:
    cluster, (a, b, _), stores = brokers()
    for store in stores:
        store.withhold()
    answers: list[object] = []
    a.vhost.declare_queue("late", a.queue().spec, False, None, answers.append)
    cluster.settle()
    assert "late" in b.vhost.queues
    assert not answers
    for store in stores:
        store.tell()
    cluster.settle()
    assert answers == [a.queue("late")]


def test_what_waits_for_disks_is_answered_by_those_who_are_left_when_one_dies() -> None:
    cluster, (a, b, c), stores = brokers()
    for store in stores:
        store.withhold()
    a.publish("safe")
    cluster.settle()
    c.kill()
    cluster.until(lambda: len(a.member.replica.in_step) == 2)
    cluster.settle()
    assert not a.confirmed
    stores[0].tell()
    stores[1].tell()
    cluster.settle()
    assert a.confirmed == ["safe"]
    assert b.member.replica.serves


def test_whoever_was_told_that_a_queue_is_declared_or_deleted_may_rely_on_it_at_every_broker() -> None:
    cluster = Cluster(3)
    a, b, c = cluster.started()
    knew: list[list[bool]] = []

    def told(_: object) -> None:
        knew.append(["q" in host.vhost.queues for host in (a, b, c)])

    spec = QueueSpec(True, False, False, {})
    for number in range(20):
        host = (a, b, c)[number % 3]
        host.vhost.declare_queue("q", spec, False, None, told)
        cluster.settle()
        host.vhost.delete_queue("q", False, False, told)
        cluster.settle()
    assert knew == [[True] * 3, [False] * 3] * 20


def test_a_broker_that_stands_still_delays_changes_of_the_wiring_until_it_is_back_and_nothing_else() -> None:
    cluster = Cluster(3)
    a, b, c = cluster.started()
    a.declare("known")
    answers: list[Queue | ProtocolError] = []
    cluster.nodes[2].pause()
    a.vhost.declare_queue("q", QueueSpec(True, False, False, {}), False, None, answers.append)
    a.publish("not delayed", key="known")
    cluster.settle()
    assert a.confirmed == ["not delayed"]
    assert "q" in b.vhost.queues
    assert not answers
    cluster.nodes[2].resume(c.node.incarnation)
    cluster.until(lambda: bool(answers))
    assert "q" in c.vhost.queues


def test_a_change_of_the_wiring_waits_for_no_broker_that_is_lost() -> None:
    cluster = Cluster(3)
    a, _, c = cluster.started()
    answers: list[Queue | ProtocolError] = []
    cluster.nodes[2].pause()
    a.vhost.declare_queue("q", QueueSpec(True, False, False, {}), False, None, answers.append)
    cluster.settle()
    assert not answers
    c.kill()
    cluster.until(lambda: bool(answers))
    assert isinstance(answers[0], Queue)
