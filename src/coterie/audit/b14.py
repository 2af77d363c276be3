"""B14 one position, one message: a position that was visible to anyone names the same message for ever.

Judged by what clustered brokers hand to clients (`given`) and what readers read (`read`), wherever and whenever: the
same position of the same queue always has the same content.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from coterie.audit.fold import Found, Property, Violation
from coterie.audit.queues import BY_QUEUE, QueueId, positions, queue_of
from coterie.trace import Event, Json


@dataclass(slots=True)
class State:
    seen: dict[QueueId, dict[int, tuple[Json, Event]]] = field(default_factory=dict)
    found: Found = field(default_factory=lambda: Found("B14"))


class OnePositionOneMessage(Property[State]):
    name = "B14"
    title = "one position, one message"
    sentence = "A position that was visible to anyone names the same message for ever."
    split_by = BY_QUEUE
    kinds = ("given", "read")

    def start(self) -> State:
        return State()

    def step(self, state: State, event: Event) -> None:
        queue, sums = queue_of(event), event.data.get("sums")
        if queue is None or not isinstance(sums, list):
            return
        seen = state.seen.setdefault(queue, {})
        for position, mine in zip(positions(event), sums, strict=False):
            known = seen.setdefault(position, (mine, event))
            if known[0] != mine:
                text = f"position {position} of {event.queue} is one message here and another there"
                state.found.add(text, known[1], event)

    def certain(self, state: State) -> list[Violation]:
        return state.found.certain()

    def finish(self, state: State) -> list[Violation]:
        return state.found.close()
