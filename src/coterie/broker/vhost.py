"""A virtual host: a broker of its own, with exchanges, queues, bindings and policies that know nothing of others.

The first half is what front doors call; every call has a completion, because in a cluster it may come later. The
second half is the steps behind it, which only the cluster and the changes in `wiring` call.
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Protocol, TypeVar

from coterie.amqp.wire.codes import ACCESS_REFUSED, NOT_FOUND, PRECONDITION_FAILED
from coterie.broker import wiring
from coterie.broker.delivery import Delivery, HeldRanges
from coterie.broker.exchange import Exchange, binding_id
from coterie.broker.following import followed_queue, permission
from coterie.broker.following.steps import Answer, Step, answered, decode
from coterie.broker.graveyard import Dead, Graveyard
from coterie.broker.journal import restore_attributes
from coterie.broker.message import Message
from coterie.broker.message_codec import Malformed, Routes
from coterie.broker.observer import QueueObserver, Reason
from coterie.broker.publish import Publish, Routed, gather
from coterie.broker.queues import make_queue
from coterie.broker.specs import REPLICATION, Binding, ExchangeSpec, QueueSpec
from coterie.broker.switchboard import Switchboard, kept
from coterie.broker.transaction import Transaction
from coterie.errors import ProtocolError

if TYPE_CHECKING:
    from coterie.broker.cluster import Cluster
    from coterie.broker.consumer import Consumer
    from coterie.broker.policy import Policy
    from coterie.broker.queue import Queue
    from coterie.broker.ranges import Range
    from coterie.broker.settings import BrokerSettings
    from coterie.broker.storage import Store
    from coterie.broker.traced import BrokerTrace
    from coterie.broker.users import User
    from coterie.runtime.base import Buffer, Runtime

R = TypeVar("R")


def _nothing() -> None:
    pass


class PseudoQueue(Protocol):
    """Something that is published to by name through the default exchange and is no queue: a direct reply-to."""

    def enqueue(self, messages: Sequence[Message], /) -> object: ...


@dataclass(frozen=True, slots=True)
class Got:
    """What basic.get gives."""

    delivery: Delivery
    left: int
    """How many are ready after it."""


class Vhost(Switchboard):
    """One virtual host."""

    def __init__(
        self,
        name: str,
        runtime: Runtime,
        settings: BrokerSettings,
        store: Store,
        cluster: Cluster,
        number: Callable[[], int],
    ) -> None:
        super().__init__(name, settings, store)
        self.runtime = runtime
        self.cluster = cluster
        self.observers: list[QueueObserver] = []
        """That every queue has from its beginning."""
        self.traced: BrokerTrace | None = None
        """If somebody asked for a trace."""
        self.pseudo: dict[str, PseudoQueue] = {}
        self.published = 0
        """Messages that came in."""
        self.deleted = False
        self.exhausted: Callable[[], bool] = lambda: False
        """Whether nothing new is to be made, as memory runs out."""
        self.refused_step: Callable[[str, str], None] = lambda user, why: None
        """Told of steps of a replication that their user may not take, and why."""
        self._number = number
        self.graveyard = Graveyard(self)
        self._routes = Routes()
        self._unsafe = 0
        """The place in the store's log up to which publishers wait."""

    def make_queue(self, name: str, incarnation: int, spec: QueueSpec, owner: object | None) -> Queue:
        queue = make_queue(self, name, incarnation, spec, self.runtime, owner)
        if self.store.durable and kept(spec) and self.cluster.keeps(spec):
            queue.observers.append(self.store)
            self.store.opened(queue)
        queue.observers += self.observers
        for observer in self.observers:
            observer.opened(queue)
        self.cluster.opened(queue)
        if self.traced is not None:
            self.traced.declared(queue)
        return queue

    def new_incarnation(self) -> int:
        return self.cluster.new_incarnation() or self._number()

    # What clients want.

    def publish(self, publishes: Sequence[Publish], done: Callable[[], None], user: User | None = None) -> None:
        """Route and enqueue. What was refused or could not be routed is marked at once; `done` once the others are as
        safe as they ask to be, which later ones may be before. `user`: for whom; None: the broker itself, which sends
        no steps of a replication."""
        self.published += len(publishes)
        batch = gather(self, publishes, self._commit)
        if self.traced is not None:
            self.traced.routed(batch.routed)
        for step in batch.steps:
            self._take_step(step, user)
        self.cluster.publish(self, batch.routed, done, publishes)
        if batch.replies or batch.refused:
            batch.finish()

    def _commit(self, routed: Routed) -> None:
        if self.traced is not None:
            self.traced.routed(routed)
        self.cluster.publish(self, routed, _nothing)

    def work(self, exchange: str, key: str, route: bytes, copies: Sequence[str]) -> int:
        """What publishing there costs at most (`Router.reach`), with the letters of what makes room for it. Raises
        TooManySteps."""
        queues, work = self.router.reach(exchange, key, route, copies)
        for queue in queues:
            limits = queue.limits
            if limits.dead_exchange is not None and limits.bounded:
                work += self.graveyard.work(queue, key)
        return work

    def takes_steps(self, exchange: str) -> bool:
        """Whether what is published there are steps of another broker's link."""
        found = self.exchanges.get(exchange)
        return found is not None and found.spec.kind == REPLICATION

    def _take_step(self, publish: Publish, user: User | None) -> None:
        """Whether its user may is decided here, by the broker that it came to, and by nobody else."""
        data = publish.message.body
        try:
            step = decode(data, self._routes, whole=False)
        except Malformed as error:
            self._answer_step(publish, user, {"error": str(error)})
            return
        refused = permission.refusal(user, self.name, step)
        if refused:
            self.refused_step("" if user is None else user.name, refused)
            self._answer_step(publish, user, {"error": refused})
        else:
            self.cluster.replicate(self, data, partial(self._answer_step, publish, user))

    def _answer_step(self, publish: Publish, user: User | None, answer: Answer) -> None:
        if "error" in answer:
            publish.refused = True
        elif user is not None:
            answer = permission.visible(user, self.name, answer)
        asked = publish.message.properties()
        pseudo = self.pseudo.get(asked.reply_to or "")
        if pseudo is not None:
            pseudo.enqueue([answered(asked, answer)])

    def read_step(self, data: Buffer) -> Step | Answer:
        """What a link wants; or why it is nothing that anybody could want."""
        try:
            return decode(data, self._routes)
        except Malformed as error:
            return {"error": str(error)}

    def check_publish(self, exchange: str, user: User | None) -> None:
        """Raises ProtocolError if it cannot be published to: 404 no such exchange, 403 an internal one, or one that is
        for the links of other brokers, and the user is none."""
        if not exchange:
            return
        spec = self.exchange(exchange).spec
        if spec.internal:
            what = self.exchange_name(exchange)
            raise ProtocolError(ACCESS_REFUSED, f"cannot publish to internal {what}")
        permission.check_exchange(user, spec.kind)

    def transaction(
        self,
        publishes: Sequence[Publish],
        accepts: Sequence[HeldRanges],
        rejects: Sequence[HeldRanges],
        requeues: Sequence[HeldRanges],
        done: Callable[[ProtocolError | None], None],
    ) -> None:
        """All of it, or nothing. If a queue refuses one of the publishes (it is marked), or it cannot be carried out
        (that is the answer), nothing is published, and what was delivered goes back to its queues."""
        self.published += len(publishes)
        batch = gather(self, publishes)
        if batch.refused:
            for queue, refused in batch.refused.items():
                queue.counters.refused += len(refused)
            everything = [*accepts, *rejects, *requeues]
            self.cluster.transaction(self, Transaction(requeues=everything), done)
        else:
            self.cluster.transaction(self, Transaction(batch.routed, accepts, rejects, requeues), done, publishes)
            batch.finish()

    def _refuse_new(self, what: str) -> ProtocolError:
        return ProtocolError(PRECONDITION_FAILED, f"{what}: the broker has too much in memory for anything new")

    def declare_exchange(self, spec: ExchangeSpec, passive: bool, done: Callable[[ProtocolError | None], None]) -> None:
        if passive:
            try:
                wiring.not_default(spec.name)
                self.exchange(spec.name)
            except ProtocolError as error:
                done(error)
            else:
                done(None)
        elif self.exhausted() and spec.name not in self.exchanges:
            done(self._refuse_new(f"cannot declare {self.exchange_name(spec.name)}"))
        else:
            self.change(wiring.DeclareExchange(spec), done)

    def delete_exchange(self, name: str, if_unused: bool, done: Callable[[ProtocolError | None], None]) -> None:
        self.change(wiring.DeleteExchange(name, if_unused), done)

    def declare_queue(
        self,
        name: str,
        spec: QueueSpec,
        passive: bool,
        owner: object | None,
        done: Callable[[Queue | ProtocolError], None],
    ) -> None:
        """`owner`: the connection that asks. Without a name the broker makes one."""
        if passive:
            try:
                queue = self.queue(name, owner)
            except ProtocolError as error:
                done(error)
                return
            queue.expiry.used()
            done(queue)
        elif self.exhausted() and name not in self.queues:
            done(self._refuse_new(f"cannot declare {self.queue_name(name)}"))
        elif name:
            self.change(wiring.DeclareQueue(name, spec, owner), done)
        else:
            made = "amq.gen-" + base64.urlsafe_b64encode(self.runtime.entropy(16)).decode().rstrip("=")
            self.change(wiring.DeclareQueue(made, spec, owner, chosen=True), done)

    def delete_queue(
        self,
        name: str,
        if_unused: bool,
        if_empty: bool,
        done: Callable[[int | ProtocolError], None],
        owner: object | None = None,
    ) -> None:
        """Gives how many messages were ready."""
        self.change(wiring.DeleteQueue(name, if_unused, if_empty, owner), done)

    def bind(self, binding: Binding, done: Callable[[ProtocolError | None], None], owner: object | None = None) -> None:
        if self.exhausted():
            source = self.exchanges.get(binding.source)
            if source is not None and binding_id(binding) not in source.bindings:
                done(self._refuse_new("cannot bind"))
                return
        self.change(wiring.Bind(binding, owner), done)

    def unbind(
        self, binding: Binding, done: Callable[[ProtocolError | None], None], owner: object | None = None
    ) -> None:
        self.change(wiring.Unbind(binding, owner), done)

    def purge(self, name: str, done: Callable[[int | ProtocolError], None], owner: object | None = None) -> None:
        self.change(wiring.Purge(name, owner), done)

    def count(
        self, name: str, done: Callable[[tuple[int, int] | ProtocolError], None], owner: object | None = None
    ) -> None:
        """How many messages are ready, and how many consumers there are, also of a queue that is elsewhere."""
        self.change(wiring.CountQueue(name, owner), done)

    def move(self, source: str, destination: str, count: int, done: Callable[[int | ProtocolError], None]) -> None:
        self.change(wiring.Move(source, destination, count), done)

    def set_policy(self, policy: Policy, done: Callable[[ProtocolError | None], None], operator: bool = False) -> None:
        """Raises UserError at once for what is no policy."""
        policy.check(operator)
        self.change(wiring.SetPolicy(policy, operator), done)

    def clear_policy(self, name: str, done: Callable[[ProtocolError | None], None], operator: bool = False) -> None:
        self.change(wiring.ClearPolicy(name, operator), done)

    def set_limit(self, name: str, value: int | None, done: Callable[[ProtocolError | None], None]) -> None:
        """`max-queues` or `max-connections`; None: no limit."""
        self.change(wiring.SetLimit(name, value), done)

    def get(
        self,
        name: str,
        holder: object,
        no_ack: bool,
        done: Callable[[Got | ProtocolError | None], None],
        owner: object | None = None,
    ) -> None:
        """The next message of a queue for `holder`, if there is one."""
        try:
            queue = self.queue(name, owner)
            queue.cluster.check_use(queue)
        except ProtocolError as error:
            done(error)
            return
        queue.cluster.get(
            queue, holder, no_ack, lambda found: done(Got(found, queue.ready) if isinstance(found, Delivery) else found)
        )

    def consume(self, consumer: Consumer, done: Callable[[ProtocolError | None], None]) -> None:
        """`done` comes before its first message."""
        queue = consumer.queue
        try:
            if queue.deleted:
                raise ProtocolError(NOT_FOUND, f"no {queue.what}")
            queue.cluster.check_use(queue)
        except ProtocolError as error:
            done(error)
        else:
            queue.cluster.consume(consumer, done)

    def cancel(self, consumer: Consumer) -> None:
        """It is given nothing more. What it holds is its channel's to accept or release."""
        consumer.queue.cluster.cancel(consumer)

    def end(self, consumer: Consumer, done: Callable[[], None]) -> None:
        """The same, of one that is still there to take what is on its way to it: `done` when that has come."""
        consumer.queue.cluster.end(consumer, done)

    def close_owner(self, owner: object) -> None:
        """A connection is gone, and its exclusive queues with it."""
        self.change(wiring.EndOwner(owner), lambda _: None)

    def expire_queue(self, queue: Queue) -> None:
        """Nobody has used it for too long."""
        unused = queue.home is None  # consumers of one that has a home are known there alone, and it says so
        self.change(wiring.EndQueue(queue.name, queue.incarnation, unused), lambda _: None)

    def change(self, change: wiring.Change[R], done: Callable[[R | ProtocolError], None]) -> None:
        self.cluster.wiring(self, change, done)

    def clear(self) -> None:
        """The vhost ends, with everything in it."""
        if self.journal.on:
            self.journal.note(restore_attributes, self, ("deleted",), (self.deleted,))
        self.deleted = True
        self.store.begin()
        try:
            for queue in list(self.queues.values()):
                self.remove_queue(queue)
            for exchange in list(self.exchanges.values()):
                self.remove_exchange(exchange)
            for operator, policies in ((False, self.policies), (True, self.operator_policies)):
                for policy in list(policies):
                    self.put_policy(policy, None, operator)
            for limit in list(self.limits):
                self.put_limit(limit, None)
        finally:
            self.store.end()

    # What there is.

    def exchange(self, name: str) -> Exchange:
        """Raises ProtocolError 404."""
        exchange = self.exchanges.get(name)
        if exchange is None:
            raise ProtocolError(NOT_FOUND, f"no {self.exchange_name(name)}")
        return exchange

    def queue(self, name: str, owner: object | None = None) -> Queue:
        """For `owner`, a connection; None is nobody's but the broker's own. Raises ProtocolError 404 or 405."""
        queue = self.queues.get(name)
        if queue is None:
            raise ProtocolError(NOT_FOUND, f"no {self.queue_name(name)}")
        self.check_owner(queue, owner)
        return queue

    def pseudo_queue(self, name: str) -> PseudoQueue | None:
        """Whoever waits for direct replies by that name, here or at another broker."""
        return self.pseudo.get(name) or self.cluster.replies_elsewhere(self, name)

    def check_owner(self, queue: Queue, owner: object | None) -> None:
        """Whether a connection may use the queue. Raises ProtocolError 405."""
        if owner is not None and queue.owner is not None and queue.owner is not owner:
            raise wiring.locked(queue)

    # Steps.

    def apply_publish(self, routed: Routed) -> None:
        """Each queue gets its messages; one that was deleted in between does not."""
        before = self.store.written()
        for queue, messages in routed.items():
            if not queue.deleted:
                if queue.window is not None:
                    queue.window.take(messages)
                    continue
                queue.enqueue(messages)
        self._note(before)

    def apply_transaction(self, transaction: Transaction) -> None:
        before = self.store.written()
        if self.traced is not None:
            self.traced.applying(transaction, self.name)
        self.store.begin()
        try:
            for queue, messages in transaction.routed.items():
                if queue.deleted:
                    continue
                if queue.window is not None:
                    queue.window.take(messages)
                else:
                    queue.enqueue(messages)
            for queue, holder, ranges in transaction.accepts:
                queue.apply_accept(holder, ranges)
            for queue, holder, ranges in transaction.rejects:
                queue.apply_reject(holder, ranges)
            for queue, holder, ranges in transaction.requeues:
                queue.apply_release(holder, ranges, redelivered=True)
        finally:
            self.store.end()
        if self.traced is not None:
            self.traced.applied()
        self._note(before)

    def apply_step(self, data: Buffer) -> Answer:
        """Of another broker's link: messages and the mark that covers them are one unit."""
        step = self.read_step(data)
        if not isinstance(step, Step):
            return step
        before = self.store.written()
        self.store.begin()
        try:
            answer = followed_queue.take(self, step)
        finally:
            self.store.end()
        self._note(before)
        return answer

    def _note(self, before: int) -> None:
        written = self.store.written()
        if written != before:
            self._unsafe = written

    def when_safe(self, done: Callable[[], None]) -> None:
        """Once everything that was published until now is as safe as it asks to be."""
        if self.store.synced() >= self._unsafe:
            done()
        else:
            self.store.when_synced(self._unsafe, done)

    def bury(
        self, queue: Queue, ranges: Sequence[Range], messages: Sequence[Message | None], reason: Reason,
        told: bool = True,
    ) -> None:  # fmt: skip
        """They have left a queue that has a dead-letter exchange. `told`: its observers are to hear of it."""
        self.graveyard.bury(Dead(queue, ranges, messages, reason, told))
