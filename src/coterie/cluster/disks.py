"""Whose disk has how much of the log: what confirms of persistent messages wait for.

A broker says up to which event it has everything on disk: to those whose clients wait for it, and now and then to all.
A report names the life of the store that it is of: where in the log that began. A sync may take longer than the life
in which it was asked for; then it says nothing about the next one, whose log may be another.
As many brokers as make a majority sync at once: the event's own, and the voters that follow it in the view. The others
sync a little later, for many events at a time, in case one of the first is slow.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import partial
from typing import TYPE_CHECKING

from coterie.cluster.reports import Reports, life_of
from coterie.group.members import Address
from coterie.runtime.base import Timer

if TYPE_CHECKING:
    from coterie.cluster.core import Core

LATER = 0.03
"""Seconds that a broker whose disk no majority needs lets its sync wait for others."""


class Disks:
    """As one broker knows them."""

    def __init__(self, core: Core) -> None:
        self._core = core
        self._reports = Reports()
        """Up to which event each member has everything on disk."""
        self._waiting: dict[Address, None] = {}
        """Whose events were applied since we last looked at our disk, and wait for it."""
        self._later: Timer | None = None
        self._life = 0
        """Of our store: syncs that were asked for in another one are void."""

    @property
    def upto(self) -> Mapping[Address, int]:
        return self._reports.upto

    # Ours.

    def awaited_by(self, member: Address) -> None:
        """An event of that broker is being applied, and somebody there waits until it is on disk."""
        self._waiting[member] = None

    def look(self) -> None:
        """Something was written: see to it that those who wait for it hear when it is on disk."""
        if not self._core.broker.store.durable:
            self._waiting.clear()
        elif any(map(self._is_needed, self._waiting)):
            self._sync()
        elif self._waiting and self._later is None:
            self._later = self._core.runtime.call_later(LATER, self._sync)

    def tell_all(self) -> None:
        """The members have changed: everybody is to hear when all of this is on disk."""
        self._waiting.update(dict.fromkeys(self._core.servants))
        self.look()

    def begin(self) -> None:
        """This broker comes into step."""
        self._life += 1
        self._reports.begin(self._core.us)

    def clear(self) -> None:
        """Nobody waits for us any more, and what is being synced is of no use to anybody."""
        self._life += 1
        self._waiting.clear()

    def _is_needed(self, origin: Address) -> bool:
        """Whether our disk is one of a majority for that broker's events."""
        core = self._core
        voters = [member for member in core.in_step if member.name in core.voters]
        at = voters.index(origin) if origin in voters else 0
        return core.us in (voters[at:] + voters[:at])[: len(core.voters) // 2 + 1]

    def _sync(self) -> None:
        if self._later is not None:
            self._later.cancel()
            self._later = None
        store, index, waiting = self._core.broker.store, self._core.progress.index, [*self._waiting]
        self._waiting.clear()
        if self._core.traced is not None:
            self._core.traced.logged(index)
        store.when_synced(store.written(), partial(self._synced, self._life, index, waiting))

    def _synced(self, life: int, index: int, tell: Iterable[Address]) -> None:
        if life == self._life:
            self.heard(self._core.us, index, life_of(self._core, self._core.us))
            self.tell(tell)

    def tell(self, members: Iterable[Address]) -> None:
        self._core.words.disk(self.upto.get(self._core.us, 0), members)

    # Those of others.

    def heard(self, member: Address, index: int, life: int) -> None:
        if self._reports.heard(member, index, life, life_of(self._core, member)):
            self._count()

    def begins(self, member: Address) -> None:
        self._reports.begins(member)

    def lost(self, member: Address) -> None:
        self._reports.lost(member, self._core.progress.epoch)

    def voters_changed(self) -> None:
        """At this place of the log: of what comes from here on another majority must have it on disk, also of what
        brokers have reported that are ahead of us."""
        pending = self._core.pending
        pending.on_disk = min(pending.on_disk, self._core.progress.index - 1)
        self._count()

    def _count(self) -> None:
        core = self._core
        by_name = {member.name: index for member, index in self.upto.items() if member in core.in_step}
        found = sorted((by_name.get(name, 0) for name in core.voters), reverse=True)
        if found:
            core.pending.on_disk = max(core.pending.on_disk, found[len(found) // 2])
            core.pending.look()
