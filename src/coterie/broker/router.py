"""Routing: which queues a message goes to, through as many exchanges as the bindings say.

An exchange is visited once for a message, so that exchanges bound in a circle do no harm; each queue gets a message
once. An exchange from which no binding leads on passes the message to its alternate exchange. Routes that hang on
nothing but exchange and routing key are remembered until the wiring changes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from coterie.amqp.wire.properties import Properties
from coterie.broker.exchange import Exchange, Headers
from coterie.broker.message import Message, route_bytes
from coterie.broker.settings import BrokerSettings
from coterie.broker.topic import TooManySteps
from coterie.broker.validation import COPIES as HEADERS
from coterie.errors import ProtocolError

if TYPE_CHECKING:
    from coterie.broker.queue import Queue

COPIES: Final = b"CC"
"""A header with further routing keys is called CC or BCC; most messages need no closer look."""
_NO_HEADERS: Final[Headers] = {}


class Router:
    """The routes of one vhost."""

    def __init__(self, exchanges: dict[str, Exchange], queues: dict[str, Queue], settings: BrokerSettings) -> None:
        self._exchanges = exchanges
        self._queues = queues
        self._max = settings.route_cache_max
        self._hops_max = settings.exchange_hops_max
        self._steps_max = settings.topic_steps_max
        self.known: dict[bytes, tuple[Queue, ...]] = {}
        """By `Message.route`."""

    def changed(self) -> None:
        """The wiring is another one."""
        self.known.clear()

    def added(self, queue: str) -> None:
        """There is a new queue, to which nothing leads yet but the default exchange."""
        if any(exchange.alternate == "" for exchange in self._exchanges.values()):
            self.known.clear()
        else:
            self.known.pop(route_bytes("", queue), None)

    def route(self, message: Message) -> tuple[Queue, ...]:
        """The queues of a message."""
        found = self.known.get(message.route)
        if found is not None and not (message.has_headers and COPIES in message.header):
            return found
        keys = [message.key, *copies(message)]
        queues, fixed, _ = self.find(message.exchange, keys, message)
        if fixed and len(keys) == 1:
            self._learn(message.route, queues)
        return queues

    def _learn(self, route: bytes, queues: tuple[Queue, ...]) -> None:
        if len(self.known) >= self._max:
            self.known.clear()
        self.known[route] = queues

    def reach(self, exchange: str, key: str, route: bytes, copies: Sequence[str] = ()) -> tuple[tuple[Queue, ...], int]:
        """Where something that is published there may come to, and what it costs at most: copies for queues, and steps
        on the way to them. `route`: exchange and key as `Message.route` has them. Raises TooManySteps."""
        known = None if copies else self.known.get(route)
        if known is not None:
            return known, len(known) or 1
        queues, fixed, work = self.find(exchange, [key, *copies], None)
        if fixed and not copies:
            self._learn(route, queues)
        return queues, work

    def find(self, exchange: str, keys: Sequence[str], message: Message | None) -> tuple[tuple[Queue, ...], bool, int]:
        """The queues, whether they hang on exchange and keys alone, and what it took, and takes, to reach them. Without
        a message: where it may lead at most; raises TooManySteps."""
        queues: dict[str, Queue] = {}
        fixed = True
        steps = targets = 0
        waiting = [exchange]
        seen = {exchange}
        for name in waiting:  # grows as it goes
            if name == "":
                queues.update((key, self._queues[key]) for key in keys if key in self._queues)
                targets += len(keys)
                continue
            here = self._exchanges.get(name)
            if here is None:
                continue
            headers: Headers = _NO_HEADERS
            if here.by_headers:
                fixed = False
                headers = _NO_HEADERS if message is None else _headers(message)
            led = False
            for key in keys:
                try:
                    left = self._steps_max - steps
                    found, taken = here.leads(key, left) if message is None else here.route(key, headers, left)
                except TooManySteps:
                    if message is None:
                        raise
                    continue  # a letter, or whoever was not asked before: it leads nowhere
                steps += taken
                for kind, target in found:
                    led = True
                    targets += 1
                    if kind == "queue":
                        queues[target] = self._queues[target]
                    elif target not in seen and len(seen) < self._hops_max:
                        seen.add(target)
                        waiting.append(target)
            has_led = led and not (message is None and here.by_headers)
            if not has_led and here.alternate is not None and here.alternate not in seen:
                seen.add(here.alternate)
                waiting.append(here.alternate)
        return tuple(queues.values()), fixed, max(steps + targets, 1)


def _headers(message: Message) -> Headers:
    """None, if they make no sense: a store, or a peer, has let it in."""
    try:
        return message.properties().headers or _NO_HEADERS
    except ProtocolError:
        return _NO_HEADERS


def copies(message: Message, hidden: bool = True) -> list[str]:
    """The further routing keys of a message: of its header CC and, if those are asked for, of BCC."""
    if not (message.has_headers and COPIES in message.header):
        return []
    return copies_of(_headers(message), hidden)


def copies_of(headers: Headers, hidden: bool = True) -> list[str]:
    """The same, of a table of headers."""
    keys: list[str] = []
    for name in HEADERS if hidden else HEADERS[:1]:
        value = headers.get(name)
        if isinstance(value, Sequence) and not isinstance(value, str | bytes):
            keys += [key for key in value if isinstance(key, str)]
    return keys


def hidden_copies(properties: Properties) -> bool:
    """Whether there is a BCC, which nobody may see."""
    return "BCC" in (properties.headers or {})
