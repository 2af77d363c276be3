"""How a queue is before a step changes it, for the undo journal: everything but what is in it, and who holds that, of
which each operation has its own inverse (`message_table`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from operator import attrgetter
from typing import TYPE_CHECKING, Any

from coterie.broker.counters import NAMES

if TYPE_CHECKING:
    from coterie.broker.following.followed_queue import Replica
    from coterie.broker.queue import Queue
    from coterie.broker.rotation import Rotation

_OF_QUEUE = (
    "deleted", "limits", "policy", "operator_policy", "replica", "window", "home", "elsewhere", "cluster",
)  # fmt: skip
_OF_DISPATCHER = ("_scheduled", "_busy", "_arrived")
_OF_PAGER = ("dying", "dying_bytes")
_OF_REPLICA = ("source", "incarnation", "session", "mark", "promoted")
_OF_LEASE = ("next", "session", "count", "bytes")
_queue = attrgetter(*_OF_QUEUE)
_dispatcher = attrgetter(*_OF_DISPATCHER)
_pager = attrgetter(*_OF_PAGER)
_replica = attrgetter(*_OF_REPLICA)
_lease = attrgetter(*_OF_LEASE)
_counters = attrgetter(*NAMES)
Parts = tuple[Any, ...]


def keep(queue: Queue) -> None:
    """Note how the queue is, if this step has not yet. Only while a step is being taken."""
    journal = queue.journal
    if queue.kept_in != journal.turn:
        queue.kept_in = journal.turn
        journal.note(
            _restore, queue, _queue(queue), _dispatcher(queue.dispatcher), _counters(queue.counters),
            queue.expiry.mortal, _pager(queue.pager), _of_rotation(queue.rotation),
            None if queue.replica is None else _of_replica(queue.replica),
            _of_leases(queue) if queue.leases else None,
        )  # fmt: skip


def _set(thing: object, names: Sequence[str], values: Parts) -> None:
    for name, value in zip(names, values, strict=True):
        setattr(thing, name, value)


def _restore(
    queue: Queue, own: Parts, dispatcher: Parts, counters: Parts, mortal: bool, pager: Parts,
    rotation: Callable[[], None] | None, replica: Callable[[], None] | None, leases: Callable[[], None] | None,
) -> None:  # fmt: skip
    _set(queue, _OF_QUEUE, own)
    _set(queue.dispatcher, _OF_DISPATCHER, dispatcher)
    _set(queue.counters, NAMES, counters)
    _set(queue.pager, _OF_PAGER, pager)
    if rotation is None:
        queue.rotation.clear()
    else:
        rotation()
    if replica is not None:
        replica()
    if leases is not None:
        leases()
    else:
        queue.leases.restore_all({}, 0, 0)
    queue.kept_in = -1
    queue.expiry.again(mortal)


def _of_rotation(rotation: Rotation) -> Callable[[], None] | None:
    consumers = rotation.consumers
    if not consumers:
        return None
    there = [*consumers]
    active = [consumer for consumer in there if consumer.active] if rotation.single else there
    turns = rotation.image()

    def restore() -> None:
        rotation.restore_all(there, active, turns)

    return restore


def _of_replica(replica: Replica) -> Callable[[], None]:
    values, runs = _replica(replica), [*replica.runs]

    def restore() -> None:
        _set(replica, _OF_REPLICA, values)
        replica.runs = runs

    return restore


def _of_leases(queue: Queue) -> Callable[[], None]:
    leases = queue.leases
    by_name, count, size = leases.image()
    each = [(lease, _lease(lease), [*lease.pieces], {*lease.replaced}) for lease in leases]

    def restore() -> None:
        leases.restore_all(by_name, count, size)
        for lease, values, pieces, replaced in each:
            _set(lease, _OF_LEASE, values)
            lease.pieces, lease.replaced = pieces, replaced

    return restore
