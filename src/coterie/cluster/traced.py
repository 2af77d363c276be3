"""What a clustered broker says in the trace: whether it serves, what it has, and what it lets out.

A broker that stands alone is judged by what it does to each message. Here every broker does the same, by the log: so
the trace says at the same events of the log what each of them has, as sums, once a majority holds that place; and what
left the cluster, deliveries and answers. docs/properties.md has what is judged by it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any
from zlib import crc32

from coterie.broker.delivery import positions_in
from coterie.broker.journal import NO_VERDICT
from coterie.broker.leases import Lease
from coterie.broker.ranges import END
from coterie.broker.traced import inclusive, name_of, pairs
from coterie.cluster.catchup.snapshot import outline
from coterie.cluster.consumers import Getter, Subscriber
from coterie.trace import Json

if TYPE_CHECKING:
    from coterie.broker.broker import Broker
    from coterie.broker.delivery import Delivery
    from coterie.broker.queue import Queue
    from coterie.broker.rows import Row
    from coterie.cluster.applier import Applier
    from coterie.cluster.chain import Link
    from coterie.cluster.membership import Progress
    from coterie.cluster.standing import Standing
    from coterie.cluster.voids import Voids
    from coterie.group.members import Address
    from coterie.trace import Tracer

EVERY = 1000
"""Events of the log between two accounts of everything; a simulated run wants them more often."""


class ClusterTrace:
    """Of one broker."""

    every = EVERY

    def __init__(
        self, trace: Tracer, standing: Standing, broker: Broker, applier: Applier, voids: Voids,
        when_held: Callable[[Callable[[], None]], None],
    ) -> None:  # fmt: skip
        self._trace = trace
        self._standing = standing
        self._broker = broker
        self._applier = applier
        self._voids = voids
        self._when_held = when_held
        self._updated = False

    def state(self) -> None:
        """Whether it serves, with whom, or anything else about the members, has changed."""
        standing = self._standing
        self._trace.emit(
            "serving", state=standing.state.shown, cluster=standing.cluster, voters=list(standing.voters),
            members=[member.name for member in standing.in_step], epoch=standing.progress.epoch,
            number=standing.progress.index,
        )  # fmt: skip

    def updated(self) -> None:
        """It has the state of another broker."""
        self._updated = True

    def applied(self) -> None:
        """An event of the log has been carried out. Every so often, say what there is now, when it may be said."""
        standing = self._standing
        if standing.progress.index % self.every == 0 and not standing.updating:
            said = self._account()
            self._when_held(lambda: self._trace.emit("replica", **said))  # type: ignore[arg-type]

    def void(self, kind: str) -> None:
        """The event that is being applied is void."""
        standing = self._standing
        said: dict[str, Any] = {
            "cluster": standing.cluster, "epoch": standing.progress.epoch, "era": standing.era.view,
            "number": standing.progress.index, "event": kind,
        }  # fmt: skip
        self._when_held(lambda: self._trace.emit("void", **said))

    def leaves(self, error: Exception) -> None:
        """This broker cannot follow the log."""
        excuse = isinstance(error, NO_VERDICT)
        self._trace.emit("leaves", error=type(error).__name__, excused=excuse or None)

    def _account(self) -> dict[str, Json]:
        standing = self._standing
        queues: dict[str, Json] = {}
        holders: dict[str, Json] = {}
        for vhost in self._broker.vhosts.values():
            for queue in vhost.queues.values():
                if queue.home is not None:
                    continue
                queues[name_of(queue)] = [queue.count, queue.next_position, _messages(queue)]
                owners = self._applier.owners
                owner = None if owners is None else owners.of(queue).owner
                holders[name_of(queue)] = _holders(queue, "" if owner is None else str(owner.address))
        wiring = outline(self._broker, self._applier)
        return {
            "cluster": standing.cluster, "epoch": standing.progress.epoch, "era": standing.era.view,
            "number": standing.progress.index, "queues": queues, "holders": holders, "wiring": _sum(wiring),
            "life": standing.life(), "voters": list(standing.voters), "voids": self._voids.to_json(),
            "updated": self._updated or None,
        }  # fmt: skip

    def given(self, delivery: Delivery) -> None:
        """They go to a client now."""
        queue, ranges = delivery.queue, delivery.ranges
        sums: list[Json] = [crc32(message.body) for message in delivery.messages]
        self._trace.emit(
            "given", queue=name_of(queue), first=min(ranges)[0], last=max(ranges)[1] - 1, count=delivery.count,
            ranges=inclusive(ranges) if len(ranges) > 1 else None, redelivered=inclusive(delivery.flagged), sums=sums,
            vhost=None if queue.vhost.name == "/" else queue.vhost.name,
        )  # fmt: skip

    def reading(self, queue: Queue, rows: Sequence[Row], lease: Lease | None) -> None:
        """They go to somebody who reads in bulk; through a lease as often as it likes."""
        positions = [row.position for row in rows]
        sums: list[Json] = [crc32(row.message.body) for row in rows]
        ranges = pairs(positions)
        self._trace.emit(
            "read", queue=name_of(queue), first=min(positions), last=max(positions), count=len(positions),
            ranges=ranges if len(ranges) > 1 else None, sums=sums, lease=None if lease is None else lease.name,
            vhost=None if queue.vhost.name == "/" else queue.vhost.name,
        )  # fmt: skip

    def logged(self, there: Link) -> None:
        """All that events up to this one have made of the store is in the store's log."""
        self._trace.emit(
            "logged", number=there.place.index, life=self._standing.life(), last=self._broker.store.written(),
            epoch=there.place.epoch, chain=there.chain.hex() or None,
        )  # fmt: skip

    def wrong(self, members: Iterable[Address], place: Progress) -> None:
        """These have made another state of the log than the others."""
        standing = self._standing
        self._trace.emit(
            "astray", members=[str(member) for member in members], cluster=standing.cluster, epoch=place.epoch,
            number=place.index,
        )  # fmt: skip

    def promised(self, index: int) -> None:
        """A client is about to hear that what it asked for has been done; `index`: that it is on disk up to there."""
        standing = self._standing
        if not index:
            self._trace.emit("promise")
        else:
            said = standing.commit.rests.items()
            rests: dict[str, Json] = {str(member): life for member, (life, _) in said}
            chains: dict[str, Json] = {
                str(member): f"{there.place.epoch}.{there.place.index}.{ours.hex()}"
                for member, (_, there) in said
                if (ours := standing.divergence.history.at(there.place))
            }
            self._trace.emit("promise", number=index, rests=rests, life=standing.life(), chains=chains or None)
        self._trace.flush()


def _sum(value: object) -> int:
    return crc32(json.dumps(value, sort_keys=True, default=str).encode())


def _messages(queue: Queue) -> int:
    """A clustered broker has them in memory."""
    found: list[Row] = []
    queue.read_ranges([(0, END)], lambda rows: found.extend(rows) if isinstance(rows, list) else None)
    return _sum([(row.position, crc32(row.message.body), row.redelivered) for row in found])


def _holders(queue: Queue, owner: str) -> int:
    consumers = sorted(
        (str(consumer.peer.address), consumer.number, consumer.limit, consumer.held)
        for consumer in queue.consumers
        if isinstance(consumer, Subscriber)
    )
    held = sorted(
        (position, _holder(holder))
        for holder, ranges in queue.holders()
        if holder is not None
        for position in positions_in(ranges)
    )
    leases = sorted((lease.name, lease.id, lease.user, lease.session, lease.next) for lease in queue.leases)
    return _sum([consumers, held, owner, *([leases] if leases else [])])


def _holder(holder: object) -> str:
    if isinstance(holder, (Subscriber, Getter)):
        return f"{type(holder).__name__} {holder.number} of {holder.peer.address}"
    if isinstance(holder, Lease):
        return f"Lease {holder.name} {holder.id}"
    return type(holder).__name__
