"""Exchanges: each kind is a way to find the bindings that a message goes along.

direct   bindings whose key is the routing key fanout   all bindings topic    bindings whose pattern matches the
routing key headers  bindings whose arguments match the headers: all of them (x-match all) or one (any); headers that
begin with x- count
         only for all-with-x and any-with-x
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from decimal import Decimal
from typing import Final

from coterie.amqp.wire.codes import PRECONDITION_FAILED
from coterie.amqp.wire.tables import encode_table
from coterie.broker.arguments import ALTERNATE
from coterie.broker.specs import DIRECT, FANOUT, HEADERS, REPLICATION, TOPIC, Binding, Destination, ExchangeSpec
from coterie.broker.topic import TopicTrie
from coterie.errors import ProtocolError

Target = tuple[Destination, str]
"""The kind and the name of what a binding leads to."""
BindingId = tuple[Destination, str, str, bytes]
"""Two bindings of an exchange with the same one are the same."""
Headers = Mapping[str, object]

_MATCHES: Final = ("all", "any", "all-with-x", "any-with-x")


def binding_id(binding: Binding) -> BindingId:
    arguments = {name: binding.arguments[name] for name in sorted(binding.arguments)}
    return binding.kind, binding.destination, binding.key, encode_table(arguments)  # type: ignore[arg-type]


class Exchange(ABC):
    """With its bindings."""

    by_headers = False
    """Routing depends on the headers: no routing key says where a message goes."""

    def __init__(self, spec: ExchangeSpec) -> None:
        self.spec = spec
        self.name = spec.name
        self.bindings: dict[BindingId, Binding] = {}
        self.policy: str | None = None
        self.alternate: str | None = None
        """Where a message goes that no binding takes; by argument or policy."""
        self.was_bound = False
        self.set_policy({}, None)

    def set_policy(self, definition: Mapping[str, object], name: str | None) -> None:
        """Another policy applies. An argument wins over it."""
        alternate = self.spec.arguments.get(ALTERNATE, definition.get(ALTERNATE))
        self.alternate = alternate if isinstance(alternate, str) else None
        self.policy = name

    def check(self, binding: Binding) -> None:
        """Raises ProtocolError 406 for arguments that this kind cannot use."""

    def add(self, binding: Binding) -> bool:
        """False: it was there already."""
        identity = binding_id(binding)
        if identity in self.bindings:
            return False
        self.bindings[identity] = binding
        self.was_bound = True
        self._link(identity, binding)
        return True

    def remove(self, binding: Binding) -> bool:
        """False: it was not there."""
        identity = binding_id(binding)
        if self.bindings.pop(identity, None) is None:
            return False
        self._unlink(identity, binding)
        return True

    @abstractmethod
    def route(self, key: str, headers: Headers, most: int) -> tuple[Iterable[Target], int]:
        """Where the bindings lead, one target may come more than once; and how many steps it took to find out, but one
        for each target. Raises TooManySteps if these would be more than `most`."""

    def leads(self, key: str, most: int) -> tuple[Iterable[Target], int]:
        """The same, at most, whatever headers a message has."""
        return self.route(key, {}, most)

    @abstractmethod
    def _link(self, identity: BindingId, binding: Binding) -> None: ...

    @abstractmethod
    def _unlink(self, identity: BindingId, binding: Binding) -> None: ...


class DirectExchange(Exchange):
    def __init__(self, spec: ExchangeSpec) -> None:
        super().__init__(spec)
        self._by_key: dict[str, dict[BindingId, Target]] = {}

    def route(self, key: str, headers: Headers, most: int) -> tuple[Iterable[Target], int]:
        return self._by_key.get(key, {}).values(), 0

    def _link(self, identity: BindingId, binding: Binding) -> None:
        self._by_key.setdefault(binding.key, {})[identity] = binding.kind, binding.destination

    def _unlink(self, identity: BindingId, binding: Binding) -> None:
        targets = self._by_key[binding.key]
        del targets[identity]
        if not targets:
            del self._by_key[binding.key]


class FanoutExchange(Exchange):
    def route(self, key: str, headers: Headers, most: int) -> tuple[Iterable[Target], int]:
        return [(binding.kind, binding.destination) for binding in self.bindings.values()], 0

    def _link(self, identity: BindingId, binding: Binding) -> None:
        pass

    def _unlink(self, identity: BindingId, binding: Binding) -> None:
        pass


class TopicExchange(Exchange):
    def __init__(self, spec: ExchangeSpec) -> None:
        super().__init__(spec)
        self._trie: TopicTrie[BindingId, Target] = TopicTrie()

    def route(self, key: str, headers: Headers, most: int) -> tuple[Iterable[Target], int]:
        return self._trie.match(key, most)

    def _link(self, identity: BindingId, binding: Binding) -> None:
        self._trie.add(binding.key, identity, (binding.kind, binding.destination))

    def _unlink(self, identity: BindingId, binding: Binding) -> None:
        self._trie.remove(binding.key, identity)


class HeadersExchange(Exchange):
    by_headers = True

    def __init__(self, spec: ExchangeSpec) -> None:
        super().__init__(spec)
        self._matchers: dict[BindingId, tuple[Callable[[Headers], bool], Target]] = {}

    def check(self, binding: Binding) -> None:
        match = binding.arguments.get("x-match", "all")
        if match not in _MATCHES:
            raise ProtocolError(
                PRECONDITION_FAILED, f"invalid x-match field value {match!r}; expected one of {', '.join(_MATCHES)}"
            )

    def route(self, key: str, headers: Headers, most: int) -> tuple[Iterable[Target], int]:
        return [target for matches, target in self._matchers.values() if matches(headers)], len(self._matchers)

    def leads(self, key: str, most: int) -> tuple[Iterable[Target], int]:
        return [target for _, target in self._matchers.values()], len(self._matchers)

    def _link(self, identity: BindingId, binding: Binding) -> None:
        self._matchers[identity] = _matcher(binding.arguments), (binding.kind, binding.destination)

    def _unlink(self, identity: BindingId, binding: Binding) -> None:
        del self._matchers[identity]


class ReplicationExchange(Exchange):
    """What is published to it are steps of another broker's link, for queues that follow (`broker.following`)."""

    def set_policy(self, definition: Mapping[str, object], name: str | None) -> None:
        """No alternate exchange: by one, whoever sets policies would get the messages of steps, and the link would be
        told that they are safe."""
        self.policy = name

    def check(self, binding: Binding) -> None:
        raise ProtocolError(
            PRECONDITION_FAILED, f"exchange '{self.name}' takes no bindings: each step that comes to it names its queue"
        )

    def route(self, key: str, headers: Headers, most: int) -> tuple[Iterable[Target], int]:
        return (), 0

    def _link(self, identity: BindingId, binding: Binding) -> None:
        pass

    def _unlink(self, identity: BindingId, binding: Binding) -> None:
        pass


def _matcher(arguments: Headers) -> Callable[[Headers], bool]:
    match = str(arguments.get("x-match", "all"))
    with_x = match.endswith("-with-x")
    wanted = [
        (name, value)
        for name, value in arguments.items()
        if name != "x-match" and (with_x or not name.startswith("x-"))
    ]
    every = all if match.startswith("all") else any

    def matches(headers: Headers) -> bool:
        return every(name in headers and _equal(value, headers[name]) for name, value in wanted)

    return matches


def _equal(wanted: object, value: object) -> bool:
    """No value: any will do. Types must be of one class, as in RabbitMQ: 1 is neither "1" nor true, but any integer."""
    if wanted is None:
        return True
    return _type_class(wanted) is _type_class(value) and wanted == value


def _type_class(value: object) -> type:
    return float if isinstance(value, Decimal) else type(value)


_KINDS: Final[dict[str, type[Exchange]]] = {
    DIRECT: DirectExchange,
    FANOUT: FanoutExchange,
    TOPIC: TopicExchange,
    HEADERS: HeadersExchange,
    REPLICATION: ReplicationExchange,
}


def make_exchange(spec: ExchangeSpec) -> Exchange:
    return _KINDS[spec.kind](spec)
