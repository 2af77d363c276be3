"""The ready messages of a queue, in the order in which they are given away: one lane, or one for each priority.

Whatever is put back goes to its own place, by its position. An entry that left its queue while it was ready (replaced,
evicted, moved) stays behind as a *ghost* until it is met or there are too many; it is never given to anybody.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from operator import attrgetter

from coterie.broker.entry import Entry

_GHOSTS_MIN = 64
"""So few ghosts are not worth a sweep."""
_position = attrgetter("position")


class Ready(ABC):
    """Counts are the queue's business: `len` of a lane would count ghosts."""

    def __init__(self) -> None:
        self.ghosts = 0

    @abstractmethod
    def push(self, entries: Iterable[Entry]) -> None:
        """New ones, with positions above all others."""

    @abstractmethod
    def put_back(self, entries: Iterable[Entry]) -> None:
        """Ones that were taken before, by rising positions."""

    @abstractmethod
    def take(self, count: int) -> list[Entry]:
        """Up to `count` from the head."""

    @abstractmethod
    def lanes(self) -> Iterator[deque[Entry]]:
        """In the order in which they are served."""

    def pull(self, entries: Sequence[Entry]) -> None:
        """Take these out, wherever they stand; mostly, that is at the heads, in this order."""
        taken, count = 0, len(entries)
        for lane in self.lanes():
            while taken < count and lane and lane[0] is entries[taken]:
                lane.popleft()
                taken += 1
        if taken == count:
            return
        wanted = set(entries[taken:])
        for lane in self.lanes():
            while lane and (lane[0] in wanted or lane[0].holder is not None):
                entry = lane.popleft()
                if entry.holder is None:
                    wanted.remove(entry)
                else:
                    self.ghosts -= 1
            if not wanted:
                return
        for lane in self.lanes():
            left = [entry for entry in lane if entry not in wanted]
            if len(left) != len(lane):
                lane.clear()
                lane.extend(left)

    def __iter__(self) -> Iterator[Entry]:
        """From head to tail, without ghosts."""
        return (entry for lane in self.lanes() for entry in lane if entry.holder is None)

    def heads(self) -> Iterator[Entry]:
        """The first of each lane."""
        for lane in self.lanes():
            if self.ghosts:
                while lane and lane[0].holder is not None:
                    lane.popleft()
                    self.ghosts -= 1
            if lane:
                yield lane[0]

    def head(self) -> Entry | None:
        return next(self.heads(), None)

    def take_expired(self, now: float, most: int) -> list[Entry]:
        """Those at the heads whose time is over; so many of them at most."""
        expired: list[Entry] = []
        for lane in self.lanes():
            while lane and len(expired) < most:
                head = lane[0]
                if head.holder is not None:
                    self.ghosts -= 1
                elif head.expires is not None and head.expires <= now:
                    expired.append(head)
                else:
                    break
                lane.popleft()
        return expired

    def expired(self, now: float, most: int) -> list[Entry]:
        """The same, and they stay where they are."""
        found: list[Entry] = []
        for lane in self.lanes():
            for entry in lane:
                if len(found) >= most:
                    break
                if entry.holder is None:
                    if entry.expires is None or entry.expires > now:
                        break
                    found.append(entry)
        return found

    def clear(self) -> None:
        for lane in self.lanes():
            lane.clear()
        self.ghosts = 0

    def haunt(self, count: int, live: int) -> None:
        """So many have just become ghosts, and so many are alive: sweep if the ghosts are the more."""
        self.ghosts += count
        if self.ghosts > _GHOSTS_MIN and self.ghosts > live:
            for lane in self.lanes():
                alive = [entry for entry in lane if entry.holder is None]
                lane.clear()
                lane.extend(alive)
            self.ghosts = 0

    def _pop(self, lane: deque[Entry], count: int) -> list[Entry]:
        popleft = lane.popleft
        if not self.ghosts:
            return [popleft() for _ in range(min(count, len(lane)))]
        taken: list[Entry] = []
        while lane and len(taken) < count:
            entry = popleft()
            if entry.holder is None:
                taken.append(entry)
            else:
                self.ghosts -= 1
        return taken


class OneLane(Ready):
    """First in, first out."""

    def __init__(self) -> None:
        super().__init__()
        self._lane: deque[Entry] = deque()

    def push(self, entries: Iterable[Entry]) -> None:
        self._lane.extend(entries)

    def put_back(self, entries: Iterable[Entry]) -> None:
        _merge(self._lane, list(entries))

    def take(self, count: int) -> list[Entry]:
        return self._pop(self._lane, count)

    def lanes(self) -> Iterator[deque[Entry]]:
        yield self._lane


class Lanes(Ready):
    """One lane for each priority that was seen, the highest first; an entry's mark is its priority."""

    def __init__(self) -> None:
        super().__init__()
        self._by_priority: dict[int, deque[Entry]] = {}

    def push(self, entries: Iterable[Entry]) -> None:
        for entry in entries:
            self._lane(entry).append(entry)

    def put_back(self, entries: Iterable[Entry]) -> None:
        back: dict[int | str | None, list[Entry]] = {}
        for entry in entries:
            back.setdefault(entry.mark, []).append(entry)
        for some in back.values():
            _merge(self._lane(some[0]), some)

    def take(self, count: int) -> list[Entry]:
        taken: list[Entry] = []
        for lane in self._by_priority.values():
            if lane:
                taken += self._pop(lane, count - len(taken))
                if len(taken) == count:
                    break
        return taken

    def lanes(self) -> Iterator[deque[Entry]]:
        return iter(self._by_priority.values())

    def _lane(self, entry: Entry) -> deque[Entry]:
        assert isinstance(entry.mark, int)
        lane = self._by_priority.get(entry.mark)
        if lane is None:
            lane = self._by_priority[entry.mark] = deque()
            self._by_priority = dict(sorted(self._by_priority.items(), reverse=True))
        return lane


def _merge(lane: deque[Entry], back: list[Entry]) -> None:
    """Put entries, by rising positions, at their places; mostly, these are before all others."""
    if not back:
        return
    last = back[-1].position
    if lane and lane[0].position < last:
        if lane[-1].position < back[0].position:
            lane.extend(back)
            return
        ahead = sum(1 for _ in _until(lane, last))
        back = sorted([*islice(lane, ahead), *back], key=_position)
        for _ in range(ahead):
            lane.popleft()
    lane.extendleft(reversed(back))


def _until(lane: deque[Entry], position: int) -> Iterator[Entry]:
    for entry in lane:
        if entry.position > position:
            return
        yield entry
