"""What a broker's own store has: loaded at the start, compared with what others have, and gone back to.

While a broker is updated its old store stays as it was (log/generation.py), and in the end the new one takes
its place. If nobody is left who could bring the update to its end, and nobody who has everything, the broker goes back
to what it had: with enough others that is all that was ever promised.

Stores are equal if the same history (chain.py) has made the same content. After a restart of all, brokers with equal
stores need no update. Two things about a queue are not part of the log, and each broker has its own idea of them: which
position is the next, as some may have been given that are on nobody's disk, and up to where messages may have been
delivered. Of both the highest counts; and if nobody can know the latter, all may have been (membership.py).
"""

from __future__ import annotations

import json
from functools import partial
from typing import TYPE_CHECKING
from zlib import crc32

from coterie.cluster.catchup.snapshot import outline
from coterie.cluster.membership import Content, Marks
from coterie.logs import Log
from coterie.runtime.base import resolve

if TYPE_CHECKING:
    from coterie.broker.broker import Broker
    from coterie.broker.queue import Queue
    from coterie.cluster.applier import Applier
    from coterie.runtime.base import Future, Runtime

log = Log(__name__)


async def load_messages(runtime: Runtime, broker: Broker) -> bool:
    """After recovery: all of them into memory. Whether the store is whole; if not, the broker has no vote."""
    whole = not broker.damaged
    if broker.damaged:
        log.error("the store is damaged: this broker has no vote until it is updated")
    for vhost in broker.vhosts.values():
        for queue in vhost.queues.values():
            error = await _loaded(runtime, queue)
            if error is not None:
                log.error("messages cannot be read: this broker has no vote until it is updated", error=error)
                whole = False
    return whole


def _loaded(runtime: Runtime, queue: Queue) -> Future[Exception | None]:
    future: Future[Exception | None] = runtime.future()
    queue.pager.bring_all(partial(resolve, future))
    return future


def content(broker: Broker, applier: Applier) -> Content:
    """Of what was recovered, before anything has been done with it."""
    told: list[object] = [outline(broker, applier)]
    marks: dict[int, tuple[int, int]] = {}
    for queue in sorted(_queues(broker), key=lambda queue: queue.incarnation):
        positions, sizes = queue.sizes()
        told.append([queue.incarnation, len(positions), crc32(positions), crc32(sizes)])
        told.append([None if queue.replica is None else queue.replica.record(queue), queue.leases.records()])
        if queue.window is not None:
            told.append([[crc32(run.ids) for _, run in queue.window.runs()]])
        marks[queue.incarnation] = queue.next_position, queue.last_flagged()
    return Content(f"{crc32(json.dumps(told, sort_keys=True, default=str).encode()):08x}", marks)


def take_marks(broker: Broker, marks: Marks, given: bool) -> None:
    """Those of all that begin. `given`: whatever is ready may have been given to somebody."""
    for queue in _queues(broker):
        delivered: int | None = 0
        if queue.incarnation in marks:
            following, delivered = marks[queue.incarnation]
            queue.leap(following)
        queue.flag(None if given else delivered)


def _queues(broker: Broker) -> list[Queue]:
    return [queue for vhost in broker.vhosts.values() for queue in vhost.queues.values() if queue.home is None]
