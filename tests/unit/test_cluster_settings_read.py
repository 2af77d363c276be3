"""Which settings a broker reads while it applies an event: each is shared by the cluster, or decides nothing there."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields

import pytest
from cluster_rig import Cluster, Host

from coterie.broker.policy import Policy
from coterie.broker.settings import BrokerSettings
from coterie.broker.specs import Binding, ExchangeSpec
from coterie.settings import describe

SHARED = {item.name for item in describe(BrokerSettings) if item.shared}
HARMLESS = {
    "route_cache_max": "a route that is forgotten is found again",
    "queue_resident_max": "a clustered queue is not paged",
    "lease_expires": "it sets a timer, and what is proposed then is an event of its own",
}
NAMES = {item.name for item in fields(BrokerSettings)}


class Watched(BrokerSettings):
    """Remembers what is read while any of the brokers applies an event."""

    __slots__ = ()
    hosts: list[Host] = []
    read: set[str] = set()

    def __getattribute__(self, name: str) -> object:
        if name in NAMES and any(host.member.turn.applying for host in Watched.hosts):
            Watched.read.add(name)
        return object.__getattribute__(self, name)


@pytest.fixture
def brokers() -> Iterator[list[Host]]:
    cluster = Cluster(3)
    cluster.broker_settings = Watched()
    Watched.hosts, Watched.read = [], set()
    Watched.hosts = cluster.started()
    yield Watched.hosts
    Watched.hosts = []


def test_every_setting_that_is_read_inside_an_event_is_shared_or_decides_nothing(brokers: list[Host]) -> None:
    a, b, c = brokers
    cluster = a.cluster
    a.broker.add_vhost("made by an event", lambda _: None)  # with what a vhost keeps of the settings from its beginning
    for kind in ("direct", "topic", "fanout", "headers"):
        b.vhost.declare_exchange(ExchangeSpec(kind + "s", kind), False, lambda _: None)
    b.vhost.set_policy(Policy("short", "^q$", {"max-length": 8, "dead-letter-exchange": "directs"}), lambda _: None)
    c.declare()
    c.declare("dead")
    c.declare("own", exclusive=True)
    for queue, arguments in (
        ("ring", {"x-overflow": "ring", "x-max-length": 2}),
        ("prior", {"x-max-priority": 3}),
        ("once", {"x-deduplicate-length": 10}),
        ("brief", {"x-message-ttl": 10, "x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead"}),
        ("full", {"x-overflow": "reject-publish", "x-max-length": 1}),
    ):
        b.declare(queue, arguments)  # type: ignore[arg-type]
        b.publish(*"abcd", key=queue, message_id=queue)
    b.vhost.bind(Binding("directs", "queue", "dead", "q"), lambda _: None)
    a.publish(*"123456789")
    cluster.settle()
    leased = a.lease("acquire", rows=3)
    cluster.settle()
    a.lease("retire", upto=2)
    cluster.settle()
    a.lease("end")
    client = c.consume(prefetch=2)
    other = b.consume(prefetch=2)
    got = a.get()
    cluster.settle()
    client.reject()
    other.release()
    cluster.settle()
    client.accept()
    c.vhost.move("dead", "prior", 1, lambda _: None)
    c.vhost.purge("q", lambda _: None)
    c.vhost.delete_queue("ring", False, False, lambda _: None)
    cluster.settle()
    assert leased
    assert got
    assert len(a.content("dead")) + len(a.content("prior")) > 4
    shared = SHARED & Watched.read
    assert Watched.read - SHARED <= {*HARMLESS}, "read inside an event: share it, or say why it decides nothing"
    assert shared == SHARED, "declared as shared, and read inside no event"
