"""Alarms of the cluster: while one broker that serves is low on memory or disk, publishers wait at all of them.

Every broker has every message: so what one cannot take, none may be given. A broker tells the others when its alarms
change, when members change, and again and again, as a word may be lost. An alarm is over when its broker says so, or is
no member that serves any more.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from coterie.broker.broker import DISK, MEMORY
from coterie.group.members import Address

if TYPE_CHECKING:
    from coterie.broker.broker import Broker
    from coterie.cluster.peer_messages import PeerMessages
    from coterie.cluster.standing import Standing

_BITS = {MEMORY: 1, DISK: 2}
"""What counts for all; an alarm that a later version has, and this one does not know, is none."""


class Alarms:
    """Ours, as the others are to know them, and those of the others."""

    def __init__(self, standing: Standing, broker: Broker, messages: PeerMessages) -> None:
        self._standing = standing
        self._broker = broker
        self._messages = messages
        self._told = 0
        self._of: dict[Address, int] = {}
        broker.name = standing.us.name
        broker.watch_alarms(lambda blocked: self._look())

    def _ours(self) -> int:
        alarms = self._broker.alarms
        return sum(bit for name, bit in _BITS.items() if alarms.get(name))

    def _look(self) -> None:
        if self._ours() != self._told:
            self.tell()

    def tell(self) -> None:
        """All that serve hear of ours, also that there is none."""
        self._told = self._ours()
        self._messages.alarms(self._told, self._standing.servants)

    def heard(self, member: Address, bits: int) -> None:
        if member != self._standing.us and self._standing.serves_with(member):
            self._of[member] = bits
            self._set(member)

    def _set(self, member: Address) -> None:
        bits = self._of.get(member, 0)
        self._broker.set_alarms_of(member.name, [name for name, bit in _BITS.items() if bits & bit])

    def members_changed(self) -> None:
        standing = self._standing
        for member in [member for member in self._of if not standing.serves or not standing.serves_with(member)]:
            del self._of[member]
            self._set(member)
        if standing.serves:
            self.tell()
