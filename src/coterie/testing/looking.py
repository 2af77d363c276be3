"""Looking into queues: what they hold, and waiting until they hold it. Everything here runs in the broker's loop."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from coterie.amqp.wire.properties import Properties
from coterie.broker.observer import Arrived, QueueObserver, Reason
from coterie.broker.queue import Queue
from coterie.broker.ranges import Range
from coterie.broker.rows import Row
from coterie.runtime.base import Runtime


@dataclass(frozen=True, slots=True)
class QueueState:
    """How much is in a queue. Of one that does not exist: nothing."""

    name: str
    exists: bool = False
    ready: int = 0
    """Messages that wait for a consumer."""
    held: int = 0
    """Messages that a consumer has and has not acknowledged."""
    consumers: int = 0

    @property
    def messages(self) -> int:
        return self.ready + self.held

    def __str__(self) -> str:
        if not self.exists:
            return f"there is no queue '{self.name}'"
        return f"queue '{self.name}' has {self.ready} ready, {self.held} held, {self.consumers} consumers"


@dataclass(frozen=True, slots=True)
class QueuedMessage:
    """A message in a queue, looked at: it stays there, and nothing about it changes."""

    body: bytes
    exchange: str
    routing_key: str
    properties: Properties
    position: int
    redelivered: bool
    held: bool
    """A consumer has it."""

    @property
    def headers(self) -> dict[str, object]:
        return dict(self.properties.headers or {})

    @property
    def text(self) -> str:
        return self.body.decode()

    def json(self) -> Any:
        return json.loads(self.body)


def state_of(name: str, queue: Queue | None) -> QueueState:
    if queue is None:
        return QueueState(name)
    return QueueState(name, True, queue.ready, queue.unacked, len(queue.consumers))


def message_of(row: Row) -> QueuedMessage:
    message = row.message
    return QueuedMessage(
        bytes(message.body), message.exchange, message.key, message.properties(), row.position, row.redelivered,
        row.held,
    )  # fmt: skip


class Watch(QueueObserver):
    """Asks again whenever something has changed in any queue, once for all that one turn of the loop changes."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._waiting: dict[asyncio.Future[None], Callable[[], bool]] = {}
        self._due = False

    async def until(self, is_so: Callable[[], bool]) -> None:
        if is_so():
            return
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting[future] = is_so
        try:
            await future
        finally:
            del self._waiting[future]

    def changed(self) -> None:
        if self._waiting and not self._due:
            self._due = True
            self._runtime.call_soon(self._look)

    def _look(self) -> None:
        self._due = False
        for future, is_so in self._waiting.items():
            if not future.done() and is_so():
                future.set_result(None)

    def opened(self, queue: Queue) -> None:
        self.changed()

    def enqueued(self, queue: Queue, arrived: Arrived) -> None:
        self.changed()

    def acquired(self, queue: Queue, holder: object, ranges: Sequence[Range]) -> None:
        self.changed()

    def released(self, queue: Queue, ranges: Sequence[Range]) -> None:
        self.changed()

    def dequeued(self, queue: Queue, ranges: Sequence[Range], reason: Reason) -> None:
        self.changed()

    def consumers_changed(self, queue: Queue) -> None:
        self.changed()

    def deleted(self, queue: Queue) -> None:
        self.changed()
