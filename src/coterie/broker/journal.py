"""The undo journal: a step of the broker is taken whole, or not at all.

While a step is taken, whoever changes something that all brokers have alike first notes here how it was: one call for a
batch, which is cheap. If the step raises, the notes are carried out backwards, the store's unit is cut back to where
the step began, and nothing of it has happened, in memory or on disk. What a step does towards others (deliveries,
answers, events of our own) waits here until the step has succeeded.

A note restores what was, however far the change has come: it is made before the change, and holds old values.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, TypeVar

from coterie.broker.effects import Effects
from coterie.errors import DiskError
from coterie.logs import Log

if TYPE_CHECKING:
    from coterie.broker.storage import Store

R = TypeVar("R")
log = Log(__name__)

NO_VERDICT: Final = (MemoryError, RecursionError, OSError, DiskError)
"""What says something about this process or its disk, and nothing about the step: others may have taken it."""


class Broken(Exception):
    """What a step did could not be taken back: nobody knows what this broker has."""


class Journal:
    """Of one broker. It is off unless a step is being taken."""

    __slots__ = ("_later", "_notes", "_said", "_store", "effects", "on", "step", "turn")

    def __init__(self, store: Store | None = None) -> None:
        self._store = store
        self.effects = Effects()
        """What is being done, if all brokers do it alike; without what is taken back."""
        self.on = False
        """A step is being taken: changes are to be noted."""
        self.step = 0
        """Another one whenever a step begins, but not for a part of one."""
        self.turn = 0
        """Another one whenever a step, or a part of one that can be taken back alone, begins or ends: who notes itself
        as a whole need do so once in each."""
        self._notes: list[tuple[Callable[..., object], tuple[Any, ...]]] = []
        self._later: list[tuple[Callable[..., object], tuple[Any, ...]]] = []
        self._said: list[Callable[[], object]] = []

    def note(self, undo: Callable[..., object], *args: Any) -> None:
        """How to have it again as it is now. Ask for `on` before."""
        self._notes.append((undo, args))

    def after(self, call: Callable[..., object], *args: Any) -> None:
        """Once the step has succeeded; at once, if none is being taken."""
        if self.on:
            self._later.append((call, args))
        else:
            call(*args)

    def say(self, line: Callable[[], object]) -> None:
        """For the trace, which knows nothing of steps that are taken back: once the step has succeeded, and before the
        store writes what it did."""
        if self.on:
            self._said.append(line)
        else:
            line()

    def run(self, step: Callable[[], R]) -> R:
        """Take a step, or a part of one, whole or not at all: what it raises is raised, and nothing has happened."""
        store, inner = self._store, self.on
        notes, later, said = len(self._notes), len(self._later), len(self._said)
        mark = None if store is None else store.mark()
        made = self.effects.mark()
        self.on = True
        self.turn += 1
        self.step += not inner
        try:
            try:
                result = step()
            finally:
                self.on = inner
                self.turn += 1
        except BaseException:
            del self._later[later:], self._said[said:]
            self.effects.cut(made)
            try:
                self._undo(notes)
            finally:
                if store is not None:
                    store.cut(mark)
            raise
        if not inner:
            lines, self._said = self._said, []
            for line in lines:
                line()
        if store is not None:
            store.unmark(mark)
        if not inner:
            self._notes.clear()
            self._let_out()
        return result

    def apart(self, step: Callable[[], object], what: str) -> bool:
        """A part that concerns this broker alone, or that something else can stand in for: if it fails, it alone has
        not happened. Whether it has."""
        try:
            self.run(step)
        except (*NO_VERDICT, Broken):
            raise
        except Exception:
            log.error(f"{what} has failed, and is left out", error=traceback.format_exc())
            return False
        return True

    def _undo(self, notes: int) -> None:
        undone = self._notes[notes:]
        del self._notes[notes:]
        on, self.on = self.on, False
        try:
            for undo, args in reversed(undone):
                undo(*args)
        except Exception as error:
            raise Broken(f"a failed step cannot be taken back: {error!r}") from error
        finally:
            self.on = on

    def _let_out(self) -> None:
        """What the step does towards others; what one of them makes of it is no matter of the step."""
        while self._later:
            calls, self._later = self._later, []
            for call, args in calls:
                try:
                    call(*args)
                except NO_VERDICT:
                    raise
                except Exception:
                    log.error("something that follows from a step has failed", error=traceback.format_exc())


def restore_attributes(thing: object, names: tuple[str, ...], values: tuple[Any, ...]) -> None:
    """For a note: what these attributes were."""
    for name, value in zip(names, values, strict=True):
        setattr(thing, name, value)


def restore_key(table: dict[Any, Any], key: object, value: object) -> None:
    """For a note: what a table had for a key, or None."""
    if value is None:
        table.pop(key, None)
    else:
        table[key] = value
