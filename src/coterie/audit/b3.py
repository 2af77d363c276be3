"""B3 accepted for good: once an accept took effect the message is never delivered again, whatever crashes.

Within one life of a node it takes effect with its dequeue: nobody acquires the position, or is handed it, after that.
Beyond that life it has taken effect once the dequeue is on disk (`synced`): no later life finds the position in its
queue. A message that is not persistent never comes back at all.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from coterie.audit.fold import Found, Property, Violation
from coterie.audit.numbers import Numbers
from coterie.audit.queues import BY_QUEUE, Life, QueueId, positions, queue_of, text_of, whole_of
from coterie.trace import Event

PROOFS_MAX = 100_000
"""Positions of one queue whose accepts are remembered, so that they can be shown."""


class Accepted:
    """Of one queue, in one life."""

    __slots__ = ("all", "events", "safe")

    def __init__(self) -> None:
        self.all = Numbers()
        self.safe = Numbers()
        """Those whose dequeue is on disk."""
        self.events: dict[int, Event] = {}

    def add(self, event: Event) -> None:
        for position in positions(event):
            self.all.add(position)
            self.events[position] = event
        while len(self.events) > PROOFS_MAX:
            del self.events[next(iter(self.events))]


@dataclass(slots=True)
class State:
    queues: dict[tuple[Life, QueueId], Accepted] = field(default_factory=dict)
    waiting: dict[Life, deque[tuple[int, Accepted, Event]]] = field(default_factory=dict)
    """Dequeues that are not on disk yet: where the log has them."""
    restored: dict[tuple[Life, QueueId], Event] = field(default_factory=dict)
    """What each life found."""
    found: Found = field(default_factory=lambda: Found("B3"))


class AcceptedForGood(Property[State]):
    name = "B3"
    title = "accepted for good"
    sentence = "Once an accept took effect, the message is never delivered again, whatever crashes and is restored."
    split_by = BY_QUEUE
    kinds = ("recovered", "dequeue", "acquire", "handed", "read", "synced")

    def start(self) -> State:
        return State()

    def step(self, state: State, event: Event) -> None:
        kind, life = event.kind, (event.node, event.inc)
        if kind == "synced":
            waiting = state.waiting.get(life)
            while waiting and waiting[0][0] <= (event.last or 0):
                _, accepted, dequeue = waiting.popleft()
                for position in positions(dequeue):
                    accepted.safe.add(position)
            return
        queue = queue_of(event)
        if queue is None:
            return
        if kind == "recovered":
            state.restored[life, queue] = event
        elif kind == "dequeue":
            if event.data.get("reason") == "accepted":
                accepted = state.queues.setdefault((life, queue), Accepted())
                accepted.add(event)
                state.waiting.setdefault(life, deque()).append((whole_of(event, "log") or 0, accepted, event))
        elif (life, queue) in state.queues and (kind != "read" or "holder" in event.data):
            self._delivered(state, state.queues[life, queue], event)

    def _delivered(self, state: State, accepted: Accepted, event: Event) -> None:
        for position in positions(event):
            if position in accepted.all:
                what = "acquired" if event.kind == "acquire" else "was handed"
                text = f"{text_of(event, 'holder')} {what} position {position} of {event.queue}, which was accepted"
                state.found.add(text, accepted.events.get(position), event)

    def certain(self, state: State) -> list[Violation]:
        return state.found.certain()

    def finish(self, state: State) -> list[Violation]:
        for ((node, inc), queue), event in sorted(state.restored.items(), key=lambda item: item[0]):
            earlier = sorted(key for key in state.queues if key[1] == queue and key[0][0] == node and key[0][1] < inc)
            for position in positions(event):
                for key in earlier:
                    accepted = state.queues[key]
                    if position in accepted.safe:
                        text = (
                            f"{node}#{inc} found position {position} of {event.queue} again, "
                            f"which was accepted in {key[0][0]}#{key[0][1]}, and that was on disk"
                        )
                        state.found.add(text, accepted.events.get(position), event)
                        break
        return state.found.close()
