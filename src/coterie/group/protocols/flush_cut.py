"""Where a flush has to come to: what its leader makes of the members' answers.

The cut is, for each sender, the highest number that anybody who takes part has delivered. Whoever has less gets the
rest from who has it; and whoever has not delivered a unicast that another had sent it before has to wait for that.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from coterie.group.members import Address
from coterie.group.protocols.flush_messages import Digest, StartFlushOk, Units

NONE = (0, 0)
"""Before the first unit of the first connection."""


@dataclass(frozen=True, slots=True)
class Plan:
    """What it takes to bring all who have answered to the same place."""

    cut: Digest
    holders: dict[Address, Address]
    """By sender of which somebody misses something: a member that has it all."""
    waits: dict[Address, Units]
    """By member that misses some: unicasts that were sent to it before the flush."""

    @property
    def complete(self) -> bool:
        return not self.holders and not self.waits


def plan(members: tuple[Address, ...], answers: Mapping[Address, StartFlushOk]) -> Plan:
    """`members` of the view, in whose order the answers are."""
    digests = [answer.digest for answer in answers.values()]
    cut = digests[0] if digests.count(digests[0]) == len(digests) else tuple(map(max, zip(*digests, strict=True)))
    holders = {
        sender: _holder(sender, rank, cut[rank], answers)
        for rank, sender in enumerate(members)
        if any(digest[rank] != cut[rank] for digest in digests)
    }
    waits = {}
    if any(answer.sent for answer in answers.values()):
        for rank, member in enumerate(members):
            if member in answers and (missed := _missed_units(rank, answers[member].received, members, answers)):
                waits[member] = missed
    return Plan(cut, holders, waits)


def _holder(sender: Address, rank: int, last: int, answers: Mapping[Address, StartFlushOk]) -> Address:
    """The sender itself, if it takes part."""
    return next(h for h in (sender, *answers) if h in answers and answers[h].digest[rank] == last)


def _missed_units(
    rank: int, received: Units, members: tuple[Address, ...], answers: Mapping[Address, StartFlushOk]
) -> Units:
    """What each member sent to this one, if it has not delivered it. A higher connection comes after all of a lower."""
    missed = []
    for at, peer in enumerate(members):
        sent = answers[peer].sent if peer in answers else ()
        unit = sent[rank] if sent else NONE
        missed.append(unit if unit > (received[at] if received else NONE) else NONE)
    return tuple(missed) if any(unit != NONE for unit in missed) else ()
