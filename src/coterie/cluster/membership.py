"""Membership: voters, and who may begin. A cluster serves while a majority of its voters is in step.

The voter set is part of the replicated state. Brokers that come together without anybody in step (a first start, a
restart of all, the end of a partition that left no majority) tell each other how far each has come; with a majority of
the voters there, everything that was ever confirmed is among them, and the one that has come furthest is right. All of
it is computed by every broker alike, from the same statuses.

Two brokers that cannot reach each other, but both reach a third one, may each go on to a view with it. It follows only
one of them; what the other one does in its view no majority ever has, and nobody is told. But it seems to have come as
far as the one that was right: so each also says in which view it went on, its *era*, and who was in that.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final, NamedTuple

from coterie.cluster.quorum import majority
from coterie.cluster.shared_settings import (
    DISPATCH,
    Shared,
    kind_of,
    read_shared,
    told_by_all,
    what_differs,
    why_different,
)
from coterie.group.members import Address, View

NUMBER_MAX: Final = 2**53
"""No log is longer."""
Marks = Mapping[int, tuple[int, int]]
"""By the number of each queue: the next position, and the highest that may have been delivered."""


class Content(NamedTuple):
    """Of a store, as it was found."""

    sum: str
    marks: Marks


NOTHING = Content("", {})


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
    shared: Shared = field(default_factory=dict)
    """The settings that all brokers must share, as it has them; one that is not there is unknown."""
    era: Era = Era()
    chain: str = ""
    """Of its history (chain.py); empty: it is not known."""
    content: str = ""
    """A sum of what its store has, if that is all it has (own_store.py)."""
    marks: Marks = field(default_factory=dict)
    time: float = 0.0
    """What time of the log it is to that broker."""
    unwell: bool = False
    """Its disk takes nothing: it is not to be updated."""
    serving: bool = False
    """It is in step, with a majority of its own cluster: only brokers of other clusters need to know."""
    crashed: bool | None = None
    """It may have known of more than its store has kept; None: it is of a version that does not say so."""
    replaces: tuple[str, ...] = ()
    """Clusters that were given up, and go on as its own (recovering/)."""

    def to_json(self) -> dict[str, object]:
        return {
            "epoch": self.progress.epoch, "index": self.progress.index, "cluster": self.cluster,
            "voters": list(self.voters), "size": self.size, "live": self.live, "damaged": self.damaged,
            "updating": self.updating, "empty": self.empty, "speaks": self.speaks, "version": self.version,
            "dispatch": self.shared.get(DISPATCH), "shared": dict(self.shared), "era": self.era.to_json(),
            "chain": self.chain, "content": self.content,
            "marks": [[number, *marks] for number, marks in self.marks.items()], "time": self.time,
            "unwell": self.unwell, "serving": self.serving, "crashed": self.crashed, "replaces": list(self.replaces),
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
        time = raw.get("time", 0.0)
        assert isinstance(time, float) and 0 <= time <= NUMBER_MAX  # noqa: PT018
        chain = str(raw.get("chain", ""))
        bytes.fromhex(chain)  # raises what is no chain
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
            read_shared(raw),
            Era.from_json(raw.get("era")),
            chain,
            str(raw.get("content", "")),
            _marks(raw.get("marks", [])),
            time,
            bool(raw.get("unwell")),
            bool(raw.get("serving")),
            None if raw.get("crashed") is None else bool(raw["crashed"]),
            _names(raw.get("replaces", [])),
        )


def _names(raw: object) -> tuple[str, ...]:
    assert isinstance(raw, list)
    return tuple(str(name) for name in raw)


def _marks(raw: object) -> Marks:
    assert isinstance(raw, list)
    assert all(type(number) is int and 0 <= number < 2**64 for each in raw for number in each)
    return {number: (following, delivered) for number, following, delivered in raw}


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
    refused: Mapping[Address, str] = field(default_factory=dict)
    """Who may not be part of it, and why."""
    marks: Marks = field(default_factory=dict)
    """On what they agree besides."""
    given: bool = False
    """Whatever is ready may have been given to somebody, and none of those in step would know."""


@dataclass(frozen=True, slots=True)
class Waiting:
    """Why nothing can begin yet."""

    why: str


def decide(members: Sequence[Address], statuses: Mapping[Address, Status]) -> Beginning | Waiting:
    """What becomes of a view in which nobody is in step: `statuses` has all of its members.

    One that is of another cluster, or set up otherwise, keeps nobody waiting: whoever can begin without it does, and
    refuses it. Of one cluster only those can that have a majority of its voters. If several can begin all the same, it
    is the one of which most voters are here, or the first in the order of the view; but if none of them has ever been
    a cluster, nobody knows which is right. Another cluster may serve already, in the same view: that is its business.
    One that was given up never begins again beside the one that it goes on as.
    """
    known = [statuses[member] for member in members if not statuses[member].damaged and not statuses[member].serving]
    serving = {statuses[member].cluster for member in members if statuses[member].serving}
    clusters = [*dict.fromkeys(status.cluster for status in known if status.cluster)] or [""]
    begun: list[Beginning] = []
    waiting: list[Waiting] = []
    successors = {old: statuses[member].cluster for member in members for old in statuses[member].replaces}
    names = told_by_all(statuses[member].shared for member in members)
    kinds = [
        (cluster, kind)
        for cluster in clusters
        for kind in dict.fromkeys(kind_of(each.shared, names) for each in known if each.cluster in ("", cluster))
    ]
    for cluster, kind in kinds:
        alike = [each for each in known if each.cluster == cluster and kind_of(each.shared, names) == kind]
        version = max((status.version for status in alike), default=1)
        old = [each for each, new in successors.items() if new == cluster]
        found = {member: unlike(statuses[member], cluster, dict(kind), version, old) for member in members}
        refused = {member: why for member, why in found.items() if why}
        if cluster in successors:
            waiting.insert(0, Waiting(why_given_up(cluster, successors[cluster])))
            continue
        if cluster in serving or (not cluster and serving):
            waiting.append(Waiting("others serve: this broker is to be brought up to date"))
            continue
        answer = _decide([member for member in members if member not in refused], statuses)
        if isinstance(answer, Beginning):
            begun.append(replace(answer, refused=refused))
        else:
            waiting.append(answer)
    if begun and (clusters != [""] or len(begun) == 1):
        return max(begun, key=lambda each: _voters_of(each, members, statuses))
    if waiting and any(cluster in successors for cluster in clusters):
        return waiting[0]
    if len(clusters) > 1:
        return Waiting(f"brokers of different clusters have met: {', '.join(sorted(clusters))}")
    if len(kinds) > 1:
        return Waiting(what_differs([kind for _, kind in kinds]))
    return waiting[0] if waiting else Waiting("the stores of all brokers that are here are damaged")


def _voters_of(begun: Beginning, members: Iterable[Address], statuses: Mapping[Address, Status]) -> int:
    here = {member.name for member in members if statuses[member].cluster == begun.cluster}
    return len(here & {*begun.voters})


def why_given_up(old: str, new: str) -> str:
    return (
        f"its cluster, {old}, was given up by an operator and goes on as {new}: what it has is of no use there; keep "
        "it aside by `coterie cluster set-aside`, and it joins empty"
    )


def unlike(status: Status, cluster: str, shared: Shared, version: int, given_up: Collection[str] = ()) -> str:
    """Why a broker cannot be part of that cluster, which shares these settings; nothing: it can. `given_up`: clusters
    that this one goes on for."""
    if status.cluster in given_up:
        return why_given_up(status.cluster, cluster)
    if status.cluster and status.cluster != cluster:
        ours = f"this is {cluster}" if cluster else "this one begins anew"
        return f"it is of another cluster, {status.cluster}, and {ours}: give it its own node.peers, or an empty folder"
    different = why_different(status.shared, shared)
    if different:
        return different
    if status.speaks < version:
        return f"it understands events up to version {status.speaks}, and the cluster speaks {version}: upgrade it"
    return ""


def _decide(members: Sequence[Address], statuses: Mapping[Address, Status]) -> Beginning | Waiting:
    """Of members that are alike."""
    intact = {member: statuses[member] for member in members if not statuses[member].damaged}
    whole = {member: status for member, status in intact.items() if not status.updating}
    old = {member: status for member, status in whole.items() if status.progress.epoch}
    witnesses = {member: status for member, status in intact.items() if status.updating}
    if not old and witnesses:
        return Waiting("the updates of all brokers that are here were cut off: one is needed that has everything")
    if not old:
        return _first_start(members, whole)
    right = _right(old, witnesses)
    if isinstance(right, Waiting):
        return right
    # Of those that have come as far, but have made different states of the log, a majority is more likely right.
    alike = Counter((old[member].progress, old[member].chain) for member in right)
    source = max(
        right,
        key=lambda member: (
            _order(old[member].progress), old[member].live, alike[old[member].progress, old[member].chain],
        ),
    )  # fmt: skip
    best = old[source]
    names = {member.name for member in old}
    names |= {member.name for member, status in witnesses.items() if _order(status.progress) <= _order(best.progress)}
    if not majority(best.voters, names):
        there = ", ".join(sorted(names & set(best.voters)))
        return Waiting(f"{there or 'nobody'} of the voters {', '.join(best.voters)}: that is no majority")
    same = [member for member, status in right.items() if _has_the_same(status, best)]
    in_step = tuple(member for member in members if member in same or member == source)
    tell = all(old[member].crashed is not None for member in in_step)  # else some of them do not ask that question
    sure = {member.name for member in (*right, *witnesses) if not statuses[member].crashed}
    given = tell and _may_be_unknown(best.voters, sure)
    marks: dict[int, tuple[int, int]] = {}
    for member in old if given else in_step:
        for number, (following, delivered) in old[member].marks.items():
            known = marks.get(number, (0, 0))
            marks[number] = max(known[0], following), max(known[1], delivered)
    return Beginning(source, in_step, best.voters, best.progress.epoch + 1, best.cluster, marks=marks, given=given)


def _may_be_unknown(voters: Collection[str], sure: Collection[str]) -> bool:
    """Whether clients may have been given what none of those who are here knows of. A majority knew of it, perhaps not
    on disk: then all of them crashed, or are not here. `sure`: they are here, and know all that they ever knew."""
    return majority(voters, [voter for voter in voters if voter not in sure])


def _has_the_same(one: Status, other: Status) -> bool:
    """They need no update from each other: both have their state in memory, or both what their stores have kept."""
    if one.live != other.live or (one.progress, one.era, one.chain) != (other.progress, other.era, other.chain):
        return False
    return one.live or bool(one.chain and one.content and one.content == other.content)


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


def why_not_forget(
    voters: Sequence[str], in_step: Sequence[Address], members: Sequence[Address], asker: Address, name: str
) -> str:
    """Why that name cannot be forgotten now; nothing: it can. One that is in step gives up its vote itself."""
    there = {member.name for member in in_step}
    if name not in voters:
        return f"'{name}' is no voter: the voters are {', '.join(voters)}"
    if name in there and name != asker.name:
        return f"'{name}' is in step: drain it, or stop it, before it is forgotten"
    absent = [member.name for member in members if member not in in_step]
    joining = [member for member in absent if member not in voters or member == name]
    if joining:
        return f"{', '.join(joining)} is about to join, and to vote: wait until it is in step, or stop it"
    rest = [voter for voter in voters if voter != name]
    if not rest:
        return f"'{name}' is the only voter: nobody else has what it has"
    if not majority(rest, there - {name}):
        lost = ", ".join(voter for voter in rest if voter not in there)
        return f"without '{name}' there would be no majority, as {lost} is lost: bring it back, or forget it first"
    return ""
