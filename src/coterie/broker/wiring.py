"""Changes of the wiring, and the other decisions about a vhost that every broker must take alike.

Each is a small object that says what is wanted; `apply` does it, or raises the ProtocolError that the client gets, on
the state that there is when its turn has come. Refusals are those of RabbitMQ: codes and the sense of the texts.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Generic, TypeVar

from coterie.amqp.wire.codes import ACCESS_REFUSED, COMMAND_INVALID, NOT_ALLOWED, PRECONDITION_FAILED, RESOURCE_LOCKED
from coterie.broker import validation
from coterie.broker.arguments import EXCHANGE_CHECKS, QUEUE_CHECKS, check_same, check_same_arguments
from coterie.broker.exchange import binding_id
from coterie.broker.specs import EXCHANGE_KINDS, Binding, ExchangeSpec, QueueSpec
from coterie.errors import ProtocolError, UserError

if TYPE_CHECKING:
    from coterie.broker.policy import Policy
    from coterie.broker.queue import Queue
    from coterie.broker.vhost import Vhost

R_co = TypeVar("R_co", covariant=True)
RESERVED: Final = "amq."


class Change(ABC, Generic[R_co]):
    """One decision."""

    @abstractmethod
    def apply(self, vhost: Vhost) -> R_co: ...


def _not_reserved(kind: str, name: str) -> None:
    if name.startswith(RESERVED):
        raise ProtocolError(ACCESS_REFUSED, f"{kind} name '{name}' contains reserved prefix '{RESERVED}*'")


def not_default(name: str) -> None:
    """Raises ProtocolError 403 for the default exchange, which is nobody's to change."""
    if not name:
        raise ProtocolError(ACCESS_REFUSED, "operation not permitted on the default exchange")


def locked(queue: Queue) -> ProtocolError:
    return ProtocolError(
        RESOURCE_LOCKED,
        f"cannot obtain exclusive access to locked {queue.what}. It could be originally declared on another "
        "connection or the exclusive property value does not match that of the original declaration.",
    )


@dataclass(frozen=True, slots=True)
class DeclareExchange(Change[None]):
    spec: ExchangeSpec

    def apply(self, vhost: Vhost) -> None:
        validation.refuse(validation.short_text(self.spec.name), "name of an exchange")
        spec, what = self.spec, vhost.exchange_name(self.spec.name)
        not_default(spec.name)
        if spec.kind not in EXCHANGE_KINDS:
            raise ProtocolError(
                COMMAND_INVALID, f"unknown exchange type '{spec.kind}' (there are: {', '.join(EXCHANGE_KINDS)})"
            )
        existing = vhost.exchanges.get(spec.name)
        if existing is not None:
            for name in ("kind", "durable", "auto_delete", "internal"):
                check_same("type" if name == "kind" else name, getattr(existing.spec, name), getattr(spec, name), what)
            check_same_arguments(existing.spec.arguments, spec.arguments, EXCHANGE_CHECKS, what)
            return
        _not_reserved("exchange", spec.name)
        spec.check(what)
        if len(vhost.exchanges) >= vhost.settings.exchanges_max:
            raise ProtocolError(PRECONDITION_FAILED, f"cannot declare {what}: there are too many (exchanges_max)")
        vhost.add_exchange(spec)


@dataclass(frozen=True, slots=True)
class DeleteExchange(Change[None]):
    name: str
    if_unused: bool = False

    def apply(self, vhost: Vhost) -> None:
        not_default(self.name)
        _not_reserved("exchange", self.name)
        exchange = vhost.exchanges.get(self.name)
        if exchange is None:
            return
        if self.if_unused and exchange.bindings:
            raise ProtocolError(PRECONDITION_FAILED, f"{vhost.exchange_name(self.name)} in use")
        vhost.remove_exchange(exchange)


@dataclass(frozen=True, slots=True)
class DeclareQueue(Change["Queue"]):
    name: str
    spec: QueueSpec
    owner: object | None = None
    """The connection that declares it."""
    chosen: bool = False
    """The name is the broker's choice: it may begin as it likes."""

    def apply(self, vhost: Vhost) -> Queue:
        validation.refuse(validation.name(self.name), "name of a queue")
        spec, what = self.spec, vhost.queue_name(self.name)
        vhost.churn.declared += 1
        existing = vhost.queues.get(self.name)
        if existing is not None:
            if existing.owner is not (self.owner if spec.exclusive else None):
                raise locked(existing)
            check_same("durable", existing.spec.durable, spec.durable, what)
            check_same("auto_delete", existing.spec.auto_delete, spec.auto_delete, what)
            check_same_arguments(existing.spec.arguments, spec.arguments, QUEUE_CHECKS, what)
            existing.expiry.used()
            return existing
        if not self.chosen:
            _not_reserved("queue", self.name)
        spec.check(what)
        limit = min(vhost.limits.get("max-queues", vhost.settings.queues_max), vhost.settings.queues_max)
        if len(vhost.queues) >= limit:
            raise ProtocolError(PRECONDITION_FAILED, f"cannot declare {what}: the limit of {limit} queues is reached")
        return vhost.add_queue(self.name, spec, self.owner if spec.exclusive else None)


@dataclass(frozen=True, slots=True)
class DeleteQueue(Change[int]):
    """Gives how many messages were ready in it."""

    name: str
    if_unused: bool = False
    if_empty: bool = False
    owner: object | None = None

    def apply(self, vhost: Vhost) -> int:
        queue = vhost.queues.get(self.name)
        if queue is None:
            return 0
        vhost.check_owner(queue, self.owner)
        count = self.check(queue)
        vhost.remove_queue(queue)
        return count

    @property
    def conditional(self) -> bool:
        """It depends on who consumes the queue, or on what is in it."""
        return self.if_unused or self.if_empty

    def check(self, queue: Queue) -> int:
        """How many messages would go. Raises ProtocolError if it must stay."""
        if self.if_unused and (queue.consumers or queue.leases):
            raise ProtocolError(PRECONDITION_FAILED, f"{queue.what} in use")
        if self.if_empty and (queue.ready or queue.leases.count):
            raise ProtocolError(PRECONDITION_FAILED, f"{queue.what} is not empty")
        return queue.ready


@dataclass(frozen=True, slots=True)
class EndQueue(Change[None]):
    """A queue's own end: its owner is gone, or nobody has used it for too long."""

    name: str
    incarnation: int
    unused: bool = False
    """Only if it has no consumers, and no leases."""

    def apply(self, vhost: Vhost) -> None:
        queue = vhost.queues.get(self.name)
        if queue is None or queue.incarnation != self.incarnation:
            return
        if not (self.unused and (queue.consumers or queue.leases)):
            vhost.remove_queue(queue)


@dataclass(frozen=True, slots=True)
class EndOwner(Change[None]):
    """A connection is gone, and its exclusive queues with it: also one whose declaration was still under way."""

    owner: object

    def apply(self, vhost: Vhost) -> None:
        for queue in vhost.owned_by(self.owner):
            vhost.remove_queue(queue)


@dataclass(frozen=True, slots=True)
class Bind(Change[None]):
    binding: Binding
    owner: object | None = None

    def apply(self, vhost: Vhost) -> None:
        binding = self.binding
        binding.check()
        not_default(binding.source)
        source = vhost.exchange(binding.source)
        _check_destination(vhost, binding, self.owner)
        source.check(binding)
        if vhost.binding_count >= vhost.settings.bindings_max:
            raise ProtocolError(PRECONDITION_FAILED, "cannot bind: there are too many bindings (bindings_max)")
        vhost.add_binding(binding)


@dataclass(frozen=True, slots=True)
class Unbind(Change[None]):
    """It is no error if there is no such binding, nor if one of its ends is missing."""

    binding: Binding
    owner: object | None = None

    def apply(self, vhost: Vhost) -> None:
        binding = self.binding
        binding.check()
        not_default(binding.source)
        source = vhost.exchanges.get(binding.source)
        if source is not None and binding_id(binding) in source.bindings:
            _check_destination(vhost, binding, self.owner)
            vhost.remove_binding(binding)


def _check_destination(vhost: Vhost, binding: Binding, owner: object | None) -> None:
    if binding.kind == "queue":
        vhost.queue(binding.destination, owner)
    else:
        not_default(binding.destination)
        vhost.exchange(binding.destination)


@dataclass(frozen=True, slots=True)
class Purge(Change[int]):
    name: str
    owner: object | None = None

    def apply(self, vhost: Vhost) -> int:
        return vhost.queue(self.name, self.owner).purge()


@dataclass(frozen=True, slots=True)
class CountQueue(Change[tuple[int, int]]):
    """How many messages are ready, and how many consumers there are. It counts as a use of the queue."""

    name: str
    owner: object | None = None

    def apply(self, vhost: Vhost) -> tuple[int, int]:
        queue = vhost.queue(self.name, self.owner)
        queue.expiry.used()
        return queue.ready, len(queue.consumers)


@dataclass(frozen=True, slots=True)
class Move(Change[int]):
    """Up to `count` ready messages from the head of one queue to the tail of another; gives how many."""

    source: str
    destination: str
    count: int

    def apply(self, vhost: Vhost) -> int:
        source, destination = vhost.queue(self.source), vhost.queue(self.destination)
        if source is destination:
            raise ProtocolError(PRECONDITION_FAILED, f"cannot move from {source.what} to itself")
        if source.home is not None:
            raise ProtocolError(PRECONDITION_FAILED, f"cannot move from {source.what}: a cluster does not replicate it")
        vhost.store.begin()
        try:
            messages = source.take_out(self.count)
            if not destination.elsewhere:
                destination.enqueue(messages)
        finally:
            vhost.store.end()
        return len(messages)


@dataclass(frozen=True, slots=True)
class SetPolicy(Change[None]):
    policy: Policy
    operator: bool = False

    def apply(self, vhost: Vhost) -> None:
        try:
            self.policy.check(self.operator)
        except UserError as error:
            raise ProtocolError(PRECONDITION_FAILED, str(error)) from None
        policies = vhost.operator_policies if self.operator else vhost.policies
        if self.policy.name not in policies and len(policies) >= vhost.settings.policies_max:
            raise ProtocolError(PRECONDITION_FAILED, "there are too many policies (policies_max)")
        vhost.put_policy(self.policy.name, self.policy, self.operator)


@dataclass(frozen=True, slots=True)
class ClearPolicy(Change[None]):
    name: str
    operator: bool = False

    def apply(self, vhost: Vhost) -> None:
        vhost.put_policy(self.name, None, self.operator)


LIMITS: Final = ("max-queues", "max-connections")
_LIMIT: Final = validation.Whole(0)


@dataclass(frozen=True, slots=True)
class SetLimit(Change[None]):
    """Of a vhost; None: no limit."""

    name: str
    value: int | None

    def apply(self, vhost: Vhost) -> None:
        if self.name not in LIMITS:
            raise ProtocolError(NOT_ALLOWED, f"a vhost has no limit '{self.name}' (there are: {', '.join(LIMITS)})")
        if self.value is not None:
            validation.refuse(_LIMIT(self.value), f"limit '{self.name}' of a vhost")
        vhost.put_limit(self.name, self.value)
