"""Divergence: whether others have made the same state of the log as this broker, and who is wrong if they have not.

Reports of what others have applied, and have on disk, name the chain at that place (chain.py). One that differs from
ours counts for nothing. Then all who serve say on the log what their chain is at that place, and everybody decides the
same: a chain that a majority of the voters has is right; and if all have spoken and there is no such chain, that of the
oldest in step.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Collection, Iterable, Mapping, Sequence
from enum import Enum
from typing import Any, Final, NamedTuple

from coterie.cluster.chain import UNKNOWN, History, Link
from coterie.cluster.membership import Progress
from coterie.cluster.quorum import needed, reached
from coterie.group.members import Address

EARLY_MAX: Final = 64
"""Reports of one broker that this one keeps until it has come so far itself."""
PLACES_MAX: Final = 16
"""At which chains are compared at the same time."""


class Report(NamedTuple):
    """How far a broker has come, as it says."""

    member: Address
    of_disk: bool
    """What it has on disk; otherwise what it has applied."""
    link: Link
    life: int


class Found(Enum):
    """What comes of comparing a report with what this broker has."""

    SAME = "the chains are equal"
    OTHER = "they differ"
    EARLY = "this broker has not come so far yet"
    UNKNOWN = "this broker does not know, or not any more, what it had there"


class Divergence:
    """As one broker knows it."""

    def __init__(self) -> None:
        self.history = History()
        self.found = 0
        """How many brokers were found to be wrong, since this one was started."""
        self._shared: dict[Address, int] = {}
        """The last event at which each one's chain was found equal to ours."""
        self.waits = False
        """Reports are early."""
        self._early: dict[Address, deque[Report]] = {}
        self._claims: dict[Progress, dict[Address, bytes]] = {}
        """By place: the chains that brokers have named on the log."""
        self._asked: Progress | None = None
        """Of which place this broker has named its chain first."""
        self._settled = 0
        """Steps of the log up to which nobody compares chains any more: what is still said of them came too late."""

    # Reports.

    def compare(self, member: Address, of_disk: bool, there: Link, life: int) -> Found:
        place, theirs = there
        ours = self.history.at(place)
        if ours == theirs:
            if place.index > self._shared.get(member, 0):
                self._shared[member] = place.index
            return Found.SAME
        if ours:
            return Found.OTHER
        if not self.history.is_ahead(place):
            return Found.UNKNOWN
        self._keep(Report(member, of_disk, there, life))
        return Found.EARLY

    def _keep(self, report: Report) -> None:
        self.waits = True
        early = self._early.setdefault(report.member, deque())
        if len(early) < EARLY_MAX:
            early.append(report)
        else:
            early[-1] = report

    def due(self) -> list[Report]:
        """Those that were early, and are not any more."""
        found: list[Report] = []
        for early in self._early.values():
            while early and not self.history.is_ahead(early[0].link.place):
                found.append(early.popleft())
        self.waits = any(self._early.values())
        return found

    def forget(self, member: Address) -> None:
        """Another life of it begins, or none."""
        self._early.pop(member, None)
        self._shared.pop(member, None)

    def begin(self, here: Link) -> None:
        """This broker comes into step."""
        self.history.begin(here)
        self._early.clear()
        self._shared.clear()
        self._settled = 0
        self.settled(here.place)

    def shared(self, voters: Collection[str], us: Address, index: int) -> int:
        """The last event at which a majority of the voters is known to have the same chain."""
        by_name: dict[str, float] = {member.name: upto for member, upto in self._shared.items()}
        return int(reached(voters, by_name | {us.name: index}))

    # Claims, by the log.

    @property
    def in_doubt(self) -> bool:
        """It is not known who is wrong: perhaps this broker."""
        return self._asked is not None or bool(self._claims)

    def ask(self, place: Progress) -> bool:
        """Whether this broker is to name its chain at that place now: one place after the other is enough."""
        if self.in_doubt or _step(place) < self._settled:
            return False
        self._asked = place
        return True

    def claim(self, place: Progress, member: Address, chain: bytes) -> bool:
        """Whether that is a new place."""
        new = place not in self._claims
        if _step(place) < self._settled or (new and len(self._claims) >= PLACES_MAX):
            return False
        if place == self._asked:
            self._asked = None
        self._claims.setdefault(place, {}).setdefault(member, chain)
        return new

    def settled(self, place: Progress) -> None:
        """Whoever is asked now is not who was: what was asked until here is of no use. If somebody still has another
        chain, its next report shows that."""
        self._claims.clear()
        self._asked = None
        self._settled = max(self._settled, _step(place))

    def judge(
        self, place: Progress, voters: Collection[str], in_step: Sequence[Address], servants: Iterable[Address]
    ) -> list[Address]:
        """Who of those that have spoken is wrong, once that is clear. Who does not know its chain is not judged."""
        claims = self._claims.get(place, {})
        everybody = [*servants]
        right = _right(claims, voters, in_step)
        if claims and all(member in claims for member in everybody):
            self.settled(place)
        if not right:
            return []
        return [member for member in everybody if claims.get(member, UNKNOWN) not in (UNKNOWN, right)]

    # For one that is updated.

    def to_json(self) -> list[Any]:
        claims = [
            [place.epoch, place.index, [[str(member), chain.hex()] for member, chain in claims.items()]]
            for place, claims in self._claims.items()
        ]
        return [self._settled, claims]

    def install(self, said: list[Any]) -> None:
        """An older version says nothing."""
        self._settled, found = said or (0, ())
        for epoch, index, claims in found:
            for member, chain in claims:
                self.claim(Progress(epoch, index), Address.parse(member), bytes.fromhex(chain))


def _step(place: Progress) -> int:
    return place.epoch + place.index


def _right(claims: Mapping[Address, bytes], voters: Collection[str], in_step: Sequence[Address]) -> bytes:
    """UNKNOWN: that is not clear yet."""
    known = [claims[member] for member in in_step if claims.get(member)]
    counts = Counter(claims[member] for member in in_step if member.name in voters and claims.get(member))
    for chain in known:
        if counts[chain] >= needed(voters):
            return chain
    return known[0] if known and all(member in claims for member in in_step) else UNKNOWN
