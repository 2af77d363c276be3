"""Giving updates: one that is in step gives its state to one that is not, while everybody goes on.

The newcomer's status has a place in the log. There, the oldest broker in step cuts its state, and sends its outline
and an index of all messages, one to one. Bodies the newcomer asks for later (backfill.py). If a view changes before the
index is sent, both begin again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from coterie.cluster import wire
from coterie.cluster.catchup import snapshot
from coterie.group.channel import ChannelClosed
from coterie.group.members import Address
from coterie.logs import Log
from coterie.runtime.base import Future, Runtime, resolve

if TYPE_CHECKING:
    from coterie.broker.broker import Broker
    from coterie.cluster.applier import Applier
    from coterie.cluster.standing import Standing
    from coterie.cluster.turn import Turn
    from coterie.cluster.voids import Voids
    from coterie.group.channel import Channel

log = Log(__name__)
UPDATE = 4
"""The first byte of a part of an update."""
OUTLINE, CHUNK, END = 1, 2, 3
"""The second."""


class UpdateSource:
    """Of one broker: the updates that it gives."""

    def __init__(
        self, runtime: Runtime, standing: Standing, turn: Turn, voids: Voids, broker: Broker, applier: Applier,
        channel: Channel,
    ) -> None:  # fmt: skip
        self._runtime = runtime
        self._standing = standing
        self._turn = turn
        self._voids = voids
        self._broker = broker
        self._applier = applier
        self._channel = channel
        self._count = 0
        self._latest: dict[Address, int] = {}
        """The number of the update that each one gets. With the view all of them end."""
        self._under_way: dict[Address, Future[None]] = {}

    def view_changed(self) -> None:
        self._latest.clear()
        self._under_way = {member: task for member, task in self._under_way.items() if not task.done()}

    def begin(self, member: Address) -> None:
        """Cut the state here and now. If it is asked for again, what was cut before is not sent any more."""
        found = snapshot.cut(self._broker, self._applier, self._standing.versions.spoken)
        found.outline.update(self._whereabouts())
        count = sum(copy.count for _, copy in found.queues)
        log.info("updating a broker", broker=member, messages=count)
        last = self._turn.time.last
        now = self._turn.now() if last is None else last
        self._count += 1
        self._latest[member] = self._count
        before = self._under_way.get(member)
        self._under_way[member] = self._runtime.spawn(self._send(member, found, self._count, before, now))

    def _whereabouts(self) -> snapshot.Json:
        """How far this broker has come, and with whom."""
        standing = self._standing
        return {
            "epoch": standing.progress.epoch,
            "index": standing.progress.index,
            "chain": standing.chain.hex(),
            "aside": standing.aside.hex(),
            "claims": standing.divergence.to_json(),
            "kept": standing.kept(self._broker.store.written()),
            "era": standing.era.to_json(),
            "cluster": standing.cluster,
            "voters": list(standing.voters),
            "in_step": [str(each) for each in standing.in_step],
            "catching_up": [[str(each), cut.epoch, cut.index] for each, cut in standing.catching_up.items()],
            "lives": [[str(each), began.epoch, began.index] for each, began in standing.lives.items()],
            "wall": self._turn.last_wall,
            "time": self._turn.time.last,
            "versions": standing.versions.to_json(),
            "voids": self._voids.to_json(),
            "view": str(standing.view.id),
        }

    async def _send(
        self, member: Address, found: snapshot.Cut, number: int, before: Future[None] | None, now: float
    ) -> None:
        """`before`: another update of that member, whose parts must not come between those of this one."""
        channel = self._channel
        await self._on_disk()
        while before is not None and not before.done():
            await self._others()
        try:
            if self._latest.get(member) == number:
                await channel.send(bytes((UPDATE, OUTLINE)) + wire.encode_json(found.outline), member)
            for chunk in snapshot.chunks(found, now):
                if self._latest.get(member) != number:
                    return
                await channel.send(bytes((UPDATE, CHUNK)) + chunk, member)
                await self._others()
            if self._latest.get(member) == number:
                await channel.send(bytes((UPDATE, END)), member)
        except ChannelClosed:
            pass

    def _others(self) -> Future[None]:
        """Let others have their turn."""
        future: Future[None] = self._runtime.future()
        self._runtime.call_soon(resolve, future, None)
        return future

    def _on_disk(self) -> Future[None]:
        """The other one gives up what it has: so first see to it that what we have is safe."""
        store, future = self._broker.store, self._runtime.future()
        store.when_synced(store.written(), lambda: resolve(future, None))
        return future
