"""What broker events say, as the properties B1 to B12 read it: which queue, which positions, and what a restart found.

A queue is its vhost and `name#incarnation`. Positions are `first` to `last`, or `data.ranges` where there are holes.
The lives of a node follow each other by incarnation; what one of them must have found follows from the one before it,
if nothing lies between them: the store counts its starts (`data.number`, `data.previous`).
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import TypeVar

from coterie.audit.fold import NOBODY, Split
from coterie.audit.lives import LIFE_KINDS
from coterie.trace import Event, Json

SPAN_MAX = 1_000_000
"""Positions that one range of an event may have: more is a corrupt line."""
QueueId = tuple[str, str]
Life = tuple[str, int]
"""Node and incarnation."""
T = TypeVar("T")

_OF_ALL = frozenset({"synced", "confirm", "tx", "client", *LIFE_KINDS})


def queue_of(event: Event) -> QueueId | None:
    if event.queue is None:
        return None
    vhost = event.data.get("vhost")
    return vhost if isinstance(vhost, str) else "/", event.queue


def _by_queue(event: Event) -> Hashable | None:
    if event.kind in _OF_ALL:
        return None
    queue = queue_of(event)
    if queue is None:
        return None if event.kind == "recovered" else NOBODY
    return queue


BY_QUEUE = Split("run and queue", _by_queue)
"""What was made of one queue's messages; how far the disk is, confirms, clients and lives concern all of them."""


def spans(value: Json) -> Iterator[tuple[int, int]]:
    """What a list of ranges says, as far as it makes sense."""
    if isinstance(value, list):
        for each in value:
            if isinstance(each, list) and len(each) == 2:
                first, last = each
                if isinstance(first, int) and isinstance(last, int) and 0 <= last - first < SPAN_MAX:
                    yield first, last


def numbers(value: Json) -> Iterator[int]:
    for first, last in spans(value):
        yield from range(first, last + 1)


def positions(event: Event) -> Iterable[int]:
    """The positions that an event is about, in its order."""
    ranges = event.data.get("ranges")
    if ranges is not None:
        return numbers(ranges)
    if event.first is None or event.last is None or event.last - event.first >= SPAN_MAX:
        return ()
    return range(event.first, event.last + 1)


def text_of(event: Event, key: str) -> str:
    value = event.data.get(key)
    return value if isinstance(value, str) else ""


def whole_of(event: Event, key: str) -> int | None:
    value = event.data.get(key)
    return value if isinstance(value, int) else None


def per_queue(value: Json) -> Iterator[tuple[str, Json]]:
    """The entries of an object that is keyed by queues."""
    if isinstance(value, dict):
        yield from value.items()


@dataclass(slots=True)
class Restart:
    """What a node's start found, in all and in each queue that is looked at."""

    event: Event
    start: int | None
    previous: int | None
    """The start before it, as far as the disk knows."""
    damage: int
    queues: frozenset[str]
    """That there are again."""
    found: dict[QueueId, Event] = field(default_factory=dict)
    """By queue: what was in it."""

    @classmethod
    def of(cls, event: Event) -> Restart:
        queues = event.data.get("queues")
        names = frozenset(map(str, queues)) if isinstance(queues, list) else frozenset()
        start, previous = whole_of(event, "number"), whole_of(event, "previous")
        return cls(event, start, previous, whole_of(event, "damage") or 0, names)


def note_restart(restarts: dict[Life, Restart], event: Event) -> None:
    """A `recovered` event: of the node, then of its queues."""
    life = event.node, event.inc
    queue = queue_of(event)
    if queue is None:
        restarts[life] = Restart.of(event)
    elif life in restarts:
        restarts[life].found[queue] = event


def successions(restarts: dict[Life, Restart], lives: Iterable[Life]) -> Iterator[tuple[Life, Restart]]:
    """Each life of a node that another one followed at once, with what that one found."""
    known = sorted({*lives, *restarts})
    for life in known:
        later = [other for other in known if other[0] == life[0] and other[1] > life[1] and other in restarts]
        if not later:
            continue
        mine, following = restarts.get(life), restarts[later[0]]
        if mine is None or following.previous is None:
            continue
        if following.previous in (mine.start, mine.previous):  # the latter: the disk did not take that it had started
            yield life, following
