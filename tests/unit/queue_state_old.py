"""A broker's queue, whose own code decides, driven as the ordered log drives it: for comparison with the queue state.

Consumers are those of a cluster, with their limits and pools; time is what the test says; whatever is to follow from an
event follows at its end.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from broker_rig import Rig, headers, text
from queue_state_model import Item
from queue_view import Seen, in_order, seen, those

from coterie.amqp.wire.properties import Properties
from coterie.broker.cluster import NullCluster
from coterie.broker.delivery import Delivery, ranges_of
from coterie.broker.leases import LeaseStep
from coterie.broker.limits import Limits
from coterie.broker.message import make_message
from coterie.broker.observer import QueueObserver, Reason
from coterie.broker.queue import Queue
from coterie.broker.ranges import END
from coterie.broker.settings import BrokerSettings
from coterie.cluster.consumers import Getter, Peer, Subscriber
from coterie.cluster.local_queues import enqueue
from coterie.cluster.queue_ownership import Owners
from coterie.errors import ProtocolError
from coterie.group.members import Address

DEAD = "dead"
"""The queue for dead letters."""


class Ordered(NullCluster):
    """Time and the ends of events are the test's."""

    def __init__(self) -> None:
        self.time = 0.0
        self.calls: list[Callable[[], None]] = []

    def now(self) -> float:
        return self.time

    def wall(self) -> float:
        return self.time

    def soon(self, call: Callable[[], None]) -> None:
        self.calls.append(call)

    def expire(self, queue: Queue) -> None:
        """Whoever keeps the time says so in an event."""

    def end_event(self) -> None:
        while self.calls:
            self.calls.pop(0)()


class Circle(QueueObserver):
    def __init__(self, owners: Owners) -> None:
        self.owners = owners

    def consumers_changed(self, queue: Queue) -> None:
        self.owners.consumers_changed(queue)


class Refusals:
    def __init__(self) -> None:
        self.refused: list[str] = []

    def refuse(self, messages: list[Any]) -> None:
        self.refused += [message.body.decode() for message in messages]


class OldQueue:
    def __init__(self, arguments: dict[str, object], batch: int, ownership: bool) -> None:
        self.cluster = Ordered()
        settings = BrokerSettings(memory_high=0, dispatch_batch=batch, lease_rows_max=5)
        self.rig = Rig(settings, cluster=self.cluster)
        self.dead = self.rig.declare(DEAD)
        self.queue = self.rig.declare("q", dict(arguments))  # type: ignore[arg-type]
        self.journal = self.rig.broker.journal
        self.owners = Owners(self.journal) if ownership else None
        if self.owners is not None:
            self.queue.observers.append(Circle(self.owners))
        self.peers = {number: Peer(Address(f"p{number}", 1), self.journal, self.owners) for number in (1, 2, 3)}
        self.given: list[tuple[int, str, bool]] = []
        """The consumer's number, body, flag."""
        self.letters: list[tuple[str, str]] = []
        for peer in self.peers.values():
            peer.allotted = self._allotted

    def _allotted(self, subscriber: Subscriber, delivery: Delivery) -> None:
        self.given += [(subscriber.number, message.body.decode(), flag) for _, message, flag in delivery.rows()]

    def event(self, time: int, decide: Callable[[], Any]) -> Any:
        self.cluster.time = time / 1e6
        self.given = []
        result = decide()
        self.cluster.end_event()
        found = [*seen(self.dead).values()]
        self.letters = sorted((str(headers(entry)["x-last-death-reason"]), text(entry)) for entry in found)
        self.dead.purge()
        self.cluster.end_event()
        return result

    def limits(self, limits: Limits) -> None:
        self.queue.set_limits(limits)

    def publish(self, items: list[Item], bodies: list[str]) -> list[str]:
        refusals = Refusals()
        messages = [
            make_message("", "q", body.encode(), Properties(
                expiration=None if item.ttl is None else str(item.ttl), priority=item.priority,
                headers=None if item.key is None else {"k": item.key[0]},
                message_id=None if item.id is None else f"id{item.id[0]}", delivery_mode=1 if item.transient else 2,
            ))
            for item, body in zip(items, bodies, strict=True)
        ]  # fmt: skip
        enqueue(self.queue, messages, refusals)  # type: ignore[arg-type]
        return refusals.refused

    def subscribe(
        self,
        peer: int,
        number: int,
        no_ack: bool,
        exclusive: bool,
        priority: int,
        limit: int,
        pool: tuple[int, int] | None,
    ) -> bool:
        found = self.peers[peer]
        shared = None if pool is None else found.pool(*pool)
        subscriber = Subscriber(
            f"c{number}", self.queue, found, no_ack, exclusive, priority, {}, found, number, limit, shared, {}
        )
        found.add(subscriber)
        try:
            self.queue.subscribe(subscriber)
        except ProtocolError:
            found.drop(subscriber)
            return False
        return True

    def cancel(self, peer: int, number: int) -> None:
        subscriber = self.peers[peer].subscribers.get(number)
        if subscriber is not None:
            self.peers[peer].drop(subscriber)
            self.queue.unsubscribe(subscriber)

    def credit(self, peer: int, number: int, limit: int, pool: tuple[int, int] | None) -> None:
        found = self.peers[peer]
        subscriber = found.subscribers.get(number)
        if subscriber is not None:
            found.allow(subscriber, limit, None if pool is None else found.pool(*pool))

    def sent(self, peer: int, number: int, count: int) -> None:
        subscriber = self.peers[peer].subscribers.get(number)
        if subscriber is not None and subscriber.no_ack and subscriber.held:
            self.peers[peer].free(subscriber, min(count, subscriber.held))

    def settle(self, peer: int, positions: list[int], what: str) -> None:
        for holder, ranges in self.peers[peer].settled(self.queue.incarnation, ranges_of(positions)):
            if what == "accept":
                self.queue.apply_accept(holder, ranges)
            elif what == "reject":
                self.queue.apply_reject(holder, ranges)
            else:
                self.queue.apply_release(holder, ranges, what == "release")

    def get(self, peer: int, number: int, no_ack: bool) -> str | None:
        getter = self.peers[peer].getter
        found = self.queue.get(getter, no_ack)
        if found is not None and not no_ack:
            self.peers[peer].hold(self.queue.incarnation, getter, found.ranges)
        return None if found is None else found.messages[0].body.decode()

    def lose(self, number: int) -> None:
        peer = self.peers[number]
        for _, subscriber in sorted(peer.subscribers.items()):
            peer.drop(subscriber)
            self.queue.unsubscribe(subscriber)
        for holder, ranges in peer.settled(self.queue.incarnation, [(0, END)]):
            self.queue.apply_release(holder, ranges, True)
        peer.unready.clear()

    def due(self) -> list[Seen]:
        return those(self.queue, self.queue.table.heads_over(self.cluster.now(), 1 << 30))

    def expire(self, bodies: set[str]) -> int:
        entries = [e for e in seen(self.queue).values() if e.holder is None and text(e) in bodies]
        if entries:
            self.queue.leave(ranges_of([entry.position for entry in entries]), Reason.EXPIRED)
        return len(entries)

    def lease(self, **said: Any) -> tuple[int, bool]:
        """Retires or acquires, releases, ends."""
        answer = LeaseStep(name="l", user="u", session="s", **said).apply(self.queue)
        return answer.acquired, answer.more

    # What is compared, by bodies.

    def shape(self) -> dict[str, Any]:
        held: dict[str, list[str]] = {}
        offsets: dict[int, str] = {}
        for entry in seen(self.queue).values():
            if entry.holder is not None:
                held.setdefault(_name(entry.holder), []).append(text(entry))
        for lease in self.queue.leases:
            for piece in lease.pieces:
                for at in range(piece.last - piece.first + 1):
                    offsets[piece.offset + at] = text(seen(self.queue)[piece.first + at])
        entries = seen(self.queue).values()
        subscribers = {number: each for peer in self.peers.values() for number, each in peer.subscribers.items()}
        owner = None if self.owners is None else self.owners.of(self.queue)
        return {
            "ready": [text(entry) for entry in in_order(self.queue)],
            "held": {name: sorted(bodies) for name, bodies in held.items()},
            "flagged": sorted(text(entry) for entry in entries if entry.redelivered),
            "deliveries": {text(entry): entry.deliveries for entry in entries},
            "bytes": (self.queue.ready, self.queue.ready_bytes, self.queue.bytes),
            "accounts": {number: each.held for number, each in subscribers.items()},
            "rooms": {number: each.room for number, each in subscribers.items()},
            "turns": [each.number for each in self.queue.rotation.turns() if isinstance(each, Subscriber)],
            "active": sorted(number for number, each in subscribers.items() if each.active),
            "offsets": offsets,
            "owner": 0 if owner is None or owner.owner is None else int(owner.owner.address.name[1:]),
            "counters": {
                name: value for name, value in self.queue.counters.as_dict().items() if name not in UNCOUNTED
            },
            "expires": {text(e): None if e.expires is None else round(e.expires * 1e6) for e in entries},
        }  # fmt: skip


UNCOUNTED = ("dead_lettered", "unwritable")
"""Counted by whoever sends the letters."""


def _name(holder: object) -> str:
    if isinstance(holder, Subscriber):
        return f"consumer {holder.number}"
    return f"getter of {holder.peer.address.name[1:]}" if isinstance(holder, Getter) else "lease "
