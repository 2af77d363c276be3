"""Consumers without acknowledgements that leave: what is confirmed once they know that they are gone is not lost.

For the log, what is allotted to such a consumer has left its queue. So a client may be told that its consumer is gone
only when the log has come to that place; otherwise a message that somebody publishes then is given to nobody.
"""

from __future__ import annotations

import pytest
from amqp_rig import Client
from cluster_rig import Cluster, Host
from test_cluster_replies import Door

from coterie.amqp.settings import AmqpSettings
from coterie.amqp.wire.methods import METHODS

WAYS = {
    "basic.cancel": (1, {"consumer_tag": "t"}),
    "channel.close": (1, {"reply_code": 200}),
    "connection.close": (0, {"reply_code": 200}),
}
WAIT = 0.01
"""Seconds between two looks: shorter than it takes to send something again."""


def consuming(host: Host) -> Client:
    """A client that consumes without acknowledgements."""
    client = Door(host).client()
    assert client.call(1, "basic.consume", queue="q", consumer_tag="t", no_ack=True).name == "basic.consume-ok"
    return client


def says(client: Client, way: str) -> None:
    """It wants to leave; no time passes."""
    channel, arguments = WAYS[way]
    client.connection.received(METHODS[way].frame(channel, **arguments))  # type: ignore[arg-type]


def consumers(host: Host) -> int:
    """That the broker knows as its own."""
    return len(host.member.proposer._consumers.numbers)


def reset(cluster: Cluster, one: Host, other: Host) -> None:
    """The connection of two brokers breaks, and what was on its way is lost."""
    for stream in cluster.fabric.streams_between(one.name, other.name):
        stream.reset()
        stream.other.reset()


@pytest.mark.parametrize("size", [2, 3])
@pytest.mark.parametrize("way", [*WAYS])
def test_what_is_confirmed_after_a_consumer_is_gone_is_not_lost_to_it(way: str, size: int) -> None:
    cluster = Cluster(size)
    a, b, *_ = cluster.started()
    a.declare()
    client = consuming(b)
    says(client, way)
    cluster.run(0)
    reset(cluster, a, b)  # what the broker said of it is lost, and said again later
    told: list[str] = []
    while f"{way}-ok" not in told:
        cluster.run(WAIT)
        told += client.names()
    cluster.run(3 * WAIT)  # they are connected again
    a.publish("kept")
    cluster.until(lambda: a.confirmed == ["kept"])
    after = b.consume(no_ack=True)
    cluster.until(lambda: after.seen == ["kept"])
    assert told == [f"{way}-ok"]


@pytest.mark.parametrize("way", [*WAYS])
def test_who_leaves_is_answered_at_once_if_it_acknowledges(way: str) -> None:
    """Nothing can be lost then: only whoever cancels waits, as another one may want to have the queue for itself."""
    cluster = Cluster(3)
    a, b, _ = cluster.started()
    a.declare()
    client = Door(b).client()
    client.call(1, "basic.consume", queue="q", consumer_tag="t")
    says(client, way)
    cluster.run(0)
    assert client.names() == ([] if way == "basic.cancel" else [f"{way}-ok"])
    cluster.settle()
    assert client.names() == (["basic.cancel-ok"] if way == "basic.cancel" else [])
    assert consumers(b) == 0


def test_after_its_cancel_is_answered_another_broker_has_room_for_an_exclusive_consumer() -> None:
    cluster = Cluster(3)
    a, b, c = cluster.started()
    a.declare()
    client = Door(b).client()
    client.call(1, "basic.consume", queue="q", consumer_tag="t", exclusive=True)
    says(client, "basic.cancel")
    cluster.until(lambda: client.names() == ["basic.cancel-ok"])
    other = c.consume(exclusive=True)
    cluster.settle()
    assert other.answers == [None]


def test_who_cancels_is_given_what_was_allotted_to_it_before_it_hears_that_it_is_gone() -> None:
    cluster = Cluster(3)
    a, b, _ = cluster.started()
    a.declare()
    client = consuming(b)
    client.wire.stuck = AmqpSettings().write_high + 1  # its socket takes no more
    client.connection.outbox.congested = True
    a.publish("one", "two")
    cluster.settle()
    says(client, "basic.cancel")
    cluster.settle()
    assert client.names() == []
    a.publish("not for it")
    client.wire.stuck = None
    client.connection.drained()
    cluster.settle()
    heard = [(each.name, each.body) for each in client.heard()]
    assert heard == [("basic.deliver", b"one"), ("basic.deliver", b"two"), ("basic.cancel-ok", b"")]
    assert consumers(b) == 0
    assert [body for _, body, *_ in b.content()] == ["not for it"]


def test_one_whose_connection_ends_while_it_is_being_cancelled_leaves_nothing_behind() -> None:
    cluster = Cluster(3)
    a, b, _ = cluster.started()
    a.declare()
    client = consuming(b)
    client.connection.outbox.congested = True
    a.publish("lost")
    cluster.settle()
    says(client, "basic.cancel")
    client.gone()
    cluster.settle()
    assert consumers(b) == 0
    a.publish("kept")
    cluster.settle()
    assert [body for _, body, *_ in b.content()] == ["kept"]


def test_one_whose_queue_is_deleted_while_it_is_being_cancelled_is_told_once() -> None:
    cluster = Cluster(3)
    a, b, _ = cluster.started()
    a.declare()
    client = consuming(b)
    client.connection.outbox.congested = True
    a.publish("lost with the queue")
    cluster.settle()
    a.vhost.delete_queue("q", False, False, lambda _: None)
    says(client, "basic.cancel")
    cluster.settle()
    assert client.names() == ["basic.cancel-ok"]
    assert consumers(b) == 0


def test_what_waits_for_the_socket_of_one_that_is_cancelled_is_its_own_even_if_the_queue_is_deleted() -> None:
    cluster = Cluster(3)
    a, b, _ = cluster.started()
    a.declare()
    client = consuming(b)
    client.connection.outbox.congested = True
    a.publish("one")
    cluster.settle()
    says(client, "basic.cancel")
    cluster.settle()
    a.vhost.delete_queue("q", False, False, lambda _: None)
    cluster.settle()
    assert client.names() == []
    client.connection.drained()
    cluster.settle()
    assert client.names() == ["basic.deliver", "basic.cancel-ok"]
    assert consumers(b) == 0


def test_without_a_majority_who_closes_its_connection_is_let_go_after_a_while() -> None:
    cluster = Cluster(3)
    a, b, _ = cluster.started()
    a.declare()
    client = consuming(b)
    cluster.part("b")
    cluster.until(lambda: not b.serves)
    says(client, "connection.close")
    cluster.run(AmqpSettings().close_timeout - 0.1)
    assert client.names() == []
    cluster.run(0.2)
    assert client.names() == ["connection.close-ok"]
    assert not client.wire.closed
    cluster.run(AmqpSettings().close_timeout)
    assert client.wire.closed


def test_a_channel_that_is_being_closed_ends_with_its_connection() -> None:
    cluster = Cluster(3)
    a, b, _ = cluster.started()
    a.declare()
    client = consuming(b)
    says(client, "channel.close")
    says(client, "connection.close")
    cluster.settle()
    assert client.names() == ["connection.close-ok"]
