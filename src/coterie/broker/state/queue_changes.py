"""Policy: what operators and declarations do to a queue as a whole."""

from __future__ import annotations

from collections.abc import Sequence

from coterie.broker.ranges import Range, Run
from coterie.broker.state.allocation import take, wake
from coterie.broker.state.fitting import fit
from coterie.broker.state.holding import SHRINK
from coterie.broker.state.leaving import formed, leave, leave_whoever_holds, normal
from coterie.broker.state.limits import QueueLimits
from coterie.broker.state.marks import CAP, FORGET, LEAP, LIMIT
from coterie.broker.state.messages import BURY
from coterie.broker.state.positions import Positions, as_set, common, ranges_of
from coterie.broker.state.publishing import MILLISECOND, forget_ids
from coterie.broker.state.queue_state import QueueConfig, QueueState
from coterie.broker.state.sharing import CREATE, DELETE, DROP_POOL
from coterie.broker.state.step import Step
from coterie.broker.state.vocabulary import Reason


def create(step: Step, number: int, config: QueueConfig, limits: QueueLimits) -> QueueState:
    step.do(CREATE, None, number, config, limits)
    return step.state.queues[number]


def delete(step: Step, queue: QueueState) -> None:
    """With everything in it. What others share a limit with its consumers may be given more."""
    step.do(DELETE, None, queue.number)
    step.scheduled.pop(queue.number, None)
    pools = {each.pool.key: each.pool for each in queue.holders.values() if each.pool is not None}
    for pool in pools.values():
        for _, (number, holder) in sorted(pool.members.items()):
            other = step.state.queues[number]
            wake(step, other, other.holders[holder])
        if not pool.users:
            step.do(DROP_POOL, None, *pool.key)


def set_limits(step: Step, queue: QueueState, limits: QueueLimits) -> None:
    """Another policy applies, also to what is in the queue."""
    before = queue.limits
    if limits == before:
        return
    step.do(LIMIT, queue, limits)
    if not limits.deduplicates:
        forget_ids(step, queue)
    if limits.ttl is not None and limits.ttl != before.ttl and queue.live:
        step.do(CAP, queue, step.state.time + limits.ttl * MILLISECOND)
    fit(step, queue, arrived=False)


def purge(step: Step, queue: QueueState) -> int:
    """Everything that is ready leaves; how much that was."""
    count = queue.ready.count
    if count:
        leave(step, queue, 0, formed(queue.ready.copy()), Reason.PURGED)
    return count


def take_out(step: Step, queue: QueueState, count: int) -> list[Run]:
    """Up to so many from the head leave for another queue; gives where they are, in their order."""
    runs: list[Run] = []
    for positions in take(step, queue, count):
        runs += _runs(queue, positions)
        leave(step, queue, 0, normal(positions), Reason.MOVED)
    return runs


def take_these(step: Step, queue: QueueState, ranges: Sequence[Range]) -> list[Run]:
    """The same with those of these positions that are ready."""
    ready = common(normal(ranges), queue.ready)
    if not ready:
        return []
    runs = _runs(queue, ready)
    leave(step, queue, 0, ready, Reason.MOVED)
    return runs


def leap(step: Step, queue: QueueState, position: int) -> None:
    """Go on from there, at least: others may have given the positions before it."""
    if position > queue.next_position:
        step.do(LEAP, queue, position)


def lose(step: Step, queue: QueueState, ranges: Sequence[Range]) -> None:
    """No broker has the bodies of these any more: they leave, whoever holds them."""
    positions = normal(ranges)
    leave_whoever_holds(step, queue, positions, Reason.LOST)
    for holder in [*queue.leases()]:
        held = common(positions, holder.held)
        if held:
            assert holder.lease is not None
            for piece in [*holder.lease.pieces]:
                for first, stop in as_set(held).ranges(piece.first, piece.stop):
                    low = piece.offset + first - piece.first
                    step.do(SHRINK, queue, holder.id, low, low + stop - first)
            leave(step, queue, holder.id, held, Reason.LOST)
    for reason, dying in sorted(queue.dying.items()):
        found = common(positions, dying)
        if found:
            step.do(BURY, queue, reason, found)


def drop_transients(step: Step, queue: QueueState) -> None:
    """All brokers were down: what was not persistent is gone, and so is the memory of its ids."""
    if queue.transient:
        lose(step, queue, [*queue.transient.ranges()])
    if queue.windows is not None and queue.windows[1]:
        step.do(FORGET, queue, True, len(queue.windows[1]))


def _runs(queue: QueueState, positions: Positions) -> list[Run]:
    return [run for first, stop in ranges_of(positions) for run in queue.runs.within(first, stop)]
