"""The books of one queue in one life of a node: what is in it, what has left it, and what of that is on disk.

So much can be said of the next life: what was safe and is in the queue must be found; what has left it for good must
not; what was being written when the node died may be either. Memory grows with what is under way.
"""

from __future__ import annotations

from coterie.audit.numbers import Numbers
from coterie.audit.queues import Life, QueueId, numbers, positions, queue_of, text_of, whole_of
from coterie.trace import Event

LEDGER_KINDS = ("recovered", "enqueue", "dequeue", "synced", "confirm")
"""The kinds that it reads."""


class Progress:
    """How far one life of a node has come, in all of its queues."""

    __slots__ = ("confirmed", "synced")

    def __init__(self) -> None:
        self.synced = 0
        """The store's log is durable up to here."""
        self.confirmed: dict[str, tuple[int, Event]] = {}
        """By channel: the highest number that its publisher was told of."""


class Entry:
    """A message that is in the queue, or has left it a moment ago."""

    __slots__ = ("channel", "event", "left", "log", "number", "persistent", "sum")

    def __init__(self, event: Event, persistent: bool, log: int, channel: str, number: int, sum: int | None) -> None:
        self.event = event
        self.persistent = persistent
        """It survives a restart, once it is on disk."""
        self.log = log
        """Where the store's log has it; 0: it was there before."""
        self.channel = channel
        self.number = number
        self.sum = sum
        self.left: tuple[Event, int] | None = None
        """It is gone, and where the log has that."""


class Ledger:
    """Of one queue, in one life."""

    __slots__ = ("_leaving", "entries", "gone", "progress")

    def __init__(self, progress: Progress) -> None:
        self.progress = progress
        self.entries: dict[int, Entry] = {}
        """In the queue, or gone but perhaps not for good."""
        self._leaving: dict[int, Entry] = {}
        """Of those: gone, in the order of leaving."""
        self.gone = Numbers()
        """Left for good: that is on disk, or it never was there."""

    def recovered(self, event: Event) -> None:
        for position in positions(event):
            self.entries[position] = Entry(event, True, 0, "", 0, None)

    def enqueue(self, event: Event) -> None:
        persistent = {*numbers(event.data.get("persistent"))}
        log, channel = whole_of(event, "log") or 0, text_of(event, "channel")
        published = [*numbers(event.data.get("numbers"))]
        given = event.data.get("sums")
        sums = given if isinstance(given, list) else []
        for at, position in enumerate(positions(event)):
            number = published[at] if at < len(published) else 0
            one = sums[at] if at < len(sums) else None
            content = one if isinstance(one, int) else None
            self.entries[position] = Entry(event, position in persistent, log, channel, number, content)

    def dequeue(self, event: Event) -> None:
        self.settle()
        log = whole_of(event, "log") or 0
        for position in positions(event):
            entry = self.entries.get(position)
            if entry is not None and entry.persistent:
                if entry.left is None:
                    entry.left = event, log
                    self._leaving[position] = entry
            else:
                self.entries.pop(position, None)
                self.gone.add(position)

    def settle(self) -> None:
        """Forget what has left and is known to be on disk."""
        leaving, synced = self._leaving, self.progress.synced
        while leaving:
            position = next(iter(leaving))
            left = leaving[position].left
            if left is None or left[1] > synced:
                return
            del leaving[position], self.entries[position]
            self.gone.add(position)

    def confirmed(self, entry: Entry) -> Event | None:
        """The confirm of its publish, if there was one."""
        upto, event = self.progress.confirmed.get(entry.channel, (0, None))
        return event if 0 < entry.number <= upto else None

    def must_find(self) -> dict[int, Entry]:
        """What the next life must have: safe, and still here."""
        synced = self.progress.synced
        return {
            position: entry
            for position, entry in self.entries.items()
            if entry.persistent and entry.left is None and (entry.log <= synced or self.confirmed(entry) is not None)
        }


class Ledgers:
    """Of all queues of a run, or of one part of it."""

    __slots__ = ("books", "lives")

    def __init__(self) -> None:
        self.lives: dict[Life, Progress] = {}
        self.books: dict[tuple[Life, QueueId], Ledger] = {}

    def step(self, event: Event) -> Ledger | None:
        """Take an event of LEDGER_KINDS into account; gives the ledger of its queue, if it is about one."""
        kind, life = event.kind, (event.node, event.inc)
        progress = self.lives.get(life)
        if progress is None:
            progress = self.lives[life] = Progress()
        if kind == "synced":
            progress.synced = max(progress.synced, event.last or 0)
            return None
        if kind == "confirm":
            channel = text_of(event, "channel")
            if (event.last or 0) > progress.confirmed.get(channel, (0, event))[0]:
                progress.confirmed[channel] = event.last or 0, event
            return None
        queue = queue_of(event)
        if queue is None:
            return None
        ledger = self.books.get((life, queue))
        if ledger is None:
            ledger = self.books[life, queue] = Ledger(progress)
        if kind == "enqueue":
            ledger.enqueue(event)
        elif kind == "dequeue":
            ledger.dequeue(event)
        elif kind == "recovered":
            ledger.recovered(event)
        return ledger
