"""Queue ownership: only the consumers of one broker get a queue's messages at a time (the cluster plan's
QueueOwnerHandler).

This is how the cluster plan shared a queue, and what `dispatch = "ownership"` does. Who owns which queue follows from
the log. A broker is interested in a queue while one of its consumers has room for a message (of those with the highest
priority that has any); the first to be interested is the owner. The owner gives a queue up when it is not interested
any more, when it is lost, or when it has had it long enough and others are interested (`cluster.ownership_time`); then
the next one in the circle of those who consume it is the owner. One that alone is interested keeps it.

With `dispatch = "credit"` all of this is off, and every consumer of the cluster gets messages in turn.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import TYPE_CHECKING

from coterie.broker.journal import Journal, restore_attributes, restore_key
from coterie.cluster.consumers import Peer, Subscriber

if TYPE_CHECKING:
    from coterie.broker.queue import Queue


class Ownership:
    """Of one queue: a pure matter of who consumes it, and who is interested."""

    __slots__ = ("_journal", "circle", "owner", "tenure")

    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        self.owner: Peer | None = None
        self.circle: list[Peer] = []
        """Who consumes the queue, in the order in which they came."""
        self.tenure = 0
        """How often it has changed hands."""

    def consumed_by(self, peers: Collection[Peer]) -> None:
        """Exactly these consume it now; in the circle a new one stands behind the others."""
        self._keep()
        if self.owner is not None and self.owner not in peers:
            successors = self._successors(self.owner)
            self._hand_to(next((peer for peer in successors if peer in peers), None))
        self.circle = [peer for peer in self.circle if peer in peers]
        self.circle = [*self.circle, *(peer for peer in peers if peer not in self.circle)]

    def review(self, interested: Collection[Peer]) -> bool:
        """An owner that is not interested gives it up, if anybody is. Whether it has changed hands."""
        return self.owner not in interested and self.give_up(interested)

    def give_up(self, interested: Collection[Peer]) -> bool:
        """It goes to the next in the circle who is interested. Whether there was anybody."""
        circle = self.circle if self.owner is None else self._successors(self.owner)
        heir = next((peer for peer in circle if peer in interested), None)
        if heir is None:
            return False
        self._hand_to(heir)
        return True

    def _successors(self, peer: Peer) -> list[Peer]:
        if peer not in self.circle:
            return self.circle
        at = self.circle.index(peer)
        return self.circle[at + 1 :] + self.circle[:at]

    def _keep(self) -> None:
        if self._journal.on:
            names = ("owner", "circle", "tenure")
            self._journal.note(restore_attributes, self, names, (self.owner, self.circle, self.tenure))

    def _hand_to(self, peer: Peer | None) -> None:
        self._keep()
        self.owner = peer
        self.tenure += 1


class Owners:
    """Of all queues, on one broker; the same on every other one."""

    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        self._queues: dict[Queue, Ownership] = {}
        self.owned: Callable[[Queue, int], None] = lambda queue, tenure: None
        """Told when a queue has changed hands, or somebody else consumes it: the owner's broker has to share it."""

    def of(self, queue: Queue) -> Ownership:
        found = self._queues.get(queue)
        if found is None:
            found = self._queues[queue] = Ownership(self._journal)
        return found

    def forget(self, queue: Queue) -> None:
        if self._journal.on:
            self._journal.note(restore_key, self._queues, queue, self._queues.get(queue))
        self._queues.pop(queue, None)

    def may_serve(self, peer: Peer, queue: Queue) -> bool:
        return self.of(queue).owner is peer

    def consumers_changed(self, queue: Queue) -> None:
        if queue.deleted:
            return
        found = self.of(queue)
        before = found.tenure
        found.consumed_by(dict.fromkeys(each.peer for each in queue.consumers if isinstance(each, Subscriber)))
        if found.review(self.interested(queue)) or found.tenure != before:
            self._start(queue, found)
        self._journal.after(self.owned, queue, found.tenure)

    def room_changed(self, queue: Queue) -> None:
        """A consumer has got something, or has room again."""
        found = self._queues.get(queue)
        if found is not None and found.review(self.interested(queue)):
            self._start(queue, found)
            self._journal.after(self.owned, queue, found.tenure)

    def shared(self, peer: Peer, queue: Queue, tenure: int) -> None:
        """The owner has had it long enough."""
        found = self.of(queue)
        if found.owner is peer and found.tenure == tenure and found.give_up(self.interested(queue)):
            self._start(queue, found)
            self._journal.after(self.owned, queue, found.tenure)

    @staticmethod
    def interested(queue: Queue) -> dict[Peer, None]:
        hungry = [each for each in queue.consumers if isinstance(each, Subscriber) and each.active and each.room > 0]
        best = max((each.priority for each in hungry), default=0)
        return dict.fromkeys(each.peer for each in hungry if each.priority == best)

    @staticmethod
    def _start(queue: Queue, found: Ownership) -> None:
        """The new owner's consumers may be served; the others find that they have no room."""
        effects = queue.journal.effects
        if effects.on:
            effects.owned(queue, "" if found.owner is None else str(found.owner.address), found.tenure)
        for each in queue.consumers:
            if isinstance(each, Subscriber) and each.peer is found.owner:
                queue.dispatcher.wake(each)
