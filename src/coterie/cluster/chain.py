"""The chain: a sum over everything that the log has brought, so that two histories can be told apart.

How far a broker has come, epoch and index, does not name a history: a sequencer that was cut off may have written
another event at the same place than the others. So every step of the log is linked to the one before. Equal chains at
equal places are equal histories.
"""

from __future__ import annotations

import struct
from hashlib import blake2b
from typing import TYPE_CHECKING
from zlib import crc32

if TYPE_CHECKING:
    from coterie.cluster.membership import Progress
    from coterie.runtime.base import Buffer

SIZE = 16
UNKNOWN = b""
"""Of a broker that was updated by one of an older version: it equals nothing."""
_STEP = struct.Struct(">QQQI")
"""Epoch, index, length and checksum of what the step brought."""
_HEAD = 64
"""Bytes of a step that go into the sum as they are. Of the rest the checksum does: that costs a fifth."""


def link(chain: bytes, place: Progress, who: bytes, what: Buffer) -> bytes:
    """The chain after one more step, at that place."""
    if not chain:
        return UNKNOWN
    step = _STEP.pack(place.epoch, place.index, len(what), crc32(what))
    return blake2b(b"".join((chain, step, what[:_HEAD], who)), digest_size=SIZE).digest()


def start(place: Progress, view: str, before: bytes) -> bytes:
    """A cluster begins, or begins again, with the state of one that had come so far."""
    return link(before or bytes(SIZE), place, b"", view.encode())
