"""Policy: named leases. Each function is a part of a step; several may be in one, as retiring and acquiring.

| acquire | ready ones, as consumers would get them, are the lease's       |
| retire  | those below an offset are accepted                             |
| release | those from an offset on are ready again, flagged redelivered   |
| take    | another session may change it                                  |
| end     | all are ready again; it is gone when it holds nothing more     |

One call concerns `most` messages at most; it says whether there is more to do.
"""

from __future__ import annotations

from typing import NamedTuple

from coterie.broker.ranges import PositionSet, Range
from coterie.broker.state.holders import Holder
from coterie.broker.state.holding import ADD, REMOVE, SESSION, SHRINK, NewHolder, NewLease
from coterie.broker.state.leases import PIECES_MAX, Lease, Piece
from coterie.broker.state.leaving import formed, leave, normal
from coterie.broker.state.messages import ACQUIRE
from coterie.broker.state.positions import Positions
from coterie.broker.state.queue_state import QueueState
from coterie.broker.state.settling import give_back, given_back
from coterie.broker.state.step import Step
from coterie.broker.state.vocabulary import HolderKind, Reason


class Wanted(NamedTuple):
    """What a lease is to take."""

    rows: int | None = None
    bytes: int | None = None
    first: int = 0
    """The first position."""
    last: int | None = None
    """And the last."""
    after: int | None = None
    """Only if this is the lease's next offset."""


def find(queue: QueueState, name: str) -> Holder | None:
    return next((each for each in queue.leases() if each.lease is not None and each.lease.name == name), None)


def begin(step: Step, queue: QueueState, lease: NewLease) -> Holder:
    assert find(queue, lease.name) is None
    number = queue.next_holder
    step.do(ADD, queue, NewHolder(HolderKind.LEASE, lease=lease))
    return queue.holders[number]


def acquire(step: Step, queue: QueueState, holder: Holder, wanted: Wanted, most: int) -> tuple[int, bool]:
    """How many it has taken, and whether there may be others."""
    lease = _of(holder)
    if wanted.after is not None and wanted.after != lease.next:
        return 0, False
    if len(lease.pieces) >= PIECES_MAX:
        return 0, True
    rows = most if wanted.rows is None else min(most, wanted.rows)
    selected, more = _select(step, queue, wanted, rows)
    for positions in selected:
        step.do(ACQUIRE, queue, holder.id, normal(positions))
    return sum(stop - first for some in selected for first, stop in some), more


def _select(step: Step, queue: QueueState, wanted: Wanted, rows: int) -> tuple[list[list[Range]], bool]:
    """Ready ones in their order, one list for each priority; and whether there may be others."""
    stop = queue.next_position if wanted.last is None else min(wanted.last + 1, queue.next_position)
    start = min(wanted.first, stop)
    size = wanted.bytes
    found: list[list[Range]] = []
    begun = False
    for lane in queue.in_order():
        some: list[Range] = []
        found.append(some)
        for first, end in _unexpired(step, queue, lane, start, stop):
            if rows <= 0:
                return _filled(found), True
            upto = min(end, first + rows)
            if size is not None:
                fitting = queue.lengths.fitting([(first, upto)], max(size, 0))
                upto = first + (fitting if fitting or begun else 1)  # the first one fits, however large it is
                size -= queue.lengths.sum(first, upto)
            if upto > first:
                begun = True
                rows -= upto - first
                if some and some[-1][1] == first:
                    some[-1] = some[-1][0], upto
                else:
                    some.append((first, upto))
            if upto < end:
                return _filled(found), True
    return _filled(found), False


def _unexpired(step: Step, queue: QueueState, lane: PositionSet, start: int, stop: int) -> list[Range]:
    if not queue.mortal:
        return [*lane.ranges(start, stop)]
    now = step.state.time
    return [
        (first, end)
        for span in lane.ranges(start, stop)
        for first, end, time in queue.expiries(*span)
        if time is None or time > now
    ]


def _filled(found: list[list[Range]]) -> list[list[Range]]:
    return [some for some in found if some]


def retire(step: Step, queue: QueueState, holder: Holder, upto: int, most: int) -> bool:
    """What is below the offset is accepted; whether there is more of it."""
    pieces, more = _limited([*_of(holder).between(0, upto)], most)
    if pieces:
        step.do(SHRINK, queue, holder.id, pieces[0].offset, pieces[-1].end)
        leave(step, queue, holder.id, _positions(pieces), Reason.ACCEPTED)
    return more


def release(step: Step, queue: QueueState, holder: Holder, first: int, most: int) -> bool:
    """What is from the offset on goes back, the highest first; whether there is more of it."""
    lease = _of(holder)
    pieces, more = _limited([*lease.between(first, lease.next)][::-1], most, backwards=True)
    if pieces:
        step.do(SHRINK, queue, holder.id, pieces[-1].offset, pieces[0].end)
        give_back(step, queue, holder, _positions(pieces), counted=True)
        given_back(step, queue)
    return more


def take(step: Step, queue: QueueState, holder: Holder, session: str) -> None:
    if _of(holder).session != session:
        step.do(SESSION, queue, holder.id, session)


def end(step: Step, queue: QueueState, holder: Holder, most: int) -> bool:
    """Whether it holds something still, and has not ended."""
    more = release(step, queue, holder, 0, most)
    if not more:
        step.do(REMOVE, queue, holder.id)
    return more


def _of(holder: Holder) -> Lease:
    assert holder.lease is not None
    return holder.lease


def _positions(pieces: list[Piece]) -> Positions:
    return formed(PositionSet([(piece.first, piece.stop) for piece in pieces]))


def _limited(pieces: list[Piece], most: int, backwards: bool = False) -> tuple[list[Piece], bool]:
    """The first of them, up to so many messages; and whether others follow."""
    found: list[Piece] = []
    for piece in pieces:
        if most <= 0:
            return found, True
        size = piece.end - piece.offset
        if size > most:
            low, high = (piece.end - most, piece.end) if backwards else (piece.offset, piece.offset + most)
            found.append(piece.between(low, high))
            return found, True
        found.append(piece)
        most -= size
    return found, False
