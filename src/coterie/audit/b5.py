"""B5 dead letters: what dies reaches the queues of its dead-letter exchange exactly once, or is dropped once.

A message that leaves its queue as a dead letter (`dequeue` with `data.dies`) is addressed once (`dead_letter`), to some
queues or to none, and enqueued once in each of those. After a restart it is in its queue again, or its letters are
where they were sent, but not both.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, field

from coterie.audit.fold import NOBODY, Found, Property, Split, Violation
from coterie.audit.lives import LIFE_KINDS, Lives, address
from coterie.audit.numbers import Numbers
from coterie.audit.queues import (
    Life,
    QueueId,
    Restart,
    note_restart,
    numbers,
    positions,
    queue_of,
    successions,
    text_of,
)
from coterie.trace import Event

KEPT_MAX = 10_000
"""Deaths of one queue whose letters are remembered, for what a restart finds."""


class Death:
    """Of one message."""

    __slots__ = ("addressed", "event", "letters", "owed")

    def __init__(self, event: Event) -> None:
        self.event = event
        self.addressed = False
        self.owed: dict[str, Event] = {}
        """Queues that are to get a letter."""
        self.letters: list[tuple[QueueId, int]] = []
        """Where it is: queue and position."""


@dataclass(slots=True)
class Deaths:
    """In one queue, in one life."""

    open: dict[int, Death] = field(default_factory=dict)
    """Not yet where they should be."""
    buried: dict[int, Death] = field(default_factory=dict)
    all: Numbers = field(default_factory=Numbers)


@dataclass(slots=True)
class State:
    queues: dict[tuple[Life, QueueId], Deaths] = field(default_factory=dict)
    restarts: dict[Life, Restart] = field(default_factory=dict)
    lives: Lives = field(default_factory=Lives)
    found: Found = field(default_factory=lambda: Found("B5"))


def source_of(event: Event) -> QueueId | None:
    """The queue in which the message died that an event is about."""
    if event.kind != "enqueue":
        return queue_of(event)
    source, vhost = text_of(event, "source"), text_of(event, "vhost")
    return (vhost or "/", source) if source else None


def by_source(event: Event) -> Hashable | None:
    if event.kind in LIFE_KINDS or event.kind == "recovered":
        return None
    if event.kind == "dequeue" and not event.data.get("dies"):
        return NOBODY
    return source_of(event) or NOBODY


class DeadLetters(Property[State]):
    name = "B5"
    title = "dead letters"
    sentence = (
        "A rejected, expired or evicted message reaches its dead-letter exchange exactly once; "
        "if it cannot be routed there, it is dropped once."
    )
    split_by = Split("run and queue in which it died", by_source)
    kinds = ("dequeue", "dead_letter", "enqueue", "recovered", *LIFE_KINDS)

    def start(self) -> State:
        return State()

    def step(self, state: State, event: Event) -> None:
        kind = event.kind
        if kind in LIFE_KINDS:
            state.lives.note(event)
            return
        if kind == "recovered":
            note_restart(state.restarts, event)
            return
        source = source_of(event)
        if source is None or (kind == "dequeue" and not event.data.get("dies")):
            return
        deaths = state.queues.setdefault(((event.node, event.inc), source), Deaths())
        if kind == "dequeue":
            for position in positions(event):
                if not deaths.all.add(position):
                    known = deaths.open.get(position) or deaths.buried.get(position)
                    text = f"position {position} of {source[1]} died twice"
                    state.found.add(text, None if known is None else known.event, event)
                deaths.open[position] = Death(event)
        elif kind == "dead_letter":
            self._address(state, deaths, source, event)
        else:
            self._arrive(state, deaths, source, event)

    def _address(self, state: State, deaths: Deaths, source: QueueId, event: Event) -> None:
        to = text_of(event, "to")
        for position in positions(event):
            death = deaths.open.get(position)
            if death is None:
                text = f"a letter of position {position} of {source[1]} was sent on, which did not die just now"
                state.found.add(text, event)
                continue
            if to in death.owed or (not to and death.addressed):
                text = f"a letter of position {position} of {source[1]} was sent on twice"
                state.found.add(text, death.event, event)
            death.addressed = True
            if to:
                death.owed[to] = event
            else:
                _bury(deaths, position)

    def _arrive(self, state: State, deaths: Deaths, source: QueueId, event: Event) -> None:
        target = queue_of(event)
        assert target is not None
        for place, position in zip(positions(event), numbers(event.data.get("letters")), strict=False):
            death = deaths.open.get(position)
            if death is None or target[1] not in death.owed:
                known = death or deaths.buried.get(position)
                what = "again" if known is not None else "and it did not die"
                text = f"{target[1]} got a letter of position {position} of {source[1]} {what}"
                state.found.add(text, None if known is None else known.event, event)
                continue
            del death.owed[target[1]]
            death.letters.append((target, place))
            if not death.owed:
                _bury(deaths, position)

    def certain(self, state: State) -> list[Violation]:
        return state.found.certain()

    def finish(self, state: State) -> list[Violation]:
        for (_, source), deaths in state.queues.items():
            for position, death in deaths.open.items():
                if state.lives.may_miss(address(death.event)):
                    continue
                if not death.addressed:
                    text = f"position {position} of {source[1]} died, and no letter was sent on"
                    state.found.add(text, death.event)
                for to, event in death.owed.items():
                    text = f"position {position} of {source[1]} died, but {to} never got its letter"
                    state.found.add(text, death.event, event)
        for life, restart in successions(state.restarts, [life for life, _ in state.queues]):
            for (whose, source), deaths in state.queues.items():
                if whose == life and source in restart.found:
                    _not_both(state, source, deaths, restart)
        return state.found.close()


def _not_both(state: State, source: QueueId, deaths: Deaths, restart: Restart) -> None:
    again = {*positions(restart.found[source])}
    places: dict[QueueId, set[int]] = {}
    for position in sorted(again.intersection(deaths.buried)):
        for target, place in deaths.buried[position].letters:
            if target in restart.found:
                if target not in places:
                    places[target] = {*positions(restart.found[target])}
                if place in places[target]:
                    text = f"position {position} of {source[1]} was found again, and its letter in {target[1]} too"
                    proof = deaths.buried[position].event, restart.found[source], restart.found[target]
                    state.found.add(text, *proof)


def _bury(deaths: Deaths, position: int) -> None:
    """It is where it should be."""
    deaths.buried[position] = deaths.open.pop(position)
    if len(deaths.buried) > KEPT_MAX:
        del deaths.buried[next(iter(deaths.buried))]
