"""What a named lease holds: *pieces* of neighbours, whose offsets and positions rise together.

An offset counts what the lease has ever taken, so a range of offsets names the same messages for ever, in whichever
order positions were ready.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator
from operator import attrgetter
from typing import Final, NamedTuple

PIECES_MAX: Final = 10_000
"""Of one lease: it takes nothing more while it has so many."""
_offset = attrgetter("offset")


class Piece(NamedTuple):
    """All of them have the same flag."""

    offset: int
    first: int
    stop: int
    redelivered: bool

    @property
    def end(self) -> int:
        """The offset behind it."""
        return self.offset + self.stop - self.first

    def between(self, low: int, high: int) -> Piece:
        """The part with offsets from `low` up to, and without, `high`."""
        begin, end = max(low, self.offset), min(high, self.end)
        shift = self.first - self.offset
        return Piece(begin, begin + shift, end + shift, self.redelivered)


class Lease:
    """Who has it, and what it holds; its holder's record has the positions as a set too."""

    __slots__ = ("id", "name", "next", "pieces", "session", "since", "user")

    def __init__(self, name: str, id: int, user: str, session: str, since: int) -> None:
        self.name = name
        self.id = id
        """No other lease of any queue has or had it."""
        self.user = user
        self.session = session
        """Who may change it."""
        self.since = since
        """Milliseconds since 1970."""
        self.next = 0
        """The offset of what it takes next."""
        self.pieces: list[Piece] = []
        """By rising offsets."""

    @property
    def first(self) -> int:
        """The lowest offset that it holds."""
        return self.pieces[0].offset if self.pieces else self.next

    def extend(self, flagged: Iterable[tuple[int, int, bool]]) -> tuple[int, Piece | None, int]:
        """Positions (first, stop, redelivered), in the order in which it takes them, get the next offsets. Gives what
        `unextend` needs."""
        pieces = self.pieces
        kept = len(pieces), pieces[-1] if pieces else None, self.next
        for first, stop, redelivered in flagged:
            last = pieces[-1] if pieces else None
            if last and last.end == self.next and last.stop == first and last.redelivered == redelivered:
                pieces[-1] = last._replace(stop=stop)
            else:
                pieces.append(Piece(self.next, first, stop, redelivered))
            self.next += stop - first
        return kept

    def unextend(self, kept: tuple[int, Piece | None, int]) -> None:
        count, last, self.next = kept
        del self.pieces[count:]
        if last is not None:
            self.pieces[-1] = last

    def between(self, low: int, high: int) -> Iterator[Piece]:
        """What it holds of these offsets, `high` not among them."""
        pieces = self.pieces
        at = max(bisect_right(pieces, low, key=_offset) - 1, 0)
        while at < len(pieces) and pieces[at].offset < high:
            if pieces[at].end > low:
                yield pieces[at].between(low, high)
            at += 1

    def drop(self, low: int, high: int) -> list[Piece]:
        """It holds nothing of these offsets any more; gives the pieces as they were."""
        before = self.pieces
        begin = max(bisect_right(before, low, key=_offset) - 1, 0)
        end = bisect_right(before, high - 1, key=_offset)
        kept: list[Piece] = []
        for piece in before[begin:end]:
            if piece.offset < low:
                kept.append(piece.between(piece.offset, min(low, piece.end)))
            if piece.end > high:
                kept.append(piece.between(max(high, piece.offset), piece.end))
        self.pieces = before[:begin] + kept + before[end:]
        return before
