"""Policy: the time of the log, and messages whose time is over.

A message whose time is over is given to nobody. It leaves when it has come to the head of its queue: whoever keeps the
time asks for those that are `due`, and says so in an event. What somebody has acquired by then has not expired.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from coterie.broker.ranges import Range
from coterie.broker.state.broker_state import SECOND
from coterie.broker.state.leaving import leave, normal
from coterie.broker.state.positions import common, ranges_of
from coterie.broker.state.queue_state import QueueState
from coterie.broker.state.sharing import TIME
from coterie.broker.state.step import Step
from coterie.broker.state.vocabulary import Reason

LEAST: Final = 2
"""Microseconds from one event to the next, at least: longer than a message lives that has no time at all."""


def reach(step: Step, told: int, keeps_time: bool) -> int:
    """The log has come to an event with that time. It never falls; who does not keep the time moves it by a second at
    most. Gives what it is now."""
    last = step.state.time
    if not keeps_time:
        told = min(told, last + SECOND)
    step.do(TIME, None, min(max(told, last + LEAST), 2**63 - 1))
    return step.state.time


def due(queue: QueueState, now: int, limit: int) -> list[Range]:
    """What has expired and is at the head, or at the head of its priority."""
    found: list[Range] = []
    if not queue.mortal:
        return found
    for lane in queue.in_order():
        for first, stop, time in ((*each,) for span in lane.ranges() for each in queue.expiries(*span)):
            if time is None or time > now or limit <= 0:
                break
            stop = min(stop, first + limit)
            limit -= stop - first
            if found and found[-1][1] == first:
                found[-1] = found[-1][0], stop
            else:
                found.append((first, stop))
    return found


def next_due(queue: QueueState) -> int | None:
    """When the first of those at the head is over."""
    heads = [lane.first() for lane in queue.in_order()] if queue.mortal else []
    times = [queue.expiry(head) for head in heads if head is not None]
    return min((time for time in times if time is not None), default=None)


def expire(step: Step, queue: QueueState, ranges: Sequence[Range]) -> int:
    """Those of them that are ready, and whose time is over; how many they are."""
    now = step.state.time
    over = [
        (first, stop)
        for span in ranges_of(common(normal(ranges), queue.ready))
        for first, stop, time in queue.expiries(*span)
        if time is not None and time <= now
    ]
    if not over:
        return 0
    leave(step, queue, 0, normal(over), Reason.EXPIRED)
    return sum(stop - first for first, stop in over)
