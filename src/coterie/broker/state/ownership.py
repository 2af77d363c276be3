"""Ownership: only the consumers of one broker get a queue's messages at a time (`dispatch = "ownership"`).

A broker is interested in a queue while one of its consumers has room for a message (of those with the highest priority
that has any); the first to be interested is the owner. The owner gives a queue up when it is not interested any more,
when it is lost, or when it has had it long enough and others are interested; then the next one in the circle of those
who consume it is the owner. One that alone is interested keeps it.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from coterie.broker.state.broker_state import BrokerState
from coterie.broker.state.holders import Holder
from coterie.broker.state.holding import WAKE
from coterie.broker.state.queue_state import QueueState
from coterie.broker.state.rooms import room_of
from coterie.broker.state.sharing import OWN
from coterie.broker.state.step import Step


def consumers_changed(step: Step, queue: QueueState) -> None:
    peers = [*dict.fromkeys(holder.peer for holder in queue.consumers())]
    before, owner, tenure = queue.tenure, queue.owner, queue.tenure
    if owner and owner not in peers:
        owner = next((peer for peer in _successors(queue.circle, owner) if peer in peers), 0)
        tenure += 1
    circle = [peer for peer in queue.circle if peer in peers]
    circle += [peer for peer in peers if peer not in circle]
    _own(step, queue, owner, tenure, circle)
    if _review(step, queue) or queue.tenure != before:
        _start(step, queue)


def room_changed(step: Step, queue: QueueState, holder: Holder) -> None:
    """A consumer has got something, or has room again: so have, or have not, those that share its limit."""
    queues = {queue.number: queue}
    if holder.pool is not None:
        for _, (number, _) in sorted(holder.pool.members.items()):
            queues.setdefault(number, step.state.queues[number])
    for each in queues.values():
        if each.circle and _review(step, each):
            _start(step, each)


def share(step: Step, queue: QueueState, peer: int, tenure: int) -> None:
    """The owner has had it long enough."""
    if queue.owner == peer and queue.tenure == tenure and _give_up(step, queue, interested(step.state, queue)):
        _start(step, queue)


def interested(state: BrokerState, queue: QueueState) -> Collection[int]:
    hungry = [each for each in queue.consumers() if each.active and room_of(state, queue, each) > 0]
    best = max((each.priority for each in hungry), default=0)
    return {each.peer for each in hungry if each.priority == best}


def _review(step: Step, queue: QueueState) -> bool:
    found = interested(step.state, queue)
    return queue.owner not in found and _give_up(step, queue, found)


def _give_up(step: Step, queue: QueueState, to: Collection[int]) -> bool:
    """It goes to the next in the circle who is interested. Whether there was anybody."""
    circle = _successors(queue.circle, queue.owner) if queue.owner else queue.circle
    heir = next((peer for peer in circle if peer in to), 0)
    if heir:
        _own(step, queue, heir, queue.tenure + 1, queue.circle)
    return heir != 0


def _successors(circle: Sequence[int], peer: int) -> Sequence[int]:
    if peer not in circle:
        return circle
    at = circle.index(peer)
    return [*circle[at + 1 :], *circle[:at]]


def _own(step: Step, queue: QueueState, owner: int, tenure: int, circle: Sequence[int]) -> None:
    if (owner, tenure, tuple(circle)) != (queue.owner, queue.tenure, queue.circle):
        step.do(OWN, queue, owner, tenure, tuple(circle))


def _start(step: Step, queue: QueueState) -> None:
    """The new owner's consumers may be served; the others find that they have no room."""
    for each in [*queue.consumers()]:
        if each.peer == queue.owner and each.active and not each.hungry:
            step.do(WAKE, queue, each.id)
            step.schedule(queue)
