"""Clustered brokers in one simulated world, with clients that are told what to do.

cluster = Cluster(3)
a, b, c = cluster.started()
a.declare("q")
a.publish("one", "two")
client = b.consume("q", prefetch=1)
cluster.settle()
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from coterie.amqp.wire.properties import Properties
from coterie.amqp.wire.tables import Table
from coterie.broker.broker import Broker
from coterie.broker.consumer import Consumer, Sink
from coterie.broker.delivery import Delivery, HeldRanges, ranges_of
from coterie.broker.leases import Lease, LeaseStep
from coterie.broker.log_store import LogStore
from coterie.broker.message import make_message
from coterie.broker.publish import Publish
from coterie.broker.queue import Queue
from coterie.broker.settings import BrokerSettings
from coterie.broker.specs import QueueSpec
from coterie.broker.storage import NullStore, Store
from coterie.broker.vhost import Got, Vhost
from coterie.cluster.member import Member
from coterie.cluster.settings import ClusterSettings
from coterie.cluster.start import make_channel
from coterie.errors import ProtocolError
from coterie.group.members import Address
from coterie.sim.clock import World
from coterie.sim.network import Fabric
from coterie.sim.node import Node
from coterie.sim.runtime import SimRuntime

NAMES = "abcde"
PORT = 7800


class Client(Sink):
    """One subscription that remembers what it was given."""

    def __init__(self, host: Host, prefetch: int, pool: int = 0) -> None:
        self.host = host
        self.prefetch = prefetch
        self.shared = pool
        self.held: dict[str, int] = {}
        """Positions, by body."""
        self.holder: object = None
        """As the log knows it."""
        self.seen: list[str] = []
        self.flags: dict[str, bool] = {}
        self.cancelled_by_broker = False
        self.gone = False
        """Its connection was closed by the broker."""
        self.answers: list[ProtocolError | None] = []
        self.failures: list[ProtocolError] = []
        self.consumer: Consumer

    def room(self, consumer: Consumer) -> int:
        return self.prefetch - len(self.held) if self.prefetch else 10_000

    def limits(self, consumer: Consumer) -> tuple[int, object, int]:
        return self.prefetch, self.host, self.shared

    def deliver(self, consumer: Consumer, delivery: Delivery) -> None:
        self.holder = delivery.holder
        for position, message, redelivered in delivery.rows():
            body = message.body.decode()
            self.seen.append(body)
            self.flags[body] = redelivered
            if not consumer.no_ack:
                assert body not in self.held
                self.held[body] = position

    def failed(self, error: ProtocolError) -> None:
        self.failures.append(error)

    def cancelled(self, consumer: Consumer) -> None:
        self.cancelled_by_broker = True

    def take(self, *bodies: str) -> HeldRanges:
        """These, or all: it does not hold them any more."""
        positions = [self.held.pop(body) for body in bodies or list(self.held)]
        return HeldRanges(self.consumer.queue, self.holder, ranges_of(positions))

    def accept(self, *bodies: str) -> None:
        queue, holder, ranges = self.take(*bodies)
        if ranges:
            queue.accept(holder, ranges)
            queue.wake(self.consumer)

    def release(self, *bodies: str, redelivered: bool = True) -> None:
        queue, holder, ranges = self.take(*bodies)
        if ranges:
            queue.release(holder, ranges, redelivered)

    def reject(self, *bodies: str) -> None:
        queue, holder, ranges = self.take(*bodies)
        queue.reject(holder, ranges)

    def cancel(self) -> None:
        self.host.vhost.cancel(self.consumer)


class Host:
    """One broker of the cluster: one life of it."""

    def __init__(self, cluster: Cluster, node: Node, durable: bool) -> None:
        self.cluster = cluster
        self.node = node
        self.runtime = runtime = node.boot()
        settings = cluster.settings
        self.member = Member(runtime, settings, Address(node.name, node.incarnation))
        self.store: Store = cluster.make_store(runtime) if durable else NullStore()
        self.broker = Broker(runtime, cluster.broker_settings, self.store, self.member.proposer)
        peers = [f"{other.ports.ip}:{PORT}" for other in cluster.nodes]
        self.channel = make_channel(runtime, self.member, f"{node.ports.ip}:{PORT}", peers, settings)
        self.member.attach(self.broker, self.channel)
        self.confirmed: list[str] = []
        self.refused: list[str] = []
        self.errors: list[ProtocolError] = []
        self.clients: list[Client] = []
        self.was_cut_off = False
        self.member.cut_off.append(self._cut_off)
        self.broker.start(self._started)

    def _started(self, error: Exception | None) -> None:
        assert error is None

        async def connect() -> None:
            await self.member.load()
            await self.member.connect()

        self.runtime.spawn(connect())

    def _cut_off(self, why: str) -> None:
        """As the AMQP server does: every client's connection is closed."""
        self.was_cut_off = True
        for client in self.clients:
            client.gone = True
            client.held.clear()

    @property
    def vhost(self) -> Vhost:
        return self.broker.vhosts["/"]

    @property
    def name(self) -> str:
        return self.node.name

    def queue(self, name: str = "q") -> Queue:
        return self.vhost.queues[name]

    def declare(
        self, name: str = "q", arguments: Table | None = None, durable: bool = True, exclusive: bool = False
    ) -> None:
        def done(answer: Queue | ProtocolError) -> None:
            if isinstance(answer, ProtocolError):
                self.errors.append(answer)

        spec = QueueSpec(durable, False, exclusive, arguments or {})
        self.vhost.declare_queue(name, spec, False, self if exclusive else None, done)
        self.cluster.settle()

    def made(self, body: str, key: str = "q", exchange: str = "", **properties: object) -> Publish:
        """To be published; persistent, unless told otherwise."""
        given = {"delivery_mode": 2, **properties}
        return Publish(make_message(exchange, key, body.encode(), Properties(**given)))  # type: ignore[arg-type]

    def publish(self, *bodies: str, key: str = "q", exchange: str = "", **properties: object) -> None:
        """`confirmed` has them once they are."""
        self.publish_made(*(self.made(body, key, exchange, **properties) for body in bodies))

    def publish_made(self, *made: Publish) -> None:
        """As one batch."""

        def done() -> None:
            for publish in made:
                (self.refused if publish.refused else self.confirmed).append(publish.message.body.decode())

        self.vhost.publish(made, done)

    def consume(
        self, name: str = "q", prefetch: int = 0, no_ack: bool = False, pool: int = 0, exclusive: bool = False
    ) -> Client:
        client = Client(self, prefetch, pool)
        client.consumer = Consumer(f"{self.name}{len(self.clients)}", self.queue(name), client, no_ack, exclusive)
        self.clients.append(client)
        self.vhost.consume(client.consumer, client.answers.append)
        return client

    def get(self, name: str = "q", no_ack: bool = False) -> list[Got | ProtocolError | None]:
        """A list that gets the answer."""
        answers: list[Got | ProtocolError | None] = []
        self.vhost.get(name, self, no_ack, answers.append)
        return answers

    def lease(self, do: str, queue: str = "q", name: str = "l", **more: Any) -> list[dict[str, Any] | ProtocolError]:
        """A list that gets the answer."""
        answers: list[dict[str, Any] | ProtocolError] = []
        step = LeaseStep(do, name, **{"user": "me", "session": "s", **more})
        self.vhost.cluster.lease(self.queue(queue), step, answers.append)
        return answers

    def leases(self, queue: str = "q") -> list[dict[str, Any]]:
        return [lease.record() for lease in self.queue(queue).leases]

    def kill(self, power: bool = True) -> None:
        self.node.crash(power=power)

    @property
    def serves(self) -> bool:
        """In step, with a majority."""
        return self.opened and not self.member.replica.updating

    @property
    def opened(self) -> bool:
        """Clients may come in: it is in step, or catches up."""
        return not self.runtime.dead and self.member.replica.serves

    def content(self, name: str = "q") -> list[tuple[int, str, str, bool]]:
        """What is in a queue: position, body, who holds it, redelivered."""
        found = []
        for entry in self.queue(name).entries.values():
            assert entry.message is not None
            holder = entry.holder
            if isinstance(holder, Lease):
                who = f"lease {holder.name}"
            else:
                who = "" if holder is None else str(holder.peer.address)  # type: ignore[attr-defined]
            found.append((entry.position, entry.message.body.decode(), who, entry.redelivered))
        return found


class Cluster:
    """All of them."""

    def __init__(self, size: int = 3, durable: bool = True, **settings: object) -> None:
        self.world = World(1, "test", lambda event: None)
        self.fabric = Fabric(self.world)
        self.nodes = [Node(self.world, self.fabric, NAMES[n]) for n in range(size)]
        self.durable = durable
        self.broker_settings: BrokerSettings | None = None
        self.make_store: Callable[[SimRuntime], Store] = LogStore
        self.settings = ClusterSettings(size=size, **settings)  # type: ignore[arg-type]
        self.hosts: list[Host] = []
        self.every: list[Host] = []
        """Also those that are dead."""

    def start(self, number: int) -> Host:
        host = Host(self, self.nodes[number], self.durable)
        self.hosts = [other for other in self.hosts if other.node is not host.node]
        self.hosts.append(host)
        self.every.append(host)
        return host

    def started(self) -> list[Host]:
        hosts = [self.start(number) for number in range(len(self.nodes))]
        self.until(lambda: all(host.serves for host in hosts))
        return hosts

    def run(self, seconds: float) -> None:
        self.world.run(self.world.time + seconds)
        assert not self.world.unhandled, self.world.unhandled

    def settle(self) -> None:
        """Long enough for whatever is under way."""
        self.run(0.3)

    def until(self, condition: Callable[[], bool], seconds: float = 30) -> None:
        end = self.world.time + seconds
        while not condition():
            assert self.world.time < end, "it never happened"
            self.run(0.01)

    def part(self, *names: str) -> Callable[[], None]:
        """Cut these off from all others, until the returned function is called."""
        links = [
            self.fabric.link(*pair)
            for one in self.nodes
            for other in self.nodes
            if (one.name in names) != (other.name in names)
            for pair in ((one.name, other.name),)
        ]
        for link in links:
            link.block()

        def heal() -> None:
            for link in links:
                link.unblock()

        return heal

    def live(self) -> list[Host]:
        return [host for host in self.hosts if host.serves]

    def check_alike(self, name: str = "q") -> None:
        """Every broker in step has the same queue."""
        self.settle()
        contents = {host.name: (host.content(name), host.leases(name)) for host in self.live()}
        first = next(iter(contents.values()))
        assert all(content == first for content in contents.values()), contents
        progress = {host.member.replica.progress for host in self.live()}
        assert len(progress) == 1, progress
