"""What recovery found in one queue: twenty bytes a message, told one at a time, as it is asked for."""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import overload

from coterie.broker.log_store.conversion.operations import Enqueue, Mark
from coterie.broker.storage import RecoveredMessage


@dataclass(slots=True)
class OldMessage(RecoveredMessage):
    number: int = 0
    """Of the old store."""


class FoundMessages(Sequence[OldMessage]):
    """By rising positions, once `settle` was called."""

    def __init__(self, delivered: int) -> None:
        self._delivered = delivered
        """Up to this position they may have been delivered."""
        self._positions = array("Q")
        self._numbers = array("Q")
        self._sizes = array("I")
        self._expires: dict[int, int] = {}
        self._marks: dict[int, Mark] = {}
        """By number: few messages have any."""
        self._same: dict[int, int] = {}
        """Sizes, so that equal ones are one object: there are many entries and few sizes."""

    def add(self, op: Enqueue) -> None:
        self._positions.extend(op.positions)
        self._numbers.extend(op.numbers)
        self._sizes.extend(op.bodies)
        if op.expires is not None:
            self._expires.update((n, time) for n, time in zip(op.numbers, op.expires, strict=True) if time)
        if op.marks is not None:
            self._marks.update((n, mark) for n, mark in zip(op.numbers, op.marks, strict=True) if mark is not None)

    def settle(self) -> int:
        """Bring them into order, each position once; gives the highest."""
        positions = self._positions
        if not all(a < b for a, b in pairwise(positions)):
            at = {position: index for index, position in enumerate(positions)}
            order = [at[position] for position in sorted(at)]
            self._positions = array("Q", [positions[index] for index in order])
            self._numbers = array("Q", [self._numbers[index] for index in order])
            self._sizes = array("I", [self._sizes[index] for index in order])
        return self._positions[-1]

    def __len__(self) -> int:
        return len(self._positions)

    @overload
    def __getitem__(self, index: int) -> OldMessage: ...
    @overload
    def __getitem__(self, index: slice) -> list[OldMessage]: ...
    def __getitem__(self, index: int | slice) -> OldMessage | list[OldMessage]:
        if isinstance(index, slice):
            return [self[at] for at in range(*index.indices(len(self)))]
        return self._entry(self._positions[index], self._numbers[index], self._sizes[index])

    def __iter__(self) -> Iterator[OldMessage]:
        return map(self._entry, self._positions, self._numbers, self._sizes)

    def _entry(self, position: int, number: int, size: int) -> OldMessage:
        size = self._same.setdefault(size, size)
        entry = OldMessage(position, None, position <= self._delivered, size, number=number)
        if self._expires and number in self._expires:
            entry.expires = self._expires[number] / 1000
        if self._marks:
            entry.mark = self._marks.get(number)
        return entry
