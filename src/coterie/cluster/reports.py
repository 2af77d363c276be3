"""How far each broker has come, as it says itself: what answers wait for that concern others than a majority."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from coterie.group.members import Address

if TYPE_CHECKING:
    from coterie.cluster.core import Core


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

    def heard(self, member: Address, index: int, epoch: int) -> bool:
        """Whether that is news."""
        # Whoever was lost may have had events that nobody else has, and may have said so before.
        news = epoch >= self._lost_in.get(member.name, 0) and index > self._upto.get(member, 0)
        if news:
            self._upto[member] = index
        return news

    def lost(self, member: Address, epoch: int) -> None:
        self._upto.pop(member, None)
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

    def heard(self, member: Address, index: int, epoch: int) -> None:
        if self._reports.heard(member, index, epoch):
            self.count()

    def lost(self, member: Address) -> None:
        self._reports.lost(member, self._core.progress.epoch)

    def count(self) -> None:
        """Something has changed: let out what waits for it."""
        core, upto = self._core, self._reports.upto
        others = [upto.get(member, 0) for member in core.servants if member != core.us]
        core.pending.everywhere = max(core.pending.everywhere, min(others, default=core.progress.index))
        core.pending.look()
