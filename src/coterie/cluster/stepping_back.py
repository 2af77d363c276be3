"""Stepping back: a broker whose disk does not take what the log brings leaves those in step before its memory is full.

While a disk refuses, or is too slow, what is to be written waits in memory. Publishers are stopped everywhere by then
(alarms.py), but other events go on: acks, declarations. When more waits than `cluster.unsynced_max`, and the others are
a majority without it, the broker says on the log that it steps back. At that place it is lost, for everybody: what it
held goes back, its clients are sent away, and it applies nothing more. It stays in the group, and when its disk is well
again it asks to be updated.

Whoever has a full disk when it comes to a cluster waits in the same way: it would have to keep in memory all that an
update brings.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from coterie.broker.broker import DISK
from coterie.cluster import wire
from coterie.cluster.update import Update
from coterie.cluster.voters import majority
from coterie.cluster.wire import Kind
from coterie.log import Log

if TYPE_CHECKING:
    from coterie.cluster.core import Core
    from coterie.group.members import Address
    from coterie.runtime.base import Timer

log = Log(__name__)
AGAIN = 0.5
"""Seconds between two looks at whether the disk is well again."""


class SteppingBack:
    """Of one broker."""

    def __init__(self, core: Core) -> None:
        self._core = core
        self._waits = False
        """It was not well when it last said how it is: it is updated when it is."""
        self._behind = False
        """Too much waited for the disk when it was looked at last."""
        self._timer: Timer | None = None

    @property
    def unwell(self) -> bool:
        """Its disk takes nothing, or too little."""
        core = self._core
        return core.broker.alarms.get(DISK, False) or 2 * core.broker.store.unsynced() > core.settings.unsynced_max

    def look(self) -> None:
        """Now and then: whether too much waits for the disk, and did so the last time. What an update brings may be
        more than that, and is as much as the disk takes: one that gets it steps back only if that is nothing."""
        core = self._core
        waiting = core.broker.store.unsynced()
        before, self._behind = self._behind, waiting > core.settings.unsynced_max
        if not before or not self._behind or not core.serves or core.versions.spoken < wire.STEPPING_BACK:
            return
        if core.updating and not core.broker.alarms.get(DISK):
            return
        if self._others_suffice(core.us):
            said = {"view": str(core.channel.view.id), "bytes": waiting}
            core.sending.multicast(Kind.BACK, wire.encode_json(said))
        else:
            log.error("the disk lags behind, and without this broker there is no majority", bytes=waiting)

    def _others_suffice(self, member: Address) -> bool:
        core = self._core
        return majority(core.voters, {each.name for each in core.in_step if each != member})

    def heard(self, member: Address, view: str, waiting: int) -> None:
        """One says so, in its place of the log. It is void if there would be no majority any more."""
        core = self._core
        if not core.follows or view != str(core.channel.view.id) or not core.serves_with(member):
            return
        if not self._others_suffice(member):
            return
        core.in_step = [each for each in core.in_step if each != member]
        core.catching_up.pop(member, None)
        core.advance(Kind.BACK, member)
        core.lives.pop(member, None)
        core.disks.lost(member)
        core.everywhere.lost(member)
        core.lose([member])
        if member == core.us:
            core.step_back(f"its disk has not taken {waiting} bytes of what the log has brought")
            self.said(unwell=True)
        else:
            log.warning("a broker steps back: its disk lags behind", broker=member, bytes=waiting)
            core.members_changed()

    def said(self, unwell: bool) -> None:
        """It has told its status. What waited for the disk before says nothing about what an update brings."""
        self._waits, self._behind = unwell, False
        if unwell and self._timer is None:
            self._timer = self._core.runtime.call_later(AGAIN, self._look_again)

    def _look_again(self) -> None:
        core = self._core
        self._timer = None
        if not self._waits or core.serves or not core.channel.stack.running:
            self._waits = False
        elif self.unwell:
            self.said(unwell=True)
        else:
            log.info("the disk is well again: this broker asks to be updated")
            core.update = Update(core)
            core.standing.send_status()
