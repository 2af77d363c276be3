"""What must wait until enough brokers hold it: deliveries, confirms, and every other answer to a client.

Whatever leaves the cluster concerns only places of the ordered log that a majority of the voters holds; for a
persistent message's confirm, on disk. So answers line up here in the order of the log, until commit.py says so.
"""

from __future__ import annotations

import traceback
from collections import deque
from collections.abc import Callable
from typing import NamedTuple

from coterie.broker.journal import NO_VERDICT
from coterie.cluster.commit import START, Commit, Place
from coterie.logs import Log

log = Log(__name__)


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


class Answers:
    """In three lines: what the log alone decides, what waits for disks too, and what waits for every broker."""

    def __init__(self, commit: Commit, may_speak: Callable[[], bool]) -> None:
        self._commit = commit
        self.may_speak = may_speak
        """Nothing comes out while this broker may have been excluded."""
        self._silenced: dict[object, Callable[[], None]] = {}
        """What was about to be said meanwhile, by whoever wanted to say it."""
        self._deliveries: deque[_Item] = deque()
        self._answers: deque[_Item] = deque()
        self._of_all: deque[_Item] = deque()

    def __len__(self) -> int:
        return len(self._deliveries) + len(self._answers) + len(self._of_all)

    def deliver(self, place: Place, call: Callable[[], None]) -> None:
        if not self._deliveries and place <= self._commit.held and self.may_speak():
            _let_out(call)
        else:
            self._deliveries.append(_Item(place, 0, call))

    def answer(self, place: Place, index: int, call: Callable[[], None]) -> None:
        """In the order of the calls. `index` 0: it need not be on disk."""
        if not self._answers and place <= self._commit.held and index <= self._commit.on_disk and self.may_speak():
            _let_out(call)
        else:
            self._answers.append(_Item(place, index, call))

    def answer_when_known(self, place: Place, index: int, known: int, call: Callable[[], None]) -> None:
        """As `answer`, and when all know of the event `known`. One broker that is slow delays no other answers."""
        self._of_all.append(_Item(place, index, call, known))

    def when_it_may_speak(self, who: object, call: Callable[[], None]) -> None:
        """Once, however often they ask."""
        self._silenced[who] = call

    def last(self) -> tuple[Place, int]:
        """What an answer waits for that must not come before those that are here."""
        return (self._answers[-1].place, self._answers[-1].event) if self._answers else (START, 0)

    def look(self) -> None:
        """Something has changed: let out what may go."""
        deliveries, answers, of_all, commit = self._deliveries, self._answers, self._of_all, self._commit
        if not (
            (deliveries and deliveries[0].place <= commit.held)
            or (answers and answers[0].place <= commit.held and answers[0].event <= commit.on_disk)
            or (of_all and self._is_known(of_all[0]))
            or self._silenced
        ):
            return
        if not self.may_speak():
            return
        if self._silenced:
            silenced, self._silenced = self._silenced, {}
            for call in silenced.values():
                _let_out(call)
        while deliveries and deliveries[0].place <= commit.held:
            _let_out(deliveries.popleft().call)
        while answers and answers[0].place <= commit.held and answers[0].event <= commit.on_disk:
            _let_out(answers.popleft().call)
        while of_all and self._is_known(of_all[0]):
            _let_out(of_all.popleft().call)

    def _is_known(self, item: _Item) -> bool:
        commit = self._commit
        return item.place <= commit.held and item.event <= commit.on_disk and item.known <= commit.everywhere

    def clear(self) -> None:
        """Nobody waits any more."""
        self._of_all.clear()
        self._silenced.clear()
        self._deliveries.clear()
        self._answers.clear()
