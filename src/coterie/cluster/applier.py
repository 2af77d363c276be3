"""The applier: events in the order of the log become steps of the broker, on every node alike (the cluster plan's
Applier).

It is called with events that are in order, one after the other, and never by a connection. What it decides depends on
the log and on nothing else: not on this node's clock, its sockets, or who asked.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import TYPE_CHECKING, Any

from coterie.amqp.wire.codes import INTERNAL_ERROR, NOT_FOUND
from coterie.broker import records
from coterie.broker.delivery import Delivery, HeldRanges
from coterie.broker.effects import SENT, UPDATE
from coterie.broker.journal import restore_attributes, restore_key
from coterie.broker.leases import Gone, LeaseStep
from coterie.broker.message_codec import Malformed, Routes, decode_messages
from coterie.broker.observer import QueueObserver, Reason
from coterie.broker.publish import Routed
from coterie.broker.ranges import END
from coterie.broker.transaction import Transaction
from coterie.broker.wiring import EndOwner
from coterie.cluster import changes, settling, wire
from coterie.cluster.consumers import Owner, Peer, Subscriber
from coterie.cluster.local_queues import NOWHERE, enqueue, has_home, sort_out
from coterie.cluster.settling import Settling, Share
from coterie.cluster.wire import Kind
from coterie.errors import ProtocolError

if TYPE_CHECKING:
    from coterie.broker.broker import Broker
    from coterie.broker.following.steps import Answer
    from coterie.broker.message import Message
    from coterie.broker.queue import Queue
    from coterie.cluster.local_queues import LocalQueues
    from coterie.cluster.outbox import Asked
    from coterie.cluster.queue_ownership import Owners
    from coterie.group.members import Address


class Applier(QueueObserver):
    """What the log has made of this broker, besides its queues: whose consumers there are, and what each holds."""

    def __init__(self, broker: Broker, local_queues: LocalQueues, owners: Owners | None = None) -> None:
        self.broker = broker
        self.journal = broker.journal
        self.local_queues = local_queues
        self.declaring: str | None = None
        """The broker whose declaration is being carried out; None: queues are those that the store has kept."""
        self.owners = owners
        """With `dispatch = "ownership"`: who owns which queue."""
        self.peers: dict[Address, Peer] = {}
        self.queues = local_queues.queues
        """By incarnation."""
        self.watch: Callable[[Queue], None] | None = None
        """While messages are bodiless: who wants to know where they come to."""
        self._routes = Routes()
        self._steps: dict[Kind, Callable[[Peer, memoryview, Asked | None], object]] = {
            Kind.PUBLISH: self._publish,
            Kind.FANOUT: self._fanout,
            Kind.ACCEPT: self._accept,
            Kind.RELEASE: self._release,
            Kind.REJECT: self._reject,
            Kind.CONSUME: self._consume,
            Kind.CANCEL: self._cancel,
            Kind.CREDIT: self._credit,
            Kind.GET: self._get,
            Kind.EXPIRE: self._expire,
            Kind.WIRING: self._wiring,
            Kind.TRANSACTION: self._transaction,
            Kind.ADMINISTRATION: self._administration,
            Kind.SHARE: self._share,
            Kind.REPLICATE: self._replicate,
            Kind.HOME: self._home,
            Kind.LEASE: self._lease,
        }

    def peer(self, address: Address) -> Peer:
        peer = self.peers.get(address)
        if peer is None:
            peer = self.peers[address] = Peer(address, self.journal, self.owners)
        return peer

    def apply(self, kind: Kind, sender: Address, data: memoryview, asked: Asked | None) -> object:
        """`asked`: what this node knows of its own event. Gives the answer to it. Whatever it raises follows from the
        event and from what all brokers have alike: the event is void, at every broker."""
        step = self._steps.get(kind)
        if step is None:
            raise Malformed(f"{kind.name} is no event of a broker")
        return step(self.peer(sender), data, asked)

    # Queues come and go.

    def opened(self, queue: Queue) -> None:
        if self.journal.on:
            self.journal.note(restore_key, self.queues, queue.incarnation, self.queues.get(queue.incarnation))
            self.journal.note(self.local_queues.forget, queue)
        self.queues[queue.incarnation] = queue
        queue.observers.append(self)
        if self.watch is not None:
            self.watch(queue)
        if has_home(queue.spec):
            self.local_queues.place(queue, self.declaring or NOWHERE)
        queue.observers.append(self.journal.effects)
        self.journal.effects.opened(queue)

    def deleted(self, queue: Queue) -> None:
        if self.journal.on:
            self.journal.note(restore_key, self.queues, queue.incarnation, self.queues.get(queue.incarnation))
        self.queues.pop(queue.incarnation, None)
        self.local_queues.forget(queue)
        if self.owners is not None:
            self.owners.forget(queue)

    def consumers_changed(self, queue: Queue) -> None:
        if self.owners is not None and queue.home is None:
            self.owners.consumers_changed(queue)

    def _share(self, peer: Peer, data: memoryview, asked: Asked | None) -> None:
        """An owner has had a queue long enough."""
        number, tenure = wire.read_share(data, wire.HEAD)
        queue = self.queues.get(number)
        if queue is not None and self.owners is not None:
            self.owners.shared(peer, queue, tenure)

    # Messages.

    def _publish(self, peer: Peer, data: memoryview, asked: Asked | None) -> None:
        if asked is not None and asked.routed:
            self._enqueue([*asked.routed.items()], asked)
        else:
            number, at = wire.read_queue(data, wire.HEAD)
            queue = self.queues.get(number)
            if queue is not None and not queue.elsewhere:
                messages = decode_messages(data, at, len(data), self._routes)
                self._enqueue([(queue, messages)], None)

    def _fanout(self, peer: Peer, data: memoryview, asked: Asked | None) -> None:
        if asked is not None and asked.routed:
            self._enqueue([*asked.routed.items()], asked)
        else:
            self._enqueue([*self._known(wire.decode_fanout(data, wire.HEAD, self._routes)).items()], None)

    def _known(self, lists: list[tuple[int, list[Message]]]) -> Routed:
        return {self.queues[number]: messages for number, messages in lists if number in self.queues}

    def _enqueue(self, lists: list[tuple[Queue, list[Message]]], asked: Asked | None) -> None:
        """Each queue gets its messages; one that was deleted in between does not, and a full one may refuse."""
        for queue, messages in lists:
            if queue.home is None:
                enqueue(queue, messages, asked)
            else:
                step = partial(enqueue, queue, messages, asked)
                if not self.journal.apart(step, "a publish to a queue of this broker") and asked is not None:
                    asked.refuse(messages)

    def _settled(self, peer: Peer, number: int, shares: Iterable[Share]) -> list[HeldRanges]:
        """What that one held of these is off its account. If the queue is gone, there is nothing else to do."""
        settled = [each for share in shares for each in peer.settled(number, share.ranges, share.holder)]
        queue = self.queues.get(number)
        return [] if queue is None else [HeldRanges(queue, holder, taken) for holder, taken in settled]

    def _accept(self, peer: Peer, data: memoryview, asked: Asked | None) -> None:
        for queue, holder, ranges in self._settled(peer, *settling.read_settle(data, wire.HEAD)):
            queue.apply_accept(holder, ranges)

    def _reject(self, peer: Peer, data: memoryview, asked: Asked | None) -> None:
        for queue, holder, ranges in self._settled(peer, *settling.read_settle(data, wire.HEAD)):
            queue.apply_reject(holder, ranges)

    def _release(self, peer: Peer, data: memoryview, asked: Asked | None) -> None:
        number, redelivered, shares = settling.read_release(data, wire.HEAD)
        for held in self._settled(peer, number, shares):
            self._give_back(held, redelivered)

    def _give_back(self, held: HeldRanges, redelivered: bool) -> None:
        """Nobody holds them any more, whatever becomes of them: if the queue's rules cannot be carried out, they are
        ready again without."""
        queue, holder, ranges = held
        step = partial(queue.apply_release, holder, ranges, redelivered)
        if not self.journal.apart(step, "a release by the rules"):
            queue.put_back(holder, ranges, redelivered)

    def _expire(self, peer: Peer, data: memoryview, asked: Asked | None) -> None:
        """The keeper of the time says so; what somebody has acquired by now has not expired."""
        number, shares = settling.read_settle(data, wire.HEAD)
        queue = self.queues.get(number)
        if queue is not None:
            for share in shares:
                queue.drop_ready(share.ranges, Reason.EXPIRED)

    def _get(self, peer: Peer, data: memoryview, asked: Asked | None) -> Delivery | None:
        number, _, no_ack = wire.read_get(data, wire.HEAD)
        queue = self.queues.get(number)
        if queue is None:
            return None
        found = queue.get(peer.getter, no_ack)
        if found is not None and not no_ack:
            peer.hold(number, peer.getter, found.ranges)
        return found

    def _lease(self, peer: Peer, data: memoryview, asked: Asked | None) -> object:
        said: Any = wire.decode_json(data[wire.HEAD :])
        number, step = said["queue"], LeaseStep.of(said["step"])
        queue = self.queues.get(number)
        if queue is None:
            return Gone(f"the queue of the lease '{step.name}' is gone")
        try:
            answer = self.journal.run(partial(step.apply, queue))
        except ProtocolError as error:
            return error
        return None if asked is None else answer.shape()

    def _transaction(self, peer: Peer, data: memoryview, asked: Asked | None) -> ProtocolError | None:
        """What of it is about queues of this broker alone may fail alone: then whoever asked is told."""
        said, lists = wire.decode_transaction(data, wire.HEAD, self._routes)
        routed = asked.routed if asked is not None and asked.routed else self._known(lists)
        at_home = {queue: messages for queue, messages in routed.items() if queue.home is not None}
        if at_home:  # what only one broker can decide says nothing about the rest of it
            routed = {queue: messages for queue, messages in routed.items() if queue.home is None}
        refused = [message for queue, messages in routed.items() for message in sort_out(queue, messages)[1]]
        accepts, rejects, requeues = (self._all_settled(peer, each) for each in settling.read_answers(said))
        if refused:
            if asked is not None:
                asked.refuse(refused)
            transaction = Transaction(requeues=[*accepts, *rejects, *requeues])
        else:
            transaction = Transaction(routed, accepts, rejects, requeues)
            self._enqueue([*at_home.items()], asked)
        error = None
        for vhost in self.broker.vhosts.values():
            part, here = _of_vhost(transaction, vhost.name, False), _of_vhost(transaction, vhost.name, True)
            if part is not None:
                vhost.apply_transaction(part)
            if here is not None:
                what = "a transaction in queues of this broker"
                if not self.journal.apart(partial(vhost.apply_transaction, here), what):
                    error = ProtocolError(INTERNAL_ERROR, f"partial tx completion: {what} has failed, see its log")
                    for held in (*here.accepts, *here.rejects, *here.requeues):
                        self._give_back(held, redelivered=True)
        return error

    def _all_settled(self, peer: Peer, settled: Settling) -> list[HeldRanges]:
        found: list[HeldRanges] = []
        for number, share in settled:
            queue = self.queues.get(number)
            if queue is not None and queue.home is not None:
                found += queue.held_now(share.ranges)
            else:
                found += self._settled(peer, number, [share])
        return found

    # Consumers.

    def _consume(self, peer: Peer, data: memoryview, asked: Asked | None) -> ProtocolError | None:
        said: Any = wire.decode_json(data[wire.HEAD :])
        queue = self.queues.get(said["queue"])
        if queue is None:
            return ProtocolError(NOT_FOUND, f"the queue of consumer '{said['tag']}' is gone")
        no_ack, exclusive = said["flags"]
        unpacked = records.unpack(said["args"])
        arguments = unpacked if isinstance(unpacked, dict) else {}
        subscriber = Subscriber(
            said["tag"], queue, peer, no_ack, exclusive, said["priority"], arguments,
            peer, said["number"], said["limit"], peer.pool(*said["pool"]),
            said.get("details", {}),
        )  # fmt: skip
        peer.add(subscriber)
        try:
            queue.subscribe(subscriber)
        except ProtocolError as error:
            peer.drop(subscriber)
            return error
        return None

    def _cancel(self, peer: Peer, data: memoryview, asked: Asked | None) -> None:
        subscriber = peer.subscribers.get(wire.read_credit(data, wire.HEAD).consumer)
        if subscriber is not None:
            self._end(peer, subscriber)

    def _end(self, peer: Peer, subscriber: Subscriber) -> None:
        """It is given nothing more, whatever its queue makes of that."""
        peer.drop(subscriber)
        queue = subscriber.queue
        if not self.journal.apart(partial(queue.unsubscribe, subscriber), "what follows from a consumer's end"):
            queue.forget(subscriber)

    def _credit(self, peer: Peer, data: memoryview, asked: Asked | None) -> None:
        said = wire.read_credit(data, wire.HEAD)
        subscriber, effects = peer.subscribers.get(said.consumer), self.journal.effects
        if subscriber is None:
            return
        if said.limit:
            peer.allow(subscriber, said.limit, peer.pool(said.pool, said.pool_limit))
            if effects.on:
                effects.consumer(subscriber.queue, UPDATE, subscriber, said.limit, said.pool, said.pool_limit)
        if said.sent:
            peer.free(subscriber, min(said.sent, subscriber.held))
            if effects.on:
                effects.consumer(subscriber.queue, SENT, subscriber, subscriber.held)

    # The wiring.

    def owner(self, peer: Peer, number: int) -> object:
        """A connection; of another node, what stands for it."""
        owner = peer.owners.get(number)
        if owner is None:
            if self.journal.on:
                self.journal.note(restore_key, peer.owners, number, None)
            owner = peer.owners[number] = Owner(peer, number)
        return owner

    def _wiring(self, peer: Peer, data: memoryview, asked: Asked | None) -> object:
        said = wire.decode_json(data[wire.HEAD :])
        vhost = self.broker.vhosts.get(str(said["vhost"]))
        if vhost is None:
            return ProtocolError(NOT_FOUND, f"vhost '{said['vhost']}' is gone")
        change = changes.decode(said, lambda number: self.owner(peer, number))
        if isinstance(change, EndOwner):
            if self.journal.on:
                self.journal.note(restore_attributes, peer, ("owners",), (peer.owners,))
            peer.owners = {number: owner for number, owner in peer.owners.items() if owner is not change.owner}
        self.declaring = str(peer.address)
        try:
            queue = self.local_queues.asked_about(vhost, change)
            if queue is not None:
                return self.local_queues.decide(peer, queue, change, asked)
            return self.journal.run(partial(change.apply, vhost))  # one that is refused half-way has not happened
        except ProtocolError as error:
            return error
        finally:
            self.declaring = None

    def _home(self, peer: Peer, data: memoryview, asked: Asked | None) -> None:
        self.local_queues.told(data[wire.HEAD :])

    def _administration(self, peer: Peer, data: memoryview, asked: Asked | None) -> object:
        said = wire.decode_json(data[wire.HEAD :])
        return self.broker.apply_administration(said)

    # Steps of another cluster's link.

    def _replicate(self, peer: Peer, data: memoryview, asked: Asked | None) -> Answer:
        name, step = wire.read_step(data, wire.HEAD)
        vhost = self.broker.vhosts.get(name)
        return {"error": f"vhost '{name}' is gone"} if vhost is None else vhost.apply_step(step)

    # Members that are lost.

    def lose(self, address: Address) -> None:
        """Everything that it held goes back to its place, and may have been seen; what belonged to it alone ends."""
        peer = self.peers.pop(address, None)
        if peer is None:
            return
        for _, subscriber in sorted(peer.subscribers.items()):
            self._end(peer, subscriber)
        for number in sorted(peer.held):
            for held in self._settled(peer, number, [Share(None, [(0, END)])]):
                self._give_back(held, redelivered=True)
        for vhost in self.broker.vhosts.values():
            for owner in peer.owners.values():
                for queue in vhost.owned_by(owner):
                    self.journal.apart(partial(vhost.remove_queue, queue), "the end of a queue whose owner is gone")


def _of_vhost(transaction: Transaction, name: str, at_home: bool) -> Transaction | None:
    def belongs(queue: Queue) -> bool:
        return queue.vhost.name == name and (queue.home is not None) == at_home

    routed = {queue: messages for queue, messages in transaction.routed.items() if belongs(queue)}
    accepts, rejects, requeues = (
        [held for held in part if belongs(held.queue)]
        for part in (transaction.accepts, transaction.rejects, transaction.requeues)
    )
    if not (routed or accepts or rejects or requeues):
        return None
    return Transaction(routed, accepts, rejects, requeues)
