"""B2 one holder: a message is acquired by at most one holder at a time, and a broker hands out only what it holds.

Acquired is what stands in the queue and is nobody's; what has left it, or was never in it, cannot be acquired. What is
handed to a client is held by that client's channel; with basic.get and no_ack it has left the queue by then, for that
very client. What is read through a lease, the lease holds. What was accepted before is a matter of B3.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from coterie.audit.fold import Found, Property, Violation
from coterie.audit.numbers import Numbers
from coterie.audit.queues import BY_QUEUE, Life, QueueId, positions, queue_of, text_of
from coterie.trace import Event

Holding = tuple[str, Event]


class Hands:
    """Who has what of one queue."""

    __slots__ = ("accepted", "got", "held", "here")

    def __init__(self) -> None:
        self.here: set[int] = set()
        self.held: dict[int, Holding] = {}
        self.got: dict[int, Holding] = {}
        """Gone to whoever acknowledges nothing, and perhaps not handed to it yet."""
        self.accepted = Numbers()


@dataclass(slots=True)
class State:
    queues: dict[tuple[Life, QueueId], Hands] = field(default_factory=dict)
    found: Found = field(default_factory=lambda: Found("B2"))


class OneHolder(Property[State]):
    name = "B2"
    title = "one holder"
    sentence = "A message is acquired by at most one holder at a time, and a broker hands out only what it holds."
    split_by = BY_QUEUE
    kinds = ("recovered", "enqueue", "acquire", "handed", "read", "release", "dequeue")

    def start(self) -> State:
        return State()

    def step(self, state: State, event: Event) -> None:
        queue = queue_of(event)
        if queue is None:
            return
        key = (event.node, event.inc), queue
        hands = state.queues.get(key)
        if hands is None:
            hands = state.queues[key] = Hands()
        kind = event.kind
        if kind in ("enqueue", "recovered"):
            hands.here.update(positions(event))
        elif kind == "acquire":
            self._acquire(state, hands, event)
        elif kind == "handed" or (kind == "read" and "holder" in event.data):
            self._hand(state, hands, event)
        elif kind == "release":
            for position in positions(event):
                hands.held.pop(position, None)
        elif kind == "dequeue":
            self._dequeue(hands, event)

    def _acquire(self, state: State, hands: Hands, event: Event) -> None:
        holder = text_of(event, "holder")
        for position in positions(event):
            other = hands.held.get(position)
            if other is not None:
                text = f"{holder} acquired position {position} of {event.queue}, which {other[0]} held"
                state.found.add(text, other[1], event)
            elif position not in hands.here and position not in hands.accepted:
                text = f"{holder} acquired position {position} of {event.queue}, where nothing is"
                state.found.add(text, event)
            hands.held[position] = holder, event

    def _hand(self, state: State, hands: Hands, event: Event) -> None:
        holder = text_of(event, "holder")
        for position in positions(event):
            held = hands.held.get(position) or hands.got.pop(position, None)
            if (held is None or held[0] != holder) and position not in hands.accepted:
                whose = "nobody held" if held is None else f"{held[0]} held"
                text = f"{holder} was handed position {position} of {event.queue}, which {whose}"
                state.found.add(text, None if held is None else held[1], event)

    def _dequeue(self, hands: Hands, event: Event) -> None:
        reason = event.data.get("reason")
        for position in positions(event):
            hands.here.discard(position)
            held = hands.held.pop(position, None)
            if reason == "got" and held is not None:
                hands.got[position] = held
            elif reason == "accepted":
                hands.accepted.add(position)

    def certain(self, state: State) -> list[Violation]:
        return state.found.certain()

    def finish(self, state: State) -> list[Violation]:
        return state.found.close()
