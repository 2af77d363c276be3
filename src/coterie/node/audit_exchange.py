"""The lines of an audit log as messages: to the topic exchange `coterie.audit`, with the action as the routing key.

As with `coterie.trace` nobody waits for it, and while no queue is bound the newest lines are held in memory. The
exchange is internal: nobody but the broker publishes to it. Binding to it takes the tag monitoring or administrator,
and anything else administrator (`User.may`).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from coterie.amqp.wire.properties import Properties
from coterie.auditlog.log import EXCHANGE
from coterie.broker.message import make_message
from coterie.broker.own_exchange import OwnExchange
from coterie.broker.publish import Publish
from coterie.broker.specs import TOPIC, ExchangeSpec
from coterie.trace import Event

if TYPE_CHECKING:
    from coterie.broker.broker import Broker
    from coterie.runtime.base import Runtime, Timer

INTERVAL: Final = 0.25
UNDER_WAY: Final = 200
"""Messages that are published and not safe yet."""


class AuditExchange:
    """Of one node: a sink of its audit log. `start` once the broker serves clients."""

    def __init__(self, hold: int) -> None:
        self._hold = hold
        self._lines: deque[tuple[str, str, bytes]] = deque()
        """Action, id, line."""
        self._held = 0
        self._under_way = 0
        self._timer: Timer | None = None
        self._given_up = False

    def __call__(self, action: str, event: Event) -> bool:
        """Nothing is lost by what is dropped: the files are what counts."""
        line = event.to_json().encode() + b"\n"
        self._lines.append((action, f"{event.node}#{event.inc}:{event.n}", line))
        self._held += len(line)
        while self._held > self._hold and self._lines:
            self._held -= len(self._lines.popleft()[2])
        return True

    def start(self, runtime: Runtime, broker: Broker, serves: Callable[[], bool]) -> None:
        spec = ExchangeSpec(EXCHANGE, TOPIC, durable=True, internal=True)
        self._runtime, self._exchange = runtime, OwnExchange(broker, serves, spec, self._give_up)
        self._look()

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
            self._push()

    def _look(self) -> None:
        self._timer = self._runtime.call_later(INTERVAL, self._look)
        self._push()

    def _push(self) -> None:
        vhost = None if self._given_up else self._exchange.audience()
        if vhost is None:
            return
        batch: list[Publish] = []
        while self._lines and self._under_way + len(batch) < UNDER_WAY:
            action, name, line = self._lines.popleft()
            self._held -= len(line)
            properties = Properties(content_type="application/x-ndjson", delivery_mode=2, message_id=name, type="audit")
            batch.append(Publish(make_message(EXCHANGE, action, line, properties)))
        if batch:
            self._under_way += len(batch)
            vhost.publish(batch, lambda: self._safe(len(batch)))

    def _safe(self, count: int) -> None:
        self._under_way -= count

    def _give_up(self) -> None:
        self._given_up = True
