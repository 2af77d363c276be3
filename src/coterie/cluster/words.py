"""What brokers tell each other one to one, beside the log. The first byte says what.

Of some it does not matter if one is lost, as it is told again before long: how far a broker and its disk have come, its
alarms, questions and answers of the lease. Parts of an update and direct replies wait until there is room for them.
"""

from __future__ import annotations

import struct
import traceback
from collections.abc import Iterable
from typing import TYPE_CHECKING

from coterie.broker.journal import NO_VERDICT, Broken
from coterie.cluster.filling import ASK, BODIES, answer
from coterie.cluster.remote_replies import WORDS as REPLIES
from coterie.cluster.reports import life_of
from coterie.cluster.update import UPDATE
from coterie.cluster.whereabouts import WHERE
from coterie.cluster.wire import decode_json, encode_json
from coterie.group.channel import BufferFull, ChannelClosed
from coterie.log import Log

if TYPE_CHECKING:
    from coterie.cluster.core import Core
    from coterie.group.members import Address

log = Log(__name__)
DISK, PING, PONG, APPLIED, REFUSED, ALARMS = 1, 2, 3, 10, 12, 13
WHY_MAX = 1000
"""Characters of a reason that are shown."""
_SHORT = struct.Struct(">BQQ")
"""What, a number, and of a report the life that it is of."""


class Words:
    """Of one broker."""

    def __init__(self, core: Core) -> None:
        self._core = core

    def ping(self, number: int, to: Iterable[Address]) -> None:
        self._tell(PING, number, 0, to)

    def disk(self, index: int, to: Iterable[Address]) -> None:
        self._tell(DISK, index, life_of(self._core, self._core.us), to)

    def applied(self, index: int, to: Iterable[Address]) -> None:
        self._tell(APPLIED, index, life_of(self._core, self._core.us), to)

    def alarms(self, bits: int, to: Iterable[Address]) -> None:
        self._tell(ALARMS, bits, 0, to)

    def _tell(self, what: int, number: int, life: int, to: Iterable[Address]) -> None:
        """If there is no room for it, it is lost."""
        core, data = self._core, _SHORT.pack(what, number, life)
        for member in to:
            if member != core.us and core.serves_with(member):
                try:
                    core.channel.send_nowait(data, member)
                except (BufferFull, ChannelClosed):
                    pass

    def send(self, member: Address, data: bytes) -> None:
        """As soon as there is room for it."""
        channel = self._core.channel

        async def send() -> None:
            try:
                await channel.send(data, member)
            except ChannelClosed:
                pass

        self._core.runtime.spawn(send())

    def refuse(self, member: Address, why: str) -> None:
        """It wants to join, and may not."""
        told = {"cluster": self._core.cluster, "why": why}
        self.send(member, bytes((REFUSED,)) + encode_json(told))

    def heard(self, sender: Address, data: memoryview) -> None:
        """What cannot be read is nobody's trouble but its sender's."""
        core, what = self._core, data[0] if len(data) else 0
        try:
            if what == UPDATE:
                if core.update is not None and not core.way_back.under_way:
                    core.update.part(sender, data[1:])
            elif what == ASK:
                answer(core, sender, data[1:])
            elif what == BODIES:
                if core.filling is not None:
                    core.filling.bodies(data[1:])
            elif what == WHERE:
                core.whereabouts.heard(sender, data[1:])
            elif what == REFUSED:
                self._refused(sender, decode_json(data[1:]))
            elif what in REPLIES:
                core.replies.heard(sender, data)
            else:
                self._short(sender, *_SHORT.unpack(data))
        except (*NO_VERDICT, Broken):
            raise
        except Exception:
            log.error("a word between brokers that cannot be read", sender=sender, error=traceback.format_exc())

    def _refused(self, sender: Address, told: object) -> None:
        core = self._core
        if core.serves or sender not in core.channel.view.members or not isinstance(told, dict):
            return
        why = str(told.get("why"))[:WHY_MAX]
        if core.cluster in ("", told.get("cluster")) or core.update is None:
            core.refused(why)
        elif core.update.put_off():  # by another cluster: ours may serve in the same view
            core.standing.refused = True
            core.why = f"another cluster refuses this broker: {why}"
            log.error("another cluster refuses this broker", why=why)
            core.told_of_change()

    def _short(self, sender: Address, what: int, number: int, life: int) -> None:
        core = self._core
        if what == DISK:
            core.disks.heard(sender, number, life)
        elif what == APPLIED:
            core.everywhere.heard(sender, number, life)
        elif what == ALARMS:
            core.alarms.heard(sender, number)
        elif what == PING:
            if core.serves_with(sender):
                self._tell(PONG, number, 0, (sender,))
        elif what == PONG:
            core.lease.heard(sender.name, number)
