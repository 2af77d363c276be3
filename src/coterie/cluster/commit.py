"""Commit: what counts as done, and by whose word.

What brokers say of themselves holds for one life of their state: from where it came into step, or was updated, until
it is lost. All who serve know that place, as the log says it. A report of a former life may be under way for long, and
counts events of a log that nobody else has: it is void.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from functools import lru_cache
from typing import NamedTuple

from coterie.cluster.chain import UNKNOWN, Link
from coterie.cluster.membership import Progress
from coterie.cluster.quorum import reached
from coterie.group.members import Address

_NAMED = 1 << 63
"""In a report that names a life. Brokers of older versions name their epoch instead."""


class Place(NamedTuple):
    """In the ordered log, as the group counts: views that this broker has seen, and the position in the view."""

    view: int
    position: int


START = Place(0, 0)
_NOWHERE = Link(Progress(), UNKNOWN)


@lru_cache(1024)
def name_of(began: Progress) -> int:
    """Of the life that began there. Each report names one."""
    return _NAMED | (began.epoch & 0x7F_FFFF) << 40 | began.index & 0xFF_FFFF_FFFF


def life_of(lives: Mapping[Address, Progress], member: Address) -> int:
    """The present one, as reports name it; 0: it is not known where that began."""
    began = lives.get(member)
    return 0 if began is None else name_of(began)


class Reports:
    """How far each broker has come: the last event that it has named."""

    def __init__(self) -> None:
        self.upto: dict[Address, int] = {}
        self.links: dict[Address, Link] = {}
        """Of the same events: their places, and the chains there."""
        self._lost_in: dict[str, int] = {}
        """By name: in which epoch a broker was lost last."""

    def begin(self, us: Address) -> None:
        """This broker comes into step: what it heard before is of no use."""
        self.upto = {us: 0}
        self.links.clear()

    def heard(self, member: Address, link: Link, life: int, present: int) -> bool:
        """Whether that is news. `present`: the life that the member is in."""
        counts = life == present or not present
        if life < _NAMED:  # an epoch: whoever was lost may have had events that nobody else has, and said so before
            counts = life >= self._lost_in.get(member.name, 0)
        news = counts and link.place.index > self.upto.get(member, 0)
        if news:
            self.upto[member] = link.place.index
            self.links[member] = link
        return news

    def begins(self, member: Address) -> None:
        """Another life of it: what it said before is void."""
        self.upto.pop(member, None)
        self.links.pop(member, None)

    def lost(self, member: Address, epoch: int) -> None:
        self.begins(member)
        self._lost_in[member.name] = epoch


class Commit:
    """As one broker knows it: three marks in the log, up to which answers may go."""

    def __init__(self) -> None:
        self.held = START
        """Up to there a majority of the voters holds the log."""
        self.on_disk = 0
        """Up to this event a majority has it on disk."""
        self.everywhere = 0
        """Up to this event every broker that serves has applied the log.

        A client that was told of a new queue may tell another one, which publishes to it through another broker at
        once; and there the message is routed by what that broker knows. So whoever changes the wiring, users or
        policies is answered when all know of it.
        """
        self.disks = Reports()
        self.applied = Reports()
        self.explains = False
        """There is a trace: `rests` is wanted."""
        self.rests: dict[Address, tuple[int, Link]] = {}
        """On whom `on_disk` rests, the lives they meant, and what they named. It outlives their reports: what they had
        on disk is in the log that we follow, also when some of them are lost before we may say so."""

    def clear(self) -> None:
        """What others have said may be of a log that this broker will not follow."""
        self.on_disk = self.everywhere = 0

    def begin(self, us: Address, place: Place) -> None:
        """This broker comes into step, at that place."""
        self.disks.begin(us)
        self.applied.begin(us)
        self.held = max(self.held, place)

    def begins(self, member: Address) -> None:
        self.disks.begins(member)
        self.applied.begins(member)

    def lost(self, member: Address, epoch: int) -> None:
        self.disks.lost(member, epoch)
        self.applied.lost(member, epoch)

    def voters_changed(self, index: int) -> None:
        """At this event: of what comes from here on another majority must have it on disk, also of what brokers have
        reported that are ahead of us."""
        self.on_disk = min(self.on_disk, index - 1)

    def count_disks(
        self, voters: Collection[str], in_step: Collection[Address], lives: Mapping[Address, Progress]
    ) -> None:
        """Only those in step count, and each with its present life."""
        upto = self.disks.upto
        by_name = {member.name: index for member, index in upto.items() if member in in_step}
        found = int(reached(voters, by_name))
        if found < self.on_disk:
            return
        self.on_disk = found
        if self.explains:
            said = (member for member, index in upto.items() if index >= found and member in in_step)
            links = self.disks.links
            self.rests = {member: (life_of(lives, member), links.get(member, _NOWHERE)) for member in said}

    def count_applied(self, others: Iterable[Address], index: int) -> None:
        """`others` serve besides this broker, which has come to `index`."""
        upto = self.applied.upto
        self.everywhere = max(self.everywhere, min((upto.get(member, 0) for member in others), default=index))
