"""How a broker becomes a voter: the oldest one in step proposes those that are in step and have no vote, one by one.

As when a name is forgotten (forget.py), of two changes of the voters the second begins only when a majority holds the
first, and a proposal is void if the voters are others by then. Otherwise two newcomers could make a majority with one
of the old voters, beside the other old ones who know of neither.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from coterie.cluster import wire
from coterie.cluster.wire import Kind

if TYPE_CHECKING:
    from coterie.cluster.core import Core
    from coterie.group.members import Address


class Franchise:
    """Who shall have a vote, as one broker sees it."""

    def __init__(self, core: Core) -> None:
        self._core = core
        self._proposed = ""
        self.resigned: set[Address] = set()
        """They gave up their vote, and are about to leave."""
        core.changed.append(self._look)

    def _candidate(self) -> str:
        core = self._core
        if not core.keeps_time():
            return ""
        known = (member.name for member in core.in_step if member not in self.resigned)
        return next((name for name in known if name not in core.voters), "")

    def _look(self) -> None:
        name = self._candidate()
        if name != self._proposed:
            self._proposed = name
            if name:
                self._core.when_held(lambda: self._propose(name))

    def _propose(self, name: str) -> None:
        if name == self._proposed == self._candidate():
            core = self._core
            core.sending.multicast(Kind.VOTER, wire.encode_json({"name": name, "voters": list(core.voters)}))

    def decided(self) -> None:
        """A proposal of ours has had its place in the log, and counted or not."""
        self._proposed = ""
        self._look()
