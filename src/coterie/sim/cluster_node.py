"""A simulated host of a cluster: the real broker with store, AMQP server and group, as a node puts them together."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any

from coterie.amqp.server import Server
from coterie.amqp.settings import AmqpSettings
from coterie.broker.broker import Broker
from coterie.broker.settings import BrokerSettings
from coterie.broker.store import LogStore, StoreSettings
from coterie.broker.users import Users, UserSettings
from coterie.cluster.core import Core, State
from coterie.cluster.settings import ClusterSettings
from coterie.cluster.start import load_everything, make_channel
from coterie.group.channel import ChannelClosed
from coterie.runtime.base import Endpoint
from coterie.sim.broker_node import PORT, USER, BrokerHost, quick_user
from coterie.sim.mistakes import Mistaken, send_nonsense
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
        self.core: Core | None = None

    def start(self) -> None:
        if self.node.alive:
            return
        runtime = self._boot()
        cluster = ClusterSettings(**self._of("CLUSTER") | ({"size": self.foreign} if self.foreign else {}))
        store = LogStore(runtime, StoreSettings(**self._of("STORE")))
        core = self.core = Core(runtime, cluster)
        broker_settings: dict[str, Any] = {"memory_high": 0} | self._of("BROKER")
        broker = self.broker = Broker(runtime, BrokerSettings(**broker_settings), store, core.interface)
        if self.mistakes:
            broker.journal = store.journal = Mistaken(store, self.seed, self.mistakes, core)
        users = Users(runtime, store, UserSettings(loopback_users=()))
        server = Server(runtime, broker, users, AmqpSettings(**self._of("AMQP")))
        peers = [f"{other.ports.ip}:{GROUP_PORT}" for other in self._nodes]
        channel = make_channel(
            runtime, core, self.node.name, f"{self.node.ports.ip}:{GROUP_PORT}", peers, cluster,
            incarnation=runtime.incarnation,
        )  # fmt: skip
        core.attach(broker, channel)
        core.interface._numbers = int(self._of("LIFE").get("numbers", 0))
        core.cut_off.append(server.close_all)
        if core.traced is not None:
            core.traced.every = ACCOUNT_EVERY
        server.unavailable = lambda: "" if core.state is State.SERVING else core.why
        self.server = None

        async def join() -> None:
            await load_everything(core)
            server.listen(Endpoint("", PORT))
            self.server = server
            try:
                await core.connect()
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
        self.core = None

    def stop(self, done: Callable[[], None]) -> bool:
        server, broker, core, process = self.server, self.broker, self.core, self.node.process
        if server is None or broker is None or core is None or process is None or not self.node.alive:
            return False
        self.server = None
        incarnation = process.incarnation

        def ended() -> None:
            self.core = None
            self.node.exit(incarnation)
            done()

        async def leave() -> None:
            await core.close()
            broker.stop(ended)

        self.node.world.soon(process.owner, server.stop, lambda: process.spawn(leave()))
        return True

    def send_nonsense(self, number: int) -> Callable[[], None] | None:
        core, process = self.core, self.node.process
        if core is None or process is None or not self.serves:
            return None
        rng = random.Random(f"{self.seed} nonsense {number}")
        self.node.world.soon(process.owner, send_nonsense, core, rng)
        return lambda: None

    @property
    def serves(self) -> bool:
        return self.node.alive and self.core is not None and self.core.serves and not self.core.updating

    @property
    def empty(self) -> bool:
        """But for what is at home on one broker, where perhaps nobody consumes it."""
        if not self.serves or self.server is None or self.broker is None:
            return False
        queues = [queue for vhost in self.broker.vhosts.values() for queue in vhost.queues.values()]
        return not any(queue.entries for queue in queues if queue.home is None)
