"""G4 self-delivery: a member delivers its own multicasts, or dies.

Asked at two moments: a member that lives at the end of the run (`end`) has delivered all multicasts that its
application sent; and a member that installs an agreed view has, before it, delivered all that it sent until then.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from coterie.audit import views
from coterie.audit.fold import BY_NODE, Found, Property, Violation
from coterie.audit.lives import address
from coterie.audit.views import Who
from coterie.trace import Event


class Own:
    """What one incarnation sent."""

    __slots__ = ("address", "undelivered")

    def __init__(self, address: str) -> None:
        self.address = address
        self.undelivered: dict[int, Event] = {}


@dataclass(slots=True)
class State:
    own: dict[Who, Own] = field(default_factory=dict)
    end: Event | None = None
    found: Found = field(default_factory=lambda: Found("G4"))


class SelfDelivery(Property[State]):
    name = "G4"
    title = "self-delivery"
    sentence = "A member delivers its own multicasts, in an agreed view before the next one, or it dies."
    split_by = BY_NODE
    kinds = ("send", "deliver", "view", "end")

    def start(self) -> State:
        return State()

    def step(self, state: State, event: Event) -> None:
        kind = event.kind
        if kind == "deliver":
            own = state.own.get((event.node, event.inc))
            if own is not None and own.undelivered and own.address == event.sender and event.data.get("conn") is None:
                own.undelivered.pop(event.first or 0, None)
        elif kind == "send":
            data = event.data
            if data.get("to") == "all" and data.get("app") is not False and event.first is not None:
                own = state.own.get((event.node, event.inc))
                if own is None:
                    own = state.own[event.node, event.inc] = Own(address(event))
                own.undelivered[event.first] = event
        elif kind == "view":
            if views.agreed(event):
                _next_view(state, event)
        else:
            state.end = event

    def certain(self, state: State) -> list[Violation]:
        return state.found.certain()

    def finish(self, state: State) -> list[Violation]:
        live = None if state.end is None else state.end.data.get("live")
        if isinstance(live, list):
            for own in state.own.values():
                if own.undelivered and own.address in live:
                    number = min(own.undelivered)
                    text = f"{own.address} lives at the end and never delivered its own number {number}"
                    state.found.add(text, own.undelivered[number], state.end)
        return state.found.close()


def _next_view(state: State, event: Event) -> None:
    own = state.own.get((event.node, event.inc))
    if own is not None and own.undelivered:
        number = min(own.undelivered)
        sent = own.undelivered[number]
        where = f", sent in {sent.view}" if sent.view is not None else ""
        text = f"{own.address} installed {event.view} before it delivered its own number {number}{where}"
        state.found.add(text, sent, event)
        own.undelivered.clear()
