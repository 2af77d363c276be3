"""Numbers that a long life uses up: a broker counts its consumers, connections and `basic.get` beyond 32 bits."""

from __future__ import annotations

import pytest
from cluster_rig import Cluster
from queue_view import seen

from coterie.broker.arguments import DELIVERIES_MAX
from coterie.cluster import wire
from coterie.cluster.wire import Credit

LAST = 2**32 - 1


@pytest.mark.parametrize("oldest", [wire.VERSION, wire.WIDE - 1])
def test_consumers_come_and_go_beyond_32_bits(oldest: int) -> None:
    """Also while an old voter keeps the old events spoken: numbers begin anew then, and none is given twice."""
    cluster = Cluster(3)
    a, b, c = (cluster.start(number) for number in range(3))
    c.member.replica.versions.newest = oldest
    cluster.until(lambda: all(host.serves for host in (a, b, c)))
    assert a.member.replica.versions.spoken == oldest
    a.declare()
    first = a.consume(prefetch=1)
    cluster.settle()
    a.member.proposer._numbers = LAST - 3
    clients = []
    for _ in range(3):
        a.get()
        clients.append(a.consume(prefetch=1, pool=5))
        cluster.settle()
    a.publish(*"123456")
    cluster.settle()
    for client in (first, *clients):
        client.accept()
    cluster.settle()
    assert sorted(body for client in (first, *clients) for body in client.seen) == [*"123456"]
    for client in (first, *clients):
        client.accept()
        client.cancel()
    cluster.settle()
    for host in (a, b, c):
        assert host.serves
        assert not host.queue().consumers
        assert not host.member.applier.peer(a.member.replica.us).pools
    a.publish("7")
    cluster.settle()
    assert len(a.confirmed) == 7
    cluster.check_alike()


def test_the_length_of_a_credit_tells_how_wide_it_is() -> None:
    wide = Credit(2**40, 7, 2**41, 9, 2**33)
    assert wire.read_credit(memoryview(wire.credit(wide)), 0) == wide
    narrow = Credit(LAST, 7, LAST, 9, 3)
    assert wire.read_credit(memoryview(b"head" + wire.credit(narrow, wire.WIDE - 1)), 4) == narrow


def test_a_message_that_was_delivered_very_often_is_told_to_a_broker_that_joins() -> None:
    cluster = Cluster(3)
    a, b, c = cluster.started()
    a.declare("q", {"x-delivery-limit": DELIVERIES_MAX})
    a.publish("x")
    cluster.settle()
    c.kill()
    cluster.until(lambda: len(a.member.replica.in_step) == 2)
    for host in (a, b):
        table = host.queue().table
        table.set_deliveries([*table.state.live.ranges()], 2**32 - 1)
    c = cluster.start(2)
    cluster.until(lambda: c.serves)
    (entry,) = seen(c.queue()).values()
    assert entry.deliveries > DELIVERIES_MAX
    client = c.consume()
    cluster.settle()
    client.release()  # beyond any limit, for all of them
    cluster.settle()
    assert a.content() == b.content() == c.content() == []
