"""The kinds of queues, by what a declaration asks for."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from coterie.broker.queue import Queue
from coterie.broker.queue_last_value import LastValueQueue
from coterie.broker.queue_priority import PriorityQueue
from coterie.broker.queue_ring import RingQueue

if TYPE_CHECKING:
    from coterie.broker.specs import QueueSpec
    from coterie.broker.vhost import Vhost
    from coterie.runtime.base import Runtime

KINDS: Final[dict[str, type[Queue]]] = {kind.kind: kind for kind in (Queue, RingQueue, LastValueQueue, PriorityQueue)}


def make_queue(
    vhost: Vhost, name: str, incarnation: int, spec: QueueSpec, runtime: Runtime, owner: object | None = None
) -> Queue:
    return KINDS[spec.kind](vhost, name, incarnation, spec, runtime, owner)
