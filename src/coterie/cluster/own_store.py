"""What a broker's own store has: loaded at the start, compared with what others have, and gone back to.

While a broker is updated its old store stays as it was (broker/store/generations.py), and in the end the new one takes
its place. If nobody is left who could bring the update to its end, and nobody who has everything, the broker goes back
to what it had: with enough others that is all that was ever promised.

Stores are equal if the same history (chain.py) has made the same content. After a restart of all, brokers with equal
stores need no update. Two things about a queue are not part of the log, and each broker has its own idea of them: which
position is the next, as some may have been given that are on nobody's disk, and up to where messages may have been
delivered. Of both the highest counts.
"""

from __future__ import annotations

import json
from array import array
from collections.abc import Mapping
from typing import TYPE_CHECKING, NamedTuple
from zlib import crc32

from coterie.broker.broker import CLUSTER
from coterie.cluster.snapshot import outline
from coterie.cluster.update import Update
from coterie.log import Log

if TYPE_CHECKING:
    from coterie.broker.queue import Queue
    from coterie.cluster.core import Core
    from coterie.cluster.voters import Marks
    from coterie.runtime.base import Future, Runtime

log = Log(__name__)


class Content(NamedTuple):
    """Of a store, as it was found."""

    sum: str
    marks: Marks
    """By the number of each queue: the next position, and the highest that may have been delivered."""


NOTHING = Content("", {})


async def load_everything(core: Core) -> None:
    """After recovery: a clustered broker has its messages in memory, and knows how far it had come."""
    broker = core.broker
    core.recovered(broker.records.pop((CLUSTER, "state"), None))
    if broker.damaged:
        log.error("the store is damaged: this broker has no vote until it is updated")
        core.damaged = True
    for vhost in broker.vhosts.values():
        for queue in vhost.queues.values():
            error = await _loaded(core.runtime, queue)
            if error is not None:
                log.error("messages cannot be read: this broker has no vote until it is updated", error=error)
                core.damaged = True
    if core.damaged:
        core.save()  # what is lost is reported once, and must not be forgotten at the next start
    core.content = content(core)


def _loaded(runtime: Runtime, queue: Queue) -> Future[Exception | None]:
    future: Future[Exception | None] = runtime.future()
    queue.pager.bring_all(future.set_result)
    return future


def content(core: Core) -> Content:
    """Of what was recovered, before anything has been done with it."""
    told: list[object] = [outline(core.broker, core.handler)]
    marks: dict[int, tuple[int, int]] = {}
    for queue in sorted(_queues(core), key=lambda queue: queue.incarnation):
        entries = queue.entries.values()
        positions = array("Q", [entry.position for entry in entries])
        sizes = array("Q", [entry.size for entry in entries])
        told.append([queue.incarnation, len(positions), crc32(positions), crc32(sizes)])
        told.append([None if queue.replica is None else queue.replica.record(queue), queue.leases.records()])
        if queue.window is not None:
            told.append([[crc32(run.ids) for _, run in queue.window.runs()]])
        ready = [entry for entry in entries if entry.holder is None]  # a lease knows what it was of its own
        delivered = max((entry.position for entry in ready if entry.redelivered), default=0)
        marks[queue.incarnation] = queue.next_position, delivered
    return Content(f"{crc32(json.dumps(told, sort_keys=True, default=str).encode()):08x}", marks)


def take_marks(core: Core, marks: Mapping[int, tuple[int, int]]) -> None:
    """Those of all that begin with equal stores."""
    for queue in _queues(core):
        if queue.incarnation in marks:
            following, delivered = marks[queue.incarnation]
            queue.next_position = max(queue.next_position, following)
            for entry in queue.entries.values():
                if entry.position <= delivered and entry.holder is None:
                    entry.redelivered = True


def _queues(core: Core) -> list[Queue]:
    return [queue for vhost in core.broker.vhosts.values() for queue in vhost.queues.values() if queue.home is None]


class WayBack:
    """From an update that cannot be brought to its end, to what the broker had before."""

    def __init__(self, core: Core) -> None:
        self._core = core
        self.is_there = False
        """What it had was of use: it could vote."""
        self.under_way = False

    def take(self) -> bool:
        """Whether there is one. Once it is done, the others hear what this broker has."""
        core = self._core
        if not self.under_way and self.is_there and core.updating and core.broker.store.keeps_old:
            log.warning("the update cannot be completed: this broker goes back to what it had")
            self.under_way = True
            core.begin_anew("this broker goes back to what it had before its update")
            core.update = Update(core)  # of the one that failed nothing stays
            core.broker.go_back(self._recovered)
        return self.under_way

    def _recovered(self, error: Exception | None) -> None:
        core = self._core
        if error is not None:
            log.error("what this broker had cannot be read any more", error=error)
            self.is_there = self.under_way = False
            core.damaged = True
            core.standing.send_status()
        else:
            core.runtime.spawn(self._load())

    async def _load(self) -> None:
        core = self._core
        core.last_wall = 0.0
        await load_everything(core)
        self.is_there = self.under_way = False
        core.standing.send_status()
