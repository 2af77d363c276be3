"""Policy: messages of one event come to a queue, which may refuse some, and know others already.

Messages come as columns: nothing is done for each of them, unless the queue needs it (own TTL, priority, last-value
key, message id).
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Final

from coterie.broker.ranges import END, PositionSet, Range
from coterie.broker.state.allocation import allocate
from coterie.broker.state.dedup_window import DIGEST, Window
from coterie.broker.state.effect_codec import Sizes
from coterie.broker.state.fitting import fit
from coterie.broker.state.leaving import add_up, formed, leave_whoever_holds, normal
from coterie.broker.state.limits import DEDUP_LENGTH
from coterie.broker.state.marks import COUNT, EXPIRES, FORGET, KEY, PRIORITISE, REMEMBER, TRANSIENT
from coterie.broker.state.messages import ENQUEUE
from coterie.broker.state.queue_state import QueueState
from coterie.broker.state.step import Step
from coterie.broker.state.vocabulary import Count, HolderKind, Kind, Overflow, Reason

MILLISECOND: Final = 1000
INSTANT: Final = 1
"""Microseconds that a message without time lives: until the allocation that its arrival causes, but not until any later
one, as the time of the log is another one at every event."""

_PRIORITY: Final = Kind.PRIORITY
_LAST_VALUE: Final = Kind.LAST_VALUE


@dataclass(slots=True)
class Arrival:
    """Messages in a row of one event; a column that is None has nothing to say of any of them."""

    ref: int
    """The event."""
    offset: int
    """The place of the first of them in the event."""
    lengths: array[int]
    """Bytes of the bodies: an array of "I"."""
    ttls: Sequence[int | None] | None = None
    """Milliseconds."""
    priorities: bytes | None = None
    keys: Sequence[bytes | None] | None = None
    """Digests of last-value keys."""
    ids: Sequence[bytes | None] | None = None
    """Digests of message ids, of those that are to be taken once."""
    transient: bytes | None = None
    """Of a durable queue: 1 for each that is not persistent."""

    def __len__(self) -> int:
        return len(self.lengths)


class Outcome:
    """What became of them, by their places in the arrival."""

    __slots__ = ("duplicates", "refused")

    def __init__(self) -> None:
        self.refused: list[Range] = []
        self.duplicates: list[int] = []


def publish(step: Step, queue: QueueState, arrival: Arrival) -> Outcome:
    """Consumers get them when the event is over (`allocate_scheduled`)."""
    outcome = Outcome()
    if queue.windows is not None:
        forget_ids(step, queue)
    if queue.limits.refuses:
        _publish_if_room(step, queue, arrival, outcome)
    else:
        _take(step, queue, arrival, [(0, len(arrival))], outcome)
    return outcome


# A queue that refuses when it is full.


def _publish_if_room(step: Step, queue: QueueState, arrival: Arrival, outcome: Outcome) -> None:
    lengths, limits = arrival.lengths, queue.limits
    count, size = _room(queue)
    if len(lengths) <= count and sum(lengths) <= size:
        _take(step, queue, arrival, [(0, len(lengths))], outcome)
        return
    waiting: list[Range] = []
    refused = outcome.refused
    for at, length in enumerate(lengths):
        if (count <= 0 or length > size) and queue.rotation.hungry:
            # What consumers take now is no longer in the way; also of what came before in this event.
            if waiting:
                _take(step, queue, arrival, waiting, outcome)
                waiting = []
            allocate(step, queue)
            count, size = _room(queue)
        if count > 0 and length <= size:
            count -= 1
            size -= length
            _join(waiting, at)
        else:
            _join(refused, at)
    if waiting:
        _take(step, queue, arrival, waiting, outcome)
    if refused:
        step.do(COUNT, queue, Count.REFUSED, add_up(refused))
        if limits.overflow is Overflow.REJECT_DEAD and limits.dead:
            for first, stop in refused:
                position = queue.next_position
                sizes = _sizes(lengths[first:stop])
                step.do(ENQUEUE, queue, position, arrival.ref, arrival.offset + first, sizes, True)
                _mark_transient(step, queue, arrival, first, stop, position)


def _room(queue: QueueState) -> Range:
    """Messages and bytes for which it has room."""
    count, size = queue.limits.max_length, queue.limits.max_bytes
    return (
        END if count is None else count - queue.ready.count,
        END if size is None else size - queue.ready_bytes,
    )


def _join(ranges: list[Range], at: int) -> None:
    if ranges and ranges[-1][1] == at:
        ranges[-1] = ranges[-1][0], at + 1
    else:
        ranges.append((at, at + 1))


# What it takes.


def _take(step: Step, queue: QueueState, arrival: Arrival, ranges: list[Range], outcome: Outcome) -> None:
    if queue.limits.deduplicates:
        ranges = _sift(step, queue, arrival, ranges, outcome)
    for first, stop in ranges:
        _enqueue(step, queue, arrival, first, stop)
    if ranges:
        if queue.rotation.hungry:
            step.schedule(queue)
        fit(step, queue, arrived=True)


def _enqueue(step: Step, queue: QueueState, arrival: Arrival, first: int, stop: int) -> None:
    whole = stop - first == len(arrival)
    position = queue.next_position
    sizes = _sizes(arrival.lengths if whole else arrival.lengths[first:stop])
    step.do(ENQUEUE, queue, position, arrival.ref, arrival.offset + first, sizes, False)
    if arrival.transient is not None:
        _mark_transient(step, queue, arrival, first, stop, position)
    if queue.limits.ttl is not None or arrival.ttls is not None:
        _stamp(step, queue, arrival.ttls, first, stop, position)
    kind = queue.config.kind
    if kind is _PRIORITY and arrival.priorities is not None:
        _prioritise(step, queue, arrival.priorities[first:stop], position)
    elif kind is _LAST_VALUE and arrival.keys is not None:
        _replace(step, queue, arrival.keys[first:stop], position)


def _sizes(lengths: array[int]) -> Sizes:
    length, count = lengths[0], len(lengths)
    return (count, length) if length == lengths[-1] and lengths.count(length) == count else lengths


def _mark_transient(step: Step, queue: QueueState, arrival: Arrival, first: int, stop: int, position: int) -> None:
    if arrival.transient is not None:
        found = _where(arrival.transient[first:stop], 1, position)
        if found:
            step.do(TRANSIENT, queue, normal(found))


def _where(column: bytes, value: int, position: int) -> list[Range]:
    """Which of the messages from this position on have the value."""
    found: list[Range] = []
    at = column.find(value)
    while at >= 0:
        end = at + 1
        while end < len(column) and column[end] == value:
            end += 1
        found.append((position + at, position + end))
        at = column.find(value, end)
    return found


def _stamp(
    step: Step, queue: QueueState, ttls: Sequence[int | None] | None, first: int, stop: int, position: int
) -> None:
    now, of_queue = step.state.time, queue.limits.ttl
    if ttls is None:
        assert of_queue is not None
        step.do(EXPIRES, queue, position, stop - first, now + (of_queue * MILLISECOND or INSTANT))
        return
    for own, group in groupby(ttls[first:stop]):
        count = len([*group])
        time = own if of_queue is None or (own is not None and own < of_queue) else of_queue
        if time is not None:
            step.do(EXPIRES, queue, position, count, now + (time * MILLISECOND or INSTANT))
        position += count


def _prioritise(step: Step, queue: QueueState, priorities: bytes, position: int) -> None:
    most = queue.config.max_priority
    capped = bytes([min(each, most) for each in priorities])
    for priority in sorted({*capped}):
        if priority:
            step.do(PRIORITISE, queue, priority, normal(_where(capped, priority, position)))


def _replace(step: Step, queue: QueueState, keys: Sequence[bytes | None], position: int) -> None:
    keyed = [(position + at, key) for at, key in enumerate(keys) if key is not None]
    if not keyed:
        return
    if any(len(key) != DIGEST for _, key in keyed):
        raise ValueError("a last-value key is a digest")
    newest = queue.last_values.newest
    replaced = PositionSet()
    latest: dict[bytes, int] = {}
    for at, key in keyed:
        older = latest.get(key, newest.get(key))
        if older is not None:
            replaced.add(older, older + 1)
        latest[key] = at
    step.do(KEY, queue, keyed)
    if replaced:
        for holder in queue.holders.values():
            if holder.kind is HolderKind.LEASE and holder.held:
                replaced.remove_all(holder.held)
        if replaced:
            leave_whoever_holds(step, queue, formed(replaced), Reason.REPLACED)


# Message ids that it knows.


def _sift(step: Step, queue: QueueState, arrival: Arrival, ranges: list[Range], outcome: Outcome) -> list[Range]:
    """Without those that came before."""
    ids = arrival.ids
    if ids is None:
        return ranges
    known: tuple[Window, ...] = queue.windows or ()
    new: set[bytes] = set()
    columns: tuple[list[bytes], list[bytes]] = [], []
    fresh: list[Range] = []
    duplicates: list[int] = []
    for first, stop in ranges:
        for at in range(first, stop):
            digest = ids[at]
            if digest is not None:
                if len(digest) != DIGEST:
                    raise ValueError("a message id is a digest")
                if digest in new or any(digest in window for window in known):
                    duplicates.append(at)
                    continue
                new.add(digest)
                columns[arrival.transient is not None and arrival.transient[at] == 1].append(digest)
            _join(fresh, at)
    for fleeting, column in enumerate(columns):
        if column:
            step.do(REMEMBER, queue, bool(fleeting), column)
    if new:
        forget_ids(step, queue)
    if duplicates:
        outcome.duplicates += duplicates
        step.do(COUNT, queue, Count.DUPLICATES, len(duplicates))
    return fresh


def forget_ids(step: Step, queue: QueueState) -> None:
    """Those that came too long ago, or are too many; all, if the queue deduplicates no more."""
    limits = queue.limits
    for fleeting in (False, True):
        if queue.windows is None:
            return
        window = queue.windows[fleeting]
        before = 0 if limits.dedup_ttl is None else step.state.time - limits.dedup_ttl * MILLISECOND
        most = (limits.dedup_length or DEDUP_LENGTH) if limits.deduplicates else 0
        count = window.overdue(before, most)
        if count:
            step.do(FORGET, queue, fleeting, count)
