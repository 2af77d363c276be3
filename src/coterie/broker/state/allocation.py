"""Allocation: which consumer gets which messages. It follows from the ordered log alone, so all brokers find the same.

Among consumers with room those of the highest priority take turns. Whose turn it is gets its share of what is ready, as
far as it has room, and a batch at most. Room is what is left of the consumer's own limit and of its channel's, and none
while its broker has not got the messages yet, or does not own the queue. Who has no room leaves the rotation until it
is woken. What has expired by the time of the log is given to nobody: it leaves.
"""

from __future__ import annotations

from typing import Final

from coterie.broker.ranges import Range
from coterie.broker.state import ownership
from coterie.broker.state.broker_state import BrokerState
from coterie.broker.state.holders import Holder
from coterie.broker.state.holding import REST, TURN, WAKE
from coterie.broker.state.leaving import leave, normal
from coterie.broker.state.messages import ACQUIRE
from coterie.broker.state.queue_state import QueueState
from coterie.broker.state.rooms import room_of
from coterie.broker.state.step import Given, Step
from coterie.broker.state.vocabulary import IN_FLIGHT, Kind, Reason

_PRIORITY: Final = Kind.PRIORITY


def allocate_scheduled(step: Step) -> None:
    """At the end of an event: in every queue that it has concerned."""
    while step.scheduled:
        number = next(iter(step.scheduled))
        del step.scheduled[number]
        queue = step.state.queues.get(number)
        if queue is not None:
            allocate(step, queue)


def allocate(step: Step, queue: QueueState) -> None:
    state, rotation = step.state, queue.rotation
    while queue.ready:
        number = rotation.next()
        if number is None:
            return
        holder = queue.holders[number]
        room = _room(state, queue, holder)
        if room <= 0:
            step.do(REST, queue, number)
            continue
        if len(rotation.turns[holder.priority]) > 1:
            step.do(TURN, queue, number)
        given = take(step, queue, min(room, state.batch, max(1, queue.ready.count // rotation.hungry)))
        if not given:
            return
        for positions in given:
            acquire(step, queue, holder, positions)
        if state.ownership:
            ownership.room_changed(step, queue, holder)


def _room(state: BrokerState, queue: QueueState, holder: Holder) -> int:
    if state.ownership and queue.owner != holder.peer:
        return 0
    return room_of(state, queue, holder)


def acquire(step: Step, queue: QueueState, holder: Holder, positions: list[Range]) -> None:
    """A consumer is given ready ones."""
    flags: list[Range] = []
    if queue.deliveries:
        flags = [(at, end) for first, stop in positions for at, end, _ in queue.deliveries.items(first, stop)]
    step.do(ACQUIRE, queue, holder.id, positions)
    step.gave(Given(queue.number, holder.id, positions, flags))
    if holder.no_ack:
        leave(step, queue, holder.id, positions, Reason.GOT, IN_FLIGHT)


def take(step: Step, queue: QueueState, count: int) -> list[list[Range]]:
    """Up to so many ready ones from the head, one list of ranges for each priority; they are still ready. Those before
    them whose time is over leave."""
    if not queue.mortal:
        return _first(queue, count)
    now = step.state.time
    found: list[list[Range]] = []
    expired: list[Range] = []
    for lane in queue.in_order():
        good: list[Range] = []
        for first, stop in lane.ranges():
            for begin, end, time in queue.expiries(first, stop):
                if time is not None and time <= now:
                    _append(expired, begin, end)
                    continue
                end = min(end, begin + count)
                _append(good, begin, end)
                count -= end - begin
                if not count:
                    break
            if not count:
                break
        if good:
            found.append(good)
        if not count:
            break
    if expired:
        leave(step, queue, 0, normal(expired), Reason.EXPIRED)
    return found


def _first(queue: QueueState, count: int) -> list[list[Range]]:
    if queue.config.kind is not _PRIORITY:
        return [queue.ready.first_ranges(count)] if queue.ready else []
    found: list[list[Range]] = []
    for lane in queue.in_order():
        if lane:
            found.append(lane.first_ranges(count))
            count -= lane.count
            if count <= 0:
                break
    return found


def _append(ranges: list[Range], first: int, stop: int) -> None:
    if ranges and ranges[-1][1] == first:
        ranges[-1] = ranges[-1][0], stop
    else:
        ranges.append((first, stop))


def wake(step: Step, queue: QueueState, holder: Holder) -> None:
    """It may have room again."""
    if not holder.hungry and holder.active:
        step.do(WAKE, queue, holder.id)
        step.schedule(queue)
    if step.state.ownership:
        ownership.room_changed(step, queue, holder)
