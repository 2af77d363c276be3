"""What the broker asks of a store, and the store that keeps nothing.

A store is an observer of durable queues and a keeper of small records (wiring, policies, users). What it was told
becomes durable in the order in which it was told: once `synced()` has reached what `written()` was, everything up to
then is. Between `begin` and `end` it is told what must survive together or not at all.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from coterie.broker.journal import Journal
from coterie.broker.observer import Mark, QueueObserver
from coterie.errors import DiskError

if TYPE_CHECKING:
    from coterie.broker.message import Message
    from coterie.broker.queue import Queue
    from coterie.broker.ranges import Range

Record = dict[str, object]
"""A JSON object."""
Loaded = Callable[["dict[int, Message]", "Exception | None"], None]
"""Told what was read, by position; and the error, if that is not all."""


class Damaged(DiskError):
    """Bytes that are not what was written, for good: trying again is of no use."""


@dataclass(slots=True)
class RecoveredMessage:
    """One of one queue, as the store found it."""

    position: int
    message: Message | None
    """None: it stays on disk until it is loaded."""
    redelivered: bool
    size: int
    expires: float | None = None
    """When, in the time of the calendar, if it may."""
    mark: Mark = None


@dataclass(slots=True)
class Recovered:
    """Everything that survived."""

    records: dict[tuple[str, str], Record] = field(default_factory=dict)
    """By kind and key."""
    queues: dict[tuple[str, str, int], tuple[int, Sequence[RecoveredMessage]]] = field(default_factory=dict)
    """By vhost, name and incarnation: the next position, and what is in the queue, by rising positions."""
    damage: list[str] = field(default_factory=list)
    """What was lost, in sentences."""
    incarnation: int = 0
    """How often this store has been opened; 0: there is none."""
    previous: int = 0
    """What that was at the last start that got as far as the disk."""
    clean: bool = True
    """It was closed properly."""


class Store(QueueObserver, ABC):
    """Durable queues have it among their observers."""

    durable = True
    """Whether anything survives a restart."""
    alarm: Callable[[bool], None] | None = None
    """Told when the disk refuses to take more (True) and when it takes again (False)."""
    journal = Journal()
    """The broker's: what it was told in a step that fails is taken back."""

    def opened(self, queue: Queue) -> None:
        """A durable queue was declared, or restored: its first positions are as good as given."""

    @abstractmethod
    def recover(self, done: Callable[[Recovered | Exception], None]) -> None: ...

    @abstractmethod
    def save(self, kind: str, key: str, value: Record | None) -> None:
        """Keep a record; None deletes it."""

    @abstractmethod
    def begin(self) -> None:
        """What comes until the matching `end` is one unit: after a crash all of it is there, or nothing. Nests."""

    @abstractmethod
    def end(self) -> None: ...

    def mark(self) -> object:
        """Where a step begins that may fail: what comes until `cut` or `unmark`, in the same turn, goes nowhere before.
        Nests."""
        return None

    def cut(self, mark: Any) -> None:
        """The step has failed: nothing was told since the mark."""

    def unmark(self, mark: Any) -> None:
        """The step has succeeded."""

    @abstractmethod
    def written(self) -> int:
        """The place in the log after everything that the store was told."""

    @abstractmethod
    def synced(self) -> int:
        """The place up to which the log is durable."""

    def unsynced(self) -> int:
        """Bytes that the store was told, and that are not durable yet: they are in memory."""
        return 0

    @abstractmethod
    def when_synced(self, upto: int, done: Callable[[], None]) -> None:
        """Call once `synced()` is at least `upto`: at once if it is, else later, in the order of the places."""

    @abstractmethod
    def load(self, queue: Queue, ranges: Sequence[Range], done: Loaded) -> None:
        """Read messages of a queue that are on disk."""

    @abstractmethod
    def on_disk(self, queue: Queue, ranges: Sequence[Range]) -> list[Range]:
        """Which of these messages of a queue `load` could bring: they may be forgotten."""

    def renew(self, clear: Callable[[], None]) -> None:
        """What it has is to be replaced by what it is told from now on; until `whole`, the next start finds the old.
        `clear` does away with what there is in memory: of that the store hears nothing."""
        clear()

    def whole(self, done: Callable[[], None]) -> None:
        """What it was told since `renew` is all that there is. Once that is synced, the next start finds it, and the
        old may go. Then `done`; never, if it is renewed or gone back from before."""
        self.when_synced(self.written(), done)

    @property
    def keeps_old(self) -> bool:
        """It was renewed, and is not whole yet: `go_back` brings back what it had before."""
        return False

    def go_back(self, clear: Callable[[], None], done: Callable[[Recovered | Exception], None]) -> None:
        """Recover what it had before it was renewed; or what it was told since, if that has just become whole. `clear`
        does away with what there is in memory: of that the store hears nothing."""
        clear()
        self.recover(done)

    def keep_aside(self) -> None:
        """What it has now is not right: when it is renewed and the new is whole, this is kept for a look."""

    @property
    def kept_aside(self) -> Sequence[str]:
        """Where, the oldest first."""
        return ()

    @abstractmethod
    def close(self, done: Callable[[], None]) -> None:
        """Write and sync what there is, then `done`."""


class NullStore(Store):
    """Keeps nothing; everything is at once as safe as it will ever be."""

    durable = False

    def recover(self, done: Callable[[Recovered | Exception], None]) -> None:
        done(Recovered())

    def save(self, kind: str, key: str, value: Record | None) -> None:
        pass

    def begin(self) -> None:
        pass

    def end(self) -> None:
        pass

    def written(self) -> int:
        return 0

    def synced(self) -> int:
        return 0

    def when_synced(self, upto: int, done: Callable[[], None]) -> None:
        done()

    def load(self, queue: Queue, ranges: Sequence[Range], done: Loaded) -> None:
        done({}, None)

    def on_disk(self, queue: Queue, ranges: Sequence[Range]) -> list[Range]:
        return []

    def close(self, done: Callable[[], None]) -> None:
        done()
