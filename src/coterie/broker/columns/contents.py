"""Where messages are when a consumer is to have them: in the cache, or read from the log first.

Whoever needs messages asks for *runs* of them (an event's reference, a range of offsets) and is told of each run once:
the event that has them, or what is wrong. All that is asked for in one turn, or while a read is under way, is read in
the order of references, neighbours with one read, together with what will be asked for next (`ahead`). Who has
cancelled is not told; the read goes on for others, and for the cache.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from coterie.broker.columns.cache import EventCache
from coterie.broker.columns.event import PublishEvent
from coterie.errors import DiskError
from coterie.runtime.base import Runtime
from coterie.settings import setting


@dataclass(frozen=True, slots=True)
class ContentsSettings:
    """How much of the messages is in memory, and how it is read."""

    cache_bytes: int = setting(256 << 20, "memory for events that are on disk too", unit="bytes", minimum=0)
    request_runs: int = setting(
        64, "most runs of one request that are read; the rest has to be asked for again", minimum=1
    )
    ahead_events: int = setting(64, "most events read ahead of need at one time", minimum=0)


class Wanted(NamedTuple):
    """A run of messages."""

    ref: int
    first: int
    """Offsets in the event."""
    stop: int


class Unreadable(NamedTuple):
    """Why messages are not to be had here."""

    problem: str
    lasting: bool
    """Reading again does not help: another broker has to be asked."""


Arrived = Callable[[Wanted, PublishEvent | Unreadable], None]


class Source(Protocol):
    """Where events are that are not in memory."""

    async def read(self, refs: Sequence[int]) -> list[PublishEvent | Unreadable]:
        """Of references, which rise: some of the first of them, at least one. Raises DiskError if none can be had."""


class Request:
    """What somebody waits for."""

    __slots__ = ("_arrived", "left")

    def __init__(self, arrived: Arrived, runs: int) -> None:
        self._arrived: Arrived | None = arrived if runs else None
        self.left = runs
        """Runs that nothing was told of yet."""

    @property
    def over(self) -> bool:
        return self._arrived is None

    def cancel(self) -> None:
        """Nothing is told any more, not even what has arrived already."""
        self._arrived = None

    def _tell(self, wanted: Wanted, found: PublishEvent | Unreadable) -> None:
        arrived = self._arrived
        self.left -= 1
        if not self.left:
            self._arrived = None
        if arrived is not None:
            arrived(wanted, found)


class Contents:
    """Of one broker."""

    def __init__(self, runtime: Runtime, source: Source, settings: ContentsSettings) -> None:
        self._runtime = runtime
        self._source = source
        self._settings = settings
        self.cache = EventCache(settings.cache_bytes)
        self._waiting: dict[int, list[tuple[Request, Wanted]]] = {}
        """By reference: also of those that are being read."""
        self._ahead: dict[int, None] = {}
        """Nobody waits for them yet."""
        self._reading = False
        self._under_way: set[int] = set()
        """What the read that is under way may put into the cache."""
        self._life = 0
        """Reads of an earlier one bring nothing."""
        self.hits = self.misses = 0

    # What is in memory.

    def put(self, ref: int, event: PublishEvent, volatile: bool = False) -> PublishEvent:
        """An event that was ordered just now, or came from another broker. `volatile`: it is not on disk. Gives the
        event to use."""
        event = self.cache.put(ref, event, volatile)
        self._found(ref, event)
        return event

    def get(self, ref: int) -> PublishEvent | None:
        found = self.cache.get(ref)
        if found is None:
            self.misses += 1
        else:
            self.hits += 1
        return found

    def forget(self, refs: Iterable[int]) -> None:
        """All their messages have left. Who still waits for them is told what there was."""
        for ref in refs:
            self.cache.forget(ref)
            self._ahead.pop(ref, None)
            self._under_way.discard(ref)

    def clear(self) -> None:
        """References may name other events from now on: nothing is in memory, and nobody is told anything of before."""
        self._life += 1
        self.cache.clear()
        for waiting in self._waiting.values():
            for request, _ in waiting:
                request.cancel()
        self._waiting.clear()
        self._ahead.clear()
        self._under_way.clear()

    # What is not.

    def request(self, wanted: Sequence[Wanted], arrived: Arrived, ahead: Sequence[int] = ()) -> Request:
        """`arrived` is called once for each of the first `request_runs` runs, in a later turn; in the order of their
        references, unless they are in memory already. `ahead`: what is likely to be asked for next."""
        wanted = wanted[: self._settings.request_runs]
        request = Request(arrived, len(wanted))
        for each in wanted:
            event = self.cache.get(each.ref)
            if event is None:
                self._waiting.setdefault(each.ref, []).append((request, each))
                self._ahead.pop(each.ref, None)
            else:
                self._tell(request, each, event)
        for ref in ahead:
            if len(self._ahead) >= self._settings.ahead_events:
                break
            if ref not in self.cache and ref not in self._waiting:
                self._ahead[ref] = None
        if (self._waiting or self._ahead) and not self._reading:
            self._reading = True
            self._runtime.spawn(self._read())
        return request

    async def _read(self) -> None:
        try:
            while self._anybody_waits() or self._ahead:
                life = self._life
                batch = sorted({*self._waiting, *self._ahead})
                self._ahead.clear()
                self._under_way = {*batch}
                while batch:
                    try:
                        found = await self._source.read(batch)
                    except DiskError as error:
                        found = [Unreadable(str(error), False)] * len(batch)
                    if life != self._life:
                        break
                    for ref, event in zip(batch, found, strict=False):
                        self._came(ref, event)
                    batch = self._still_to_read(batch[len(found) :])
        finally:
            self._reading = False
            self._under_way.clear()

    def _still_to_read(self, batch: Sequence[int]) -> list[int]:
        """Of a batch. What nobody waits for is read behind what somebody waits for, and not if others wait."""
        if not self._anybody_waits():
            return [ref for ref in batch if ref in self._under_way]
        waited = [ref for ref in batch if ref in self._waiting]
        if len(waited) < len(self._waiting):
            return waited
        return [ref for ref in batch if ref >= waited[0] and (ref in self._waiting or ref in self._under_way)]

    def _anybody_waits(self) -> bool:
        """Forgets who has cancelled."""
        gone = [ref for ref, waiting in self._waiting.items() if all(request.over for request, _ in waiting)]
        for ref in gone:
            del self._waiting[ref]
        return bool(self._waiting)

    def _came(self, ref: int, found: PublishEvent | Unreadable) -> None:
        if isinstance(found, PublishEvent) and ref in self._under_way:
            found = self.cache.put(ref, found)
        self._found(ref, found)

    def _found(self, ref: int, found: PublishEvent | Unreadable) -> None:
        for request, wanted in self._waiting.pop(ref, ()):
            self._tell(request, wanted, found)

    def _tell(self, request: Request, wanted: Wanted, found: PublishEvent | Unreadable) -> None:
        """In a turn of its own: what goes wrong there is not ours."""
        if isinstance(found, PublishEvent) and not _has(found, wanted):
            found = Unreadable(f"messages {wanted.first} to {wanted.stop} are not in event {wanted.ref}", True)
        self._runtime.call_soon(request._tell, wanted, found)


def _has(event: PublishEvent, wanted: Wanted) -> bool:
    try:
        event.body_range(wanted.first, wanted.stop)
    except ValueError:
        return False
    return True
