"""Syncs of this broker's store, and who hears of them: what confirms of persistent messages wait for.

A broker says up to which event it has everything on disk: to those whose clients wait for it, and now and then to all.
A report names the life of the store that it is of: where in the log that began (commit.py). A sync may take longer than
the life in which it was asked for; then it says nothing about the next one, whose log may be another.
As many brokers as make a majority sync at once: the event's own, and the voters that follow it in the view. The others
sync a little later, for many events at a time, in case one of the first is slow.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import TYPE_CHECKING

from coterie.cluster.chain import Link
from coterie.cluster.standing import Standing
from coterie.group.members import Address
from coterie.runtime.base import Runtime, Timer

if TYPE_CHECKING:
    from coterie.broker.storage import Store
    from coterie.cluster.traced import ClusterTrace

LATER = 0.03
"""Seconds that a broker whose disk no majority needs lets its sync wait for others."""


class DiskSync:
    """Of one broker."""

    def __init__(
        self, runtime: Runtime, standing: Standing, store: Store, traced: ClusterTrace | None,
        reached: Callable[[Link, Iterable[Address]], None],
    ) -> None:  # fmt: skip
        self._runtime = runtime
        self._standing = standing
        self._store = store
        self._traced = traced
        self._reached = reached
        """Called with an event up to which everything is on disk, and those who wait to hear that."""
        self._waiting: dict[Address, None] = {}
        """Whose events were applied since we last looked at our disk, and wait for it."""
        self._later: Timer | None = None
        self._life = 0
        """Of our store: syncs that were asked for in another one are void."""

    def awaited_by(self, member: Address) -> None:
        """An event of that broker is being applied, and somebody there waits until it is on disk."""
        self._waiting[member] = None

    def look(self) -> None:
        """Something was written: see to it that those who wait for it hear when it is on disk."""
        if not self._store.durable:
            self._waiting.clear()
        elif any(map(self._standing.syncs_first, self._waiting)):
            self._sync()
        elif self._waiting and self._later is None:
            self._later = self._runtime.call_later(LATER, self._sync)

    def for_all(self) -> None:
        """The members have changed: everybody is to hear when all of this is on disk."""
        self._waiting.update(dict.fromkeys(self._standing.servants))
        self.look()

    def begin(self) -> None:
        """This broker comes into step."""
        self._life += 1

    def clear(self) -> None:
        """Nobody waits for us any more, and what is being synced is of no use to anybody."""
        self._life += 1
        self._waiting.clear()

    def _sync(self) -> None:
        if self._later is not None:
            self._later.cancel()
            self._later = None
        store, here, waiting = self._store, self._standing.here, [*self._waiting]
        self._waiting.clear()
        if self._traced is not None:
            self._traced.logged(here)
        store.when_synced(store.written(), partial(self._synced, self._life, here, waiting))

    def _synced(self, life: int, there: Link, waiting: Iterable[Address]) -> None:
        if life == self._life:
            self._reached(there, waiting)
