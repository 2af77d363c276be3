"""A hostile client: it says what the specification allows and nobody expects, and what it forbids.

It has a connection of its own, which the broker may close as often as it likes; it publishes into everybody's queues,
and everything else it does to queues that are its own. As an operator it sets policies, declares things as an import of
definitions does, and takes steps of leases. Nobody else may be hurt: the properties hold, and what honest clients were
promised is kept.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Final

from coterie.amqp.wire.codes import FRAME_BODY, FRAME_HEADER, FRAME_METHOD, PROTOCOL_HEADER
from coterie.amqp.wire.methods import METHODS, decode
from coterie.amqp.wire.properties import Properties, encode
from coterie.amqp.wire.tables import Table, Value
from coterie.broker.following.steps import EXCHANGE
from coterie.broker.leases import LeaseStep
from coterie.broker.policy import Policy
from coterie.broker.specs import EXCHANGE_KINDS, Binding, ExchangeSpec, QueueSpec
from coterie.broker.wiring import Bind, DeclareExchange, DeclareQueue
from coterie.errors import CoterieError
from coterie.runtime.base import Buffer, CloseReason, Endpoint, Stream, StreamHandler
from coterie.sim.broker_node import PORT, USER
from coterie.sim.hostile import BEYOND, LEVELS, PREFIX, Hostile
from coterie.sim.profile_broker import FANOUT, GRAVES
from coterie.sim.runtime import SimRuntime

if TYPE_CHECKING:
    from coterie.broker.queue import Queue
    from coterie.broker.vhost import Vhost
    from coterie.sim.broker_node import BrokerHost
    from coterie.sim.plan import Action

WORKING, CONSUMING, TRANSACTIONAL = 1, 2, 3
RECONNECT: Final = 0.02
TIMEOUT: Final = 0.5
SERVER_NAMED: Final = "amq.gen-"


class HostileClient(StreamHandler):
    """One of them. What it does is in the plan, by a seed for each deed."""

    def __init__(self, name: str, runtime: SimRuntime, hosts: Mapping[str, BrokerHost], queues: Sequence[str]) -> None:
        self.name = name
        self.runtime = runtime
        self.ending = False
        self._hosts = hosts
        self._queues = queues
        """Of others."""
        self._stream: Stream | None = None
        self._unread = b""
        self._attempt = 0
        self._open: set[int] = set()
        self._tags: list[tuple[int, int]] = []
        """Channel and delivery tag of what it was given."""
        self._sent = 0
        self._hostile = Hostile(name)
        self._deeds: dict[str, Callable[[Hostile], None]] = {
            "declare": self._declare, "exchange": self._exchange, "bind": self._bind, "publish": self._publish,
            "consume": self._consume, "get": self._get, "answer": self._answer, "disorder": self._disorder,
            "garbage": self._garbage, "transaction": self._transaction, "step": self._step,
            "cascade": self._cascade,
        }  # fmt: skip
        self._operations: dict[str, Callable[[Hostile, Vhost], None]] = {
            "policy": self._policy, "define": self._define, "lease": self._lease
        }  # fmt: skip
        self.connect()

    # The connection.

    def connect(self) -> None:
        if self.ending:
            return
        self._attempt += 1
        names = [*self._hosts]
        broker = names[self._attempt % len(names)]
        self.runtime.net.connect(Endpoint(broker, PORT), self, TIMEOUT)
        self.runtime.call_later(2 * TIMEOUT, self._too_slow, self._attempt)

    def _too_slow(self, attempt: int) -> None:
        if attempt == self._attempt and self._stream is not None and not self._open:
            self._stream.abort()

    def connected(self, stream: Stream) -> None:
        self._stream, self._unread = stream, b""
        self._open.clear()
        self._tags.clear()
        stream.write((PROTOCOL_HEADER,))

    def closed(self, reason: CloseReason) -> None:
        self._stream = None
        self._open.clear()
        self.runtime.call_later(RECONNECT * (1 + self._hostile.rng.random()), self.connect)

    def received(self, data: Buffer) -> None:
        self._unread += data
        while len(self._unread) >= 8 and self._stream is not None:
            size = int.from_bytes(self._unread[3:7], "big") + 8
            if len(self._unread) < size:
                return
            frame, self._unread = self._unread[:size], self._unread[size:]
            if frame[0] == FRAME_METHOD:
                call = decode(frame[7:-1])
                self._heard(int.from_bytes(frame[1:3], "big"), call.method.name, call.arguments)

    def _heard(self, channel: int, name: str, arguments: dict[str, Value]) -> None:
        match name:
            case "connection.start":
                self._send(0, "connection.start-ok", mechanism="PLAIN", response=f"\0{USER}\0{USER}".encode())
            case "connection.tune":
                self._send(0, "connection.tune-ok", channel_max=10, frame_max=131072, heartbeat=0)
                self._send(0, "connection.open", virtual_host="/")
            case "connection.open-ok":
                for each in (WORKING, CONSUMING, TRANSACTIONAL):
                    self._send(each, "channel.open")
            case "connection.close":
                self._send(0, "connection.close-ok")
            case "channel.open-ok":
                self._open.add(channel)
                if channel == WORKING:
                    self._send(channel, "confirm.select")
                elif channel == TRANSACTIONAL:
                    self._send(channel, "tx.select")
            case "channel.close":
                self._open.discard(channel)
                self._tags = [each for each in self._tags if each[0] != channel]
                self._send(channel, "channel.close-ok")
                self._send(channel, "channel.open")
            case "basic.deliver" | "basic.get-ok":
                self._tags.append((channel, int(str(arguments["delivery_tag"]))))

    def _send(self, channel: int, name: str, **arguments: Value) -> None:
        self._write(METHODS[name].frame(channel, **arguments))

    def _write(self, *data: bytes) -> None:
        if self._stream is not None:
            self._stream.write(data)

    # Deeds.

    def act(self, action: Action) -> None:
        hostile = self._hostile = Hostile(f"{self.runtime.world.seed}/{self.name}/{action.hold}", self._queues, GRAVES)
        if action.kind in self._operations:
            self._operate(self._operations[action.kind], hostile)
        elif len(self._open) == 3:
            self._deeds[action.kind](hostile)

    def _declare(self, hostile: Hostile) -> None:
        rng = hostile.rng
        self._send(
            WORKING, "queue.declare", queue=hostile.name() if rng.random() < 0.95 else "", durable=rng.random() < 0.7,
            auto_delete=rng.random() < 0.1, exclusive=rng.random() < 0.1, passive=rng.random() < 0.05,
            arguments=hostile.arguments(), no_wait=rng.random() < 0.3,
        )  # fmt: skip

    def _exchange(self, hostile: Hostile) -> None:
        rng = hostile.rng
        kind = rng.choice((*EXCHANGE_KINDS, "nonsense"))
        arguments: Table = {"alternate-exchange": hostile.name() if rng.random() < 0.7 else hostile.value()}
        if rng.random() < 0.1:
            self._send(WORKING, "exchange.delete", exchange=hostile.name())
        self._send(
            WORKING, "exchange.declare", exchange=hostile.name(), type=kind, durable=rng.random() < 0.5,
            internal=rng.random() < 0.1, auto_delete=rng.random() < 0.2,
            arguments=arguments if rng.random() < 0.5 else {hostile.key(): hostile.value()},
        )  # fmt: skip

    def _bind(self, hostile: Hostile) -> None:
        rng = hostile.rng
        source = rng.choice((hostile.name(), FANOUT, GRAVES, "amq.topic", "amq.headers", ""))
        arguments: Table = {hostile.key(): hostile.value(), "x-match": rng.choice(("any", "all", 7))}
        word = "unbind" if rng.random() < 0.2 else "bind"
        if rng.random() < 0.8:
            self._send(
                WORKING, f"queue.{word}", queue=hostile.name(), exchange=source, routing_key=_short(hostile.text()),
                arguments=arguments,
            )  # fmt: skip
        else:
            self._send(
                WORKING, f"exchange.{word}", destination=hostile.name(), source=source, arguments=arguments
            )  # fmt: skip

    def _publish(self, hostile: Hostile, channel: int = WORKING) -> None:
        rng = hostile.rng
        for _ in range(rng.choice((1, 3, 8))):
            keys = (*self._queues, hostile.name(), hostile.name(), _short(hostile.text()))
            exchange = rng.choice(("", "", "", "", FANOUT, "amq.topic", "amq.headers", hostile.name()))
            self._put(channel, exchange, rng.choice(keys), self._body(), hostile.header(len(self._body(0))))

    def _body(self, more: int = 1) -> bytes:
        """Each has a name of its own, of a fixed length."""
        self._sent += more
        return f"{PREFIX}:{self.name}:{self._sent:06}|".encode()

    def _put(self, channel: int, exchange: str, key: str, body: bytes, header: bytes) -> None:
        method = METHODS["basic.publish"].frame(channel, exchange=exchange, routing_key=key)
        self._write(method, _frame(FRAME_HEADER, channel, header), _frame(FRAME_BODY, channel, body))

    def _consume(self, hostile: Hostile) -> None:
        rng = hostile.rng
        self._send(CONSUMING, "basic.qos", prefetch_count=rng.choice((0, 1, 65535)), **{"global": rng.random() < 0.3})
        arguments: Table = {"x-priority": rng.choice((0, 5, -(2**63), hostile.value())), hostile.key(): hostile.value()}
        tag = rng.choice(("", "t", "\udcff", "t" * 255))
        self._send(
            CONSUMING, "basic.consume", queue=hostile.name(), consumer_tag=tag, no_ack=rng.random() < 0.2,
            exclusive=rng.random() < 0.1, arguments=arguments,
        )  # fmt: skip
        if rng.random() < 0.3:
            self._send(CONSUMING, "basic.cancel", consumer_tag=tag)

    def _get(self, hostile: Hostile) -> None:
        for _ in range(3):
            self._send(CONSUMING, "basic.get", queue=hostile.name(), no_ack=hostile.rng.random() < 0.3)

    def _answer(self, hostile: Hostile) -> None:
        """Everything twice, and what was never given."""
        rng = hostile.rng
        tags, self._tags = self._tags, []
        for _ in range(2):
            for channel, tag in tags or [(CONSUMING, rng.choice((0, 1, 2**64 - 1)))]:
                name = rng.choice(("basic.ack", "basic.nack", "basic.reject"))
                requeue: dict[str, Value] = {} if name == "basic.ack" else {"requeue": rng.random() < 0.3}
                several: dict[str, Value] = {} if name == "basic.reject" else {"multiple": rng.random() < 0.3}
                self._send(channel, name, delivery_tag=tag, **requeue, **several)

    def _disorder(self, hostile: Hostile) -> None:
        rng = hostile.rng
        frames = (
            METHODS["channel.open"].frame(WORKING), METHODS["tx.commit"].frame(WORKING),
            METHODS["confirm.select"].frame(TRANSACTIONAL), METHODS["tx.select"].frame(WORKING),
            METHODS["basic.get"].frame(0), METHODS["basic.get"].frame(9), METHODS["channel.flow"].frame(CONSUMING),
            METHODS["connection.open"].frame(0), METHODS["connection.tune-ok"].frame(0),
            METHODS["basic.publish"].frame(WORKING), _frame(FRAME_HEADER, WORKING, hostile.header(3)),
            _frame(FRAME_BODY, CONSUMING, b"abc"), METHODS["queue.declare-ok"].frame(WORKING),
            METHODS["queue.purge"].frame(WORKING, queue=hostile.name()), METHODS["channel.close-ok"].frame(WORKING),
            METHODS["basic.recover"].frame(CONSUMING, requeue=False), METHODS["channel.close"].frame(CONSUMING),
            METHODS["queue.delete"].frame(WORKING, queue=hostile.name(), if_empty=True),
            METHODS["basic.consume"].frame(CONSUMING, queue="amq.rabbitmq.reply-to"),
        )  # fmt: skip
        for _ in range(rng.choice((1, 2, 4))):
            self._write(rng.choice(frames))

    def _garbage(self, hostile: Hostile) -> None:
        rng = hostile.rng
        frame = bytearray(METHODS["queue.declare"].frame(WORKING, queue=hostile.name(), arguments=hostile.arguments()))
        for _ in range(rng.choice((1, 3, 20))):
            frame[rng.randrange(len(frame))] = rng.randrange(256)
        self._write(bytes(frame) if rng.random() < 0.7 else rng.randbytes(40))

    def _transaction(self, hostile: Hostile) -> None:
        self._publish(hostile, TRANSACTIONAL)
        self._send(TRANSACTIONAL, "basic.get", queue=hostile.name())
        self._send(TRANSACTIONAL, "basic.nack", delivery_tag=0, multiple=True, requeue=False)
        for _ in range(hostile.rng.choice((1, 2))):
            self._send(TRANSACTIONAL, hostile.rng.choice(("tx.commit", "tx.commit", "tx.rollback")))

    def _step(self, hostile: Hostile) -> None:
        """As the link of another broker, that does not mean well."""
        self._send(
            WORKING, "exchange.declare", exchange=EXCHANGE, type="x-replication", durable=True, no_wait=True
        )  # fmt: skip
        for _ in range(hostile.rng.choice((1, 4, 8))):
            body = hostile.step()
            self._put(WORKING, EXCHANGE, "", body, encode(Properties(reply_to="\udcff"), len(body)))

    def _cascade(self, hostile: Hostile) -> None:
        """Letters that die again and again, and are twice as many each time."""
        for level, name in enumerate(LEVELS):
            self._send(WORKING, "exchange.declare", exchange=name, type="fanout", no_wait=True)
            arguments: Table = {"x-max-length": 0}
            if level + 1 < len(LEVELS):
                arguments["x-dead-letter-exchange"] = LEVELS[level + 1]
            for which in "ab":
                self._send(WORKING, "queue.declare", queue=name + which, arguments=arguments, no_wait=True)
                self._send(WORKING, "queue.bind", queue=name + which, exchange=name, no_wait=True)
        self._put(WORKING, LEVELS[0], "k" * 255, self._body(), encode(Properties(), len(self._body(0))))

    # As an operator.

    def _operate(self, deed: Callable[[Hostile, Vhost], None], hostile: Hostile) -> None:
        hosts = [host for host in self._hosts.values() if host.node.alive and host.server is not None]
        host = hostile.rng.choice(hosts) if hosts else None
        if host is None or host.broker is None or host.node.process is None:
            return
        vhost = host.broker.vhosts.get("/")
        if vhost is None:  # it is being updated, from nothing
            return
        self.runtime.world.soon(host.node.process.owner, self._try, deed, hostile, vhost)

    def _try(self, deed: Callable[[Hostile, Vhost], None], hostile: Hostile, vhost: Vhost) -> None:
        try:
            deed(hostile, vhost)
        except CoterieError:
            pass  # it was refused at once

    def _policy(self, hostile: Hostile, vhost: Vhost) -> None:
        policy = Policy(**hostile.policy())
        vhost.set_policy(policy, _nothing, operator=hostile.rng.random() < 0.3)

    def _define(self, hostile: Hostile, vhost: Vhost) -> None:
        rng = hostile.rng
        name = rng.choice((hostile.name(), hostile.long_name()))
        arguments: dict[str, object] = {**hostile.arguments()}
        if rng.random() < 0.3:
            arguments[rng.choice(("n", "n" * 256))] = rng.choice(BEYOND)
        vhost.change(DeclareQueue(name, QueueSpec(True, False, False, arguments), None, chosen=True), _nothing)
        vhost.change(DeclareExchange(ExchangeSpec(name, "topic", True, False, False, arguments)), _nothing)
        vhost.change(Bind(Binding("amq.topic", "queue", name, hostile.text(), arguments)), _nothing)

    def _lease(self, hostile: Hostile, vhost: Vhost) -> None:
        queue = vhost.queues.get(hostile.name())
        if queue is not None:
            queue.cluster.lease(queue, LeaseStep(**hostile.lease()), _nothing)

    # The end.

    def end(self) -> None:
        """It goes, and so do its queues."""
        self.ending = True
        if self._stream is not None:
            self._stream.abort()
        for host in self._hosts.values():
            if (
                host.node.alive
                and host.server is not None
                and host.broker is not None
                and host.node.process is not None
            ):
                vhost = host.broker.vhosts.get("/")
                if vhost is None:
                    continue
                for name in [name for name, queue in vhost.queues.items() if is_hostile(queue)]:
                    self.runtime.world.soon(
                        host.node.process.owner, vhost.delete_queue, name, False, False, _nothing
                    )  # fmt: skip
                return


def is_hostile(queue: Queue) -> bool:
    return queue.name.startswith((PREFIX, SERVER_NAMED))


def _nothing(_: object) -> None:
    pass


def _short(text: str) -> str:
    """As much of it as a short string holds."""
    return text.encode("utf-8", "surrogateescape")[:255].decode("utf-8", "surrogateescape")


def _frame(kind: int, channel: int, payload: bytes) -> bytes:
    return struct.pack(">BHI", kind, channel, len(payload)) + payload + b"\xce"
