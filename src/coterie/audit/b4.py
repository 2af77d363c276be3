"""B4 requeued once: what a lost consumer, connection or broker held goes back once, at its place, flagged if need be.

- Released is what somebody held, and once for each time that it was acquired.
- What was handed to a client is flagged redelivered when it is released, when it is acquired again, and in what the
  next life of its node finds (unless the disk was so full that it took nothing at all of the life before).
- It goes back to its place: in a queue that is no priority queue nobody acquires a higher position while a lower one
  that came back is ready.
- A channel that is closed holds nothing in the end.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from heapq import heappop, heappush

from coterie.audit.fold import Found, Property, Violation
from coterie.audit.lives import LIFE_KINDS, Lives
from coterie.audit.queues import (
    BY_QUEUE,
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


class Hands:
    """Who has what of one queue, in one life."""

    __slots__ = ("_heap", "back", "held", "ordered", "seen")

    def __init__(self) -> None:
        self.held: dict[int, tuple[str, Event]] = {}
        self.seen: dict[int, Event] = {}
        """Still in the queue, and handed to a client at some time."""
        self.back: dict[int, Event] = {}
        """Ready again: the event that says so."""
        self._heap: list[int] = []
        """Their positions, and those of some that are not any more."""
        self.ordered = True
        """Positions are acquired as they rise."""

    def came_back(self, event: Event) -> None:
        for position in positions(event):
            self.back[position] = event
            heappush(self._heap, position)

    def lowest(self) -> int | None:
        """The first of those that came back."""
        heap = self._heap
        while heap and heap[0] not in self.back:
            heappop(heap)
        return heap[0] if heap else None


@dataclass(slots=True)
class State:
    queues: dict[tuple[Life, QueueId], Hands] = field(default_factory=dict)
    closed: dict[str, Event] = field(default_factory=dict)
    """Channels."""
    restarts: dict[Life, Restart] = field(default_factory=dict)
    lives: Lives = field(default_factory=Lives)
    given: dict[QueueId, dict[int, Event]] = field(default_factory=dict)
    """By clustered brokers, to clients, not flagged."""
    found: Found = field(default_factory=lambda: Found("B4"))


class RequeuedOnce(Property[State]):
    name = "B4"
    title = "requeued once"
    sentence = (
        "What a lost consumer, connection or broker held is requeued exactly once, at its place, "
        "flagged redelivered if it may have been delivered."
    )
    split_by = BY_QUEUE
    kinds = ("recovered", "queue", "acquire", "handed", "release", "dequeue", "client", "given", *LIFE_KINDS)

    def start(self) -> State:
        return State()

    def step(self, state: State, event: Event) -> None:
        kind = event.kind
        if kind in LIFE_KINDS:
            state.lives.note(event)
            return
        if kind == "client":
            if event.data.get("what") == "channel" and event.data.get("state") == "closed":
                state.closed[text_of(event, "channel")] = event
            return
        if kind == "recovered":
            note_restart(state.restarts, event)
        queue = queue_of(event)
        if queue is None:
            return
        if kind == "given":
            self._give(state, queue, event)
            return
        key = (event.node, event.inc), queue
        hands = state.queues.get(key)
        if hands is None:
            hands = state.queues[key] = Hands()
        if kind == "acquire":
            self._acquire(state, hands, event)
        elif kind == "handed":
            hands.seen.update(dict.fromkeys(positions(event), event))
        elif kind == "release":
            self._release(state, hands, event)
        elif kind == "dequeue":
            for position in positions(event):
                for known in (hands.held, hands.seen, hands.back):
                    known.pop(position, None)
        elif kind == "recovered":
            hands.came_back(event)
            hands.seen = dict.fromkeys(numbers(event.data.get("redelivered")), event)
        else:
            hands.ordered = event.data.get("type") != "priority"

    def _give(self, state: State, queue: QueueId, event: Event) -> None:
        """Whichever of two came first: the other one had to be flagged."""
        given = state.given.setdefault(queue, {})
        flagged = {*numbers(event.data.get("redelivered"))}
        for position in positions(event):
            if position not in flagged:
                other = given.setdefault(position, event)
                if other is not event:
                    text = f"position {position} of {event.queue} was given to clients twice, and neither was told"
                    state.found.add(text, other, event)

    def _acquire(self, state: State, hands: Hands, event: Event) -> None:
        holder, taken = text_of(event, "holder"), [*positions(event)]
        flagged = {*numbers(event.data.get("redelivered"))}
        for position in taken:
            hands.back.pop(position, None)
            if position in hands.seen and position not in flagged:
                text = f"{holder} acquired position {position} of {event.queue}, not flagged, but it had been delivered"
                state.found.add(text, hands.seen[position], event)
            hands.held[position] = holder, event
        if hands.ordered and taken and not holder.startswith("lease "):  # what a lease takes is given to nobody
            passed = hands.lowest()
            if passed is not None and passed < max(taken):
                text = f"{holder} acquired position {max(taken)} of {event.queue} before {passed}, which had come back"
                state.found.add(text, hands.back[passed], event)

    def _release(self, state: State, hands: Hands, event: Event) -> None:
        flagged = {*numbers(event.data.get("redelivered"))}
        for position in positions(event):
            if hands.held.pop(position, None) is None:
                text = f"position {position} of {event.queue} was released, and nobody held it"
                state.found.add(text, hands.back.get(position), event)
            elif position in hands.seen and position not in flagged:
                text = f"position {position} of {event.queue} was released, not flagged, but it had been delivered"
                state.found.add(text, hands.seen[position], event)
        hands.came_back(event)

    def certain(self, state: State) -> list[Violation]:
        return state.found.certain()

    def finish(self, state: State) -> list[Violation]:
        for ((node, inc), queue), hands in state.queues.items():
            if not state.lives.ended(f"{node}#{inc}"):
                for position, (holder, event) in hands.held.items():
                    if holder in state.closed:
                        text = f"position {position} of {queue[1]} is still held by {holder}, which is closed"
                        state.found.add(text, event, state.closed[holder])
        for life, restart in successions(state.restarts, [life for life, _ in state.queues]):
            if restart.previous != state.restarts[life].start:
                continue  # the disk was so full that it took nothing of that life, so nobody can know of it
            for queue, found in restart.found.items():
                hands = state.queues.get((life, queue)) or Hands()
                unflagged = {*positions(found)}.difference(numbers(found.data.get("redelivered")))
                for position in sorted(unflagged.intersection(hands.seen)):
                    text = (
                        f"{found.node}#{found.inc} found position {position} of {queue[1]}, not flagged, "
                        f"but it had been delivered"
                    )
                    state.found.add(text, hands.seen[position], found)
        return state.found.close()
