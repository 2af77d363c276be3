"""Stores of an older version, with what it let in: brokers start with them, and what is in them does no harm.

Each has a queue `key` whose letters were to have a routing key of 256 bytes, and a queue `count` with a message whose
`x-death` tells of 2^63-1 deaths; both messages have expired. The three of the cluster are as all of its brokers left
them when they could not apply that: what is in `count` was taken out, and stored so, before that failed.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from broker_rig import Rig, Shelf
from cluster_rig import Cluster, Host
from queue_view import in_order, seen

from coterie.broker.broker import Broker
from coterie.broker.log_store import LogStore
from coterie.broker.queue import Queue
from coterie.broker.records import key_of
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
    for entry in in_order(queue):
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
        return host.serves and not seen(queues["key"]) and not seen(queues["count"])

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


NONSENSE: dict[tuple[str, str], dict[str, Any]] = {
    ("queue", key_of("/", "long")): {
        "auto_delete": False, "incarnation": 1,
        "arguments": {
            "x-max-priority": "high", "x-message-ttl": -5, "x-overflow": 7, "x-last-value-key": "k" * 300,
            "x-dead-letter-exchange": "", "x-dead-letter-routing-key": "k" * 256, "n": 2**70, "k" * 256: 1,
        },
    },
    ("queue", key_of("/", "none")): {"auto_delete": False, "incarnation": "x", "arguments": {}},
    ("queue", key_of("/", "decimal")): {"auto_delete": 0, "incarnation": 2, "arguments": {"a": {"!decimal": "x"}}},
    ("exchange", key_of("/", "kind")): {"kind": "nonsense", "auto_delete": False, "internal": False, "arguments": {}},
    ("exchange", key_of("/", "alternate")): {
        "kind": "fanout", "auto_delete": False, "internal": False, "arguments": {"alternate-exchange": 5},
    },
    ("binding", key_of("/", "amq.headers", "queue", "long", "", '{"x-match": 5}')): {},
    ("binding", key_of("/", "amq.topic", "queue", "long", "k" * 256, "{}")): {},
    ("binding", key_of("/", "amq.topic", "queue", "long", "k", "nonsense")): {},
    ("policy", key_of("/", "pattern")): {
        "pattern": "(", "definition": {"max-length": 1}, "apply_to": "all", "priority": 0,
    },
    ("policy", key_of("/", "part")): {
        "pattern": "^long", "definition": {"max-length": 7, "dead-letter-routing-key": "k" * 256, "no": 1},
        "apply_to": "all", "priority": 2**80,
    },
    ("policy", key_of("/", "good")): {
        "pattern": "^long", "definition": {"max-length": 7, "dead-letter-routing-key": "k" * 256, "no": 1},
        "apply_to": "all", "priority": 1,
    },
    ("vhost-limit", key_of("/", "max-queues")): {"value": "many"},
    ("vhost-limit", key_of("/", "nothing")): {"value": 3},
    ("replica", key_of("/", "long")): {"queue": 1, "source": 5},
}  # fmt: skip


def test_records_that_make_no_sense_are_left_out_as_far_as_they_make_none() -> None:
    store = Shelf()
    store.at_once = True
    store.records.update(NONSENSE)
    rig = Rig(store=store)
    vhost = rig.vhost
    assert [*vhost.queues] == ["long"]
    queue = vhost.queues["long"]
    assert queue.spec.arguments == {"x-message-ttl": 0, "x-dead-letter-exchange": ""}
    assert (queue.kind, queue.limits.max_length, queue.limits.dead_key) == ("fifo", 7, None)
    assert [*vhost.policies] == ["pattern", "good"]  # the first fits nothing
    assert "kind" not in vhost.exchanges
    assert vhost.exchange("alternate").alternate is None
    assert (vhost.binding_count, vhost.limits) == (0, {})
    rig.publish("a", key="long", delivery_mode=2)
    rig.run(0.1)
    assert queue.counters.expired == 1
