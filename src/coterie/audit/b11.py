"""B11 what is safe survives: after a stop or a crash, what was confirmed as persistent is there again, once, in place.

Of each queue that outlives the node, its next life finds

- what was safe and had not left: confirmed, or on disk (`synced`);
- nothing that had left for good, and nothing that never was there;
- the same messages at the same positions: what is handed out later has the checksum that it was enqueued with;
- positions that no message had before.

What was being written when the node died may be there or not. Where events of a life may be missing, only what its
trace does show is held against the next one; and if the disk itself was damaged, nothing is.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import pairwise

from coterie.audit.fold import Found, Property, Violation
from coterie.audit.ledger import LEDGER_KINDS, Entry, Ledger, Ledgers
from coterie.audit.lives import LIFE_KINDS, Lives
from coterie.audit.queues import (
    BY_QUEUE,
    Life,
    QueueId,
    Restart,
    note_restart,
    positions,
    queue_of,
    successions,
)
from coterie.trace import Event


@dataclass(slots=True)
class Given:
    """Positions in a row that messages got in one life."""

    first: int
    last: int
    event: Event


@dataclass(slots=True)
class State:
    ledgers: Ledgers = field(default_factory=Ledgers)
    restarts: dict[Life, Restart] = field(default_factory=dict)
    handed: dict[tuple[Life, QueueId], dict[int, tuple[int, Event]]] = field(default_factory=dict)
    """What was handed out after a restart that had found it: checksum and event."""
    durable: set[QueueId] = field(default_factory=set)
    given: dict[QueueId, dict[Life, list[Given]]] = field(default_factory=dict)
    lives: Lives = field(default_factory=Lives)
    found: Found = field(default_factory=lambda: Found("B11"))


class Survives(Property[State]):
    name = "B11"
    title = "what is safe survives"
    sentence = (
        "After a full stop, or kill -9, what was confirmed as persistent and not accepted is there again, once, "
        "at its position."
    )
    split_by = BY_QUEUE
    kinds = (*LEDGER_KINDS, "queue", "handed", *LIFE_KINDS)

    def start(self) -> State:
        return State()

    def step(self, state: State, event: Event) -> None:
        kind, queue = event.kind, queue_of(event)
        if kind in LIFE_KINDS:
            state.lives.note(event)
        elif kind == "queue":
            if queue is not None and event.data.get("durable"):
                state.durable.add(queue)
        elif kind == "handed":
            self._handed(state, event)
        else:
            if kind == "recovered":
                note_restart(state.restarts, event)
            state.ledgers.step(event)
            if queue is not None and kind == "enqueue":
                _give(state.given.setdefault(queue, {}).setdefault((event.node, event.inc), []), event)

    def _handed(self, state: State, event: Event) -> None:
        queue, given = queue_of(event), event.data.get("sums")
        if queue is None or not isinstance(given, list):
            return
        key = (event.node, event.inc), queue
        ledger = state.ledgers.books.get(key)
        if ledger is None:
            return
        for position, content in zip(positions(event), given, strict=False):
            entry = ledger.entries.get(position)
            if entry is None or not isinstance(content, int):
                continue
            if entry.sum is None:
                state.handed.setdefault(key, {})[position] = content, event
            elif entry.sum != content:
                text = f"position {position} of {queue[1]} was handed out with another content than was enqueued"
                state.found.add(text, entry.event, event)

    def certain(self, state: State) -> list[Violation]:
        return state.found.certain()

    def finish(self, state: State) -> list[Violation]:
        books = state.ledgers.books
        sums: dict[tuple[Life, QueueId], dict[int, tuple[int, Event]]] = {}
        for life, restart in successions(state.restarts, state.ledgers.lives):
            queues = [queue for queue in (key[1] for key in books if key[0] == life) if queue in state.durable]
            for queue in dict.fromkeys([*queues, *restart.found]):
                ledger = books.get((life, queue))
                if ledger is None:
                    ledger = Ledger(state.ledgers.lives[life])
                if not restart.damage:
                    self._compare(state, life, queue, ledger, restart)
                later = (restart.event.node, restart.event.inc), queue
                known = sums.get((life, queue), {})
                sums[later] = self._contents(state, queue, ledger, known, later)
        for queue, lives in state.given.items():
            self._given_once(state, queue, lives)
        return state.found.close()

    def _given_once(self, state: State, queue: QueueId, lives: dict[Life, list[Given]]) -> None:
        by_node: dict[str, list[tuple[int, int, int, Event]]] = {}
        for (node, inc), runs in lives.items():
            by_node.setdefault(node, []).extend((run.first, run.last, inc, run.event) for run in runs)
        for node, runs_of in by_node.items():
            ordered = sorted(runs_of, key=lambda run: run[:3])
            for (_, last, one, event), (first, _, other, again) in pairwise(ordered):
                if first <= last and one != other:
                    earlier, later = sorted((one, other))
                    text = f"position {first} of {queue[1]} was given by {node}#{earlier} and by {node}#{later}"
                    state.found.add(text, event, again)

    def _compare(self, state: State, life: Life, queue: QueueId, ledger: Ledger, restart: Restart) -> None:
        ledger.settle()
        who, found = f"{restart.event.node}#{restart.event.inc}", restart.found.get(queue)
        there = {*positions(found)} if found is not None else set()
        if not state.lives.may_miss(f"{life[0]}#{life[1]}"):
            for position, entry in ledger.must_find().items():
                if position not in there:
                    text = f"{who} did not find position {position} of {queue[1]}, which was {_safe(ledger, entry)}"
                    state.found.add(text, entry.event, ledger.confirmed(entry), found or restart.event)
            for position in sorted(there.difference(ledger.entries)):
                if position not in ledger.gone:
                    text = f"{who} found position {position} of {queue[1]}, where nothing was"
                    state.found.add(text, found)
        for position in sorted(there):
            known = ledger.entries.get(position)
            if known is None and position in ledger.gone:
                text = f"{who} found position {position} of {queue[1]} again, which had left for good"
                state.found.add(text, found)
            elif known is not None and not known.persistent:
                text = f"{who} found position {position} of {queue[1]} again, which was not persistent"
                state.found.add(text, known.event, found)

    def _contents(
        self,
        state: State,
        queue: QueueId,
        ledger: Ledger,
        known: dict[int, tuple[int, Event]],
        later: tuple[Life, QueueId],
    ) -> dict[int, tuple[int, Event]]:
        """What the later life handed out is what was enqueued; gives what is known of the contents of what it found."""
        contents = {**known}
        for position, entry in ledger.entries.items():
            if entry.sum is not None:
                contents[position] = entry.sum, entry.event
        for position, (content, event) in state.handed.get(later, {}).items():
            if position in contents and contents[position][0] != content:
                text = f"position {position} of {queue[1]} has another content than before the restart"
                state.found.add(text, contents[position][1], event)
        return contents


def _give(given: list[Given], event: Event) -> None:
    for position in positions(event):
        if given and given[-1].last + 1 == position:
            given[-1].last = position
        else:
            given.append(Given(position, position, event))


def _safe(ledger: Ledger, entry: Entry) -> str:
    return "confirmed" if ledger.confirmed(entry) is not None else "on disk"
