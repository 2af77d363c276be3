"""One run as it arrives: judged on the way, with the verdict that its files together would get.

Events come in any order between incarnations; those of one incarnation may come late, out of order or twice. What
stands behind a gap waits, and a gap that has not closed within a time is a hole: the incarnation is taken to end there,
as files.py does it. Time is given from outside, and is that of arrival: no node's clock decides anything.

A violation that no later event can undo is told as soon as it is there, once. All others are told when the run is over:
it has ended (`end`, or every incarnation has), and nothing has come for a while; or nothing has come for long.

What is kept grows as the folds' states do (docs/properties.md: cost), and with what waits behind gaps, within a bound.
"""

from __future__ import annotations

import io
import pickle
from collections.abc import Iterable
from dataclasses import dataclass

from coterie import __version__
from coterie.audit import properties
from coterie.audit.files import ENDS
from coterie.audit.fold import Checker, Order, Violation
from coterie.audit.views import Who
from coterie.errors import UserError
from coterie.trace import Event


@dataclass(frozen=True, slots=True)
class Patience:
    """How long to wait for what may still come."""

    lateness: float = 15.0
    """Seconds until a gap is a hole, and until a run that has ended is over."""
    idle: float = 3600.0
    """Seconds without any event until a run that has not ended is over. A group at rest writes nothing."""
    waiting_max: int = 200_000
    """Events that wait behind the gaps of one incarnation: with more, the gap is a hole at once."""


class Incarnation:
    """How far one incarnation has come."""

    __slots__ = ("ahead", "cut", "last", "limit", "next", "since")

    def __init__(self) -> None:
        self.next = 0
        """The number that is due: everything below it has been judged."""
        self.last: Event | None = None
        """The one before it."""
        self.ahead: dict[int, Event] = {}
        """What stands behind a gap."""
        self.since = 0.0
        """When the gap was first seen, if there is one."""
        self.limit: int | None = None
        """Of this number there are two different events: nothing from there on can be believed."""
        self.cut = False
        """It is taken to end here."""

    @property
    def over(self) -> bool:
        return self.cut or (self.last is not None and self.last.kind in ENDS)


class LiveRun:
    """Feed it what arrives; ask it what is `certain`; when it is `over`, what is left of the verdict is in `finish`."""

    __slots__ = (
        "_arrived", "_causal", "_checker", "_end", "_file", "_incarnations", "_per_node",
        "events", "files", "first", "ignored", "last", "late", "name", "patience", "real", "told",
    )  # fmt: skip

    def __init__(self, name: str, patience: Patience | None = None) -> None:
        self.name = name
        self.patience = patience or Patience()
        causal = [fold for fold in properties(causal=True) if fold.order is Order.CAUSAL]
        names = {fold.name for fold in causal}
        self._checker = Checker([fold for fold in properties() if fold.name not in names])
        # Two folds are stricter on a simulated run that is whole and in one file. Whether it is, the end tells.
        self._causal: Checker | None = Checker(causal)
        self._per_node = Checker([fold for fold in properties() if fold.name in names])
        self._incarnations: dict[Who, Incarnation] = {}
        self._file: str | None = None
        self._arrived = 0.0
        self._end = False
        self.real = False
        """Its events have a wall clock."""
        self.events = self.files = 0
        self.ignored = 0
        """Events behind a hole, or there twice."""
        self.late = 0
        """Those of them that came when their place had been given up already."""
        self.told = 0
        """Violations, up to now."""
        self.first = self.last = 0.0
        """Times of the first and the last event, by the wall clock if there is one."""

    @property
    def causal(self) -> bool:
        """Simulated, whole up to here, and in one file: nothing stands before its cause."""
        return self._causal is not None

    @property
    def incarnations(self) -> list[Who]:
        """Those of which something has come."""
        return list(self._incarnations)

    def feed(self, chunks: Iterable[tuple[str, Iterable[Event]]], now: float) -> list[Event]:
        """Take in what has come since the last time: names of files, each with events in the order of that file.

        Returns the events that came too late: their incarnation had been taken to end before them.
        """
        events: list[Event] = []
        for file, chunk in chunks:
            if file != self._file:
                self.files += 1
                if self._file is not None:
                    self._causal = None
                self._file = file
            events += chunk
        if not events:
            return []
        self._arrived = now
        self._note(events)
        if self._causal is not None and not self.real and self._in_order(events):
            for event in events:
                self._step(self._incarnations[event.node, event.inc], event)
            return []
        self._causal = None
        late: list[Event] = []
        touched = {self._wait(event, late): None for event in events}
        for incarnation in touched:
            self._drain(incarnation, now)
        self.late += len(late)
        return late

    def _note(self, events: list[Event]) -> None:
        times = [event.t if event.wall is None else event.wall for event in events]
        self.first = min(times) if not self.events else min(self.first, min(times))
        self.last = max(times) if not self.events else max(self.last, max(times))
        self.events += len(events)
        self.real = self.real or any(event.wall is not None for event in events)
        for who in dict.fromkeys((event.node, event.inc) for event in events):
            if who not in self._incarnations:
                self._incarnations[who] = Incarnation()

    def _in_order(self, events: list[Event]) -> bool:
        """Whether each incarnation's numbers go on from where they are, one after the other."""
        due = {who: incarnation.next for who, incarnation in self._incarnations.items()}
        for event in events:
            who = (event.node, event.inc)
            if event.n != due[who]:
                return False
            due[who] += 1
        return True

    def _step(self, incarnation: Incarnation, event: Event) -> None:
        incarnation.next += 1
        incarnation.last = event
        if event.kind == "end":
            self._end = True
        self._judge(event)

    def _judge(self, event: Event) -> None:
        self._checker.feed(event)
        self._per_node.feed(event)
        if self._causal is not None:
            self._causal.feed(event)

    def _wait(self, event: Event, late: list[Event]) -> Incarnation:
        incarnation = self._incarnations[event.node, event.inc]
        number = event.n
        known = incarnation.ahead.get(number) if number != incarnation.next - 1 else incarnation.last
        if known is None and number >= incarnation.next and not incarnation.cut:
            incarnation.ahead[number] = event
            return incarnation
        self.ignored += 1
        if incarnation.cut:
            if number >= incarnation.next:
                late.append(event)
        elif number < 0 or (known is not None and known != event):
            # What was judged already stays judged: the trace ends there at the earliest.
            at = max(number, incarnation.next)
            incarnation.limit = at if incarnation.limit is None else min(at, incarnation.limit)
        return incarnation

    def _drain(self, incarnation: Incarnation, now: float) -> None:
        began = incarnation.next
        while incarnation.next in incarnation.ahead and incarnation.next != incarnation.limit:
            self._step(incarnation, incarnation.ahead.pop(incarnation.next))
        if incarnation.next == incarnation.limit:
            self._cut(incarnation)
        elif incarnation.ahead and (incarnation.next != began or not incarnation.since):
            incarnation.since = now
        elif not incarnation.ahead:
            incarnation.since = 0.0

    def _cut(self, incarnation: Incarnation) -> None:
        last = incarnation.last or next(iter(incarnation.ahead.values()), None)
        self.ignored += len(incarnation.ahead)
        incarnation.ahead.clear()
        if last is not None and not incarnation.cut:
            self._causal = None
            self._judge(Event(self.name, last.node, last.inc, incarnation.next, last.t, "truncated", last.wall))
        incarnation.cut = True

    @property
    def due(self) -> float:
        """When to call `advance`, if nothing comes before."""
        if self._causal is not None and self._end:
            return self._arrived  # a file comes whole: this was all of it
        ended = self._end or all(incarnation.over for incarnation in self._incarnations.values())
        wait = self.patience.lateness if ended else self.patience.idle
        gaps = [each.since + self.patience.lateness for each in self._incarnations.values() if each.ahead]
        return min([self._arrived + wait, *gaps])

    def advance(self, now: float) -> bool:
        """What is missing by now is not waited for any longer. Whether the run is over."""
        patience = self.patience
        for incarnation in self._incarnations.values():
            ahead = incarnation.ahead
            if ahead and (now >= incarnation.since + patience.lateness or len(ahead) > patience.waiting_max):
                self._cut(incarnation)
        return now >= self.due

    def certain(self) -> list[Violation]:
        """What does not hold already; each violation once."""
        # Which of the two strengths counts is certain only if the run is a real one.
        found = self._checker.certain() + (self._per_node.certain() if self.real else [])
        self.told += len(found)
        return found

    def finish(self) -> list[Violation]:
        """The verdict, without what `certain` has told. Nothing may be fed after that."""
        for incarnation in self._incarnations.values():
            if incarnation.ahead or (self.real and not incarnation.over):
                self._cut(incarnation)
        found = self._checker.finish() + (self._causal or self._per_node).finish()
        self.told += len(found)
        return found


def dump(run: LiveRun) -> bytes:
    """The run with all that it knows, for `load` of the same version of this code."""
    buffer = io.BytesIO()
    pickler = pickle.Pickler(buffer, pickle.HIGHEST_PROTOCOL)
    pickler.dispatch_table = {Event: _reduced}  # half the time and size of what a dataclass would do
    pickler.dump({name: getattr(run, name) for name in LiveRun.__slots__})
    return __version__.encode() + b"\n" + buffer.getvalue()


def load(data: bytes) -> LiveRun:
    """Raises UserError if another version of this code wrote it."""
    version, _, state = data.partition(b"\n")
    if version != __version__.encode():
        text = f"the checkpoint was written by coterie {version.decode()}, this is {__version__}: begin a new one"
        raise UserError(text)
    run = LiveRun.__new__(LiveRun)
    for name, value in pickle.loads(state).items():
        setattr(run, name, value)
    return run


def _reduced(event: Event) -> tuple[type[Event], tuple[object, ...]]:
    return Event, (
        event.run, event.node, event.inc, event.n, event.t, event.kind, event.wall, event.view, event.pos, event.sender,
        event.first, event.last, event.count, event.sum, event.queue, event.data,
    )  # fmt: skip
