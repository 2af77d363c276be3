"""Two sides in one simulated world, each one broker or a cluster, with a link from the first to the other.

two = Two(seed)                       # one broker on each side
two.source.declare("q")
two.source.publish("a", "b")
two.until_same()                      # the other side has what this one has
two.target.kill(0); two.target.start(0)
"""

from __future__ import annotations

from collections.abc import Callable

from amqp_rig import quick_user
from cluster_rig import PORT
from queue_view import seen

from coterie.amqp.server import Server
from coterie.amqp.wire.properties import Properties
from coterie.amqp.wire.tables import Table
from coterie.broker.broker import Broker
from coterie.broker.following.followed_queue import Promote
from coterie.broker.log_store import LogStore, StoreSettings
from coterie.broker.message import make_message
from coterie.broker.publish import Publish
from coterie.broker.queue import Queue
from coterie.broker.settings import BrokerSettings
from coterie.broker.specs import QueueSpec
from coterie.broker.users import REPLICATOR, Users, UserSettings
from coterie.broker.vhost import Vhost
from coterie.cluster.member import Member
from coterie.cluster.settings import ClusterSettings
from coterie.cluster.start import make_channel
from coterie.group.members import Address
from coterie.runtime.base import Endpoint
from coterie.sim.clock import World
from coterie.sim.network import Fabric
from coterie.sim.node import Node
from coterie.site_replication.links import Links
from coterie.site_replication.settings import ReplicationSettings

AMQP = 5672
STORE = StoreSettings(
    segment_bytes=20_000, record_bytes=4_000, reserve_bytes=0, positions_ahead=16, compact_bytes=3_000
)


class Host:
    """One life of one broker."""

    def __init__(self, side: Side, node: Node) -> None:
        self.node = node
        self.runtime = runtime = node.boot()
        self.member: Member | None = None
        if len(side.nodes) > 1:
            settings = ClusterSettings(size=len(side.nodes))
            self.member = Member(runtime, settings, Address(node.name, node.incarnation))
        self.store = LogStore(runtime, STORE)
        self.broker = Broker(
            runtime, side.two.broker, self.store, None if self.member is None else self.member.proposer
        )
        users = Users(runtime, self.store, UserSettings(loopback_users=()))
        users.restore([quick_user("guest", REPLICATOR)])
        self.server = Server(runtime, self.broker, users)
        self.links = Links(self.broker, side.replication)
        self.up = False
        if self.member is not None:
            peers = [f"{other.ports.ip}:{PORT}" for other in side.nodes]
            here = f"{node.ports.ip}:{PORT}"
            channel = make_channel(runtime, self.member, here, peers, self.member.settings)
            self.member.attach(self.broker, channel)
            self.member.cut_off.append(self.server.close_all)
        self.broker.start(self._started)

    def _started(self, error: Exception | None) -> None:
        assert error is None
        self.server.listen(Endpoint("", AMQP))
        self.up = True

        async def connect(member: Member) -> None:
            await member.load()
            await member.connect()

        if self.member is not None:
            self.runtime.spawn(connect(self.member))
        self.links.start()

    @property
    def serves(self) -> bool:
        return not self.runtime.dead and self.up and (self.member is None or self.member.replica.serves)

    @property
    def vhost(self) -> Vhost:
        return self.broker.vhosts["/"]

    def bodies(self, name: str) -> list[str] | None:
        """Of everything in a queue, by position; None: there is no such queue."""
        queue = self.vhost.queues.get(name)
        if queue is None:
            return None
        found: list[str] = []
        for entry in seen(queue).values():
            if entry.message is None:
                queue.pager.bring_all(lambda _: None)
                return ["(not in memory yet)"]
            found.append(entry.message.body.decode())
        return found


class Side:
    """A broker, or the brokers of a cluster."""

    def __init__(self, two: Two, prefix: str, size: int, replication: ReplicationSettings) -> None:
        self.two = two
        self.replication = replication
        self.nodes = [Node(two.world, two.fabric, f"{prefix}{number}") for number in range(size)]
        for node in self.nodes:
            two.fabric.names[node.name] = (node.ports.ip,)
        self.hosts: dict[int, Host] = {}

    def start(self, number: int | None = None) -> None:
        """That one, or all that do not run."""
        for each in range(len(self.nodes)) if number is None else [number]:
            if not self.nodes[each].alive:
                self.hosts[each] = Host(self, self.nodes[each])

    def kill(self, number: int, power: bool = True) -> None:
        if self.nodes[number].alive:
            self.nodes[number].crash(power=power)

    @property
    def serving(self) -> list[Host]:
        return [host for _, host in sorted(self.hosts.items()) if host.serves]

    @property
    def host(self) -> Host:
        """Any that serves."""
        self.two.until(lambda: bool(self.serving))
        return self.serving[0]

    @property
    def linking(self) -> int:
        """The one that runs the link."""

        def found() -> list[int]:
            return [n for n, host in self.hosts.items() if host.serves and host.links.links[0].state == "running"]

        self.two.until(lambda: len(found()) == 1)
        return found()[0]

    def queue(self, name: str = "q") -> Queue:
        return self.host.vhost.queues[name]

    def declare(self, name: str = "q", arguments: Table | None = None) -> None:
        """A broker that is cut off does not answer: then another one is asked."""
        answers: list[object] = []
        spec = QueueSpec(True, False, False, arguments or {})
        for tries in range(30):
            serving = self.serving
            if serving:
                host = serving[tries % len(serving)]
                host.vhost.declare_queue(name, spec, False, None, answers.append)
            end = self.two.world.time + 2.0
            while not answers and self.two.world.time < end:
                self.two.run(0.01)
            if answers:
                return
        raise AssertionError("nobody declares it")

    def publish(self, *bodies: str, key: str = "q", **properties: object) -> list[str]:
        """A list that gets those that are confirmed."""
        given = {"delivery_mode": 2, **properties}
        made = [Publish(make_message("", key, b.encode(), Properties(**given))) for b in bodies]  # type: ignore[arg-type]
        confirmed: list[str] = []

        def done() -> None:
            confirmed.extend(p.message.body.decode() for p in made if not (p.refused or p.unroutable))

        self.host.vhost.publish(made, done)
        return confirmed

    def get(self, count: int, name: str = "q", no_ack: bool = True) -> None:
        """Take some away."""
        host = self.host
        for _ in range(count):
            host.vhost.get(name, self, no_ack, lambda _: None)

    def delete(self, name: str = "q") -> None:
        self.host.vhost.delete_queue(name, False, False, lambda _: None)

    def promote(self, name: str = "q") -> None:
        answers: list[object] = []
        self.host.vhost.change(Promote(name), answers.append)
        self.two.until(lambda: bool(answers))
        assert answers == [None]


class Two:
    """Both sides."""

    def __init__(
        self, seed: int = 1, source: int = 1, target: int = 1, resident: int = 16 << 20, **settings: object
    ) -> None:
        self.broker = BrokerSettings(queue_resident_max=resident)
        self.world = World(seed, "test", lambda event: None)
        self.fabric = Fabric(self.world)
        self.target = Side(self, "t", target, ReplicationSettings())
        hosts = ",".join(f"{node.name}:{AMQP}" for node in self.target.nodes)
        given = {"queues": "^q", "retry_min": 0.1, "retry_max": 1.0, "look_interval": 0.2, "connect_timeout": 2.0}
        replication = ReplicationSettings(to=f"amqp://guest:guest@{hosts}/", **{**given, **settings})  # type: ignore[arg-type]
        self.source = Side(self, "s", source, replication)
        self.target.start()
        self.source.start()
        self.until(lambda: len(self.target.serving) == target and len(self.source.serving) == source)

    def run(self, seconds: float) -> None:
        self.world.run(self.world.time + seconds)
        assert not self.world.unhandled, self.world.unhandled

    def until(self, condition: Callable[[], bool], seconds: float = 60) -> None:
        end = self.world.time + seconds
        while not condition():
            assert self.world.time < end, "it never happened"
            self.run(0.01)

    def cut(self) -> Callable[[], None]:
        """No bytes between the sides, until the returned function is called."""
        return self._block([(one, other) for one in self.source.nodes for other in self.target.nodes])

    def part(self, side: Side, number: int) -> Callable[[], None]:
        """No bytes between one broker of a cluster and the others of it, until the returned function is called."""
        alone = side.nodes[number]
        return self._block([(alone, other) for other in side.nodes if other is not alone])

    def _block(self, pairs: list[tuple[Node, Node]]) -> Callable[[], None]:
        links = [
            self.fabric.link(*pair) for one, other in pairs for pair in ((one.name, other.name), (other.name, one.name))
        ]
        for link in links:
            link.block()

        def heal() -> None:
            for link in links:
                link.unblock()

        return heal

    def contents(self, side: Side) -> dict[str, list[str] | None]:
        host = side.host
        return {name: host.bodies(name) for name in sorted(host.vhost.queues)}

    def until_same(self, seconds: float = 60) -> dict[str, list[str] | None]:
        """Both sides have the same queues with the same messages, on every broker, and it stays so."""

        def same() -> bool:
            if not self.source.serving or not self.target.serving:
                return False
            wanted = self.contents(self.source)
            brokers = [*self.source.serving, *self.target.serving]
            return all({n: host.bodies(n) for n in sorted(host.vhost.queues)} == wanted for host in brokers)

        end = self.world.time + seconds
        while not same():
            assert self.world.time < end, (self.contents(self.source), self.contents(self.target))
            self.run(0.05)
        self.run(1.0)
        assert same(), (self.contents(self.source), self.contents(self.target))
        return self.contents(self.target)
