"""The switchboard of a vhost: exchanges, queues, bindings and policies, each with what hangs on it.

Whatever ends takes with it what cannot be without it: a queue its bindings, a binding the auto-delete exchange that
it was the last one of. What is durable is told to the store, change by change. `wiring` decides what may be done;
here it is done.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from coterie.broker import records
from coterie.broker.arguments import QUEUE_TYPE
from coterie.broker.counters import Churn, Counters
from coterie.broker.exchange import BindingId, Exchange, Target, binding_id, make_exchange
from coterie.broker.journal import restore_attributes, restore_key
from coterie.broker.limits import FOLLOWING, effective
from coterie.broker.policy import Policy, by_precedence, choose
from coterie.broker.router import Router
from coterie.broker.settings import BrokerSettings
from coterie.broker.specs import DIRECT, FANOUT, HEADERS, TOPIC, Binding, ExchangeSpec, QueueSpec
from coterie.broker.storage import Record, Store

if TYPE_CHECKING:
    from coterie.broker.following.followed_queue import Replica
    from coterie.broker.queue import Queue

PREDECLARED: Final = (
    ExchangeSpec("amq.direct", DIRECT, True),
    ExchangeSpec("amq.fanout", FANOUT, True),
    ExchangeSpec("amq.headers", HEADERS, True),
    ExchangeSpec("amq.match", HEADERS, True),
    ExchangeSpec("amq.topic", TOPIC, True),
)


class Switchboard(ABC):
    """What a vhost is wired like."""

    def __init__(self, name: str, settings: BrokerSettings, store: Store) -> None:
        self.name = name
        self.settings = settings
        self.store = store
        self.journal = store.journal
        self.exchanges: dict[str, Exchange] = {spec.name: make_exchange(spec) for spec in PREDECLARED}
        """Without the default exchange, which has no bindings of its own: its routing keys are names of queues."""
        self.queues: dict[str, Queue] = {}
        self.policies: dict[str, Policy] = {}
        self.operator_policies: dict[str, Policy] = {}
        self._ordered: dict[bool, list[Policy]] = {}
        """Operator policies, and the others, by precedence; not there since one has changed."""
        self.limits: dict[str, int] = {}
        """`max-queues`, `max-connections`."""
        self.churn = Churn()
        self.gone = Counters()
        """Of queues that were deleted: with those of the others, totals that never fall."""
        self.wiring = 0
        """Grows with every change of exchanges, queues and bindings."""
        self.router = Router(self.exchanges, self.queues, settings)
        self.binding_count = 0
        self._owned: dict[object, dict[str, Queue]] = {}
        """Exclusive queues, by their connection."""
        self._leading_to: dict[Target, dict[tuple[str, BindingId], Binding]] = {}

    def exchange_name(self, name: str) -> str:
        """For texts."""
        return f"exchange '{name}' in vhost '{self.name}'"

    def queue_name(self, name: str) -> str:
        return f"queue '{name}' in vhost '{self.name}'"

    @property
    def empty(self) -> bool:
        """Wired as every new vhost is."""
        own = self.queues, self.policies, self.operator_policies, self.limits, self.binding_count
        return len(self.exchanges) == len(PREDECLARED) and not any(own)

    def bindings(self) -> Iterator[Binding]:
        """All but those of the default exchange."""
        return (binding for exchange in self.exchanges.values() for binding in exchange.bindings.values())

    def bindings_to(self, target: Target) -> list[Binding]:
        return list(self._leading_to.get(target, {}).values())

    # Exchanges.

    def add_exchange(self, spec: ExchangeSpec, save: bool = True) -> Exchange:
        made = make_exchange(spec)
        self._keep(self.exchanges, spec.name)
        exchange = self.exchanges[spec.name] = made
        self._apply_policies_to_exchange(exchange)
        self._changed()
        if save:
            key = records.key_of(self.name, spec.name)
            self._save(records.EXCHANGE, key, records.exchange_record(spec), spec.durable)
        return exchange

    def remove_exchange(self, exchange: Exchange) -> None:
        """With the bindings from it and to it, and the auto-delete exchanges that end with those."""
        if exchange.name not in self.exchanges:
            return
        self._keep(self.exchanges, exchange.name)
        del self.exchanges[exchange.name]
        for binding in list(exchange.bindings.values()):
            self._unlink(exchange, binding)
        self._changed()
        self._save(records.EXCHANGE, records.key_of(self.name, exchange.name), None, exchange.spec.durable)
        self._remove_bindings_to(("exchange", exchange.name))

    # Queues.

    @abstractmethod
    def make_queue(self, name: str, incarnation: int, spec: QueueSpec, owner: object | None) -> Queue:
        """A queue of this vhost, with its observers."""

    @abstractmethod
    def new_incarnation(self) -> int:
        """A number that no queue has had before."""

    def add_queue(
        self,
        name: str,
        spec: QueueSpec,
        owner: object | None = None,
        incarnation: int | None = None,
        save: bool = False,
    ) -> Queue:
        """With an incarnation: it comes from the store; or from another broker, then it is to be saved."""
        number = self.new_incarnation() if incarnation is None else incarnation
        queue = self.make_queue(name, number, spec, owner)
        if self.journal.on:
            self.journal.note(queue.stop)
        self._keep(self.queues, name)
        self.queues[name] = queue
        if owner is not None:
            self._keep_owned(owner)
            self._owned.setdefault(owner, {})[name] = queue
        self._apply_policies_to_queue(queue)
        queue.expiry.used()
        self.wiring += 1
        self.router.added(name)
        if incarnation is None:
            self.churn.created += 1
        if save or incarnation is None:
            self._save(records.QUEUE, records.key_of(self.name, name), records.queue_record(spec, number), kept(spec))
        return queue

    def remove_queue(self, queue: Queue) -> None:
        """With the bindings to it, and the auto-delete exchanges that end with those."""
        if self.queues.get(queue.name) is not queue:
            return
        self._keep(self.queues, queue.name)
        del self.queues[queue.name]
        self._keep_owned(queue.owner)
        self.churn.deleted += 1
        owned = self._owned.get(queue.owner, {})
        owned.pop(queue.name, None)
        if not owned:
            self._owned.pop(queue.owner, None)
        self._changed()
        self.store.begin()
        try:
            self._save(records.QUEUE, records.key_of(self.name, queue.name), None, kept(queue.spec))
            if queue.replica is not None:
                self._save(records.REPLICA, records.key_of(self.name, queue.name), None)
            if queue.window is not None:
                queue.window.clear()
            self._remove_bindings_to(("queue", queue.name))
            queue.delete()
            if self.journal.on:
                self.journal.note(restore_attributes, self.gone, *self.gone.image())
            self.gone.add(queue.counters)
        finally:
            self.store.end()

    def follow(self, queue: Queue, replica: Replica) -> None:
        """It has this of another broker's queue, and follows it unless it was promoted."""
        queue.keep()
        queue.replica = replica
        self.wiring += 1
        self._apply_policies_to_queue(queue)

    def owned_by(self, owner: object) -> list[Queue]:
        """A connection's exclusive queues."""
        return list(self._owned.get(owner, {}).values())

    # Bindings.

    def add_binding(self, binding: Binding, save: bool = True) -> None:
        exchange = self.exchanges[binding.source]
        if binding_id(binding) in exchange.bindings:
            return
        if self.journal.on:
            self.journal.note(self._forget_binding, exchange, binding, self.binding_count)
        exchange.add(binding)
        target: Target = (binding.kind, binding.destination)
        self._leading_to.setdefault(target, {})[binding.source, binding_id(binding)] = binding
        self.binding_count += 1
        self._changed()
        if save:
            self._save(records.BINDING, records.binding_key(self.name, binding), {}, self._durable(binding))

    def remove_binding(self, binding: Binding) -> None:
        exchange = self.exchanges[binding.source]
        if self._unlink(exchange, binding) and exchange.spec.auto_delete and not exchange.bindings:
            self.remove_exchange(exchange)

    def _unlink(self, exchange: Exchange, binding: Binding) -> bool:
        if binding_id(binding) not in exchange.bindings:
            return False
        if self.journal.on:
            self.journal.note(self._link_again, exchange, binding, self.binding_count)
        exchange.remove(binding)
        target: Target = (binding.kind, binding.destination)
        leading = self._leading_to[target]
        del leading[binding.source, binding_id(binding)]
        if not leading:
            del self._leading_to[target]
        self.binding_count -= 1
        self._changed()
        # If it was not saved, no harm is done.
        self._save(records.BINDING, records.binding_key(self.name, binding), None, exchange.spec.durable)
        return True

    def _remove_bindings_to(self, target: Target) -> None:
        """One auto-delete exchange may end the next one: a list, so that no chain is too long."""
        ended = [target]
        for gone in ended:
            for binding in self.bindings_to(gone):
                exchange = self.exchanges[binding.source]
                if self._unlink(exchange, binding) and exchange.spec.auto_delete and not exchange.bindings:
                    self._keep(self.exchanges, exchange.name)
                    del self.exchanges[exchange.name]
                    self._save(records.EXCHANGE, records.key_of(self.name, exchange.name), None, exchange.spec.durable)
                    ended.append(("exchange", exchange.name))

    def _durable(self, binding: Binding) -> bool:
        if not self.exchanges[binding.source].spec.durable:
            return False
        if binding.kind == "queue":
            return kept(self.queues[binding.destination].spec)
        return self.exchanges[binding.destination].spec.durable

    # Policies and limits.

    def put_policy(self, name: str, policy: Policy | None, operator: bool = False, save: bool = True) -> None:
        """Set it, or take it away; it applies to what exists at once."""
        policies = self.operator_policies if operator else self.policies
        if policy is None and name not in policies:
            return
        self._keep(policies, name)
        if policy is not None:
            policies[name] = policy
        else:
            del policies[name]
        self._ordered.clear()
        # Only where it applied, or is to apply, anything changes: the other policies need not be searched for again.
        for queue in list(self.queues.values()):
            applies = queue.operator_policy if operator else queue.policy
            if applies == name or (policy is not None and policy.matches(queue.name, _kind(queue))):
                self._apply_policies_to_queue(queue)
        for exchange in self.exchanges.values() if not operator else ():
            if exchange.policy == name or (policy is not None and policy.matches(exchange.name, "exchanges")):
                self._apply_policies_to_exchange(exchange)
        self._changed()
        if save:
            kind = records.OPERATOR_POLICY if operator else records.POLICY
            record = None if policy is None else records.policy_record(policy)
            self._save(kind, records.key_of(self.name, name), record)

    def _choose(self, operator: bool, name: str, kind: str) -> Policy | None:
        ordered = self._ordered.get(operator)
        if ordered is None:
            policies = self.operator_policies if operator else self.policies
            ordered = self._ordered[operator] = by_precedence(policies.values())
        return choose(ordered, name, kind)

    def _apply_policies_to_queue(self, queue: Queue) -> None:
        queue.keep()
        policy, operator = (self._choose(each, queue.name, _kind(queue)) for each in (False, True))
        queue.policy = None if policy is None else policy.name
        queue.operator_policy = None if operator is None else operator.name
        definitions = [{} if each is None else each.definition for each in (policy, operator)]
        limits = effective(queue.spec.arguments, *definitions)
        if queue.replica is not None and not queue.replica.promoted:
            queue.set_limits(FOLLOWING)
        elif queue.home is None:
            queue.set_limits(limits)
        else:
            self.journal.apart(partial(queue.set_limits, limits), "a queue that is on one broker alone: its limits")

    def _apply_policies_to_exchange(self, exchange: Exchange) -> None:
        policy = self._choose(False, exchange.name, "exchanges")
        if self.journal.on:
            names = ("alternate", "policy")
            self.journal.note(restore_attributes, exchange, names, (exchange.alternate, exchange.policy))
        if policy is None:
            exchange.set_policy({}, None)
        else:
            exchange.set_policy(policy.definition, policy.name)

    def put_limit(self, name: str, value: int | None, save: bool = True) -> None:
        self._keep(self.limits, name)
        if value is None:
            self.limits.pop(name, None)
        else:
            self.limits[name] = value
        if save:
            self._save(records.LIMIT, records.key_of(self.name, name), None if value is None else {"value": value})

    def _save(self, kind: str, key: str, record: Record | None, durable: bool = True) -> None:
        if self.journal.effects.on:
            self.journal.effects.record(kind, key, record)
        if durable:
            self.store.save(kind, key, record)

    def _changed(self) -> None:
        self.wiring += 1
        self.router.changed()

    # What a step may have to take back.

    def _keep(self, table: dict[str, Any], key: str) -> None:
        if self.journal.on:
            self.journal.note(self._put_again, table, key, table.get(key))

    def _put_again(self, table: dict[str, Any], key: str, value: object) -> None:
        restore_key(table, key, value)
        self._ordered.clear()
        self._changed()

    def _keep_owned(self, owner: object) -> None:
        if self.journal.on:
            owned = self._owned.get(owner)
            self.journal.note(restore_key, self._owned, owner, None if owned is None else dict(owned))

    def _forget_binding(self, exchange: Exchange, binding: Binding, count: int) -> None:
        exchange.remove(binding)
        target: Target = (binding.kind, binding.destination)
        leading = self._leading_to.get(target, {})
        leading.pop((binding.source, binding_id(binding)), None)
        if not leading:
            self._leading_to.pop(target, None)
        self.binding_count = count
        self._changed()

    def _link_again(self, exchange: Exchange, binding: Binding, count: int) -> None:
        exchange.add(binding)
        target: Target = (binding.kind, binding.destination)
        self._leading_to.setdefault(target, {})[binding.source, binding_id(binding)] = binding
        self.binding_count = count
        self._changed()


def _kind(queue: Queue) -> str:
    """As `apply-to` of a policy has it."""
    return f"{queue.spec.arguments.get(QUEUE_TYPE, 'classic')}_queues"


def kept(spec: QueueSpec) -> bool:
    """Whether a queue outlives the broker: an exclusive one does not outlive its connection, durable or not."""
    return spec.durable and not spec.exclusive
