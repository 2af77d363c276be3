"""Simulated AMQP clients: real frames over simulated streams, and a memory of what the broker promised them.

A client has one connection, which it makes anew whenever it breaks, with three channels: it publishes on the first, in
confirm mode; consumes on the second; and the third is transactional. What it does is in the plan; how it answers what
it gets, chance decides. Every message names its publisher and its number, so that everybody knows it again.
"""

from __future__ import annotations

import math
import random
import re
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

from coterie.amqp.settings import AmqpSettings
from coterie.amqp.wire.codes import (
    FRAME_BODY,
    FRAME_HEADER,
    FRAME_METHOD,
    NOT_FOUND,
    PROTOCOL_HEADER,
    RESOURCE_LOCKED,
)
from coterie.amqp.wire.methods import METHODS, decode
from coterie.amqp.wire.properties import Properties, encode
from coterie.amqp.wire.properties import decode as properties
from coterie.amqp.wire.tables import Table, Value
from coterie.runtime.base import Buffer, CloseReason, Endpoint, Stream, StreamHandler
from coterie.sim.broker_antics import ANTICS, play
from coterie.sim.broker_node import PORT, USER
from coterie.sim.hostile import PREFIX
from coterie.sim.plan import Action, Burst
from coterie.sim.profile_broker import DEAD, DURABLE, FANOUT, GRAVES, HOMES, OWN, QUEUES
from coterie.sim.runtime import SimRuntime
from coterie.sim.stream import SimStream

CONFIRMING, CONSUMING, TRANSACTIONAL = 1, 2, 3
RECONNECT = 0.03
CONNECT_TIMEOUT = 0.5
GRAVES_TOO = (DEAD, "")
"""Where a message may come twice: it died in several queues, or nobody knows any more where it came from."""
ON_ITS_WAY = 2.5
"""Seconds that a delivery may take at most, while links are cut and clients are stopped."""
LET_GO = AmqpSettings().close_timeout - 0.1
"""Seconds after which a client that closes its connection may be let go although the cluster does not know it yet."""
PATIENCE = 1.0
"""Seconds after which a client gives up a broker that does not let it in."""
CAPABLE: Table = {
    "capabilities": {"consumer_cancel_notify": True, "connection.blocked": True, "basic.nack": True}
}  # fmt: skip


@dataclass(slots=True)
class Sent:
    """A message that was published."""

    name: str
    queues: tuple[str, ...]
    """That it should reach."""
    persistent: bool
    ttl: float | None
    """Seconds after which it expires; None: it does not."""
    at: float
    """When."""


@dataclass(slots=True)
class Memory:
    """What all clients together know."""

    queues: list[str]
    """That there are."""
    unbound: bool = False
    """The dead-letter exchange leads nowhere."""
    confirmed: list[tuple[Sent, int]] = field(default_factory=list)
    """What the broker has confirmed, or committed, and how often it had been started for that."""
    seen: set[str] = field(default_factory=set)
    """What was delivered to anybody."""
    accepted: dict[tuple[str, str], float] = field(default_factory=dict)
    """By a transaction that was committed: queue and name, and when that was told."""
    came_back: list[tuple[str, str]] = field(default_factory=list)
    """What was delivered long after that."""
    expired: dict[str, float] = field(default_factory=dict)
    """When each that was confirmed, and may expire, has at the latest."""
    late: list[tuple[str, str]] = field(default_factory=list)
    """What was delivered long after that: queue and name."""
    refused: set[str] = field(default_factory=set)
    """What the one queue that it was for did not take, as the broker says."""
    disturbed: dict[str, float] = field(default_factory=dict)
    """Queues from which messages were purged, or accepted without having been seen, or that were deleted, or from which
    somebody was given some without acknowledgement and may not have got them; and until when those were published."""
    starts: Callable[[], int] = lambda: 0
    own: bool = False
    """Each client has an exclusive queue."""
    homely: Counter[str] = field(default_factory=Counter)
    """What happened with queues that are at home on one broker."""
    mistaken: bool = False
    """Some events fail: a consumer may be gone later than its client is told."""

    def disturb(self, queue: str, until: float = math.inf) -> None:
        self.disturbed[queue] = max(until, self.disturbed.get(queue, 0.0))

    def is_sure(self, sent: Sent, queue: str) -> bool:
        """Whether nobody can have taken it out of that queue without having seen it."""
        return sent.at > self.disturbed.get(queue, -1.0)


@dataclass(slots=True)
class Pending:
    """What a channel has been given and has not answered."""

    tag: int
    queue: str
    name: str
    """Of the message."""


class Client(StreamHandler):
    """One of them."""

    def __init__(self, name: str, runtime: SimRuntime, memory: Memory, brokers: list[str]) -> None:
        self.name = name
        self.brokers = brokers
        """It goes from one to the next whenever its connection breaks."""
        self.runtime = runtime
        self.memory = memory
        self.delay = 0.0
        """How long it takes over what it gets."""
        self.draining = False
        """It accepts everything, and asks for no trouble."""
        self.rng = random.Random(f"{runtime.world.seed}/{name}/client")
        self.consuming: dict[str, int] = {}
        """By queue: with what prefetch."""
        self._barred: set[str] = set()
        """Queues that are at home on another broker than this connection's."""
        self._number = 0
        self._stream: SimStream | None = None
        self._unread = b""
        self._attempt = 0
        self._life = 0
        """How often the broker had started when this connection was made."""
        self.ready = False
        self._declared = False
        """The broker has answered what stands behind the declarations: a transaction, on a channel of its own, would
        not wait for them."""
        self._open: dict[int, bool] = {}
        self._unconfirmed: dict[int, Sent] = {}
        self._tag = 0
        self._confirmed = 0
        self._pending: list[Pending] = []
        self._content: tuple[int, int, str, bool] | None = None
        """Channel, delivery tag, queue and whether it wants an answer, of what is being received."""
        self._left = 0
        self._header = b""
        self._body = b""
        self._tags: dict[str, tuple[str, bool]] = {}
        """By consumer tag: queue, and whether it answers."""
        self._getting: list[tuple[int, str, bool]] = []
        self._committing: list[tuple[list[Sent], list[Pending]]] = []
        self._accepting: list[Pending] = []
        """By the transaction that is under way."""
        self._work: list[Action] = []
        """What its transactional channel has to do."""
        self._got: list[Pending] = []
        """By the transactional channel."""
        self._blind: dict[int, list[str]] = {}
        """By channel: queues of which it accepted whatever was given, also what is still on its way; until it knows
        that this has come."""
        self._consumers = 0
        self._leaving_since = 0.0
        """When it closed its connection."""
        self._hurries = False
        """It ends the stream as soon as that is answered; otherwise the broker does, after a while."""
        self.connect()

    # The connection.

    def connect(self) -> None:
        self._attempt += 1
        self.ready = False
        broker = self.brokers[(self._attempt + len(self.name) + ord(self.name[-1])) % len(self.brokers)]
        self.runtime.net.connect(Endpoint(broker, PORT), self, CONNECT_TIMEOUT)
        self.runtime.call_later(PATIENCE + CONNECT_TIMEOUT, self._too_slow, self._attempt)

    def _too_slow(self, attempt: int) -> None:
        if attempt == self._attempt and not self.ready and self._stream is not None:
            self._stream.abort()

    def connected(self, stream: Stream) -> None:
        assert isinstance(stream, SimStream)
        self._stream, self._unread, self._life = stream, b"", self.memory.starts()
        self._open, self._unconfirmed, self._tag, self._confirmed = {}, {}, 0, 0
        self._declared = False
        self._pending, self._content, self._tags = [], None, {}
        self._barred.clear()
        self.consuming.pop(OWN + self.name, None)
        self._getting, self._committing, self._work, self._got, self._accepting = [], [], [], [], []
        stream.write((PROTOCOL_HEADER,))

    def closed(self, reason: CloseReason) -> None:
        self._stream, self.ready = None, False
        for queue in (queue for queues in self._blind.values() for queue in queues):
            self.memory.disturb(queue)
        self._blind.clear()
        self._may_lose(math.inf)
        self.runtime.call_later(RECONNECT * (1 + self.rng.random()), self.connect)

    def received(self, data: Buffer) -> None:
        self._unread += data
        while len(self._unread) >= 8 and self._stream is not None:
            size = int.from_bytes(self._unread[3:7], "big") + 8
            if len(self._unread) < size:
                return
            frame, self._unread = self._unread[:size], self._unread[size:]
            kind, channel, payload = frame[0], int.from_bytes(frame[1:3], "big"), frame[7:-1]
            if kind == FRAME_METHOD:
                call = decode(payload)
                self._heard(channel, call.method.name, call.arguments)
            elif kind == FRAME_HEADER:
                self._left, self._header, self._body = int.from_bytes(payload[4:12], "big"), payload, b""
                self._complete()
            elif kind == FRAME_BODY:
                self._body += payload
                self._left -= len(payload)
                self._complete()

    def send(self, channel: int, name: str, **arguments: Value) -> None:
        if self._stream is not None:
            self._stream.write((METHODS[name].frame(channel, **arguments),))

    # What the broker says.

    def _heard(self, channel: int, name: str, arguments: dict[str, Value]) -> None:
        match name:
            case "connection.start":
                response = f"\0{USER}\0{USER}".encode()
                self.send(0, "connection.start-ok", client_properties=CAPABLE, mechanism="PLAIN", response=response)
            case "connection.tune":
                self.send(0, "connection.tune-ok", channel_max=10, frame_max=4096, heartbeat=0)
                self.send(0, "connection.open", virtual_host="/")
            case "connection.open-ok":
                for each in (CONFIRMING, CONSUMING, TRANSACTIONAL):
                    self.send(each, "channel.open")
            case "connection.close":
                self.send(0, "connection.close-ok")
            case "connection.close-ok" if self._stream is not None:
                now = self.runtime.world.time
                self._may_lose(now if now < self._leaving_since + LET_GO else math.inf)
                if self._hurries:
                    self._stream.abort()
            case "channel.open-ok":
                self._opened(channel)
            case "confirm.select-ok":
                self._declared = True
            case "channel.flow-ok":
                self._blind.pop(channel, None)
            case "channel.close":
                self._blind.pop(channel, None)
                if channel == CONSUMING:
                    self._may_lose(math.inf)
                self.send(channel, "channel.close-ok")
                self._note_refusal(int(str(arguments["reply_code"])), str(arguments["reply_text"]))
                self._reopen(channel)
            case "queue.declare-ok":
                self.consume(str(arguments["queue"]), 3)
            case "channel.close-ok":
                self._blind.pop(channel, None)
                if channel == CONSUMING:
                    self._may_lose(self.runtime.world.time)
                self._reopen(channel)
            case "basic.ack" | "basic.nack":
                self._settled(int(str(arguments["delivery_tag"])), bool(arguments["multiple"]), name == "basic.ack")
            case "basic.deliver":
                queue, answers = self._tags.get(str(arguments["consumer_tag"]), ("", True))
                self._content = channel, int(str(arguments["delivery_tag"])), queue, answers
            case "basic.get-ok":
                queue, answers = self._got_one(channel)
                self._content = channel, int(str(arguments["delivery_tag"])), queue, answers
            case "basic.get-empty":
                self._got_one(channel)
            case "basic.return":
                self._content = channel, 0, "", False
            case "basic.cancel" | "basic.cancel-ok":
                self._cancelled(str(arguments["consumer_tag"]))
            case "tx.commit-ok":
                published, accepted = self._committing.pop(0)
                self.memory.confirmed += [(sent, self._life) for sent in published]
                now = self.runtime.world.time
                self.memory.accepted.update({(pending.queue, pending.name): now for pending in accepted})

    def _note_refusal(self, code: int, text: str) -> None:
        """A queue that is not replicated is at home elsewhere, or has ended with its home; or whoever deleted a queue
        was cut off before it could declare it again."""
        found = re.search("queue '([^']*)'", text)
        queue = "" if found is None else found[1]
        if code == RESOURCE_LOCKED and queue in HOMES:
            self.memory.homely["home.refused"] += 1
            self._barred.add(queue)
        elif code == NOT_FOUND and queue in self.memory.queues:
            self.memory.homely["home.missing"] += queue in HOMES
            if self._open.get(CONFIRMING):
                self._declare([queue])

    def _got_one(self, channel: int) -> tuple[str, bool]:
        """The oldest basic.get of that channel is answered: from which queue, and whether it wants an answer in turn.
        Channels do not wait for each other."""
        at = next(at for at, asked in enumerate(self._getting) if asked[0] == channel)
        _, queue, answers = self._getting.pop(at)
        return queue, answers

    def _opened(self, channel: int) -> None:
        self._open[channel] = True
        if channel == CONFIRMING:
            self._declare(self.memory.queues)
            if self.memory.own:
                self.send(CONFIRMING, "queue.declare", queue=OWN + self.name, exclusive=True)
            self.send(channel, "confirm.select")
            self.ready = True
        elif channel == CONSUMING:
            for queue, prefetch in self.consuming.items():
                self.consume(queue, prefetch)
        else:
            self.send(channel, "tx.select")

    def _reopen(self, channel: int) -> None:
        """It is over; what it held is the broker's again."""
        self._open[channel] = False
        if channel == CONFIRMING:
            self._unconfirmed, self._tag, self._confirmed = {}, 0, 0
            self._declared = False
        elif channel == CONSUMING:
            self._pending, self._tags = [], {}
        else:
            self._committing, self._work, self._got, self._accepting = [], [], [], []
        self._getting = [each for each in self._getting if each[0] != channel]
        self.send(channel, "channel.open")

    def _declare(self, queues: list[str]) -> None:
        send = self.send
        for exchange in (FANOUT, GRAVES):
            send(CONFIRMING, "exchange.declare", exchange=exchange, type="fanout", durable=True, no_wait=True)
        send(CONFIRMING, "queue.declare", queue=DEAD, durable=True, no_wait=True)
        if not self.memory.unbound:
            send(CONFIRMING, "queue.bind", queue=DEAD, exchange=GRAVES, no_wait=True)
        for queue in queues:
            arguments: Table = dict(HOMES[queue] if queue in HOMES else QUEUES[queue])  # type: ignore[arg-type]
            durable = queue in DURABLE
            send(CONFIRMING, "queue.declare", queue=queue, durable=durable, arguments=arguments, no_wait=True)
            send(CONFIRMING, "queue.bind", queue=queue, exchange=FANOUT, no_wait=True)

    # Publishing.

    def burst(self, burst: Burst, left: int) -> None:
        if self.ready and self._open.get(CONFIRMING):
            frames = []
            for _ in range(burst.messages):
                sent, data = self._message(CONFIRMING, burst.to, burst.size, burst.ttl)
                frames.append(data)
                self._tag += 1
                self._unconfirmed[self._tag] = sent
            if self._stream is not None:
                self._stream.write(frames)
        if left > 1:
            self.runtime.call_later(burst.gap, self.burst, burst, left - 1)

    def _message(self, channel: int, to: str, size: int, life: int = 0) -> tuple[Sent, bytes]:
        rng = self.rng
        self._number += 1
        name = f"{self.name}:{self._number}"
        ttl = rng.choice(("20", "100")) if rng.random() < 0.05 else None
        ttl = str(life) if life else ttl
        persistent = rng.random() < 0.8
        lost = rng.random() < 0.02
        exchange, key = (FANOUT, "") if to == FANOUT else ("", to if not lost else "nowhere")
        queues = tuple(self.memory.queues) if to == FANOUT else (to,) if not lost else ()
        properties = Properties(
            delivery_mode=2 if persistent else 1,
            priority=rng.randrange(5),
            expiration=ttl,
            headers={"k": rng.choice("abc")} if "last" in queues else None,
            message_id=name if size < 2 else None,
        )
        body = f"{name}|".encode().ljust(size, b".") if size > 1 else b"x" * size
        sent = Sent(name, queues, persistent, None if ttl is None else int(ttl) / 1000, self.runtime.world.time)
        return sent, publish_frames(channel, exchange, key, body, properties, mandatory=rng.random() < 0.3)

    def _settled(self, tag: int, multiple: bool, good: bool) -> None:
        tags = [each for each in self._unconfirmed if each <= tag] if multiple else [tag]
        for each in tags:
            sent = self._unconfirmed.pop(each, None)
            if sent is not None and good:
                self.memory.confirmed.append((sent, self._life))
                if sent.ttl is not None:
                    self.memory.expired[sent.name] = self.runtime.world.time + sent.ttl
            elif sent is not None and len(sent.queues) == 1:
                self.memory.refused.add(sent.name)

    # Consuming.

    def consume(self, queue: str, prefetch: int, no_ack: bool = False) -> None:
        self.consuming[queue] = prefetch
        if self._open.get(CONSUMING) and queue not in self._barred:
            self._consumers += 1
            tag = f"{self.name}-{self._consumers}"
            self._tags[tag] = queue, not no_ack
            self.send(CONSUMING, "basic.qos", prefetch_count=prefetch)
            arguments: Table = {"x-priority": 1} if self.rng.random() < 0.2 else {}
            self.send(
                CONSUMING, "basic.consume", queue=queue, consumer_tag=tag, no_ack=no_ack, arguments=arguments
            )  # fmt: skip

    def _may_lose(self, until: float) -> None:
        """What is on its way to its consumers without acknowledgements when they end may be lost. If it is told that
        they have ended, what is published from then on may not."""
        for queue, answers in self._tags.values():
            if not answers:
                self.memory.disturb(queue, math.inf if self.memory.mistaken else until)
        self._tags = {tag: known for tag, known in self._tags.items() if known[1]}

    def _cancelled(self, tag: str) -> None:
        """Its queue was deleted, or it has cancelled a consumer that was given everything before this answer."""
        queue, _ = self._tags.pop(tag, ("", True))
        if queue in self.consuming:
            self.runtime.call_later(0.05, self._consume_again, queue)

    def _consume_again(self, queue: str) -> None:
        if queue in self.consuming and all(queue != known for known, _ in self._tags.values()):
            self.consume(queue, self.consuming[queue])

    def _complete(self) -> None:
        if self._left > 0 or self._content is None:
            return
        (channel, tag, queue, answers), self._content = self._content, None
        if not tag:
            return  # one of its own came back
        short = len(self._body) < 2
        name = str(properties(self._header).message_id) if short else self._body.partition(b"|")[0].decode()
        self.memory.seen.add(name)
        expired = self.memory.expired.get(name)
        given = 0.0 if self._stream is None else self._stream.written_at
        if expired is not None and given > expired + ON_ITS_WAY and queue not in GRAVES_TOO:
            self.memory.late.append((queue, name))
        if queue in HOMES or queue.startswith(OWN):
            self.memory.homely["home.given" if queue in HOMES else "own.given"] += 1
        accepted = self.memory.accepted.get((queue, name), math.inf)
        late = given > accepted + ON_ITS_WAY  # one that was given back may be on its way until then
        if late and queue not in GRAVES_TOO and not name.startswith(PREFIX):
            self.memory.came_back.append((queue, name))
        if answers:
            if channel == TRANSACTIONAL:
                self._got.append(Pending(tag, queue, name))
                self._go_on()
                return
            self._pending.append(Pending(tag, queue, name))
            if len(self._pending) == 1 or self.rng.random() < 0.1:
                pause = self.delay or self.rng.choice((0.0, 0.001, 0.01, 0.05))
                self.runtime.call_later(pause, self._answer, self._attempt)

    def _answer(self, attempt: int) -> None:
        if attempt != self._attempt or not self._pending or not self._open.get(CONSUMING):
            return
        rng = self.rng
        count = len(self._pending) if self.draining else rng.randint(1, len(self._pending))
        some, rest = self._pending[:count], self._pending[count:]
        choice = 0.0 if self.draining else rng.random()
        if choice < 0.45:
            self.send(CONSUMING, "basic.ack", delivery_tag=some[-1].tag, multiple=True)
        elif choice < 0.6:
            some = [some[-1]]
            rest = [pending for pending in self._pending if pending is not some[0]]
            self.send(CONSUMING, "basic.ack", delivery_tag=some[0].tag)
        elif choice < 0.75:
            self.send(CONSUMING, "basic.nack", delivery_tag=some[-1].tag, multiple=True, requeue=True)
        elif choice < 0.9:
            self.send(CONSUMING, "basic.nack", delivery_tag=some[-1].tag, multiple=True, requeue=False)
        else:  # it keeps them a little longer
            rest = self._pending
        self._pending = rest
        if rest:
            self.runtime.call_later(self.delay or rng.choice((0.005, 0.05)), self._answer, self._attempt)

    @property
    def expects(self) -> bool:
        """It has not read yet what its broker has sent: a slow link may take seconds."""
        return self._stream is not None and self._stream.expects

    def drain(self, queues: list[str]) -> None:
        """Accept what there is, and consume these queues."""
        self.draining = True
        if not self.ready or not self._open.get(CONSUMING) or not self._open.get(CONFIRMING):
            self.consuming.update((queue, 0) for queue in queues if queue not in self.consuming)
            return
        self.send(CONSUMING, "basic.qos", prefetch_count=0, **{"global": True})
        for queue in queues:
            if all(queue != known for known, _ in self._tags.values()):
                self.consume(queue, 0)
        self._answer(self._attempt)
        if self._open.get(TRANSACTIONAL) and not self._work:
            self.send(TRANSACTIONAL, "channel.close", reply_code=200, reply_text="")
            self._open[TRANSACTIONAL] = False

    # Trouble.

    def act(self, action: Action) -> None:
        if not self.ready:
            if action.kind == "consume":
                self.consuming[action.targets[0]] = int(action.hold)
            return
        queue, count = action.targets[0], int(action.hold)
        match action.kind:
            case "consume":
                self.consume(queue, count, no_ack=self.rng.random() < 0.1)
            case "take":
                self.consume(queue, count, no_ack=True)
            case "leave":
                self._leave(count)
            case "purge":
                self.memory.disturb(queue)
                self.send(CONFIRMING, "queue.purge", queue=queue, no_wait=True)
            case "delete":
                self.memory.disturb(queue)
                self.send(CONFIRMING, "queue.delete", queue=queue, no_wait=True)
                self._declare([queue])
                self._barred.discard(queue)
            case "get":
                no_ack = self.rng.random() < 0.3
                if no_ack:
                    self.memory.disturb(queue)
                self._getting.append((CONSUMING, queue, not no_ack))
                if self._open.get(CONSUMING):
                    self.send(CONSUMING, "basic.get", queue=queue, no_ack=no_ack)
                else:
                    self._getting.pop()
            case "prefetch" if self._open.get(CONSUMING):
                self.send(CONSUMING, "basic.qos", prefetch_count=count, **{"global": self.rng.random() < 0.5})
            case "cancel":
                self.cancel_one()
            case "close_channel":
                channel = self.rng.choice((CONFIRMING, CONSUMING, TRANSACTIONAL))
                if self._open.get(channel):
                    self.close(channel)
            case "recover" if self._open.get(CONSUMING):
                self.send(CONSUMING, "basic.recover", requeue=True)
                self._pending = []
            case "tx" if self._open.get(TRANSACTIONAL) and self._declared:
                self._begin(action)
            case "disconnect":
                self._disconnect()
            case kind if kind in ANTICS:
                play(self, kind, queue)

    # For antics.

    channels = CONSUMING, TRANSACTIONAL

    def is_open(self, channel: int) -> bool:
        return self._open.get(channel, False)

    @property
    def last_pending(self) -> int:
        """The tag of what it got last and has not answered; 0: there is none."""
        return self._pending[-1].tag if self._pending else 0

    def forget_pending(self) -> None:
        self._pending = []

    def accept_everything(self, channel: int) -> None:
        """Also what it has not seen yet."""
        self._blind[channel] = [*self.consuming, *(queue for asked, queue, _ in self._getting if asked == channel)]
        self.send(channel, "basic.ack", delivery_tag=0, multiple=True)

    def ask(self, channel: int, queue: str) -> None:
        self._getting.append((channel, queue, True))
        self.send(channel, "basic.get", queue=queue)

    def cancel_one(self) -> None:
        """Its oldest consumer; soon it consumes there again."""
        if self._tags:
            tag = next(iter(self._tags))
            known, answers = self._tags[tag]
            if answers:
                del self._tags[tag]
                self.runtime.call_later(0.05, self._consume_again, known)
            self.send(CONSUMING, "basic.cancel", consumer_tag=tag, no_wait=answers)

    def _leave(self, way: int) -> None:
        """All of its consumers go: cancelled, with their channel, or with the connection."""
        if way == 0:
            for tag in self._tags:
                self.send(CONSUMING, "basic.cancel", consumer_tag=tag)
        elif way == 1 and self._open.get(CONSUMING):
            self.close(CONSUMING)
        elif way == 2:
            self._disconnect(hurries=True)

    def _disconnect(self, hurries: bool = False) -> None:
        self._leaving_since, self._hurries = self.runtime.world.time, hurries
        self.send(0, "connection.close", reply_code=200, reply_text="")

    def close(self, channel: int) -> None:
        self._open[channel] = False
        self.send(channel, "channel.close", reply_code=200, reply_text="")

    def _begin(self, action: Action) -> None:
        """A transaction: get some, publish some, answer, commit."""
        self._work.append(action)
        for _ in range(2):
            self._getting.append((TRANSACTIONAL, action.targets[0], True))
            self.send(TRANSACTIONAL, "basic.get", queue=action.targets[0])
        self.runtime.call_later(0.03, self._end, self._attempt)

    def _go_on(self) -> None:
        """Half of what it got is answered at once, within the transaction."""
        if len(self._got) % 2:
            pending = self._got.pop()
            kind = self.rng.random()
            if kind < 0.5:
                self._accepting.append(pending)
                self.send(TRANSACTIONAL, "basic.ack", delivery_tag=pending.tag)
            else:
                requeue = kind < 0.75
                self.send(TRANSACTIONAL, "basic.nack", delivery_tag=pending.tag, requeue=requeue)

    def _end(self, attempt: int) -> None:
        if attempt != self._attempt or not self._work or not self._open.get(TRANSACTIONAL):
            return
        action = self._work.pop(0)
        sent = []
        for _ in range(int(action.hold)):
            one, data = self._message(TRANSACTIONAL, self.rng.choice([*action.targets, FANOUT]), 30)
            sent.append(one)
            if self._stream is not None:
                self._stream.write((data,))
        if self._got:
            self.send(TRANSACTIONAL, "basic.ack", delivery_tag=self._got[-1].tag, multiple=True)
            self._accepting += self._got
            self._got = []
        accepting, self._accepting = self._accepting, []
        if self.rng.random() < 0.8:
            self._committing.append((sent, accepting))
            self.send(TRANSACTIONAL, "tx.commit")
        else:
            self.send(TRANSACTIONAL, "tx.rollback")
            self.send(TRANSACTIONAL, "basic.recover", requeue=True)


def publish_frames(
    channel: int, exchange: str, key: str, body: bytes, properties: Properties, mandatory: bool
) -> bytes:
    """A publish as a client sends it."""
    method = METHODS["basic.publish"].frame(channel, exchange=exchange, routing_key=key, mandatory=mandatory)
    header = encode(properties, len(body))
    frames = (method, _frame(FRAME_HEADER, channel, header), _frame(FRAME_BODY, channel, body))
    return b"".join(frames if body else frames[:-1])


def _frame(kind: int, channel: int, payload: bytes) -> bytes:
    return bytes((kind,)) + channel.to_bytes(2, "big") + len(payload).to_bytes(4, "big") + payload + b"\xce"
