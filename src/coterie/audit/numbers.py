"""Sequence numbers as folds keep them: memory grows with the holes, not with the numbers."""

from __future__ import annotations

from collections.abc import Iterator

from coterie.trace import Event


class Numbers:
    """A set of sequence numbers that mostly come one after the other: an unbroken range, and what lies outside it."""

    __slots__ = ("_high", "_low", "_strays")

    def __init__(self) -> None:
        self._low = 0
        self._high = -1
        self._strays: set[int] = set()

    def add(self, number: int) -> bool:
        """False if it was there already."""
        if number == self._high + 1 and self._high >= self._low:
            self._high = number
            strays = self._strays
            while strays and self._high + 1 in strays:
                self._high += 1
                strays.remove(self._high)
            return True
        if number in self:
            return False
        if self._high < self._low:
            self._low = self._high = number
        else:
            self._strays.add(number)
        return True

    def __contains__(self, number: int) -> bool:
        return self._low <= number <= self._high or number in self._strays

    def __iter__(self) -> Iterator[int]:
        yield from range(self._low, self._high + 1)
        yield from sorted(self._strays)

    def difference(self, other: Numbers) -> int | None:
        """The lowest number that only one of the two has."""
        if (self._low, self._high, self._strays) == (other._low, other._high, other._strays):
            return None
        return min({*self} ^ {*other}, default=None)  # the same set may have come in another order

    def missing(self, first: int, last: int) -> int | None:
        """The lowest number from `first` to `last` that is not here."""
        number = first
        while number <= last:
            if self._low <= number <= self._high:
                number = self._high + 1
            elif number in self._strays:
                number += 1
            else:
                return number
        return None


class Line:
    """What one receiver delivers of one sender's stream: the application's bundles in order and without gaps.

    Bundles of protocols may overtake the application's, never the other way round: when a bundle of the application is
    delivered, everything below it has been.
    """

    __slots__ = ("_ahead", "first", "last", "next")

    def __init__(self) -> None:
        self.next: int | None = None
        """The lowest number not delivered yet; None until the stream is opened or the application gets something."""
        self.first: int | None = None
        """The number at which the line began, if nobody had said where it has to."""
        self.last: Event | None = None
        """The latest delivery, whatever it was."""
        self._ahead: set[int] = set()

    def open(self, start: int) -> None:
        """From now on `start` is the next; what lies before it is given up."""
        self.next = start
        self._ahead = {number for number in self._ahead if number >= start}
        self._absorb()

    def deliver(self, number: int, app: bool, event: Event) -> str | None:
        """Take a delivery in; gives what is wrong with it, if anything."""
        self.last = event
        due = self.next
        if due is None:
            return self._begin(number, app)
        if number == due:
            self.next = number + 1
            if self._ahead:
                self._absorb()
            return None
        if number < due or number in self._ahead:
            return f"number {number} again or too late: the next is {due}"
        if app:
            self.open(number + 1)
            return f"number {number} before {due}"
        self._ahead.add(number)
        return None

    def _begin(self, number: int, app: bool) -> str | None:
        if number in self._ahead:
            return f"number {number} again"
        if app:
            self.first = number
            while self.first - 1 in self._ahead:
                self.first -= 1
            self.open(number + 1)
        else:
            self._ahead.add(number)
        return None

    def _absorb(self) -> None:
        while self.next in self._ahead:
            self._ahead.remove(self.next)
            self.next += 1
