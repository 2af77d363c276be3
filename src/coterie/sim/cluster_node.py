"""A simulated host of a cluster: the real broker with store, AMQP server and group, as a node puts them together."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from coterie.amqp.server import Server
from coterie.amqp.settings import AmqpSettings
from coterie.broker.broker import Broker
from coterie.broker.log_store import LogStore, StoreSettings
from coterie.broker.settings import BrokerSettings
from coterie.broker.users import Users, UserSettings
from coterie.cluster.member import Member
from coterie.cluster.settings import ClusterSettings
from coterie.cluster.start import make_channel
from coterie.group.channel import ChannelClosed
from coterie.group.members import Address
from coterie.runtime.base import Endpoint
from coterie.sim.broker_node import PORT, USER, BrokerHost, quick_user
from coterie.sim.mistakes import Mistaken, go_astray, send_nonsense
from coterie.sim.node import Node

GROUP_PORT = 7800
ACCOUNT_EVERY = 5
"""Events of the log between two accounts of everything in the trace."""


class ClusterHost(BrokerHost):
    """A host, and the clustered broker that runs on it just now."""

    def __init__(
        self, node: Node, settings: dict[str, dict[str, object]], nodes: Sequence[Node], foreign: int = 0
    ) -> None:
        """`nodes`: of the whole cluster; it may grow until the first start. `foreign`: it belongs to another cluster,
        of that size."""
        super().__init__(node, settings)
        self._nodes = nodes
        self.seed = 0
        self.mistakes = 0.0
        """Which part of all events meets a mistake in the code."""
        self.foreign = foreign
        self.otherwise: dict[str, object] = {}
        """The broker's settings, for now, where they are not those of the others."""
        self.let_in = False
        """It came to serve although it has such settings."""
        self.member: Member | None = None

    def start(self) -> None:
        if self.node.alive:
            return
        runtime = self._boot()
        cluster = ClusterSettings(**self._of("CLUSTER") | ({"size": self.foreign} if self.foreign else {}))
        store = LogStore(runtime, StoreSettings(**self._of("STORE")))
        member = self.member = Member(runtime, cluster, Address(self.node.name, runtime.incarnation))
        broker_settings: dict[str, Any] = {"memory_high": 0} | self._of("BROKER") | self.otherwise
        broker = self.broker = Broker(runtime, BrokerSettings(**broker_settings), store, member.proposer)
        if self.mistakes:
            broker.journal = store.journal = Mistaken(store, self.seed, self.mistakes, member)
        users = Users(runtime, store, UserSettings(loopback_users=()))
        server = Server(runtime, broker, users, AmqpSettings(**self._of("AMQP")))
        peers = [f"{other.ports.ip}:{GROUP_PORT}" for other in self._nodes]
        channel = make_channel(runtime, member, f"{self.node.ports.ip}:{GROUP_PORT}", peers, cluster)
        member.attach(broker, channel)
        member.proposer._numbers = int(self._of("LIFE").get("numbers", 0))
        member.cut_off.append(server.close_all)
        if self.otherwise:
            member.changed.append(partial(self._look_whether_let_in, member))
        if member.traced is not None:
            member.traced.every = ACCOUNT_EVERY
        server.unavailable = lambda: "" if member.replica.serves else member.replica.why
        self.server = None

        async def join() -> None:
            await member.load()
            server.listen(Endpoint("", PORT))
            self.server = server
            try:
                await member.connect()
            except ChannelClosed:
                pass  # it was stopped before it had met anybody

        def started(error: Exception | None) -> None:
            if error is not None:
                raise error
            users.restore([quick_user(USER)])
            runtime.spawn(join())

        broker.start(started)

    def crash(self, silent: bool, power: bool) -> None:
        super().crash(silent, power)
        self.member = None

    def stop(self, done: Callable[[], None]) -> bool:
        server, broker, member, process = self.server, self.broker, self.member, self.node.process
        if server is None or broker is None or member is None or process is None or not self.node.alive:
            return False
        self.server = None
        incarnation = process.incarnation

        def ended() -> None:
            self.member = None
            self.node.exit(incarnation)
            done()

        async def leave() -> None:
            await member.close()
            broker.stop(ended)

        self.node.world.soon(process.owner, server.stop, lambda: process.spawn(leave()))
        return True

    def _look_whether_let_in(self, member: Member) -> None:
        self.let_in = self.let_in or member.replica.serves

    def send_nonsense(self, number: int) -> Callable[[], None] | None:
        member, process = self.member, self.node.process
        if member is None or process is None or not self.serves:
            return None
        rng = random.Random(f"{self.seed} nonsense {number}")
        self.node.world.soon(process.owner, send_nonsense, member, rng)
        return lambda: None

    def go_astray(self) -> Callable[[], None] | None:
        member, process = self.member, self.node.process
        if member is None or process is None or not self.serves:
            return None
        self.node.world.soon(process.owner, go_astray, member)
        return lambda: None

    @property
    def serves(self) -> bool:
        return (
            self.node.alive
            and self.member is not None
            and self.member.replica.serves
            and not self.member.replica.updating
        )

    @property
    def empty(self) -> bool:
        """But for what is at home on one broker, where perhaps nobody consumes it."""
        if not self.serves or self.server is None or self.broker is None:
            return False
        queues = [queue for vhost in self.broker.vhosts.values() for queue in vhost.queues.values()]
        return not any(queue.count for queue in queues if queue.home is None)
