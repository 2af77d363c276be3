"""Policy: how messages leave a queue. Those that die stay as dying ones, if there is an exchange for dead letters."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from coterie.broker.ranges import END, PositionSet, Range
from coterie.broker.state.messages import LEAVE
from coterie.broker.state.positions import LIST_MAX, Positions, common, count_of, cut
from coterie.broker.state.queue_state import QueueState
from coterie.broker.state.step import Step
from coterie.broker.state.vocabulary import DEADLY, DYING, GONE, OWED, HolderKind, Reason


def leave(step: Step, queue: QueueState, holder: int, positions: Positions, reason: Reason, fate: int = GONE) -> None:
    """From the ready ones (holder 0), or from a holder."""
    if queue.limits.dead and reason in DEADLY:
        fate |= DYING
    step.do(LEAVE, queue, holder, reason, fate, positions)


def leave_whoever_holds(step: Step, queue: QueueState, positions: Positions, reason: Reason) -> None:
    """From the ready ones and from whoever holds them, who does not know of it; but from no lease."""
    ready = common(positions, queue.ready)
    rest = count_of(positions) - count_of(ready)
    if rest:
        for holder in [*queue.holders.values()]:
            if holder.kind is not HolderKind.LEASE and holder.held:
                held = common(positions, holder.held)
                if held:
                    leave(step, queue, holder.id, held, reason, OWED)
                    rest -= count_of(held)
                    if not rest:
                        break
    if ready:
        leave(step, queue, 0, ready, reason)


def formed(positions: PositionSet) -> Positions:
    """As ranges, unless they are many."""
    return [*positions.ranges()] if positions.count <= LIST_MAX else positions


def without(positions: Positions, others: Positions) -> Positions:
    if isinstance(positions, list):
        found = PositionSet(positions)
        cut(found, others)
        return formed(found)
    found = positions.copy()
    cut(found, others)
    return formed(found)


def normal(ranges: Sequence[Range]) -> Positions:
    """Ranges as somebody said them, in any order: rising, with something between them. Raises ValueError."""
    if len(ranges) == 1 and 0 <= ranges[0][0] < ranges[0][1] <= ranges[0][0] + LIST_MAX <= END:
        return [*ranges]
    found: list[Range] = []
    begin = end = 0
    for first, stop in sorted(ranges):
        if not 0 <= first < stop <= END:
            raise ValueError(f"no range of positions: {first} to {stop}")
        if first <= end and end:
            end = max(end, stop)
        else:
            if end:
                found.append((begin, end))
            begin, end = first, stop
    if end:
        found.append((begin, end))
    return found if add_up(found) <= LIST_MAX else PositionSet(found)


def held_of(positions: Positions, held: PositionSet) -> Positions:
    """As `common`; mostly they are single ones."""
    if isinstance(positions, list):
        found: list[Range] = []
        for first, stop in positions:
            if stop - first == 1:
                if first in held:
                    found.append((first, stop))
            elif held.count_in(first, stop) == stop - first:
                found.append((first, stop))
            else:
                found += held.ranges(first, stop)
        return found
    return positions.intersection(held)


def add_up(ranges: Iterable[Range]) -> int:
    return sum([stop - first for first, stop in ranges])
