"""Where a record stands in the history: the epoch it was ordered in, and its index there.

Places rise from record to record. They do not name a history by themselves: after a partition two brokers may have
different records at one place. The chain tells (see `tail.py`).
"""

from __future__ import annotations

from typing import Final, NamedTuple

MOST: Final = 2**63
"""No number on disk reaches this."""


class Place(NamedTuple):
    epoch: int
    index: int  # type: ignore[assignment]  # a tuple's method of that name is of no use here

    def __str__(self) -> str:
        return f"{self.epoch}/{self.index}"


START: Final = Place(0, 0)
"""Before every record."""


class Position(NamedTuple):
    """A place in this broker's copy of the log."""

    ordinal: int
    """Records of one log folder are numbered without gaps, from 1. Physical: other brokers number differently."""
    place: Place
    chain: bytes
    """Digest of the history up to here; empty only before the first record."""


ORIGIN: Final = Position(0, START, b"")
