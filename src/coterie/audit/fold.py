"""A property is a fold over the events of one run: start, step, finish.

The same object checks a list, a simulated run as it goes, or one part of a stream.

What a fold may rely on, and no more: the events of each incarnation of each node come in the order of `n`. How the
nodes are interleaved must not change the verdict, unless the property says that it needs causal order (`Order.CAUSAL`).
A fold also gives the same verdict when its run is split by its key: see `Split`. And it never calls the missing events
of a dead node a violation: see lives.py.
"""

from __future__ import annotations

import builtins
from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any, ClassVar, Generic, TypeVar

from coterie.audit.lives import LIFE_KINDS
from coterie.trace import Event

State = TypeVar("State")

PROOF_MAX = 8
"""Events that one violation names at most."""
FOUND_MAX = 25
"""Violations that one fold spells out; of the others it says how many there are."""


class Order(Enum):
    """In what order a fold needs its events."""

    PER_NODE = "each incarnation's events by n; the nodes interleaved in any way"
    CAUSAL = "as PER_NODE, and no event before one that caused it: the order in which a simulated run happens"


NOBODY: Hashable = object()
"""The key of an event that a fold does not look at, although it is of a kind that it reads."""


@dataclass(frozen=True, slots=True)
class Split:
    """How a run may be cut into parts that are folded apart from each other.

    `key` gives the part that an event belongs to, always within its run; None means that every part of the run needs
    it (a view, a crash), NOBODY that none does. So a fold over the whole run and folds over its parts find the same
    violations.
    """

    name: str
    key: Callable[[Event], Hashable | None]


def _by_run(event: Event) -> Hashable | None:
    return event.run


def _by_node(event: Event) -> Hashable | None:
    return None if event.kind in ("fault", "end") else (event.node, event.inc)


def _by_sender(event: Event) -> Hashable | None:
    return None if event.kind in _OF_ALL else event.sender


def _by_view(event: Event) -> Hashable | None:
    return None if event.kind in _OF_ALL else event.view


_OF_ALL = frozenset({"view", *LIFE_KINDS})
BY_RUN = Split("run", _by_run)
"""What one part does may concern any other."""
BY_NODE = Split("run and node", _by_node)
"""Each incarnation is judged by what it did itself, and by what the one who watches the run says of it."""
BY_SENDER = Split("run and sender", _by_sender)
"""What was made of one sender's bundles; views, and who lives, concern all of them."""
BY_VIEW = Split("run and view", _by_view)
"""What was done in one view; views, and who lives, concern all of them."""


@dataclass(frozen=True, slots=True)
class Violation:
    """A property that does not hold, and the events that prove it."""

    property: str
    text: str
    events: tuple[Event, ...]

    @builtins.property
    def run(self) -> str:
        return self.events[0].run if self.events else ""

    def __str__(self) -> str:
        where = " ".join(f"{e.node}#{e.inc}:{e.n}" for e in self.events)
        return f"{self.property}: {self.text} [{where}]"


class Found:
    """The violations that a fold has come across, bounded: a broken run can hold one for each of its events."""

    __slots__ = ("_left_out", "_name", "violations")

    def __init__(self, name: str) -> None:
        self._name = name
        self._left_out = 0
        self.violations: list[Violation] = []

    def add(self, text: str, *events: Event | None) -> None:
        if len(self.violations) < FOUND_MAX:
            proof = tuple(event for event in events if event is not None)[:PROOF_MAX]
            self.violations.append(Violation(self._name, text, proof))
        else:
            self._left_out += 1

    def certain(self) -> list[Violation]:
        """Those that will stand at the same place in what `close` gives; all but the one that may yet have to count."""
        return self.violations[: FOUND_MAX - 1]

    def close(self) -> list[Violation]:
        """All of them; the last one says how many more there were."""
        if self._left_out:
            last = self.violations[-1]
            more = f"{last.text} (and {self._left_out} more violations like these)"
            return [*self.violations[:-1], Violation(last.property, more, last.events)]
        return self.violations


class Property(ABC, Generic[State]):
    """One sentence of docs/properties.md as code. Its objects hold no state of a run: that is in `State`."""

    name: ClassVar[str]
    """As the documents call it: "G3"."""
    title: ClassVar[str]
    sentence: ClassVar[str]
    """What holds, for a person."""
    split_by: ClassVar[Split]
    kinds: ClassVar[tuple[str, ...]]
    """The kinds of events it reads; it is not called for others."""
    order: Order = Order.PER_NODE

    @abstractmethod
    def start(self) -> State:
        """The state before the first event of a run (or of one part of it)."""

    @abstractmethod
    def step(self, state: State, event: Event) -> None:
        """Take one event into account, changing `state`."""

    def certain(self, state: State) -> list[Violation]:
        """What does not hold already, whatever comes: `finish` will begin with these. None, if that cannot be said."""
        return []

    @abstractmethod
    def finish(self, state: State) -> list[Violation]:
        """What does not hold, after the last event."""


_CheckerState = tuple[list[tuple[Property[Any], Any]], dict[str, int], int]
"""Folds with their states; by their names, how many violations were told; events."""


class Checker:
    """Steps several properties along one run, event by event; each sees only the kinds that it reads.

    It can be pickled on the way, with the states of its folds.
    """

    __slots__ = ("_by_kind", "_folds", "_told", "events")

    def __init__(self, properties: Iterable[Property[Any]]) -> None:
        self.__setstate__(([(p, p.start()) for p in properties], {}, 0))

    def __getstate__(self) -> _CheckerState:
        return self._folds, self._told, self.events

    def __setstate__(self, state: _CheckerState) -> None:
        self._folds, self._told, self.events = state
        self._by_kind: dict[str, list[tuple[Callable[[Any, Event], None], Any]]] = {}
        for fold, fold_state in self._folds:
            for kind in fold.kinds:
                self._by_kind.setdefault(kind, []).append((fold.step, fold_state))

    def feed(self, event: Event) -> None:
        self.events += 1
        steps = self._by_kind.get(event.kind)
        if steps is not None:
            for step, state in steps:
                step(state, event)

    def certain(self) -> list[Violation]:
        """What does not hold already, whatever comes; each violation once, however often this is asked."""
        fresh: list[Violation] = []
        for fold, state in self._folds:
            told = self._told.get(fold.name, 0)
            fresh += fold.certain(state)[told:]
            self._told[fold.name] = max(told, len(fold.certain(state)))
        return fresh

    def finish(self) -> list[Violation]:
        """What does not hold, except for what `certain` has told."""
        return [
            violation for fold, state in self._folds for violation in fold.finish(state)[self._told.get(fold.name, 0) :]
        ]


def check(events: Iterable[Event], properties: Sequence[Property[Any]]) -> list[Violation]:
    """Check any number of runs, whose events may be mixed."""
    runs: dict[str, Checker] = {}
    for event in events:
        checker = runs.get(event.run)
        if checker is None:
            checker = runs[event.run] = Checker(properties)
        checker.feed(event)
    return [violation for checker in runs.values() for violation in checker.finish()]


def split(events: Sequence[Event], fold: Property[Any]) -> list[list[Event]]:
    """The parts of one run that `fold` may check apart from each other, each in the order of the run."""
    read = ((fold.split_by.key(event), event) for event in events if event.kind in fold.kinds)
    keyed = [(key, event) for key, event in read if key is not NOBODY]
    parts: dict[Hashable, list[Event]] = {key: [] for key, _ in keyed if key is not None}
    for key, event in keyed:
        if key is not None:
            parts[key].append(event)
        else:
            for part in parts.values():
                part.append(event)
    return list(parts.values()) or [[event for _, event in keyed]]
