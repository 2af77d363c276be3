"""How far each broker has come, as it says itself: what answers wait for that concern others than a majority.

What it says holds for one life of its state: from where it came into step, or was updated, until it is lost. All who
serve know that place, as the log says it. A report of a former life may be under way for long, and counts events of a
log that nobody else has: it is void.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from coterie.group.members import Address

if TYPE_CHECKING:
    from coterie.cluster.core import Core
    from coterie.cluster.voters import Progress

_NAMED = 1 << 63
"""In a report that names a life. Brokers of older versions name their epoch instead."""


def life_of(core: Core, member: Address) -> int:
    """The present one, as reports name it; 0: it is not known where that began."""
    began = core.lives.get(member)
    return 0 if began is None else name_of(began)


def name_of(began: Progress) -> int:
    return _NAMED | (began.epoch & 0x7F_FFFF) << 40 | began.index & 0xFF_FFFF_FFFF


class Reports:
    """The last event that each of them has named."""

    def __init__(self) -> None:
        self._upto: dict[Address, int] = {}
        self._lost_in: dict[str, int] = {}
        """By name: in which epoch a broker was lost last."""

    @property
    def upto(self) -> Mapping[Address, int]:
        return self._upto

    def begin(self, us: Address) -> None:
        """This broker comes into step: what it heard before is of no use."""
        self._upto = {us: 0}

    def heard(self, member: Address, index: int, life: int, present: int) -> bool:
        """Whether that is news. `present`: the life that the member is in."""
        counts = life == present or not present
        if life < _NAMED:  # an epoch: whoever was lost may have had events that nobody else has, and said so before
            counts = life >= self._lost_in.get(member.name, 0)
        news = counts and index > self._upto.get(member, 0)
        if news:
            self._upto[member] = index
        return news

    def begins(self, member: Address) -> None:
        """Another life of it: what it said before is void."""
        self._upto.pop(member, None)

    def lost(self, member: Address, epoch: int) -> None:
        self.begins(member)
        self._lost_in[member.name] = epoch


class Everywhere:
    """Up to which event every broker that serves has applied the log.

    A client that was told of a new queue may tell another one, which publishes to it through another broker at once;
    and there the message is routed by what that broker knows. So whoever changes the wiring, users or policies is
    answered when all know of it.
    """

    def __init__(self, core: Core) -> None:
        self._core = core
        self._reports = Reports()

    def begin(self) -> None:
        self._reports.begin(self._core.us)

    def tell(self) -> None:
        """All that serve hear how far this broker has come."""
        self._core.words.applied(self._core.progress.index, self._core.servants)
        self.count()

    def heard(self, member: Address, index: int, life: int) -> None:
        if self._reports.heard(member, index, life, life_of(self._core, member)):
            self.count()

    def begins(self, member: Address) -> None:
        self._reports.begins(member)

    def lost(self, member: Address) -> None:
        self._reports.lost(member, self._core.progress.epoch)

    def count(self) -> None:
        """Something has changed: let out what waits for it."""
        core, upto = self._core, self._reports.upto
        others = [upto.get(member, 0) for member in core.servants if member != core.us]
        core.pending.everywhere = max(core.pending.everywhere, min(others, default=core.progress.index))
        core.pending.look()
