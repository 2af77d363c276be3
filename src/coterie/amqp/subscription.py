"""A consumer of a channel: what it may hold, and what of its deliveries never changes."""

from __future__ import annotations

from collections.abc import Mapping

from coterie.amqp.deliveries import Account
from coterie.amqp.delivering import Heads
from coterie.broker.consumer import Consumer, Sink, consumer_priority
from coterie.broker.queue import Queue


class Subscription(Consumer):
    """Made by basic.consume."""

    __slots__ = ("account", "ending", "heads", "held", "prefetch", "started")

    def __init__(
        self,
        tag: str,
        queue: Queue,
        sink: Sink,
        no_ack: bool,
        exclusive: bool,
        arguments: Mapping[str, object],
        prefetch: int,
    ) -> None:
        super().__init__(tag, queue, sink, no_ack, exclusive, consumer_priority(arguments), arguments)
        self.prefetch = prefetch
        """Messages that it may hold unsettled; 0: any number."""
        self.held = 0
        self.account: Account | None = None
        """What it had last, through its channel."""
        self.started = False
        """Its basic.consume-ok is written: deliveries may follow."""
        self.ending = False
        """Its client has cancelled it, and has not been answered."""
        self.heads: Heads = {}
