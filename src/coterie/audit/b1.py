"""B1 nothing is lost: a message stays in its queues until it is accepted, or leaves by a rule that is named.

- What was confirmed has been enqueued in every queue that it was routed to, or dropped there as a `duplicate`, and what
  of it is persistent was on disk before (`data.log`, `synced`).
- Nothing leaves a queue as lost. What leaves it as accepted, or as rejected, a client has accepted or rejected, by
  itself or in a transaction.
- At rest (`inventory`) a queue holds exactly what was enqueued and has not left it.

What of it must survive a restart is a matter of B11.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from coterie.audit.fold import Found, Property, Violation
from coterie.audit.ledger import LEDGER_KINDS, Ledgers
from coterie.audit.lives import LIFE_KINDS, Lives, address
from coterie.audit.numbers import Numbers
from coterie.audit.queues import BY_QUEUE, QueueId, numbers, per_queue, positions, queue_of, text_of
from coterie.trace import Event

ANSWERS = {"accepted": "accept", "rejected": "reject"}
"""By the reason of a dequeue: what a client says."""


class Routed:
    """What one channel published to one queue."""

    __slots__ = ("ahead", "owed", "unsynced")

    def __init__(self) -> None:
        self.owed: dict[int, Event] = {}
        """Routed, and not enqueued yet."""
        self.ahead: set[int] = set()
        """Enqueued, or dropped as duplicates, and not known yet to be routed there."""
        self.unsynced: dict[int, tuple[int, Event]] = {}
        """Persistent ones: where the log has them."""


class Answers:
    """What clients have said of one queue's messages."""

    __slots__ = ("given", "wanted")

    def __init__(self) -> None:
        self.given: dict[str, Numbers] = {"accept": Numbers(), "reject": Numbers()}
        self.wanted: dict[tuple[str, int], Event] = {}
        """Dequeues that have not been seen to be what a client wants."""

    def give(self, answer: str, said_of: Iterable[int]) -> None:
        for position in said_of:
            self.given[answer].add(position)
            self.wanted.pop((answer, position), None)


@dataclass(slots=True)
class State:
    ledgers: Ledgers = field(default_factory=Ledgers)
    routed: dict[str, dict[QueueId, Routed]] = field(default_factory=dict)
    """By channel and queue."""
    answers: dict[QueueId, Answers] = field(default_factory=dict)
    confirmed: dict[str, tuple[int, Event]] = field(default_factory=dict)
    refused: dict[str, Numbers] = field(default_factory=dict)
    lives: Lives = field(default_factory=Lives)
    found: Found = field(default_factory=lambda: Found("B1"))


class NothingIsLost(Property[State]):
    name = "B1"
    title = "nothing is lost"
    sentence = "A confirmed message is in its queues until it is accepted or leaves by a rule."
    split_by = BY_QUEUE
    kinds = (*LEDGER_KINDS, "publish", "duplicate", "accept", "reject", "tx", "inventory", *LIFE_KINDS)

    def start(self) -> State:
        return State()

    def step(self, state: State, event: Event) -> None:
        kind = event.kind
        if kind in LIFE_KINDS:
            state.lives.note(event)
        elif kind in LEDGER_KINDS:
            ledger = state.ledgers.step(event)
            if kind == "confirm":
                self._confirm(state, event)
            elif ledger is not None and kind == "enqueue":
                self._enqueue(state, event)
            elif ledger is not None and kind == "dequeue":
                self._dequeue(state, event)
        elif kind == "publish":
            self._publish(state, event)
        elif kind == "duplicate":
            self._duplicate(state, event)
        elif kind == "tx":
            for key, answer in (("accepts", "accept"), ("rejects", "reject")):
                for name, spans in per_queue(event.data.get(key)):
                    _answers(state, (text_of(event, "vhost") or "/", name)).give(answer, numbers(spans))
        elif kind == "inventory":
            self._inventory(state, event)
        else:
            queue = queue_of(event)
            if queue is not None:
                _answers(state, queue).give(kind, positions(event))

    # Publishers.

    def _publish(self, state: State, event: Event) -> None:
        queue = queue_of(event)
        if queue is None:
            return
        routed = state.routed.setdefault(text_of(event, "channel"), {}).setdefault(queue, Routed())
        for number in numbers(event.data.get("numbers")):
            if number in routed.ahead:
                routed.ahead.remove(number)
            else:
                routed.owed[number] = event

    def _enqueue(self, state: State, event: Event) -> None:
        channel, queue = text_of(event, "channel"), queue_of(event)
        if not channel or queue is None:
            return
        routed = state.routed.setdefault(channel, {}).setdefault(queue, Routed())
        ledger = state.ledgers.books[(event.node, event.inc), queue]
        for position, number in zip(positions(event), numbers(event.data.get("numbers")), strict=False):
            if routed.owed.pop(number, None) is None:
                routed.ahead.add(number)
            entry = ledger.entries[position]
            if entry.persistent and entry.log > ledger.progress.synced:
                routed.unsynced[number] = entry.log, event

    def _duplicate(self, state: State, event: Event) -> None:
        """The queue has, or had, a message of the same id: nothing is owed for this one."""
        channel, queue = text_of(event, "channel"), queue_of(event)
        if not channel or queue is None:
            return
        routed = state.routed.setdefault(channel, {}).setdefault(queue, Routed())
        for number in numbers(event.data.get("numbers")):
            if routed.owed.pop(number, None) is None:
                routed.ahead.add(number)

    def _confirm(self, state: State, event: Event) -> None:
        channel, upto = text_of(event, "channel"), event.last or 0
        progress = state.ledgers.lives[event.node, event.inc]
        if upto > state.confirmed.get(channel, (0, event))[0]:
            state.confirmed[channel] = upto, event
        refused = state.refused.setdefault(channel, Numbers())
        for number in numbers(event.data.get("refused")):
            refused.add(number)
        for queue, routed in state.routed.get(channel, {}).items():
            while routed.unsynced:
                number = next(iter(routed.unsynced))
                log, enqueue = routed.unsynced[number]
                if number > upto and log > progress.synced:
                    break
                del routed.unsynced[number]
                if log > progress.synced and number not in refused:
                    text = f"number {number} of {channel} was confirmed before it was on disk in {queue[1]}"
                    state.found.add(text, enqueue, event)

    # Consumers.

    def _dequeue(self, state: State, event: Event) -> None:
        reason, queue = text_of(event, "reason"), queue_of(event)
        if reason == "lost":
            state.found.add(f"position {event.first} of {event.queue} was lost: the disk did not give it back", event)
        answer = ANSWERS.get(reason)
        if answer is None or queue is None:
            return
        answers = _answers(state, queue)
        for position in positions(event):
            if position not in answers.given[answer]:
                answers.wanted[answer, position] = event

    # At rest.

    def _inventory(self, state: State, event: Event) -> None:
        queue = queue_of(event)
        if queue is None:
            return
        ledger = state.ledgers.books.get(((event.node, event.inc), queue))
        if ledger is None:
            return
        there = {*numbers(event.data.get("ready"))}
        for _, spans in per_queue(event.data.get("held")):
            there.update(numbers(spans))
        for position, entry in ledger.entries.items():
            if entry.left is None and position not in there:
                text = f"position {position} of {event.queue} is not there any more, and nothing says why"
                state.found.add(text, entry.event, event)

    def certain(self, state: State) -> list[Violation]:
        return state.found.certain()

    def finish(self, state: State) -> list[Violation]:
        owed = [
            (channel, queue, number, event)
            for channel, queues in state.routed.items()
            for queue, routed in queues.items()
            for number, event in routed.owed.items()
        ]
        for channel, queue, number, event in owed:
            upto, confirm = state.confirmed.get(channel, (0, None))
            refused = state.refused.get(channel, Numbers())
            if number <= upto and number not in refused and not state.lives.may_miss(address(event)):
                text = f"number {number} of {channel} was confirmed, but never enqueued in {queue[1]}"
                state.found.add(text, event, confirm)
        if not state.lives.incomplete:
            for queue, answers in state.answers.items():
                for (answer, position), event in answers.wanted.items():
                    text = (
                        f"position {position} of {queue[1]} left as {event.data['reason']}, but no client said {answer}"
                    )
                    state.found.add(text, event)
        return state.found.close()


def _answers(state: State, queue: QueueId) -> Answers:
    answers = state.answers.get(queue)
    if answers is None:
        answers = state.answers[queue] = Answers()
    return answers
