"""Policy: dead letters. What dies is *dying* until whoever keeps the time has its letter published.

The letters of a batch are published, and their messages buried, in one event; of positions that are not dying any more
by then, nothing happens.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from coterie.broker.ranges import Range
from coterie.broker.state.leaving import normal
from coterie.broker.state.messages import BURY
from coterie.broker.state.positions import Positions, common
from coterie.broker.state.queue_state import QueueState
from coterie.broker.state.step import Step
from coterie.broker.state.vocabulary import Reason


class Dead(NamedTuple):
    """Messages that died for one reason."""

    reason: Reason
    positions: Positions


def letters_due(queue: QueueState, limit: int) -> list[Dead]:
    """Up to so many of those that are dying, the oldest of each reason."""
    found: list[Dead] = []
    for reason, dying in sorted(queue.dying.items()):
        if limit <= 0:
            break
        found.append(Dead(reason, dying.first_ranges(limit)))
        limit -= dying.count
    return found


def bury(step: Step, queue: QueueState, ranges: Sequence[Range]) -> list[Dead]:
    """Their letters are sent in this event: they are gone. Gives those that were dying still."""
    positions = normal(ranges)
    found = [Dead(reason, common(positions, dying)) for reason, dying in sorted(queue.dying.items())]
    buried = [dead for dead in found if dead.positions]
    for reason, some in buried:
        step.do(BURY, queue, reason, some)
    return buried
