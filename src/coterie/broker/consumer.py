"""Consumers, and the sinks that they deliver to.

A queue asks a sink how much room it has and delivers batches that fit. A consumer without room leaves the queue's
rotation, and costs nothing until its sink calls `queue.wake(consumer)`, which it must do whenever room grew from
nothing.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import TYPE_CHECKING

from coterie.amqp.wire.codes import PRECONDITION_FAILED
from coterie.errors import ProtocolError

if TYPE_CHECKING:
    from coterie.broker.delivery import Delivery
    from coterie.broker.queue import Queue


class Sink(ABC):
    """Where a consumer's messages go: an AMQP channel, a bridge, a test."""

    traced_as = ""
    """Its name in the trace, if there is one."""

    @abstractmethod
    def room(self, consumer: Consumer) -> int:
        """How many more it may be given now: prefetch of the consumer and of its channel, and what its socket takes.
        Without a limit, any large number."""

    def limits(self, consumer: Consumer) -> tuple[int, object, int]:
        """How many messages it may hold unsettled, 0: any number; who shares a further limit, and that limit or 0."""
        return 0, None, 0

    def details(self) -> dict[str, object]:
        """Whose it is, for operators: of a client's channel its `channel_details`, by RabbitMQ's names."""
        return {}

    @abstractmethod
    def deliver(self, consumer: Consumer, delivery: Delivery) -> None:
        """Take it; never more than `room` said. What is in it stays with `delivery.holder` until `accept`, `release`
        or `reject`; with `no_ack` it is gone from the queue when this call returns."""

    def failed(self, error: ProtocolError) -> None:
        """What it asked for, and waits for no answer to, cannot be done."""

    @abstractmethod
    def cancelled(self, consumer: Consumer) -> None:
        """The queue is gone: tell the client (basic.cancel). `unsubscribe` is not to be called any more."""


class Consumer:
    """One subscription. `subscribe` puts it on its queue."""

    __slots__ = ("active", "arguments", "exclusive", "hungry", "no_ack", "priority", "queue", "sink", "tag")

    def __init__(
        self,
        tag: str,
        queue: Queue,
        sink: Sink,
        no_ack: bool = False,
        exclusive: bool = False,
        priority: int = 0,
        arguments: Mapping[str, object] | None = None,
    ) -> None:
        self.tag = tag
        self.queue = queue
        self.sink = sink
        self.no_ack = no_ack
        self.exclusive = exclusive
        self.priority = priority
        """The higher, the earlier: lower ones get only what higher ones have no room for."""
        self.arguments = dict(arguments or {})
        self.active = False
        """It may be given messages: always, unless the queue has a single active consumer and it is another one."""
        self.hungry = False
        """It is in the queue's rotation: it had room when it was last asked, or was woken since."""

    def __repr__(self) -> str:
        return f"<Consumer {self.tag} of {self.queue.name}>"


def consumer_priority(arguments: Mapping[str, object]) -> int:
    """The priority that a client asks for with `x-priority`."""
    value = arguments.get("x-priority", 0)
    if isinstance(value, bool) or not isinstance(value, int):
        raise ProtocolError(PRECONDITION_FAILED, f"x-priority must be a whole number, not {value!r}")
    return value
