"""A channel: one client's row of commands, each answered in turn, each error closing only this channel.

Publishes and acknowledgements are gathered while one read of the socket is worked through and carried out as batches:
at its end, or before any other command, so that their order stays. What can only be answered later (a cluster decides,
a disk writes) holds back the frames behind it, in their order, and not the other channels.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Final, TypeVar

from coterie.amqp import messages, transactions, wiring
from coterie.amqp.deliveries import Deliveries, Settled, held_ranges
from coterie.amqp.delivering import Frames
from coterie.amqp.outbox import CHUNK
from coterie.amqp.publishing import CHEAP, Confirms, Inbound, Kept, Route
from coterie.amqp.replies import Replies
from coterie.amqp.subscription import Subscription
from coterie.amqp.traffic import Traffic
from coterie.amqp.transactions import Transaction
from coterie.amqp.wire.codes import (
    CHANNEL_ERROR,
    COMMAND_INVALID,
    FRAME_ERROR,
    NO_ROUTE,
    NOT_FOUND,
    RESOURCE_ERROR,
    UNEXPECTED_FRAME,
)
from coterie.amqp.wire.framing import Repeat
from coterie.amqp.wire.methods import METHODS, Call
from coterie.amqp.wire.methods import decode as decode_method
from coterie.amqp.wire.tables import Value
from coterie.broker.consumer import Consumer, Sink
from coterie.broker.delivery import Delivery, HeldRanges, count_of
from coterie.broker.publish import Publish
from coterie.errors import ProtocolError
from coterie.logs import Log

if TYPE_CHECKING:
    from coterie.amqp.connection import Connection

R = TypeVar("R")
log = Log(__name__)
UNLIMITED: Final = 1 << 30
COPY: Final = 256
"""What a copy of a message for a queue weighs besides its body, in bytes, where bodies are counted."""
ACK: Final = METHODS["basic.ack"].prefix
PUBLISH: Final = METHODS["basic.publish"].prefix
_CLOSE: Final = METHODS["channel.close"].prefix
_NONE: Final = bytes(4)
"""No method: what went wrong is no answer to any."""
_CLOSE_OK: Final = METHODS["channel.close-ok"].prefix


class Channel(Sink):
    """Open until `close`, or until an error."""

    def __init__(self, number: int, connection: Connection) -> None:
        self.number = number
        self.connection = connection
        self.vhost = connection.vhost
        self.consumers: dict[str, Subscription] = {}
        self.replies: Replies | None = None
        """Its consumer of direct replies."""
        self.unacknowledged = False
        """It has, or had, consumers without acknowledgements: until the cluster knows that they are gone, it may give
        them messages, and those are lost. So the client is not told earlier that they are."""
        self.deliveries = Deliveries(self._freed, connection.runtime.now)
        self.prefetch = 0
        """Of consumers that are yet to come."""
        self.prefetch_all = 0
        """Of all of the channel's deliveries together; 0: any number."""
        self.confirms: Confirms | None = None
        self._unconfirmed: deque[Batch] = deque()
        self.transaction: Transaction | None = None
        self.traffic = Traffic()
        self.last_queue = ""
        """The one that it declared last: what an empty name stands for."""
        self.closing = False
        """It is over; if that was an error, the client has not said yet that it knows."""
        self.frames = Frames(number, connection.frame_max)
        self.inbound: Inbound = Inbound(
            connection.settings.message_max, connection.user.name, self._check_publish, self._work
        )
        self.tags = 0
        """Consumer tags that it made up."""
        self.traced = connection.server.broker.traced
        if self.traced is not None:
            self.traced_as = self.traced.channel(connection.number, number)
        self._out = connection.outbox
        self._accepts: Settled = {}
        self._hungry: dict[Subscription, None] = {}
        """Have more room than before."""
        self._moment = 0
        self._checked: dict[str, None] = {}
        """Exchanges that may be published to, as was found at that moment."""
        self._works: dict[bytes, int] = {}
        """What a message costs by its route, as was found then."""
        self._busy = False
        """A command has not been answered yet."""
        self._backlog: deque[tuple[Callable[..., object], tuple[bytes, ...]]] = deque()
        """Frames behind it."""
        self._backlog_bytes = 0
        self._cancelled: list[str] = []
        """Consumers whose queue went while a command was decided: its answer comes first."""
        self._going_on = False
        """They are being worked through: a command among them that is answered at once does not begin anew."""
        self._partial = 0
        """Bytes of the message that has not come completely."""

    # Frames in. Each raises ProtocolError for what closes the channel, or the connection.

    def method(self, payload: bytes) -> None:
        if self.closing:
            self._after_close(payload)
        elif self._busy:
            self._wait(self.method, payload)
        elif self.inbound.content is not None:
            raise ProtocolError(UNEXPECTED_FRAME, "expected a content header or body, got a method")
        elif payload[:4] == ACK:
            self._ack(payload)
        elif payload[:4] == PUBLISH:
            self.inbound.method(payload)
        else:
            self._command(decode_method(payload))

    def header(self, payload: bytes) -> None:
        if self.closing:
            return
        if self._busy:
            self._wait(self.header, payload)
        elif self.inbound.header(payload):
            self.connection.dirty[self] = None

    def body(self, payload: bytes) -> None:
        if self.closing:
            return
        if self._busy:
            self._wait(self.body, payload)
        elif self.inbound.body(payload):
            self.connection.dirty[self] = None
            self._count_partial(-self._partial)
        else:
            self._count_partial(len(payload))

    def publish(self, method: bytes, header: bytes, body: bytes) -> Repeat | None:
        """All three at once."""
        if self.closing:
            return None
        if self._busy:
            self._wait(self.publish, method, header, body)
            return None
        if self.inbound.content is not None:
            raise ProtocolError(UNEXPECTED_FRAME, "expected a content header or body, got a method")
        self.connection.dirty[self] = None
        return self.inbound.publish(method, header, body)

    def _count_partial(self, size: int) -> None:
        self._partial += size
        self.connection.partial += size
        if self.connection.partial > self.connection.settings.partial_max:
            limit = self.connection.settings.partial_max
            raise ProtocolError(RESOURCE_ERROR, f"unfinished messages of more than {limit:,} bytes (partial_max)")

    def _check_publish(self, exchange: str, key: str) -> None:
        if self._moment != self.connection.moment:
            self._moment = self.connection.moment
            self._checked.clear()
            self._works.clear()
        if exchange not in self._checked:
            self.connection.permit("write", "exchange", exchange)
            self.vhost.check_publish(exchange, self.connection.user)
            self._checked[exchange] = None
        if self.connection.user.restricts_topics:
            self.connection.permit_topic("write", exchange, key)

    def _work(self, route: Route, kept: Kept) -> int:
        work = None if kept.copies else self._works.get(route.raw)
        if work is None:
            work = self.vhost.work(route.exchange, route.key, route.raw, kept.copies)
            if not kept.copies:
                self._works[route.raw] = work
        if work > CHEAP:
            self.connection.spend(work)
        return work

    def work_of_letters(self, held: HeldRanges) -> int:
        """What it costs if these die: asked before they do."""
        key = held.queue.routing_key(held.ranges[0][0])
        return self.vhost.graveyard.work(held.queue, key) * count_of(held.ranges)

    def charge(self, work: int) -> None:
        """What was asked for last is paid for: it is not read on while too much of that is under way."""
        if work > CHEAP:
            weight = COPY * work
            self.connection.spend(work)
            self.connection.throttle.unsafe(weight)
            self.vhost.cluster.in_turn(partial(self.connection.throttle.safe, weight))

    def _ack(self, payload: bytes) -> None:
        if len(payload) != 13:
            raise ProtocolError(FRAME_ERROR, "cannot decode basic.ack: it has a tag and a flag")
        tag, multiple = int.from_bytes(payload[4:12], "big"), bool(payload[12] & 1)
        if self.transaction is None:
            self.deliveries.take(tag, multiple, self._accepts)
            self.connection.dirty[self] = None
        else:
            self.transaction.accepts += self.deliveries.withdraw(tag, multiple)

    def _after_close(self, payload: bytes) -> None:
        if payload[:4] == _CLOSE_OK:
            self.connection.forget(self)
        elif payload[:4] == _CLOSE:
            self.send("channel.close-ok")

    # Batches out of what one read brought.

    def flush(self) -> None:
        """Carry out what was gathered."""
        if self.inbound:
            self._publish_batch()
        if self._accepts:
            accepts, self._accepts = self._accepts, {}
            if self.traced is not None:
                self.traced.answered("accept", self, held_ranges(accepts))
            for account, ranges in accepts.items():
                self.traffic.acked += count_of(ranges)
                account.queue.accept(account.holder, ranges)
        if self._hungry:
            hungry, self._hungry = self._hungry, {}
            for subscription in hungry:
                subscription.queue.wake(subscription)

    def _publish_batch(self) -> None:
        publishes, size, work = self.inbound.take()
        weight = size + COPY * work
        self.traffic.published += len(publishes)
        self.connection.publishing()
        if self.connection.user.limits:
            self.connection.server.rates.published(self.connection, len(publishes), size)
        if self.transaction is not None:
            self.transaction.publish(publishes, weight, self.connection.settings.transaction_max)
            return
        self.connection.throttle.unsafe(weight)
        if self.confirms is not None:
            self.confirms.published += len(publishes)
            self.traffic.to_confirm += len(publishes)
        batch = Batch(self, publishes, weight)
        if self.confirms is not None:
            self._unconfirmed.append(batch)
        done, server = batch.done, self.connection.server
        if server.stopwatch is not None and self.confirms is not None:
            done = server.stopwatch.timed(server, done)
        traced = self.traced if self.confirms is not None else None  # traces name a publish by its number
        if traced is not None and self.confirms is not None:
            traced.publishing(self, publishes, self.confirms.published - len(publishes) + 1)
        self.vhost.publish(publishes, done, self.connection.user)
        if traced is not None:
            traced.published(self.vhost, publishes)
        batch.routed()

    def confirm(self) -> None:
        """Tell of all that is safe, in the order in which it came: of two batches the second may be safe first."""
        batches = self._unconfirmed
        while batches and batches[0].settled:
            batches.popleft().tell()

    def give_back(self, publishes: list[Publish]) -> None:
        """basic.return what was mandatory and reached no queue."""
        for publish in publishes:
            if not publish.unroutable:
                continue
            if not publish.mandatory:
                self.traffic.dropped += 1
            else:
                self.traffic.returned += 1
                self.frames.returned(publish.message, NO_ROUTE, "NO_ROUTE", self._out.parts)
                self._out.wrote(len(publish.message.body))

    def _freed(self, consumer: Subscription | None) -> None:
        if self.prefetch_all:
            self._hungry.update(dict.fromkeys(self.consumers.values()))
        elif consumer is not None:
            self._hungry[consumer] = None

    # A queue's side: Sink.

    def room(self, consumer: Consumer) -> int:
        assert isinstance(consumer, Subscription)
        if self.closing or self._out.congested or not consumer.started:
            return 0
        queue = consumer.queue
        # Large messages come a few at a time, so that congestion is noticed in time.
        room = UNLIMITED if queue.ready_bytes < CHUNK else max(1, CHUNK * queue.ready // queue.ready_bytes)
        if consumer.no_ack:
            return room
        if consumer.prefetch:
            room = min(room, consumer.prefetch - consumer.held)
        if self.prefetch_all:
            room = min(room, self.prefetch_all - self.deliveries.count)
        return room

    def limits(self, consumer: Consumer) -> tuple[int, object, int]:
        assert isinstance(consumer, Subscription)
        return consumer.prefetch, self, self.prefetch_all

    @property
    def name(self) -> str:
        return f"{self.connection.name} ({self.number})"

    @property
    def unconfirmed(self) -> int:
        return 0 if self.confirms is None else self.confirms.published - self.confirms.confirmed

    @property
    def uncommitted(self) -> int:
        return 0 if self.transaction is None else len(self.transaction.publishes)

    def details(self) -> dict[str, object]:
        connection = self.connection
        return {
            "name": self.name, "number": self.number, "connection_name": connection.name,
            "user": connection.user.name, "peer_host": connection.peer.host, "peer_port": connection.peer.port,
        }  # fmt: skip

    def deliver(self, consumer: Consumer, delivery: Delivery) -> None:
        assert isinstance(consumer, Subscription)
        if self.closing or consumer.tag not in self.consumers:  # it was given them before it was told that this is over
            if not consumer.no_ack:
                delivery.release(redelivered=False)
            return
        if self.traced is not None:
            self.traced.handed(self, delivery)
        deliveries, count = self.deliveries, delivery.count
        size = self.frames.deliver(consumer.tag, consumer.heads, deliveries.tags.next_tag, delivery, self._out.parts)
        if consumer.no_ack:
            deliveries.skip(count)
            self.traffic.delivered_no_ack += count
        else:
            deliveries.add(consumer, delivery)
            self.traffic.delivered += count
        if delivery.flagged:
            self.traffic.redelivered += count_of(delivery.flagged)
        self._out.wrote(size)

    def cancelled(self, consumer: Consumer) -> None:
        gone = self.consumers.pop(consumer.tag, None)
        if gone is None or gone.ending or not self.connection.can("consumer_cancel_notify"):
            return
        self._cancelled.append(consumer.tag)
        if not self._busy:
            self.connection.runtime.call_soon(self._tell_cancelled)

    def _tell_cancelled(self) -> None:
        """Whoever deleted the queue hears that first, also if it is the same channel, and the disk has to be waited
        for: as in RabbitMQ, where a channel does one thing at a time."""
        if self._busy:
            return
        cancelled, self._cancelled = self._cancelled, []
        if not self.closing:
            for tag in cancelled:
                self.send("basic.cancel", consumer_tag=tag, no_wait=True)

    def wake(self) -> None:
        """There may be room for every consumer again."""
        for subscription in list(self.consumers.values()):
            subscription.queue.wake(subscription)

    # Commands.

    def _command(self, call: Call) -> None:
        self.connection.worked()
        self.connection.flush()
        if self.closing:  # another channel's batch has ended the connection
            return
        command = COMMANDS.get(call.method.name)
        if command is None:
            raise ProtocolError(COMMAND_INVALID, f"{call.method.name} is nothing that a client says on a channel")
        command(self, call)

    def later(self, call: Call, then: Callable[[R], None]) -> Callable[[R | ProtocolError], None]:
        """A completion for `call`; until it comes, whatever follows waits."""
        self._busy = True

        def done(result: R | ProtocolError) -> None:
            if not self.closing:
                self._busy = False
                self.connection.guarded(self, call.method.prefix, self._complete, then, result)
                self._tell_cancelled()
                self._go_on()

        return done

    def _complete(self, then: Callable[[R], None], result: R | ProtocolError) -> None:
        if isinstance(result, ProtocolError):
            raise result
        then(result)

    def _wait(self, frame: Callable[..., object], *payloads: bytes) -> None:
        self._backlog.append((frame, payloads))
        self._backlog_bytes += sum(map(len, payloads))
        if self._backlog_bytes > self.connection.settings.backlog_max:
            self.connection.throttle.pause(f"channel {self.number}")

    def _go_on(self) -> None:
        """With the frames that waited."""
        backlog = self._backlog
        if not backlog or self._going_on:
            return
        self._going_on = True
        try:
            while backlog and not self._busy and not self.closing:
                if self.connection.tired:
                    self._rest()
                    break
                frame, payloads = backlog.popleft()
                self._backlog_bytes -= sum(map(len, payloads))
                ids = payloads[0][:4] if frame == self.method else PUBLISH
                self.connection.guarded(self, ids, frame, *payloads)
        finally:
            self._going_on = False
        self.connection.flush()
        if not backlog:
            self.connection.throttle.resume(f"channel {self.number}")

    def _rest(self) -> None:
        """It is the turn of others; whatever comes meanwhile waits behind the frames that do."""
        self._busy = True

        def go_on() -> None:
            if not self.closing:
                self._busy = False
                self.connection.begin_turn()
                self._tell_cancelled()
                self._go_on()

        self.connection.runtime.call_soon(go_on)

    def send(self, name: str, **arguments: Value) -> None:
        self._out.write(METHODS[name].frame(self.number, **arguments))

    def answer(self, call: Call, name: str, **arguments: Value) -> None:
        """Unless the client wants no answer."""
        if not call.arguments.get("no_wait"):
            self.send(name, **arguments)

    def queue_name(self, call: Call) -> str:
        name = call.name("queue") or self.last_queue
        if not name:
            raise ProtocolError(NOT_FOUND, "no previously declared queue")
        return name

    # The end.

    def overdue(self, since: float) -> bool:
        """Whether its client has had something since before then."""
        oldest = self.deliveries.oldest
        return not self.closing and oldest is not None and oldest < since

    def failed(self, error: ProtocolError) -> None:
        if not self.closing:
            self.connection.failed(self, error, _NONE)

    def held(self) -> list[HeldRanges]:
        """What its client has to answer for, also what it has answered in a transaction that is not committed."""
        return self.deliveries.held()

    def close(self) -> None:
        """Over, in whatever way: what was asked for before is done, what it held goes back."""
        if self.closing:
            return
        if self.transaction is not None:
            self.inbound.clear()
        try:
            self.flush()
        except ProtocolError as error:  # nobody is left to be told by a channel error; what it settled counts
            log.warning(
                "publish rejected at close", client=self.connection.shown_name, channel=self.number, why=str(error)
            )
            self.flush()
        self.closing = True
        self.inbound.clear()
        self.connection.partial -= self._partial
        self._backlog.clear()
        for subscription in list(self.consumers.values()):
            self.vhost.cancel(subscription)
        self.consumers.clear()
        if self.replies is not None:
            self.replies.end()
        held = self.deliveries.take_all()
        if self.transaction is not None:
            held += self.transaction.give_up(self.deliveries)
            self.transaction = None
        for queue, holder, ranges in held:
            queue.release(holder, ranges)
        if self.traced is not None:
            self.traced.closed(self)
        self.connection.throttle.resume(f"channel {self.number}")

    def on_close(self, call: Call) -> None:
        self.close()
        if self.unacknowledged:
            self.vhost.cluster.in_turn(self._say_closed)
        else:
            self._say_closed()

    def _say_closed(self) -> None:
        if self.connection.channels.get(self.number) is self:
            self.send("channel.close-ok")
            self.connection.forget(self)

    def on_open(self, call: Call) -> None:
        raise ProtocolError(CHANNEL_ERROR, "second 'channel.open' seen")


class Batch:
    """What came in one read. Returned messages are told before they are confirmed."""

    __slots__ = ("_channel", "_confirms", "_publishes", "_returned", "_safe", "_size")

    def __init__(self, channel: Channel, publishes: list[Publish], size: int) -> None:
        self._channel = channel
        self._confirms = channel.confirms
        self._publishes = publishes
        self._size = size
        self._safe = self._returned = False

    def routed(self) -> None:
        """It is known which of them reached no queue."""
        self._channel.give_back(self._publishes)
        self._returned = True
        if self._safe:
            self._channel.confirm()

    def done(self) -> None:
        self._safe = True
        self._channel.connection.throttle.safe(self._size)
        if self._returned:
            self._channel.confirm()

    @property
    def settled(self) -> bool:
        return self._safe and self._returned

    def tell(self) -> None:
        channel, confirms = self._channel, self._confirms
        if confirms is not None and not channel.closing:
            outbox, traffic = channel.connection.outbox, channel.traffic
            if channel.traced is not None:
                first = confirms.confirmed + 1
                refused = [number for number, publish in enumerate(self._publishes, first) if publish.refused]
                channel.traced.confirm(channel, first, first + len(self._publishes) - 1, refused)
            outbox.wrote(confirms.settle(self._publishes, outbox.parts))
            traffic.confirmed, traffic.refused = confirms.confirmed, confirms.refused


COMMANDS: Final[dict[str, Callable[[Channel, Call], None]]] = {
    "channel.open": Channel.on_open,
    "channel.close": Channel.on_close,
    **wiring.COMMANDS,
    **messages.COMMANDS,
    **transactions.COMMANDS,
}
"""What a client may say on an open channel."""
