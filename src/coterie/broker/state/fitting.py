"""Policy: a queue keeps its limits of length. What is too much leaves, by ranges, however long the queue is.

`drop-head` counts what is ready, and lets go of the next ones that would be delivered. A ring counts everything but
what is leased, and lets go of the oldest, whoever holds them.
"""

from __future__ import annotations

from coterie.broker.state.allocation import allocate
from coterie.broker.state.leaving import leave, leave_whoever_holds
from coterie.broker.state.positions import first_of
from coterie.broker.state.queue_state import QueueState
from coterie.broker.state.step import Step
from coterie.broker.state.vocabulary import Kind, Reason


def fit(step: Step, queue: QueueState, arrived: bool) -> None:
    """Some arrived, came back, or the limits are others now."""
    limits = queue.limits
    if not limits.bounded or limits.refuses:
        return
    ring = queue.config.kind is Kind.RING
    excess = _ring_excess if ring else _excess
    if not excess(queue):
        return
    if arrived and queue.rotation.hungry:
        allocate(step, queue)  # what a consumer takes at once was never too much
    if ring:
        count = _ring_excess(queue)
        if count:
            leave_whoever_holds(step, queue, first_of(queue.loose, count), Reason.EVICTED)
        return
    while _excess(queue):
        lane = next(iter(queue.in_order()))
        count = queue.ready.count - limits.max_length if limits.max_length is not None else 0
        if count <= 0:
            assert limits.max_bytes is not None
            # The fewest whose bytes are the excess, or more.
            count = queue.lengths.fitting(lane.ranges(), queue.ready_bytes - limits.max_bytes - 1) + 1
        leave(step, queue, 0, first_of(lane, min(count, lane.count)), Reason.EVICTED)


def _excess(queue: QueueState) -> bool:
    limits = queue.limits
    if not queue.ready:
        return False
    long = limits.max_length is not None and queue.ready.count > limits.max_length
    return long or (limits.max_bytes is not None and queue.ready_bytes > limits.max_bytes)


def _ring_excess(queue: QueueState) -> int:
    """How many of the oldest must go."""
    limits, loose = queue.limits, queue.loose
    count = max(loose.count - limits.max_length, 0) if limits.max_length is not None else 0
    if limits.max_bytes is not None:
        excess = queue.bytes - queue.leased_bytes - limits.max_bytes
        if excess > 0:
            count = max(count, queue.lengths.fitting(loose.ranges(), excess - 1) + 1)
    return min(count, loose.count)
