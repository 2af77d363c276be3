"""Policy: what becomes of messages that somebody holds. What is not held by that holder, or no more, is left alone."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from coterie.broker.ranges import Range
from coterie.broker.state.allocation import wake
from coterie.broker.state.fitting import fit
from coterie.broker.state.holders import Holder
from coterie.broker.state.holding import REMOVE, UPDATE, Terms
from coterie.broker.state.leaving import formed, held_of, leave, normal, without
from coterie.broker.state.messages import LEAVE, RELEASE, SENT, SETTLE_OWED
from coterie.broker.state.positions import Positions, as_set, ranges_of
from coterie.broker.state.queue_state import QueueState
from coterie.broker.state.sharing import DROP_POOL
from coterie.broker.state.step import Step
from coterie.broker.state.vocabulary import GONE, HolderKind, Kind, Reason

_LEASE: Final = HolderKind.LEASE
_ACCEPTED: Final = Reason.ACCEPTED
_CONSUMER: Final = HolderKind.CONSUMER


def accept(step: Step, queue: QueueState, holder: int, ranges: Sequence[Range]) -> None:
    """They are done with."""
    _settle(step, queue, holder, ranges, _ACCEPTED)


def reject(step: Step, queue: QueueState, holder: int, ranges: Sequence[Range]) -> None:
    """They die, or are dropped."""
    _settle(step, queue, holder, ranges, Reason.REJECTED)


def _settle(step: Step, queue: QueueState, holder: int, ranges: Sequence[Range], reason: Reason) -> None:
    found = queue.holders.get(holder)
    if found is None or found.kind is _LEASE:
        return
    positions = normal(ranges)
    owed = found.owed.count > 0 and settle_owed(step, queue, found, positions)
    held = held_of(positions, found.held)
    if held:
        if reason is _ACCEPTED:
            step.do(LEAVE, queue, holder, reason, GONE, held)
        else:
            leave(step, queue, holder, held, reason)
    if held or owed:
        freed(step, queue, found)


def release(step: Step, queue: QueueState, holder: int, ranges: Sequence[Range], counted: bool) -> None:
    """Back to their places; `counted`: somebody may have seen them."""
    found = queue.holders.get(holder)
    if found is None or found.kind is _LEASE:
        return
    positions = normal(ranges)
    owed = settle_owed(step, queue, found, positions)
    held = held_of(positions, found.held)
    if held:
        give_back(step, queue, found, held, counted)
        given_back(step, queue)
    if held or owed:
        freed(step, queue, found)


def settle_owed(step: Step, queue: QueueState, holder: Holder, positions: Positions) -> bool:
    """What has left the queue already is off the holder's account. Whether there was any of it."""
    owed = held_of(positions, holder.owed) if holder.owed else None
    if owed:
        step.do(SETTLE_OWED, queue, holder.id, owed)
    return bool(owed)


def give_back(step: Step, queue: QueueState, holder: Holder, held: Positions, counted: bool) -> None:
    """By the rules: a value that was replaced does not come back, nor what was given back too often."""
    if queue.config.kind is Kind.LAST_VALUE:
        replaced = queue.last_values.replaced_in(ranges_of(held))
        if replaced:
            leave(step, queue, holder.id, formed(replaced), Reason.REPLACED)
            held = without(held, replaced)
    limit = queue.limits.delivery_limit
    if limit is not None and counted and held:
        exhausted = queue.deliveries.above(as_set(held), limit - 1)
        if exhausted:
            leave(step, queue, holder.id, formed(exhausted), Reason.EXHAUSTED)
            held = without(held, exhausted)
    if held:
        step.do(RELEASE, queue, holder.id, held, counted)


def given_back(step: Step, queue: QueueState) -> None:
    """Some came back."""
    fit(step, queue, arrived=False)
    step.schedule(queue)


def freed(step: Step, queue: QueueState, holder: Holder) -> None:
    """It holds less than it did: it may be given more, and so may those that share its limit. One that is cancelled and
    holds nothing any more is forgotten."""
    if holder.pool is None:
        if holder.kind is _CONSUMER:
            wake(step, queue, holder)
    else:
        for _, (number, member) in sorted(holder.pool.members.items()):
            other = step.state.queues[number]
            wake(step, other, other.holders[member])
    forget_if_idle(step, queue, holder)


def forget_if_idle(step: Step, queue: QueueState, holder: Holder) -> None:
    if holder.held.count or holder.owed.count or (holder.kind is _CONSUMER and not holder.ended):
        return
    if holder.kind is _LEASE or (holder.used and not holder.no_ack):
        return
    pool = holder.pool
    if holder.kind is _CONSUMER:
        if holder.used:  # it acknowledges nothing, and nobody will say what was sent
            step.do(SENT, queue, holder.id, holder.used)
        if pool is not None:
            step.do(UPDATE, queue, holder.id, Terms(False, True, 0, None))
    step.do(REMOVE, queue, holder.id)
    if pool is not None and not pool.users:
        step.do(DROP_POOL, None, *pool.key)
