"""Stores of an older version, with what it let in: brokers start with them, and what is in them does no harm.

Each has a queue `key` whose letters were to have a routing key of 256 bytes, and a queue `count` with a message whose
`x-death` tells of 2^63-1 deaths; both messages have expired. The three of the cluster are as all of its brokers left
them when they could not apply that: what is in `count` was taken out, and stored so, before that failed.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from cluster_rig import Cluster, Host

from coterie.broker.broker import Broker
from coterie.broker.queue import Queue
from coterie.broker.store import LogStore
from coterie.sim.clock import World
from coterie.sim.disk import _File
from coterie.sim.network import Fabric
from coterie.sim.node import Node

FOLDER = Path(__file__).parent / "testdata" / "stores"
SEGMENT = "0000000001-0000000001.0.log"


def put(node: Node, name: str) -> None:
    data = (FOLDER / f"{name}.segment").read_bytes()
    node.platter.files[f"store/{SEGMENT}"] = _File(bytearray(data), data)


def letters(queue: Queue) -> dict[bytes, dict[str, Any]]:
    found = {}
    for entry in queue.in_order():
        assert entry.message is not None
        headers: Any = entry.message.properties().headers
        found[entry.message.body] = headers["x-death"][0]
    return found


def test_a_broker_that_stands_alone_starts_and_lets_them_expire() -> None:
    world = World(1, "test", lambda event: None)
    node = Node(world, Fabric(world), "a")
    put(node, "alone")
    runtime = node.boot()
    broker = Broker(runtime, None, LogStore(runtime))
    errors: list[Exception | None] = []
    broker.start(errors.append)
    world.run(200.0)
    assert errors == [None]
    assert not world.unhandled
    queues = broker.vhosts["/"].queues
    assert [queues[name].ready for name in ("plain", "key", "count")] == [1, 0, 0]
    assert queues["key"].limits.dead_key is None  # what it was could not be meant
    found = letters(queues["dead"])
    assert {body: death["count"] for body, death in found.items()} == {b"keyed": 1, b"counted": 2**63 - 1}


def test_a_cluster_that_was_stopped_by_them_starts_again() -> None:
    cluster = Cluster(3)
    cluster.nodes = [Node(cluster.world, cluster.fabric, f"node{number}") for number in (1, 2, 3)]
    for node in cluster.nodes:
        put(node, node.name)
    hosts = cluster.started()
    cluster.run(10.0)

    def serves_and_has(host: Host) -> bool:
        queues = host.vhost.queues
        return host.serves and not queues["key"].entries and not queues["count"].entries

    assert all(map(serves_and_has, hosts))
    for host in hosts:
        found = letters(host.queue("dead"))
        assert {body: death["count"] for body, death in found.items()} == {b"keyed": 1}
        assert [body for _, body, _, _ in host.content("plain")] == ["kept"]
    hosts[0].publish("more", key="plain")
    cluster.settle()
    assert hosts[0].confirmed == ["more"]
    cluster.check_alike("plain")
    cluster.check_alike("dead")
