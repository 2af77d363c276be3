"""Operations on messages: they come, are acquired, released, leave, die and are buried."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, NamedTuple

from coterie.broker.ranges import END, IntervalMap, PositionSet
from coterie.broker.state.broker_state import BrokerState
from coterie.broker.state.effect_codec import FLAG, NUMBER, POSITIONS, SIZES, Sizes, number, word
from coterie.broker.state.holders import Holder
from coterie.broker.state.operations import Operation, require
from coterie.broker.state.positions import Positions, all_in, as_set, common, cut, put, ranges_of
from coterie.broker.state.queue_state import QueueState
from coterie.broker.state.vocabulary import COUNTED, DEADLY, DYING, IN_FLIGHT, OWED, Count, HolderKind, Kind, Reason

_DELIVERIES_MAX: Final = 2**31 - 1
"""The count of deliveries goes no further, so that every change of it can be taken back."""

_NO_KEYS: Final[list[tuple[int, bytes, bool]]] = []
# Looked up once: an enumeration's members take time to find.
_PRIORITY, _RING, _CONSUMER = Kind.PRIORITY, Kind.RING, HolderKind.CONSUMER
_ENQUEUED, _RELEASED, _REDELIVERED = Count.ENQUEUED, Count.RELEASED, Count.REDELIVERED
_DELIVERED, _DELIVERED_NO_ACK, _GOT, _GOT_NO_ACK = Count.DELIVERED, Count.DELIVERED_NO_ACK, Count.GOT, Count.GOT_NO_ACK


# They come: ready, or dying at once if the queue refuses them and sends them on.


def _enqueue(
    state: BrokerState, queue: QueueState, first: int, ref: int, offset: int, sizes: Sizes, dying: bool
) -> Any:
    mark = queue.lengths.mark()
    if isinstance(sizes, tuple):
        count, length = sizes
        queue.lengths.append_even(first, count, length)
        size = count * length
    else:
        count = len(sizes)
        queue.lengths.append_uneven(first, sizes)
        size = sum(sizes)
    stop = first + count
    queue.runs.append(first, count, ref, offset)
    queue.live.add(first, stop)
    queue.next_position = stop
    if dying:
        queue.dying.setdefault(Reason.EVICTED, PositionSet()).add(first, stop)
        queue.dying_count += count
        queue.dying_bytes += size
    else:
        queue.ready.add(first, stop)
        queue.ready_bytes += size
        queue.counts[_ENQUEUED] += count
        kind = queue.config.kind
        if kind is _PRIORITY:
            queue.lane(0).add(first, stop)
        elif kind is _RING:
            queue.loose.add(first, stop)
    return mark, count, size


def _unenqueue(
    state: BrokerState, queue: QueueState, kept: Any, first: int, ref: int, offset: int, sizes: Sizes, dying: bool
) -> None:
    mark, count, size = kept
    stop = first + count
    queue.lengths.rewind(mark)
    queue.runs.unappend(count)
    queue.live.remove(first, stop)
    queue.next_position = first
    if dying:
        _undie(queue, Reason.EVICTED, [(first, stop)], count, size)
    else:
        queue.make_unready([(first, stop)])
        queue.ready_bytes -= size
        queue.counts[_ENQUEUED] -= count
        queue.loose.remove(first, stop)


def _check_enqueue(
    state: BrokerState, queue: QueueState, first: int, ref: int, offset: int, sizes: Sizes, dying: bool
) -> None:
    count = sizes[0] if isinstance(sizes, tuple) else len(sizes)
    require(count > 0, "a run of no messages")
    require(first == queue.next_position, f"messages from {first} on in a queue that is at {queue.next_position}")
    require(first + count <= END and offset + count <= END, "positions or offsets beyond 2^63")


# Somebody holds them, and gives them back.


def _acquire(state: BrokerState, queue: QueueState, holder: int, positions: Positions) -> Any:
    found = queue.holders[holder]
    count, size = queue.measure(positions)
    queue.make_unready(positions)
    put(found.held, positions)
    queue.ready_bytes -= size
    queue.held_bytes += size
    _charge(found, count)
    again = queue.redelivered_in(positions)
    queue.counts[_REDELIVERED] += again
    queue.counts[_given(found)] += count
    lease = None
    if found.lease is not None:
        lease = found.lease.extend(_flagged(queue.deliveries, positions))
        _lease_out(queue, positions, count, size)
    return count, size, again, lease


def _unacquire(state: BrokerState, queue: QueueState, kept: Any, holder: int, positions: Positions) -> None:
    found = queue.holders[holder]
    count, size, again, lease = kept
    cut(found.held, positions)
    queue.make_ready(positions)
    queue.ready_bytes += size
    queue.held_bytes -= size
    _charge(found, -count)
    queue.counts[_REDELIVERED] -= again
    queue.counts[_given(found)] -= count
    if found.lease is not None:
        found.lease.unextend(lease)
        _lease_back(queue, positions, count, size)


def _check_acquire(state: BrokerState, queue: QueueState, holder: int, positions: Positions) -> None:
    require(holder in queue.holders, f"no holder {holder}")
    require(all_in(positions, queue.ready), "what is acquired is not ready")


def _release(state: BrokerState, queue: QueueState, holder: int, positions: Positions, counted: bool) -> Any:
    found = queue.holders[holder]
    count, size = queue.measure(positions)
    cut(found.held, positions)
    queue.make_ready(positions)
    queue.ready_bytes += size
    queue.held_bytes -= size
    _charge(found, -count)
    queue.counts[_RELEASED] += count
    if counted:
        _count_delivery(queue, positions, 1)
    if found.lease is not None:
        _lease_back(queue, positions, count, size)
    return count, size


def _unrelease(
    state: BrokerState, queue: QueueState, kept: Any, holder: int, positions: Positions, counted: bool
) -> None:
    found = queue.holders[holder]
    count, size = kept
    queue.make_unready(positions)
    put(found.held, positions)
    queue.ready_bytes -= size
    queue.held_bytes += size
    _charge(found, count)
    queue.counts[_RELEASED] -= count
    if counted:
        _count_delivery(queue, positions, -1)
    if found.lease is not None:
        _lease_out(queue, positions, count, size)


def _check_release(state: BrokerState, queue: QueueState, holder: int, positions: Positions, counted: bool) -> None:
    require(holder in queue.holders, f"no holder {holder}")
    require(all_in(positions, queue.holders[holder].held), "what is released is not held")
    if counted and queue.deliveries:
        require(not queue.deliveries.above(as_set(positions), _DELIVERIES_MAX - 1), "too many deliveries to count")


# They leave: from the ready ones (holder 0) or from a holder; for good, or as dying ones.


def _leave(state: BrokerState, queue: QueueState, holder: int, reason: Reason, fate: int, positions: Positions) -> Any:
    count, size = queue.measure(positions) if holder else queue.measure_ready(positions)
    if holder:
        found = queue.holders[holder]
        if isinstance(positions, list):
            for first, stop in positions:
                found.held.remove(first, stop)
        else:
            found.held.remove_all(positions)
        queue.held_bytes -= size
        if fate & OWED:
            put(found.owed, positions)
        elif not fate & IN_FLIGHT:
            found.used -= count
            if found.pool is not None:
                found.pool.held -= count
        if found.lease is not None:
            queue.leased_count -= count
            queue.leased_bytes -= size
    else:
        queue.make_unready(positions)
        queue.ready_bytes -= size
    if queue.loose.count:
        cut(queue.loose, positions)
    counter = COUNTED[reason]
    if counter is not None:
        queue.counts[counter] += count
    keys = queue.last_values.remove(ranges_of(positions)) if queue.last_values.keys else _NO_KEYS
    if fate & DYING:
        put(queue.dying.setdefault(reason, PositionSet()), positions)
        queue.dying_count += count
        queue.dying_bytes += size
        return count, size, keys, None
    return count, size, keys, _forget(queue, positions)


def _unleave(
    state: BrokerState, queue: QueueState, kept: Any, holder: int, reason: Reason, fate: int, positions: Positions
) -> None:
    count, size, keys, forgotten = kept
    if fate & DYING:
        _undie(queue, reason, positions, count, size)
    else:
        _recall(queue, positions, forgotten)
    queue.last_values.unremove(keys)
    counter = COUNTED[reason]
    if counter is not None:
        queue.counts[counter] -= count
    found = queue.holders[holder] if holder else None
    if found is None:
        queue.make_ready(positions)
        queue.ready_bytes += size
    else:
        put(found.held, positions)
        queue.held_bytes += size
        if fate & OWED:
            cut(found.owed, positions)
        elif not fate & IN_FLIGHT:
            _charge(found, count)
        if found.lease is not None:
            queue.leased_count += count
            queue.leased_bytes += size
    if queue.config.kind is _RING and (found is None or found.lease is None):
        put(queue.loose, positions)


def _check_leave(
    state: BrokerState, queue: QueueState, holder: int, reason: Reason, fate: int, positions: Positions
) -> None:
    require(not fate & DYING or reason in DEADLY, f"nothing dies because it is {reason.name}")
    require(not (fate & OWED and fate & IN_FLIGHT), "owed and in flight")
    if holder:
        require(holder in queue.holders, f"no holder {holder}")
        found = queue.holders[holder]
        require(all_in(positions, found.held), "what leaves a holder is not held")
        require(not fate & IN_FLIGHT or found.no_ack, "in flight to somebody who acknowledges")
        require(not fate & OWED or found.lease is None, "a lease owes nothing")
    else:
        require(not fate & ~DYING, "what is ready is on nobody's account")
        require(all_in(positions, queue.ready), "what leaves is not ready")


def _bury(state: BrokerState, queue: QueueState, reason: Reason, positions: Positions) -> Any:
    count, size = queue.measure(positions)
    _undie(queue, reason, positions, count, size)
    return count, size, _forget(queue, positions)


def _unbury(state: BrokerState, queue: QueueState, kept: Any, reason: Reason, positions: Positions) -> None:
    count, size, forgotten = kept
    _recall(queue, positions, forgotten)
    put(queue.dying.setdefault(reason, PositionSet()), positions)
    queue.dying_count += count
    queue.dying_bytes += size


def _check_bury(state: BrokerState, queue: QueueState, reason: Reason, positions: Positions) -> None:
    require(reason in queue.dying and all_in(positions, queue.dying[reason]), "what is buried is not dying")


def _undie(queue: QueueState, reason: Reason, positions: Positions, count: int, size: int) -> None:
    dying = queue.dying[reason]
    cut(dying, positions)
    if not dying:
        del queue.dying[reason]
    queue.dying_count -= count
    queue.dying_bytes -= size


# What a holder owes, or what was sent to it, is off its account.


def _settle_owed(state: BrokerState, queue: QueueState, holder: int, positions: Positions) -> int:
    found = queue.holders[holder]
    cut(found.owed, positions)
    count = sum([stop - first for first, stop in ranges_of(positions)])
    _charge(found, -count)
    return count


def _unsettle_owed(state: BrokerState, queue: QueueState, kept: int, holder: int, positions: Positions) -> None:
    found = queue.holders[holder]
    put(found.owed, positions)
    _charge(found, kept)


def _check_settle_owed(state: BrokerState, queue: QueueState, holder: int, positions: Positions) -> None:
    require(holder in queue.holders, f"no holder {holder}")
    require(all_in(positions, queue.holders[holder].owed), "what is settled is not owed")


def _sent(state: BrokerState, queue: QueueState, holder: int, count: int) -> None:
    _charge(queue.holders[holder], -count)


def _unsent(state: BrokerState, queue: QueueState, kept: None, holder: int, count: int) -> None:
    _charge(queue.holders[holder], count)


def _check_sent(state: BrokerState, queue: QueueState, holder: int, count: int) -> None:
    found = queue.holders.get(holder)
    require(found is not None and found.no_ack and count <= found.used, f"{count} were never given to {holder}")


# What they share.


def _charge(holder: Holder, count: int) -> None:
    holder.used += count
    if holder.pool is not None:
        holder.pool.held += count


def _given(holder: Holder) -> Count:
    if holder.kind is _CONSUMER:
        return _DELIVERED_NO_ACK if holder.no_ack else _DELIVERED
    return _GOT_NO_ACK if holder.no_ack else _GOT


def _flagged(deliveries: IntervalMap, positions: Positions) -> list[tuple[int, int, bool]]:
    if not deliveries:
        return [(first, stop, False) for first, stop in ranges_of(positions)]
    found: list[tuple[int, int, bool]] = []
    for first, stop in ranges_of(positions):
        for begin, end, _ in deliveries.items(first, stop):
            if first < begin:
                found.append((first, begin, False))
            found.append((begin, end, True))
            first = end
        if first < stop:
            found.append((first, stop, False))
    return found


def _lease_out(queue: QueueState, positions: Positions, count: int, size: int) -> None:
    queue.leased_count += count
    queue.leased_bytes += size
    if queue.loose.count:
        cut(queue.loose, positions)


def _lease_back(queue: QueueState, positions: Positions, count: int, size: int) -> None:
    queue.leased_count -= count
    queue.leased_bytes -= size
    if queue.config.kind is _RING:
        put(queue.loose, positions)


def _count_delivery(queue: QueueState, positions: Positions, by: int) -> None:
    if isinstance(positions, list):
        for first, stop in positions:
            queue.deliveries.add(first, stop, by)
    else:
        queue.deliveries.add_all(positions, by)


class _Forgotten(NamedTuple):
    """Of messages that are gone."""

    deliveries: IntervalMap | None
    priorities: IntervalMap | None
    transient: Positions | None


def _forget(queue: QueueState, positions: Positions) -> _Forgotten | None:
    if isinstance(positions, list):
        for first, stop in positions:
            queue.live.remove(first, stop)
    else:
        queue.live.remove_all(positions)
    if not (queue.deliveries or queue.priorities or queue.transient.count):
        return None
    deliveries = priorities = transient = None
    if queue.deliveries:
        deliveries = _taken_from(queue.deliveries, positions)
    if queue.priorities:
        priorities = _taken_from(queue.priorities, positions)
    if queue.transient:
        transient = common(positions, queue.transient)
        cut(queue.transient, positions)
    return _Forgotten(deliveries, priorities, transient)


def _recall(queue: QueueState, positions: Positions, forgotten: _Forgotten | None) -> None:
    put(queue.live, positions)
    if forgotten is not None:
        for numbers, found in ((queue.deliveries, forgotten.deliveries), (queue.priorities, forgotten.priorities)):
            if found:
                for first, stop, value in found.items():
                    numbers.set(first, stop, value)
        if forgotten.transient is not None:
            put(queue.transient, forgotten.transient)


def _taken_from(numbers: IntervalMap, positions: Positions) -> IntervalMap | None:
    """What the numbers of these were; they have none any more."""
    found = IntervalMap()
    if isinstance(positions, list):
        for first, stop in positions:
            for begin, end, value in [*numbers.items(first, stop)]:
                found.set(begin, end, value)
                numbers.clear(begin, end)
    else:
        found = numbers.copy()
        found.clear_all(found.positions().difference(positions))
        numbers.clear_all(positions)
    return found or None


# What is done in every event, as numbers: one range of positions, or lengths that are all the same.


def _enqueue_numbers(first: int, ref: int, offset: int, sizes: Sizes, dying: bool) -> Sequence[int] | None:
    return (first, ref, offset, sizes[0], 0, sizes[1], dying) if isinstance(sizes, tuple) else None


def _acquire_numbers(holder: int, positions: Positions) -> Sequence[int] | None:
    if isinstance(positions, list) and len(positions) == 1:
        ((first, stop),) = positions
        return holder, 1, first, stop - first
    return None


def _leave_numbers(holder: int, reason: Reason, fate: int, positions: Positions) -> Sequence[int] | None:
    if isinstance(positions, list) and len(positions) == 1:
        ((first, stop),) = positions
        return holder, reason, fate, 1, first, stop - first
    return None


ENQUEUE: Final = Operation(
    1, "enqueue", (NUMBER, NUMBER, NUMBER, SIZES, FLAG), _enqueue, _unenqueue, _check_enqueue, numbers=_enqueue_numbers
)
ACQUIRE: Final = Operation(
    2, "acquire", (NUMBER, POSITIONS), _acquire, _unacquire, _check_acquire, numbers=_acquire_numbers
)
RELEASE: Final = Operation(3, "release", (NUMBER, POSITIONS, FLAG), _release, _unrelease, _check_release)
LEAVE: Final = Operation(
    4, "leave", (NUMBER, word(Reason), number(7), POSITIONS), _leave, _unleave, _check_leave, leaves=True,
    numbers=_leave_numbers,
)  # fmt: skip
BURY: Final = Operation(5, "bury", (word(Reason), POSITIONS), _bury, _unbury, _check_bury, leaves=True)
SETTLE_OWED: Final = Operation(6, "settle owed", (NUMBER, POSITIONS), _settle_owed, _unsettle_owed, _check_settle_owed)
SENT: Final = Operation(7, "sent", (NUMBER, number(2**31)), _sent, _unsent, _check_sent)
