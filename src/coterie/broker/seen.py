"""The message ids that a queue remembers, in the store: pages for good, and slots for what comes bit by bit.

A run of ids that is long enough is a page of its own. Shorter ones are written to slots, one after the other; when
these are full, a page takes up what they hold, and the slots are written over. So an id is written twice at most, and
there are few records however small the batches are.
"""

from __future__ import annotations

import base64
from collections import deque
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Final, NamedTuple

from coterie.broker import records
from coterie.broker.journal import restore_attributes

if TYPE_CHECKING:
    from coterie.broker.queue import Queue
    from coterie.broker.storage import Record

DIGEST: Final = 16
"""Bytes of an id."""
PAGE_IDS: Final = 256
"""Ids that are worth a page."""
SLOTS: Final = 32
_PAGE, _SLOT = "page ", "slot "


class Run(NamedTuple):
    """Ids that came together."""

    number: int
    """They rise."""
    wall: float
    """When, by the clock of the event that brought them."""
    ids: bytes
    """One digest after the other."""


class Pages:
    """Of one queue."""

    def __init__(self, queue: Queue) -> None:
        self._queue = queue
        self._pages: deque[tuple[str, int]] = deque()
        """Keys, and the number of the last run in each."""
        self._open: list[Run] = []
        """Runs in slots, from the first one on."""
        self._slots = 0
        """How many slots were ever written."""

    def save(self, run: Run, oldest: int) -> None:
        """One more. Runs below `oldest` are forgotten: told here, because after a crash that follows from this one."""
        gone: list[tuple[str, int]] = []
        journal = self._queue.journal
        if journal.on:
            journal.note(self._restore, [*self._open], self._slots)
        self._open.append(run)
        if len(self._open) > SLOTS or sum(len(each.ids) for each in self._open) >= PAGE_IDS * DIGEST:
            runs, self._open = self._open, []
            self.keep(runs)
        else:
            slot = len(self._open) - 1
            self._put(f"{_SLOT}{slot}", [run], self._open[0].number)
            self._slots = max(self._slots, slot + 1)
        if journal.on:
            journal.note(self._pages.extendleft, _backwards(gone))
        while self._pages and self._pages[0][1] < oldest:
            gone.append(self._pages.popleft())
            self._save(gone[-1][0], None)

    def keep(self, runs: Sequence[Run]) -> None:
        """As a page."""
        if runs:
            key = f"{_PAGE}{runs[0].number}"
            self._put(key, runs, runs[-1].number + 1)
            page = key, runs[-1].number
            if self._queue.journal.on:
                self._queue.journal.note(self._drop_page, page)
            self._pages.append(page)

    def clear(self) -> None:
        journal = self._queue.journal
        if journal.on:
            journal.note(
                restore_attributes, self, ("_pages", "_open", "_slots"), (self._pages, self._open, self._slots)
            )
        for key, _ in self._pages:
            self._save(key, None)
        for slot in range(self._slots):
            self._save(f"{_SLOT}{slot}", None)
        self._pages = deque()
        self._open = []
        self._slots = 0

    def _restore(self, runs: list[Run], slots: int) -> None:
        """A step was taken back."""
        self._open, self._slots = runs, slots

    def _drop_page(self, page: tuple[str, int]) -> None:
        if self._pages and self._pages[-1] == page:
            self._pages.pop()

    def recover(self, found: dict[str, Record]) -> list[Run]:
        """What there is; the oldest of it may have been forgotten."""
        pages = sorted((_runs(record), key) for key, record in found.items() if key.startswith(_PAGE))
        slots = sorted((_runs(record), record["since"]) for key, record in found.items() if key.startswith(_SLOT))
        self._pages.extend((key, runs[-1].number) for runs, key in pages)
        self._slots = len(slots)
        # Those from `since` on: a page has taken up what the others hold.
        since = slots[-1][1] if slots else 0
        assert isinstance(since, int)
        kept = max(since, self._pages[-1][1] + 1 if self._pages else 0)
        self._open = [run for runs, _ in slots for run in runs if run.number >= kept]
        return [*(run for runs, _ in pages for run in runs), *self._open]

    def _put(self, key: str, runs: Sequence[Run], since: int) -> None:
        told = [[run.number, run.wall, base64.b64encode(run.ids).decode()] for run in runs]
        self._save(key, {"queue": self._queue.incarnation, "since": since, "runs": told})

    def _save(self, key: str, record: Record | None) -> None:
        queue = self._queue
        queue.vhost.store.save(records.SEEN, records.key_of(queue.vhost.name, queue.name, key), record)


def _backwards(pages: list[tuple[str, int]]) -> Iterator[tuple[str, int]]:
    """From the last on, once somebody asks."""
    while pages:
        yield pages.pop()


def _runs(record: Record) -> list[Run]:
    told = record["runs"]
    assert isinstance(told, list)
    return [Run(number, wall, base64.b64decode(ids)) for number, wall, ids in told]
