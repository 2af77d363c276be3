"""Which store a new cluster begins with, whether anything that was confirmed can be missing there, and what forbids it.

A confirm means that a majority of the voters had the message on disk. So if every majority of the voters has one of
those whose stores are here, and they follow one history, the store that has come furthest has all that was confirmed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from coterie.cluster.membership import Progress
from coterie.cluster.quorum import majority, needed
from coterie.cluster.recovering.candidate import Candidate
from coterie.errors import UserError


@dataclass(frozen=True, slots=True)
class Asked:
    """What came of asking for another node of the old cluster."""

    where: str
    how: str
    """`group port` or `http`."""
    said: str
    counts: bool
    """A voter of the old cluster is there, or may be."""
    name: str = ""
    """Of the node, if it told; else empty."""


@dataclass(frozen=True, slots=True)
class Choice:
    best: Candidate
    candidates: tuple[Candidate, ...]
    voters: tuple[str, ...]
    here: tuple[str, ...]
    """Voters whose stores are here, and count."""
    certain: bool
    """Nothing that was confirmed is missing."""

    @property
    def lost(self) -> tuple[str, ...]:
        return tuple(name for name in self.voters if name not in self.here)


def choose(candidates: Sequence[Candidate]) -> Choice:
    """Raises UserError if none of them can be the beginning of a cluster."""
    clusters = dict.fromkeys(each.cluster for each in candidates)
    if len(clusters) > 1:
        told = "; ".join(f"{each.folder}: {each.cluster}" for each in candidates)
        raise UserError(f"these stores are of different clusters: give those of one ({told})")
    names = [each.name for each in candidates]
    if len(set(names)) < len(names):
        raise UserError(f"two of these stores are of one node: {', '.join(sorted(names))}")
    usable = [each for each in candidates if each.usable]
    if not usable:
        told = ", ".join(each.folder for each in candidates)
        raise UserError(
            f"{told}: an update of each of these was cut off, so they hold a part of what they had: another store is "
            "needed, or a backup (coterie restore)"
        )
    best = max(usable, key=lambda each: (_order(each.progress), each.whole))
    here = tuple(name for name in best.voters if any(_counts(each, best) for each in candidates if each.name == name))
    one_history = all(_follows(each, best) for each in usable)
    certain = best.whole and one_history and not majority(best.voters, [v for v in best.voters if v not in here])
    return Choice(best, tuple(candidates), best.voters, here, certain)


def _counts(each: Candidate, best: Candidate) -> bool:
    """What it ever had on disk is part of what the best has. One whose update was cut off had less than that update."""
    return not each.damage and (each.usable or _order(each.progress) <= _order(best.progress))


def _follows(each: Candidate, best: Candidate) -> bool:
    """As far as can be told, it has nothing that the best one lacks."""
    if each is best or each.progress.epoch < best.progress.epoch:
        return True
    return each.era == best.era and (each.progress != best.progress or each.chain == best.chain)


def _order(progress: Progress) -> tuple[int, int]:
    return progress.epoch, progress.index


def why_not(choice: Choice, asked: Sequence[Asked]) -> str:
    """Why the cluster is not to be given up; nothing: it may be."""
    voters, here = choice.voters, {*choice.here}
    if majority(voters, here):
        return (
            f"the stores of {', '.join(sorted(here))} are a majority of the voters {', '.join(voters)}, so nothing is "
            "lost: start these nodes, and they serve"
        )
    answers = [each for each in asked if each.counts]
    there = here | {each.name for each in answers if each.name}
    count = sum(name in there for name in voters) + sum(not each.name for each in answers)
    if count >= needed(voters):
        told = ", ".join(f"{each.where} ({each.said})" for each in answers)
        return (
            f"a majority of the voters {', '.join(voters)} may be there yet, as these answer: {told}. Start this node, "
            "and they serve together; or stop those, if they are not to come back"
        )
    return ""


def who_was_not_asked(choice: Choice, asked: Sequence[Asked]) -> str:
    """Of how many nobody has said where they were; nothing: all were asked for."""
    names = {each.name for each in choice.candidates}
    others = [name for name in choice.voters if name not in names]
    places = len({each.where for each in asked})
    if places >= len(others):
        return ""
    return (
        f"the voters {', '.join(others)} are elsewhere, and {places} of {len(others)} addresses are known to ask at: "
        "name where they were by --config (its node.peers), by --peers, or by --ask"
    )
