"""A record: one event of the log, as it is on disk.

    prefix   mark, flags, sizes, ordinal, synced, place, checksums of head and bodies, checksum of the prefix
    head     sender, chain, the event's head, its effects
    bodies   the event's bodies, verbatim

Sizes are believed under the prefix's checksum only. Head and effects can be read without the bodies, and a flipped bit
in a body costs that body alone. `synced` is the last record that was known to be on disk when this one was written: a
record up to it that cannot be read is damage, and no write that a crash interrupted. `mark` is eight random bytes that
all records of one segment begin with; behind damage the next record is found by it. Numbers are little endian.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple
from zlib import crc32

from coterie.log.errors import Damaged
from coterie.log.place import MOST, Place
from coterie.runtime.base import Buffer

VOLATILE: Final = 1
"""Flag: only transient messages. No bodies on disk, and nobody waits for a sync."""
REMNANT: Final = 2
"""Flag: the live messages of an event whose others are gone, written by a merge."""
NOTE: Final = 4
"""Flag: no record, only a note that everything up to its ordinal is synced."""
MARK_SIZE: Final = 8
CHAIN_SIZES: Final = range(16, 33)
SENDER_MAX: Final = 255
SIZE_MAX: Final = 2**32 - 1

_PREFIX = struct.Struct("<8sBBBxQQQQIIIIII")
PREFIX_SIZE: Final = _PREFIX.size
_CRC = struct.Struct("<I")
_KNOWN_FLAGS = VOLATILE | REMNANT | NOTE


@dataclass(slots=True, eq=False)
class Record:
    """One event. `bodies` is empty, whatever `body_size` says, if it was read without them."""

    place: Place
    sender: bytes
    chain: bytes
    head: Buffer
    effects: Buffer
    bodies: Sequence[Buffer]
    flags: int
    body_size: int
    body_crc: int
    head_crc: int
    ordinal: int = 0
    """Given by the writer."""
    head_size: int = field(init=False)
    """All that is between prefix and bodies."""
    size: int = field(init=False)

    def __post_init__(self) -> None:
        self.head_size = len(self.sender) + len(self.chain) + len(self.head) + len(self.effects)
        self.size = PREFIX_SIZE + self.head_size + self.body_size

    @property
    def volatile(self) -> bool:
        return bool(self.flags & VOLATILE)

    @property
    def remnant(self) -> bool:
        return bool(self.flags & REMNANT)


class Prefix(NamedTuple):
    flags: int
    chain_size: int
    sender_size: int
    ordinal: int
    synced: int
    epoch: int
    index: int  # type: ignore[assignment]
    only_head_size: int
    effects_size: int
    body_size: int
    head_crc: int
    body_crc: int

    @property
    def place(self) -> Place:
        return Place(self.epoch, self.index)

    @property
    def head_size(self) -> int:
        return self.sender_size + self.chain_size + self.only_head_size + self.effects_size

    @property
    def size(self) -> int:
        return PREFIX_SIZE + self.head_size + self.body_size


def make_record(
    place: Place,
    sender: bytes,
    chain: bytes,
    head: Buffer,
    effects: Buffer,
    bodies: Sequence[Buffer] = (),
    *,
    volatile: bool = False,
    remnant: bool = False,
    body_crc: int | None = None,
) -> Record:
    """`body_crc`: the CRC-32 of the bodies, if it is known already. Raises ValueError for what cannot be written."""
    if len(sender) > SENDER_MAX or len(chain) not in CHAIN_SIZES:
        raise ValueError(f"sender of {len(sender)} bytes, chain of {len(chain)} bytes")
    if not (0 <= place.epoch < MOST and 0 <= place.index < MOST):
        raise ValueError(f"place {place}")
    if volatile and bodies:
        raise ValueError("a volatile record has no bodies")
    views = [body if type(body) is bytes else memoryview(body).cast("B") for body in bodies]
    size = sum(map(len, views))
    if max(len(head), len(effects), size) > SIZE_MAX:
        raise ValueError(f"a record of {len(head)} + {len(effects)} + {size} bytes")
    if body_crc is None:
        body_crc = 0
        for view in views:
            body_crc = crc32(view, body_crc)
    head_crc = crc32(effects, crc32(head, crc32(chain, crc32(sender))))
    flags = (VOLATILE if volatile else 0) | (REMNANT if remnant else 0)
    return Record(place, sender, chain, head, effects, views, flags, size, body_crc, head_crc)


def encode_head(record: Record, mark: bytes, synced: int) -> bytes:
    """Prefix and head; the bodies follow as they are."""
    plain = _PREFIX.pack(
        mark, record.flags, len(record.chain), len(record.sender), record.ordinal, synced, *record.place,
        len(record.head), len(record.effects), record.body_size, record.head_crc, record.body_crc, 0,
    )[:-4]  # fmt: skip
    return b"".join((plain, _CRC.pack(crc32(plain)), record.sender, record.chain, record.head, record.effects))


def encode_note(ordinal: int, mark: bytes) -> bytes:
    """Everything up to that ordinal is synced."""
    plain = _PREFIX.pack(mark, NOTE, 0, 0, ordinal, ordinal, 0, 0, 0, 0, 0, 0, 0, 0)[:-4]
    return plain + _CRC.pack(crc32(plain))


def decode_prefix(data: Buffer, at: int, mark: bytes) -> Prefix | None:
    """None: no record of this segment begins here."""
    if len(data) - at < PREFIX_SIZE:
        return None
    found, *fields, crc = _PREFIX.unpack_from(data, at)
    if found != mark or crc32(memoryview(data)[at : at + PREFIX_SIZE - 4]) != crc:
        return None
    prefix = Prefix._make(fields)
    if max(prefix.ordinal, prefix.synced, prefix.epoch, prefix.index) >= MOST or prefix.flags & ~_KNOWN_FLAGS:
        return None
    if prefix.flags & NOTE:
        return prefix if prefix.size == PREFIX_SIZE else None
    return prefix if prefix.chain_size in CHAIN_SIZES and prefix.synced < prefix.ordinal else None


def decode_head(prefix: Prefix, head: Buffer) -> Record:
    """From what follows the prefix. Raises Damaged."""
    after_sender = prefix.sender_size
    after_chain = after_sender + prefix.chain_size
    after_head = after_chain + prefix.only_head_size
    end = after_head + prefix.effects_size
    data = bytes(head[:end])
    if len(data) < end or crc32(data) != prefix.head_crc:
        raise Damaged(f"the head of record {prefix.place} is damaged")
    return Record(
        Place(prefix.epoch, prefix.index), data[:after_sender], data[after_sender:after_chain],
        data[after_chain:after_head], data[after_head:], (), prefix.flags,
        prefix.body_size, prefix.body_crc, prefix.head_crc, prefix.ordinal,
    )  # fmt: skip
