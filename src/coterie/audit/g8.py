"""G8 FIFO: per sender, in order, no gaps (multicasts).

A view says at which number a sender's stream starts for the member that installs it. From there on the application gets
that sender's bundles one after the other. A later view may start the stream again at a higher number, because the
member took the sender for dead, or in a merge: the view that does so is in the trace, and what lies between the two is
no gap; agreed views say for each member where its stream goes on. Bundles of protocols (data.app false) may overtake
those of the application, never the other way round.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from coterie.audit.fold import BY_SENDER, Found, Property, Violation
from coterie.audit.lives import address
from coterie.audit.numbers import Line
from coterie.trace import Event


@dataclass(slots=True)
class State:
    lines: dict[tuple[str, int, str], Line] = field(default_factory=dict)
    """By receiver (name, incarnation) and sender."""
    opened: dict[tuple[str, int, str], Event] = field(default_factory=dict)
    """The view that opened each."""
    found: Found = field(default_factory=lambda: Found("G8"))


class Fifo(Property[State]):
    name = "G8"
    title = "FIFO"
    sentence = "Each member delivers each sender's multicasts in order and without gaps."
    split_by = BY_SENDER
    kinds = ("view", "deliver")

    def start(self) -> State:
        return State()

    def step(self, state: State, event: Event) -> None:
        if event.kind == "view":
            self._view(state, event)
            return
        sender, number = event.sender, event.first
        if sender is None or number is None or event.data.get("conn") is not None:
            return
        key = (event.node, event.inc, sender)
        line = state.lines.get(key)
        if line is None:
            line = state.lines[key] = Line()
            if sender != address(event):
                state.found.add(f"{address(event)} delivered {sender}'s number {number}, but no view opened it", event)
        before = line.last
        problem = line.deliver(number, event.data.get("app") is not False, event)
        if problem is not None:
            text = f"{address(event)} delivered {sender}'s {problem}"
            state.found.add(text, state.opened.get(key), before, event)

    def _view(self, state: State, event: Event) -> None:
        start = event.data.get("start")
        if not isinstance(start, dict):
            return
        for sender, number in start.items():
            if isinstance(number, int):
                key = (event.node, event.inc, sender)
                line = state.lines.get(key)
                if line is None:
                    line = state.lines[key] = Line()
                line.open(number)
                state.opened[key] = event

    def certain(self, state: State) -> list[Violation]:
        return state.found.certain()

    def finish(self, state: State) -> list[Violation]:
        return state.found.close()
