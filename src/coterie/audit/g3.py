"""G3 integrity: what is delivered was sent, unaltered, and at each member at most once.

A delivery is matched with the `send` of the same sender, number and (for unicasts) connection and receiver; checksum
and count must agree. In a merged trace a delivery may stand before its send: it waits for it until the end.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from coterie.audit.fold import BY_SENDER, Found, Property, Violation
from coterie.audit.lives import LIFE_KINDS, Lives, address
from coterie.audit.numbers import Numbers
from coterie.trace import Event, Json

Identity = tuple[str, Json, Json, int]
"""Sender, receiver ("all" for multicasts), connection, number."""


@dataclass(slots=True)
class State:
    sent: dict[Identity, Event] = field(default_factory=dict)
    waiting: dict[Identity, list[Event]] = field(default_factory=dict)
    """Deliveries whose send has not been seen yet."""
    delivered: dict[tuple[str, str, Json], Numbers] = field(default_factory=dict)
    """By receiver, sender and connection."""
    lives: Lives = field(default_factory=Lives)
    found: Found = field(default_factory=lambda: Found("G3"))


class Integrity(Property[State]):
    name = "G3"
    title = "integrity"
    sentence = "What is delivered was sent, unaltered, and at each member at most once."
    split_by = BY_SENDER
    kinds = ("send", "deliver", *LIFE_KINDS)

    def start(self) -> State:
        return State()

    def step(self, state: State, event: Event) -> None:
        sender, number = event.sender, event.first
        if event.kind == "deliver":
            if sender is not None and number is not None:
                self._deliver(state, event, sender, number)
        elif event.kind == "send":
            if sender is not None and number is not None:
                self._send(state, event, sender, number)
        else:
            state.lives.note(event)

    def _send(self, state: State, event: Event, sender: str, number: int) -> None:
        identity = (sender, event.data.get("to"), event.data.get("conn"), number)
        if identity in state.sent:
            state.found.add(f"{sender} gave number {number} to two bundles", state.sent[identity], event)
            return
        state.sent[identity] = event
        if state.waiting:
            for delivery in state.waiting.pop(identity, ()):
                _compare(state, event, delivery)

    def _deliver(self, state: State, event: Event, sender: str, number: int) -> None:
        receiver = f"{event.node}#{event.inc}"
        conn = event.data.get("conn")
        stream = (receiver, sender, conn)
        numbers = state.delivered.get(stream)
        if numbers is None:
            numbers = state.delivered[stream] = Numbers()
        if not numbers.add(number):
            state.found.add(f"{receiver} delivered number {number} of {_stream(event)} twice", event)
        identity = (sender, "all" if conn is None else receiver, conn, number)
        send = state.sent.get(identity)
        if send is None:
            state.waiting.setdefault(identity, []).append(event)
        elif send.sum != event.sum or send.count != event.count:
            _compare(state, send, event)

    def certain(self, state: State) -> list[Violation]:
        return state.found.certain()

    def finish(self, state: State) -> list[Violation]:
        for (sender, to, _, number), deliveries in state.waiting.items():
            if not state.lives.may_miss(sender):
                by = ", ".join(sorted({address(event) for event in deliveries}))
                what = f"number {number} of {_stream(deliveries[0])}"
                whom = "" if to == "all" else " to it"
                state.found.add(f"{by} delivered {what}, which was never sent{whom}", *deliveries)
        return state.found.close()


def _compare(state: State, send: Event, delivery: Event) -> None:
    what = f"number {send.first} of {_stream(delivery)}"
    if send.sum != delivery.sum:
        state.found.add(f"{address(delivery)} delivered {what} with another content than was sent", send, delivery)
    elif send.count != delivery.count:
        text = f"{address(delivery)} delivered {what} as {delivery.count} messages, but {send.count} were sent"
        state.found.add(text, send, delivery)


def _stream(delivery: Event) -> str:
    conn = delivery.data.get("conn")
    return f"{delivery.sender}'s multicasts" if conn is None else f"{delivery.sender}'s connection {conn}"
