"""What follows from one input of the replica, for its driver to carry out, in this order.

As etcd's raft does, the replica touches nothing: it answers with what is to be applied to the broker and persisted in
its store, which belong together and are one unit there; and with what may be said when that is done, to others
(`Send`) and here (`Tell`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from coterie.cluster.membership import Marks, Progress
from coterie.cluster.wire import Kind
from coterie.group.members import Address


class Effect:
    """Each of them is one of the four below."""

    __slots__ = ()


class Apply(Effect):
    """To the broker: it follows from this place of the log."""

    __slots__ = ()


class Persist(Effect):
    """In the store, in one unit with what is applied."""

    __slots__ = ()


class Send(Effect):
    """To other brokers."""

    __slots__ = ()


class Tell(Effect):
    """To other parts of this broker, and to its clients."""

    __slots__ = ()


Ready = list[Effect]


# To the broker.


@dataclass(frozen=True, slots=True)
class Lose(Apply):
    """What it held goes back, and to others; what was at home there ends."""

    member: Address


@dataclass(frozen=True, slots=True)
class LoseStrangers(Apply):
    """All that the broker knows of, and that do not serve."""


@dataclass(frozen=True, slots=True)
class TakeMarks(Apply):
    """Those of all that begin."""

    marks: Marks
    given: bool = False
    """Whatever is ready may have been given to somebody."""


@dataclass(frozen=True, slots=True)
class BeginTime(Apply):
    """The time of the log, as the broker has it whose state is right."""

    time: float


@dataclass(frozen=True, slots=True)
class Unready(Apply):
    """A member lacks messages of these queues."""

    member: Address
    queues: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class HasMessages(Apply):
    """A member has got all messages of these queues; None: of all."""

    member: Address
    queues: tuple[int, ...] | None = None


@dataclass(frozen=True, slots=True)
class BeginAnew(Apply):
    """Of what this broker has in memory nothing stays, and its clients must go."""

    why: str


@dataclass(frozen=True, slots=True)
class Wipe(Apply):
    """The broker begins with nothing, and its store a new generation."""


# In the store.


@dataclass(frozen=True, slots=True)
class Save(Persist):
    """How far this broker has come, and with whom. `goal`: what it has is of no use, but whoever has come as far as
    that has all that it ever had."""

    goal: bool = False


# To others.


@dataclass(frozen=True, slots=True)
class SendStatus(Send):
    """How this broker is, on the log."""


@dataclass(frozen=True, slots=True)
class Multicast(Send):
    """On the log."""

    kind: Kind
    said: Mapping[str, object] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Refuse(Send):
    """It wants to join, and may not."""

    member: Address
    why: str


@dataclass(frozen=True, slots=True)
class GiveUpdate(Send):
    """Cut the state at this place of the log for it."""

    member: Address


@dataclass(frozen=True, slots=True)
class Sync(Send):
    """Those who serve are to hear when all that was written is on disk. `waits`: only that one is."""

    waits: Address | None = None


@dataclass(frozen=True, slots=True)
class ReportDisk(Send):
    """Up to which event this broker has everything on disk."""


@dataclass(frozen=True, slots=True)
class ReportApplied(Send):
    """Up to which event it has applied the log."""


@dataclass(frozen=True, slots=True)
class Ping(Send):
    """The question of the lease, to those in step."""

    number: int


# Here.


@dataclass(frozen=True, slots=True)
class BeginLease(Tell):
    """With those in step, and a majority of the voters."""


@dataclass(frozen=True, slots=True)
class BeginLife(Tell):
    """Syncs that were asked for before say nothing about the life of the store that begins here."""


@dataclass(frozen=True, slots=True)
class StopLease(Tell):
    """It gives nothing to clients any more."""


@dataclass(frozen=True, slots=True)
class CountHolders(Tell):
    """The group: whose copies make a majority."""


@dataclass(frozen=True, slots=True)
class CountDisks(Tell):
    """The voters are others: see what a majority of them has on disk."""


@dataclass(frozen=True, slots=True)
class Changed(Tell):
    """The state, the view or the voters have changed."""


@dataclass(frozen=True, slots=True)
class CutOff(Tell):
    """Clients must go: nothing that they wait for will be answered."""

    why: str


@dataclass(frozen=True, slots=True)
class SetAlarm(Tell):
    """Publishers wait while this broker does not serve."""


@dataclass(frozen=True, slots=True)
class LetOut(Tell):
    """Answers that wait may be due."""


@dataclass(frozen=True, slots=True)
class SendWaiting(Tell):
    """Events that wait for a majority may go."""


@dataclass(frozen=True, slots=True)
class QueuesReady(Tell):
    """Consumers of this broker may be given messages of more queues."""


@dataclass(frozen=True, slots=True)
class NewUpdate(Tell):
    """An update of this broker is awaited, and whatever came of another one is of no use. `if_none`: unless one is."""

    if_none: bool = False


@dataclass(frozen=True, slots=True)
class DropUpdate(Tell):
    """None is awaited."""


@dataclass(frozen=True, slots=True)
class KeepFromHere(Tell):
    """The state that this broker gets is of this place of the log."""


@dataclass(frozen=True, slots=True)
class StartBackfill(Tell):
    """Ask others for bodies."""


@dataclass(frozen=True, slots=True)
class AskAgain(Tell):
    """Whoever was asked for bodies may be gone."""


@dataclass(frozen=True, slots=True)
class StopBackfill(Tell):
    """It is complete, or given up."""


@dataclass(frozen=True, slots=True)
class ForgetEvents(Tell):
    """Others have forgotten this broker, and expect its first event."""


@dataclass(frozen=True, slots=True)
class GoBack(Tell):
    """To the store that this broker had before its update."""


@dataclass(frozen=True, slots=True)
class KeepStore(Tell):
    """What the store has is kept for a look when another one takes its place."""


@dataclass(frozen=True, slots=True)
class FoundWrong(Tell):
    """These have made another state of the log than the others, up to that place."""

    members: tuple[Address, ...]
    place: Progress


@dataclass(frozen=True, slots=True)
class WatchDisk(Tell):
    """And ask for an update when it is well."""


@dataclass(frozen=True, slots=True)
class VoterDecided(Tell):
    """A proposal of ours has had its place in the log."""


@dataclass(frozen=True, slots=True)
class ForgetDecided(Tell):
    """An operator's wish, asked through this broker, has had its place in the log. `why`: it was refused."""

    name: str
    why: str
