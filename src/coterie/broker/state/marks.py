"""Operations on what is known of messages besides their place, and on a queue's limits and figures."""

from __future__ import annotations

from typing import Any, Final

from coterie.broker.ranges import END, PositionSet
from coterie.broker.state.broker_state import BrokerState
from coterie.broker.state.dedup_window import Window
from coterie.broker.state.effect_codec import FLAG, IDS, KEYED, LIMITS, MOMENT, NUMBER, POSITIONS, number, word
from coterie.broker.state.last_values import Keyed
from coterie.broker.state.limits import QueueLimits
from coterie.broker.state.operations import Operation, require
from coterie.broker.state.positions import Positions, all_in, as_set, cut, none_in, put, ranges_of
from coterie.broker.state.queue_state import Cap, QueueState
from coterie.broker.state.vocabulary import Count, Kind

CAPS_MAX: Final = 64
"""Changes of a queue's TTL that are told apart; with more, the earlier of two counts for both."""
DELIVERIES_MAX: Final = 2**31 - 1


# When they are over.


def _expires(state: BrokerState, queue: QueueState, first: int, count: int, time: int) -> None:
    queue.expires.append(first, count, time, first)


def _unexpires(state: BrokerState, queue: QueueState, kept: None, first: int, count: int, time: int) -> None:
    queue.expires.unappend(count)


def _check_expires(state: BrokerState, queue: QueueState, first: int, count: int, time: int) -> None:
    require(count and first >= queue.expires.stop, "times of messages do not rise with their positions")
    require(all_in([(first, first + count)], queue.live), "no message is there to expire")


def _cap(state: BrokerState, queue: QueueState, time: int) -> tuple[Cap, ...]:
    before = queue.caps
    first = queue.live.first()
    kept = [cap for cap in before if cap.time < time and first is not None and cap.stop > first]
    if len(kept) >= CAPS_MAX:
        kept[-2:] = [Cap(kept[-1].stop, kept[-2].time)]
    queue.caps = () if first is None else (*kept, Cap(queue.next_position, time))
    return before


def _uncap(state: BrokerState, queue: QueueState, kept: tuple[Cap, ...], time: int) -> None:
    queue.caps = kept


# Priorities, last values, transient ones, deliveries.


def _prioritise(state: BrokerState, queue: QueueState, priority: int, positions: Positions) -> None:
    some = as_set(positions)
    _move(queue, some, 0, priority)
    queue.priorities.set_all(some, priority)


def _unprioritise(state: BrokerState, queue: QueueState, kept: None, priority: int, positions: Positions) -> None:
    some = as_set(positions)
    _move(queue, some, priority, 0)
    queue.priorities.clear_all(some)


def _move(queue: QueueState, some: PositionSet, source: int, target: int) -> None:
    queue.lane(target).add_all(some)
    lane = queue.lanes[source]
    lane.remove_all(some)
    if not lane:
        del queue.lanes[source]


def _check_prioritise(state: BrokerState, queue: QueueState, priority: int, positions: Positions) -> None:
    require(queue.config.kind is Kind.PRIORITY and 0 < priority <= queue.config.max_priority, "no such priority")
    require(all_in(positions, queue.lanes.get(0, PositionSet())), "what has a priority is not ready")


def _key(state: BrokerState, queue: QueueState, keyed: list[Keyed]) -> list[int | None]:
    return queue.last_values.add(keyed)


def _unkey(state: BrokerState, queue: QueueState, kept: list[int | None], keyed: list[Keyed]) -> None:
    queue.last_values.unadd(keyed, kept)


def _check_key(state: BrokerState, queue: QueueState, keyed: list[Keyed]) -> None:
    require(queue.config.kind is Kind.LAST_VALUE, "keys in a queue that has none")
    known = queue.last_values.keys
    require(all(at in queue.ready and at not in known for at, _ in keyed), "what has a key is not ready, or has one")


def _transient(state: BrokerState, queue: QueueState, positions: Positions) -> None:
    put(queue.transient, positions)


def _untransient(state: BrokerState, queue: QueueState, kept: None, positions: Positions) -> None:
    cut(queue.transient, positions)


def _check_transient(state: BrokerState, queue: QueueState, positions: Positions) -> None:
    require(all_in(positions, queue.live) and none_in(positions, queue.transient), "not there, or transient already")


def _deliveries(state: BrokerState, queue: QueueState, value: int, positions: Positions) -> list[tuple[int, int, int]]:
    kept = [item for first, stop in ranges_of(positions) for item in queue.deliveries.items(first, stop)]
    queue.deliveries.set_all(as_set(positions), value)
    return kept


def _undeliveries(
    state: BrokerState, queue: QueueState, kept: list[tuple[int, int, int]], value: int, positions: Positions
) -> None:
    queue.deliveries.clear_all(as_set(positions))
    for first, stop, before in kept:
        queue.deliveries.set(first, stop, before)


def _check_deliveries(state: BrokerState, queue: QueueState, value: int, positions: Positions) -> None:
    require(all_in(positions, queue.live), "what is counted is not there")


# Message ids.


def _remember(state: BrokerState, queue: QueueState, fleeting: bool, ids: list[bytes]) -> bool:
    new = queue.windows is None
    if queue.windows is None:
        queue.windows = Window(), Window()
    queue.windows[fleeting].remember(state.time, ids)
    return new


def _unremember(state: BrokerState, queue: QueueState, kept: bool, fleeting: bool, ids: list[bytes]) -> None:
    assert queue.windows is not None
    queue.windows[fleeting].unremember()
    if kept:
        queue.windows = None


def _check_remember(state: BrokerState, queue: QueueState, fleeting: bool, ids: list[bytes]) -> None:
    known = queue.windows or ()
    require(not any(each in window for window in known for each in ids), "a message id is remembered already")


def _forget(state: BrokerState, queue: QueueState, fleeting: bool, count: int) -> Any:
    assert queue.windows is not None
    windows = queue.windows
    ids, spans = windows[fleeting].forget(count)
    if not windows[0] and not windows[1]:
        queue.windows = None
    return windows, ids, spans


def _unforget(state: BrokerState, queue: QueueState, kept: Any, fleeting: bool, count: int) -> None:
    queue.windows, ids, spans = kept
    assert queue.windows is not None
    queue.windows[fleeting].unforget(ids, spans)


def _check_forget(state: BrokerState, queue: QueueState, fleeting: bool, count: int) -> None:
    require(queue.windows is not None and 0 < count <= len(queue.windows[fleeting]), "so many ids are not remembered")


# The queue.


def _limit(state: BrokerState, queue: QueueState, limits: QueueLimits) -> QueueLimits:
    before, queue.limits = queue.limits, limits
    return before


def _unlimit(state: BrokerState, queue: QueueState, kept: QueueLimits, limits: QueueLimits) -> None:
    queue.limits = kept


def _leap(state: BrokerState, queue: QueueState, position: int) -> int:
    before, queue.next_position = queue.next_position, position
    return before


def _unleap(state: BrokerState, queue: QueueState, kept: int, position: int) -> None:
    queue.next_position = kept


def _check_leap(state: BrokerState, queue: QueueState, position: int) -> None:
    require(queue.next_position < position <= END, "positions are never given twice")


def _count(state: BrokerState, queue: QueueState, count: Count, by: int) -> None:
    queue.counts[count] += by


def _uncount(state: BrokerState, queue: QueueState, kept: None, count: Count, by: int) -> None:
    queue.counts[count] -= by


def _check_count(state: BrokerState, queue: QueueState, count: Count, by: int) -> None:
    require(queue.counts[count] + by < END, "a figure goes beyond 2^63")


def _fits(state: BrokerState, queue: QueueState, *args: object) -> None:
    """Any value will do."""


EXPIRES: Final = Operation(8, "expires", (NUMBER, number(2**32), MOMENT), _expires, _unexpires, _check_expires)
CAP: Final = Operation(9, "cap", (NUMBER,), _cap, _uncap, _fits)
PRIORITISE: Final = Operation(10, "prioritise", (number(255), POSITIONS), _prioritise, _unprioritise, _check_prioritise)
KEY: Final = Operation(11, "key", (KEYED,), _key, _unkey, _check_key)
TRANSIENT: Final = Operation(12, "transient", (POSITIONS,), _transient, _untransient, _check_transient)
DELIVERIES: Final = Operation(
    13, "deliveries", (number(DELIVERIES_MAX), POSITIONS), _deliveries, _undeliveries, _check_deliveries
)
REMEMBER: Final = Operation(14, "remember", (FLAG, IDS), _remember, _unremember, _check_remember)
FORGET: Final = Operation(15, "forget", (FLAG, number(2**32)), _forget, _unforget, _check_forget)
LIMIT: Final = Operation(16, "limit", (LIMITS,), _limit, _unlimit, _fits)
LEAP: Final = Operation(17, "leap", (number(END),), _leap, _unleap, _check_leap)
COUNT: Final = Operation(18, "count", (word(Count), NUMBER), _count, _uncount, _check_count)
