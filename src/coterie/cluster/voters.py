"""Voters, and who may begin: a cluster serves while a majority of its voters is in step.

The voter set is part of the replicated state. Brokers that come together without anybody in step (a first start, a
restart of all, the end of a partition that left no majority) tell each other how far each has come; with a majority of
the voters there, everything that was ever confirmed is among them, and the one that has come furthest is right. All of
it is computed by every broker alike, from the same statuses.

Two brokers that cannot reach each other, but both reach a third one, may each go on to a view with it. It follows only
one of them; what the other one does in its view no majority ever has, and nobody is told. But it seems to have come as
far as the one that was right: so each also says in which view it went on, its *era*, and who was in that.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from coterie.group.members import Address, View

NUMBER_MAX: Final = 2**53
"""No log is longer."""


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a broker has come in the ordered log."""

    epoch: int = 0
    """How many times a majority has come together anew; 0: it has never been part of a cluster."""
    index: int = 0
    """Events that it has applied."""


@dataclass(frozen=True, slots=True)
class Era:
    """The view in which a broker began its epoch."""

    view: str = ""
    members: tuple[str, ...] = ()
    """Names of those who may have done so too."""

    @classmethod
    def of(cls, view: View, members: Iterable[Address]) -> Era:
        return cls(str(view.id), tuple(sorted(member.name for member in members)))

    def to_json(self) -> list[object]:
        return [self.view, list(self.members)]

    @classmethod
    def from_json(cls, raw: object) -> Era:
        match raw:
            case [str(view), list(members)]:
                return cls(view, tuple(str(name) for name in members))
            case _:
                return cls()


@dataclass(frozen=True, slots=True)
class Status:
    """What a broker that is not in step tells the others."""

    progress: Progress
    cluster: str
    """The identity of the cluster that it belongs to; empty: none yet."""
    voters: tuple[str, ...]
    """By name, sorted."""
    size: int
    """With how many it would begin a new cluster."""
    live: bool
    """It has its state in memory, and not only what its disk has kept."""
    damaged: bool = False
    """Its store is not whole: it has no vote."""
    updating: bool = False
    """An update of it was cut off: it has nothing of its own any more. What it ever had was part of the state that it
    was to get, whose progress it names, so it may vote for whoever has come as far."""
    empty: bool = True
    """It has nothing: no queues, exchanges or users beyond those that every broker begins with."""
    speaks: int = 1
    """The newest version of events that it understands."""
    version: int = 1
    """That its cluster spoke last."""
    dispatch: str = "credit"
    era: Era = Era()

    def to_json(self) -> dict[str, object]:
        return {
            "epoch": self.progress.epoch, "index": self.progress.index, "cluster": self.cluster,
            "voters": list(self.voters), "size": self.size, "live": self.live, "damaged": self.damaged,
            "updating": self.updating, "empty": self.empty, "speaks": self.speaks, "version": self.version,
            "dispatch": self.dispatch, "era": self.era.to_json(),
        }  # fmt: skip

    @classmethod
    def from_json(cls, raw: Mapping[str, object]) -> Status:
        voters, size = raw["voters"], raw["size"]
        epoch, index = raw["epoch"], raw["index"]
        assert isinstance(voters, list)
        assert isinstance(size, int)
        assert isinstance(epoch, int) and 0 <= epoch <= NUMBER_MAX  # noqa: PT018
        assert isinstance(index, int) and 0 <= index <= NUMBER_MAX  # noqa: PT018
        names = tuple(str(name) for name in voters)
        progress = Progress(epoch, index)
        live, damaged, updating, empty = (bool(raw[name]) for name in ("live", "damaged", "updating", "empty"))
        speaks, version = raw.get("speaks", 1), raw.get("version", 1)
        assert isinstance(speaks, int)
        assert isinstance(version, int)
        return cls(
            progress,
            str(raw["cluster"]),
            names,
            size,
            live,
            damaged,
            updating,
            empty,
            speaks,
            version,
            str(raw.get("dispatch")),
            Era.from_json(raw.get("era")),
        )


def majority(voters: Collection[str], present: Collection[str]) -> bool:
    """Whether more than half of the voters are there."""
    return 2 * sum(name in present for name in voters) > len(voters)


@dataclass(frozen=True, slots=True)
class Beginning:
    """A cluster that begins, or begins again."""

    source: Address
    """Whose state is right."""
    in_step: tuple[Address, ...]
    """Who has that state; the others are updated."""
    voters: tuple[str, ...]
    epoch: int
    cluster: str


@dataclass(frozen=True, slots=True)
class Waiting:
    """Why nothing can begin yet."""

    why: str


def decide(members: Sequence[Address], statuses: Mapping[Address, Status]) -> Beginning | Waiting:
    """What becomes of a view in which nobody is in step: `statuses` has all of its members."""
    dispatch = {statuses[member].dispatch for member in members}
    if len(dispatch) > 1:
        return Waiting(f"cluster.dispatch is not the same everywhere: {', '.join(sorted(dispatch))}")
    intact = {member: statuses[member] for member in members if not statuses[member].damaged}
    whole = {member: status for member, status in intact.items() if not status.updating}
    old = {member: status for member, status in whole.items() if status.progress.epoch}
    witnesses = {member: status for member, status in intact.items() if status.updating}
    clusters = {status.cluster for status in (*old.values(), *witnesses.values())}
    if len(clusters) > 1:
        return Waiting(f"brokers of different clusters have met: {', '.join(sorted(clusters))}")
    if not old and witnesses:
        return Waiting("the updates of all brokers that are here were cut off: one is needed that has everything")
    if not old:
        return _first_start(members, whole)
    right = _right(old, witnesses)
    if isinstance(right, Waiting):
        return right
    source = max(right, key=lambda member: (_order(old[member].progress), old[member].live))
    best = old[source]
    names = {member.name for member in old}
    names |= {member.name for member, status in witnesses.items() if _order(status.progress) <= _order(best.progress)}
    if not majority(best.voters, names):
        there = ", ".join(sorted(names & set(best.voters)))
        return Waiting(f"{there or 'nobody'} of the voters {', '.join(best.voters)}: that is no majority")
    same = [
        member
        for member, status in right.items()
        if status.live and best.live and status.progress == best.progress and status.era == best.era
    ]
    in_step = tuple(member for member in members if member in same or member == source)
    return Beginning(source, in_step, best.voters, best.progress.epoch + 1, best.cluster)


def _right(old: Mapping[Address, Status], witnesses: Mapping[Address, Status]) -> Mapping[Address, Status] | Waiting:
    """Without those that went on in a view in which no majority can have been. If that cannot be told, wait.

    Whoever was being updated was so by a majority that served, after whatever it had done itself: so it was with them.
    """
    epoch = max(status.progress.epoch for status in old.values())
    last = {member: status for member, status in old.items() if status.progress.epoch == epoch}
    eras = {status.era for status in last.values()}
    if len(eras) == 1:
        return old
    here = {member.name: status.era for member, status in (*old.items(), *witnesses.items())}
    voters = max(last.values(), key=lambda status: status.progress.index).voters
    possible = [
        era
        for era in eras
        if majority(voters, {name for name in voters if here.get(name, era if name in era.members else None) == era})
    ]
    if len(possible) > 1:
        unheard = {name for era in possible for name in era.members} - {*here}
        return Waiting(f"brokers went on apart: {', '.join(sorted(unheard))} must say with whom")
    return {
        member: status
        for member, status in old.items()
        if not possible or status.progress.epoch < epoch or status.era == possible[0]
    }


def _order(progress: Progress) -> tuple[int, int]:
    return progress.epoch, progress.index


def _first_start(members: Sequence[Address], whole: Mapping[Address, Status]) -> Beginning | Waiting:
    wanted = {status.size for status in whole.values()}
    if len(wanted) != 1:
        return Waiting(f"cluster.size is not the same everywhere: {', '.join(map(str, sorted(wanted)))}")
    (size,) = wanted
    if size == 0:
        return Waiting("cluster.size is not set: this broker joins a cluster that there is, or waits for one")
    names = sorted(member.name for member in whole)
    if len(names) < size:
        return Waiting(f"{len(names)} of {size} brokers are here: {', '.join(names)}")
    full = [member for member in members if member in whole and not whole[member].empty]
    if len(full) > 1:
        with_data = ", ".join(member.name for member in full)
        return Waiting(f"{with_data} have data of their own: a cluster begins with one of them and empty ones")
    source = full[0] if full else next(member for member in members if member in whole)
    in_step = (source,) if full else tuple(member for member in members if member in whole)
    return Beginning(source, in_step, tuple(names), 1, f"{source.name}-{source.incarnation:x}")
