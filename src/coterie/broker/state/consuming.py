"""Policy: consumers come and go, say what they may hold, and are lost with their broker; basic.get."""

from __future__ import annotations

from collections.abc import Collection
from typing import NamedTuple

from coterie.broker.state import ownership
from coterie.broker.state.allocation import take, wake
from coterie.broker.state.holders import Holder, PoolKey
from coterie.broker.state.holding import ADD, REST, UPDATE, WAKE, NewHolder, Terms, terms_of
from coterie.broker.state.leaving import formed, leave
from coterie.broker.state.marks import COUNT
from coterie.broker.state.messages import ACQUIRE, SENT
from coterie.broker.state.queue_state import QueueState
from coterie.broker.state.settling import forget_if_idle, freed, give_back, given_back, settle_owed
from coterie.broker.state.sharing import DROP_POOL, POOL, UNREADY
from coterie.broker.state.step import Step
from coterie.broker.state.vocabulary import Count, HolderKind, Reason


class Prefetch(NamedTuple):
    """What a consumer may hold, and what it may hold together with others of its channel."""

    limit: int
    pool: PoolKey | None = None
    pool_limit: int = 0
    """0: as much as they like."""


def in_exclusive_use(queue: QueueState, exclusive: bool) -> bool:
    """Whether a further consumer is refused, as somebody has the queue, or wants it, alone."""
    others = [*queue.consumers()]
    taken = any(other.exclusive for other in others)
    return taken or (exclusive and (bool(others) or queue.config.single_active))


def subscribe(step: Step, queue: QueueState, new: NewHolder, prefetch: Prefetch) -> int | None:
    """Gives the number of the holder; None: the queue is in exclusive use."""
    assert new.kind is HolderKind.CONSUMER
    if in_exclusive_use(queue, new.exclusive):
        return None
    number = queue.next_holder
    step.do(ADD, queue, new)
    _set_pool(step, prefetch)
    single = queue.config.single_active
    step.do(UPDATE, queue, number, Terms(not single, False, prefetch.limit, prefetch.pool))
    if not single:
        step.do(WAKE, queue, number)
    elif not any(other.active for other in queue.consumers()):
        _activate(step, queue)
    _changed(step, queue)
    step.schedule(queue)
    return number


def cancel(step: Step, queue: QueueState, holder: int) -> None:
    """It is given nothing more. What it holds stays with it, until it settles that."""
    found = queue.holders.get(holder)
    if found is None or found.kind is not HolderKind.CONSUMER or found.ended:
        return
    if found.hungry:
        step.do(REST, queue, holder)
    was_active = found.active
    step.do(UPDATE, queue, holder, terms_of(found)._replace(active=False, ended=True))
    if queue.config.single_active and was_active:
        _activate(step, queue)
    _changed(step, queue)
    if any(queue.consumers()):
        step.schedule(queue)
    forget_if_idle(step, queue, found)


def credit(step: Step, queue: QueueState, holder: int, prefetch: Prefetch | None, sent: int = 0) -> None:
    """Other limits apply to a consumer; or so many were sent to one that acknowledges nothing."""
    found = queue.holders.get(holder)
    if found is None or found.kind is not HolderKind.CONSUMER or found.ended:
        return
    if prefetch is not None:
        before = found.pool
        _set_pool(step, prefetch)
        step.do(UPDATE, queue, holder, terms_of(found)._replace(limit=prefetch.limit, pool=prefetch.pool))
        if before is not None and not before.users:
            step.do(DROP_POOL, None, *before.key)
        freed(step, queue, found)
    if sent and found.no_ack and found.used:
        step.do(SENT, queue, holder, min(sent, found.used))
        freed(step, queue, found)


def set_ready(step: Step, peer: int, queues: Collection[int]) -> None:
    """That broker has all messages of these queues."""
    for number in sorted(step.state.unready.get(peer, set()).intersection(queues)):
        step.do(UNREADY, None, peer, number, False)
    all_ready = peer not in step.state.unready
    for queue, holder in _consumers_of(step, peer):
        if queue.number in queues or (holder.no_ack and all_ready):
            wake(step, queue, holder)


def set_unready(step: Step, peer: int, queues: Collection[int]) -> None:
    """It has not: a broker that has just joined."""
    for number in sorted({*queues} - step.state.unready.get(peer, set())):
        step.do(UNREADY, None, peer, number, True)


def lose(step: Step, peer: int) -> None:
    """A broker is gone: everything that it held goes back to its place, and may have been seen."""
    for queue, holder in _consumers_of(step, peer):
        cancel(step, queue, holder.id)
    for _, queue in sorted(step.state.queues.items()):
        lost = [
            holder for holder in queue.holders.values() if holder.peer == peer and holder.kind is not HolderKind.LEASE
        ]
        for holder in lost:
            release_all(step, queue, holder)
        if lost:
            given_back(step, queue)
        for holder in lost:
            freed(step, queue, holder)
    for number in sorted(step.state.unready.get(peer, ())):
        step.do(UNREADY, None, peer, number, False)


def release_all(step: Step, queue: QueueState, holder: Holder) -> None:
    if holder.owed:
        settle_owed(step, queue, holder, formed(holder.owed))
    if holder.held:
        give_back(step, queue, holder, formed(holder.held.copy()), counted=True)


class Got(NamedTuple):
    holder: int
    """0: nobody's, as it needs no acknowledgement."""
    position: int
    redelivered: bool


def get(step: Step, queue: QueueState, peer: int, number: int, no_ack: bool) -> Got | None:
    """The next one for whoever asks; `number`: of whoever settles it. None: there is none."""
    taken = take(step, queue, 1)
    if not taken:
        return None
    positions = taken[0]
    position = positions[0][0]
    redelivered = queue.redelivered_in(positions) > 0
    if no_ack:
        step.do(COUNT, queue, Count.GOT_NO_ACK, 1)
        if redelivered:
            step.do(COUNT, queue, Count.REDELIVERED, 1)
        leave(step, queue, 0, positions, Reason.GOT)
        return Got(0, position, redelivered)
    getter = next(
        (each.id for each in queue.holders.values()
         if each.kind is HolderKind.GETTER and each.peer == peer and each.number == number), 0,
    )  # fmt: skip
    if not getter:
        getter = queue.next_holder
        step.do(ADD, queue, NewHolder(HolderKind.GETTER, peer, number))
    step.do(ACQUIRE, queue, getter, positions)
    return Got(getter, position, redelivered)


def _set_pool(step: Step, prefetch: Prefetch) -> None:
    if prefetch.pool is not None:
        pool = step.state.pools.get(prefetch.pool)
        if pool is None or pool.limit != prefetch.pool_limit:
            step.do(POOL, None, *prefetch.pool, prefetch.pool_limit)


def _activate(step: Step, queue: QueueState) -> None:
    """The one that came first among those of the highest priority."""
    others = [*queue.consumers()]
    if others:
        chosen = max(others, key=lambda other: (other.priority, -other.id))
        step.do(UPDATE, queue, chosen.id, terms_of(chosen)._replace(active=True))
        if not chosen.hungry:
            step.do(WAKE, queue, chosen.id)


def _changed(step: Step, queue: QueueState) -> None:
    if step.state.ownership:
        ownership.consumers_changed(step, queue)


def _consumers_of(step: Step, peer: int) -> list[tuple[QueueState, Holder]]:
    """By the numbers that their broker gives them."""
    found = [(queue, each) for queue in step.state.queues.values() for each in queue.consumers() if each.peer == peer]
    return sorted(found, key=lambda pair: (pair[1].number, pair[0].number))
