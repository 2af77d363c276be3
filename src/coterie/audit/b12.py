"""B12 unacked is held: at rest, the unacked messages of a queue are exactly those that clients and leases hold.

`unsettled` says what each channel's client has to answer for, and `inventory` after it what a queue thinks of that.
What a queue calls held, the holder holds, and nobody else; a lease by its name. What a client holds is held in the
queue, or has left it meanwhile (a ring's eldest, a value that was replaced). The queue's counters are those of its
messages. A queue that was deleted says nothing any more, and what clients still have of it is nobody's concern.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from coterie.audit.fold import Found, Property, Violation
from coterie.audit.queues import BY_QUEUE, Life, QueueId, numbers, per_queue, positions, queue_of, text_of
from coterie.trace import Event


@dataclass(slots=True)
class Clients:
    """What clients have of one queue, since its last inventory."""

    held: dict[int, Event] = field(default_factory=dict)
    here: set[int] = field(default_factory=set)
    """What is in the queue."""
    gone: bool = False
    """The queue was deleted."""


@dataclass(slots=True)
class State:
    queues: dict[tuple[Life, QueueId], Clients] = field(default_factory=dict)
    found: Found = field(default_factory=lambda: Found("B12"))


class UnackedIsHeld(Property[State]):
    name = "B12"
    title = "unacked is held"
    sentence = "At rest, the unacked messages of a queue are exactly those that live channels and named leases hold."
    split_by = BY_QUEUE
    kinds = ("recovered", "enqueue", "dequeue", "unsettled", "inventory", "queue")

    def start(self) -> State:
        return State()

    def step(self, state: State, event: Event) -> None:
        queue = queue_of(event)
        if queue is None:
            return
        clients = state.queues.setdefault(((event.node, event.inc), queue), Clients())
        kind = event.kind
        if kind == "dequeue":
            clients.here.difference_update(positions(event))
        elif kind == "queue":
            clients.gone = event.data.get("state") == "deleted"
            clients.held.clear()
        elif kind == "unsettled" and not clients.gone:
            for position in positions(event):
                other = clients.held.get(position)
                if other is not None:
                    holder = text_of(event, "holder")
                    text = f"position {position} of {event.queue} is held by {text_of(other, 'holder')} and by {holder}"
                    state.found.add(text, other, event)
                clients.held[position] = event
        elif kind == "inventory":
            self._compare(state, clients, event)
            clients.held.clear()
        elif kind in ("recovered", "enqueue"):
            clients.here.update(positions(event))

    def _compare(self, state: State, clients: Clients, event: Event) -> None:
        unacked: set[int] = set()
        for holder, spans in per_queue(event.data.get("held")):
            for position in numbers(spans):
                unacked.add(position)
                theirs = clients.held.get(position)
                if holder.startswith("lease "):
                    continue
                if theirs is None:
                    text = f"position {position} of {event.queue} is unacked for {holder}, which does not hold it"
                    state.found.add(text, event)
                elif text_of(theirs, "holder") != holder:
                    whose = text_of(theirs, "holder")
                    text = f"position {position} of {event.queue} is unacked for {holder}, but {whose} holds it"
                    state.found.add(text, theirs, event)
        for position, theirs in clients.held.items():
            if position not in unacked and position in clients.here:
                whose = text_of(theirs, "holder")
                text = f"{whose} holds position {position} of {event.queue}, which is not unacked there"
                state.found.add(text, theirs, event)
        counted = event.data.get("counted")
        ready = sum(1 for _ in numbers(event.data.get("ready")))
        if isinstance(counted, list) and counted != [ready, len(unacked)]:
            text = f"{event.queue} counts {counted} messages ready and unacked, and has [{ready}, {len(unacked)}]"
            state.found.add(text, event)

    def certain(self, state: State) -> list[Violation]:
        return state.found.certain()

    def finish(self, state: State) -> list[Violation]:
        return state.found.close()
