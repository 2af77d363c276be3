"""How a cluster is, as one broker sees it: for operators, and changed by nobody."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from coterie.cluster.quorum import needed
from coterie.cluster.shared_settings import DISPATCH
from coterie.cluster.states import State
from coterie.group.members import Address

if TYPE_CHECKING:
    from coterie.broker.broker import Broker
    from coterie.broker.queue import Queue
    from coterie.cluster.applier import Applier
    from coterie.cluster.drain import Drain
    from coterie.cluster.liveness_lease import LivenessLease
    from coterie.cluster.standing import Standing
    from coterie.cluster.voids import Voids
    from coterie.group.members import View

IN_STEP = "in step"
CATCHING_UP = "catching up"
JOINING = "joining"
LOST = "lost"
UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class MemberStatus:
    """One that is in the view, or votes."""

    name: str
    incarnation: int | None
    """Of the process that is in the view; None: there is none."""
    state: str
    """`in step`; `catching up`: it serves, and gets what it lacks; `joining`: it is to be updated; `lost`: a voter that
    is not in the view. Of itself a broker says what it is (`stranded`, `draining`, `drained`), and of others `unknown`
    while it is not in step."""
    voter: bool
    oldest: bool
    """It keeps the time, and updates those who join."""
    disk: int | None
    """Up to which event it has everything on disk, as far as this broker was told; None: it was not."""
    this: bool
    """It is the one that was asked."""
    silence: float | None = None
    """Seconds since the last question of this broker that it has answered was sent; None: it is asked nothing."""
    alarms: tuple[str, ...] = ()
    """What it is low on, as far as this broker was told."""


@dataclass(frozen=True, slots=True)
class ClusterStatus:
    """All of them, and how far this broker has come."""

    cluster: str
    """Its identity; empty: it has not begun."""
    name: str
    """Of this broker."""
    incarnation: int
    state: str
    why: str
    """Why clients may not come in; empty: they may."""
    waits_for: str
    """While it is drained: what it waits for."""
    epoch: int
    index: int
    """Events that it has applied."""
    disk: int | None
    view: str
    coordinator: str
    """Who makes the next view."""
    dispatch: str
    voters: tuple[str, ...]
    majority: int
    """So many voters are needed."""
    members: tuple[MemberStatus, ...]
    voids: int
    """Events that could not be carried out, at any broker."""
    shared: int
    """The last event up to which a majority of the voters is known to have made the same of the log."""
    divergences: int
    """Brokers that were found to have made another state of it, since this one was started."""
    kept_stores: tuple[str, ...]
    """Stores of this broker that were not right, and are kept for a look."""


@dataclass(frozen=True, slots=True)
class Holding:
    """What one member's consumers have of a queue."""

    name: str
    consumers: int
    held: int
    """Messages that were given to them, or to somebody who got them, and are not settled."""


def shown_state(standing: Standing, draining: Drain | None) -> str:
    """`draining` comes before the others: it is what an operator waits for."""
    if is_draining(standing, draining):
        return "draining"
    return CATCHING_UP if standing.serves and standing.updating else standing.state.shown


def is_draining(standing: Standing, draining: Drain | None) -> bool:
    return draining is not None and standing.state is not State.DRAINED


def why_closed(standing: Standing, draining: Drain | None) -> str:
    """Why clients may not come in; nothing: they may."""
    if is_draining(standing, draining):
        return f"the node {standing.us.name} is being drained: connect to another node of the cluster"
    return "" if standing.serves else standing.why


def describe(
    standing: Standing, view: View, broker: Broker, lease: LivenessLease, voids: Voids, draining: Drain | None
) -> ClusterStatus:
    us, voters, disks = standing.us, standing.voters, standing.commit.disks.upto
    knows = standing.serves or standing.state.live
    in_step = standing.in_step if knows else []
    oldest = in_step[0] if in_step else None
    ours = shown_state(standing, draining)

    def disk_of(member: Address) -> int | None:
        return disks.get(member) if broker.store.durable else None

    def state_of(member: Address) -> str:
        if member == us:
            return IN_STEP if ours == "serving" else ours
        if not knows:
            return UNKNOWN
        return IN_STEP if member in in_step else CATCHING_UP if member in standing.catching_up else JOINING

    present = () if standing.state is State.DRAINED else view.members
    members = [
        MemberStatus(
            each.name,
            each.incarnation,
            state_of(each),
            each.name in voters,
            each == oldest,
            disk_of(each),
            each == us,
            None if each == us else lease.silence(each.name),
            broker.alarms_on if each == us else broker.alarms_elsewhere.get(each.name, ()),
        )
        for each in (present if us in present else (us, *present))
    ]
    there = {member.name for member in members}
    absent = LOST if knows else UNKNOWN
    members += [MemberStatus(name, None, absent, True, False, None, False) for name in voters if name not in there]
    members.sort(key=lambda member: member.name)
    waits_for = "" if draining is None else draining.waits_for
    progress = standing.progress
    return ClusterStatus(
        standing.cluster, us.name, us.incarnation, ours, why_closed(standing, draining), waits_for,
        progress.epoch, progress.index, disk_of(us), str(view.id), present[0].name if present else "",
        str(standing.shared[DISPATCH]), voters, needed(voters), tuple(members), voids.count,
        standing.divergence.shared(voters, us, progress.index) if standing.serves else 0,
        standing.divergence.found, tuple(broker.store.kept_aside),
    )  # fmt: skip


def replicas(standing: Standing, applier: Applier, queue: Queue) -> int:
    """How many brokers have all of its messages, as far as this one knows."""
    if queue.home is not None:
        return 1
    peers = (applier.peers.get(member) for member in standing.catching_up)
    return len(standing.in_step) + sum(peer is not None and queue.incarnation not in peer.unready for peer in peers)


def holdings(standing: Standing, applier: Applier, queue: Queue) -> list[Holding]:
    """By member, those that have consumers of the queue or hold something of it; of a queue that is at home on another
    broker nothing is known."""
    if queue.home is not None:
        if queue.elsewhere or not (queue.consumers or queue.unacked):
            return []
        return [Holding(standing.us.name, len(queue.consumers), queue.unacked)]
    consumers: dict[object, int] = {}
    for consumer in queue.consumers:
        consumers[consumer.sink] = consumers.get(consumer.sink, 0) + 1
    found = [
        Holding(peer.address.name, consumers.get(peer, 0), peer.holds(queue.incarnation))
        for peer in applier.peers.values()
    ]
    return sorted((each for each in found if each.consumers or each.held), key=lambda each: each.name)
