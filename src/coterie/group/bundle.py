"""The body of a bundle: many messages as one piece of bytes, split again without touching them one by one.

Layout: n+1 little-endian u32 offsets into the body (so the first says how many there are), then the messages.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from itertools import accumulate, pairwise

from coterie.errors import WireError
from coterie.group.packet import APP, TRAIN, Packet
from coterie.runtime.base import Buffer

OFFSET_SIZE = 4
_ONE = struct.Struct("<2I")
"""The table of one message."""


def join(messages: Sequence[Buffer]) -> bytes:
    """Gather messages into the body of one bundle: the one copy on the way out."""
    if len(messages) == 1:
        return b"".join((_ONE.pack(_ONE.size, _ONE.size + len(messages[0])), messages[0]))
    table = (len(messages) + 1) * OFFSET_SIZE
    offsets = accumulate(map(len, messages), initial=table)
    return b"".join((struct.pack(f"<{len(messages) + 1}I", *offsets), *messages))


def split(body: Buffer) -> list[memoryview]:
    """The messages of a body, as slices of it. Raises WireError if its table of offsets makes no sense."""
    view = memoryview(body)
    if len(view) >= _ONE.size and _ONE.unpack_from(view) == (_ONE.size, len(view)):
        return [view[_ONE.size :]]
    try:
        (table,) = struct.unpack_from("<I", view)
        offsets = struct.unpack_from(f"<{table // OFFSET_SIZE}I", view)
    except (struct.error, MemoryError, OverflowError):
        raise WireError("a bundle with a broken table of messages") from None
    if not offsets or offsets[-1] != len(view) or sorted(offsets) != list(offsets):
        raise WireError("a bundle with a broken table of messages")
    return [view[start:end] for start, end in pairwise(offsets)]


def count(packet: Packet) -> int:
    """How many messages a packet has; a part of a train, or a protocol's message, counts as one."""
    if packet.proto != APP or packet.flags & TRAIN:
        return 1
    if len(packet.body) < OFFSET_SIZE:
        return 0  # a peer's mistake: whoever splits it will notice
    (table,) = struct.unpack_from("<I", packet.body)
    return max(int(table) // OFFSET_SIZE - 1, 0)
