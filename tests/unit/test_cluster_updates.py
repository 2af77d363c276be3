"""Updates: the index first, then bodies from the back, while the newcomer serves what is ready."""

from __future__ import annotations

import pytest
from cluster_rig import Client, Cluster, Host
from queue_view import seen

from coterie.broker.specs import Binding
from coterie.cluster.bodiless import Bodiless, is_bodiless


def brokers(size: int) -> Cluster:
    """They ask for one message at a time, so that something can happen between two of them."""
    return Cluster(size, update_batch=1)


def bodiless(host: Host, name: str = "q") -> list[int]:
    return [entry.position for entry in seen(host.queue(name)).values() if is_bodiless(entry.message)]


def newcomer(cluster: Cluster, number: int = 2) -> Host:
    """One that comes back with nothing, as soon as it knows of every message, and has none of the bodies yet."""
    host = cluster.start(number)
    while not host.opened:
        cluster.world.run(cluster.world.time + 0.0005)
    host.was_cut_off = False
    return host


def without(cluster: Cluster, *messages: str, queues: tuple[str, ...] = ("q",)) -> tuple[Host, Host]:
    """Two brokers with some messages; the third is dead."""
    a, b, c = cluster.started()
    for name in queues:
        a.declare(name)
        a.publish(*messages, key=name)
    cluster.settle()
    c.kill()
    cluster.until(lambda: len(a.member.replica.in_step) == 2)
    return a, b


NUMBERS = tuple(f"m{n}" for n in range(40))


def test_a_newcomer_serves_before_it_has_the_bodies_and_gets_them_from_the_back() -> None:
    cluster = brokers(3)
    a, _ = without(cluster, *NUMBERS)
    c = newcomer(cluster)
    assert len(bodiless(c)) == 40
    assert [host.member.replica.catching_up.keys() == {c.member.replica.us} for host in (a, c)] == [True, True]
    assert c.member.replica.us not in a.member.replica.in_step
    cluster.until(lambda: 10 < len(bodiless(c)) < 30)
    assert bodiless(c) == list(range(1, len(bodiless(c)) + 1))
    c.publish("from here")
    cluster.until(lambda: c.confirmed == ["from here"])
    assert not c.serves
    cluster.until(lambda: c.serves)
    cluster.check_alike()
    assert c.member.replica.us in a.member.replica.in_step
    assert not a.member.replica.catching_up


def test_consumers_of_a_newcomer_get_nothing_of_a_queue_that_is_not_ready_and_others_go_on() -> None:
    cluster = brokers(3)
    a, _ = without(cluster, *NUMBERS)
    a.declare("empty")
    c = newcomer(cluster)
    here, other = c.consume(prefetch=100), c.consume("empty", prefetch=10)
    got = c.get()
    elsewhere = a.consume(prefetch=5)
    a.publish("soon", key="empty")
    cluster.until(lambda: other.seen == ["soon"] and len(elsewhere.seen) == 5)
    assert bodiless(c)
    assert not here.seen
    assert not got
    cluster.until(lambda: not c.member.replica.updating)
    cluster.settle()
    assert sorted(here.seen + elsewhere.seen) == sorted(NUMBERS)
    assert got == [None]  # the consumer had asked first
    cluster.check_alike()


def test_a_small_queue_is_ready_before_a_large_one() -> None:
    cluster = brokers(3)
    a, _ = without(cluster, *NUMBERS)
    a.declare("small")
    a.publish("one", "two", key="small")
    cluster.settle()
    c = newcomer(cluster)
    client = c.consume("small", prefetch=5)
    cluster.until(lambda: client.seen == ["one", "two"])
    assert bodiless(c)


def test_what_is_accepted_meanwhile_never_comes_back() -> None:
    cluster = brokers(3)
    _, b = without(cluster, *NUMBERS)
    client = b.consume(prefetch=30)
    cluster.until(lambda: len(client.seen) == 30)
    c = newcomer(cluster)
    client.accept()
    cluster.until(lambda: c.serves)
    cluster.settle()
    assert [body for _, body, _, _ in c.content()] == [*NUMBERS[30:]]
    cluster.check_alike()


def test_one_that_dies_without_its_body_is_a_letter_with_its_body() -> None:
    cluster = brokers(3)
    a, b, c = cluster.started()
    a.declare("dead")
    a.declare("q", {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead"})
    a.publish(*NUMBERS)
    client = b.consume(prefetch=3)
    cluster.settle()
    c.kill()
    cluster.until(lambda: len(a.member.replica.in_step) == 2)
    c = newcomer(cluster)
    waits = c.consume("dead", prefetch=1)
    assert {1, 2, 3} <= {*bodiless(c)}
    client.reject("m0", "m1", "m2")
    cluster.until(lambda: len(a.content("dead")) == 3)
    assert bodiless(c, "dead")  # they are at the front: their bodies come last
    cluster.until(lambda: c.serves)
    assert sorted(body for _, body, _, _ in c.content("dead")) == ["m0", "m1", "m2"]
    cluster.check_alike("dead")
    assert waits.seen == ["m0"]
    for host in (a, b, c):
        host.kill()
    c = cluster.start(2)
    cluster.start(0)
    cluster.until(lambda: c.serves)
    assert sorted(body for _, body, _, _ in c.content("dead")) == ["m0", "m1", "m2"]


def test_a_newcomers_disk_has_everything_once_it_is_in_step() -> None:
    cluster = brokers(3)
    a, b = without(cluster, *NUMBERS)
    client = a.consume(prefetch=3)
    c = newcomer(cluster)
    cluster.until(lambda: c.serves)
    client.accept("m0")
    cluster.settle()
    for host in (a, b, c):
        host.kill()
    c = cluster.start(2)
    cluster.start(1)
    cluster.until(lambda: c.serves)
    assert [body for _, body, _, _ in c.content()] == [*NUMBERS[1:]]


@pytest.mark.parametrize("who", ["source", "giver"])
def test_whoever_gives_the_bodies_may_die_and_the_newcomer_goes_on(who: str) -> None:
    """With five brokers, so that a majority is left. The oldest one gives the index, the youngest the bodies."""
    cluster = brokers(5)
    hosts = cluster.started()
    a = hosts[0]
    a.declare()
    a.publish(*NUMBERS)
    cluster.settle()
    by_age = [next(host for host in hosts if host.member.replica.us == member) for member in a.member.replica.in_step]
    gone, stays = by_age[2], by_age[1]
    gone.kill()
    cluster.until(lambda: len(stays.member.replica.in_step) == 4)
    c = newcomer(cluster, cluster.nodes.index(gone.node))
    client = c.consume(prefetch=100)
    cluster.until(lambda: 10 < len(bodiless(c)) < 30)
    (by_age[0] if who == "source" else by_age[-1]).kill()
    cluster.until(lambda: c.serves)
    assert not c.was_cut_off
    cluster.settle()
    assert sorted(client.seen) == sorted(NUMBERS)
    cluster.check_alike()


def test_a_newcomer_that_dies_leaves_nothing_behind_and_comes_again() -> None:
    cluster = brokers(3)
    a, _ = without(cluster, *NUMBERS)
    c = newcomer(cluster)
    c.consume(prefetch=5)
    cluster.until(lambda: 10 < len(bodiless(c)) < 30)
    c.kill()
    cluster.until(lambda: not a.member.replica.catching_up)
    client = a.consume(prefetch=100)
    cluster.until(lambda: len(client.seen) == 40)
    c = cluster.start(2)
    cluster.until(lambda: c.serves)
    cluster.check_alike()


def test_a_newcomer_without_those_who_brought_it_up_to_date_has_no_say() -> None:
    """It votes for whoever has everything, but is not taken for one that has."""
    cluster = brokers(3)
    a, b = without(cluster, *NUMBERS)
    c = newcomer(cluster)
    client = c.consume(prefetch=5)
    cluster.until(lambda: 10 < len(bodiless(c)) < 30)
    for host in (a, b):
        host.kill()
    cluster.until(lambda: not c.opened)
    assert client.gone
    b = cluster.start(1)
    cluster.until(lambda: b.serves and c.serves)
    assert [body for _, body, _, _ in c.content()] == [*NUMBERS]


def test_two_newcomers_at_once() -> None:
    cluster = brokers(5)
    a, _, _, d, e = cluster.started()
    a.declare()
    a.publish(*NUMBERS)
    cluster.settle()
    for host in (d, e):
        host.kill()
    cluster.until(lambda: len(a.member.replica.in_step) == 3)
    d = cluster.start(3)
    cluster.run(0.05)
    e = cluster.start(4)
    cluster.until(lambda: d.serves and e.serves)
    clients: list[Client] = [host.consume(prefetch=20) for host in (d, e)]
    cluster.settle()
    assert sorted(clients[0].seen + clients[1].seen) == sorted(NUMBERS)
    cluster.check_alike()


def test_a_message_in_two_queues_is_one_message_after_an_update() -> None:
    cluster = brokers(3)
    a, _ = without(cluster, queues=("q", "r"))
    for name in ("q", "r"):
        a.vhost.bind(Binding("amq.fanout", "queue", name), lambda error: None)
    cluster.settle()
    a.publish("both", exchange="amq.fanout", key="")
    cluster.settle()
    c = newcomer(cluster)
    cluster.until(lambda: c.serves)
    ((first,), (second,)) = (seen(c.queue(name)).values() for name in ("q", "r"))
    assert first.message is second.message
    assert isinstance(first.message, Bodiless)
    assert first.message.body == b"both"
