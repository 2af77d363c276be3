"""B9 transactions: the publishes and answers of a transaction take effect together, or not at all.

What a transaction is to do it says when it begins. By its end it has done all of it, except for answers about what had
left its queue before. If the node dies before that is known to be on disk, the next life finds all of it done, as far
as it is about persistent messages in durable queues, or nothing.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field

from coterie.audit.fold import BY_RUN, Found, Property, Violation
from coterie.audit.numbers import Numbers
from coterie.audit.queues import (
    Life,
    QueueId,
    Restart,
    note_restart,
    numbers,
    per_queue,
    positions,
    queue_of,
    successions,
    text_of,
    whole_of,
)
from coterie.trace import Event

PARTS = {"accepts": "accepted", "rejects": "rejected"}
"""What a transaction says, and the reason with which messages leave because of it."""
Place = tuple[QueueId, int]


@dataclass(slots=True)
class Unit:
    """One transaction."""

    begins: Event
    enqueued: Counter[str] = field(default_factory=Counter)
    """Or dropped as duplicates."""
    done: set[tuple[str, Place]] = field(default_factory=set)
    """Reasons and places of what left, and of what was released."""
    log: int = 0
    """Where the store's log has it, once it has ended."""
    came: set[Place] = field(default_factory=set)
    """What of it a restart would show: enqueued, persistent, and still there."""
    left: dict[Place, int] = field(default_factory=dict)
    """And what left because of it: persistent ones, and where the store's log has that they came."""


@dataclass(slots=True)
class Books:
    """One life of a node."""

    persistent: dict[Place, int] = field(default_factory=dict)
    """In durable queues: where the store's log has that they came; 0: they were found at the start."""
    gone: dict[QueueId, Numbers] = field(default_factory=dict)
    units: dict[str, Unit] = field(default_factory=dict)
    """That may not be on disk."""
    came: dict[Place, Unit] = field(default_factory=dict)
    synced: int = 0


@dataclass(slots=True)
class State:
    lives: dict[Life, Books] = field(default_factory=dict)
    restarts: dict[Life, Restart] = field(default_factory=dict)
    found: Found = field(default_factory=lambda: Found("B9"))


class Transactions(Property[State]):
    name = "B9"
    title = "transactions"
    sentence = "A transaction's publishes and answers take effect together, or not at all."
    split_by = BY_RUN
    kinds = ("tx", "enqueue", "duplicate", "dequeue", "release", "synced", "recovered")

    def start(self) -> State:
        return State()

    def step(self, state: State, event: Event) -> None:
        books = state.lives.setdefault((event.node, event.inc), Books())
        kind = event.kind
        if kind == "tx":
            self._transaction(state, books, event)
        elif kind == "synced":
            books.synced = max(books.synced, event.last or 0)
        elif kind == "recovered":
            note_restart(state.restarts, event)
            queue = queue_of(event)
            if queue is not None:
                books.persistent.update(dict.fromkeys(((queue, position) for position in positions(event)), 0))
        else:
            queue = queue_of(event)
            if queue is not None:
                unit = books.units.get(text_of(event, "tx"))
                if kind == "enqueue":
                    _enqueue(books, unit, queue, event)
                elif kind == "duplicate":
                    if unit is not None:
                        unit.enqueued[queue[1]] += event.count or 0
                elif kind == "dequeue":
                    _dequeue(books, unit, queue, event)
                elif unit is not None:
                    unit.done.update(("released", (queue, position)) for position in positions(event))

    def _transaction(self, state: State, books: Books, event: Event) -> None:
        name, which = text_of(event, "tx"), event.data.get("state")
        if which == "begins":
            for old in [old for old, unit in books.units.items() if 0 < unit.log <= books.synced]:
                for place in books.units.pop(old).came:
                    books.came.pop(place, None)
            books.units[name] = Unit(event)
        elif which == "ends" and name in books.units:
            unit = books.units[name]
            unit.log = whole_of(event, "log") or 0
            for text in _undone(books, unit):
                state.found.add(f"transaction {name} has ended, but {text}", unit.begins, event)

    def certain(self, state: State) -> list[Violation]:
        return state.found.certain()

    def finish(self, state: State) -> list[Violation]:
        for life, restart in successions(state.restarts, state.lives):
            places: dict[QueueId, set[int]] = {}
            for queue, event in restart.found.items():
                places[queue] = {*positions(event)}
            books = state.lives[life]
            for name, unit in books.units.items():
                if not unit.log or unit.log > books.synced:
                    # What was not on disk when all ended shows nothing by not being found.
                    unit.left = {place: log for place, log in unit.left.items() if log <= books.synced}
                    _all_or_nothing(state, name, unit, restart, places)
        return state.found.close()


def _enqueue(books: Books, unit: Unit | None, queue: QueueId, event: Event) -> None:
    kept = [(queue, position) for position in numbers(event.data.get("persistent"))]
    books.persistent.update(dict.fromkeys(kept, whole_of(event, "log") or 0))
    if unit is not None and "source" not in event.data:
        unit.enqueued[queue[1]] += event.count or 0
        unit.came.update(kept)
        books.came.update(dict.fromkeys(kept, unit))


def _dequeue(books: Books, unit: Unit | None, queue: QueueId, event: Event) -> None:
    reason = text_of(event, "reason")
    gone = books.gone.setdefault(queue, Numbers())
    for position in positions(event):
        place = queue, position
        gone.add(position)
        if place in books.came:  # consumed since: it shows nothing any more
            books.came.pop(place).came.discard(place)
        if unit is not None:
            unit.done.add((reason, place))
            if place in books.persistent and reason in PARTS.values():
                unit.left[place] = books.persistent[place]
        books.persistent.pop(place, None)


def _undone(books: Books, unit: Unit) -> Iterator[str]:
    data = unit.begins.data
    vhost = text_of(unit.begins, "vhost") or "/"
    for name, count in per_queue(data.get("enqueues")):
        if unit.enqueued[name] != count:
            yield f"{unit.enqueued[name]} of {count} messages were enqueued in {name}"
    for key, reason in PARTS.items():
        for name, spans in per_queue(data.get(key)):
            gone = books.gone.get((vhost, name), Numbers())
            for position in numbers(spans):
                if (reason, ((vhost, name), position)) not in unit.done and position not in gone:
                    yield f"position {position} of {name} was not {reason}"
    for name, spans in per_queue(data.get("requeues")):
        gone = books.gone.get((vhost, name), Numbers())
        for position in numbers(spans):
            if ("released", ((vhost, name), position)) not in unit.done and position not in gone:
                yield f"position {position} of {name} was not released"


def _all_or_nothing(state: State, name: str, unit: Unit, restart: Restart, places: dict[QueueId, set[int]]) -> None:
    came = [place for place in sorted(unit.came) if place[0] in places]
    left = [place for place in sorted(unit.left) if place[0] in places]
    here = [place for place in (*came, *left) if place[1] in places[place[0]]]
    done = [f"{_at(place)} was found" for place in came if place in here]
    done += [f"{_at(place)} has left" for place in left if place not in here]
    undone = [f"{_at(place)} was not found" for place in came if place not in here]
    undone += [f"{_at(place)} is there again" for place in left if place in here]
    if done and undone and not restart.damage:
        who = f"{restart.event.node}#{restart.event.inc}"
        state.found.add(f"of transaction {name}, {who} has a part: {done[0]}, {undone[0]}", unit.begins, restart.event)


def _at(place: Place) -> str:
    return f"position {place[1]} of {place[0][1]}"
