"""The chain: a sum over everything that the log has brought and what was made of it, so that histories can be compared.

How far a broker has come, epoch and index, does not name a history: a sequencer that was cut off may have written
another event at the same place than the others. And two brokers that follow the same log may make different states of
it. So every step of the log is linked to the one before, with its effects (broker/effects.py). Equal chains at equal
places are equal histories, and equal states.

Before version 4 of events chains were without effects. The first event of that version begins a chain anew, at every
broker alike; from there on it has one byte more.
"""

from __future__ import annotations

import struct
from hashlib import blake2b
from typing import TYPE_CHECKING, Final, NamedTuple
from zlib import crc32

if TYPE_CHECKING:
    from coterie.cluster.membership import Progress
    from coterie.runtime.base import Buffer

SIZE = 16
UNKNOWN = b""
"""Of a broker that was updated by one of an older version: it equals nothing."""
_COVERS = b"\1"
"""Before the sum: it is over effects too."""
_STEP = struct.Struct(">QQQI")
"""Epoch, index, length and checksum of what the step brought."""
_MADE = struct.Struct(">II")
_HEAD = 64
"""Bytes of a step that go into the sum as they are. Of the rest the checksum does: that costs a fifth."""


class Link(NamedTuple):
    """A place in the log, and the chain there."""

    place: Progress
    chain: bytes


def covers_effects(chain: bytes) -> bool:
    return len(chain) == SIZE + 1


def link(chain: bytes, place: Progress, who: bytes, what: Buffer, effects: bytes | None = None) -> bytes:
    """The chain after one more step, at that place. `effects`: what was made of it; None: of an older version, which
    says nothing about that, unless the chain covers effects already."""
    step = _STEP.pack(place.epoch, place.index, len(what), crc32(what))
    covers = covers_effects(chain)
    if effects is None and not covers:
        if not chain:
            return UNKNOWN
        return blake2b(b"".join((chain, step, what[:_HEAD], who)), digest_size=SIZE).digest()
    before = chain if covers else bytes(SIZE + 1)
    made = effects or b""
    data = b"".join((before, step, _MADE.pack(len(who), len(made)), what[:_HEAD], who, made))
    return _COVERS + blake2b(data, digest_size=SIZE).digest()


def start(place: Progress, view: str, before: bytes) -> bytes:
    """A cluster begins, or begins again, with the state of one that had come so far."""
    return link(before or bytes(SIZE), place, b"", view.encode())


def fold(aside: bytes, effects: bytes) -> bytes:
    """What was made at a place that is no step of its own, for the next step."""
    return blake2b(aside + effects, digest_size=SIZE).digest() if effects else aside


class History:
    """The chains of the last places of this broker's log.

    Each step goes one epoch or one index further, so the sum of both counts the steps.
    """

    LENGTH: Final = 1 << 16

    def __init__(self) -> None:
        self._sums = bytearray(SIZE * self.LENGTH)
        self._first = self.end = 0
        """Steps: of the first that is known, and behind the last."""

    def begin(self, found: Link) -> None:
        """The first that is known."""
        self._first = self.end = found.place.epoch + found.place.index
        self.add(found.chain)

    def add(self, chain: bytes) -> None:
        """One more step."""
        if len(chain) == SIZE + 1:
            at = self.end % self.LENGTH * SIZE
            self._sums[at : at + SIZE] = chain[1:]
            self.end += 1
        else:
            self._first = self.end = self.end + 1

    def is_ahead(self, place: Progress) -> bool:
        """This broker has not come there yet."""
        return place.epoch + place.index >= self.end

    def at(self, place: Progress) -> bytes:
        """The chain there, or of whatever this broker had in that step; UNKNOWN: that is too long ago."""
        step = place.epoch + place.index
        if not max(self._first, self.end - self.LENGTH) <= step < self.end:
            return UNKNOWN
        at = step % self.LENGTH * SIZE
        return _COVERS + bytes(self._sums[at : at + SIZE])
