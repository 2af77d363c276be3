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
    from coterie.cluster.core import Core

_BITS = {MEMORY: 1, DISK: 2}
"""What counts for all; an alarm that a later version has, and this one does not know, is none."""


class Alarms:
    """Ours, as the others are to know them, and those of the others."""

    def __init__(self, core: Core) -> None:
        self._core = core
        self._told = 0
        self._of: dict[Address, int] = {}
        core.changed.append(self._members_changed)

    def attach(self, broker: Broker) -> None:
        broker.name = self._core.us.name
        broker.watch_alarms(lambda blocked: self._look())

    def _ours(self) -> int:
        alarms = self._core.broker.alarms
        return sum(bit for name, bit in _BITS.items() if alarms.get(name))

    def _look(self) -> None:
        if self._ours() != self._told:
            self.tell()

    def tell(self) -> None:
        """All that serve hear of ours, also that there is none."""
        self._told = self._ours()
        self._core.words.alarms(self._told, self._core.servants)

    def heard(self, member: Address, bits: int) -> None:
        if member != self._core.us and self._core.serves_with(member):
            self._of[member] = bits
            self._set(member)

    def _set(self, member: Address) -> None:
        bits = self._of.get(member, 0)
        self._core.broker.set_alarms_of(member.name, [name for name, bit in _BITS.items() if bits & bit])

    def _members_changed(self) -> None:
        core = self._core
        for member in [member for member in self._of if not core.serves or not core.serves_with(member)]:
            del self._of[member]
            self._set(member)
        if core.serves:
            self.tell()
