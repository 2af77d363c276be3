"""How a queue is before a step changes it, for the undo journal: everything but what is in it.

Messages may be very many, so who lets them come, go or change hands notes those alone (`queue`, `dispatch`). Whatever
follows from what is in the queue and who holds it (the ready ones in their order, the oldest of a ring, the newest
values) is made anew when a step is taken back: that is rare.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from operator import attrgetter
from typing import TYPE_CHECKING, Any

from coterie.broker.counters import NAMES
from coterie.broker.entry import GONE, Entry

if TYPE_CHECKING:
    from coterie.broker.following.followed_queue import Replica
    from coterie.broker.queue import Queue
    from coterie.broker.rotation import Rotation

_OF_QUEUE = (
    "ready", "ready_bytes", "bytes", "next_position", "deleted", "limits", "policy", "operator_policy", "replica",
    "window", "home", "elsewhere", "cluster",
)  # fmt: skip
_OF_DISPATCHER = ("_scheduled", "_busy", "_offered", "_arrived")
_OF_PAGER = ("paged", "paged_bytes", "dying", "dying_bytes")
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
    """What is in the queue is as it was already."""
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
    queue.entries = dict(sorted(queue.entries.items()))
    queue.remake()
    queue.kept_in = -1
    queue.expiry.again(mortal)


def _of_rotation(rotation: Rotation) -> Callable[[], None] | None:
    consumers = rotation.consumers
    if not consumers:
        return None
    there = [*consumers]
    active = [consumer for consumer in there if consumer.active] if rotation.single else there
    turns = rotation.image()
    offered = [consumer.offered for consumer in there]

    def restore() -> None:
        rotation.restore_all(there, active, turns)
        for consumer, count in zip(there, offered, strict=True):
            consumer.offered = count

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


# What is in it, and who holds it.


def take_back(queue: Queue, entries: list[Entry]) -> None:
    """They never came."""
    live = queue.entries
    for entry in entries:
        live.pop(entry.position, None)
        entry.holder = GONE


def bring_back(queue: Queue, entries: Sequence[Entry], holders: Sequence[object]) -> None:
    """They never left."""
    live = queue.entries
    for entry, holder in zip(entries, holders, strict=True):
        if holder is not GONE:
            entry.holder = holder
            live[entry.position] = entry


def hold_in(queue: Queue, entries: Sequence[Entry], holder: object) -> None:
    """They never left, and that one holds them."""
    live = queue.entries
    for entry in entries:
        entry.holder = holder
        live[entry.position] = entry


def give_back(entries: Sequence[Entry], holder: object) -> None:
    """They were ready, and were never given to that one."""
    for entry in entries:
        if entry.holder is holder:
            entry.holder = None
            entry.deliveries -= 1


Held = tuple[Entry, object, bool, int]


def held(entries: Sequence[Entry]) -> list[Held]:
    """Who has each, and what is known of its deliveries."""
    return [(entry, entry.holder, entry.redelivered, entry.deliveries) for entry in entries]


def hold_again(entries: list[Held]) -> None:
    for entry, holder, redelivered, deliveries in entries:
        entry.holder, entry.redelivered, entry.deliveries = holder, redelivered, deliveries


def expire_as_before(times: list[tuple[Entry, float | None]]) -> None:
    for entry, expires in times:
        entry.expires = expires
