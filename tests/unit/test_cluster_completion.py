"""Asynchronous completion: what a client is promised waits for disks, and nothing else does."""

from __future__ import annotations

from collections.abc import Callable

from cluster_rig import Cluster, Host

from coterie.broker.store import LogStore


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
    cluster.until(lambda: len(a.core.in_step) == 2)
    cluster.settle()
    assert not a.confirmed
    stores[0].tell()
    stores[1].tell()
    cluster.settle()
    assert a.confirmed == ["safe"]
    assert b.core.serves
