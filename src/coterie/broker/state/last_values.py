"""Which message is the newest of its key, in a last-value queue; and which key each message has.

A key is a digest of 16 bytes. A message whose key has another newest one, or none any more, was *replaced*: it is there
only because a lease holds it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from coterie.broker.ranges import PositionSet, Range

Keyed = tuple[int, bytes]
"""A position and its key."""


class LastValues:
    __slots__ = ("keys", "newest")

    def __init__(self) -> None:
        self.newest: dict[bytes, int] = {}
        self.keys: dict[int, bytes] = {}

    def __bool__(self) -> bool:
        return bool(self.keys)

    def replaced(self, position: int) -> bool:
        key = self.keys.get(position)
        return key is not None and self.newest.get(key) != position

    def add(self, keyed: Sequence[Keyed]) -> list[int | None]:
        """By rising positions, each the newest of its key; gives what `unadd` needs."""
        before: list[int | None] = []
        for position, key in keyed:
            before.append(self.newest.get(key))
            self.newest[key] = position
            self.keys[position] = key
        return before

    def unadd(self, keyed: Sequence[Keyed], before: list[int | None]) -> None:
        for (position, key), older in zip(reversed(keyed), reversed(before), strict=True):
            del self.keys[position]
            if older is None:
                del self.newest[key]
            else:
                self.newest[key] = older

    def remove(self, ranges: Iterable[Range]) -> list[tuple[int, bytes, bool]]:
        """Messages that have left; gives what `unremove` needs."""
        gone: list[tuple[int, bytes, bool]] = []
        for first, stop in ranges:
            for position in range(first, stop):
                key = self.keys.pop(position, None)
                if key is not None:
                    newest = self.newest.get(key) == position
                    if newest:
                        del self.newest[key]
                    gone.append((position, key, newest))
        return gone

    def unremove(self, gone: Iterable[tuple[int, bytes, bool]]) -> None:
        for position, key, newest in gone:
            self.keys[position] = key
            if newest:
                self.newest[key] = position

    def replaced_in(self, ranges: Iterable[Range]) -> PositionSet:
        found = PositionSet()
        for first, stop in ranges:
            for position in range(first, stop):
                if self.replaced(position):
                    found.add(position, position + 1)
        return found
