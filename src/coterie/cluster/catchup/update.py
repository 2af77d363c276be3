"""The update that a broker gets, from its status on: parts of another one's state, and what the log brings meanwhile.

The state is of the place of our status in the log, and every event from there on is kept until all of it is here. If
more happens than may be kept, or it makes no sense, it is given up, and asked for again later.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable
from typing import Protocol

from coterie.broker.journal import NO_VERDICT, Broken
from coterie.cluster import wire
from coterie.cluster.catchup.install import Installation
from coterie.cluster.catchup.snapshot import Json
from coterie.cluster.catchup.source import CHUNK, END, OUTLINE
from coterie.cluster.commit import Place
from coterie.group.members import Address
from coterie.logs import Log

log = Log(__name__)
PATIENCE = 1.0
PATIENCE_MAX = 60.0
"""Seconds before an update that was given up is asked for again: twice as long each time."""
NONSENSE = "what another broker has told this one, to bring it up to date, makes no sense: see its log"

Kept = list[tuple[Place, Address, bytes]]


class Newcomer(Protocol):
    """Who is updated."""

    def ask(self) -> None:
        """For the same update once more, from a later place of the log."""

    def ask_later(self, update: Update) -> None:
        """For another one, after a while."""

    def is_of_this_view(self, outline: Json) -> bool:
        """Else it was cut before the view changed, and is of no use."""

    def offered(self, source: Address, outline: Json) -> Installation:
        """A broker brings its state."""

    def installed(self, outline: Json, installation: Installation, kept: Callable[[], Kept]) -> None:
        """All of it is here; `kept` gives what the log has brought since, once."""

    def given_up(self, why: str = "") -> None:
        """It cannot be carried out."""


class Update:
    """One of them."""

    def __init__(self, newcomer: Newcomer, kept_max: int, patience: float = PATIENCE) -> None:
        self._newcomer = newcomer
        self._kept_max = kept_max
        self.patience = patience
        self._kept: Kept = []
        self._kept_bytes = 0
        self._given_up = False
        """Too much was to be kept: what still comes of it is of no use."""
        self._source: Address | None = None
        self._installation: Installation | None = None
        self._outline: Json = {}
        self.keeps = False
        """What the log brings is kept for later."""
        self._complete = False
        """Events are applied as they come again."""
        self._all_here = False
        self._put_off = False
        """Nobody is likely to bring it: nothing is kept for it."""
        self._offered = False
        """Somebody has brought it."""

    def put_off(self) -> bool:
        """All that is heard may be of another cluster. Should ours bring an update after all, it is asked for again."""
        if not self._offered:
            self._put_off = True
            self.keeps = False
            self._forget_kept()
        return self._put_off

    def keep(self, place: Place, sender: Address, data: bytes) -> None:
        """Others go on, perhaps faster than their state comes here. Beyond `kept_max` it is given up, and tried again
        later; meanwhile nothing is kept."""
        self._kept.append((place, sender, data))
        self._kept_bytes += len(data)
        if self._kept_bytes > self._kept_max:
            log.error("more happened during the update than this broker may keep", bytes=self._kept_bytes)
            self._forget_kept()
            self.keeps, self._given_up, self._installation = False, True, None
            self._newcomer.given_up()
            if self._all_here:
                self._newcomer.ask_later(self)

    def _forget_kept(self) -> None:
        self._kept.clear()
        self._kept_bytes = 0

    def from_here(self) -> None:
        """The state that we get, or have got already, is of this place of the log."""
        if self._put_off:
            return
        self._forget_kept()
        self.keeps = not self._complete
        if self._all_here and self._source is not None:
            self.part(self._source, memoryview(bytes((END,))))

    def part(self, sender: Address, data: memoryview) -> None:
        """What cannot be made sense of ends this update: after a while, another one is asked for."""
        try:
            self._part(sender, data)
        except (*NO_VERDICT, Broken):
            raise
        except Exception:
            log.error("an update cannot be carried out", source=sender, error=traceback.format_exc())
            self._give_up()

    def _give_up(self) -> None:
        self._source = self._installation = None
        self.keeps = self._complete = self._all_here = False
        self._forget_kept()
        self._newcomer.given_up(NONSENSE)
        self._newcomer.ask_later(self)

    def _part(self, sender: Address, data: memoryview) -> None:
        what, data = data[0], data[1:]
        if self._given_up:
            if what == END:  # whoever gives it has sent all: parts of the next one cannot be taken for those of this
                self._newcomer.ask_later(self)
        elif what == OUTLINE:
            self._begin(sender, wire.decode_json(data))
        elif sender != self._source or self._installation is None:
            return  # of an update that was given up
        elif what == CHUNK:
            self._installation.chunk(data)
        elif what == END:
            self._all_here = True
            if self.keeps:
                self._finish()

    def _begin(self, sender: Address, outline: Json) -> None:
        if not self._newcomer.is_of_this_view(outline):
            return
        self._offered = True
        if self._put_off:
            self._put_off = False
            self._newcomer.ask()
            return
        self._source, self._outline = sender, outline
        self._installation = self._newcomer.offered(sender, outline)

    def _finish(self) -> None:
        self.keeps = self._all_here = False
        installation, self._installation = self._installation, None
        assert installation is not None
        self._newcomer.installed(self._outline, installation, self._take_kept)

    def _take_kept(self) -> Kept:
        """From here on events are applied as they come."""
        self._complete = True
        kept, self._kept, self._kept_bytes = self._kept, [], 0
        return kept
