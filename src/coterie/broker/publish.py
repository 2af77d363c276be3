"""Publishing: a batch of messages becomes a list for each queue.

This is the hot path. A route that one message of the batch has taken is taken by the next one with one look into a
dict. Only messages with further routing keys in their headers, and full queues that refuse, need more.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from coterie.broker.message import HAS_HEADERS, Message, make_message
from coterie.broker.router import COPIES, hidden_copies

if TYPE_CHECKING:
    from coterie.broker.queue import Queue
    from coterie.broker.vhost import PseudoQueue, Vhost

Routed = dict["Queue", list[Message]]
"""What each queue gets, in the order of publishing."""

_FLAGS = 12


class Publish:
    """One message to publish, and what became of it at once."""

    __slots__ = ("enqueued", "mandatory", "message", "refused", "unroutable")

    def __init__(self, message: Message, mandatory: bool = False) -> None:
        self.message = self.enqueued = message
        """As it was sent, and as queues get it; it is no other publish's."""
        self.mandatory = mandatory
        self.refused = False
        """A queue was full and did not take it: the publisher gets a nack."""
        self.unroutable = False
        """It went nowhere: returned, if it is mandatory."""


class Batch:
    """What became of a batch of publishes: nothing has happened yet but what was committed on the way."""

    def __init__(self, vhost: Vhost, commit: Callable[[Routed], None] | None) -> None:
        self.routed: Routed = {}
        self.refused: Routed = {}
        """What each full queue did not take."""
        self.replies: list[tuple[PseudoQueue, Message]] = []
        self.steps: list[Publish] = []
        """Of another broker's link, for queues that follow."""
        self.adders: dict[bytes, Callable[[Message], None]] = {}
        """For routes to one queue that takes everything: how to add one more."""
        self._vhost = vhost
        self._commit = commit
        self._waiting: dict[Queue, tuple[int, int]] = {}
        """For queues that may refuse: how many messages wait for them here, and their bytes."""

    def finish(self) -> None:
        """What goes to no queue."""
        for pseudo, message in self.replies:
            pseudo.enqueue([message])
        for queue, refused in self.refused.items():
            queue.refuse(refused)

    def add(self, publish: Publish) -> None:
        message = publish.message
        queues = self._vhost.router.route(message)
        if not queues:
            pseudo = self._vhost.pseudo_queue(message.key) if not message.exchange else None
            if pseudo is not None:
                self.replies.append((pseudo, message))
            elif self._commit is not None and self._vhost.takes_steps(message.exchange):
                self.steps.append(publish)
            else:
                publish.unroutable = True
            return
        plain = not message.has_headers or COPIES not in message.header
        if not plain:
            message = publish.enqueued = _without_hidden_copies(message)
            if message is not publish.message and self._vhost.traced is not None:
                self._vhost.traced.rewritten(publish.message, message)
        for queue in queues:
            if queue.limits.refuses and queue.cluster.immediate and self._refused(queue, message):
                publish.refused = True
                self.refused.setdefault(queue, []).append(message)
            else:
                self.routed.setdefault(queue, []).append(message)
        if plain and len(queues) == 1 and not queues[0].limits.refuses and message.route in self._vhost.router.known:
            self.adders[message.route] = self.routed[queues[0]].append

    def _refused(self, queue: Queue, message: Message) -> bool:
        count, size = self._waiting.get(queue, (0, 0))
        refused = queue.refuses(message, count, size)
        if refused and count and self._commit is not None and queue.rotation.hungry:
            routed, self.routed = self.routed, {}
            self.adders.clear()
            self._waiting.clear()
            self._commit(routed)
            count = size = 0
            refused = queue.refuses(message)
        if not refused:
            self._waiting[queue] = count + 1, size + len(message.body)
        return refused


def gather(vhost: Vhost, publishes: Sequence[Publish], commit: Callable[[Routed], None] | None = None) -> Batch:
    """Route a batch. A queue that looks full may be given what it has so far by `commit`, so that its consumers can
    make room; without, the batch stays one."""
    batch = Batch(vhost, commit)
    adders = batch.adders
    for publish in publishes:
        message = publish.message
        header = message.header
        if not header[_FLAGS] & HAS_HEADERS or COPIES not in header:
            add = adders.get(message.route)
            if add is not None:
                add(message)
                continue
        batch.add(publish)
    return batch


def _without_hidden_copies(message: Message) -> Message:
    properties = message.properties()
    if not hidden_copies(properties):
        return message
    headers = {name: value for name, value in (properties.headers or {}).items() if name != "BCC"}
    return make_message(message.exchange, message.key, message.body, replace(properties, headers=headers))
