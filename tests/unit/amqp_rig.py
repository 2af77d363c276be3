"""A tiny client that speaks raw frames to a real connection of a real broker, in virtual time, over a stream in memory.

rig = Rig()
client = rig.client()                      # connected, logged in, channel 1 open
client.call(1, "queue.declare", queue="jobs")
client.publish(1, "", "jobs", b"hello")
client.heard()                             # what came since the last look, as Heard objects
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from coterie.amqp.connection import Connection
from coterie.amqp.server import Server
from coterie.amqp.settings import AmqpSettings
from coterie.amqp.wire.codes import FRAME_BODY, FRAME_HEADER, FRAME_METHOD, PROTOCOL_HEADER
from coterie.amqp.wire.methods import METHODS, decode
from coterie.amqp.wire.properties import Properties, encode
from coterie.amqp.wire.properties import decode as decode_properties
from coterie.amqp.wire.tables import Table, Value
from coterie.broker.broker import Broker
from coterie.broker.cluster import Cluster
from coterie.broker.settings import BrokerSettings
from coterie.broker.storage import NullStore, Store
from coterie.broker.users import Permissions, Users
from coterie.runtime.base import Buffer, CloseReason, Endpoint, Stream
from coterie.sim.clock import World
from coterie.sim.network import Fabric
from coterie.sim.node import Node
from coterie.trace import Event

CAPABLE: Table = {
    "capabilities": {
        "consumer_cancel_notify": True, "connection.blocked": True, "authentication_failure_close": True,
        "publisher_confirms": True, "basic.nack": True,
    }
}  # fmt: skip


LOGIN = 0.05
"""Seconds, of virtual time, in which a password is checked."""


def quick_user(name: str, *tags: str) -> tuple[str, dict[str, object]]:
    """A user whose password is its name, kept as RabbitMQ keeps it: that is checked more quickly than our own."""
    salt = b"salt"
    password = base64.b64encode(salt + hashlib.sha256(salt + name.encode()).digest()).decode()
    everything = {"/": [".*", ".*", ".*"]}
    algorithm = "rabbit_password_hashing_sha256"
    return name, {
        "algorithm": algorithm, "password": password, "tags": [*tags], "permissions": everything, "limits": {},
    }  # fmt: skip


class Wire(Stream):
    """The broker's end of a stream in memory."""

    def __init__(self, subject: tuple[tuple[str, str], ...] = ()) -> None:
        self.peer = Endpoint("127.0.0.1", 40_000)
        self.subject = subject
        self.written = bytearray()
        self.writes = 0
        self.stuck: int | None = None
        """Not None: the client takes nothing; so many bytes are buffered."""
        self.reading = True
        self.closed = self.aborted = False

    @property
    def buffered(self) -> int:
        return self.stuck or 0

    def write(self, buffers: Sequence[Buffer]) -> None:
        if self.closed:
            return
        self.writes += 1
        for buffer in buffers:
            self.written += buffer
            if self.stuck is not None:
                self.stuck += len(buffer)

    def pause_reading(self) -> None:
        self.reading = False

    def resume_reading(self) -> None:
        self.reading = True

    def close(self) -> None:
        self.closed = True

    def abort(self) -> None:
        self.closed = self.aborted = True


@dataclass
class Heard:
    """A method that the broker sent, with its content if it has one."""

    channel: int
    name: str
    arguments: dict[str, Value]
    properties: Properties | None = None
    body: bytes = b""

    def __getitem__(self, name: str) -> Value:
        return self.arguments[name]


def frame(kind: int, channel: int, payload: bytes) -> bytes:
    return bytes((kind,)) + channel.to_bytes(2, "big") + len(payload).to_bytes(4, "big") + payload + b"\xce"


def publish_frames(
    channel: int,
    exchange: str,
    key: str,
    body: bytes,
    properties: Properties | None = None,
    *,
    mandatory: bool = False,
    immediate: bool = False,
    frame_max: int = 131_072,
) -> bytes:
    """A publish as a client sends it."""
    arguments: dict[str, Value] = {"exchange": exchange, "routing_key": key}
    method = METHODS["basic.publish"].frame(channel, **arguments, mandatory=mandatory, immediate=immediate)
    header = frame(FRAME_HEADER, channel, encode(properties or Properties(), len(body)))
    step = frame_max - 8
    parts = [frame(FRAME_BODY, channel, body[at : at + step]) for at in range(0, len(body), step)]
    return b"".join((method, header, *parts))


class Client:
    """Sends frames and reads what comes back."""

    def __init__(self, rig: Rig, subject: tuple[tuple[str, str], ...] = ()) -> None:
        self.rig = rig
        self.wire = Wire(subject)
        handler = rig.server._accept(Endpoint("127.0.0.1", 5672))
        assert isinstance(handler, Connection)
        self.connection = handler
        self.connection.connected(self.wire)
        self._unread = b""

    # Out.

    def raw(self, data: bytes) -> None:
        """In pieces or not: bytes."""
        self.connection.received(data)
        self.rig.run()

    def send(self, channel: int, name: str, **arguments: Value) -> None:
        self.raw(METHODS[name].frame(channel, **arguments))

    def call(self, channel: int, name: str, **arguments: Value) -> Heard:
        """Send, and expect exactly one answer."""
        self.heard()
        self.send(channel, name, **arguments)
        (answer,) = self.heard()
        return answer

    def publish(
        self,
        channel: int,
        exchange: str,
        key: str,
        body: bytes,
        properties: Properties | None = None,
        mandatory: bool = False,
    ) -> None:
        self.raw(publish_frames(channel, exchange, key, body, properties, mandatory=mandatory))

    def gone(self, reason: CloseReason = CloseReason.EOF) -> None:
        """The client's end is closed."""
        self.connection.closed(reason)
        self.rig.run()

    # In.

    def frames(self) -> list[tuple[int, int, bytes]]:
        """What came since the last look."""
        data = self._unread + bytes(self.wire.written)
        self.wire.written.clear()
        found, at = [], 0
        while len(data) - at >= 8:
            size = int.from_bytes(data[at + 3 : at + 7], "big")
            if len(data) - at < size + 8:
                break
            assert data[at + 7 + size] == 0xCE
            found.append((data[at], int.from_bytes(data[at + 1 : at + 3], "big"), data[at + 7 : at + 7 + size]))
            at += size + 8
        self._unread = data[at:]
        return found

    def heard(self) -> list[Heard]:
        """The same, with contents put together; heartbeats are left out."""
        found: list[Heard] = []
        open_content: dict[int, Heard] = {}
        for kind, channel, payload in self.frames():
            if kind == FRAME_METHOD:
                call = decode(payload)
                found.append(Heard(channel, call.method.name, call.arguments))
                open_content[channel] = found[-1]
            elif kind == FRAME_HEADER:
                open_content[channel].properties = decode_properties(payload)
            elif kind == FRAME_BODY:
                open_content[channel].body += payload
        return found

    def names(self) -> list[str]:
        return [heard.name for heard in self.heard()]

    # The usual beginning.

    def open(
        self,
        properties: Table | None = None,
        vhost: str = "/",
        heartbeat: int = 0,
        frame_max: int = 131_072,
        channels: int = 1,
        user: str = "guest",
    ) -> Client:
        self.raw(PROTOCOL_HEADER)
        assert self.names() == ["connection.start"]
        self.send(
            0, "connection.start-ok", client_properties=CAPABLE if properties is None else properties,
            mechanism="PLAIN", response=f"\0{user}\0{user}".encode(), locale="en_US",
        )  # fmt: skip
        self.rig.run(LOGIN)
        assert self.names() == ["connection.tune"]
        self.send(0, "connection.tune-ok", channel_max=2047, frame_max=frame_max, heartbeat=heartbeat)
        assert self.call(0, "connection.open", virtual_host=vhost).name == "connection.open-ok"
        for channel in range(1, channels + 1):
            assert self.call(channel, "channel.open").name == "channel.open-ok"
        return self


class Rig:
    """A broker with an AMQP server, in virtual time."""

    def __init__(
        self,
        settings: AmqpSettings | None = None,
        store: Store | None = None,
        cluster: Cluster | None = None,
        broker_settings: BrokerSettings | None = None,
        sink: Callable[[Event], None] | None = None,
    ) -> None:
        self.world = World(1, "rig", sink)
        self.runtime = Node(self.world, Fabric(self.world), "broker").boot()
        self.broker = Broker(self.runtime, broker_settings, store or NullStore(), cluster)
        started: list[Exception | None] = []
        self.broker.start(started.append)
        self.run()
        assert started == [None]
        self.users = Users(self.runtime, self.broker.store)
        self.users.restore([quick_user("guest"), quick_user("alice")])
        self.server = Server(self.runtime, self.broker, self.users, settings)

    def permit(self, name: str, vhost: str = "/", configure: str = ".*", write: str = ".*", read: str = ".*") -> None:
        """What a user may do from now on."""
        self.users.permit(name, vhost, Permissions(configure, write, read), lambda _: None)

    def run(self, seconds: float = 0.0) -> None:
        self.world.run(self.world.time + seconds)

    def client(self, properties: Table | None = None, channels: int = 1, heartbeat: int = 0) -> Client:
        return Client(self).open(properties, channels=channels, heartbeat=heartbeat)
