"""What is kept of messages that have left: runs, lengths and times of expiry, until little in a block is alive.

A block of 4096 positions is looked at when the last of it leaves, and when 512, 128, 32 and 8 are left: so a message
costs a few looks in its life, and no more is kept than eight times what is live. It is done when a step is over, by
what is live then, so that a step can be taken back; and it follows from the state and the step alone.
"""

from __future__ import annotations

from typing import Final

from coterie.broker.ranges import END
from coterie.broker.ranges.block import MASK, SHIFT, SIZE
from coterie.broker.state.positions import Positions
from coterie.broker.state.queue_state import QueueState

_LOOKS: Final = (512, 128, 32, 8, 0)
"""Live messages of a block at which it is looked at."""
_MOST: Final = _LOOKS[0]
_FEW: Final = 16
"""So few runs, of any kind, are not worth a look."""


def is_far_from_empty(queue: QueueState, positions: Positions) -> bool:
    """Whether one range has left a block that has very many still: mostly, that is so."""
    if isinstance(positions, list) and len(positions) == 1:
        ((first, stop),) = positions
        block = first >> SHIFT
        return block == (stop - 1) >> SHIFT and queue.live.count_in_block(block) > _MOST
    return False


class Trims:
    """Of one queue in one step."""

    __slots__ = ("_left", "_queue", "_wide")

    def __init__(self, queue: QueueState) -> None:
        self._queue = queue
        self._left: dict[int, int] = {}
        """How many have left each block."""
        self._wide: list[tuple[int, int]] = []
        """Stretches over borders of blocks."""

    def left(self, positions: Positions) -> None:
        if not isinstance(positions, list):
            first, last = positions.first(), positions.last()
            assert first is not None
            assert last is not None
            self._wide.append((first, last + 1))
            return
        for first, stop in positions:
            block = first >> SHIFT
            if block == (stop - 1) >> SHIFT:
                self._left[block] = self._left.get(block, 0) + stop - first
            else:
                self._wide.append((first, stop))

    def trim(self) -> None:
        queue = self._queue
        live = queue.live
        if not live:
            # A queue that is emptied again and again is looked at from time to time.
            if queue.runs.runs > _FEW or queue.lengths.pieces > _FEW or queue.expires.runs > _FEW:
                self._drop(0, END)
            queue.caps = ()
            return
        for block, left in self._left.items():
            base = block << SHIFT
            alive = live.count_in_block(block)
            if alive <= _MOST and any(alive <= look < alive + left for look in _LOOKS):
                self._drop(base, base + SIZE)
        for first, stop in self._wide:
            self._drop(first & ~MASK, stop + MASK & ~MASK)

    def _drop(self, first: int, stop: int) -> None:
        queue = self._queue
        queue.runs.drop(first, stop, queue.live)
        queue.lengths.drop(first, stop, queue.live)
        if queue.expires.runs:
            queue.expires.drop(first, stop, queue.live)
