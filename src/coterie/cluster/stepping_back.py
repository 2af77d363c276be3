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
    from coterie.broker.broker import Broker
    from coterie.cluster.core import Core
    from coterie.group.members import Address

log = Log(__name__)


class SteppingBack:
    """Of one broker."""

    def __init__(self, core: Core) -> None:
        self._core = core
        self._waits = False
        """It was not well when it last said how it is: it is updated when it is."""

    def attach(self, broker: Broker) -> None:
        broker.watch_alarms(lambda blocked: self._alarms_changed())

    @property
    def unwell(self) -> bool:
        """Its disk takes nothing, or too little."""
        return self._core.broker.alarms.get(DISK, False)

    def look(self) -> None:
        """Now and then: whether too much waits for the disk."""
        core = self._core
        waiting = core.broker.store.unsynced()
        if waiting <= core.settings.unsynced_max or not core.serves or core.versions.spoken < wire.STEPPING_BACK:
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
            self._waits = True
            core.step_back(f"its disk has not taken {waiting} bytes of what the log has brought")
        else:
            log.warning("a broker steps back: its disk lags behind", broker=member, bytes=waiting)
            core.members_changed()

    def said(self, unwell: bool) -> None:
        """It has told its status."""
        self._waits = unwell

    def _alarms_changed(self) -> None:
        core = self._core
        if self._waits and not self.unwell and not core.serves and core.us in core.members:
            log.info("the disk is well again: this broker asks to be updated")
            core.update = Update(core)
            core.standing.send_status()
