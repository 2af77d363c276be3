"""Events of this node that are under way: what only it knows of them, until the log brings them back.

A node's own events come back in the order in which it sent them, so they are a line. What was sent and cannot count
(it was ordered while there was no majority) is sent again, in its order, when there is one.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from coterie.log import Log
from coterie.runtime.base import Buffer

if TYPE_CHECKING:
    from coterie.broker.message import Message
    from coterie.broker.publish import Publish, Routed
    from coterie.cluster.voids import Void


log = Log(__name__)
VOIDS = 20
"""So often an event may be ordered in vain, each time while there is no majority, before somebody should look."""


@dataclass(slots=True)
class Asked:
    """One event of ours."""

    payload: Buffer
    done: Callable[[object], None] | None = None
    """Who waits for the answer, which comes when a majority holds the event."""
    routed: Routed = field(default_factory=dict)
    """The messages themselves."""
    publishes: Sequence[Publish] = ()
    on_disk: bool = False
    """The answer waits for a majority of disks, too."""
    everywhere: bool = False
    """The answer waits until every broker that serves has applied it."""
    after: list[Callable[[], None]] = field(default_factory=list)
    """What is to be answered right behind it."""
    failed: Callable[[Void], None] | None = None
    """Who is told if it was void, besides whoever waits for the answer."""
    voids: int = 0
    """How often it was ordered and did not count."""

    def fail(self) -> None:
        """It was void: nothing was published."""
        for publish in self.publishes:
            publish.refused = True

    def refuse(self, messages: Sequence[Message]) -> None:
        """Some of its messages were refused: the publisher of each is told with the answer. A publish has a message of
        its own; bodies of several may be one object, and some messages are nobody's publish: letters."""
        publishes = {publish.enqueued: publish for publish in self.publishes}
        for message in messages:
            publish = publishes.get(message)
            if publish is not None:
                publish.refused = True


class LocalMessages:
    """Those that wait to be sent, those that are under way, and those that came back and did not count."""

    def __init__(self) -> None:
        self.waiting: deque[Asked] = deque()
        self.waiting_bytes = 0
        self._sent: deque[Asked] = deque()
        self._void: deque[Asked] = deque()

    def __len__(self) -> int:
        return len(self.waiting) + len(self._sent) + len(self._void)

    @property
    def in_order(self) -> bool:
        """Whether one may be sent now without overtaking another that has to be sent again."""
        return not self._void

    @property
    def under_way(self) -> int:
        return len(self._sent)

    def last(self) -> Asked | None:
        """The youngest that has not come back."""
        for line in (self.waiting, self._sent, self._void):
            if line:
                return line[-1]
        return None

    def wait(self, asked: Asked) -> None:
        self.waiting.append(asked)
        self.waiting_bytes += len(asked.payload)

    def sent(self, asked: Asked) -> None:
        """It is under way; if it was the first of those that wait, it waits no more."""
        if self.waiting and self.waiting[0] is asked:
            self.waiting.popleft()
            self.waiting_bytes -= len(asked.payload)
        self._sent.append(asked)

    def back(self, counts: bool) -> Asked:
        """The oldest that is under way has come back. One that does not count is sent again, when all that are under
        way, and cannot count either, have come back."""
        asked = self._sent.popleft()
        if not counts:
            asked.voids += 1
            if asked.voids % VOIDS == 0:
                log.error("an event of this broker is ordered again and again, and never counts", times=asked.voids)
            self._void.append(asked)
        if self._void and not self._sent:
            self.waiting_bytes += sum(len(each.payload) for each in self._void)
            self.waiting.extendleft(reversed(self._void))
            self._void.clear()
        return asked

    def clear(self) -> None:
        """None of them will ever be answered."""
        self.waiting.clear()
        self._sent.clear()
        self._void.clear()
        self.waiting_bytes = 0
