"""A node's own trace as messages: batches of lines, published to the exchange `coterie.trace` for whoever is bound.

The exchange is an ordinary durable topic exchange of the vhost `/`; a batch has the routing key `node.incarnation`, and
is the same lines that a trace's file has (docs/trace.md). While nobody is bound, or nobody has switched it on, lines
are held in memory up to a limit, the newest ones: so that who binds soon after a start has all of a trace, from its
first event on. Nothing is published meanwhile, and no client ever waits for it.

Queues whose names begin with `coterie.trace` are not traced: a trace that tells of its own messages would never end.
For the same reason it is no reason to publish that the disk has something: that goes out with whatever comes next.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Final, NamedTuple

from coterie.amqp.wire.properties import Properties
from coterie.amqp.wire.tables import Table
from coterie.broker.message import Message, make_message
from coterie.broker.own_exchange import OwnExchange
from coterie.broker.publish import Publish
from coterie.broker.specs import TOPIC, ExchangeSpec
from coterie.trace import UNTRACED, Event

if TYPE_CHECKING:
    from coterie.broker.broker import Broker
    from coterie.runtime.base import Runtime, Timer

EXCHANGE: Final = UNTRACED
DISK: Final = "synced"
INTERVAL: Final = 0.25
"""Seconds after which lines go out, however few."""
BATCH_BYTES: Final = 128 << 10
UNDER_WAY: Final = 4
"""Batches that are published and not safe yet."""


class Batch(NamedTuple):
    run: str
    node: str
    inc: int
    first: int
    last: int
    data: bytes


class EventStream:
    """Of one node: the sink of its tracer. `attach` once there is a broker, `start` once that serves clients."""

    def __init__(self, hold: int, on: bool) -> None:
        self.on = on
        """Whether it is published; an operator may change it at any time."""
        self.published = 0
        """Events."""
        self.dropped = 0
        """Events that were held too long: they are in no message."""
        self._hold = hold
        self._lines: list[bytes] = []
        self._size = 0
        self._news = False
        """There is more among them than what the disk has."""
        self._first: Event | None = None
        self._last = 0
        self._batches: deque[Batch] = deque()
        self.held = 0
        """Bytes of batches that wait."""
        self._under_way = 0
        self._timer: Timer | None = None

    def __call__(self, event: Event) -> None:
        line = event.to_json().encode() + b"\n"
        if event.kind != DISK:
            self._news = True
        if self._first is None:
            self._first = event
        self._last = event.n
        self._lines.append(line)
        self._size += len(line)
        if self._size >= BATCH_BYTES:
            self._cut()

    def _cut(self) -> None:
        first = self._first
        if first is None:
            return
        self._batches.append(Batch(first.run, first.node, first.inc, first.n, self._last, b"".join(self._lines)))
        self.held += self._size
        self._lines.clear()
        self._first, self._size, self._news = None, 0, False
        while self.held > self._hold and len(self._batches) > 1:
            oldest = self._batches.popleft()
            self.held -= len(oldest.data)
            self.dropped += oldest.last - oldest.first + 1

    # Publishing.

    def attach(self, runtime: Runtime, broker: Broker, serves: Callable[[], bool]) -> None:
        spec = ExchangeSpec(EXCHANGE, TOPIC, durable=True)
        self._runtime, self._exchange = runtime, OwnExchange(broker, serves, spec, self._switch_off)

    def start(self) -> None:
        self._look()

    def stop(self) -> None:
        """What there is goes out; what comes from now on does not."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
            self._cut()
            self._push()

    def _look(self) -> None:
        self._timer = self._runtime.call_later(INTERVAL, self._look)
        if self._news:
            self._cut()
        self._push()

    def _push(self) -> None:
        vhost = self._exchange.audience() if self.on and self._batches else None
        if vhost is None:
            return
        while self._batches and self._under_way < UNDER_WAY:
            batch = self._batches.popleft()
            self.held -= len(batch.data)
            self.published += batch.last - batch.first + 1
            self._under_way += 1
            vhost.publish([Publish(_message(batch))], self._safe)

    def _safe(self) -> None:
        self._under_way -= 1
        if self._batches and self._under_way == 0:
            self._runtime.call_soon(self._push)

    def _switch_off(self) -> None:
        self.on = False


def _message(batch: Batch) -> Message:
    headers: Table = {
        "run": batch.run, "node": batch.node, "incarnation": batch.inc, "first": batch.first, "last": batch.last
    }  # fmt: skip
    properties = Properties(
        content_type="application/x-ndjson",
        headers=headers,
        delivery_mode=2,
        message_id=f"{batch.node}#{batch.inc}:{batch.first}",
        type="trace",
    )
    return make_message(EXCHANGE, f"{batch.node}.{batch.inc}", batch.data, properties)
