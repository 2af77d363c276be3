"""A simulated host that runs the real broker: store, queues, users and AMQP server; and what can go wrong with it."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Callable
from typing import Any, TypeVar

from coterie.amqp.server import Server
from coterie.amqp.settings import AmqpSettings
from coterie.broker.broker import Broker
from coterie.broker.log_store import LogStore, StoreSettings
from coterie.broker.settings import BrokerSettings
from coterie.broker.users import REPLICATOR, Users, UserSettings
from coterie.errors import DiskError
from coterie.runtime.base import Endpoint
from coterie.sim.node import Node
from coterie.sim.runtime import SimRuntime

PORT = 5672
USER = "sim"
START_AGAIN = 0.1
"""Seconds after which a broker that could not start is started again."""
T = TypeVar("T")


def quick_user(name: str) -> tuple[str, dict[str, object]]:
    """A user whose password is its name, kept as RabbitMQ keeps it: that is checked more quickly than our own."""
    salt = b"salt"
    password = base64.b64encode(salt + hashlib.sha256(salt + name.encode()).digest()).decode()
    return name, {
        "algorithm": "rabbit_password_hashing_sha256",
        "password": password,
        "tags": [REPLICATOR],
        "permissions": {"/": [".*", ".*", ".*"]},
        "limits": {},
    }


class BrokerHost:
    """A host, and the broker that runs on it just now."""

    def __init__(self, node: Node, settings: dict[str, dict[str, object]]) -> None:
        self.node = node
        self._settings = settings
        self.broker: Broker | None = None
        self.server: Server | None = None
        """None: it is being started, or does not run."""

    def _boot(self) -> SimRuntime:
        runtime = self.node.boot()
        if runtime.incarnation > 1:
            runtime.trace.emit("restart")
        return runtime

    def start(self) -> None:
        if self.node.alive:
            return
        runtime = self._boot()
        store = LogStore(runtime, StoreSettings(**self._of("STORE")))
        broker_settings: dict[str, Any] = {"memory_high": 0, "page_tries": 3} | self._of("BROKER")
        broker = self.broker = Broker(runtime, BrokerSettings(**broker_settings), store)
        self.server = None

        def started(error: Exception | None) -> None:
            if isinstance(error, DiskError):  # the process says so and ends, and is started again
                self.node.exit(runtime.incarnation)
                self.node.world.after(START_AGAIN, self.node.world.nature, self.start)
                return
            if error is not None:
                raise error
            users = Users(runtime, store, UserSettings(loopback_users=()))
            users.restore([quick_user(USER)])
            self.server = Server(runtime, broker, users, AmqpSettings(**self._of("AMQP")))
            self.server.listen(Endpoint("", PORT))

        broker.start(started)

    def _of(self, name: str) -> dict[str, Any]:
        return dict(self._settings.get(name, {}))

    def crash(self, silent: bool, power: bool) -> None:
        self.node.crash(silent, power)
        self.broker = self.server = None

    def stop(self, done: Callable[[], None]) -> bool:
        """In good order; False if it does not run."""
        server, broker, process = self.server, self.broker, self.node.process
        if server is None or broker is None or process is None or not self.node.alive:
            return False
        self.server = None
        incarnation = process.incarnation

        def ended() -> None:
            self.node.exit(incarnation)
            done()

        self.node.world.soon(process.owner, server.stop, lambda: broker.stop(ended))
        return True

    def go_astray(self) -> Callable[[], None] | None:
        """To make another state of the log than others, if it is in a cluster. As `send_nonsense`."""
        return None

    def send_nonsense(self, number: int) -> Callable[[], None] | None:
        """Into the order of a cluster, if it is in one. Gives what ends that, or None if it could not be done."""
        return None

    def rest(self) -> None:
        """Let the trace say what it holds, if it runs."""
        if self.server is not None and self.node.process is not None:
            self.node.world.soon(self.node.process.owner, self.server.trace_rest)

    @property
    def empty(self) -> bool:
        """Whether it runs and nothing is left in any queue."""
        if self.server is None or self.broker is None or not self.node.alive:
            return False
        return not any(queue.count for vhost in self.broker.vhosts.values() for queue in vhost.queues.values())
