"""The server on simulated sockets: crumbs of streams, connections that break, and one history for one seed."""

from __future__ import annotations

import hashlib

import pytest
from amqp_rig import CAPABLE, publish_frames, quick_user

from coterie.amqp.server import Server
from coterie.amqp.wire.codes import PROTOCOL_HEADER
from coterie.amqp.wire.methods import METHODS, decode
from coterie.amqp.wire.tables import Value
from coterie.broker.broker import Broker
from coterie.broker.users import Users, UserSettings
from coterie.runtime.base import Buffer, CloseReason, Endpoint, Stream, StreamHandler
from coterie.sim.clock import World
from coterie.sim.link import Conditions
from coterie.sim.network import Fabric
from coterie.sim.node import Node

MESSAGES = 300
WINDOW = 4


class Program(StreamHandler):
    """A client that connects again whenever its connection breaks. Its first channel is open when `ready` is called."""

    def __init__(self, scene: Scene) -> None:
        self.scene = scene
        self.stream: Stream | None = None
        self.unread = b""
        self.connect()

    def connect(self) -> None:
        self.scene.client.net.connect(Endpoint("broker", self.scene.port), self, 1.0)

    def connected(self, stream: Stream) -> None:
        self.stream, self.unread = stream, b""
        stream.write((PROTOCOL_HEADER,))

    def closed(self, reason: CloseReason) -> None:
        self.stream = None
        self.scene.client.call_later(0.05, self.connect)

    def received(self, data: Buffer) -> None:
        self.scene.transcript.update(data)
        self.unread += data
        while len(self.unread) >= 8:
            size = int.from_bytes(self.unread[3:7], "big") + 8
            if len(self.unread) < size:
                return
            kind, payload = self.unread[0], self.unread[7 : size - 1]
            self.unread = self.unread[size:]
            if kind == 1:
                call = decode(payload)
                self.heard(call.method.name, call.arguments)
            elif kind == 3:
                self.body(payload)

    def send(self, channel: int, name: str, **arguments: Value) -> None:
        if self.stream is not None:
            self.stream.write((METHODS[name].frame(channel, **arguments),))

    def heard(self, name: str, arguments: dict[str, Value]) -> None:
        if name == "connection.start":
            response = b"\0guest\0guest"
            self.send(0, "connection.start-ok", client_properties=CAPABLE, mechanism="PLAIN", response=response)
        elif name == "connection.tune":
            self.send(0, "connection.tune-ok", channel_max=10, frame_max=4096, heartbeat=60)
            self.send(0, "connection.open", virtual_host="/")
            self.send(1, "channel.open")
        elif name == "channel.open-ok":
            self.send(1, "queue.declare", queue="q")
            self.ready()

    def ready(self) -> None: ...

    def body(self, payload: bytes) -> None: ...


class Publisher(Program):
    """Publishes numbers until each is confirmed; what was not when a connection broke is published again."""

    def __init__(self, scene: Scene) -> None:
        self.unconfirmed = list(range(MESSAGES))
        self.sent: list[int] = []
        self.settled = 0
        self.confirmed: set[int] = set()
        super().__init__(scene)

    def ready(self) -> None:
        self.sent, self.settled = [], 0
        self.send(1, "confirm.select")
        self.more()

    def more(self) -> None:
        while self.stream is not None and len(self.sent) < WINDOW and len(self.sent) < len(self.unconfirmed):
            number = self.unconfirmed[len(self.sent)]
            self.sent.append(number)
            body = b"%d" % number
            self.stream.write(
                (publish_frames(1, "", "q", body.ljust(5000 if number % 50 == 0 else 10), frame_max=4096),)
            )

    def heard(self, name: str, arguments: dict[str, Value]) -> None:
        super().heard(name, arguments)
        if name == "basic.ack":
            tag = int(str(arguments["delivery_tag"]))
            count, self.settled = tag - self.settled, tag
            self.confirmed.update(self.sent[:count])
            del self.sent[:count], self.unconfirmed[:count]
            self.more()


class Consumer(Program):
    """Acknowledges what it gets, a few at a time."""

    def __init__(self, scene: Scene) -> None:
        self.got: list[int] = []
        self.tag = 0
        self.text = b""
        super().__init__(scene)

    def ready(self) -> None:
        self.send(1, "basic.qos", prefetch_count=7)
        self.send(1, "basic.consume", queue="q")

    def heard(self, name: str, arguments: dict[str, Value]) -> None:
        super().heard(name, arguments)
        if name == "basic.deliver":
            self.tag = int(str(arguments["delivery_tag"]))
            self.text = b""

    def body(self, payload: bytes) -> None:
        self.text += payload
        number = int(self.text)
        if len(self.text) == (5000 if number % 50 == 0 else 10):
            self.got.append(number)
            if self.tag % 3 == 0:
                self.send(1, "basic.ack", delivery_tag=self.tag, multiple=True)


class Scene:
    """A broker, a publisher and a consumer on three hosts; their connections break now and then."""

    def __init__(self, seed: int) -> None:
        self.world = World(seed)
        self.transcript = hashlib.sha256()
        self.fabric = Fabric(self.world, Conditions(chop=0.4))
        broker_node, client_node = (Node(self.world, self.fabric, name) for name in ("broker", "client"))
        runtime = broker_node.boot()
        self.client = client_node.boot()
        self.broker = Broker(runtime)
        self.broker.start(lambda _: None)
        users = Users(runtime, self.broker.store, UserSettings(loopback_users=()))  # the client is on another host
        users.restore([quick_user("guest")])
        self.server = Server(runtime, self.broker, users)
        self.port = self.server.listen(Endpoint("", 0)).endpoint.port
        self.publisher, self.consumer = Publisher(self), Consumer(self)
        self.chance = self.world.rng("breaks")

    def run(self, breaks: int) -> None:
        for _ in range(breaks):
            self.world.run(self.world.time + self.chance.uniform(0.02, 0.3))
            streams = self.fabric.streams_between("broker", "client")
            if streams:
                stream = self.chance.choice(streams)
                stream.reset()
                stream.other.reset()
        self.world.run(self.world.time + 30.0)


@pytest.mark.parametrize("seed", range(5))
def test_what_was_confirmed_is_consumed_whatever_breaks(seed: int) -> None:
    scene = Scene(seed)
    scene.run(breaks=10)
    assert scene.publisher.confirmed == set(range(MESSAGES))
    assert set(scene.consumer.got) == set(range(MESSAGES))
    queue = scene.broker.vhost("/").queues["q"]
    assert queue.ready == 0
    assert queue.unacked <= 2  # those that wait for a third one
    assert len(scene.server.connections) == 2
    assert scene.server.accepted > 8


def test_without_breaks_everything_comes_once_and_in_order() -> None:
    scene = Scene(7)
    scene.run(breaks=0)
    assert scene.consumer.got == list(range(MESSAGES))


def test_one_seed_is_one_history() -> None:
    transcripts = []
    for seed in (3, 3, 4):
        scene = Scene(seed)
        scene.run(breaks=5)
        transcripts.append(scene.transcript.hexdigest())
    assert transcripts[0] == transcripts[1] != transcripts[2]
