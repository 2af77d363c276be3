"""What version of events a cluster speaks: the newest that all of its voters understand; and it never goes back.

So a cluster is upgraded one broker after the other, while it serves: as long as an old one is a voter, the old version
is spoken. When the last voter has been upgraded, all of them know it at the same place of the log, and from there on
the new version is spoken: a broker that does not understand it is not let in any more.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from coterie.cluster import wire

if TYPE_CHECKING:
    from coterie.cluster.membership import Status
    from coterie.group.members import Address


class Versions:
    """As one broker knows them, by what the log has told."""

    def __init__(self) -> None:
        self.newest = wire.VERSION
        """That this broker understands."""
        self.spoken = wire.OLDEST
        """In events that it sends."""
        self._speaks: dict[str, int] = {}
        """By name: the newest that each understands."""

    def begin(self, statuses: Mapping[Address, Status], in_step: Iterable[Address]) -> None:
        """A cluster begins, or begins again, with those that are in step."""
        self._speaks = {member.name: statuses[member].speaks for member in in_step}
        self.spoken = max(status.version for status in statuses.values())

    def heard(self, name: str, speaks: int) -> None:
        """A broker comes into step."""
        self._speaks[name] = speaks

    def settle(self, voters: Iterable[str], in_step: Iterable[str]) -> None:
        """The members have changed: perhaps the last voter that kept the old version has gone, or was upgraded."""
        there = {*in_step}
        known = [self._speaks.get(name, 0) if name in there else 0 for name in voters]
        if known and min(known) > self.spoken:
            self.spoken = min(known)

    # For one that is updated.

    def to_json(self) -> dict[str, Any]:
        return {"spoken": self.spoken, "speaks": self._speaks}

    def install(self, said: dict[str, Any]) -> None:
        self.spoken, self._speaks = said["spoken"], dict(said["speaks"])
