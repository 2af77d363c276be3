"""G5 sending-view delivery: a multicast is delivered in the view in which it was sent (stamped).

Asked of the application's multicasts at members whose view is agreed. Both ends are checked, too: what a member stamps
or delivers, it does in the view that it has installed at that moment.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from coterie.audit import views
from coterie.audit.fold import BY_SENDER, Found, Property, Violation
from coterie.audit.lives import address
from coterie.audit.views import Who
from coterie.trace import Event


@dataclass(slots=True)
class State:
    views: dict[Who, str | None] = field(default_factory=dict)
    """The id of the view that each incarnation is in, if it is an agreed one."""
    sent: dict[str, dict[int, str]] = field(default_factory=dict)
    """By sender and number: the view in which it was stamped."""
    waiting: dict[str, dict[int, list[Event]]] = field(default_factory=dict)
    """Deliveries whose send has not been seen yet."""
    found: Found = field(default_factory=lambda: Found("G5"))


class SendingView(Property[State]):
    name = "G5"
    title = "sending-view delivery"
    sentence = "A multicast is delivered in the view in which it was sent."
    split_by = BY_SENDER
    kinds = ("view", "send", "deliver")

    def start(self) -> State:
        return State()

    def step(self, state: State, event: Event) -> None:
        if event.kind == "view":
            state.views[event.node, event.inc] = event.view if views.agreed(event) else None
            return
        here = state.views.get((event.node, event.inc))
        if here is None or event.view is None or event.sender is None or event.first is None:
            return
        data = event.data
        if data.get("conn") is not None or data.get("app") is False:
            return
        if event.view != here:
            did = "sent" if event.kind == "send" else f"delivered {event.sender}'s"
            text = f"{address(event)} {did} number {event.first} in {event.view}, but it is in {here}"
            state.found.add(text, event)
        if event.kind == "deliver":
            _deliver(state, event, event.sender, event.first)
        else:
            _send(state, event, event.sender, event.first, event.view)

    def certain(self, state: State) -> list[Violation]:
        return state.found.certain()

    def finish(self, state: State) -> list[Violation]:
        return state.found.close()  # what is still waiting was never sent: G3


def _deliver(state: State, event: Event, sender: str, number: int) -> None:
    sent = state.sent.get(sender)
    view = None if sent is None else sent.get(number)
    if view is None:
        state.waiting.setdefault(sender, {}).setdefault(number, []).append(event)
    elif view != event.view:
        _complain(state, view, event)


def _send(state: State, event: Event, sender: str, number: int, view: str) -> None:
    sent = state.sent.get(sender)
    if sent is None:
        sent = state.sent[sender] = {}
    if number in sent:
        return  # G3
    sent[number] = view
    if state.waiting:
        for delivery in state.waiting.get(sender, {}).pop(number, ()):
            if delivery.view != view:
                _complain(state, view, delivery, event)


def _complain(state: State, view: str, delivery: Event, send: Event | None = None) -> None:
    what = f"{delivery.sender}'s number {delivery.first}"
    text = f"{address(delivery)} delivered {what} in {delivery.view}, but it was sent in {view}"
    state.found.add(text, send, delivery)
