"""A cluster of brokers: the same queues everywhere, whoever does what, and whoever dies."""

from __future__ import annotations

from cluster_rig import Cluster


def test_brokers_that_meet_for_the_first_time_begin_together() -> None:
    cluster = Cluster(3)
    hosts = cluster.started()
    assert {host.core.voters for host in hosts} == {("a", "b", "c")}
    assert len({host.core.cluster for host in hosts}) == 1


def test_a_message_is_in_the_queue_of_every_broker_at_the_same_position() -> None:
    cluster = Cluster(3)
    a, b, c = cluster.started()
    a.declare()
    b.publish("one", "two")
    c.publish("three")
    cluster.settle()
    assert b.confirmed == ["one", "two"]
    assert c.confirmed == ["three"]
    assert sorted(body for _, body, _, _ in a.content()) == ["one", "three", "two"]
    cluster.check_alike()


def test_a_message_goes_to_one_consumer_wherever_it_was_published() -> None:
    cluster = Cluster(3)
    a, b, c = cluster.started()
    a.declare()
    clients = [host.consume(prefetch=10) for host in (a, b, c)]
    cluster.settle()
    a.publish(*(f"m{n}" for n in range(60)))
    for _ in range(40):
        cluster.run(0.05)
        for client in clients:
            client.accept()
    seen = [body for client in clients for body in client.seen]
    assert sorted(seen) == sorted(f"m{n}" for n in range(60))
    assert all(client.seen for client in clients)
    assert a.content() == []
    cluster.check_alike()


def test_what_a_dead_broker_held_goes_to_another_flagged() -> None:
    cluster = Cluster(3)
    a, b, c = cluster.started()
    a.declare()
    client = c.consume(prefetch=2)
    cluster.settle()
    a.publish("one", "two", "three")
    cluster.settle()
    assert sorted(client.seen) == ["one", "two"]
    other = b.consume(prefetch=10)
    cluster.settle()
    assert other.seen == ["three"]
    c.kill()
    cluster.until(lambda: len(other.seen) == 3)
    assert other.seen == ["three", "one", "two"]
    assert other.flags == {"three": False, "one": True, "two": True}
    other.accept()
    cluster.settle()
    assert a.content() == b.content() == []


def test_confirmed_messages_survive_the_death_of_all_brokers() -> None:
    cluster = Cluster(3)
    a, b, c = cluster.started()
    a.declare()
    a.publish("one", "two")
    b.publish("three")
    cluster.settle()
    assert a.confirmed + b.confirmed == ["one", "two", "three"]
    client = c.consume(prefetch=1)
    cluster.settle()
    client.accept("one")
    cluster.settle()
    for host in (a, b, c):
        host.kill()
    hosts = [cluster.start(number) for number in (2, 0, 1)]
    cluster.until(lambda: all(host.serves for host in hosts))
    assert [body for _, body, _, _ in hosts[0].content()] == ["two", "three"]
    cluster.check_alike()


def test_without_a_majority_nothing_is_confirmed_and_nothing_delivered() -> None:
    cluster = Cluster(3)
    a, b, c = cluster.started()
    a.declare()
    client = a.consume(prefetch=10)
    b.kill()
    c.kill()
    cluster.until(lambda: not a.serves)
    assert a.broker.blocked
    a.publish("one")
    cluster.run(5)
    assert a.confirmed == []
    assert client.seen == []
    b, c = cluster.start(1), cluster.start(2)
    cluster.until(lambda: a.serves and b.serves and c.serves)
    cluster.settle()
    assert a.confirmed == ["one"]
    assert client.seen == ["one"]
    cluster.check_alike()


def test_a_broker_that_comes_back_is_brought_up_to_date_while_others_go_on() -> None:
    cluster = Cluster(3)
    a, b, c = cluster.started()
    a.declare()
    client = b.consume(prefetch=3)
    a.publish(*(f"m{n}" for n in range(50)))
    cluster.settle()
    c.kill()
    cluster.until(lambda: len(a.core.in_step) == 2)
    a.publish("while away")
    c = cluster.start(2)
    for n in range(20):
        b.publish(f"during {n}")
        client.accept(client.seen[-1]) if client.held else None
        cluster.run(0.02)
    cluster.until(lambda: c.serves)
    cluster.check_alike()
    late = c.consume(prefetch=100)
    cluster.settle()
    assert len(late.seen) > 40


def test_one_that_was_cut_off_does_not_confirm_and_is_updated_when_it_is_back() -> None:
    cluster = Cluster(3)
    a, _, c = cluster.started()
    a.declare()
    a.publish("before")
    cluster.settle()
    closed: list[str] = []
    c.core.cut_off.append(closed.append)
    heal = cluster.part("c")
    c.publish("lost")
    cluster.until(lambda: len(a.core.in_step) == 2 and not c.serves)
    a.publish("meanwhile")
    cluster.run(2)
    assert a.confirmed == ["before", "meanwhile"]
    assert c.confirmed == []
    heal()
    cluster.until(lambda: c.serves)
    assert closed
    assert [body for _, body, _, _ in c.content()] == ["before", "meanwhile"]
    assert c.confirmed == []
    cluster.check_alike()
