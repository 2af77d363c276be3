"""One queue on its way to another broker: how far it was sent, and what has left it since.

The position of a message is its number, so nothing is kept for the other side: a feed walks the queue from the position
up to which everything was sent, and what has left before it came there is never sent. Of what was sent, ranges of
positions that leave are kept until they are told. If those get too many, they are dropped, and both sides are compared
anew, as after a disconnect.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from coterie.broker.following.ranges import Range, Ranges
from coterie.broker.observer import QueueObserver, Reason

if TYPE_CHECKING:
    from collections.abc import Callable

    from coterie.broker.observer import Arrived
    from coterie.broker.queue import Queue
    from coterie.broker.ranges import Range as Positions

RANGES_MAX: Final = 20_000
"""Kept of what has left and was not told."""
WALK: Final = 4096
"""Positions that are looked at in one go: there may be none among them."""


def behind(queue: Queue, confirmed: int) -> int:
    """Messages that the other side may not have, if it has everything up to that position; at most so many."""
    return min(queue.count, max(0, queue.next_position - 1 - confirmed))


class Feed(QueueObserver):
    """Of one queue, in one session of a link."""

    def __init__(self, queue: Queue, session: str, wake: Callable[[], None]) -> None:
        self.queue = queue
        self.session = session
        self.sent = 0
        """Everything up to this position was sent, or has left before."""
        self.confirmed = 0
        """And the other side has it on disk."""
        self.under_way = 0
        """Steps that are not confirmed."""
        self.skipped = 0
        """Up to there nothing was left to send, behind all that is under way."""
        self.gone = Ranges()
        """What was sent, and has left."""
        self.broken = ""
        """Why it must begin anew."""
        self._wake = wake

    def begin(self, mark: int) -> None:
        """The other side has what it has up to there."""
        self.sent = self.confirmed = mark
        self.queue.observers.append(self)

    def stop(self) -> None:
        if self in self.queue.observers:
            self.queue.observers.remove(self)

    def compare(self, present: Sequence[Range]) -> None:
        """The other side has these positions: what is not here any more is to go there, and is to be told at once."""
        here = [*self.queue.positions()]
        for first, last in present:
            at = first
            for position in here[bisect_left(here, first) : bisect_right(here, last)]:
                if at < position:
                    self.gone.add(at, position - 1)
                at = position + 1
            if at <= last:
                self.gone.add(at, last)

    # What happens in the queue.

    def enqueued(self, queue: Queue, arrived: Arrived) -> None:
        self._wake()

    def dequeued(self, queue: Queue, ranges: Sequence[Positions], reason: Reason) -> None:
        if reason is Reason.DELETED:
            return
        sent = self.sent
        for first, stop in ranges:
            if first <= sent:
                self.gone.add(first, min(stop - 1, sent))
        self._check()
        if self.gone:
            self._wake()

    def deleted(self, queue: Queue) -> None:
        self._wake()

    def _check(self) -> None:
        if len(self.gone) > RANGES_MAX:
            self.gone.clear()
            self.broken = "too much has left the queue in too many places"

    def settled(self, upto: int) -> None:
        """A step was taken by the other side."""
        self.under_way -= 1
        self.confirmed = max(self.confirmed, upto)
        if not self.under_way:
            self.confirmed = max(self.confirmed, self.skipped)

    def skip(self, upto: int) -> None:
        """There was nothing to send up to there."""
        self.skipped = upto
        if not self.under_way:
            self.confirmed = max(self.confirmed, upto)

    # What is to be sent.

    @property
    def behind(self) -> int:
        return behind(self.queue, self.confirmed)

    @property
    def has_more(self) -> bool:
        return bool(self.gone) or self.sent < self.queue.next_position - 1

    def walk(self, size_max: int) -> list[Positions]:
        """Where the next ones to send are; from now on they count as sent. There may be none, and more behind them."""
        queue, first = self.queue, self.sent + 1
        last = min(first + WALK, queue.next_position) - 1
        chosen, left_out = queue.choose(first, last, WALK, size_max, each=64)
        if left_out is not None:
            last = left_out - 1
        elif not chosen and last < queue.next_position - 1:  # positions may have any gaps
            last = next(queue.positions(last + 1), queue.next_position) - 1
        self.sent = max(self.sent, last)
        return chosen
