"""What is in a queue, message by message: a queue itself knows ranges of positions alone."""

from __future__ import annotations

from collections.abc import Sequence

from coterie.broker.delivery import positions_in
from coterie.broker.message import Message
from coterie.broker.queue import Queue
from coterie.broker.ranges import Range

GONE = "gone"
"""The holder of a message that has left its queue."""


class Seen:
    """A message at one position of a queue: as it was when somebody looked, with what has become of it since."""

    def __init__(self, queue: Queue, position: int) -> None:
        self.queue = queue
        self.position = position
        self.message: Message | None = queue.table.contents.message(position)
        """None: it was on disk only."""
        self.size = queue.table.size(position)
        self.given_again = False
        """Whoever was given it was told that somebody may have seen it before."""

    @property
    def holder(self) -> object | None:
        """None: it is ready."""
        table = self.queue.table
        return table.holder(self.position) if self.position in table.state.live else GONE

    @property
    def state(self) -> str:
        holder = self.holder
        return "ready" if holder is None else "gone" if holder is GONE else "acquired"

    @property
    def redelivered(self) -> bool:
        return self.given_again or self.position in self.queue.table.flagged

    @property
    def expires(self) -> float | None:
        return self.queue.table.expiry(self.position)

    @property
    def deliveries(self) -> int:
        """How often it was given to somebody; not if he gave it back unseen."""
        back = self.queue.table.state.deliveries.get(self.position)
        return back + (self.state == "acquired")

    def __repr__(self) -> str:
        return f"<{self.queue.name}:{self.position} {self.state}>"


def seen(queue: Queue) -> dict[int, Seen]:
    """All that is in it, by rising positions."""
    return {position: Seen(queue, position) for position in queue.positions()}


def in_order(queue: Queue) -> list[Seen]:
    """As consumers would get them."""
    return those(queue, [*queue.table.in_order()])


def those(queue: Queue, ranges: Sequence[Range]) -> list[Seen]:
    return [Seen(queue, position) for position in positions_in(ranges)]
