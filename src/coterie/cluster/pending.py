"""What must wait until enough brokers hold it: deliveries, confirms, and every other answer to a client.

Whatever leaves the cluster concerns only places of the ordered log that a majority of the voters holds; for a
persistent message's confirm, on disk. So answers line up here in the order of the log.
"""

from __future__ import annotations

import traceback
from collections import deque
from collections.abc import Callable
from typing import NamedTuple

from coterie.broker.journal import NO_VERDICT
from coterie.log import Log

log = Log(__name__)


class Place(NamedTuple):
    """In the ordered log, as the group counts: views that this broker has seen, and the position in the view."""

    view: int
    position: int


START = Place(0, 0)


class _Item(NamedTuple):
    place: Place
    event: int
    """As the cluster counts; it must be on disk at a majority; 0: none."""
    call: Callable[[], None]
    known: int = 0
    """As the cluster counts; every broker that serves must have applied it; 0: none."""


def _let_out(call: Callable[[], None]) -> None:
    """What a client makes of it is no matter of the log, and of nobody else's answers."""
    try:
        call()
    except NO_VERDICT:
        raise
    except Exception:
        log.error("a client could not be told", error=traceback.format_exc())


class Pending:
    """In three lines: what the log alone decides, what waits for disks too, and what waits for every broker."""

    def __init__(self, may_speak: Callable[[], bool]) -> None:
        self._may_speak = may_speak
        """Nothing comes out while this broker may have been excluded."""
        self.held = START
        """Up to there a majority holds the log."""
        self.on_disk = 0
        """Up to this event a majority has it on disk."""
        self.everywhere = 0
        """Up to this event every broker that serves has applied the log."""
        self._deliveries: deque[_Item] = deque()
        self._answers: deque[_Item] = deque()
        self._of_all: deque[_Item] = deque()

    def __len__(self) -> int:
        return len(self._deliveries) + len(self._answers) + len(self._of_all)

    def deliver(self, place: Place, call: Callable[[], None]) -> None:
        if not self._deliveries and place <= self.held and self._may_speak():
            _let_out(call)
        else:
            self._deliveries.append(_Item(place, 0, call))

    def answer(self, place: Place, index: int, call: Callable[[], None]) -> None:
        """In the order of the calls. `index` 0: it need not be on disk."""
        if not self._answers and place <= self.held and index <= self.on_disk and self._may_speak():
            _let_out(call)
        else:
            self._answers.append(_Item(place, index, call))

    def answer_when_known(self, place: Place, index: int, known: int, call: Callable[[], None]) -> None:
        """As `answer`, and when all know of the event `known`. One broker that is slow delays no other answers."""
        self._of_all.append(_Item(place, index, call, known))

    def last(self) -> tuple[Place, int]:
        """What an answer waits for that must not come before those that are here."""
        return (self._answers[-1].place, self._answers[-1].event) if self._answers else (START, 0)

    def look(self) -> None:
        """Something has changed: let out what may go."""
        deliveries, answers, of_all = self._deliveries, self._answers, self._of_all
        if not (deliveries or answers or of_all) or not self._may_speak():
            return
        while deliveries and deliveries[0].place <= self.held:
            _let_out(deliveries.popleft().call)
        while answers and answers[0].place <= self.held and answers[0].event <= self.on_disk:
            _let_out(answers.popleft().call)
        while of_all and self._is_known(of_all[0]):
            _let_out(of_all.popleft().call)

    def _is_known(self, item: _Item) -> bool:
        return item.place <= self.held and item.event <= self.on_disk and item.known <= self.everywhere

    def clear(self) -> None:
        """Nobody waits any more, and what others have said may be of a log that this broker will not follow."""
        self.on_disk = self.everywhere = 0
        self._of_all.clear()
        self._deliveries.clear()
        self._answers.clear()
